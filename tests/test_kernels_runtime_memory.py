"""Raw memory in kernels: copies of every length, to the byte."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.runtime.memory import (
    bits_of_double,
    copy_line,
    double_of_bits,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)

MARK = 0xA5


@numba.njit
def line_copied(source, target, count):  # type: ignore[no-untyped-def]
    copy_line(source, target, count)


@numba.njit
def words_copied(source, target):  # type: ignore[no-untyped-def]
    store_u8(target, load_u8(source))
    store_u16(target + np.uint64(1), load_u16(source + np.uint64(1)))
    store_u32(target + np.uint64(3), load_u32(source + np.uint64(3)))
    store_u64(target + np.uint64(7), load_u64(source + np.uint64(7)))


@numba.njit
def turned_over(value):  # type: ignore[no-untyped-def]
    return double_of_bits(bits_of_double(value) ^ np.uint64(1 << 63))


@pytest.mark.parametrize("count", [*range(140), 511, 512, 513, 5000])
def test_a_copy_has_exactly_so_many_bytes(count: int) -> None:
    source = np.random.default_rng(count).integers(0, 256, count + 3, np.uint8)[3:]
    target = np.full(count + 128, MARK, np.uint8)
    line_copied(np.uint64(source.ctypes.data), np.uint64(target.ctypes.data + 64), count)
    np.testing.assert_array_equal(target[64 : 64 + count], source)
    assert (target[:64] == MARK).all() and (target[64 + count :] == MARK).all()


def test_words_need_no_alignment() -> None:
    source, target = np.arange(1, 33, dtype=np.uint8), np.zeros(32, np.uint8)
    words_copied(np.uint64(source.ctypes.data + 1), np.uint64(target.ctypes.data + 3))
    assert target[3:18].tolist() == source[1:16].tolist()
    assert not target[:3].any() and not target[18:].any()


@given(st.floats(allow_nan=False))
def test_the_bits_of_a_double(value: float) -> None:
    assert turned_over(value) == -value
