"""Degradations by torch: the pixels of a Loader with the same draws, and noise as strong."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_batch_degraded import PRESETS, only, write

from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.kernels.degrade import steps
from lmdbloader.superres import degradations
from lmdbloader.superres.degradations import Degradation
from lmdbloader.transforms import RandomCrop, RandomDihedral, WithIndices
from lmdbloader.transforms.degradation_in_torch import _libjpeg

SIDE, SEED, EPOCH = 96, 7, 3
EXACT, COUNT = 2e-5, 200


@pytest.fixture(scope="module")
def pieces(photos: Path) -> np.ndarray:
    """Return pieces of photographs (COUNT, SIDE, SIDE, 3)."""
    files, rng, found = sorted(photos.glob("*.png")), np.random.default_rng(3), []
    for k in range(COUNT):
        image = np.asarray(Image.open(files[k % len(files)]))
        y, x = rng.integers(image.shape[0] - SIDE), rng.integers(image.shape[1] - SIDE)
        found.append(image[y : y + SIDE, x : x + SIDE])
    return np.stack(found)


@pytest.fixture(scope="module")
def sets(pieces: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("in_torch")
    deep = pieces[:16].astype(np.uint16) * 257 - pieces[:16] // 2
    images = {"8 bits": pieces, "16 bits": deep, "grey": pieces[:16, ..., 1], "16 bits, grey": deep[..., 1]}
    return {name: write(folder / f"{k}.lmdb", values) for k, (name, values) in enumerate(images.items())}


def both(
    path: Path, degradation: Degradation, device: str = "cpu"
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return `lr` and `hr` of a Loader, and those that torch makes."""
    dataset = LMDBDataset(path)
    loaders = [Loader(dataset, len(dataset), shuffle=False, transforms=t, seed=SEED) for t in ([degradation], [])]
    for loader in loaders:
        loader.set_epoch(EPOCH)
    (wanted,), (given,) = loaders
    made = degradation.on_device(given.image.to(device), given.number, seed=SEED, epoch=EPOCH)
    assert all(part.device.type == device and part.dtype == given.image.dtype for part in made)
    return (wanted.lr, wanted.hr), (made[0].cpu(), made[1].cpu())


def differences(path: Path, degradation: Degradation, device: str = "cpu") -> list[np.ndarray]:
    """Return by how many levels `lr` and `hr` differ."""
    wanted, made = both(path, degradation, device)
    return [np.abs(a.numpy().astype(int) - b.numpy().astype(int)) for a, b in zip(wanted, made, strict=True)]


@pytest.mark.parametrize("name", PRESETS)
def test_pixels_are_those_of_a_loader(sets: dict[str, Path], name: str) -> None:
    without_jpeg = only(PRESETS[name](4), steps.BLUR, steps.RESIZE, steps.NOISE)
    lr, hr = differences(sets["8 bits"], without_jpeg)
    # A value halfway between two levels is rounded the other way.
    assert max(lr.max(), hr.max()) <= 1
    assert max(lr.mean(), hr.mean()) < 3e-4
    lr, _ = differences(sets["8 bits"], PRESETS[name](4))
    # Such a value moves a coefficient by a step of its table.
    assert lr.mean() < 0.05
    assert np.quantile(lr, 0.995) <= 2


@pytest.mark.parametrize("kind", ["16 bits", "16 bits, grey"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_step_is_that_of_a_loader(sets: dict[str, Path], name: str, kind: str) -> None:
    for code, scale in ((0, 1), (steps.BLUR, 1), (steps.RESIZE, 4), (steps.JPEG, 1)):
        lr, hr = differences(sets[kind], only(PRESETS[name](scale), code))
        assert hr.max() <= 65535 * EXACT
        assert np.quantile(lr, 0.999 if code == steps.JPEG else 1) <= 65535 * EXACT


@pytest.mark.parametrize("name", PRESETS)
def test_grey_images(sets: dict[str, Path], name: str) -> None:
    lr, _ = differences(sets["grey"], PRESETS[name](4))
    assert lr.mean() < 0.05


@settings(max_examples=200)
@given(st.integers(0, 99), st.sampled_from([1, 3]), st.integers(1, 70), st.integers(1, 70), st.integers(1, 100))
def test_whole_numbers_are_libjpegs(seed: int, channels: int, height: int, width: int, quality: int) -> None:
    rng = np.random.default_rng(seed)
    smooth = rng.integers(0, 256, (channels, 1, 1)) + np.cumsum(rng.integers(-9, 10, (channels, height, width)), 2)
    image = (rng.integers(0, 256, smooth.shape) if seed % 2 else smooth.clip(0, 255)).astype(np.uint8)
    saved = io.BytesIO()
    Image.fromarray(image[0] if channels == 1 else image.transpose(1, 2, 0)).save(saved, "JPEG", quality=quality)
    wanted = np.atleast_3d(np.array(Image.open(saved))).transpose(2, 0, 1)
    found = _libjpeg(torch.from_numpy(image / np.float32(255)), float(quality))
    assert np.array_equal((found * 255).round().numpy(), wanted)


def test_noise_is_as_strong_as_in_a_loader(tmp_path: Path) -> None:
    value, side, count = 30_000, 128, 48
    path = write(tmp_path / "flat.lmdb", np.full((count, side, side, 3), value, np.uint16))
    for preset in (degradations.first_order(1), degradations.bsrgan(1), degradations.bsrgan_plus(1)):
        degradation = only(preset, steps.NOISE)
        drawn, _, _ = degradation.draw(np.arange(count), side, side, seed=SEED, epoch=EPOCH)
        # The covariance of correlated noise is drawn, too.
        are_alike = ~((drawn[..., steps.COLORS] == steps.CORRELATED) & (drawn[..., steps.DONE] > 0)).any(1)
        (wanted, _), (made, _) = both(path, degradation)
        assert not torch.equal(made, wanted)
        first, second = (part.double().numpy()[are_alike] / 65535 for part in (wanted, made))
        np.testing.assert_allclose(second.std((1, 2, 3)), first.std((1, 2, 3)), rtol=0.06, atol=1e-4)
        np.testing.assert_allclose(second.mean((1, 2, 3)), first.mean((1, 2, 3)), atol=0.02)
        is_colored = [np.ptp(part, 1).max((1, 2)) > 1e-4 for part in (first, second)]
        np.testing.assert_array_equal(*is_colored)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_correlated_noise_is_drawn_as_by_the_kernels(tmp_path: Path, channels: tuple[int, ...]) -> None:
    path = write(tmp_path / "flat.lmdb", np.full((64, 64, 64, *channels), 30_000, np.uint16))
    degradation = only(degradations.bsrgan(1), steps.NOISE)
    drawn, _, _ = degradation.draw(np.arange(64), 64, 64, seed=SEED, epoch=EPOCH)
    chosen = ((drawn[..., steps.COLORS] == steps.CORRELATED) & (drawn[..., steps.DONE] > 0)).any(1)
    assert chosen.sum() > 5
    (wanted, _), (made, _) = both(path, degradation)
    spread = [part.double()[chosen].flatten(2).std(2).mean() / 65535 * 255 for part in (wanted, made)]
    assert all(6 < value < 22 for value in spread)
    for part in (wanted, made) if channels else ():
        found = [np.corrcoef(lr.double().flatten(1).numpy())[0, 1] for lr in part[chosen]]
        assert min(found) > -0.05 and np.mean(found) > 0.1


def test_a_sample_depends_on_its_number_alone(pieces: np.ndarray) -> None:
    degradation, hr = degradations.real_esrgan(4), torch.from_numpy(pieces[:6]).permute(0, 3, 1, 2)
    numbers = torch.tensor([5, 2**40, 0, 3, 3, 8])
    lr, high = degradation.on_device(hr, numbers, seed=1, epoch=2)
    again, _ = degradation.on_device(hr[[4, 1]], [3, 2**40], seed=1, epoch=2)
    assert torch.equal(again, lr[[4, 1]])
    for options in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 0}):
        other, same = degradation.on_device(hr, numbers, **options)
        assert torch.equal(same, high)
        assert not any(map(torch.equal, other, lr))
    fixed = degradations.real_esrgan(4, fixed=True)
    assert torch.equal(*(fixed.on_device(hr, numbers, seed=1, epoch=epoch)[0] for epoch in (0, 9)))


def test_floats_are_rounded_to_bytes(pieces: np.ndarray) -> None:
    degradation, hr = degradations.real_esrgan(4), torch.from_numpy(pieces[:4]).permute(0, 3, 1, 2)
    wanted = degradation.on_device(hr, range(4), seed=1, epoch=0)
    with torch.autocast("cpu"):
        made = degradation.on_device((hr / 255).requires_grad_(), range(4), seed=1, epoch=0)
    for values, levels in zip(made, wanted, strict=True):
        assert values.dtype == torch.float32 and not values.requires_grad
        assert torch.equal((values * 255).round(), levels.float())
        torch.testing.assert_close(values, levels / 255)


def test_the_default_dtype_changes_nothing(pieces: np.ndarray) -> None:
    degradation, hr = degradations.real_esrgan(4), torch.from_numpy(pieces[:4]).permute(0, 3, 1, 2)
    wanted = degradation.on_device(hr, range(4), seed=1, epoch=0)
    torch.set_default_dtype(torch.float64)
    try:
        made = degradation.on_device(hr, range(4), seed=1, epoch=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, made, wanted))


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("preset", [degradations.real_esrgan, degradations.bsrgan, degradations.bsrgan_plus])
def test_tiny_images(preset: Callable[[int], Degradation], size: int) -> None:
    hr = torch.randint(256, (20, 3, size, 3 * size), dtype=torch.uint8)
    for scale in (s for s in (1, 2, 4) if size % s == 0):
        lr, high = preset(scale).on_device(hr, range(20), seed=5, epoch=0)
        assert lr.shape == (20, 3, size // scale, 3 * size // scale) and high.shape == hr.shape


def test_the_numbers_of_a_shuffled_loader(sets: dict[str, Path]) -> None:
    degradation = degradations.neosr(4, noise_range=(0, 0), noise_range2=(0, 0), gaussian_noise_prob=1,
                                     gaussian_noise_prob2=1)  # fmt: skip
    moves: list[Any] = [RandomCrop(64), RandomDihedral()]
    numbered = WithIndices(lambda batch, indices: {"hr": batch.image, "samples": indices})
    path = sets["8 bits"]
    loaders = [Loader(path, 30, shuffle=True, seed=4, transforms=[*moves, f]) for f in (degradation, numbered)]
    for epoch in range(2):
        for wanted, batch in zip(*loaders, strict=True):
            lr, _ = degradation.on_device(batch["hr"], batch["samples"], seed=loaders[1].seed, epoch=epoch)
            assert (lr.float() - wanted.lr.float()).abs().mean() < 0.1


def test_what_does_not_suit_is_refused() -> None:
    degradation, hr = degradations.real_esrgan(4), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    for images, samples, problem in (
        (hr[0], [0, 1], "a batch"), (hr[:, :2], [0, 1], "a batch"), (hr[:0], [], "a batch"),
        (hr.half(), [0, 1], "a batch"), (hr.numpy(), [0, 1], "ndarray"), (hr[..., :6], [0, 1], "multiples of 4"),
        (hr.float() - 1, [0, 1], "0 to 1"), (hr.float() + 2, [0, 1], "0 to 1"), (hr / 0, [0, 1], "0 to 1"),
        (hr, [0], "each of the 2"), (hr, [[0, 1]], "each of the 2"), (hr, [0.0, 1.0], "each of the 2"),
        (hr, [0, -1], "each of the 2"), (hr, 0, "each of the 2"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=problem):
            degradation.on_device(images, samples, seed=0, epoch=0)
    for options in ({"seed": -1, "epoch": 0}, {"seed": 0, "epoch": 0.5}):
        with pytest.raises(OptionError, match="whole number"):
            degradation.on_device(hr, [0, 1], **options)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("mark", [pytest.param(None, marks=NEEDS_CUDA)])
def test_a_gpu_makes_the_same_pixels(sets: dict[str, Path], name: str, mark: None) -> None:
    lr, hr = differences(sets["8 bits"], only(PRESETS[name](4), steps.BLUR, steps.RESIZE, steps.NOISE), DEVICE)
    assert max(lr.max(), hr.max()) <= 1
    lr, _ = differences(sets["8 bits"], PRESETS[name](4), DEVICE)
    assert lr.mean() < 0.05
