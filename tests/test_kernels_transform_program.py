"""Random choices are even, as in torchvision, and the same for all images of a sample."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from lmdbloader import transforms as T
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.program import draw
from lmdbloader.transforms.compilation import compile_program
from lmdbloader.transforms.values import ImageField

# So unlikely by chance that a fixed seed that shows it shows a mistake.
LEAST_PROBABILITY = 1e-4


class Drawn:
    """The numbers that a list of transforms draws for each of many samples, with images of the given sizes."""

    def __init__(
        self,
        transforms: Sequence[T.Transform],
        sizes: Sequence[tuple[int, int]],
        count: int,
        *,
        seed: int = 1,
        epoch: int = 0,
    ) -> None:
        fields = [ImageField(f"f{k}", 3, torch.uint8) for k in range(len(sizes))]
        program = compile_program(transforms, fields)
        erasings = sum(isinstance(t, T.RandomErasing | T.Cutout) for t in transforms)
        shape = (len(sizes), program.num_stages)
        geometry = np.zeros((*shape, op.NUM_GEOMETRY), np.int64)
        color = np.zeros((*shape, op.NUM_COLOR), np.float64)
        boxes = np.zeros((len(sizes), erasings, 4), np.int64)
        most = np.zeros(4, np.int64)
        kept: list[Any] = []
        for sample in range(count):
            geometry[:, 0, op.HEIGHT], geometry[:, 0, op.WIDTH] = np.array(sizes).T
            status = draw(
                program.whole, program.real, np.uint64(seed), np.uint64(epoch), np.uint64(sample), geometry, color,
                boxes, most,
            )  # fmt: skip
            assert status == 0
            kept.append((geometry.copy(), color.copy(), boxes.copy()))
        # (samples, fields, stages or erasings, numbers)
        self.geometry, self.color, self.boxes = (np.stack(parts) for parts in zip(*kept, strict=True))

    def first(self, number: int, field: int = 0) -> np.ndarray:
        """Return one number of the first stage of a field, for every sample."""
        return self.geometry[:, field, 0, number]


def assert_even(counts: Any, expected: Any = None) -> None:
    assert stats.chisquare(counts, expected).pvalue > LEAST_PROBABILITY


def assert_alike(found: Sequence[float], expected: Sequence[float]) -> None:
    """Check that two samples may well come from one distribution."""
    assert stats.ks_2samp(found, expected, method="asymp").pvalue > LEAST_PROBABILITY


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_crops_of_two_images_of_a_sample_are_aligned(scale: int) -> None:
    small = (12, 15)
    drawn = Drawn([T.RandomCrop(4 * scale)], [small, (12 * scale, 15 * scale)], 4000)
    for number in (op.ROW, op.COLUMN, op.HEIGHT, op.WIDTH):
        np.testing.assert_array_equal(drawn.first(number, 1), scale * drawn.first(number, 0))
    assert (drawn.first(op.HEIGHT, 0) == 4).all()
    assert_even(np.bincount(drawn.first(op.ROW) * 12 + drawn.first(op.COLUMN), minlength=9 * 12))


def test_three_images_are_cut_on_the_grid_of_all() -> None:
    drawn = Drawn([T.RandomCrop(12)], [(24, 18), (48, 36), (16, 12)], 3000)
    half, full, third = (drawn.first(op.ROW, f) for f in range(3))
    np.testing.assert_array_equal(full, 2 * half)
    np.testing.assert_array_equal(full, 3 * third)
    assert_even(np.bincount(full // 6, minlength=7))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("cls", "sign"), [(T.RandomHorizontalFlip, op.ACROSS), (T.RandomVerticalFlip, op.DOWN)])
def test_flips_happen_as_often_as_asked(cls: Any, sign: int, p: float) -> None:
    drawn = Drawn([cls(p)], [(8, 8), (16, 16)], 4000)
    flipped = drawn.first(sign) < 0
    np.testing.assert_array_equal(flipped, drawn.first(sign, 1) < 0)
    assert stats.binomtest(int(flipped.sum()), 4000, p).pvalue > LEAST_PROBABILITY
    other = op.DOWN if sign == op.ACROSS else op.ACROSS
    assert (drawn.first(other) == 1).all()


def test_the_eight_ways_are_equally_likely_and_the_same_for_all_images() -> None:
    drawn = Drawn([T.RandomDihedral()], [(8, 8), (16, 16)], 8000)
    ways = [4 * drawn.first(op.TRANSPOSED, f) + (drawn.first(op.DOWN, f) < 0) * 2 + (drawn.first(op.ACROSS, f) < 0)
            for f in range(2)]  # fmt: skip
    np.testing.assert_array_equal(*ways)
    assert_even(np.bincount(ways[0], minlength=8))


def test_operations_draw_independently() -> None:
    drawn = Drawn([T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomCrop(7)], [(8, 8)], 8000)
    row = np.where(drawn.first(op.DOWN) < 0, 7 - drawn.first(op.ROW), drawn.first(op.ROW))
    both = (drawn.first(op.DOWN) < 0) * 4 + (drawn.first(op.ACROSS) < 0) * 2 + row
    assert_even(np.bincount(both, minlength=8))


def torchvisions_crop(rng: random.Random, height: int, width: int, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
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
    [((90, 130), (0.08, 1), (3 / 4, 4 / 3)), ((60, 50), (0.5, 0.5), (0.3, 2)), ((200, 20), (0.9, 1), (3 / 4, 4 / 3)),
     ((20, 200), (0.9, 1), (3 / 4, 4 / 3))],
)  # fmt: skip
def test_resized_crops_are_drawn_as_torchvision_draws_them(size: Any, scale: Any, ratio: Any) -> None:
    drawn = Drawn([T.RandomResizedCrop(8, scale, ratio)], [size], 4000)
    rng = random.Random(5)
    expected = np.array([torchvisions_crop(rng, *size, scale, ratio) for _ in range(4000)])
    for column, number in enumerate((op.ROW, op.COLUMN, op.HEIGHT, op.WIDTH)):
        assert_alike(drawn.first(number), expected[:, column])
    assert_alike(drawn.first(op.WIDTH) / drawn.first(op.HEIGHT), expected[:, 3] / expected[:, 2])
    assert (drawn.geometry[:, 0, 1, op.HEIGHT] == 8).all()


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
def test_erasings_are_drawn_as_torchvision_draws_them(size: Any, scale: Any, ratio: Any) -> None:
    drawn = Drawn([T.RandomErasing(1, scale, ratio)], [size], 4000)
    rng = random.Random(6)
    expected = np.array([torchvisions_erasing(rng, *size, scale, ratio) for _ in range(4000)])
    for column in range(4):
        assert_alike(drawn.boxes[:, 0, 0, column], expected[:, column])


def test_erasings_happen_as_often_as_asked_at_one_place_of_all_images() -> None:
    drawn = Drawn([T.RandomErasing(0.3)], [(20, 30), (40, 60)], 4000)
    erased = drawn.boxes[:, 0, 0, 2] > 0
    assert stats.binomtest(int(erased.sum()), 4000, 0.3).pvalue > LEAST_PROBABILITY
    np.testing.assert_array_equal(drawn.boxes[:, 1], 2 * drawn.boxes[:, 0])


def test_colours_change_by_even_factors_in_any_order() -> None:
    drawn = Drawn([T.ColorJitter(0.5, (1, 3), 2, 0.3)], [(8, 8), (16, 16)], 3000)
    columns = [*range(op.COLOR_FACTORS, op.COLOR_FACTORS + 3), op.COLOR_HUE, op.COLOR_ORDER]
    factors = drawn.color[:, 0, 0, columns]
    np.testing.assert_array_equal(factors, drawn.color[:, 1, 0, columns])
    for column, (low, high) in enumerate(((0.5, 1.5), (1, 3), (0, 3), (-0.3, 0.3))):
        assert stats.kstest((factors[:, column] - low) / (high - low), "uniform").pvalue > LEAST_PROBABILITY
    assert_even(np.bincount(factors[:, 4].astype(int), minlength=24))
    assert abs(np.corrcoef(factors.T) - np.eye(5)).max() < 0.08


@pytest.mark.parametrize("size", [(8, 8), (3, 20), (20, 3), (2, 2)])
def test_every_position_of_a_crop_with_padding_as_needed_is_as_likely_as_any(size: Any) -> None:
    drawn = Drawn([T.RandomCrop((8, 9), (1, 0, 2, 3), True)], [size], 6000)
    lacking = max(8 - size[0] - 3, 0), max(9 - size[1] - 3, 0)
    places = [abs(size[0] + 3 - 8) + 1, abs(size[1] + 3 - 9) + 1]
    rows, columns = drawn.first(op.ROW) + lacking[0], drawn.first(op.COLUMN) + 1 + lacking[1]
    assert_even(np.bincount(rows * places[1] + columns, minlength=math.prod(places)))


def test_choices_are_the_samples_and_differ_by_seed_and_epoch() -> None:
    transforms = [T.RandomCrop(9), T.RandomDihedral()]
    few, many = Drawn(transforms, [(99, 99)], 20), Drawn(transforms, [(99, 99)], 60)
    np.testing.assert_array_equal(few.geometry, many.geometry[:20])
    for other in (Drawn(transforms, [(99, 99)], 60, seed=2), Drawn(transforms, [(99, 99)], 60, epoch=1)):
        assert (other.geometry != many.geometry).any((1, 2, 3)).mean() > 0.9
    assert len(np.unique(many.geometry, axis=0)) > 55


@pytest.mark.parametrize(
    "make", [lambda p: T.ColorJitter(0.5, p=p), T.RandomGrayscale, lambda p: T.RandomSolarize(128, p)]
)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_colours_change_as_often_as_asked(make: Any, p: float) -> None:
    drawn = Drawn([make(p)], [(8, 8), (16, 16)], 4000)
    changed = drawn.first(op.CLOSING) == op.THEN_COLOR
    np.testing.assert_array_equal(changed, drawn.first(op.CLOSING, 1) == op.THEN_COLOR)
    assert stats.binomtest(int(changed.sum()), 4000, p).pvalue > LEAST_PROBABILITY


def test_every_position_of_a_cutout_is_as_likely_as_any() -> None:
    drawn = Drawn([T.Cutout((4, 8), p=0.75)], [(10, 12), (20, 24)], 8000)
    small, large = drawn.boxes[:, 0, 0], drawn.boxes[:, 1, 0]
    np.testing.assert_array_equal(large, 2 * small)
    done = small[:, 2] > 0
    assert stats.binomtest(int(done.sum()), 8000, 0.75).pvalue > LEAST_PROBABILITY
    assert (small[done, 2:] == (2, 4)).all()
    assert_even(np.bincount(small[done, 0] * 9 + small[done, 1], minlength=9 * 9))
