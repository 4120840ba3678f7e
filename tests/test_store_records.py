"""Record batches: samples packed into LMDB values unpack unchanged, and damage is found before Arrow parses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdbloader.errors import CorruptError
from lmdbloader.format.codecs import checksum, encode_image, encode_many, join
from lmdbloader.format.layout import Field, make_field, record_schema
from lmdbloader.format.sizes import BLOCK_NBYTES
from lmdbloader.store.records import Chunk, decode_block, encode_blocks, split_into_blocks

FIELDS = [
    make_field("image", "image", "lz4"),
    make_field("mask", "array", "raw"),
    make_field("blob", "bytes", "lz4"),
    make_field("num_samples", "int"),  # the name of something that records have anyway
    make_field("weight", "float"),
    make_field("caption", "text"),
]

samples = st.lists(
    st.tuples(
        st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3])),
        st.integers(0, 300),
        st.binary(max_size=40),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        st.sampled_from(["a.png", "b/ü.png", ""]),
    ),
    min_size=1,
    max_size=20,
)


def chunk_of(values: list[Any], *, with_source: bool) -> Chunk:
    """Return a chunk of samples with one value of every kind of field."""
    shapes, lengths, blobs, ints, floats, texts, sources = zip(*values, strict=True)
    images = [np.arange(np.prod(s), dtype=np.uint8).reshape(s) // 9 for s in shapes]
    masks = np.arange(sum(lengths)).astype(np.uint8)
    payloads = {
        "image": join([encode_image(i, "lz4", 64) for i in images]),
        "mask": encode_many(masks, np.array(lengths, np.int64), "raw"),
        "blob": encode_many(np.frombuffer(b"".join(blobs), np.uint8), np.array([len(b) for b in blobs]), "lz4"),
    }
    columns: dict[str, Any] = {
        "image.height": np.array([s[0] for s in shapes]),
        "image.width": np.array([s[1] for s in shapes]),
        "image.channels": np.array([s[2] for s in shapes]),
        "image.bits": np.full(len(shapes), 8),
        "mask.type": [f"uint8[{n}]" for n in lengths],
        "num_samples": np.array(ints, np.int64),
        "weight": np.array(floats),
        "caption": list(texts),
    }
    if with_source:
        columns |= {"source": list(sources), "top": np.arange(len(shapes)) // 3, "left": np.arange(len(shapes))}
    return Chunk(len(shapes), payloads, columns)


def as_list(values: Any) -> list[Any]:
    return values.to_pylist() if isinstance(values, pa.Array) else list(values)


@settings(max_examples=25)
@given(samples, st.booleans(), st.integers(1, 3000))
def test_blocks_unpack_to_the_chunk(values: list[Any], with_source: bool, limit: int) -> None:
    chunk = chunk_of(values, with_source=with_source)
    schema = record_schema(FIELDS, with_source=with_source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_into_blocks, "__defaults__", (limit,))
        blocks = encode_blocks(chunk, FIELDS, with_source=with_source)
    assert sum(b.num_samples for b in blocks) == chunk.num_samples
    first = 0
    for block in blocks:
        value = block.value.to_pybytes()
        assert block.checksum == checksum(value)
        count, columns = decode_block(value, schema, FIELDS, block.checksum, "here")
        here = slice(first, first + count)
        assert count == block.num_samples > 0
        for name, expected in chunk.columns.items():
            assert as_list(columns[name]) == as_list(expected[here])
        for name, payloads in chunk.payloads.items():
            ends = np.cumsum(payloads.stored_nbytes)
            for part in ("stored_nbytes", "raw_nbytes", "checksum", "codec"):
                assert as_list(columns[f"{name}.{part}"]) == getattr(payloads, part)[here].tolist()
            for i, at in enumerate(columns[f"{name}.offset"].tolist()):
                end, nbytes = int(ends[first + i]), int(payloads.stored_nbytes[first + i])
                assert value[at : at + nbytes] == payloads.data[end - nbytes : end].tobytes()
            if payloads.stored_nbytes[here].sum():
                assert columns[f"{name}.offset"][0] == block.payload_at[name]
        first += count


@given(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 2000))
def test_a_block_holds_as_many_samples_as_fit_and_at_least_one(sizes: list[int], limit: int) -> None:
    payloads = encode_many(np.zeros(sum(sizes), np.uint8), np.array(sizes, np.int64), "raw")
    slices = split_into_blocks(Chunk(len(sizes), {"x": payloads}, {}), limit)
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(len(sizes)))
    cost = [n + 4 for n in sizes]  # an end offset each
    for s, following in zip(slices, [*slices[1:], None], strict=False):
        assert s.stop - s.start == 1 or sum(cost[s]) <= limit
        if following is not None:
            assert sum(cost[s]) + cost[following.start] > limit


def test_a_full_block_is_about_256_kib() -> None:
    payloads = encode_many(np.zeros(1000 * 3072, np.uint8), np.full(1000, 3072), "raw")
    fields: list[Field] = [make_field("x", "bytes")]
    blocks = encode_blocks(Chunk(1000, {"x": payloads}, {}), fields, with_source=False)
    assert all(0.98 * BLOCK_NBYTES < b.value.size < 1.01 * BLOCK_NBYTES for b in blocks[:-1])


@given(st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_seen_before_anything_parses(position: int, change: int) -> None:
    chunk = chunk_of([((3, 4, 3), 10, b"blob", 5, 0.5, "text", "a.png")] * 3, with_source=True)
    (block,) = encode_blocks(chunk, FIELDS, with_source=True)
    value = bytearray(block.value.to_pybytes())
    value[position % len(value)] ^= change
    with pytest.raises(CorruptError, match=r"^here: checksum .* the stored bytes were damaged"):
        decode_block(bytes(value), record_schema(FIELDS, with_source=True), FIELDS, block.checksum, "here")


@pytest.mark.parametrize(
    "value", [b"\0", b"x" * 100, b"\xff\xff\xff\xff\0\0\0\0", b"\xff\xff\xff\xff\x10\0\0\0" + b"\1" * 16]
)
def test_bytes_that_are_not_a_record_batch_are_refused(value: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^here: is not an Arrow record batch"):
        decode_block(value, record_schema(FIELDS, with_source=True), FIELDS, checksum(value), "here")
