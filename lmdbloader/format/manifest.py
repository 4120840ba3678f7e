"""manifest.json: its fields, and its digest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmdbloader.errors import FormatError, OptionError
from lmdbloader.fields import kind_names
from lmdbloader.format.codecs import named_codecs
from lmdbloader.format.digests import (
    DEFAULT_DIGEST,
    DIGESTS,
    JOINABLE,
    DigestName,
    name_of,
    new_text_digest,
    scheme_for,
    scheme_of,
)
from lmdbloader.format.features import OF_FILES, PARTS, is_known, required
from lmdbloader.format.index import IndexLayout, parse_index
from lmdbloader.format.layout import (
    DATA_FILE,
    FORMAT_NAME,
    FORMAT_VERSIONS,
    INDEX_FILE,
    MANIFEST_FILE,
    MAX_TILE_SIZE,
    PART_ALIGNMENT,
    Field,
    make_field,
    part_name,
    set_index_file,
)

MAX_MANIFEST_NBYTES = 64 * 1024 * 1024
# Most memory for reading one, and the approximate memory of a JSON value: a short text, an empty list or object.
_MAX_MEMORY_NBYTES = 200_000_000
_VALUE_NBYTES = 72
# The additional memory of a key while duplicates are searched.
_KEY_NBYTES = 128
_FEATURES_SHOWN = 5
_FIELD_KEYS = frozenset({"name", "kind", "codec", "layout", "tile_size", "ignore_index", "image"})
# Keys that a writer of this release leaves out in some datasets; an own one is the digest of all others.
_OPTIONAL_KEYS = frozenset({"requires", "data_digest", "column_digests", "manifest_digest", "parts"})
_PART_KEYS = ("name", "num_samples", "data_nbytes", "manifest_digest")
# The room that `check_fits` leaves for what is not known before a dataset is written: digests, codecs, counts.
_SPARE_NBYTES = 2**16
_A_RELEASE = re.compile(r"[0-9][0-9A-Za-z.+]{0,39}")
_A_DIGEST = re.compile(r"[a-z0-9_-]+:[0-9a-f]{16,}")
_HALVES = re.compile("[\ud800-\udfff]")
# Smaller files are read without an estimate, and their digest is computed at once, which is faster.
_SMALL_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a set: a folder in the set's, a complete dataset.

    Attributes:
        name: The folder's.
        num_samples: Its samples, at least one.
        data_nbytes: Bytes of its data.mdb.
        manifest_digest: Of its manifest.
    """

    name: str
    num_samples: int
    data_nbytes: int
    manifest_digest: str


def part_begins(lengths: Sequence[int]) -> list[int]:
    """Return where each part of a set begins in the virtual file, given the bytes of their data.mdb, and where it ends.

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
        digest: The algorithm of its own digest and of those in the manifest.
        content_scheme: The scheme of the content digest; the default is that of datasets that do not name it.
        features: Those of `format.features.OF_FILES` that the dataset's files have.
    """

    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    made_by: Mapping[str, Any]
    digest: DigestName = DEFAULT_DIGEST
    content_scheme: str = scheme_for(DEFAULT_DIGEST, is_new=False)
    features: frozenset[str] = frozenset()

    def to_json(self) -> bytes:
        """Return the bytes of the entry in data.mdb; its last key is the digest of all others."""
        is_named = self.content_scheme != scheme_for(self.digest, is_new=False)
        body = _description_json(self) | ({"content_scheme": self.content_scheme} if is_named else {})
        return _signed(body, "description_digest", self.digest)

    def manifest(
        self,
        *,
        num_samples: int,
        sizes: Mapping[str, int],
        content_digest: str,
        index_digest: str,
        data_digest: str,
        index: IndexLayout,
        manifest_digest: str = "",
        column_digests: Mapping[str, str] | None = None,
        parts: tuple[Part, ...] = (),
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
            data_digest,
            manifest_digest,
            self.digest,
            column_digests or {},
            self.features,
            parts,
            index,
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
        data_digest: Of data.mdb; empty in datasets older than this key.
        manifest_digest: Of all other keys; empty if the manifest was not read from a file.
        digest: The algorithm of these; with "xxh64", BLAKE2b for the manifest, and a scheme for the content.
        column_digests: Of each column of the index except offsets, from which the content digest is made; empty if
            it is of a scheme without them.
        features: As in the description.
        parts: Of a set, in order; otherwise empty.
        index: Where the columns of index.arrow lie, the digests of its rows, and facts about them.
    """

    num_samples: int
    fields: tuple[Field, ...]
    with_source: bool
    classes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    made_by: Mapping[str, Any]
    content_digest: str
    index_digest: str
    data_digest: str = ""
    manifest_digest: str = field(default="", compare=False)
    digest: DigestName = DEFAULT_DIGEST
    column_digests: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    parts: tuple[Part, ...] = ()
    index: IndexLayout = field(default_factory=IndexLayout)

    @property
    def index_file(self) -> str:
        """The name of its index."""
        return set_index_file(len(self.parts)) if self.parts else INDEX_FILE

    @property
    def data_files(self) -> tuple[str, ...]:
        """The names of its data files, in the dataset's folder."""
        return tuple(f"{part.name}/{DATA_FILE}" for part in self.parts) or (DATA_FILE,)

    @property
    def description(self) -> Description:
        """The part that cannot be computed from the samples."""
        return Description(
            self.fields,
            self.with_source,
            self.classes,
            self.made_by,
            self.digest,
            self.content_scheme,
            self.features,
        )

    @property
    def content_scheme(self) -> str:
        """The scheme of its content digest, which this release may not know."""
        return scheme_of(self.content_digest)

    @property
    def format_version(self) -> int:
        """Its version of the format: 2 for the digests that releases of version 1 do not know."""
        return 1 if self.digest == DEFAULT_DIGEST else 2

    def to_json(self) -> bytes:
        """Return the file's bytes; its last key is the digest of all others."""
        return _signed(self._json(), "manifest_digest", self.digest)

    def is_text(self, data: bytes) -> bool:
        """Return whether a file's bytes, from which this was read, are exactly those that a writer makes of it.

        Its digest is of the values: text with other white space, spellings of numbers or orders of keys has the same.
        """
        at = 0
        for piece in _pieces({**self._json(), "manifest_digest": self.manifest_digest}):
            if data[at : at + len(piece)] != piece:
                return False
            at += len(piece)
        return at == len(data)

    def _json(self) -> dict[str, Any]:
        """Return all keys except its own digest, in the order of the file."""
        body = {"format": FORMAT_NAME, "format_version": self.format_version, "num_samples": self.num_samples}
        body |= _description_json(self) | {"sizes": dict(self.sizes)}
        if self.parts:
            body["parts"] = [{key: getattr(part, key) for key in _PART_KEYS} for part in self.parts]
        elif not self.data_digest:
            body["made_by"] = body.pop("made_by")  # after the sizes, as in datasets of that age
        body["index"] = self.index.to_json()
        body |= {"column_digests": dict(self.column_digests)} if self.column_digests else {}
        body |= {"content_digest": self.content_digest, "index_digest": self.index_digest}
        return body | ({"data_digest": self.data_digest} if self.data_digest else {})


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
    except _TooLargeError as error:
        raise FormatError(f"{where}: {error}. No release writes such a manifest: check its origin.") from error
    except _TwiceError as error:
        raise FormatError(f"{where}: {error}. Restore it from a copy, or convert again.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON text ({error}). Restore it from a copy, or convert again.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise FormatError(f"{where}: does not describe an lmdbloader dataset")
    version = _version_of(body, where)
    _refuse_unknown(body, f"{where}:")
    found = body.pop("manifest_digest", None)
    digest = DEFAULT_DIGEST if version == 1 else _other_digest(found, where)
    nbytes, is_whole = len(data), data.endswith(b"\n")
    del data  # may be large
    try:
        expected = _digest_of(body, digest, is_small=nbytes <= _SMALL_NBYTES)
    except RecursionError as error:
        raise FormatError(f"{where}: is nested too deeply to be a manifest") from error
    if found != expected:
        raise FormatError(
            f"{where}: its digest is {found!r}, expected {expected!r}: it was changed after it was written"
        )
    if not is_whole:  # without its last byte it is still JSON
        raise FormatError(f"{where}: {nbytes} bytes that do not end in a line break: it is cut short. Copy it again.")
    try:
        if digest != DEFAULT_DIGEST:
            _check_digests(body, digest)
        description = _parse_description(body, digest)
        return description.manifest(
            num_samples=_natural(body["num_samples"]),
            sizes={name: _natural(nbytes) for name, nbytes in _typed(body, "sizes", dict).items()},
            index=parse_index(body, description.fields, with_source=description.with_source),
            content_digest=_typed(body, "content_digest", str),
            index_digest=_typed(body, "index_digest", str),
            data_digest=_typed(body, "data_digest", str) if "data_digest" in body else "",
            manifest_digest=str(found),
            column_digests=_column_digests(body),
            parts=_parts(body),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{where}: {error!r} while reading it; expected the keys of format version {version}"
        ) from error


def _version_of(body: Mapping[str, Any], where: str) -> int:
    """Return the version of the format; raise FormatError if this release does not read it."""
    version = body.get("format_version")
    if type(version) is not int or version not in FORMAT_VERSIONS:
        is_newer = isinstance(version, int) and version > max(FORMAT_VERSIONS)
        known = " and ".join(map(str, FORMAT_VERSIONS))
        raise FormatError(
            f"{where}: format version {version!r:.20}; this release reads {known}. "
            f"{'Upgrade lmdbloader.' if is_newer else 'Convert again.'}"
        )
    return version


def _unknown_features(body: Mapping[str, Any]) -> list[str]:
    """Return the features that a manifest or description requires and this release does not know."""
    names = body.get("requires")
    return [name for name in names if isinstance(name, str) and not is_known(name)] if isinstance(names, list) else []


def _refuse_unknown(body: Mapping[str, Any], where: str) -> None:
    """Raise FormatError, which begins with `where`, if features are required that this release does not know."""
    if not (unknown := _unknown_features(body)):
        return
    names = ", ".join(f"{name!r:.80}" for name in unknown[:_FEATURES_SHOWN])
    made_by = body.get("made_by")
    release = made_by.get("lmdbloader") if isinstance(made_by, dict) else None
    known = isinstance(release, str) and _A_RELEASE.fullmatch(release)
    least = f" to {release} or later" if known else ""
    raise FormatError(
        f"{where} needs {names}, which this release does not know; a newer one made it. Upgrade lmdbloader{least}."
    )


def _other_digest(found: object, where: str) -> DigestName:
    """Return the algorithm of a manifest of version 2."""
    name = name_of(found)
    if name is None or name == DEFAULT_DIGEST:
        known = " or ".join(name for name in DIGESTS if name != DEFAULT_DIGEST)
        raise FormatError(
            f"{where}: its digest is {found!r:.80}, expected one of {known}: it was changed after it was written, or "
            "comes from a newer release. Upgrade lmdbloader, or copy it again."
        )
    return name


def _check_digests(body: Mapping[str, Any], name: DigestName) -> None:
    """Raise ValueError unless the digests of files and content are of the algorithm of the manifest's own."""
    files = ("index_digest",) if "parts" in body else ("index_digest", "data_digest")
    for key in ("content_digest", *files):
        if name_of(_typed(body, key, str)) != name:
            raise ValueError(f"{key} {body[key]!r:.80} with a manifest_digest of {name}")


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
        body, is_small = load_json(data), len(data) <= _SMALL_NBYTES
        found = body.pop("description_digest", None)
        digest = name_of(found) or DEFAULT_DIGEST
        if found != (expected := _digest_of(body, digest, is_small=is_small)):
            raise ValueError(f"its digest is {found!r}, expected {expected!r}")
        _refuse_unknown(body, where)
        scheme = body.get("content_scheme", scheme_for(digest, is_new=False))
        if type(scheme) is not str:
            raise TypeError(f"content_scheme is {scheme!r:.80}")
        return replace(_parse_description(body, digest), content_scheme=scheme)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{where} does not read ({error!r})") from error


def is_newer_description(data: bytes) -> bool:
    """Return whether a description is intact, and requires features that this release does not know."""
    try:
        body = load_json(data)
        found = body.pop("description_digest", None) if isinstance(body, dict) else None
        name = name_of(found)
        return name is not None and found == _digest_of(body, name) and bool(_unknown_features(body))
    except (ValueError, RecursionError):
        return False


def is_signed(data: bytes) -> bool:
    """Return whether a manifest, of any format and version, is whole and has a valid digest.

    An algorithm newer than this release counts as damage, unless the version of the format or a feature is newer too.
    """
    if not data.endswith(b"\n"):
        return False
    try:
        body = load_json(data)
        if not isinstance(body, dict):
            return False
        found, version = body.pop("manifest_digest", None), body.get("format_version")
        if (name := name_of(found)) is None:
            is_later = type(version) is int and version > max(FORMAT_VERSIONS)
            is_later = is_later or bool(_unknown_features(body))
            return is_later and isinstance(found, str) and _A_DIGEST.fullmatch(found) is not None
        return bool(found == _digest_of(body, name, is_small=len(data) <= _SMALL_NBYTES))
    except (ValueError, RecursionError):
        return False


def unknown_keys(data: bytes, manifest: Manifest) -> list[str]:
    """Return some of the keys that this release does not know, of the manifest and of its fields.

    Reading ignores them: what a reader must know is in "requires".

    Args:
        data: The bytes of the file.
        manifest: Read from them.
    """
    body, known = load_json(data), {*manifest._json(), *_OPTIONAL_KEYS}
    unknown = [key for key in body if key not in known]
    for values in body["fields"]:
        unknown += [key for key in values if key not in _FIELD_KEYS]
    return unknown[:_FEATURES_SHOWN]


class _TooLargeError(ValueError):
    """JSON whose values would take too much memory."""


class _TwiceError(ValueError):
    """JSON with two values of one key."""


def load_json(data: bytes) -> Any:
    """Return the values of an untrusted JSON text.

    Args:
        data: At most MAX_MANIFEST_NBYTES of UTF-8.

    Raises:
        ValueError, RecursionError: It is not JSON, has two values of one key, or would take more than 200 MB.
    """
    if (needed := _memory_nbytes(data)) > _MAX_MEMORY_NBYTES:
        raise _TooLargeError(
            f"its {len(data):,} bytes would take about {needed / 1e6:,.0f} MB of memory, expected at most "
            f"{_MAX_MEMORY_NBYTES / 1e6:,.0f} MB"
        )
    return json.loads(data.decode("utf-8"), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a key with two values is an error, as readers differ in the one they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _TwiceError(f"has two values of {twice!r:.80}, expected one")
    return values


def _memory_nbytes(data: bytes) -> int:
    """Return approximately the most memory that reading a JSON text takes, the text included."""
    if len(data) <= _SMALL_NBYTES:
        return len(data)
    # The text exists as bytes, decoded, and as values; each character takes the memory of the widest one. Beyond ASCII,
    # the escapes from which the digest is computed take more than that.
    if b"\\u" in data or re.search(b"[\xf0-\xff]", data):
        copies = 9
    elif re.search(b"[\xc4-\xff]", data):
        copies = 5
    else:
        copies = 3 if data.isascii() else 4
    values = sum(map(data.count, (b",", b":", b"[", b"{")))
    return copies * len(data) + _VALUE_NBYTES * values + _KEY_NBYTES * data.count(b'":')


def _signed(body: dict[str, Any], key: str, digest: DigestName = DEFAULT_DIGEST) -> bytes:
    """Return the text of a JSON object with its digest as the last key.

    Raises:
        OptionError: It is too large for a reader.
    """
    data = b"".join(_pieces({**body, key: _digest_of(body, digest)}))
    needed = _memory_nbytes(data)
    if len(data) > MAX_MANIFEST_NBYTES or needed > _MAX_MEMORY_NBYTES:
        names = sum(map(len, body["classes"].values()))
        raise OptionError(
            f"the description of the dataset, {MANIFEST_FILE}, takes {len(data):,} bytes and {needed / 1e6:,.0f} MB of "
            f"memory with the names of {names:,} classes, more than a reader accepts: {MAX_MANIFEST_NBYTES:,} bytes "
            f"and {_MAX_MEMORY_NBYTES / 1e6:,.0f} MB. About a million names of classes fit: use shorter or fewer ones."
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


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the text of a JSON object, piece by piece."""
    for text in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(body):
        # Half a surrogate pair (a byte of a file name that is not text) has no UTF-8 and stays a JSON escape.
        yield _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()
    yield b"\n"


def _description_json(d: Description | Manifest) -> dict[str, Any]:
    needed = required(d.fields, d.features)
    return {
        **({"requires": needed} if needed else {}),
        "fields": [field_json(f) for f in d.fields],
        "with_source": d.with_source,
        "classes": {name: list(names) for name, names in d.classes.items()},
        "made_by": dict(d.made_by),
    }


def _parse_description(body: Mapping[str, Any], digest: DigestName) -> Description:
    fields = tuple(parse_field(f) for f in _typed(body, "fields", list))
    if not fields or len({f.name for f in fields}) != len(fields):
        raise ValueError("fields without any, or with one name twice")
    images = {f.name for f in fields if f.kind == "image"}
    if missing := [f for f in fields if f.image is not None and f.image not in images]:
        raise ValueError(f"field {missing[0].name!r} of the image {missing[0].image!r:.80}, which is not there")
    listed = body.get("requires", [])
    features = frozenset(name for name in OF_FILES if isinstance(listed, list) and name in listed)
    if listed != (needed := required(fields, features)):
        raise ValueError(f"requires is {listed!r:.80} with fields that require {needed}")
    classes = {name: _names(names) for name, names in _typed(body, "classes", dict).items()}
    with_source, made_by = _typed(body, "with_source", bool), _typed(body, "made_by", dict)
    return Description(fields, with_source, classes, made_by, digest, features=features)


def _digest_of(body: Mapping[str, Any], name: DigestName = DEFAULT_DIGEST, *, is_small: bool = True) -> str:
    """Return the digest of a JSON object; of a large one piece by piece, which takes less memory and more time."""
    encoder = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    digest = new_text_digest(name)
    for text in (encoder.encode(body),) if is_small else encoder.iterencode(body):
        for at in range(0, len(text), _SMALL_NBYTES):
            digest.update(text[at : at + _SMALL_NBYTES].encode())
    return str(digest)


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
        raise ValueError(f"field {name!r} of unknown kind {kind!r}")
    plain = make_field(name, kind, _typed(values, "codec", str) if "codec" in values else "raw")
    if plain.holds_text and "codec" in values:
        plain = replace(plain, codec=values["codec"])
    if plain.codec is not None and plain.codec not in named_codecs():
        raise ValueError(f"field {name!r} of unknown codec {plain.codec!r}")
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


def _column_digests(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the columns; none if the content digest is of a scheme that may have others."""
    if scheme_of(body["content_digest"]) != JOINABLE or "column_digests" not in body:
        return {}
    columns = _typed(body, "column_digests", dict)
    return {name: _typed(columns, name, str) for name in columns}


def _parts(body: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the parts of a set; none of another dataset."""
    if (PARTS in body.get("requires", [])) != ("parts" in body):
        raise ValueError(
            f"requires is {body.get('requires')!r:.80} in a manifest {'with' if 'parts' in body else 'without'} parts"
        )
    if "parts" not in body:
        return ()
    parts = tuple(
        Part(
            _typed(part, "name", str),
            _natural(part["num_samples"]),
            _natural(part["data_nbytes"]),
            _typed(part, "manifest_digest", str),
        )
        for part in _typed(body, "parts", list)
    )
    # Their names are those of folders: any other could lead out of the set.
    if not parts or [part.name for part in parts] != [part_name(k) for k in range(len(parts))]:
        raise ValueError(f"parts with the names {[part.name for part in parts]!r:.80}")
    num_samples, nbytes = sum(part.num_samples for part in parts), sum(part.data_nbytes for part in parts)
    if min(min(part.num_samples, part.data_nbytes) for part in parts) < 1 or num_samples != body["num_samples"]:
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
