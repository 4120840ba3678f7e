"""manifest.json: its fields, and its digest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.fields import kind_names
from lmdbloader.format.codecs import named_codecs
from lmdbloader.format.digests import digest_of
from lmdbloader.format.index import IndexLayout, parse_index
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MAX_TILE_SIZE,
    PART_ALIGNMENT,
    Field,
    data_file,
    make_field,
)

MAX_MANIFEST_NBYTES = 64 * 1024 * 1024
# The room that `check_fits` leaves for what is not known before a dataset is written: digests, codecs, counts.
_SPARE_NBYTES = 2**16
_HALVES = re.compile("[\ud800-\udfff]")


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
    """Return where parts begin in the range of all offsets, given the bytes of their data files, and where it ends.

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
        fields, with_source, classes, made_by: As in the manifest.
    """

    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    made_by: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the bytes of the entry in data.mdb; its last key is the digest of all others."""
        return _signed(_description_json(self), "description_digest")

    def manifest(
        self,
        *,
        num_samples: int,
        sizes: Mapping[str, int],
        content_digest: str,
        index_digest: str,
        index: IndexLayout,
        parts: tuple[Part, ...],
        manifest_digest: str = "",
    ) -> Manifest:
        """Return the manifest of a dataset with this description; arguments as in the manifest."""
        return Manifest(
            num_samples,
            self.fields,
            self.with_source,
            self.classes,
            sizes,
            self.made_by,
            content_digest,
            index_digest,
            index,
            parts,
            manifest_digest,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a finished dataset, manifest.json.

    Attributes:
        num_samples: Number of samples.
        fields: Fields in the order of a sample.
        with_source: Whether the index has the source of each sample.
        classes: For each label field of a class-folder dataset, the class names by label.
        sizes: Bytes: data_nbytes, index_nbytes, payload_nbytes (stored), raw_nbytes (decoded).
        made_by: How the dataset was made: release, options, digests of the inputs.
        content_digest: Over the samples in order (see docs/reference/format.md).
        index_digest: Of index.arrow.
        index: Where the columns of index.arrow lie, the digests of its rows, and facts about them.
        parts: In order, at least one.
        manifest_digest: Of all other keys; empty if the manifest was not read from a file.
    """

    num_samples: int
    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    made_by: Mapping[str, Any]
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
    def description(self) -> Description:
        """The part that cannot be computed from the samples."""
        return Description(self.fields, self.with_source, self.classes, self.made_by)

    def to_json(self) -> bytes:
        """Return the file's bytes; its last key is the digest of all others."""
        return _signed(self._json(), "manifest_digest")

    def is_text(self, data: bytes) -> bool:
        """Return whether a file's bytes, from which this was read, are exactly those that a writer makes of it.

        Its digest is of the values: text with other white space, spellings of numbers or orders of keys has the same.
        """
        return data == _text({**self._json(), "manifest_digest": self.manifest_digest})

    def _json(self) -> dict[str, Any]:
        """Return all keys except its own digest, in the order of the file."""
        body = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION, "num_samples": self.num_samples}
        body |= _description_json(self) | {"sizes": dict(self.sizes)}
        body["parts"] = [asdict(part) for part in self.parts]
        body["index"] = self.index.to_json()
        return body | {"content_digest": self.content_digest, "index_digest": self.index_digest}


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
        body = load_json(data)
    except _TwiceError as error:
        raise FormatError(f"{where}: {error}. Restore it from a copy, or convert again.") from error
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
    found = body.pop("manifest_digest", None)
    try:
        expected = _digest_of(body)
    except RecursionError as error:
        raise FormatError(f"{where}: is nested too deeply to be a manifest") from error
    if found != expected:
        raise FormatError(
            f"{where}: its digest is {found!r}, expected {expected!r}: it was changed after it was written"
        )
    if not data.endswith(b"\n"):  # without its last byte it is still JSON
        raise FormatError(
            f"{where}: {len(data)} bytes that do not end in a line break: it is cut short. Copy it again."
        )
    try:
        description = _parse_description(body)
        return description.manifest(
            num_samples=_natural(body["num_samples"]),
            sizes={name: _natural(nbytes) for name, nbytes in _typed(body, "sizes", dict).items()},
            index=parse_index(body, description.fields, with_source=description.with_source),
            content_digest=_typed(body, "content_digest", str),
            index_digest=_typed(body, "index_digest", str),
            parts=_parts(body),
            manifest_digest=str(found),
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
        body = load_json(data)
        found = body.pop("description_digest", None)
        if found != (expected := _digest_of(body)):
            raise ValueError(f"its digest is {found!r}, expected {expected!r}")
        return _parse_description(body)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where} does not read ({error!r})") from error


def is_signed(data: bytes) -> bool:
    """Return whether a manifest, of any format and version, is whole and has its own digest."""
    if not data.endswith(b"\n"):
        return False
    try:
        body = load_json(data)
        if not isinstance(body, dict):
            return False
        found = body.pop("manifest_digest", None)
        return bool(found == _digest_of(body))
    except (ValueError, RecursionError):
        return False


class _TwiceError(ValueError):
    """JSON with two values of one key."""


def load_json(data: bytes) -> Any:
    """Return the values of an untrusted JSON text.

    Args:
        data: At most MAX_MANIFEST_NBYTES of UTF-8.

    Raises:
        ValueError, RecursionError: It is not JSON, or has two values of one key.
    """
    return json.loads(data.decode("utf-8"), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a key with two values is an error, as readers differ in the one they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _TwiceError(f"has two values of {twice!r:.80}, expected one")
    return values


def _signed(body: dict[str, Any], key: str) -> bytes:
    """Return the text of a JSON object with its digest as the last key.

    Raises:
        OptionError: It is too large for a reader.
    """
    data = _text({**body, key: _digest_of(body)})
    if len(data) > MAX_MANIFEST_NBYTES:
        names = sum(map(len, body["classes"].values()))
        raise OptionError(
            f"the description of the dataset, {MANIFEST_FILE}, takes {len(data):,} bytes with the names of {names:,} "
            f"classes, more than a reader accepts: {MAX_MANIFEST_NBYTES:,} bytes. About a million names fit: use "
            "shorter or fewer ones."
        )
    return data


def check_fits(description: Description) -> None:
    """Check, before a dataset is written, that readers will accept its manifest.

    Args:
        description: As far as it is known; `made_by` and `fields` may still get a few entries.

    Raises:
        OptionError: It is too large: there are too many names of classes, or too long ones.
    """
    spare = {"spare": "x" * _SPARE_NBYTES}
    replace(description, made_by={**description.made_by, **spare}).to_json()


def _text(body: Mapping[str, Any]) -> bytes:
    """Return the text of a JSON object as in a file."""
    text = json.dumps(body, indent=1, ensure_ascii=False)
    # Half a surrogate pair (a byte of a file name that is not text) has no UTF-8 and stays a JSON escape.
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode() + b"\n"


def _description_json(d: Description | Manifest) -> dict[str, Any]:
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


def _digest_of(body: Mapping[str, Any]) -> str:
    """Return the digest of a JSON object."""
    return digest_of(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


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
    layout, tile_size = values["layout"], _natural(values["tile_size"])
    if layout != "CHW" or not 8 <= tile_size <= MAX_TILE_SIZE:
        raise ValueError(f"field {name!r} with layout {layout!r} and tiles of {tile_size} pixels")
    ignored = _natural(values["ignore_index"]) if kind == "mask" else None
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
        Part(_natural(part["num_samples"]), _natural(part["data_nbytes"]), _typed(part, "data_digest", str))
        for part in _typed(body, "parts", list)
    )
    num_samples, nbytes = sum(part.num_samples for part in parts), sum(part.data_nbytes for part in parts)
    is_one_empty = not parts or min(min(part.num_samples, part.data_nbytes) for part in parts) < 1
    if is_one_empty or num_samples != body["num_samples"]:
        raise ValueError(f"parts with {num_samples} samples of {body['num_samples']!r:.20}, or an empty one")
    if nbytes != body["sizes"]["data_nbytes"]:
        raise ValueError(f"parts of {nbytes} bytes, the sizes state {body['sizes']['data_nbytes']!r:.20}")
    return parts


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise TypeError(f"class names are {values!r:.80}")
    return tuple(values)


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value >= 2**62:
        raise ValueError(f"{value!r} where a count was expected")
    return value
