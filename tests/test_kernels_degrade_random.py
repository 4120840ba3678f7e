"""Random numbers in bulk: published words, Box and Muller's numbers of them, their distribution and independence."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from lmdbloader.kernels.entries import fill_normal, fill_uniform

CHUNK = 256
LOW = np.uint64(0xFFFFFFFF)
KEYS = [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**64 - 1), (0x9E3779B97F4A7C15, 42), (7, 1 << 32), (1 << 32, 7)]
FILLS = {"uniform": fill_uniform, "normal": fill_normal}
LAWS = {"uniform": stats.uniform.cdf, "normal": stats.norm.cdf}


def philox(key0: int, key1: int, blocks: np.ndarray) -> list[np.ndarray]:
    """Return the four words of blocks (uint64), by the definition of Philox4x32-10."""
    half = np.uint64(32)
    a, b = blocks & LOW, blocks >> half
    c, d = (np.full_like(blocks, word) for word in (key1 & 0xFFFFFFFF, key1 >> 32))
    keys = [np.uint64(key0 & 0xFFFFFFFF), np.uint64(key0 >> 32)]
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (second >> half) ^ b ^ keys[0], second & LOW, (first >> half) ^ d ^ keys[1], first & LOW
        keys = [(key + np.uint64(step)) & LOW for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return [a, b, c, d]


def words(key0: int, key1: int, first: int, chunks: int) -> np.ndarray:
    """Return the words (chunks, 4, 64) of some chunks, in the order of the numbers."""
    blocks = np.uint64(first * 64) + np.arange(64 * chunks, dtype=np.uint64)
    a, b, c, d = (word.reshape(chunks, 64) for word in philox(key0, key1, blocks))
    return np.stack([a, c, b, d], axis=1)


def drawn(kind: str, count: int, key: tuple[int, int] = (1, 2), first: int = 0) -> np.ndarray:
    out = np.empty(-(-count // CHUNK) * CHUNK, np.float32)
    FILLS[kind](out, *key, first)
    return out[:count]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_words_are_those_that_random123_publishes(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    block, keys = counter[0] | counter[1] << 32, (key[0] | key[1] << 32, counter[2] | counter[3] << 32)
    assert tuple(int(word[0]) for word in philox(*keys, np.array([block], np.uint64))) == expected
    found = drawn("uniform", CHUNK, keys, block // 64).reshape(4, 64)[[0, 2, 1, 3], block % 64]
    assert tuple(found * 2**24) == tuple(word >> 8 for word in expected)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("first", [0, 5, 2**32 - 1, 2**57])
def test_numbers_are_made_of_their_own_words(key: tuple[int, int], first: int) -> None:
    made_of = words(*key, first, 3)
    uniform = (made_of >> np.uint64(8)).astype(np.float32) / np.float32(2**24)
    np.testing.assert_array_equal(drawn("uniform", 3 * CHUNK, key, first), uniform.ravel())

    radii, angles = (np.concatenate([half[:, :1], half[:, 1:]], axis=1) for half in (made_of[:, :2], made_of[:, 2:]))
    radius = np.sqrt(-2 * np.log(((radii >> np.uint64(1)).astype(float) + 0.5) / 2**31))
    # The last bit of an angle's word turns by half a circle, the one before it mirrors.
    radius *= np.where(angles & np.uint64(1), -1, 1)
    angle = angles.astype(np.uint32).view(np.int32) * (np.pi / 4 / 2**31)
    pair = [radius * np.cos(angle), radius * np.sin(angle)]
    mirrored = (angles & np.uint64(2)) != 0
    expected = np.concatenate([np.where(mirrored, pair[1], pair[0]), np.where(mirrored, pair[0], pair[1])], axis=1)
    np.testing.assert_allclose(drawn("normal", 3 * CHUNK, key, first), expected.ravel(), rtol=1e-6, atol=3e-7)


@pytest.mark.parametrize("kind", FILLS)
def test_numbers_have_their_distribution(kind: str) -> None:
    samples = [drawn(kind, 10_000, key) for key in KEYS] + [drawn(kind, 1_000_000, key) for key in KEYS[:3]]
    p = [stats.kstest(sample.astype(float), LAWS[kind]).pvalue for sample in samples]
    assert min(p) > 0.01 / (2 * len(samples))


def test_normal_numbers_have_their_moments_and_tails() -> None:
    count, beyond, sums = 1 << 26, np.zeros(5), np.zeros(4)
    sigmas = [3.0, 4.0, 4.5, 5.0, 5.5]
    for start in range(0, count, 1 << 20):
        numbers = drawn("normal", 1 << 20, (3, 4), start // CHUNK)
        beyond += [np.count_nonzero(np.abs(numbers) > sigma) for sigma in sigmas]
        doubles = numbers.astype(float)
        squares = doubles * doubles
        sums += doubles.sum(), squares.sum(), (squares * doubles).sum(), (squares * squares).sum()
    # The variances of x, x**2, x**3 and x**4 are 1, 2, 15 and 96.
    deviation = (sums / count - [0, 1, 0, 3]) / np.sqrt(np.array([1, 2, 15, 96]) / count)
    assert np.abs(deviation).max() < 3.5
    for sigma, found in zip(sigmas, beyond, strict=True):
        law = stats.poisson(count * 2 * stats.norm.sf(sigma))
        assert min(law.cdf(found), law.sf(found - 1)) > 0.001, f"{found} of {count} beyond {sigma}"


@pytest.mark.parametrize("kind", FILLS)
def test_numbers_do_not_depend_on_each_other(kind: str) -> None:
    count = 1 << 20
    base = drawn(kind, count, (5, 6))
    lags = (1, 2, 3, 4, 8, 63, 64, 65, 127, 128, 129, 192, 256, 512, 1024, 65536)
    pairs = [(base[:-lag], base[lag:]) for lag in lags]
    others = [((6, 6), 0), ((5, 7), 0), ((5 + (1 << 32), 6), 0), ((5, 6 + (1 << 32)), 0), ((6, 5), 0), ((5, 6), count)]
    pairs += [(base, drawn(kind, count, key, first)) for key, first in others]
    worst = 0.0
    for a, b in pairs:
        # The squares too: the two numbers of a pair have one radius.
        for power in (1, 2):
            worst = max(worst, abs(np.corrcoef(a.astype(float) ** power, b.astype(float) ** power)[0, 1]))
    tests = 2 * 2 * len(pairs)
    assert worst * np.sqrt(count) < stats.norm.isf(0.005 / tests) * 1.01


@pytest.mark.parametrize("kind", FILLS)
def test_parts_equal_the_whole_and_the_rest_stays(kind: str) -> None:
    whole = drawn(kind, 20 * CHUNK, (8, 9), 100)
    parts = [drawn(kind, n * CHUNK, (8, 9), 100 + at) for at, n in ((0, 1), (1, 2), (3, 12), (15, 5))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for count in (0, 1, 255, 256, 511, 700):
        out = np.full(count + 3, 77, np.float32)
        FILLS[kind](out[:count], 8, 9, 100)
        done = count // CHUNK * CHUNK
        np.testing.assert_array_equal(out[:done], whole[:done])
        assert (out[done:] == 77).all()


def test_bits_are_the_same_on_every_machine() -> None:
    found = [hashlib.sha256(drawn(kind, 1 << 18, (10, 11), 12).tobytes()).hexdigest()[:16] for kind in FILLS]
    assert found == ["2437770069e76883", "00b6e35f451e9ace"]
