"""Random choices are even, and as torchvision makes them; test_batch_pipeline.py holds that all images share them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transform_reference import resized_crop_box, words

import lmdbloader
from lmdbloader import transforms as T

# So unlikely by chance that a fixed seed that shows it shows a mistake.
LEAST_PROBABILITY = 1e-4
COUNT = 4000
Seen = Callable[..., np.ndarray]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    """Return a function that gives what transforms make of an image (H, W) so many times, (count, H, W)."""

    def read(image: np.ndarray, *transforms: Any, count: int = COUNT) -> np.ndarray:
        lmdbloader.write([{"image": image[..., None]}], tmp_path / "one", codec="raw", overwrite=True)
        dataset = lmdbloader.LMDBDataset(tmp_path / "one")
        loader = lmdbloader.Loader(dataset, 500, order=[0] * count, transforms=transforms, seed=1, num_threads=1)
        return torch.cat([batch.image.to(torch.int64)[:, 0] for batch in loader]).numpy()

    return read


def places(height: int, width: int) -> np.ndarray:
    """Return an image each pixel of which has a value of its own, from 1 on."""
    return np.arange(1, height * width + 1, dtype=np.uint16).reshape(height, width)


def boxes(images: np.ndarray) -> np.ndarray:
    """Return (top, left, height, width) of the pixels that are 0 in each image; zeros where there are none."""
    found = np.zeros((len(images), 4), np.int64)
    for axis, line in enumerate((images == 0).any(3 - k) for k in (1, 2)):
        found[:, axis], found[:, 2 + axis] = line.argmax(1), line.sum(1)
    return found


def assert_even(counts: Any) -> None:
    assert stats.chisquare(counts).pvalue > LEAST_PROBABILITY


def assert_share(happened: np.ndarray, share: float) -> None:
    assert stats.binomtest(int(happened.sum()), len(happened), share).pvalue > LEAST_PROBABILITY


def assert_alike(found: Any, expected: Any) -> None:
    """Check that two samples may well come from one distribution."""
    assert stats.ks_2samp(found, expected, method="asymp").pvalue > LEAST_PROBABILITY


def test_every_position_of_a_crop_is_as_likely_as_any(seen: Seen) -> None:
    found = seen(places(12, 15), T.RandomCrop(4))[:, 0, 0] - 1
    assert_even(np.bincount(found // 15 * 12 + found % 15, minlength=9 * 12))


@pytest.mark.parametrize("size", [(8, 8), (3, 20), (20, 3), (2, 2)])
def test_every_position_of_a_crop_with_padding_as_needed_is_as_likely_as_any(seen: Seen, size: Any) -> None:
    found = seen(places(*size), T.RandomCrop((8, 9), (1, 0, 2, 3), True))
    filled = [abs(size[0] + 3 - 8) + 1, abs(size[1] + 3 - 9) + 1]
    first = (found > 0).reshape(COUNT, -1).argmax(1)
    value = found.reshape(COUNT, -1)[np.arange(COUNT), first] - 1
    rows, columns = first // 9 - value // size[1], first % 9 - value % size[1]
    rows, columns = rows - rows.min(), columns - columns.min()
    assert (rows.max() + 1, columns.max() + 1) == tuple(filled)
    assert_even(np.bincount(rows * filled[1] + columns, minlength=math.prod(filled)))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips_happen_as_often_as_asked_and_independently(seen: Seen, p: float) -> None:
    found = seen(places(2, 2), T.RandomHorizontalFlip(p), T.RandomVerticalFlip(0.5))[:, 0, 0] - 1
    across, down = found % 2, found // 2
    assert_share(across == 1, p)
    assert_share(down == 1, 0.5)
    assert_share((across == 1) & (down == 1), p / 2)


def test_the_eight_ways_are_equally_likely(seen: Seen) -> None:
    _, counts = np.unique(seen(places(2, 2), T.RandomDihedral()).reshape(COUNT, -1), axis=0, return_counts=True)
    assert len(counts) == 8
    assert_even(counts)


def torchvisions_crop(rng: random.Random, height: int, width: int, scale: Any, ratio: Any) -> tuple[int, ...]:
    """Return (top, left, height, width) as torchvision.transforms.RandomResizedCrop.get_params draws them (0.25)."""
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target_area = area * rng.uniform(*scale)
        aspect_ratio = math.exp(rng.uniform(*log_ratio))
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    in_ratio = width / height
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [((97, 131), (0.08, 1), (3 / 4, 4 / 3)), ((60, 40), (0.5, 0.9), (1, 1)), ((200, 20), (0.9, 1), (3 / 4, 4 / 3)),
     ((20, 200), (0.9, 1), (3 / 4, 4 / 3))],
)  # fmt: skip
def test_resized_crops_are_drawn_as_torchvision_draws_them(size: Any, scale: Any, ratio: Any) -> None:
    # By the definition, which compiled code equals bit for bit.
    t, rng = T.RandomResizedCrop(8, scale, ratio), random.Random(5)
    found = np.array([resized_crop_box(lambda block, n=n: words(1, 0, n, 0, block), *size, t) for n in range(COUNT)])
    expected = np.array([torchvisions_crop(rng, *size, scale, ratio) for _ in range(COUNT)])
    for column in range(4):
        assert_alike(found[:, column], expected[:, column])
    assert_alike(found[:, 3] / found[:, 2], expected[:, 3] / expected[:, 2])


def torchvisions_erasing(rng: random.Random, height: int, width: int, scale: Any, ratio: Any) -> tuple[int, ...]:
    """Return (top, left, height, width) as torchvision.transforms.RandomErasing.get_params draws them (0.25)."""
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        erase_area = height * width * rng.uniform(*scale)
        aspect_ratio = math.exp(rng.uniform(*log_ratio))
        h, w = round(math.sqrt(erase_area * aspect_ratio)), round(math.sqrt(erase_area / aspect_ratio))
        if h < height and w < width:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    return 0, 0, 0, 0


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [((90, 130), (0.02, 0.33), (0.3, 3.3)), ((60, 50), (0.1, 0.4), (1, 4)), ((60, 50), (0.1, 0.4), (0.25, 1)),
     ((200, 20), (0.3, 0.6), (0.3, 3.3))],
)  # fmt: skip
def test_erasings_are_drawn_as_torchvision_draws_them(seen: Seen, size: Any, scale: Any, ratio: Any) -> None:
    found = boxes(seen(np.ones(size, np.uint8), T.RandomErasing(1, scale, ratio)))
    rng = random.Random(6)
    expected = np.array([torchvisions_erasing(rng, *size, scale, ratio) for _ in range(COUNT)])
    for column in range(4):
        assert_alike(found[:, column], expected[:, column])


def test_erasings_happen_as_often_as_asked(seen: Seen) -> None:
    assert_share(boxes(seen(np.ones((20, 30), np.uint8), T.RandomErasing(0.3)))[:, 2] > 0, 0.3)


def test_every_position_of_a_cutout_is_as_likely_as_any(seen: Seen) -> None:
    found = boxes(seen(np.ones((10, 12), np.uint8), T.Cutout((2, 4), p=0.75)))
    done = found[:, 2] > 0
    assert_share(done, 0.75)
    assert (found[done, 2:] == (2, 4)).all()
    assert_even(np.bincount(found[done, 0] * 9 + found[done, 1], minlength=9 * 9))


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.5), (1, 3)])
def test_colors_change_by_even_factors(seen: Seen, low: float, high: float) -> None:
    factors = seen(np.full((1, 1), 20_000, np.uint16), T.ColorJitter((low, high)))[:, 0, 0] / 20_000
    assert stats.kstest((factors - low) / (high - low), "uniform").pvalue > LEAST_PROBABILITY


@pytest.mark.parametrize(
    "make",
    [lambda p: T.ColorJitter((2, 2), p=p), lambda p: T.RandomSolarize(1, p), lambda p: T.GaussianNoise(0.2, 0, p=p)],
)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_colors_change_as_often_as_asked(seen: Seen, make: Any, p: float) -> None:
    assert_share(seen(np.full((1, 1), 100, np.uint8), make(p))[:, 0, 0] != 100, p)
