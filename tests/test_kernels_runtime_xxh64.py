"""XXH64 against its specification in plain Python, at once and piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.runtime.xxh64 import xxh64

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
WHOLE = 2**64 - 1
SEED = st.integers(0, WHOLE) | st.sampled_from([0, 1, WHOLE])
DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)


def rotated(value: int, bits: int) -> int:
    value &= WHOLE
    return (value << bits | value >> 64 - bits) & WHOLE


def rounded(lane: int, word: int) -> int:
    return rotated(lane + word * P2, 31) * P1 & WHOLE


def expected(data: bytes, seed: int) -> int:
    """Return XXH64 as the specification defines it."""

    def word(at: int, nbytes: int) -> int:
        return int.from_bytes(data[at : at + nbytes], "little")

    at, total = 0, seed + P5
    if len(data) >= 32:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        for at in range(0, len(data) - 31, 32):
            lanes = [rounded(lane, word(at + 8 * k, 8)) for k, lane in enumerate(lanes)]
        at += 32
        total = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            total = (total ^ rounded(0, lane)) * P1 + P4 & WHOLE
    total = total + len(data) & WHOLE
    while len(data) - at >= 8:
        total = rotated(total ^ rounded(0, word(at, 8)), 27) * P1 + P4 & WHOLE
        at += 8
    if len(data) - at >= 4:
        total = rotated(total ^ word(at, 4) * P1 & WHOLE, 23) * P2 + P3 & WHOLE
        at += 4
    for byte in data[at:]:
        total = rotated(total ^ byte * P5 & WHOLE, 11) * P1 & WHOLE
    total = (total ^ total >> 33) * P2 & WHOLE
    total = (total ^ total >> 29) * P3 & WHOLE
    return total ^ total >> 32


def found(data: np.ndarray, seed: int) -> int:
    return int(xxh64(np.uint64(data.ctypes.data), np.uint64(data.size), np.uint64(seed)))


@pytest.mark.parametrize(
    ("data", "seed", "value"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"", 0x9E3779B1, 0xAC75FDA2929B17EF),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
    ],
)  # fmt: skip
def test_known_values(data: bytes, seed: int, value: int) -> None:
    assert found(np.frombuffer(data, np.uint8), seed) == expected(data, seed) == value


@given(st.integers(0, 300), st.integers(0, 40), SEED)
def test_every_length_at_every_address_is_as_specified(nbytes: int, start: int, seed: int) -> None:
    data = DATA[start : start + nbytes]
    assert found(data, seed) == expected(data.tobytes(), seed)


def test_long_data() -> None:
    for nbytes in (1000, 1023, 1024, 4999):
        assert found(DATA[1 : 1 + nbytes], 7) == expected(DATA[1 : 1 + nbytes].tobytes(), 7)
