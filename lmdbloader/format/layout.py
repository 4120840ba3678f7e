"""The layout of a dataset on disk: files, keys, columns of records and index."""

from __future__ import annotations

import keyword
import struct
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.fields import Kind as Kind
from lmdbloader.fields import Mask, kind_named
from lmdbloader.kernels.codec_numbers import CODEC_DELTA as CODEC_DELTA
from lmdbloader.kernels.codec_numbers import CODEC_DELTA_TILES as CODEC_DELTA_TILES
from lmdbloader.kernels.codec_numbers import CODEC_FILE as CODEC_FILE
from lmdbloader.kernels.codec_numbers import CODEC_JPEG as CODEC_JPEG
from lmdbloader.kernels.codec_numbers import CODEC_LZ4 as CODEC_LZ4
from lmdbloader.kernels.codec_numbers import CODEC_NAMES as CODEC_NAMES
from lmdbloader.kernels.codec_numbers import CODEC_RAW as CODEC_RAW
from lmdbloader.kernels.codec_numbers import CODEC_TILES as CODEC_TILES
from lmdbloader.kernels.codec_numbers import TILED as TILED

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

FORMAT_NAME = "lmdbloader"
FORMAT_VERSION = 1

DATA_FILE = "data.mdb"
INDEX_FILE = "index.arrow"
MANIFEST_FILE = "manifest.json"
# The manifest in the cache of a dataset at a URL, which must not look like a complete dataset.
REMOTE_FILE = "manifest.remote.json"
# The manifest at a URL until all files are there: it says which dataset the files belong to.
UPLOAD_FILE = "manifest.upload.json"
PARTIAL_SUFFIX = ".partial"
# In OUT.partial: what is made there, and how; it can be continued.
PLAN_FILE = "plan.json"
# Where parts begin in the range of all offsets: a multiple of the pages of every system, also of the large ones by
# which a processor finds addresses in large files faster. The bytes between the parts are addresses only.
PART_ALIGNMENT = 2 * 2**20
# Notes for people: images that a conversion skipped, samples that a repair left out.
SKIPPED_FILE, LEFT_OUT_FILE = "skipped.tsv", "left_out.tsv"
# The files that a conversion read. Not a part of the dataset: it describes the files, not their content.
SOURCES_FILE = "sources.json"

# Pixel payloads above this size are cut into tiles: a crop reads only some of them.
TILED_ABOVE_NBYTES = 256 * 1024
TILE_SIZE = 64
MAX_TILE_SIZE = 512
# An Arrow binary column addresses 2 GiB; one payload must fit.
MAX_PAYLOAD_NBYTES = 2**31 - 2**20
# A field with a longer text, in bytes of UTF-8, has all of its texts in data.mdb alone, rather than in the index too.
LONG_TEXT_NBYTES = 128
# The index counts texts that repeat (sources, types of arrays) with int32 numbers.
MAX_NAMES = 2**31 - 1

SCHEMA_KEY = b"schema"
PROGRESS_KEY = b"progress"
DESCRIPTION_KEY = b"description"
RECORD_KEY_NBYTES = 16


# A sample's file and position in it: columns of index and records, absent if samples from Python had no `source`.
SOURCE_COLUMNS = ("source", "top", "left")
SOURCE = SOURCE_COLUMNS[0]

# The dtypes of pixels by their number in the column `bits`: the bits of a value, plus one for floats.
PIXEL_DTYPES: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype("u2"), 17: np.dtype("f2"), 33: np.dtype("f4")}
MAX_CHANNELS = 64
# The fields of a frame of a clip: the clip's name, and the frame's number in it.
CLIP, FRAME = "clip", "frame"

ARRAY_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of every sample.

    Attributes:
        name: A Python identifier.
        kind: The name of its type, see `lmdbloader.fields`.
        codec: How its payloads are compressed; None for the kinds that are columns of the index. Of text: "raw" if the
            index has only the places of its texts, which the writer decides at the end.
        layout: Order of the axes of stored pixels; images and masks only.
        tile_size: Side of the tiles of large images in pixels; images and masks only.
        ignore_index: The label of pixels without one; masks only.
        image: The field of the image that boxes or points are in, if there are several.
    """

    name: str
    kind: Kind
    codec: str | None = None
    layout: Literal["CHW"] | None = None
    tile_size: int | None = None
    ignore_index: int | None = None
    image: str | None = None

    @property
    def has_pixels(self) -> bool:
        """Whether its values are images or masks."""
        return kind_named(self.kind).has_pixels

    @property
    def has_views(self) -> bool:
        """Whether transforms move its values, so that each of several views has its own."""
        return self.has_pixels or self.kind in ("boxes", "points")

    @property
    def is_payload(self) -> bool:
        """Whether its values are byte strings in data.mdb, rather than a column of the index."""
        return kind_named(self.kind).is_payload or self.codec is not None

    @property
    def holds_text(self) -> bool:
        """Whether its values are texts, which records have as a column of strings, and the index in one of two ways."""
        return kind_named(self.kind).column == "text"


def make_field(name: str, kind: Kind, codec: str = "raw", *, ignore_index: int | None = None) -> Field:
    """Return a field as this release writes it; of a mask, with the default ignore_index unless one is given.

    Raises:
        OptionError: The name cannot be an attribute of a sample, or is reserved.
    """
    is_plain = isinstance(name, str) and name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    if not is_plain or keyword.iskeyword(name) or name.startswith("_") or name in SOURCE_COLUMNS or len(name) > 50:
        raise OptionError(
            f"field name {name!r:.80}: expected a Python identifier (NFKC) of at most 50 characters that is not a "
            f"keyword, does not start with '_' and is not one of {', '.join(SOURCE_COLUMNS)}. Rename the field."
        )
    if kind == "mask":
        return Field(name, kind, codec, "CHW", TILE_SIZE, Mask().ignore_index if ignore_index is None else ignore_index)
    if kind == "image":
        return Field(name, kind, codec, "CHW", TILE_SIZE)
    return Field(name, kind, codec if kind_named(kind).is_payload else None)


def image_of(place: Field, fields: Iterable[Field]) -> str | None:
    """Return the field of the image that boxes or points are in: of masks, if there are no images.

    None if there is no image; or several and no name, where it is the largest of each sample.
    """
    images = [f.name for f in fields if f.kind == "image"] or [f.name for f in fields if f.kind == "mask"]
    return place.image or (images[0] if len(images) == 1 else None)


def holds_clips(fields: Mapping[str, Field]) -> bool:
    """Return whether the fields are those of frames of clips."""
    return {(CLIP, "text"), (FRAME, "int")} <= {(f.name, f.kind) for f in fields.values()}


def undecided(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the fields of a dataset as a new one with other samples has them: texts are stored as their lengths ask.

    >>> [f.codec for f in undecided([Field("caption", "text", "raw"), Field("data", "bytes", "lz4")])]
    [None, 'lz4']
    """
    return tuple(replace(f, codec=None) if f.holds_text else f for f in fields)


def index_columns(fields: Sequence[Field], *, with_source: bool) -> dict[str, str]:
    """Return the columns of index.arrow, one row a sample: their types by name, in order.

    A type is a dtype such as "int64", "text" (Arrow's large_string), or "names" for texts that repeat: a
    dictionary of large_string with int32 numbers.

    Args:
        fields: The fields, in order.
        with_source: Whether samples have the name of a source and a position in it.

    >>> index_columns([make_field("label", "int")], with_source=True)
    {'source': 'names', 'top': 'uint32', 'left': 'uint32', 'label': 'int64'}
    """
    payload = {"offset": "int64", "stored_nbytes": "uint32", "raw_nbytes": "uint32", "checksum": "uint64"}
    columns = {"source": "names", "top": "uint32", "left": "uint32"} if with_source else {}
    for f in fields:
        if f.is_payload:
            described = {**payload, "codec": "uint8", **kind_named(f.kind).columns}
            columns |= {f"{f.name}.{part}": type_name for part, type_name in described.items()}
        else:
            columns[f.name] = kind_named(f.kind).column
    return columns


def index_schema(fields: Sequence[Field], *, with_source: bool) -> pa.Schema:
    """Return the Arrow schema of index.arrow; see `index_columns`."""
    import pyarrow as pa

    arrow = {"text": pa.large_string(), "names": pa.dictionary(pa.int32(), pa.large_string())}
    columns = index_columns(fields, with_source=with_source)
    return pa.schema([(name, arrow.get(kind) or getattr(pa, kind)()) for name, kind in columns.items()])


def record_schema(fields: Sequence[Field], *, with_source: bool) -> pa.Schema:
    """Return the Arrow schema of the record batches in data.mdb.

    Values that repeat from sample to sample (sizes, codec, source) are run-end encoded: they take no bytes per sample.
    """
    import pyarrow as pa

    def runs(type_name: str) -> pa.DataType:
        return pa.run_end_encoded(pa.int32(), pa.string() if type_name == "names" else getattr(pa, type_name)())

    columns: list[tuple[str, pa.DataType]] = []
    if with_source:
        columns += [("source", runs("names")), ("top", runs("uint32")), ("left", pa.uint32())]
    for f in fields:
        kind = kind_named(f.kind)
        if kind.is_payload:
            described = {"raw_nbytes": "uint32", "codec": "uint8", **kind.columns}
            columns += [(f.name, pa.binary()), *((f"{f.name}.{part}", runs(t)) for part, t in described.items())]
        else:
            columns.append((f.name, pa.string() if kind.column == "text" else getattr(pa, kind.column)()))
    return pa.schema(columns)


def data_file(number: int) -> str:
    """Return the name of the data file of a part.

    >>> data_file(0), data_file(7)
    ('data.mdb', 'data-00007.mdb')
    """
    return f"data-{number:05d}.mdb" if number else DATA_FILE


def record_key(first_sample: int, checksum: int) -> bytes:
    """Return the key of a record batch: the number of its first sample and XXH3 of its value, 8 bytes big-endian each.

    >>> record_key(7, 0xABC).hex()
    '00000000000000070000000000000abc'
    """
    return struct.pack(">QQ", first_sample, checksum)


def parse_record_key(key: bytes) -> tuple[int, int]:
    """Return (first sample, checksum) of a record batch's key.

    >>> parse_record_key(record_key(7, 0xABC))
    (7, 2748)
    """
    first, checksum = struct.unpack(">QQ", key)
    return first, checksum


def bits_of(dtype: np.dtype[Any]) -> int:
    """Return the number of a dtype of pixels in the column `bits`.

    >>> bits_of(np.dtype("uint16")), bits_of(np.dtype("float16"))
    (16, 17)
    """
    return 8 * dtype.itemsize + (dtype.kind == "f")


def bits_text(bits: int) -> str:
    """Return a dtype of pixels, given by its `bits`, as text.

    >>> bits_text(16), bits_text(17)
    ('16-bit', 'float16')
    """
    return str(PIXEL_DTYPES[bits]) if bits % 2 else f"{bits}-bit"


def channels_text(channels: int) -> str:
    """Return a number of channels as text.

    >>> channels_text(1), channels_text(5)
    ('gray', '5 channels')
    """
    return {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")


def looks_of(kind: str, bits: npt.NDArray[Any], channels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return a number (n,) for the kind of each image or mask, by its `bits` and channels; a field has one kind.

    Gray and RGB, in uint8 and uint16, are one kind of image. The number for a mask is that of its bits.
    """
    if kind == "mask":
        return bits.astype(np.int64)
    return np.where(bits % 2 == 1, bits, 8) * 256 + np.where(channels == 1, 3, channels).astype(np.int64)


def look_text(look: int) -> str:
    """Return a number of `looks_of` as text.

    >>> look_text(33 * 256 + 5), look_text(8 * 256 + 3), look_text(16)
    ('float32 with 5 channels', 'whole numbers, gray or RGB', '16 bits')
    """
    bits, channels = divmod(look, 256)
    if not bits:
        return f"{look} bits"
    kind = str(PIXEL_DTYPES[bits]) if bits % 2 else "whole numbers"
    return f"{kind}, gray or RGB" if channels == 3 else f"{kind} with {channels} channels"


def array_type(dtype: str, shape: Sequence[int]) -> str:
    """Return the type of an array as text.

    >>> array_type("float32", (3, 4))
    'float32[3,4]'
    """
    return f"{dtype}[{','.join(map(str, shape))}]"


def parse_array_type(text: str) -> tuple[str, tuple[int, ...]]:
    """Return (dtype, shape) of an `array_type` text.

    >>> parse_array_type("float32[3,4]")
    ('float32', (3, 4))

    Raises:
        FormatError: The text is not such a type.
    """
    dtype, bracket, rest = text.partition("[")
    sizes = rest[:-1].split(",") if rest[:-1] else []
    plain = all(s.isascii() and s.isdigit() and len(s) <= 12 for s in sizes)
    if dtype not in ARRAY_DTYPES or not bracket or not rest.endswith("]") or not plain or len(sizes) > 32:
        raise FormatError(f"array type {text[:80]!r}: expected something like 'float32[3,4]'")
    return dtype, tuple(map(int, sizes))
