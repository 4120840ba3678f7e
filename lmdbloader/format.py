"""What a dataset looks like on disk: manifest, field types and the columns of the index, without touching a file."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmdbloader.errors import FormatError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "lmdbloader"
FORMAT_VERSION = 1

DATA_FILE = "data.mdb"
INDEX_FILE = "index.arrow"
MANIFEST_FILE = "manifest.json"
PARTIAL_SUFFIX = ".partial"

# LMDB stores values in whole pages: 256 KiB a value keeps the waste under 2 % for small samples.
BLOCK_NBYTES = 256 * 1024
# Pixel payloads above this size are cut into tiles, so that a crop reads a part of them.
TILED_ABOVE_NBYTES = 256 * 1024
TILE_SIZE = 64
MAX_TILE_SIZE = 512
# An Arrow binary column addresses 2 GiB; one payload must fit.
MAX_PAYLOAD_NBYTES = 2**31 - 2**20
MAX_MANIFEST_NBYTES = 64 * 1024 * 1024

SCHEMA_KEY = b"schema"
PROGRESS_KEY = b"progress"
RECORD_KEY_NBYTES = 16

CODEC_RAW, CODEC_LZ4, CODEC_TILES = 0, 1, 2
CODEC_NAMES = ("raw", "lz4", "tiles")

Codec = Literal["raw", "lz4"]
Kind = Literal["image", "array", "int", "float", "text", "bytes", "json"]
PAYLOAD_KINDS = ("image", "array", "bytes", "json")
KINDS = ("image", "array", "int", "float", "text", "bytes", "json")

# Where a sample came from; columns of the index and of every record, absent in datasets written from Python.
SOURCE_COLUMNS = ("source", "top", "left")

ARRAY_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field holds; give one of the subclasses to `lmdbloader.write(fields=...)` where guessing is not wanted."""

    @property
    def kind(self) -> Kind:
        """The name that the manifest uses."""
        name = type(self).__name__.lower()
        return name  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Image(FieldType):
    """uint8 or uint16 pixels with 1 or 3 channels; read back as a (C, H, W) tensor."""


@dataclass(frozen=True, slots=True)
class Array(FieldType):
    """An n-dimensional array of numbers; read back as a tensor of the same shape and dtype."""


@dataclass(frozen=True, slots=True)
class Int(FieldType):
    """A 64-bit signed integer; read back as an int."""


@dataclass(frozen=True, slots=True)
class Float(FieldType):
    """A 64-bit float; read back as a float."""


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """A str."""


@dataclass(frozen=True, slots=True)
class Bytes(FieldType):
    """A bytes object."""


@dataclass(frozen=True, slots=True)
class Json(FieldType):
    """Anything that JSON can hold: None, bool, numbers, str, and lists and dicts of them."""


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a finished dataset, manifest.json.

    Attributes:
        num_samples: Number of samples.
        fields: Fields in the order of a sample.
        with_source: Whether the index tells where each sample came from.
        classes: For each label field of a class-folder dataset, the class names by label.
        sizes: Bytes: data_nbytes, index_nbytes, payload_nbytes (stored), raw_nbytes (decoded).
        made_by: How the dataset was made: release, options, digests of the inputs.
        content_digest: BLAKE2b over the samples in order (see docs/format.md).
        index_digest: XXH64 of index.arrow.
    """

    num_samples: int
    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    made_by: Mapping[str, Any]
    content_digest: str
    index_digest: str
    manifest_digest: str = field(default="", compare=False)

    def to_json(self) -> bytes:
        """Return the file's bytes; the digest of everything else stands last."""
        body: dict[str, Any] = {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            "num_samples": self.num_samples,
            "fields": [_field_json(f) for f in self.fields],
            "with_source": self.with_source,
            "classes": {name: list(names) for name, names in self.classes.items()},
            "sizes": dict(self.sizes),
            "made_by": dict(self.made_by),
            "content_digest": self.content_digest,
            "index_digest": self.index_digest,
        }
        body["manifest_digest"] = _digest_of(body)
        text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
        # What UTF-8 cannot hold (half a surrogate pair: a byte of a file name that is no text) stays as JSON's escape.
        return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest in `data`, checked against its own digest.

    Args:
        data: The bytes of manifest.json.
        path: Of the dataset, for messages.

    Raises:
        FormatError: Not JSON, not ours, from another format version, or changed since it was written.
    """
    where = f"{path}/{MANIFEST_FILE}"
    if len(data) > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{where}: {len(data)} bytes, expected at most {MAX_MANIFEST_NBYTES}")
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON text ({error}). Restore it from a copy, or convert again.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise FormatError(f"{where}: does not describe an lmdbloader dataset")
    version = body.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        advice = "Upgrade lmdbloader." if isinstance(version, int) and version > FORMAT_VERSION else "Convert again."
        raise FormatError(f"{where}: format version {version!r:.20}; this release reads {FORMAT_VERSION}. {advice}")
    found = body.pop("manifest_digest", None)
    try:
        expected = _digest_of(body)
    except RecursionError as error:
        raise FormatError(f"{where}: is nested too deeply to be a manifest") from error
    if found != expected:
        raise FormatError(
            f"{where}: its digest is {found!r}, expected {expected!r}: it was changed after it was written"
        )
    try:
        fields = tuple(_parse_field(f) for f in _typed(body, "fields", list))
        if not fields or len({f.name for f in fields}) != len(fields):
            raise ValueError("fields without any, or with one name twice")
        return Manifest(
            num_samples=_natural(body["num_samples"]),
            fields=fields,
            with_source=_typed(body, "with_source", bool),
            classes={name: _names(names) for name, names in _typed(body, "classes", dict).items()},
            sizes={name: _natural(nbytes) for name, nbytes in _typed(body, "sizes", dict).items()},
            made_by=_typed(body, "made_by", dict),
            content_digest=_typed(body, "content_digest", str),
            index_digest=_typed(body, "index_digest", str),
            manifest_digest=str(found),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{where}: {error!r} while reading it; expected the keys of format version 1") from error


def _digest_of(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return "blake2b:" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _field_json(f: Field) -> dict[str, Any]:
    values = {"name": f.name, "kind": f.kind, "codec": f.codec, "layout": f.layout, "tile_size": f.tile_size}
    return {key: value for key, value in values.items() if value is not None}


def _parse_field(values: Mapping[str, Any]) -> Field:
    name, kind = values["name"], values["kind"]
    if kind not in KINDS:
        raise ValueError(f"field {name!r} of unknown kind {kind!r}")
    plain = make_field(name, kind, values.get("codec", "raw"))
    if plain.codec not in (None, "raw", "lz4"):
        raise ValueError(f"field {name!r} of unknown codec {plain.codec!r}")
    if plain.kind != "image":
        return plain
    layout, tile_size = values["layout"], _natural(values["tile_size"])
    if layout != "CHW" or not 8 <= tile_size <= MAX_TILE_SIZE:
        raise ValueError(f"field {name!r} with layout {layout!r} and tiles of {tile_size} pixels")
    return Field(name, kind, plain.codec, layout, tile_size)


def _typed(body: Mapping[str, Any], key: str, kind: type) -> Any:
    if type(body[key]) is not kind:
        raise TypeError(f"{key} is {body[key]!r:.80}")
    return body[key]


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise TypeError(f"class names are {values!r:.80}")
    return tuple(values)


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value >= 2**62:
        raise ValueError(f"{value!r} where a count was expected")
    return value
