"""Degradations of windows of clips: one chain for all frames, noise of their own, numbers that walk between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import degradation_reference as reference
import numpy as np
import pytest
import torch
from moving_photos import frame_of

import lmdbloader
from lmdbloader import Clips, LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.kernels.degrade import steps
from lmdbloader.superres import degradations
from lmdbloader.superres.degradations import Degradation
from lmdbloader.transforms import Normalize, RandomCrop, ToDtype

FRAMES, SIDE = 5, 48
PRESETS: dict[str, Callable[..., Degradation]] = {
    "real_esrgan": degradations.real_esrgan, "neosr": degradations.neosr, "bsrgan": degradations.bsrgan,
    "bsrgan_plus": degradations.bsrgan_plus, "trainner_redux": degradations.trainner_redux,
    "first_order": degradations.first_order,
}  # fmt: skip
STILL = dict.fromkeys(
    ("sigma_step", "rotate_angle_step", "beta_gaussian_step", "beta_plateau_step", "omega_step", "resize_step",
     "gaussian_sigma_step", "poisson_scale_step", "quality_step"), 0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def path(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("degraded clips") / "d.lmdb"
    files = sorted(photos.glob("*.png"))
    lmdbloader.write(
        ({"hr": frame_of(files[k], n), "clip": f"{k}", "frame": n} for k in range(2) for n in range(8)), out
    )
    return out


def still(folder: Path, photo: Path) -> Path:
    """Write a clip of equal frames."""
    lmdbloader.write(({"hr": frame_of(photo, 0), "clip": "a", "frame": n} for n in range(8)), folder / "still.lmdb")
    return folder / "still.lmdb"


@pytest.mark.parametrize("name", PRESETS)
def test_the_first_frame_is_degraded_as_a_single_image(path: Path, name: str) -> None:
    transforms = [RandomCrop(SIDE), PRESETS[name](2)]
    firsts = np.array([0, 1, 2, 3, 8, 9, 10, 11])  # of the windows, whose numbers are 0 to 7
    single = Loader(LMDBDataset(path).select(firsts), 8, seed=3, shuffle=False, transforms=transforms)
    windows = Loader(Clips(path, FRAMES), 3, seed=3, shuffle=False, transforms=transforms)
    (images,), batches = list(single), list(windows)
    assert torch.equal(torch.cat([batch.lr[:, 0] for batch in batches]), images.lr)
    assert torch.equal(torch.cat([batch.hr[:, 0] for batch in batches]), images.hr)
    assert batches[0].lr.shape == (3, FRAMES, 3, SIDE // 2, SIDE // 2)
    assert batches[0].clip == ["0"] * 3


def test_frames_share_a_chain_and_have_noise_of_their_own(photos: Path, tmp_path: Path) -> None:
    place = still(tmp_path, sorted(photos.glob("*.png"))[0])
    silent = degradations.real_esrgan(
        2, gaussian_noise_prob=1, noise_range=(0, 0), gaussian_noise_prob2=1, noise_range2=(0, 0)
    )
    for batch in Loader(Clips(place, FRAMES), 2, seed=1, shuffle=False, transforms=[RandomCrop(SIDE), silent]):
        assert torch.equal(batch.lr, batch.lr[:, :1].expand_as(batch.lr))
        assert torch.equal(batch.hr, batch.hr[:, :1].expand_as(batch.hr))
    noisy = degradations.first_order(2, noise_range=(20, 20), gaussian_noise_prob=1, jpeg_range=(95, 95))
    for batch in Loader(Clips(place, FRAMES), 2, seed=1, shuffle=False, transforms=[RandomCrop(SIDE), noisy]):
        for window in batch.lr.float():
            apart = torch.cdist(window.flatten(1), window.flatten(1)) / window[0].numel() ** 0.5
            assert apart[~torch.eye(FRAMES, dtype=torch.bool)].min() > 5


@pytest.mark.parametrize("name", PRESETS)
def test_batches_threads_and_ranks_change_nothing(path: Path, name: str) -> None:
    def loaded(**options: Any) -> dict[Any, Any]:
        transforms = [RandomCrop(SIDE), PRESETS[name](2).walking(), ToDtype(torch.float32, scale=True)]
        given = {"batch_size": 4, "shuffle": True, "seed": 5, "transforms": transforms, **options}
        return {
            (clip, frame[0].item()): (low, high)
            for batch in Loader(Clips(path, FRAMES), **given)
            for clip, frame, low, high in zip(batch.clip, batch.frame, batch.lr, batch.hr, strict=True)
        }

    expected = loaded()
    assert len(expected) == 8
    both = loaded(shard=(0, 2)) | loaded(shard=(1, 2))
    for found in (loaded(batch_size=1), loaded(batch_size=7, num_threads=1), both):
        assert found.keys() == expected.keys()
        assert all(torch.equal(*pair) for key in expected for pair in zip(found[key], expected[key], strict=True))


def chains(degradation: Degradation, count: int = 200, frames: int = 30, **options: Any) -> Any:
    """Return what is drawn for frames (count, frames, steps, 7) of windows, and their orders."""
    draws = np.repeat(np.arange(count), frames)
    drawn, orders, variants = degradation.draw(draws, 256, 256, seed=2, frames=frames, **options)
    shape = (count, frames, -1)
    return drawn.reshape(*shape, drawn.shape[-1]), orders.reshape(shape), variants.reshape(count, frames)


@pytest.mark.parametrize("name", PRESETS)
def test_numbers_walk_by_small_steps_within_their_ranges(name: str) -> None:
    plain = PRESETS[name](4)
    drawn, orders, variants = chains(plain.walking())
    single, single_orders, single_variants = plain.draw(np.arange(200), 256, 256, seed=2)
    np.testing.assert_array_equal(drawn[:, 0], single)
    np.testing.assert_array_equal(orders, np.broadcast_to(single_orders[:, None], orders.shape))
    np.testing.assert_array_equal(variants, np.broadcast_to(single_variants[:, None], variants.shape))
    fixed, _, _ = chains(plain.walking(**STILL))
    np.testing.assert_array_equal(fixed, np.broadcast_to(single[:, None], fixed.shape))
    ranges = plain.draw(np.arange(20_000), 256, 256, seed=9)[0]
    codes = [step[steps.CODE] if step else 0 for step in plain.variants[0].steps]
    walked = {steps.BLUR: (steps.FIRST, 0.0629), steps.NOISE: (steps.SIGMA, 0.0051), steps.JPEG: (steps.QUALITY, 3.6)}
    for number, code in enumerate(codes):
        if code not in walked or len(plain.variants) > 1:
            continue
        column, most = walked[code]
        most = 0.15 if code == steps.BLUR and plain.variants[0].steps[number].get(steps.IS_VARIANCE) else most
        done = drawn[:, 0, number, steps.DONE] > 0
        values, every = drawn[done, :, number, column], ranges[ranges[:, number, steps.DONE] > 0, number, column]
        if not done.any():
            continue
        moves = np.abs(np.diff(values, axis=1))
        assert moves.max() <= most
        slack = 0.01 * (every.max() - every.min()) + 1e-9
        assert every.min() - slack <= values.min() <= values.max() <= every.max() + slack
        if every.max() - every.min() > 0.05:
            assert (moves > 0).mean() > 0.3


def test_resizes_walk_and_end_in_the_size_of_the_result(path: Path) -> None:
    degradation = degradations.real_esrgan(4, resize_prob=[0.5, 0.5, 0], resize_prob2=[0.5, 0.5, 0]).walking()
    drawn, _, _ = chains(degradation, count=50)
    places = [k for k, step in enumerate(degradation.variants[0].steps) if step[steps.CODE] == steps.RESIZE]
    first, *_, last = places
    sides = drawn[:, :, first, steps.HEIGHT]
    assert (np.abs(np.diff(sides, axis=1)).max(1) > 0).all()
    assert np.abs(np.diff(sides, axis=1)).max() <= 0.015 * 256 + 1
    assert 0.15 * 256 - 1 <= sides.min() <= sides.max() <= 1.5 * 256
    done = drawn[:, :, last, steps.DONE] > 0
    assert (drawn[:, :, last, steps.HEIGHT][done] == 64).all()


def test_pixels_are_those_of_the_drawn_numbers(path: Path) -> None:
    silent = degradations.first_order(2, gaussian_noise_prob=1, noise_range=(0, 0))
    degradation = silent.walking(quality_step=9, sigma_step=0.4)
    assert not degradation.sharpens
    (batch,) = Loader(Clips(path, FRAMES), 8, seed=4, shuffle=False, transforms=[RandomCrop(SIDE), degradation])
    apart, still = [], []
    for sample, (lows, highs) in enumerate(zip(batch.lr.numpy(), batch.hr.numpy(), strict=True)):
        for frame, (low, high) in enumerate(zip(lows, highs, strict=True)):
            wanted, _ = reference.degraded(high / 255, degradation, sample, seed=4, frame=frame)
            apart.append(np.abs(np.round(wanted * 255) - low).mean())
            other, _ = reference.degraded(high / 255, degradation, sample, seed=4)
            still.append(np.abs(np.round(other * 255) - low).mean())
    assert max(apart) < 0.2
    assert max(still) > 1


def test_walks_and_values(path: Path) -> None:
    degradation = degradations.first_order(2).walking()
    assert "walking" in repr(degradation) and "walking" not in repr(degradations.first_order(2))
    transforms = [RandomCrop(SIDE), degradation, ToDtype(torch.float32, scale=True), Normalize([0.5] * 3, [0.5] * 3)]
    for memory_format in (torch.contiguous_format, torch.channels_last):
        (batch,) = Loader(Clips(path, 3), 16, shuffle=True, transforms=transforms, memory_format=memory_format)
        assert (batch.lr.dtype, batch.lr.shape) == (torch.float32, (12, 3, 3, SIDE // 2, SIDE // 2))
        assert batch.lr.min() < -0.5 and batch.hr.max() > 0.5
    with pytest.raises(OptionError, match="single images"):
        Loader(path, 4, shuffle=True, transforms=transforms)
    with pytest.raises(OptionError, match="single images"):
        degradation.on_device(torch.zeros(1, 3, 8, 8), [0], seed=0, epoch=0)
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="resize_step"):
            degradations.first_order(2).walking(resize_step=wrong)
