"""manifest.json: its fields, and its digest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.fields import kind_names
from lmdbloader.format.codecs import named_codecs
from lmdbloader.format.digests import digest_of
from lmdbloader.format.index import IndexLayout, count_of, parse_index
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    FORMAT_VERSION,
    INDEX_FILE,
    MANIFEST_FILE,
    MAX_TILE_SIZE,
    PART_ALIGNMENT,
    Field,
    data_file,
    make_field,
)

MAX_MANIFEST_NBYTES = 64 * 1024 * 1024
_HALVES = re.compile("[\ud800-\udfff]")
# Before the digest of a text.
_SIGNATURE = b',\n "%s": '


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a dataset: a data file, whose name follows from its place among the parts.

    Attributes:
        num_samples: Its samples, at least one.
        data_nbytes: Bytes of its data file.
        data_digest: Of its data file.
    """

    num_samples: int
    data_nbytes: int
    data_digest: str


def part_begins(lengths: Sequence[int]) -> list[int]:
    """Return where each part begins in the range of all offsets, and where it ends, given the lengths of data files.

    >>> part_begins([100, 2097153, 5])
    [0, 2097152, 6291456, 6291461]
    """
    begins = [0]
    for nbytes in lengths:
        begins[-1] = -(-begins[-1] // PART_ALIGNMENT) * PART_ALIGNMENT
        begins.append(begins[-1] + nbytes)
    return begins


@dataclass(frozen=True, slots=True)
class Description:
    """The part of a manifest that cannot be computed from the samples; a copy is in data.mdb, for repairs.

    Attributes:
        fields: Fields in the order of a sample.
        with_source: Whether the index has the source of each sample.
        classes: For each label field of a class-folder dataset, the class names by label.
        made_by: How the dataset was made: release, options, digests of the inputs.
    """

    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    made_by: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the bytes of the entry in data.mdb; its last key is the digest of all before it.

        Raises:
            OptionError: It is too large for a reader: there are too many names of classes, or too long ones.
        """
        return signed(_description_json(self), "description_digest")


@dataclass(frozen=True, slots=True)
class Manifest(Description):
    """All that is known of a finished dataset, manifest.json.

    Attributes:
        num_samples: Number of samples.
        content_digest: Over the samples in order (see docs/reference/format.md).
        index_digest: Of index.arrow.
        index: Where the columns of index.arrow lie, the digests of its rows, and facts about them.
        parts: In order, at least one.
        manifest_digest: Of all bytes before it; empty if the manifest was not read from a file.
    """

    num_samples: int
    content_digest: str
    index_digest: str
    index: IndexLayout
    parts: tuple[Part, ...]
    manifest_digest: str = field(default="", compare=False)

    @property
    def data_files(self) -> tuple[str, ...]:
        """The names of its data files, in the dataset's folder."""
        return tuple(map(data_file, range(len(self.parts))))

    @property
    def files(self) -> dict[str, tuple[str, int]]:
        """The digests and the bytes of the index and of the data files, by their names."""
        parts = zip(self.data_files, self.parts, strict=True)
        index = {INDEX_FILE: (self.index_digest, self.index.nbytes)}
        return index | {name: (part.data_digest, part.data_nbytes) for name, part in parts}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes."""
        totals = [facts.totals for facts in self.index.facts.values()]
        return {
            "payload_nbytes": sum(total["stored_nbytes"] for total in totals),
            "raw_nbytes": sum(total["raw_nbytes"] for total in totals),
            "data_nbytes": sum(part.data_nbytes for part in self.parts),
            "index_nbytes": self.index.nbytes,
        }

    @property
    def description(self) -> Description:
        """The part that cannot be computed from the samples."""
        return Description(self.fields, self.with_source, self.classes, self.made_by)

    def to_json(self) -> bytes:
        """Return the file's bytes; its last key is the digest of all before it."""
        body = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION, "num_samples": self.num_samples}
        body |= _description_json(self)
        body |= {"parts": [asdict(part) for part in self.parts], "index": asdict(self.index)}
        body |= {"content_digest": self.content_digest, "index_digest": self.index_digest}
        return signed(body, "manifest_digest")


def parse_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest in `data`, checked against its own digest.

    Args:
        data: The bytes of manifest.json.
        path: Of the dataset, for messages.

    Raises:
        FormatError: Not JSON, not a manifest, of another format version, or changed since it was written.
    """
    where = f"{path}/{MANIFEST_FILE}"
    if len(data) > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{where}: {len(data)} bytes, expected at most {MAX_MANIFEST_NBYTES}")
    try:
        body = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON text ({error}). Restore it from a copy, or convert again.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise FormatError(f"{where}: does not describe an lmdbloader dataset")
    version = body.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise FormatError(
            f"{where}: format version {version!r:.20}, expected {FORMAT_VERSION}. Convert again, or read it with the "
            "release that made it."
        )
    if not is_signed(data):
        raise FormatError(f"{where}: its digest is not that of its content: it was changed after it was written")
    try:
        description, parts = _parse_description(body), _parts(body)
        fields, num_samples = description.fields, count_of(body["num_samples"])
        data_nbytes = sum(part.data_nbytes for part in parts)
        return Manifest(
            fields=fields,
            with_source=description.with_source,
            classes=description.classes,
            made_by=description.made_by,
            num_samples=num_samples,
            index=parse_index(body["index"], num_samples, data_nbytes, fields, with_source=description.with_source),
            content_digest=_typed(body, "content_digest", str),
            index_digest=_typed(body, "index_digest", str),
            parts=parts,
            manifest_digest=_typed(body, "manifest_digest", str),
        )
    except ValueError as error:
        raise FormatError(f"{where}: {error}. Convert again, or read it with the release that made it.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{where}: {error!r} while reading it; expected the keys of format version {version}"
        ) from error


def parse_description(data: bytes, path: str) -> Description:
    """Return the description in `data`, checked against its own digest.

    Args:
        data: The value of data.mdb's entry.
        path: Of the dataset, for messages.

    Raises:
        FormatError: It was changed since it was written.
    """
    where = f"{path}/{DATA_FILE}: its description"
    try:
        if not is_signed(data, "description_digest"):
            raise ValueError("its digest is not that of its content")
        return _parse_description(json.loads(data))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where} does not read ({error!r})") from error


def is_signed(data: bytes, key: str = "manifest_digest") -> bool:
    """Return whether a text ends with the digest of all before it; that of a manifest, of any format version."""
    head, found, _ = data.rpartition(_SIGNATURE % key.encode())
    return bool(found) and data == _sign(head, key)


def signed(body: Mapping[str, Any], key: str) -> bytes:
    """Return the text of a JSON object with the digest of all before it as the last key.

    Raises:
        OptionError: It is too large for a reader.
    """
    text = json.dumps(body, indent=1, ensure_ascii=False).removesuffix("\n}")
    # Half a surrogate pair (a byte of a file name that is not text) has no UTF-8 and stays a JSON escape.
    data = _sign(_HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode(), key)
    if len(data) > MAX_MANIFEST_NBYTES:
        names = sum(map(len, body["classes"].values()))
        raise OptionError(
            f"the description of the dataset, {MANIFEST_FILE}, takes {len(data):,} bytes with the names of {names:,} "
            f"classes, more than a reader accepts: {MAX_MANIFEST_NBYTES:,} bytes. About a million names fit: use "
            "shorter or fewer ones."
        )
    return data


def _sign(head: bytes, key: str) -> bytes:
    return head + _SIGNATURE % key.encode() + f'"{digest_of(head)}"\n}}\n'.encode()


def _description_json(d: Description) -> dict[str, Any]:
    return {
        "fields": [field_json(f) for f in d.fields],
        "with_source": d.with_source,
        "classes": {name: list(names) for name, names in d.classes.items()},
        "made_by": dict(d.made_by),
    }


def _parse_description(body: Mapping[str, Any]) -> Description:
    fields = tuple(parse_field(f) for f in _typed(body, "fields", list))
    if not fields or len({f.name for f in fields}) != len(fields):
        raise ValueError("fields without any, or with one name twice")
    images = {f.name for f in fields if f.kind == "image"}
    if missing := [f for f in fields if f.image is not None and f.image not in images]:
        raise ValueError(f"field {missing[0].name!r} of the image {missing[0].image!r:.80}, which is not there")
    classes = {name: _names(names) for name, names in _typed(body, "classes", dict).items()}
    with_source, made_by = _typed(body, "with_source", bool), _typed(body, "made_by", dict)
    return Description(fields, with_source, classes, made_by)


def field_json(f: Field) -> dict[str, Any]:
    """Return a field as in the manifest."""
    names = ("name", "kind", "codec", "layout", "tile_size", "ignore_index", "image")
    values = {name: getattr(f, name) for name in names}
    return {key: value for key, value in values.items() if value is not None}


def parse_field(values: Mapping[str, Any]) -> Field:
    """Return the field from the JSON of `field_json`.

    Raises:
        KeyError, TypeError, ValueError: It is not a field.
    """
    name, kind = values["name"], values["kind"]
    if kind not in kind_names():
        raise ValueError(f"field {name!r} of kind {kind!r:.80}, expected one of {', '.join(kind_names())}")
    plain = make_field(name, kind, _typed(values, "codec", str) if "codec" in values else "raw")
    if plain.holds_text and "codec" in values:
        plain = replace(plain, codec=values["codec"])
    if plain.codec is not None and plain.codec not in named_codecs():
        raise ValueError(f"field {name!r} of codec {plain.codec!r:.80}, expected one of {', '.join(named_codecs())}")
    if kind in ("boxes", "points") and "image" in values:
        return replace(plain, image=_typed(values, "image", str))
    if not plain.has_pixels:
        return plain
    layout, tile_size = values["layout"], count_of(values["tile_size"])
    if layout != "CHW" or not 8 <= tile_size <= MAX_TILE_SIZE:
        raise ValueError(f"field {name!r} with layout {layout!r} and tiles of {tile_size} pixels")
    ignored = count_of(values["ignore_index"]) if kind == "mask" else None
    if ignored is not None and ignored >= 2**16:
        raise ValueError(f"field {name!r} with an ignore_index of {ignored}")
    return Field(name, kind, plain.codec, layout, tile_size, ignored)


def _typed(body: Mapping[str, Any], key: str, kind: type) -> Any:
    if type(body[key]) is not kind:
        raise TypeError(f"{key} is {body[key]!r:.80}")
    return body[key]


def _parts(body: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the parts of a dataset."""
    parts = tuple(
        Part(count_of(part["num_samples"]), count_of(part["data_nbytes"]), _typed(part, "data_digest", str))
        for part in _typed(body, "parts", list)
    )
    num_samples = sum(part.num_samples for part in parts)
    is_one_empty = not parts or min(min(part.num_samples, part.data_nbytes) for part in parts) < 1
    if is_one_empty or num_samples != body["num_samples"]:
        raise ValueError(f"parts with {num_samples} samples of {body['num_samples']!r:.20}, or an empty one")
    return parts


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise TypeError(f"class names are {values!r:.80}")
    return tuple(values)
