"""Noise on images: its definitions in NumPy, and the distribution of Poisson numbers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from scipy import linalg, stats

from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import noise, poisson

KEY = (11, 12)
SHAPES = [(1, 1), (3, 1), (3, 255), (3, 256), (1, 1000), (3, 4097), (4, 600)]


def picture(channels: int, plane: int, seed: int = 0) -> np.ndarray:
    """Return an image with some values below 0 and above 1."""
    return (np.random.default_rng(seed).random((channels, plane)) * 1.2 - 0.1).astype(np.float32)


def work(room: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**64, room, np.uint64)


def guarded(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy of an image as a flat array, and the memory around it."""
    memory = np.full(image.size + 16, -77, np.float32)
    flat = memory[8 : 8 + image.size]
    flat[:] = image.ravel()
    return flat, memory


def with_gaussian(image: np.ndarray, sigma: float, grey: bool, speckle: bool, clipped: bool, key: Any = KEY) -> Any:
    flat, memory = guarded(image)
    entries.gaussian(flat, *image.shape, sigma, grey, speckle, clipped, *key, work(noise.NOISE_ROOM))
    assert (memory[:8] == -77).all() and (memory[-8:] == -77).all()
    return flat.reshape(image.shape)


def with_correlated(image: np.ndarray, level: float, speckle: bool, clipped: bool, key: Any = KEY) -> Any:
    flat, memory = guarded(image)
    entries.correlated(flat, *image.shape, level, speckle, clipped, *key, work(noise.NOISE_ROOM))
    assert (memory[:8] == -77).all() and (memory[-8:] == -77).all()
    return flat.reshape(image.shape)


def with_poisson(
    image: np.ndarray, scale: float = 1, photons: float = 0, grey: bool = False, clipped: bool = False, key: Any = KEY
) -> Any:
    flat, memory = guarded(image)
    entries.poisson(flat, *image.shape, scale, photons, grey, clipped, *key, work(noise.POISSON_ROOM))
    assert (memory[:8] == -77).all() and (memory[-8:] == -77).all()
    return flat.reshape(image.shape)


def normal(count: int, key: Any = KEY) -> np.ndarray:
    out = np.empty(-(-count // 256) * 256, np.float32)
    entries.fill_normal(out, *key, 0)
    return out[:count]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("clipped", [False, True])
def test_gaussian_noise_adds_normal_numbers(shape: tuple[int, int], clipped: bool) -> None:
    image, sigma = picture(*shape), np.float32(0.1)
    for grey, speckle in ((False, False), (True, False), (False, True), (True, True)):
        added = normal(shape[1] if grey else image.size).reshape(1 if grey else shape[0], -1) * sigma
        base = np.clip(image, 0, 1) if speckle and clipped else image
        expected = base + (base * added if speckle else added)
        expected = np.clip(expected, 0, 1) if clipped else expected
        np.testing.assert_array_equal(with_gaussian(image, 0.1, grey, speckle, clipped), expected)


def bsrgans_covariance(level: float, key: tuple[int, int]) -> np.ndarray:
    """Return the covariance that BSRGAN's lines make of a key's draws."""
    before_the_first = 2**192 - 1  # NumPy counts, then draws
    generators = (np.random.Philox(key=key[0] | key[1] << 64, counter=before_the_first + k) for k in range(3))
    uniform = (np.array([generator.random_raw(4) for generator in generators]) >> np.uint64(11)) / 2**53
    u, d = linalg.orth(uniform[:, :3]), np.diag(uniform[:, 3])
    return np.abs(level**2 * np.dot(np.dot(np.transpose(u), d), u))


def mixture(level: float, key: tuple[int, int]) -> np.ndarray:
    found = np.full(21, np.nan)
    entries.draw_mixture(level, *key, found)
    return found[:9].reshape(3, 3)


def test_correlated_noise_has_bsrgans_covariance() -> None:
    for k in range(500):
        expected = bsrgans_covariance(0.1, (k, 5))
        # NumPy's multivariate_normal would warn of a negative eigenvalue, and take its absolute value.
        assert np.linalg.eigvalsh(expected)[0] > -1e-15
        found = mixture(0.1, (k, 5))
        np.testing.assert_allclose(found @ found.T, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("plane", [1, 255, 256, 257, 4097])
@pytest.mark.parametrize(("speckle", "clipped"), [(False, False), (True, True), (True, False)])
def test_correlated_noise_mixes_normal_numbers(plane: int, speckle: bool, clipped: bool) -> None:
    image, level = picture(3, plane), 25 / 255
    chunks = -(-plane // 256)
    fields = normal(3 * 256 * chunks).reshape(chunks, 3, 256).transpose(1, 0, 2).reshape(3, -1)[:, :plane]
    added = mixture(level, KEY) @ fields
    base = np.clip(image, 0, 1) if speckle and clipped else image
    expected = base + (base * added if speckle else added)
    expected = np.clip(expected, 0, 1) if clipped else expected
    np.testing.assert_allclose(with_correlated(image, level, speckle, clipped), expected, atol=3e-7)
    # A gray image gets the noise of the first channel.
    np.testing.assert_allclose(with_correlated(image[:1], level, speckle, clipped), expected[:1], atol=3e-7)


def test_correlated_noise_is_correlated() -> None:
    found = with_correlated(np.zeros((3, 1 << 20), np.float32), 1.0, False, False)
    expected = bsrgans_covariance(1.0, KEY)
    # The variance of an element of a covariance of n normal numbers is (ab + cc) / n.
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / found.shape[1])
    assert (np.abs(np.cov(found) - expected) < 3.5 * error).all()


# Poisson noise


@pytest.mark.parametrize("mean", [0.3, 1, 5, 15.9, 16, 30, 100, 256, 272, 300, 4352, 5000, 10000, 12287])
def test_poisson_numbers_have_their_distribution(mean: float) -> None:
    count = 1 << 19
    numbers = with_poisson(np.ones((1, count), np.float32), photons=mean).astype(float).ravel() * mean
    assert np.abs(numbers - np.rint(numbers)).max() < 0.01
    law = stats.poisson(mean)
    numbers = np.rint(numbers).astype(np.int64)
    assert abs(numbers.mean() - mean) < 3.5 * np.sqrt(mean / count)
    fourth = mean + 3 * mean**2
    assert abs(((numbers - mean) ** 2).mean() - mean) < 3.5 * np.sqrt((fourth - mean**2) / count)
    # Numbers that are expected at least ten times, and those below and above.
    low, high = (int(law.ppf(p)) for p in (20 / count, 1 - 20 / count))
    expected = np.concatenate([[law.cdf(low)], law.pmf(np.arange(low + 1, high)), [law.sf(high - 1)]]) * count
    found = np.bincount(np.clip(numbers, low, high) - low, minlength=high - low + 1)
    assert stats.chisquare(found, expected).pvalue > 0.01 / 14


def levels_of(image: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(image * np.float32(255), 0, 255)).astype(np.int64)


def grey_of(image: np.ndarray, red: float) -> np.ndarray:
    if len(image) != 3:
        return image.mean(0, dtype=np.float32, keepdims=True)
    weights = [np.float32(weight) for weight in (red, 0.587, 0.114)]
    return (weights[0] * image[0] + weights[1] * image[1] + weights[2] * image[2])[None]


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_real_esrgans_poisson_noise(channels: int, grey: bool) -> None:
    """Every number is a whole one of its own Poisson distribution, and the whole scale of means is right."""
    image, scale = picture(channels, 60_000), 1.7
    noisy = with_poisson(image, scale, grey=grey)
    of = grey_of(image, 0.2989) if grey else image
    added = (noisy.astype(float) - image) / scale
    if grey:
        assert np.ptp(added, axis=0).max() < 1e-6
        added = added[:1]
    levels = levels_of(of)
    photons = 2 ** np.ceil(np.log2(len(np.unique(levels))))
    numbers = (added + levels / 255) * photons
    assert np.abs(numbers - np.rint(numbers)).max() < 1e-3
    numbers, law = np.rint(numbers), stats.poisson(levels / 255 * photons)
    # A number between those that a distribution function jumps between is uniform.
    between = np.random.default_rng(2).random(numbers.shape)
    assert stats.kstest((law.cdf(numbers - 1) + between * law.pmf(numbers)).ravel(), "uniform").pvalue > 0.01 / 6


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("photons", [100.0, 777.7, 10000.0])
def test_bsrgans_poisson_noise(photons: float, grey: bool) -> None:
    """The image is rounded to 8 bits first, and the noise is that of its gray, rounded too."""
    image = picture(3, 60_000)
    rounded = (levels_of(image) / 255).astype(np.float32)
    noisy = with_poisson(image, photons=photons, grey=grey)
    added = noisy.astype(float) - rounded
    if grey:
        assert np.ptp(added, axis=0).max() < 1e-6
        added = added[:1]
    levels = levels_of(grey_of(rounded, 0.299)) if grey else levels_of(image)
    numbers = (added + levels / 255) * photons
    assert np.abs(numbers - np.rint(numbers)).max() < 1e-6 * photons + 1e-3
    numbers, law = np.rint(numbers), stats.poisson(levels / 255 * photons)
    between = np.random.default_rng(3).random(numbers.shape)
    assert stats.kstest((law.cdf(numbers - 1) + between * law.pmf(numbers)).ravel(), "uniform").pvalue > 0.01 / 6


@pytest.mark.parametrize("different", [1, 2, 3, 4, 5, 16, 17, 128, 129, 255, 256])
def test_photons_are_counted_from_different_values(different: int) -> None:
    levels = np.resize(np.arange(256 - different, 256), 3000)  # the brightest, so that numbers are odd as well
    image = (levels / 255).astype(np.float32).reshape(3, 1000)
    numbers = (with_poisson(image).astype(float)) * 2 ** np.ceil(np.log2(different))
    assert np.abs(numbers - np.rint(numbers)).max() < 1e-3
    assert (np.rint(numbers) % 2 == 1).any()


def test_clipping_comes_last_and_what_is_no_number_stays() -> None:
    image = picture(3, 5000)
    for grey in (False, True):
        np.testing.assert_array_equal(
            with_poisson(image, 2.0, grey=grey, clipped=True), np.clip(with_poisson(image, 2.0, grey=grey), 0, 1)
        )
    image[:, ::7] = np.nan
    image[0, 1], image[1, 2] = np.inf, -np.inf
    for found in (with_poisson(image), with_poisson(image, photons=300.0)):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(image))


def probabilities(table: np.ndarray, bits: int) -> np.ndarray:
    """Return how likely each number of an alias table is."""
    own = (table >> np.uint64(16)) / 2.0**48
    found = own + np.bincount((table & np.uint64(0xFFFF)).astype(int), 1 - own, minlength=len(table))
    return found / 2**bits


@pytest.mark.parametrize("bits", [6, 8, 10, 11])
def test_tables_are_exact(bits: int) -> None:
    means = {6: [0, 1e-12, 0.3, 0.999, 7.5, 15.999], 8: range(16, 257, 16), 10: range(256, 4097, 256), 11: [4096, 8192]}
    for mean in means[bits]:
        table = np.zeros(1 << bits, np.uint64)
        poisson.fill_table(table, 0, bits, float(mean))
        numbers = np.arange(len(table)) + max(int(mean + 0.5 - 0.49 * (1 << bits)), 0)
        expected = stats.poisson.pmf(numbers, mean)
        assert expected.sum() > 1 - 1e-11
        # SciPy's digits, which are fewer, are in the logarithms of large numbers.
        np.testing.assert_allclose(probabilities(table, bits), expected, rtol=1e-14 * max(mean, 1), atol=1e-15)


def test_a_word_that_leaves_a_choice_open_is_continued() -> None:
    table, levels = np.zeros(poisson.TABLES_ROOM, np.uint64), np.zeros(20_000, np.int32)
    poisson.fill_table(table, 0, 6, 7.3)
    column = 3
    threshold = int(table[column]) >> 16
    words = np.full(levels.size, column << 26 | threshold >> 22, np.uint32)
    share = (threshold & (1 << 22) - 1) / 2**22  # of the bits that a word has no room for
    whole, counts = np.zeros(256, np.int32), np.zeros(levels.size, np.int32)
    poisson.add_part(0, True, table, whole, levels, words, counts, np.uint64(1), np.uint64(2), 0)
    assert set(counts) == {column, int(table[column]) & 0xFFFF}
    assert stats.binomtest(int((counts == column).sum()), counts.size, share).pvalue > 0.01


def test_bits_are_the_same_on_every_machine_and_at_every_call() -> None:
    image = np.resize((np.arange(5000) % 257 / 256).astype(np.float32), (3, 3333))
    found = [
        hashlib.sha256(noisy.tobytes()).hexdigest()[:16]
        for _ in range(2)
        for noisy in (
            with_gaussian(image, 0.1, False, True, True), with_correlated(image, 0.1, False, True),
            with_poisson(image, 0.5), with_poisson(image, photons=9000.0, grey=True, clipped=True),
        )
    ]  # fmt: skip
    assert found == 2 * ["4b856aeb0f1e0d65", "68740a5e88d81822", "c6cc7d2f109dee5e", "2d64e279c6462cbe"]
