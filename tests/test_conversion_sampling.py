"""Samples: drawn without replacement, the large ones for certain; totals whose intervals hold as often as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.conversion.sampling import draw_sample

# 19 of 20, less two standard deviations of a share in 200 draws.
ENOUGH = 0.95 - 2 * (0.95 * 0.05 / 200) ** 0.5


@given(
    sizes=st.lists(st.integers(0, 10**7), min_size=4, max_size=80),
    count=st.integers(4, 90),
    seed=st.integers(0, 5),
    slope=st.floats(0, 3),
    is_guessed=st.booleans(),
)
def test_samples_are_drawn_without_replacement_and_weigh_all(
    sizes: list[int], count: int, seed: int, slope: float, is_guessed: bool
) -> None:
    known = np.array(sizes)
    sample = draw_sample(known, count, seed, guess=(lambda rows: known[rows] * 2.0) if is_guessed else None)
    assert len(set(sample.rows.tolist())) == len(sample.rows) == min(count, len(sizes))
    assert (np.diff(sample.rows) > 0).all()
    assert sample.num_inputs == len(sizes)
    assert sample.rows.tolist() == draw_sample(known, count, seed).rows.tolist() or is_guessed
    # What is the same for all is known without an error.
    same = sample.estimate_total(np.full(len(sample.rows), 3.0))
    assert same.low == pytest.approx(same.high) == pytest.approx(3 * len(sizes))
    values = 7 + slope * known
    found = sample.estimate_total(values[sample.rows])
    assert values[sample.rows].sum() * (1 - 1e-9) <= found.low <= found.value <= found.high
    if len(sample.rows) == len(sizes):
        assert found.low == found.high == pytest.approx(values.sum())


def test_an_input_as_large_as_many_is_drawn_for_certain() -> None:
    known = np.append(np.full(5000, 1000), [3_000_000, 900_000])
    for seed in range(20):
        assert {5000, 5001} <= set(draw_sample(known, 24, seed).rows.tolist())


# --- the files of folders: (size of the file, guess from its header, bytes in the dataset) ---

Folder = tuple[Any, Any, Any]


def photographs(rng: np.random.Generator, n: int) -> Folder:
    """JPEG files of photographs, stored as pixels."""
    pixels, ratio = rng.lognormal(13, 0.6, n), rng.lognormal(-2.2, 0.35, n)
    return pixels * ratio, pixels, pixels


def jpegs_again(rng: np.random.Generator, n: int) -> Folder:
    """Photographs of very different sizes, stored as smaller JPEGs."""
    pixels, ratio = rng.lognormal(13, 1.3, n), rng.lognormal(-2.2, 0.35, n)
    return pixels * ratio, pixels, pixels * ratio * rng.lognormal(-0.3, 0.2, n)


def heavy_tail(rng: np.random.Generator, n: int) -> Folder:
    """Sizes with Pareto's tail, with no variance to speak of, compressed without loss."""
    pixels, ratio = np.minimum(rng.pareto(1.1, n) * 3e4 + 1e4, 5e8), rng.lognormal(-2.2, 0.5, n)
    return pixels * ratio, pixels, pixels * np.minimum(1, 4 * ratio) * rng.lognormal(0, 0.05, n)


def thumbnails(rng: np.random.Generator, n: int) -> Folder:
    """Nineteen thumbnails to one photograph, which is 700 times larger."""
    pixels = np.where(rng.random(n) < 0.95, rng.lognormal(9.5, 0.3, n), rng.lognormal(16, 0.5, n))
    ratio = rng.lognormal(-2, 0.5, n)
    return pixels * ratio, pixels, pixels * np.minimum(1, 4 * ratio) * rng.lognormal(0, 0.05, n)


def screenshots(rng: np.random.Generator, n: int) -> Folder:
    """Three screenshots in ten images: small files of many pixels."""
    is_shot, pixels = rng.random(n) < 0.3, rng.lognormal(13, 0.8, n)
    ratio = np.where(is_shot, rng.lognormal(-4.5, 0.6, n), rng.lognormal(-2, 0.3, n))
    return pixels * ratio, pixels, pixels * np.where(is_shot, np.minimum(1, 5 * ratio), 0.9 * rng.lognormal(0, 0.05, n))


def blank_scans(rng: np.random.Generator, n: int) -> Folder:
    """One blank scan in a hundred images: the smallest files, and most of the pixels."""
    is_scan = rng.random(n) < 0.01
    pixels = np.where(is_scan, rng.lognormal(15.5, 0.3, n), rng.lognormal(13, 0.5, n))
    return pixels * np.where(is_scan, rng.lognormal(-4.5, 0.3, n), rng.lognormal(-2, 0.3, n)), pixels, pixels


def patches(rng: np.random.Generator, n: int) -> Folder:
    """Patches: none of a small image, and many of a large one."""
    side = rng.integers(60, 700, n)
    each = (np.maximum((side - 96) // 48 + 1, 0) * (side >= 96)) ** 2 * 27648.0
    return side**2 * rng.lognormal(-1, 0.5, n), each, each


def limited(rng: np.random.Generator, n: int) -> Folder:
    """Images shrunk to a maximal size, then stored as JPEG: the size of the file says nothing."""
    pixels = rng.lognormal(13, 1, n)
    return (
        pixels * rng.lognormal(-2, 0.3, n),
        np.minimum(pixels, 2e5),
        np.minimum(pixels, 2e5) * rng.lognormal(-2, 0.4, n),
    )


FOLDERS = [photographs, jpegs_again, heavy_tail, thumbnails, screenshots, blank_scans, patches, limited]


def coverage(folder: Folder, count: int) -> tuple[float, float]:
    """Return the share of samples whose interval holds the total, and the median width of the interval."""
    nbytes = np.maximum(folder[0], 200).astype(np.int64)
    total, held, widths, draws = float(folder[2].sum()), 0, [], 200
    for seed in range(draws):
        sample = draw_sample(nbytes, count, seed, guess=lambda rows: folder[1][rows])
        found = sample.estimate_total(folder[2][sample.rows])
        held += found.low * (1 - 1e-9) <= total <= found.high * (1 + 1e-9)
        widths.append((found.high - found.low) / total)
    return held / draws, float(np.median(widths))


@pytest.mark.parametrize("number", [300, 5000])
@pytest.mark.parametrize("count", [24, 100])
@pytest.mark.parametrize("make", FOLDERS)
def test_nineteen_of_twenty_intervals_hold_the_total(
    make: Callable[[np.random.Generator, int], Folder], count: int, number: int
) -> None:
    held, width = coverage(make(np.random.default_rng(0), number), count)
    assert held >= ENOUGH
    assert width < (0.8 if count == 24 else 0.35), "it is narrow enough to be of use"
