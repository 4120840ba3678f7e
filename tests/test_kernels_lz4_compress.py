"""LZ4's encoder: its blocks are sound, no longer than the library's, the same bytes, and stay inside their memory."""

from __future__ import annotations

import ctypes
from typing import Any

import lz4.block
import numpy as np
import pytest
from forbidden_pages import run_apart
from hypothesis import example, given
from hypothesis import strategies as st
from lz4.block import _block
from test_kernels_lz4_decompress import expected

from lmdbloader.kernels.entries import lz4_compress

pytestmark = pytest.mark.usefixtures("both_ways")
GUARD = 64
MARK = 0xA5


def bound(nbytes: int) -> int:
    """Return the length of the longest block of so many bytes."""
    return nbytes + nbytes // 255 + 16


def compressed(data: bytes, capacity: int) -> bytes:
    """Compress into guarded memory; nothing if it does not fit."""
    source = np.frombuffer(data, np.uint8)
    out = np.full(GUARD + capacity + GUARD, MARK, np.uint8)
    found = int(lz4_compress(
        source.ctypes.data, out.ctypes.data + GUARD, source.size, capacity
    ))  # fmt: skip
    assert (out[:GUARD] == MARK).all() and (out[GUARD + capacity :] == MARK).all()
    assert 0 <= found <= capacity
    return out[GUARD : GUARD + found].tobytes()


def of_the_library(data: bytes, capacity: int) -> bytes | None:
    """Return the block of LZ4_compress_default; None where its package does not export it."""
    try:
        function: Any = ctypes.CDLL(_block.__file__).LZ4_compress_default
    except (AttributeError, OSError):
        return None
    out = ctypes.create_string_buffer(capacity + 1)
    found = function(data, out, len(data), capacity)
    return out.raw[:found]


def words(seed: int, count: int, kinds: int) -> bytes:
    """Return bytes with matches at many distances: words of a small vocabulary, some bytes changed."""
    rng = np.random.default_rng(seed)
    known = [rng.bytes(int(n)) for n in rng.integers(1, 40, kinds)]
    data = bytearray(b"".join(known[i] for i in rng.integers(0, kinds, count)))
    for at in rng.integers(0, max(len(data), 1), len(data) // 50):
        data[at] = 0
    return bytes(data)


DATA = st.one_of(
    st.binary(max_size=200),
    st.builds(words, st.integers(0, 999), st.integers(0, 300), st.integers(1, 60)),
    st.builds(lambda n, byte: bytes([byte]) * n, st.integers(0, 3000), st.integers(0, 255)),
    st.builds(lambda part, n: part * n, st.binary(min_size=1, max_size=40), st.integers(0, 60)),
)
SIZES = [0, 1, 5, 12, 13, 14, 65535, 65546, 65547, 65548, 200_000]


def check(data: bytes, capacity: int) -> None:
    block = compressed(data, bound(len(data)))
    assert 0 < len(block) <= bound(len(data))
    assert lz4.block.decompress(block, len(data)) == data
    library = of_the_library(data, bound(len(data)))
    assert library is None or block == library
    assert compressed(data, capacity) == (block if len(block) <= capacity else b"")


@given(DATA, st.integers(0, 400))
@example(b"", 0)
@example(b"", 1)
def test_blocks_are_the_librarys_and_fit_or_are_not_there(data: bytes, capacity: int) -> None:
    check(data, capacity)
    assert expected(compressed(data, bound(len(data))), len(data)) == data


@given(DATA, st.integers(-20, 20))
def test_a_block_fits_exactly_where_it_is_no_longer_than_the_room(data: bytes, spare: int) -> None:
    check(data, max(0, len(compressed(data, bound(len(data)))) + spare))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["random", "words", "one byte", "far"])
def test_sizes_around_those_where_something_changes(size: int, kind: str) -> None:
    data = {
        "random": np.random.default_rng(size).bytes(size),
        "words": words(size, 12000, 500)[:size],
        "one byte": bytes(size),
        # The same bytes again, farther away than an offset reaches: nothing may match.
        "far": (np.random.default_rng(size).bytes(70_000) * 3)[:size],
    }[kind]
    data = data.ljust(size, b"a")
    for capacity in (size, size * 9 // 10, 100):
        check(data, capacity)


def test_many_small_inputs_one_after_the_other_do_not_remember_each_other() -> None:
    data = words(3, 40, 9)
    first = compressed(data, bound(len(data)))
    compressed(words(4, 4000, 30), 200_000)
    assert compressed(data, bound(len(data))) == first


def test_sizes_that_cannot_be_compressed_are_refused() -> None:
    address = np.zeros(64, np.uint8).ctypes.data
    for nbytes, capacity in ((-1, 10), (10, 0), (10, -1), (2**31, 64)):
        assert lz4_compress(address, address, nbytes, capacity) == 0


# In a fork of this process: reading or writing one byte too many ends it.
BETWEEN_FORBIDDEN_PAGES = """
import numpy as np
from forbidden_pages import between_forbidden_pages
from lmdbloader.kernels.entries import lz4_compress
from test_kernels_lz4_compress import bound, words

source, target = between_forbidden_pages(40), between_forbidden_pages(40)
rng = np.random.default_rng(0)
fitted = 0
for number in range(600):
    data = words(number, int(rng.integers(0, 9000 if number % 20 == 0 else 100)), int(rng.integers(1, 60)))[:100_000]
    if number % 3 == 0:
        data = rng.bytes(len(data))
    for put in (0, source.size - len(data)):
        source[put : put + len(data)] = np.frombuffer(data, np.uint8)
        length = bound(len(data))
        for capacity in (bound(len(data)), int(rng.integers(0, bound(len(data)))), None):
            capacity = length + int(rng.integers(-9, 1)) if capacity is None else capacity
            for out in (0, target.size - capacity):
                where = source.ctypes.data + put, target.ctypes.data + out
                found = lz4_compress(*where, len(data), capacity)
                length = found or length
                fitted += found > 0
print("stayed inside", fitted > 600)
"""


def test_everything_is_compressed_between_forbidden_pages() -> None:
    assert run_apart(BETWEEN_FORBIDDEN_PAGES) == (0, "stayed inside True\n")
