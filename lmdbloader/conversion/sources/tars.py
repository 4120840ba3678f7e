"""Tar shards as webdataset writes them: the members of one key make a sample, and are read in place."""

from __future__ import annotations

import glob
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from lmdbloader.base.files import open_regular
from lmdbloader.conversion.sources import remote
from lmdbloader.conversion.sources.folders import find_images
from lmdbloader.conversion.sources.listing import Listing, Location, Names, Sources, Spans, as_text, below
from lmdbloader.errors import SourceError, SourceNotFoundError
from lmdbloader.format.layout import Kind
from lmdbloader.images.decode import IMAGE_SUFFIXES

#: Extensions of members that become fields in addition to the image: the name and the kind of the field.
ATTACHED: dict[str, tuple[str, Kind]] = {"cls": ("label", "int"), "json": ("json", "json"), "txt": ("text", "text")}

_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# webdataset's rule: the key ends at the first dot of the base name, and the rest is the extension.
_KEY = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*)\}")
_PACKED = re.compile(rb"\.(tgz|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE)

_COMPRESSED = (
    (b"\x1f\x8b", "gzip -d"),
    (b"BZh", "bzip2 -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
)
_BLOCK_NBYTES = 512
# The most for descriptions before a member: names, times, access lists. Linux has no path of more than 4 KiB.
_MOST_EXTRA_NBYTES = 2**20
_MOST_NAME_NBYTES = 2**12
_REGULAR, _FOLDER = b"0\0007", b"5"
# Links, folders, devices and FIFOs have no content, whatever size their header gives.
_WITHOUT_CONTENT = b"123456"
_LONG_NAME, _LONG_LINK, _SPARSE = b"L", b"K", b"S"
_PAX, _PAX_OF_ALL = b"xX", b"g"
# The byte of a sparse file's header, and of each later block of its map, that is set if more of the map follows.
_GOES_ON_AT, _MORE_GOES_ON_AT = 482, 504
_RECORD = re.compile(rb"(\d{1,7}) ")
# Octal digits up to a NUL or a blank; a field without any is empty.
_OCTAL = re.compile(rb" *([0-7]+) *(?:\0.*)?|[ \0]*", re.DOTALL)


def is_tar_name(name: str) -> bool:
    """Return whether a path names a tar, compressed or not, or several tars.

    >>> is_tar_name("a.tar"), is_tar_name("train-{000..012}.tar"), is_tar_name("photos")
    (True, True, False)
    """
    return name.lower().endswith(".tar") or _PACKED.search(os.fsencode(name)) is not None


def holds(place: Location) -> bool:
    """Return whether a place is a tar or a pattern of tars, or a folder with tars in it and no image."""
    if is_tar_name(os.fspath(place)):
        return not (isinstance(place, Path) and place.is_dir())
    if isinstance(place, str) or not place.is_dir():
        return False
    return any(is_tar_name(p.name) for p in place.iterdir()) and not len(find_images(place).names)


def list_samples(src: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the samples in tar shards, in the order of their members, see `layouts.Source`.

    `src` is a tar, a folder of tars (in byte order of their names), or a pattern: "train-{000..012}.tar" in the order
    written, "train-*.tar" in byte order. All of them can be URLs.
    """
    paths, ignored = _expand(src)
    names = _relative(paths)
    shards = _Shards()
    times: list[int | None] = [0]
    for number, (path, name) in enumerate(zip(paths, names, strict=True)):
        with _open(path, times) as file:
            shards.add(file, path, name if len(paths) > 1 else b"", number)
    if not len(shards.start):
        raise SourceError(
            f"{src}: no images in it. Expected members like key.jpg or key.png, and optionally key.cls, key.json and "
            f"key.txt{shards.explain()}."
        )
    which = np.array(shards.which, np.int32)
    attached, fields = {}, []
    for extension, (field_name, kind) in ATTACHED.items():
        start, lengths = (np.array(column, np.int64) for column in shards.attached[extension])
        if (start >= 0).any():
            attached[field_name] = Spans(tuple(paths), which, start, lengths)
            fields.append((field_name, kind))
    sizes = np.array(shards.nbytes, np.int64)
    sources = Sources(
        Names.join(b"", shards.names()),
        sizes + sum(spans.nbytes for spans in attached.values()),
        spans=Spans(tuple(paths), which, np.array(shards.start, np.int64), sizes),
        attached=attached,
    )
    return Listing(
        "tar",
        sources,
        fields=tuple(fields),
        ignored=(*ignored, *shards.ignored, *shards.unknown()),
        changed_ns=remote.newest(times),
    )


def _empty() -> dict[str, tuple[array[int], array[int]]]:
    return {extension: (array("q"), array("q")) for extension in ATTACHED}


@dataclass(slots=True)
class _Shards:
    """The samples of the tars that were read so far."""

    text: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("q"))
    which: array[int] = field(default_factory=lambda: array("i"))
    start: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    attached: dict[str, tuple[array[int], array[int]]] = field(default_factory=_empty)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    extensions: dict[str, int] = field(default_factory=dict)

    def add(self, file: IO[bytes], path: bytes, prefix: bytes, number: int) -> None:
        """Read one tar's headers."""
        where = as_text(path)
        start = prefix + b"/" if prefix else b""
        hashes = array("q")
        key, members = "", dict[str, Member]()
        for member in list_members(file, where):
            name = _checked(member, where)
            parts = _KEY.fullmatch(name)
            if parts is None or member.kind != "file":
                if member.kind != "folder":
                    reason = "no key and extension in its name" if member.kind == "file" else "not a regular file"
                    self.ignored.append((as_text(start) + name, reason))
                continue
            if parts[1] != key:
                self._finish(start, key, members, number)
                key, members = parts[1], {}
                hashes.append(hash(key))
            extension = parts[2].lower()
            if extension in members:
                raise SourceError(f"{where}: holds {name} twice. It is not clear which one belongs to the sample.")
            members[extension] = member
        self._finish(start, key, members, number)
        # A set of all keys would take more than everything else together.
        values, counts = np.unique(np.array(hashes, np.int64), return_counts=True)
        if (counts > 1).any():
            _refuse_scattered(file, where, set(values[counts > 1].tolist()))

    def _finish(self, start: bytes, key: str, members: dict[str, Member], number: int) -> None:
        images = [extension for extension in members if extension in _IMAGES]
        for extension in members:
            if extension not in _IMAGES and extension not in ATTACHED:
                self.extensions[extension] = self.extensions.get(extension, 0) + 1
        if not images:
            if members.keys() & ATTACHED.keys():
                self.ignored.append((as_text(start) + key, "a sample without an image"))
            return
        image = members[images[0]]
        name = start + os.fsencode(image.name.removeprefix("./"))
        if len(images) > 1:
            raise SourceError(
                f"{as_text(name)}: its sample has {len(images)} images ({', '.join(images)}); expected one"
            )
        self.text += name
        self.ends.append(len(self.text))
        self.which.append(number)
        self.start.append(image.offset_data)
        self.nbytes.append(image.size)
        for extension, (starts, sizes) in self.attached.items():
            member = members.get(extension)
            starts.append(-1 if member is None else member.offset_data)
            sizes.append(0 if member is None else member.size)

    def names(self) -> Iterator[bytes]:
        at = 0
        for end in self.ends:
            yield bytes(self.text[at:end])
            at = end

    def unknown(self) -> list[tuple[str, str]]:
        return [
            (f"*.{extension}", f"{count} members with an unsupported extension")
            for extension, count in sorted(self.extensions.items())
        ]

    def explain(self) -> str:
        found = sorted(self.extensions, key=lambda extension: -self.extensions[extension])[:3]
        return f"; found key.{', key.'.join(found)}" if found else ""


def _refuse_scattered(file: IO[bytes], where: str, suspects: set[int]) -> None:
    """Raise SourceError if the members of a key with one of some hashes do not follow each other."""
    finished: set[str] = set()
    key = ""
    file.seek(0)
    for member in list_members(file, where):
        parts = _KEY.fullmatch(_checked(member, where))
        if parts is None or member.kind != "file" or parts[1] == key:
            continue
        key = parts[1]
        if key in finished:
            raise SourceError(
                f"{where}: {parts[0]}: the members of {key} are not next to each other. Sort the names when packing "
                "(tar --sort=name)."
            )
        if hash(key) in suspects:
            finished.add(key)


def _checked(member: Member, where: str) -> str:
    """Return a member's path without "./" before it."""
    name = member.name
    while name.startswith("./"):
        name = name[2:]
    if name.startswith("/") or ".." in name.split("/"):
        raise SourceError(
            f"{where}: its member {name!r} is outside of the archive. The tar is malicious, or was made by mistake."
        )
    return name


@contextmanager
def _open(path: bytes, times: list[int | None]) -> Iterator[IO[bytes]]:
    text = os.fsdecode(path)
    if b"://" in path:
        filesystem, place = remote.open_place(text)
        with remote.explain(text):
            times.append(remote.changed_ns(filesystem.info(place)))
            opened: Any = filesystem.open(place, "rb")
            with opened:
                yield opened
        return
    try:
        with open(open_regular(path), "rb") as file:
            yield file
    except OSError as error:
        raise SourceError(f"{as_text(path)}: cannot be read ({error.strerror})") from error


def _relative(paths: Sequence[bytes]) -> list[bytes]:
    """Return the paths below the folder that all have in common."""
    folders = [path.split(b"/")[:-1] for path in paths]
    common = 0
    # os.path.commonpath would take "s3://" for "s3:/".
    while all(len(folder) > common and folder[common] == folders[0][common] for folder in folders):
        common += 1
    return [b"/".join(path.split(b"/")[common:]) for path in paths]


def _expand(src: Location) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the paths of the tars, and (name, reason) of those that are left out."""
    if isinstance(src, str):
        return _expand_url(src), []
    pattern = os.fspath(src)
    if src.is_dir():
        with os.scandir(os.fsencode(src)) as entries:
            names = sorted(entry.name for entry in entries if not entry.is_dir())
        packed = [name for name in names if _PACKED.search(name)]
        tars = [os.path.join(os.fsencode(src), name) for name in names if name.lower().endswith(b".tar")]
        ignored = [(as_text(name), "a compressed tar: decompress it first") for name in packed]
        if not tars:
            raise SourceError(f"{src}: no tars in it{': they are compressed, decompress them first' * bool(packed)}")
        return tars, ignored
    if src.exists():
        return [os.fsencode(src)], []
    found: list[str] = []
    for path in _braces(pattern):
        matches = sorted(glob.glob(path), key=os.fsencode) if glob.has_magic(path) else [path]
        if not matches or not Path(matches[0]).exists():
            raise SourceNotFoundError(f"{path}: there is no such tar" + f" ({pattern} names it)" * (path != pattern))
        found += matches
    return [os.fsencode(path) for path in found], []


def _expand_url(src: str) -> list[bytes]:
    filesystem, root = remote.open_place(src)
    with remote.explain(src):
        filesystem.invalidate_cache()
        if not glob.has_magic(root) and "{" not in root and not is_tar_name(root):
            names = sorted(
                name
                for name, info in remote.list_folder(filesystem, root, b"", src)
                if info["type"] == "file" and name.lower().endswith(b".tar")
            )
            if not names:
                raise SourceError(f"{src}: no tars in it")
            return [below(os.fsencode(src), name) for name in names]
        if not glob.has_magic(root):
            return [os.fsencode(url) for url in _braces(src)]
        found: list[bytes] = []
        for pattern in _braces(root):
            matches = sorted(filesystem.glob(pattern))
            if not matches:
                raise SourceNotFoundError(f"{src}: there is no such tar (looked for {pattern})")
            found += [os.fsencode(filesystem.unstrip_protocol(path)) for path in matches]
        return found


def _braces(pattern: str) -> list[str]:
    """Return the paths of a pattern with braces, as a shell expands it.

    >>> _braces("a-{08..10}.tar"), _braces("{x,y}-{0..1}")
    (['a-08.tar', 'a-09.tar', 'a-10.tar'], ['x-0', 'x-1', 'y-0', 'y-1'])
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    choices = found[1].split(",")
    if span:
        first, last = int(span[1]), int(span[2])
        choices = [f"{i:0{len(span[1])}}" for i in range(first, last + 1)]
    rests = _braces(pattern[found.end() :])
    return [pattern[: found.start()] + choice + rest for choice in choices for rest in rests]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar.

    Attributes:
        name: Its path in the tar; bytes that are not UTF-8 are surrogates, as in every path of Python's.
        size: Of its content in the tar, in bytes.
        offset_data: The first byte of its content.
        kind: "file" if the tar has the whole content (of a sparse file it has only parts), else "folder" or "other".
    """

    name: str
    size: int
    offset_data: int
    kind: Literal["file", "folder", "other"]


def list_members(file: IO[bytes], where: str) -> Iterator[Member]:
    """Yield the members of a tar: V7, ustar, GNU or pax. Memory is bounded for every tar.

    Raises:
        SourceError: The file, which messages call `where`, is not a tar, or is damaged or cut short.
    """
    start = file.read(6)
    for signature, command in _COMPRESSED:
        if start.startswith(signature):
            raise SourceError(f"{where}: is compressed, so its members cannot be read one by one. Use {command}.")
    end = 0
    try:
        nbytes = file.seek(0, os.SEEK_END)
        if nbytes < _BLOCK_NBYTES:
            raise _Damage(f"it has {nbytes} bytes")
        while (found := _next_member(file, end, nbytes)) is not None:
            member, end = found
            yield member
    except _Damage as error:
        raise SourceError(f"{where}: is not a tar, or is damaged or cut short ({error})") from error
    _check_end(file, end, where)


def _check_end(file: IO[bytes], end: int, where: str) -> None:
    """Raise SourceError unless a tar ends at a byte, with nothing after it."""
    file.seek(end)
    rest = file.read(_BLOCK_NBYTES)
    if len(rest) < _BLOCK_NBYTES:
        raise SourceError(f"{where}: ends without the mark at the end of a tar; it was cut short at byte {end}")
    while rest:
        if rest.strip(b"\0"):
            raise SourceError(
                f"{where}: there is something other than a member at byte {end}: the tar is damaged there, or two tars "
                "were joined. The rest would be lost."
            )
        rest = file.read(64 * 1024)


class _Damage(Exception):
    """The bytes are not those of a tar."""


@dataclass(slots=True)
class _Extra:
    """The description of a member in headers before its own; None for parts that they do not give."""

    name: bytes | None = None
    size: int | None = None
    is_sparse: bool = False


def _next_member(file: IO[bytes], at: int, nbytes: int) -> tuple[Member, int] | None:
    """Return the member whose headers start at a byte, and the first byte after it; None without a header."""
    extra = _Extra()
    begun = at
    while True:
        file.seek(at)
        header = file.read(_BLOCK_NBYTES)
        if not _is_header(header):
            if begun == 0 and header.strip(b"\0"):
                raise _Damage(f"at byte {at} there is no header")
            if begun != at:
                raise _Damage(f"at byte {at} the member described at byte {begun} is missing")
            return None
        kind, size = header[156:157], _number(header[124:136], at)
        content = at + _BLOCK_NBYTES
        if kind not in _LONG_NAME + _LONG_LINK + _PAX + _PAX_OF_ALL:
            break
        at = content + _whole_blocks(size)
        if size > _MOST_EXTRA_NBYTES or at > nbytes:
            raise _Damage(f"at byte {content - _BLOCK_NBYTES} a member is described in {size} bytes")
        if kind != _LONG_LINK:
            _read_extra(file.read(at - content), size, kind, content, extra)
    if kind == _SPARSE:
        content = _behind_sparse_map(file, header, content)
    size = size if extra.size is None else extra.size
    if kind in _WITHOUT_CONTENT:
        size = 0
    end = content + _whole_blocks(size)
    if end > nbytes:
        raise _Damage(f"the member at byte {at} has {size} bytes, and there are {nbytes - content}")
    return _member(header, kind, size, content, extra), end


def _member(header: bytes, kind: bytes, size: int, content: int, extra: _Extra) -> Member:
    name = header[:100].partition(b"\0")[0]
    # GNU has times in the place where POSIX has the start of a long name.
    if header[257:265] != b"ustar  \0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    is_folder = kind == _FOLDER or (kind == b"\0" and name.endswith(b"/"))
    name = name if extra.name is None else extra.name
    if len(name) > _MOST_NAME_NBYTES:
        raise _Damage(f"a member has a name of {len(name)} bytes: {name[:40]!r} ...")
    plain = kind in _REGULAR and not extra.is_sparse and not is_folder
    if is_folder:
        name = name.rstrip(b"/")
    return Member(os.fsdecode(name), size, content, "folder" if is_folder else "file" if plain else "other")


def _is_header(block: bytes) -> bool:
    """Return whether a block is a header: by its checksum, which counts its own eight bytes as blanks."""
    if len(block) < _BLOCK_NBYTES:
        return False
    stored = _OCTAL.fullmatch(block[148:156])
    if stored is None or not stored[1]:
        return False
    rest = block[:148] + block[156:]
    total, expected = sum(rest) + 8 * ord(" "), int(stored[1], 8)
    # Some old programs have added signed bytes.
    return expected == total or expected == total - 256 * sum(byte > 127 for byte in rest)


def _number(digits: bytes, at: int) -> int:
    """Return a number of a header: octal digits, or base 256 after a first bit that is set."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    found = _OCTAL.fullmatch(digits)
    if found is None:
        raise _Damage(f"at byte {at} the size {digits!r} is not a number")
    return int(found[1] or b"0", 8)


def _whole_blocks(nbytes: int) -> int:
    return -(-nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES


def _read_extra(blocks: bytes, size: int, kind: bytes, at: int, extra: _Extra) -> None:
    """Add the description in a header before a member's own: the first `size` bytes of some blocks."""
    if kind == _LONG_NAME:
        if blocks[size:].strip(b"\0"):
            raise _Damage(f"at byte {at} a name is longer than its {size} bytes")
        _name(blocks[:size].partition(b"\0")[0], at, extra)
        return
    for key, value in _pax_records(blocks[:size], at):
        if kind == _PAX_OF_ALL and (key in (b"path", b"size") or key.startswith(b"GNU.sparse.")):
            raise _Damage(f"at byte {at} a pax header gives all members the same {key.decode()}")
        if key in (b"path", b"GNU.sparse.name"):
            _name(value, at, extra)
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise _Damage(f"at byte {at} the size {value[:40]!r} is not a number")
            extra.size = int(value)
        extra.is_sparse |= key.startswith(b"GNU.sparse.")


def _name(name: bytes, at: int, extra: _Extra) -> None:
    if extra.name is not None and extra.name != name:
        raise _Damage(f"at byte {at} a member is given two names: {extra.name[:40]!r} and {name[:40]!r}")
    extra.name = name


def _pax_records(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a pax header, whose lines are "length key=value"."""
    start = 0
    while start < len(data) and data[start]:
        found = _RECORD.match(data, start)
        end = start + int(found[1]) if found else start
        if found is None or end > len(data) or end <= found.end() or data[end - 1 : end] != b"\n":
            raise _Damage(f"at byte {at + start} a pax header is damaged")
        key, equals, value = data[found.end() : end - 1].partition(b"=")
        if not equals:
            raise _Damage(f"at byte {at + start} a pax header is damaged")
        yield key, value
        start = end


def _behind_sparse_map(file: IO[bytes], header: bytes, content: int) -> int:
    """Return the first byte of the content of a sparse file in GNU's old format, which follows the rest of its map."""
    goes_on = header[_GOES_ON_AT]
    while goes_on:
        file.seek(content)
        block = file.read(_BLOCK_NBYTES)
        if len(block) < _BLOCK_NBYTES:
            raise _Damage(f"a sparse file's map does not end, at byte {content}")
        goes_on = block[_MORE_GOES_ON_AT]
        content += _BLOCK_NBYTES
    return content
