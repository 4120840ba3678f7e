"""BLAKE3's kernels against the same function in plain Python; they write only to their own memory."""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmdbloader.kernels import blake3_sizes as sizes
from lmdbloader.kernels.entries import add_groups, finish_blake3

pytestmark = pytest.mark.usefixtures("both_ways")

START = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
WHOLE = 0xFFFFFFFF
GUARD = 64
MARK = 0x6D
DATA = np.random.default_rng(0).integers(0, 256, 2**18, np.uint8)


def rotated(value: int, bits: int) -> int:
    return (value >> bits | value << 32 - bits) & WHOLE


def compressed(before: list[int], block: bytes, counter: int, flags: int) -> list[int]:
    """Return the chaining value after one more block."""
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = [*before, *START[:4], counter & WHOLE, counter >> 32, len(block), flags]
    for _ in range(7):
        for i in range(8):
            b = 4 + (i + i // 4) % 4
            a, c, d = i % 4, 8 + (i + i // 4 * 2) % 4, 12 + (i + i // 4 * 3) % 4
            for word, right, left in ((words[2 * i], 16, 12), (words[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & WHOLE
                v[d] = rotated(v[d] ^ v[a], right)
                v[c] = (v[c] + v[d]) & WHOLE
                v[b] = rotated(v[b] ^ v[c], left)
        words = [words[k] for k in ORDER]
    return [v[i] ^ v[i + 8] for i in range(8)]


def hash_of(data: bytes, first: int = 0, root: int = 8) -> list[int]:
    """Return the chaining value of the subtree that begins with chunk `first`."""
    if len(data) <= 1024:
        value = START
        for at in range(0, max(len(data), 1), 64):
            is_last = at + 64 >= len(data)
            value = compressed(value, data[at : at + 64], first, (at == 0) | is_last * (2 | root))
        return value
    left = 1024 << ((len(data) - 1) // 1024).bit_length() - 1
    both = hash_of(data[:left], first, 0) + hash_of(data[left:], first + left // 1024, 0)
    return compressed(START, struct.pack("<16I", *both), 0, 4 | root)


class Guarded:
    """Zeros with marks on both sides."""

    def __init__(self, nbytes: int) -> None:
        self.whole = np.full(nbytes + 2 * GUARD, MARK, np.uint8)
        self.inside = self.whole[GUARD:-GUARD]
        self.inside[:] = 0

    @property
    def address(self) -> int:
        return self.inside.ctypes.data

    @property
    def is_untouched_around(self) -> bool:
        return bool((self.whole[:GUARD] == MARK).all() and (self.whole[-GUARD:] == MARK).all())


def by_kernels(data: np.ndarray, cuts: list[int]) -> list[int]:
    """Return the hash, whole groups being added in the given numbers at once."""
    stack, work, out = Guarded(sizes.STACK_ROWS * 32), Guarded(sizes.WORK_NBYTES), Guarded(32)
    groups = max(len(data) - 1, 0) // sizes.GROUP_NBYTES
    done = 0
    for count in [*cuts, groups]:
        count = min(count, groups - done)
        address = data[done * sizes.GROUP_NBYTES :].ctypes.data
        add_groups(address, count, done, stack.address, work.address)
        done += count
    rest = np.zeros(sizes.GROUP_NBYTES, np.uint8)
    tail = data[done * sizes.GROUP_NBYTES :]
    rest[: len(tail)] = tail
    finish_blake3(rest.ctypes.data, len(tail), done, stack.address, work.address, out.address)
    assert stack.is_untouched_around and work.is_untouched_around and out.is_untouched_around
    return [int(word) for word in out.inside.view("<u4")]


@cache
def expected(nbytes: int) -> list[int]:
    return hash_of(DATA[:nbytes].tobytes())


@pytest.mark.parametrize("nbytes", [0, 1, 3, 63, 64, 65, 128, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 5121, 17_409])
def test_every_shape_of_the_tree(nbytes: int) -> None:
    assert by_kernels(DATA[:nbytes], []) == expected(nbytes)


@pytest.mark.parametrize("nbytes", [65_535, 65_536, 65_537, 131_072, 196_609])
@pytest.mark.parametrize("cuts", [[], [1], [0, 2]])
def test_groups_in_any_numbers(nbytes: int, cuts: list[int]) -> None:
    assert by_kernels(DATA[:nbytes], cuts) == expected(nbytes)


@settings(max_examples=25)
@given(st.integers(0, 20_000))
@example(16_384)
@example(16_385)
def test_any_number_of_bytes(nbytes: int) -> None:
    assert by_kernels(DATA[:nbytes], []) == expected(nbytes)


def test_numbers_of_chunks_beyond_32_bits_count() -> None:
    """The tree of a file of 4 TiB and one byte: the stack before its last chunk is made by hand."""
    done = 2**42 // sizes.GROUP_NBYTES
    stack, work, out = Guarded(sizes.STACK_ROWS * 32), Guarded(sizes.WORK_NBYTES), Guarded(32)
    rest = np.zeros(sizes.GROUP_NBYTES, np.uint8)
    finish_blake3(rest.ctypes.data, 1, done, stack.address, work.address, out.address)
    last = hash_of(b"\0", 2**32, 0)
    found = [int(word) for word in out.inside.view("<u4")]
    assert found == compressed(START, struct.pack("<16I", *[0] * 8, *last), 0, 4 | 8)
