"""LZ4's decoder against the format in plain Python, for sound and damaged blocks; it stays inside both buffers."""

from __future__ import annotations

from typing import Any

import lz4.block
import numpy as np
import pytest
from forbidden_pages import run_apart
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.entries import lz4_decompress

GUARD = 64
MARK = 0xA5


def length_of(block: bytes, at: int, short: int) -> tuple[int, int] | None:
    """Return (a length that may continue in further bytes, the position after them); None if the block ends before."""
    if short < 15:
        return short, at
    while at < len(block):
        short += block[at]
        at += 1
        if block[at - 1] < 255:
            return short, at
    return None


def expected(block: bytes, capacity: int) -> bytes | None:
    """Return the bytes of a block by the description of the format; None if it is malformed or needs more room."""
    out, at = bytearray(), 0
    while at < len(block):
        token = block[at]
        found = length_of(block, at + 1, token >> 4)
        if found is None:
            return None
        count, at = found
        if count > len(block) - at or count > capacity - len(out):
            return None
        out += block[at : at + count]
        at += count
        if at == len(block):
            return bytes(out)
        offset = int.from_bytes(block[at : at + 2], "little")
        if len(block) - at < 2 or not 0 < offset <= len(out):
            return None
        found = length_of(block, at + 2, token & 15)
        if found is None:
            return None
        count, at = found[0] + 4, found[1]
        if count > capacity - len(out):
            return None
        whole = bytes(out[-offset:]) * (count // offset + 1)
        out += whole[:count]
    return None


def decompressed(block: bytes, capacity: int) -> bytes | None:
    """Decompress into guarded memory; None if the kernel refuses."""
    source = np.frombuffer(block, np.uint8)
    out = np.full(GUARD + capacity + GUARD, MARK, np.uint8)
    found = int(lz4_decompress(
        source.ctypes.data, out.ctypes.data + GUARD, source.size, capacity
    ))  # fmt: skip
    assert (out[:GUARD] == MARK).all() and (out[GUARD + capacity :] == MARK).all()
    assert found <= capacity
    return out[GUARD : GUARD + found].tobytes() if found >= 0 else None


def further(length: int) -> bytes:
    """Return the bytes after a token for a length of 15 or more."""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255]) if length >= 15 else b""


def block_of(sequences: list[tuple[bytes, int, int]], last: bytes) -> bytes:
    """Return the block of some (literals, offset, length of the match) and the last literals."""
    out = bytearray()
    for literals, offset, length in sequences:
        out.append(min(len(literals), 15) << 4 | min(length - 4, 15))
        out += further(len(literals)) + literals + offset.to_bytes(2, "little") + further(length - 4)
    out.append(min(len(last), 15) << 4)
    return bytes(out + further(len(last)) + last)


LENGTHS = st.integers(0, 40) | st.sampled_from([14, 15, 16, 31, 32, 33, 64, 100, 269, 270, 271, 600, 3000])
OFFSETS = st.integers(1, 40) | st.integers(1, 3000) | st.just(65535)


def literals(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


SEQUENCES = st.lists(
    st.tuples(st.builds(literals, LENGTHS, st.integers(0, 99)), OFFSETS, LENGTHS.map(lambda n: n + 4)), max_size=12
)


@given(SEQUENCES, st.builds(literals, LENGTHS, st.integers(0, 99)), st.integers(0, 70))
def test_every_sequence_of_the_format(sequences: list[tuple[bytes, int, int]], last: bytes, spare: int) -> None:
    block = block_of(sequences, last)
    whole = expected(block, 1 << 20)
    if whole is None:  # an offset that points before the first byte
        assert decompressed(block, 1 << 16) is None
        return
    assert decompressed(block, len(whole)) == whole
    assert decompressed(block, len(whole) + spare) == whole
    if whole:
        assert decompressed(block, len(whole) - 1) is None


@pytest.mark.parametrize("offset", [*range(1, 70), 255, 256, 1000])
@pytest.mark.parametrize("before", [0, 100])
def test_matches_that_overlap_themselves(offset: int, before: int) -> None:
    for length in (4, 5, 11, 17, 18, 19, 20, 33, 64, 65, 100, 1000):
        for behind in (b"", b"12345", bytes(range(70))):
            block = block_of([(literals(before + offset, offset), offset, length)], behind)
            whole = expected(block, 1 << 20)
            assert whole is not None and decompressed(block, len(whole)) == whole


@given(SEQUENCES, st.integers(0, 60), st.data())
def test_damaged_blocks_give_what_the_format_says_or_nothing(
    sequences: list[tuple[bytes, int, int]], count: int, data: st.DataObject
) -> None:
    block = bytearray(block_of(sequences, bytes(count)))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(block[: data.draw(st.integers(0, len(block)))])
    for damaged in (bytes(block), cut):
        for capacity in (0, 50, 5000, 1 << 16):
            assert decompressed(damaged, capacity) == expected(damaged, capacity)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 400)), max_size=9), st.integers(0, 12))
def test_blocks_of_the_lz4_package(parts: list[tuple[bytes, int]], level: int) -> None:
    data = b"".join(part * times for part, times in parts)
    mode: Any = {"mode": "high_compression", "compression": level} if level else {}
    assert decompressed(lz4.block.compress(data, store_size=False, **mode), len(data)) == data


# In a fork of this process: reading or writing one byte too many ends it.
BETWEEN_FORBIDDEN_PAGES = """
import sys
import numpy as np
import lz4.block
from forbidden_pages import between_forbidden_pages
from lmdbloader.kernels.entries import lz4_decompress
from test_kernels_lz4 import block_of, expected, literals

source, target = between_forbidden_pages(4), between_forbidden_pages(4)
rng = np.random.default_rng(int(sys.argv[1]))

def block():
    count, kind = int(rng.integers(0, 3000)), rng.integers(4)
    if kind == 0:
        data = rng.integers(0, rng.integers(1, 9), count, np.uint8).tobytes()
    if kind == 1:
        data = rng.bytes(count % 13 + 1) * (count // 13)
    if kind < 2:
        return lz4.block.compress(data, store_size=False), count
    lengths = lambda: int(rng.choice([rng.integers(0, 9), rng.integers(9, 40), rng.integers(200, 600)]))
    parts = [(literals(lengths(), i), int(rng.integers(1, 50)), 4 + lengths()) for i in range(rng.integers(1, 9))]
    return block_of(parts, literals(lengths(), 0)), int(rng.integers(0, 4000))

# At the very end of both: every cut of a sequence, and matches up to the last byte.
for count in range(70):
    for length in (4, 18, 19, 300):
        whole = block_of([(literals(max(count, 1), 0), 1, length), (literals(40, 1), 3, 30)], literals(count, 2))
        source[source.size - len(whole) :] = np.frombuffer(whole, np.uint8)
        for cut in range(len(whole)):
            put = source[source.size - len(whole) + cut :]
            put[:] = np.frombuffer(whole[: len(whole) - cut], np.uint8)
            lz4_decompress(put.ctypes.data, target.ctypes.data, put.size, target.size)
for offset in range(1, 40):
    for length in range(4, 100):
        whole = block_of([(literals(offset, 0), offset, length)], b"")
        source[: len(whole)] = np.frombuffer(whole, np.uint8)
        out = target[target.size - offset - length :]
        found = lz4_decompress(source.ctypes.data, out.ctypes.data, len(whole), out.size)
        assert out[:found].tobytes() == expected(whole, out.size)

accepted = 0
for number in range(int(sys.argv[2])):
    whole, raw = block()
    whole = bytearray(whole)
    for _ in range(rng.integers(0, 4)):
        whole[rng.integers(len(whole))] = rng.choice([0, 1, 15, 0xF0, 0xFF, rng.integers(256)])
    whole = bytes(whole[: len(whole) - rng.integers(0, 3) * rng.integers(len(whole) // 2 + 1)])
    right = expected(whole, raw)
    for put in (source[: len(whole)], source[source.size - len(whole) :]):
        put[:] = np.frombuffer(whole, np.uint8)
        for start in (0, target.size - raw):
            address = target.ctypes.data + start
            found = lz4_decompress(put.ctypes.data, address, len(whole), raw)
            assert (found < 0) == (right is None), (number, found, right)
            assert right is None or target[start : start + found].tobytes() == right, number
    accepted += right is not None
print("stayed inside", 0 < accepted < int(sys.argv[2]))
"""


def test_damaged_blocks_are_decompressed_between_forbidden_pages() -> None:
    assert run_apart(BETWEEN_FORBIDDEN_PAGES, "0", "1500") == (0, "stayed inside True\n")
