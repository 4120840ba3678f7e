"""Tar shards as webdataset writes them: members of one key make a sample, and are read from where they lie."""

from __future__ import annotations

import glob
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from lmdbloader.base.files import open_regular
from lmdbloader.conversion.sources import remote
from lmdbloader.conversion.sources.listing import Listing, Names, Sources, Spans, as_text, below
from lmdbloader.conversion.sources.remote import Location
from lmdbloader.conversion.sources.tarmembers import Member, list_members
from lmdbloader.errors import SourceError
from lmdbloader.format.layout import Kind
from lmdbloader.images.decode import IMAGE_SUFFIXES

#: The extensions of members that become fields beside the image: the field, and what it holds.
ATTACHED: dict[str, tuple[str, Kind]] = {"cls": ("label", "int"), "json": ("json", "json"), "txt": ("text", "text")}

_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# webdataset's rule: the key ends at the first dot of the base name, and the rest is the extension.
_KEY = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*)\}")
_PACKED = re.compile(rb"\.(tgz|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE)


def is_tar_name(name: str) -> bool:
    """Return whether a path is that of a tar, compressed or not, or stands for several of them.

    >>> is_tar_name("a.tar"), is_tar_name("train-{000..012}.tar"), is_tar_name("photos")
    (True, True, False)
    """
    return name.lower().endswith(".tar") or _PACKED.search(os.fsencode(name)) is not None


def list_tars(src: Location) -> Listing:
    """Return the samples in tar shards, in the order in which they lie.

    Args:
        src: A tar, a folder of tars (in byte order of their names), or a pattern: "train-{000..012}.tar" in the order
            written, "train-*.tar" in byte order; each also behind a URL.

    Raises:
        SourceError: A tar is missing, compressed, damaged, cut short, or breaks webdataset's rules.
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
            f"{src}: no images in it. Expected members like key.jpg or key.png, with key.cls, key.json and key.txt "
            f"beside them{shards.explain()}."
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
    """What the tars read so far hold."""

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
                raise SourceError(f"{where}: holds {name} twice. Which one is meant is not clear.")
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
            (f"*.{extension}", f"{count} members with an extension that is not read")
            for extension, count in sorted(self.extensions.items())
        ]

    def explain(self) -> str:
        found = sorted(self.extensions, key=lambda extension: -self.extensions[extension])[:3]
        return f"; found key.{', key.'.join(found)}" if found else ""


def _refuse_scattered(file: IO[bytes], where: str, suspects: set[int]) -> None:
    """Look again for a key whose members do not follow each other, among the keys with some hashes."""
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
                f"{where}: {parts[0]}: the members of {key} do not follow each other. A sample's files must lie side "
                "by side: sort the names when packing (tar --sort=name)."
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
            f"{where}: its member {name!r} leads out of the archive. Such a tar is made to do harm, or by mistake."
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
    """Return the paths from the folder that all have in common."""
    folders = [path.split(b"/")[:-1] for path in paths]
    common = 0
    # os.path.commonpath would take "s3://" for "s3:/".
    while all(len(folder) > common and folder[common] == folders[0][common] for folder in folders):
        common += 1
    return [b"/".join(path.split(b"/")[common:]) for path in paths]


def _expand(src: Location) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the tars that are meant, and (name, reason) of those that are left out."""
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
            raise SourceError(f"{path}: there is no such tar" + f" (wanted by {pattern})" * (path != pattern))
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
                raise SourceError(f"{src}: there is no such tar (looked for {pattern})")
            found += [os.fsencode(filesystem.unstrip_protocol(path)) for path in matches]
        return found


def _braces(pattern: str) -> list[str]:
    """Return what a pattern with braces stands for, as a shell would.

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
