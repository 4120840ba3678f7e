"""Payloads raw, lz4, delta and in tiles against plain NumPy: encoded values decode, and every changed bit is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
from delta_reference import decode_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from payloads import write_chunks
from tile_tables import covered_nbytes, read_table

from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format import codecs
from lmdbloader.format.codecs import (
    checksum,
    encode_image,
    encode_many,
    join,
    tile_shapes,
)
from lmdbloader.format.layout import (
    CODEC_DELTA_TILES,
    CODEC_LZ4,
    CODEC_RAW,
    CODEC_TILES,
    TILED_ABOVE_NBYTES,
    make_field,
)
from lmdbloader.store import Chunk, Reader


def picture(shape: tuple[int, int, int], dtype: Any, seed: int = 0) -> np.ndarray:
    """Return an image (H, W, C); one half of it compresses."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)
    image[: shape[0] // 2] //= 200
    return image


def decode_tiles(payload: bytes, shape: tuple[int, int, int], dtype: Any, tile: int, codec: str) -> np.ndarray:
    """Decode a tiled payload by docs/reference/format.md, without the package's code; return (C, H, W)."""
    height, width, channels = shape
    image = np.empty((channels, height, width), dtype)
    places = [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
    n = len(places)
    table, body = read_table(payload, n)
    assert table.to_bytes() == payload[: -len(body)]  # the sums of the groups too
    assert table.start == 0
    for (y, x), start, end, expected in zip(places, (0, *table.ends[:-1]), table.ends, table.sums, strict=True):
        window = image[:, y : y + tile, x : x + tile]
        data = body[start:end]
        assert checksum(data) == expected
        if len(data) < window.nbytes and codec == "delta":
            data = decode_delta(data, *window.shape, 8 * image.itemsize).tobytes()
        if len(data) < window.nbytes:
            data = lz4.block.decompress(data, window.nbytes)
        window[...] = np.frombuffer(data, dtype).reshape(window.shape)
    assert table.ends[-1] == len(body)
    return image


shapes = st.tuples(st.integers(1, 90), st.integers(1, 90), st.sampled_from([1, 3]))


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=20),
    codec=st.sampled_from(["raw", "lz4"]),
    top=st.integers(0, 255),
    seed=st.integers(0, 99),
)
def test_many_payloads_decode_with_lz4_alone(sizes: list[int], codec: str, top: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [rng.integers(0, top + 1, n, np.uint8).tobytes() for n in sizes]
    data = np.frombuffer(b"".join(values), np.uint8)
    encoded = encode_many(data, np.array(sizes, np.int64), codec)
    assert encoded.raw_nbytes.tolist() == sizes
    assert int(encoded.stored_nbytes.sum()) == encoded.data.size <= data.size
    at = 0
    for i, value in enumerate(values):
        stored = encoded.data[at : at + int(encoded.stored_nbytes[i])].tobytes()
        at += len(stored)
        assert checksum(stored) == encoded.checksum[i]
        if encoded.codec[i] == CODEC_LZ4:
            assert codec == "lz4"
            assert len(stored) <= 0.9 * len(value)
            stored = lz4.block.decompress(stored, uncompressed_size=len(value))
        assert stored == value


@settings(max_examples=40)
@given(
    shape=shapes,
    dtype=st.sampled_from([np.uint8, np.uint16]),
    codec=st.sampled_from(["raw", "lz4", "delta"]),
    tile=st.integers(8, 100),
    swapped=st.booleans(),
)
def test_a_tiled_image_decodes_as_the_format_says(
    shape: tuple[int, int, int], dtype: Any, codec: str, tile: int, swapped: bool
) -> None:
    image = picture(shape, dtype)
    if swapped:  # the encoder takes any strides
        image = image.transpose(1, 0, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "TILED_ABOVE_NBYTES", 0)
        encoded = encode_image(image, codec, tile)
    assert encoded.codec.tolist() == [CODEC_DELTA_TILES if codec == "delta" else CODEC_TILES]
    count = len(tile_shapes(image.shape, image.itemsize, tile))
    assert encoded.checksum[0] == checksum(encoded.data[: covered_nbytes(count)])
    back = decode_tiles(encoded.data.tobytes(), image.shape, dtype, tile, codec)
    np.testing.assert_array_equal(back, image.transpose(2, 0, 1))


def test_images_are_tiled_above_256_kib_only() -> None:
    at_limit = np.zeros((512, 512, 1), np.uint8)
    assert at_limit.nbytes == TILED_ABOVE_NBYTES
    assert encode_image(at_limit, "raw", 64).codec.tolist() == [CODEC_RAW]
    assert encode_image(np.zeros((512, 513, 1), np.uint8), "raw", 64).codec.tolist() == [CODEC_TILES]


def test_an_image_of_more_than_2_gib_is_refused() -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (30_000, 30_000, 3), (0, 0, 0))
    with pytest.raises(OptionError, match="exceed one payload's 2 GiB"):
        encode_image(huge, "raw", 64)


@pytest.mark.parametrize(("data", "expected"), [(b"a", 0xE6C632B61E964E1F), (b"abc", 0x78AF5F94892F3950)])
def test_the_checksum_is_xxh3(data: bytes, expected: int) -> None:
    assert checksum(data) == checksum(memoryview(data)) == checksum(np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("name", ["zip", "", "RAW", "tiles"])
def test_an_unknown_codec_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="expected one of auto, raw, lz4, delta"):
        codecs.check_codec(name)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images, each raw, lz4 and delta: small, large enough for tiles, and the small one in 16 bits."""
    path = tmp_path_factory.mktemp("codecs") / "d"
    images = [picture((37, 45, 3), np.uint8), picture((331, 400, 3), np.uint8), picture((37, 45, 3), np.uint16)]
    fields = [
        make_field("raw", "image", "raw"),
        make_field("lz4", "image", "lz4"),
        make_field("delta", "image", "delta"),
    ]
    payloads = {f.name: join([encode_image(i, f.codec or "raw", 64) for i in images]) for f in fields}
    geometry = {"height": [i.shape[0] for i in images], "width": [i.shape[1] for i in images]}
    geometry |= {"channels": [3, 3, 3], "bits": [8, 8, 16]}
    columns = {f"{f.name}.{part}": np.array(values) for f in fields for part, values in geometry.items()}
    chunk = Chunk(3, payloads, columns)
    write_chunks(path, fields, [chunk])
    return path


@pytest.mark.parametrize("name", ["raw", "lz4", "delta"])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_no_flipped_bit_of_a_payload_passes(stored: Path, name: str, row: int) -> None:
    reader = Reader(stored)
    sound = reader.read_image(name, row)
    at, nbytes = (int(reader.index.arrays[f"{name}.{part}"][row]) for part in ("offset", "stored_nbytes"))
    rng = np.random.default_rng(row)
    # 12 bytes a tile stand in front of a tiled payload: flip there as often as in the pixels.
    places = np.concatenate([rng.integers(0, nbytes, 150), rng.integers(0, min(nbytes, 12 * 42), 150)])
    with open(stored / "data.mdb", "r+b", buffering=0) as file:  # which is mapped: the reader sees later changes
        for place in places.tolist():
            (byte,) = os.pread(file.fileno(), 1, at + place)
            os.pwrite(file.fileno(), bytes([byte ^ 1 << int(rng.integers(8))]), at + place)
            with pytest.raises(CorruptError, match=rf"field '{name}' of sample {row}: "):
                reader.read_image(name, row)
            os.pwrite(file.fileno(), bytes([byte]), at + place)
    np.testing.assert_array_equal(reader.read_image(name, row), sound)
