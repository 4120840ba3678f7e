"""XXH3 against its specification in plain Python, of bytes in place and while they are copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels.entries import xxh3
from lmdbloader.kernels.runtime.xxhash import xxh3_copy

P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P1, P2, P3, P4, P5 = PRIMES = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
# The first 192 bytes of the secret of xxHash 0.8.
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
WHOLE = 2**64 - 1
DATA = np.random.default_rng(0).integers(0, 256, 9000, np.uint8)
# Around the bounds between the kinds of lengths, stripes of 64 and blocks of 1,024 bytes.
LENGTHS = st.integers(0, 300) | st.sampled_from([1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 4096, 5000])


def word(data: bytes, at: int, nbytes: int = 8) -> int:
    return int.from_bytes(data[at : at + nbytes], "little")


def rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & WHOLE


def folded(a: int, b: int) -> int:
    return (a * b & WHOLE) ^ a * b >> 64


def mixed(value: int) -> int:
    value = (value ^ value >> 37) * 0x165667919E3779F9 & WHOLE
    return value ^ value >> 32


def mixed_as_xxh64(value: int) -> int:
    value = (value ^ value >> 33) * P2 & WHOLE
    value = (value ^ value >> 29) * P3 & WHOLE
    return value ^ value >> 32


def short(data: bytes) -> int:
    n = len(data)
    if n > 8:
        low = word(data, 0) ^ word(SECRET, 24) ^ word(SECRET, 32)
        high = word(data, n - 8) ^ word(SECRET, 40) ^ word(SECRET, 48)
        turned = int.from_bytes(low.to_bytes(8, "little"), "big")
        return mixed(n + turned + high + folded(low, high) & WHOLE)
    if n > 3:
        value = word(data, n - 4, 4) + (word(data, 0, 4) << 32) ^ word(SECRET, 8) ^ word(SECRET, 16)
        value ^= rotated(value, 49) ^ rotated(value, 24)
        value = value * 0x9FB21C651E98DF25 & WHOLE
        value = (value ^ (value >> 35) + n) * 0x9FB21C651E98DF25 & WHOLE
        return value ^ value >> 28
    if n:
        value = data[0] << 16 | data[n // 2] << 24 | data[-1] | n << 8
        return mixed_as_xxh64(value ^ word(SECRET, 0, 4) ^ word(SECRET, 4, 4))
    return mixed_as_xxh64(word(SECRET, 56) ^ word(SECRET, 64))


def middle(data: bytes) -> int:
    def pair(at: int, key: int) -> int:
        return folded(word(data, at) ^ word(SECRET, key), word(data, at + 8) ^ word(SECRET, key + 8))

    n = len(data)
    total = n * P1
    if n <= 128:
        for k in range((n - 1) // 32 + 1):
            total += pair(16 * k, 32 * k) + pair(n - 16 * k - 16, 32 * k + 16)
        return mixed(total & WHOLE)
    total = mixed(total + sum(pair(16 * k, 16 * k) for k in range(8)) & WHOLE)
    total += sum(pair(16 * k, 16 * (k - 8) + 3) for k in range(8, n // 16))
    return mixed(total + pair(n - 16, 119) & WHOLE)


def expected(data: bytes) -> int:
    """Return XXH3 with 64 bits as the specification defines it."""
    n = len(data)
    if n <= 240:
        return short(data) if n <= 16 else middle(data)
    sums = [P32[2], *PRIMES[:4], P32[1], P5, P32[0]]

    def add(at: int, key: int) -> None:
        for lane in range(8):
            value = word(data, at + 8 * lane)
            keyed = value ^ word(SECRET, key + 8 * lane)
            sums[lane ^ 1] = sums[lane ^ 1] + value & WHOLE
            sums[lane] = sums[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & WHOLE

    for stripe in range((n - 1) // 64):
        add(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            for lane in range(8):
                value = sums[lane] ^ sums[lane] >> 47 ^ word(SECRET, 128 + 8 * lane)
                sums[lane] = value * P32[0] & WHOLE
    add(n - 64, 121)
    total = n * P1
    for k in range(0, 8, 2):
        total += folded(sums[k] ^ word(SECRET, 11 + 8 * k), sums[k + 1] ^ word(SECRET, 19 + 8 * k))
    return mixed(total & WHOLE)


def found(data: np.ndarray) -> int:
    return int(xxh3(np.uint64(data.ctypes.data), np.uint64(data.size)))


@pytest.mark.parametrize(
    ("nbytes", "value"),
    [
        (0, 0x2D06800538D394C2), (1, 0xC44BDFF4074EECDB), (3, 0x5F4299FC161C9CBB),
        (4, 0x60DAB036A58211F2), (8, 0x3A1C2D7C85AF88F8), (9, 0xE9612598145BB9DC),
        (16, 0x8355E3A6F61770DB), (17, 0x9EF341A99DE37328), (32, 0x3523581FE96E4C05),
        (33, 0xE68C56BA88991E58), (64, 0x6187EB9089B0ED55), (65, 0x6928C76CE90422D0),
        (96, 0x278A3E12EA046DFB), (97, 0xE7220282DC4E14F4), (128, 0x85C6174C7FF4C46B),
        (129, 0xEC7642B431BA3E5A), (144, 0x028E1E35FF4C0A01), (240, 0x375A384D957FE865),
        (241, 0x02E8CD95421C6D02), (1024, 0xE5D78BAFA45B2AA5), (1025, 0xE95C42288F28186E),
        (5000, 0xB418500FC42320EE),
    ],
)  # fmt: skip
def test_known_values(nbytes: int, value: int) -> None:
    """Those of the package xxhash 4.1.0, of the bytes 0, 1, ... 250, 0, ..."""
    data = (np.arange(nbytes) % 251).astype(np.uint8)
    assert found(data) == expected(data.tobytes()) == value


@given(LENGTHS, st.integers(0, 70))
def test_every_length_at_every_address_is_as_specified(nbytes: int, start: int) -> None:
    data = DATA[start : start + nbytes]
    assert found(data) == expected(data.tobytes())


@given(LENGTHS, st.integers(0, 70), st.one_of(st.just(None), st.integers(0, 70)), st.booleans())
def test_a_copy_has_the_bytes_and_their_hash(nbytes: int, start: int, target: int | None, streams: bool) -> None:
    data, memory = DATA[start : start + nbytes], np.full(nbytes + 140, 0xA5, np.uint8)
    target = -memory.ctypes.data % 64 if target is None else target  # on a cache line
    copy = memory[target : target + nbytes]
    value = xxh3_copy(np.uint64(data.ctypes.data), np.uint64(copy.ctypes.data), np.uint64(nbytes), streams)
    assert int(value) == expected(data.tobytes())
    assert np.array_equal(copy, data)
    assert (memory[:target] == 0xA5).all() and (memory[target + nbytes :] == 0xA5).all()
