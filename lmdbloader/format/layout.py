"""What a dataset looks like on disk: field types, keys, columns of records and index, without touching a file."""

from __future__ import annotations

import json
import keyword
import struct
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.fields import KINDS as KINDS
from lmdbloader.fields import PAYLOAD_KINDS as PAYLOAD_KINDS
from lmdbloader.fields import Kind as Kind
from lmdbloader.kernels.codec_numbers import CODEC_FILE as CODEC_FILE
from lmdbloader.kernels.codec_numbers import CODEC_JPEG as CODEC_JPEG
from lmdbloader.kernels.codec_numbers import CODEC_LZ4 as CODEC_LZ4
from lmdbloader.kernels.codec_numbers import CODEC_RAW as CODEC_RAW
from lmdbloader.kernels.codec_numbers import CODEC_TILES as CODEC_TILES

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "lmdbloader"
# Version 1 has XXH64 and BLAKE2b digests, version 2 those of another algorithm and is the same otherwise.
FORMAT_VERSIONS = (1, 2)

DATA_FILE = "data.mdb"
INDEX_FILE = "index.arrow"
MANIFEST_FILE = "manifest.json"
PARTIAL_SUFFIX = ".partial"
# Notes for people beside a dataset: images that a conversion skipped, samples that a repair left out.
SKIPPED_FILE, LEFT_OUT_FILE = "skipped.tsv", "left_out.tsv"
# What a conversion's sources were like; no part of the dataset, for it tells of the files and not of their content.
SOURCES_FILE = "sources.arrow"

# LMDB stores values in whole pages: 256 KiB a value keeps the waste under 2 % for small samples.
BLOCK_NBYTES = 256 * 1024
# Pixel payloads above this size are cut into tiles, so that a crop reads a part of them.
TILED_ABOVE_NBYTES = 256 * 1024
TILE_SIZE = 64
MAX_TILE_SIZE = 512
# An Arrow binary column addresses 2 GiB; one payload must fit.
MAX_PAYLOAD_NBYTES = 2**31 - 2**20

SCHEMA_KEY = b"schema"
PROGRESS_KEY = b"progress"
DESCRIPTION_KEY = b"description"
RECORD_KEY_NBYTES = 16

CODEC_NAMES = ("raw", "lz4", "tiles", "jpeg", "file")

Codec = Literal["raw", "lz4"]

# Where a sample came from; columns of the index and of every record, absent in datasets written from Python.
SOURCE_COLUMNS = ("source", "top", "left")

ARRAY_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of every sample.

    Attributes:
        name: A Python identifier.
        kind: What it holds.
        codec: How its payloads are compressed; None for the kinds that are plain columns of the index.
        layout: Order of the axes of stored pixels; images only.
        tile_size: Side of the tiles of large images in pixels; images only.
    """

    name: str
    kind: Kind
    codec: Codec | None = None
    layout: Literal["CHW"] | None = None
    tile_size: int | None = None

    @property
    def is_payload(self) -> bool:
        """Whether its values are byte strings of their own in data.mdb, rather than a column of the index."""
        return self.kind in PAYLOAD_KINDS


def make_field(name: str, kind: Kind, codec: Codec = "raw") -> Field:
    """Return the field with the layout that this release writes.

    Raises:
        OptionError: The name cannot be an attribute of a sample, or is one of ours.
    """
    is_plain = isinstance(name, str) and name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    if not is_plain or keyword.iskeyword(name) or name.startswith("_") or name in SOURCE_COLUMNS or len(name) > 50:
        raise OptionError(
            f"field name {name!r:.80}: expected a Python identifier (NFKC) of at most 50 characters that is no "
            f"keyword, does not start with '_' and is none of {', '.join(SOURCE_COLUMNS)}. Rename the field."
        )
    if kind == "image":
        return Field(name, kind, codec, "CHW", TILE_SIZE)
    return Field(name, kind, codec if kind in PAYLOAD_KINDS else None)


def index_schema(fields: Sequence[Field], *, with_source: bool) -> pa.Schema:
    """Return the Arrow schema of index.arrow: one row a sample.

    Args:
        fields: The fields, in order.
        with_source: Whether samples carry their source's name and patch position.
    """
    import pyarrow as pa

    names = pa.dictionary(pa.int32(), pa.string())
    columns: list[tuple[str, pa.DataType]] = []
    if with_source:
        columns += [("source", names), ("top", pa.uint32()), ("left", pa.uint32())]
    scalar = {"int": pa.int64(), "float": pa.float64(), "text": pa.large_string()}
    for f in fields:
        if not f.is_payload:
            columns.append((f.name, scalar[f.kind]))
            continue
        columns += [
            (f"{f.name}.offset", pa.int64()),
            (f"{f.name}.stored_nbytes", pa.uint32()),
            (f"{f.name}.raw_nbytes", pa.uint32()),
            (f"{f.name}.checksum", pa.uint64()),
            (f"{f.name}.codec", pa.uint8()),
        ]
        if f.kind == "image":
            columns += [(f"{f.name}.{c}", t) for c, t in image_columns().items()]
        elif f.kind == "array":
            columns.append((f"{f.name}.type", names))
    return pa.schema(columns)


def image_columns() -> dict[str, pa.DataType]:
    """Return the geometry columns of an image field, without the field's name in front."""
    import pyarrow as pa

    return {"height": pa.uint32(), "width": pa.uint32(), "channels": pa.uint8(), "bits": pa.uint8()}


def record_schema(fields: Sequence[Field], *, with_source: bool) -> pa.Schema:
    """Return the Arrow schema of the record batches in data.mdb.

    What repeats from sample to sample (sizes, codec, source) is run-end encoded, so that it costs nothing per sample.
    """
    import pyarrow as pa

    def runs(value: pa.DataType) -> pa.DataType:
        return pa.run_end_encoded(pa.int32(), value)

    columns: list[tuple[str, pa.DataType]] = []
    if with_source:
        columns += [("source", runs(pa.string())), ("top", runs(pa.uint32())), ("left", pa.uint32())]
    scalar = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
    for f in fields:
        if not f.is_payload:
            columns.append((f.name, scalar[f.kind]))
            continue
        columns += [
            (f.name, pa.binary()),
            (f"{f.name}.raw_nbytes", runs(pa.uint32())),
            (f"{f.name}.codec", runs(pa.uint8())),
        ]
        if f.kind == "image":
            columns += [(f"{f.name}.{c}", runs(t)) for c, t in image_columns().items()]
        elif f.kind == "array":
            columns.append((f"{f.name}.type", runs(pa.string())))
    return pa.schema(columns)


def record_key(first_sample: int, checksum: int) -> bytes:
    """Return the key of a record batch: number of its first sample, then XXH64 of its value, both 8 bytes big-endian.

    >>> record_key(7, 0xABC).hex()
    '00000000000000070000000000000abc'
    """
    return struct.pack(">QQ", first_sample, checksum)


def parse_record_key(key: bytes) -> tuple[int, int]:
    """Return (first sample, checksum) of a record batch's key.

    Raises:
        FormatError: The key has another length.
    """
    if len(key) != RECORD_KEY_NBYTES:
        raise FormatError(f"record key {key!r}: expected {RECORD_KEY_NBYTES} bytes, found {len(key)}")
    first, checksum = struct.unpack(">QQ", key)
    return first, checksum


def progress_value(num_samples: int) -> bytes:
    """Return the value that says how many samples data.mdb holds.

    >>> progress_value(7)
    b'{"num_samples": 7}'
    """
    return json.dumps({"num_samples": num_samples}).encode()


def array_type(dtype: str, shape: Sequence[int]) -> str:
    """Return the text that describes an array.

    >>> array_type("float32", (3, 4))
    'float32[3,4]'
    """
    return f"{dtype}[{','.join(map(str, shape))}]"


def parse_array_type(text: str) -> tuple[str, tuple[int, ...]]:
    """Return (dtype, shape) of an `array_type` text.

    >>> parse_array_type("float32[3,4]")
    ('float32', (3, 4))

    Raises:
        FormatError: The text is not of that form.
    """
    dtype, bracket, rest = text.partition("[")
    sizes = rest[:-1].split(",") if rest[:-1] else []
    plain = all(s.isascii() and s.isdigit() and len(s) <= 12 for s in sizes)
    if dtype not in ARRAY_DTYPES or not bracket or not rest.endswith("]") or not plain or len(sizes) > 32:
        raise FormatError(f"array type {text[:80]!r}: expected something like 'float32[3,4]'")
    return dtype, tuple(map(int, sizes))
