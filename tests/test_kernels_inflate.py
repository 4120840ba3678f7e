"""The kernel that decompresses zlib streams, compared with zlib."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.kernels import entries

GUARD = 0xA5


def inflated(packed, expected):
    """The bytes of a stream, None if the kernel refuses it; nothing is written behind its room."""
    slack, num_words = entries.inflate_room()
    out, work = np.full(expected + slack + 64, GUARD, np.uint8), np.full(num_words + 16, GUARD, np.uint32)
    source = np.frombuffer(packed + bytes(slack), np.uint8)
    is_sound = entries.inflate(source, len(packed), out[:-64], expected, work[:-16])
    assert (out[-64:] == GUARD).all()
    assert (work[-16:] == GUARD).all()
    return out[:expected].tobytes() if is_sound else None


def of_zlib(packed, expected):
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(packed, expected + 1)
    except zlib.error:
        return None
    return data if inflater.eof and len(data) == expected else None


def content(seed, nbytes):
    """Bytes with literals of skewed frequencies, matches of all distances, and runs."""
    rng = np.random.default_rng(seed)
    data = bytearray()
    while len(data) < nbytes:
        length = int(rng.integers(1, 400))
        kind = rng.integers(4)
        if kind == 0:
            data += bytes(np.minimum(rng.geometric(0.05 + 0.9 * rng.random(), length), 255).astype(np.uint8))
        elif kind == 1:
            data += rng.bytes(length)
        elif kind == 2:
            data += bytes([int(rng.integers(256))]) * length
        elif data:
            at = int(rng.integers(max(0, len(data) - 40_000), len(data)))
            data += data[at : at + length]
    return bytes(data[:nbytes])


STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)


def packed_in_blocks(data, level, strategy, pieces):
    """A stream of several blocks, with empty stored ones between them."""
    deflater = zlib.compressobj(level, strategy=strategy)
    step = -(-len(data) // pieces) or 1
    parts = [
        deflater.compress(data[k : k + step]) + deflater.flush(zlib.Z_SYNC_FLUSH) for k in range(0, len(data), step)
    ]
    return b"".join(parts) + deflater.flush()


@given(
    seed=st.integers(0, 9999),
    nbytes=st.integers(0, 60_000),
    level=st.integers(0, 9),
    strategy=st.sampled_from(STRATEGIES),
    pieces=st.integers(1, 4),
)
def test_every_kind_of_block_as_zlib_makes_it(seed, nbytes, level, strategy, pieces):
    data = content(seed, nbytes)
    packed = packed_in_blocks(data, level, strategy, pieces)
    assert inflated(packed, nbytes) == data
    assert inflated(packed + b"more", nbytes) == data  # as zlib, it leaves what follows
    assert inflated(packed, nbytes + 1) is None
    if nbytes:
        assert inflated(packed, nbytes - 1) is None


def test_codes_of_fifteen_bits_and_the_largest_checksum():
    fibonacci = [1, 1]
    while len(fibonacci) < 22:
        fibonacci.append(sum(fibonacci[-2:]))
    rng = np.random.default_rng(0)
    rare = rng.permutation(np.repeat(np.arange(22, dtype=np.uint8), fibonacci)).tobytes()
    for data in (rare, b"\xff" * 100_000, rng.bytes(100_000)):
        for strategy in STRATEGIES:
            assert inflated(packed_in_blocks(data, 9, strategy, 1), len(data)) == data


def test_a_block_whose_only_distance_has_a_code_of_one_bit():
    # The literal 7, a match of 3 bytes at distance 1, and the end. Such a code is not complete.
    order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1]
    zero, one, two, zeros = (0b00, 2), (0b10, 2), (0b01, 2), (0b11, 2)  # codes of lengths; the first bit is the lowest
    fields = [(1, 1), (2, 2), (1, 5), (0, 5), (14, 4)]  # last, dynamic, 258 lengths, 1 distance, 18 lengths of lengths
    fields += [(2 if symbol in (0, 1, 2, 18) else 0, 3) for symbol in order]
    fields += [*[zero] * 7, two, zeros, (138 - 11, 7), zeros, (110 - 11, 7), two, one, one]
    fields += [(0b01, 2), (0, 1), (0, 1), (0b11, 2)]
    number = at = 0
    for value, bits in fields:
        number |= value << at
        at += bits
    body = number.to_bytes(-(-at // 8), "little")
    data = bytes([7] * 4)
    packed = b"\x78\x01" + body + zlib.adler32(data).to_bytes(4, "big")
    assert of_zlib(packed, 4) == data
    assert inflated(packed, 4) == data


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", [0, 6])
def test_streams_cut_short_and_changed_bits_are_refused(level, strategy):
    data = content(5, 700)
    packed = packed_in_blocks(data, level, strategy, 2)
    for stop in range(len(packed)):
        assert inflated(packed[:stop], len(data)) is None
    for bit in range(8 * len(packed)):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        found = inflated(bytes(changed), len(data))
        assert found in (None, of_zlib(bytes(changed), len(data)))


@given(body=st.binary(max_size=400), kind=st.integers(0, 7), expected=st.integers(0, 3000))
def test_any_bytes_are_safe(body, kind, expected):
    packed = b"\x78\x9c" + bytes([(body[:1] or b"\0")[0] & 0xF8 | kind]) + body[1:]
    assert inflated(packed, expected) in (None, of_zlib(packed, expected))


@given(seed=st.integers(0, 9999), changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4))
def test_changed_bytes_of_a_long_stream_are_safe(seed, changes):
    data = content(seed, 30_000)
    packed = bytearray(zlib.compress(data, seed % 10))
    for at, value in changes:
        packed[at % len(packed)] = value
    assert inflated(bytes(packed), len(data)) in (None, of_zlib(bytes(packed), len(data)))
