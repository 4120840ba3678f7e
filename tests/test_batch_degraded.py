"""Degradations in a Loader: pixels as of a float64 reference, the same under any batch, threads and ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import degradation_reference as reference
import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader, ProgressiveResize, fields
from lmdbloader.errors import OptionError
from lmdbloader.kernels.degrade import steps
from lmdbloader.superres import degradations
from lmdbloader.superres.degradations import Degradation
from lmdbloader.transforms import Normalize, RandomCrop, RandomErasing, RandomHorizontalFlip, ToDtype
from lmdbloader.transforms.degradation import Variant

COUNT, HEIGHT, WIDTH = 4, 48, 64
SILENT: dict[str, Any] = {"gaussian_noise_prob": 1, "noise_range": (0, 0)}
SILENT_TWICE = {**SILENT, "gaussian_noise_prob2": 1, "noise_range2": (0, 0)}
PRESETS: dict[str, Callable[[int], Degradation]] = {
    "real_esrgan": lambda scale: degradations.real_esrgan(scale, **SILENT_TWICE),
    "neosr": lambda scale: degradations.neosr(scale, sinc_prob=0.5, second_blur_prob=1, **SILENT_TWICE),
    "trainner_redux": lambda scale: degradations.trainner_redux(
        scale, blur_prob=1, blur_prob2=0.5, final_sinc_prob=0.5, **SILENT_TWICE
    ),
    "first_order": lambda scale: degradations.first_order(
        scale, resize_mode_list=["bicubic", "area", "lanczos"], **SILENT
    ),
    "bsrgan": lambda scale: degradations.bsrgan(scale, scale2_prob=0.6, noise_level=(0, 0)),
    "bsrgan_plus": lambda scale: degradations.bsrgan_plus(
        scale, use_sharp=True, shuffle_prob=0.5, noise_level=(0, 0), poisson_prob=0
    ),
}  # fmt: skip


def write(path: Path, images: Any, **others: Any) -> Path:
    """Write images, numbered, as a dataset."""
    samples = ({"image": image, "number": number} for number, image in enumerate(images))
    lmdbloader.write(samples, path, fields={"image": fields.Image(), "number": fields.Int()}, **others)
    return path


@pytest.fixture(scope="module")
def sets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, type], Path]:
    """Return datasets of pieces of photographs by channels and dtype."""
    files, rng, found = sorted(photos.glob("*.png")), np.random.default_rng(5), {}
    color = []
    for k in range(COUNT):
        image = np.asarray(Image.open(files[k % len(files)]).convert("RGB"))
        y, x = rng.integers(image.shape[0] - HEIGHT), rng.integers(image.shape[1] - WIDTH)
        color.append(image[y : y + HEIGHT, x : x + WIDTH])
    deep = [image.astype(np.uint16) * 257 - image // 2 for image in color]
    folder = tmp_path_factory.mktemp("degraded")
    for kind, images in ((np.uint8, color), (np.uint16, deep)):
        for channels in (1, 3):
            chosen = images if channels == 3 else [image[..., 1] for image in images]
            found[channels, kind] = write(folder / f"{channels}{kind.__name__}.lmdb", chosen)
    return found


def only(degradation: Degradation, *codes: int) -> Degradation:
    """Return a degradation of which only these steps are done."""

    def kept(step: Any) -> Any:
        return {**step, steps.P: step[steps.P] if step[steps.CODE] in codes else 0.0} if step else step

    variants = tuple(Variant([*map(kept, v.steps)], v.rules, v.p) for v in degradation.variants)
    return dataclasses.replace(degradation, variants=variants)


def differences(path: Path, degradation: Degradation, peak: int) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much `lr` and `hr` of a Loader differ from the reference."""
    found: tuple[list[Any], list[Any]] = ([], [])
    dataset = LMDBDataset(path)
    batch = next(iter(Loader(dataset, COUNT, shuffle=False, transforms=[degradation], seed=7)))
    for k in range(COUNT):
        image = dataset[k].image.numpy().astype(np.float64) / peak
        expected = reference.degraded(image, degradation, k, seed=7)
        for parts, made, wanted in zip(found, (batch.lr, batch.hr), expected, strict=True):
            parts.append(np.abs(made[k].numpy().astype(np.float64) / peak - wanted).ravel())
    return np.concatenate(found[0]), np.concatenate(found[1])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PRESETS)
def test_chains_are_those_of_the_reference(
    sets: dict[tuple[int, type], Path], name: str, channels: int, kind: type
) -> None:
    degradation, peak = PRESETS[name](4), np.iinfo(kind).max
    lr, hr = differences(sets[channels, kind], only(degradation, steps.BLUR, steps.RESIZE, steps.NOISE), peak)
    # Half a level, and the precision of float32.
    assert max(lr.max(), hr.max()) < 0.5 / peak + 1e-5
    lr, _ = differences(sets[channels, kind], degradation, peak)
    # A coefficient of a JPEG may be rounded the other way.
    assert lr.mean() < 0.5 / 255
    assert np.quantile(lr, 0.99) < 1 / 255


@pytest.mark.parametrize("name", PRESETS)
def test_every_step_is_that_of_the_reference(sets: dict[tuple[int, type], Path], name: str) -> None:
    for code, scale in ((0, 1), (steps.BLUR, 1), (steps.RESIZE, 4), (steps.JPEG, 1)):
        lr, hr = differences(sets[3, np.uint16], only(PRESETS[name](scale), code), 65535)
        assert hr.max() < 2e-5
        assert np.quantile(lr, 0.999 if code == steps.JPEG else 1) < 2e-5


def test_noise_is_as_drawn(tmp_path: Path) -> None:
    value, side = 30_000, 128
    path = write(tmp_path / "flat.lmdb", np.full((16, side, side, 3), value, np.uint16))
    x = value / 65535
    for preset in (degradations.real_esrgan, degradations.bsrgan_plus):
        noisy = only(preset(1), steps.NOISE)
        drawn, orders, _ = noisy.draw(np.arange(16), side, side, seed=2)
        batch = next(iter(Loader(path, 16, shuffle=False, transforms=[noisy], seed=2)))
        checked = 0
        for k, lr in enumerate(batch.lr.numpy().astype(float) / 65535):
            parts = [drawn[k, n] for n in orders[k] if drawn[k, n, steps.DONE] and drawn[k, n, steps.SIGMA] > 0]
            if any(part[steps.COLORS] == steps.CORRELATED for part in parts):
                continue
            variances, grey = 0.0, True
            for part in parts:
                photons = part[steps.VALUES] or (1 if part is parts[0] else 0)
                kind, sigma = part[steps.KIND], part[steps.SIGMA]
                if kind == steps.POISSON and not photons:
                    break  # the number of levels of an image with noise
                variances += (
                    sigma**2 * {steps.GAUSSIAN: 1, steps.POISSON: x / max(photons, 1), steps.SPECKLE: x**2}[kind]
                )
                grey = grey and part[steps.COLORS] == steps.GRAY
            else:
                if variances**0.5 * 4 < x:  # else values are clipped
                    assert np.std(lr) == pytest.approx(variances**0.5, rel=0.06)
                    assert np.ptp(lr, axis=0).max() < 1e-6 if grey else np.ptp(lr, axis=0).max() > 1e-3
                    checked += 1
        assert checked > 3


def low(path: Path, batch_size: int, degradation: Degradation, epochs: int = 1, **options: Any) -> list[Any]:
    """Return `lr` by epoch and sample number."""
    found, loader = [], Loader(path, batch_size, transforms=[RandomHorizontalFlip(), degradation], **options)
    for _ in range(epochs):
        found.append({int(n): lr for batch in loader for n, lr in zip(batch.number, batch.lr.clone(), strict=True)})
    return found


def same(first: dict[int, torch.Tensor], second: dict[int, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = np.random.default_rng(1).integers(0, 256, (24, 16, 24, 3), np.uint8)
    return write(tmp_path_factory.mktemp("many") / "many.lmdb", images)


@pytest.mark.parametrize("preset", [degradations.real_esrgan, degradations.bsrgan])
def test_batches_threads_and_ranks_change_nothing(many: Path, preset: Callable[..., Degradation]) -> None:
    degradation = preset(4)
    first, second = low(many, 24, degradation, epochs=2, shuffle=False, seed=5)
    assert not any(torch.equal(first[k], second[k]) for k in first)
    assert same(low(many, 5, degradation, shuffle=True, seed=5, num_threads=2)[0], first)
    shards = [low(many, 4, degradation, shuffle=True, seed=5, num_threads=1, shard=(r, 3))[0] for r in range(3)]
    assert same(shards[0] | shards[1] | shards[2], first)
    assert not same(low(many, 24, degradation, shuffle=False, seed=6)[0], first)
    fixed = low(many, 7, preset(4, fixed=True), epochs=2, shuffle=False, seed=5)
    assert not same(*fixed)  # only the flips differ
    loader = Loader(many, 7, shuffle=False, transforms=[preset(4, fixed=True)], seed=5)
    assert all(torch.equal(a.lr, b.lr) for a, b in zip([*loader], [*loader], strict=True))
    with pytest.raises(OptionError, match="seed"):
        Loader(many, 7, shuffle=False, transforms=[preset(4, fixed=True)])


def test_a_size_of_a_later_epoch_that_does_not_suit_is_an_error_at_once(many: Path) -> None:
    transforms = [RandomCrop(12), degradations.real_esrgan(3)]
    with pytest.raises(OptionError, match="multiples of 3"):
        Loader(many, 4, shuffle=True, transforms=transforms, resolution=ProgressiveResize(90))
    Loader(many, 4, shuffle=True, transforms=transforms, resolution=ProgressiveResize(90, size_increment=3))


def test_a_resumed_epoch_is_the_same(many: Path) -> None:
    def made() -> Loader:
        return Loader(many, 4, shuffle=True, transforms=[degradations.real_esrgan(4)], seed=5)

    loader = made()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    wanted = [batch.lr.clone() for batch in batches]
    again = made()
    again.load_state_dict(state)
    assert all(map(torch.equal, [batch.lr for batch in again], wanted))


def test_samples_that_come_twice_differ(many: Path) -> None:
    loader = Loader(many, 6, order=[3, 3, 3, 3, 3, 3], transforms=[degradations.first_order(4)], seed=5)
    (batch,) = loader
    assert len({lr.numpy().tobytes() for lr in batch.lr}) == 6


def test_values_are_converted_after_it(many: Path) -> None:
    plain = next(iter(Loader(many, 8, shuffle=False, transforms=[degradations.real_esrgan(4)], seed=5)))
    after = [ToDtype(torch.float32, scale=True), Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]
    for form in (torch.contiguous_format, torch.channels_last):
        transforms = [degradations.real_esrgan(4), *after]
        made = next(iter(Loader(many, 8, shuffle=False, transforms=transforms, seed=5, memory_format=form)))
        for name in ("lr", "hr"):
            wanted = getattr(plain, name) / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]
            wanted /= torch.tensor([0.2, 0.3, 0.4])[:, None, None]
            torch.testing.assert_close(getattr(made, name).contiguous(), wanted)
            assert getattr(made, name).is_contiguous(memory_format=form)


@pytest.mark.parametrize("size", range(1, 9))
def test_tiny_images(tmp_path: Path, size: int) -> None:
    path = write(
        tmp_path / "tiny.lmdb", np.random.default_rng(size).integers(0, 256, (30, size, 3 * size, 3), np.uint8)
    )
    for scale in (s for s in (1, 2, 3, 4, 8) if size % s == 0):
        for preset in (degradations.real_esrgan, degradations.bsrgan, degradations.bsrgan_plus):
            (batch,) = Loader(path, 30, shuffle=False, transforms=[preset(scale)], seed=5)
            assert batch.lr.shape == (30, 3, size // scale, 3 * size // scale)


def test_sizes_on_the_way_may_exceed_those_of_the_image(many: Path) -> None:
    for degradation in (
        degradations.real_esrgan(1, resize_range=(0.2, 0.9), resize_range2=(0.5, 3), resize_prob2=(1, 0, 0)),
        degradations.real_esrgan(2, resize_range=(2, 3), resize_range2=(3, 5)),
        degradations.bsrgan_plus(1, shuffle_prob=1),
    ):
        for batch in Loader(many, 24, shuffle=False, transforms=[degradation], seed=5):
            assert batch.lr.shape[2:] == (16 // degradation.scale, 24 // degradation.scale)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("make", [degradations.real_esrgan, degradations.bsrgan_plus])
def test_whole_images_of_different_sizes(tmp_path: Path, make: Any, kind: type, channels_last: bool) -> None:
    rng, side = np.random.default_rng(8), [(24, 24), (31, 42), (40, 20), (31, 42), (24, 51), (4, 7)]
    images = [rng.integers(0, np.iinfo(kind).max, (*size, 3)).astype(kind) for size in side]
    images[2] = images[2][..., 0]  # gray among colors has three equal channels
    path = write(tmp_path / "whole.lmdb", images)
    options: dict[str, Any] = {
        "shuffle": False, "seed": 6, "memory_format": torch.channels_last if channels_last else torch.contiguous_format,
    }  # fmt: skip
    for after in ([], [ToDtype(torch.float32, scale=True), Normalize([0.5] * 3, [0.2, 0.3, 0.4])]):
        transforms = [make(4, fixed=True), *after]
        loader = Loader(path, 1, transforms=transforms, num_threads=2, **options)
        first, second = list(loader), list(loader)
        for number, (image, batch, again) in enumerate(zip(images, first, second, strict=True)):
            height, width = (size // 4 * 4 for size in image.shape[:2])
            cropped = np.broadcast_to(image.reshape(*image.shape[:2], -1), (*image.shape[:2], 3))[:height, :width]
            alike = write(tmp_path / f"{number} {len(after)}.lmdb", [cropped] * len(images))
            expected = list(Loader(alike, 1, transforms=transforms, **options))[number]
            assert batch.hr.shape == (1, 3, height, width)
            for name in ("lr", "hr"):
                assert torch.equal(getattr(batch, name), getattr(expected, name))
                assert torch.equal(getattr(batch, name), getattr(again, name))
                assert getattr(batch, name).stride() == getattr(expected, name).stride()


def test_whole_images_of_one_size_are_cropped_to_a_multiple_too(many: Path, tmp_path: Path) -> None:
    images = [image.permute(1, 2, 0).numpy() for image in (LMDBDataset(many)[k].image for k in range(4))]
    odd = write(tmp_path / "odd.lmdb", [np.pad(image, ((0, 3), (0, 1), (0, 0))) for image in images])
    for degradation in (degradations.real_esrgan(4), degradations.bsrgan_plus(4)):
        found = next(iter(Loader(odd, 4, shuffle=False, seed=1, transforms=[degradation])))
        expected = next(iter(Loader(LMDBDataset(many)[:4], 4, shuffle=False, seed=1, transforms=[degradation])))
        assert torch.equal(found.lr, expected.lr) and torch.equal(found.hr, expected.hr)


def test_images_smaller_than_the_scale_are_refused(tmp_path: Path) -> None:
    real, images = degradations.real_esrgan(4, fixed=True), [np.zeros((3, 8, 3), np.uint8)] * 2
    with pytest.raises(OptionError, match="images of 3x8 pixels; expected multiples of 4"):
        Loader(write(tmp_path / "alike.lmdb", images), 2, shuffle=False, seed=0, transforms=[real])
    different = write(tmp_path / "different.lmdb", [np.zeros((8, 8, 3), np.uint8), *images])
    with pytest.raises(OptionError, match=r"'image' is \(1, 3, 3, 8\) .*; expected \(1, 3, 4, 8\)"):
        list(Loader(different, 1, shuffle=False, seed=0, transforms=[real]))
    with pytest.raises(OptionError, match=r"different shapes.* Add a crop"):
        Loader(different, 2, shuffle=False, seed=0, transforms=[real])


def test_what_does_not_suit_is_refused(many: Path, tmp_path: Path) -> None:
    real, convert = degradations.real_esrgan(4), ToDtype(torch.float32, scale=True)
    for transforms, problem in (
        ([RandomCrop(10), real], "multiples of 4"),
        ([convert, real], "ToDtype and Normalize after it"),
        ([real, RandomErasing()], "RandomErasing comes after"),
        ([real, degradations.bsrgan(4)], "another degradation"),
        ([lambda batch: batch, real], "a function comes before"),
        ([degradations.real_esrgan(4, field="hr")], "no field 'hr'"),
    ):
        with pytest.raises(OptionError, match=problem):
            Loader(many, 4, shuffle=False, transforms=transforms)
    with pytest.raises(OptionError, match="by a Loader only"):
        LMDBDataset(many).transformed([real])
    for own in (lambda image: image.float(), lambda image: image[:, :8], lambda _: "text"):
        dataset = LMDBDataset(many, transform=lambda sample, own=own: sample._replace(image=own(sample.image)))
        with pytest.raises(OptionError, match="'image' is"):
            next(iter(Loader(dataset, 4, shuffle=False, transforms=[real])))
    pairs, pixels = tmp_path / "pairs.lmdb", np.zeros((8, 8, 3), np.uint8)
    lmdbloader.write([{"lr": pixels, "hr": pixels}], pairs, fields={"lr": fields.Image(), "hr": fields.Image()})
    for degradation, problem in ((real, "2 image fields"), (degradations.neosr(4, field="hr"), "another field")):
        with pytest.raises(OptionError, match=problem):
            Loader(pairs, 1, shuffle=False, transforms=[degradation])
    (batch,) = Loader(LMDBDataset(pairs, fields=["hr"]), 1, shuffle=False, transforms=[real])
    assert batch._fields == ("lr", "hr")


@pytest.mark.parametrize("name", PRESETS)
def test_one_image_is_degraded_as_in_a_loader(sets: dict[tuple[int, type], Path], name: str) -> None:
    degradation = PRESETS[name](4)
    for path in sets.values():
        for k, batch in enumerate(Loader(path, 1, transforms=[degradation], seed=9, shuffle=False)):
            image = np.ascontiguousarray(LMDBDataset(path)[k].image.numpy().transpose(1, 2, 0))
            lr, hr = degradation.degraded(image, k, seed=9)
            np.testing.assert_array_equal(lr.transpose(2, 0, 1), batch.lr[0])
            np.testing.assert_array_equal(hr.transpose(2, 0, 1), batch.hr[0])


@pytest.mark.parametrize("shape", [(8, 8), (8, 10, 3), (8, 8, 4), (0, 0, 3)])
def test_one_image_of_another_shape_is_refused(shape: Any) -> None:
    for image in (np.zeros(shape, np.uint8), np.zeros((8, 8, 3), np.float32)):
        with pytest.raises(OptionError, match=r"real_esrgan\(scale=4\): .* of shape .*; expected uint8 or uint16"):
            degradations.real_esrgan(4).degraded(image, 0)
