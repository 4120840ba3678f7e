"""Tar shards as webdataset writes them: the members of one key make a sample, and are read in place."""

from __future__ import annotations

import glob
import os
import re
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.files import open_regular
from lmdbloader.conversion.sources import remote
from lmdbloader.conversion.sources.folders import holds_images
from lmdbloader.conversion.sources.listing import (
    Listing,
    Location,
    Names,
    Others,
    Sources,
    Spans,
    as_text,
    below,
    is_litter,
    is_url,
    litter_in,
)
from lmdbloader.errors import SourceError, SourceNotFoundError
from lmdbloader.format.layout import Kind
from lmdbloader.images.decode import IMAGE_SUFFIXES

#: Extensions of members that become fields in addition to the image: the name and the kind of the field.
ATTACHED: dict[str, tuple[str, Kind]] = {"cls": ("label", "int"), "json": ("json", "json"), "txt": ("text", "text")}

_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# webdataset's rule: the key ends at the first dot of the base name, and the rest is the extension.
_KEY = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)", re.DOTALL)
_TIME = re.compile(r"[0-7]{11}/")
# As in a shell, other braces are a part of the name.
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
# Tars at URLs that are listed at the same time, and what is read of one at once. Smaller blocks would pass over
# more bytes of large members, and take a request for every few small ones.
_MOST_AT_ONCE = 16
_BLOCK_NBYTES = 2**20
# The most bytes that the headers of one member may have: names, times, access lists.
_MOST_DESCRIPTION_NBYTES = 2**20
# `tarfile` looks for a record with an expression whose time grows with the square of the digits in a row.
_LONG_NUMBER = re.compile(rb"\d{300}")
_NO_PARTS = "its server does not send parts of files: copy it to a disk first"
_PACKED = re.compile(rb"\.(tgz|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE)


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
    return any(is_tar_name(p.name) for p in place.iterdir()) and not holds_images(place, rasters=False)


def list_samples(src: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the samples in tar shards, in the order of their members, see `layouts.Source`.

    `src` is a tar, a folder of tars (in byte order of their names), or a pattern: "train-{000..012}.tar" in the order
    written, "train-*.tar" in byte order. All of them can be URLs.
    """
    paths, ignored = _expand(src)
    tars = _list_tars(paths, _relative(paths) if len(paths) > 1 else [b""])
    counts = [len(tar.ends) for tar in tars]
    extensions = sum((tar.extensions for tar in tars), Counter[str]())
    if not any(counts):
        found = ", ".join(f"key.{extension}" for extension, _ in extensions.most_common(3))
        raise SourceError(
            f"{src}: no images in it{found and f', but {found}'}. Expected members like key.jpg or key.png, and "
            "optionally key.cls, key.json and key.txt."
        )
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(np.diff(tar.ends, prepend=0) for tar in tars)]))
    places = np.concatenate([np.array(tar.places, np.int64) for tar in tars]).reshape(-1, 1 + len(ATTACHED), 2)
    which = np.repeat(np.arange(len(tars), dtype=np.int32), counts)
    image, *others = (Spans(tuple(paths), which, *places[:, i].T.copy()) for i in range(1 + len(ATTACHED)))
    attached = {
        ATTACHED[extension]: spans
        for extension, spans in zip(ATTACHED, others, strict=True)
        if (spans.start >= 0).any()
    }
    sources = Sources(
        Names(b"", b"".join(tar.names for tar in tars), ends),
        places[:, :, 1].sum(1),
        spans=image,
        attached={name: spans for (name, _), spans in attached.items()},
    )
    unknown = [(f"*.{name}", f"{count} members with an unsupported extension") for name, count in extensions.items()]
    return Listing(
        "tar",
        sources,
        fields=tuple(attached),
        ignored=(*ignored, *(left for tar in tars for left in tar.ignored), *sorted(unknown)),
        changed_ns=remote.newest([0, *(tar.changed_ns for tar in tars)]),
    )


@dataclass(slots=True)
class _Tar:
    """The samples of one tar.

    Attributes:
        names: Of the images, joined.
        ends: Where each name ends.
        places: The start and the length of the image and of each of ATTACHED, sample by sample; -1 and 0 if missing.
        ignored: (name, reason) of members that are left out.
        extensions: The number of members of each unknown extension.
        changed_ns: As in `Listing`.
    """

    names: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))
    ignored: list[tuple[str, str]] = field(default_factory=list)
    extensions: Counter[str] = field(default_factory=Counter)
    changed_ns: int | None = 0

    def add_sample(self, start: str, key: str, members: dict[str, tarfile.TarInfo]) -> None:
        """Add the members of one key."""
        images = [extension for extension in members if extension in _IMAGES]
        self.extensions.update(members.keys() - _IMAGES - ATTACHED.keys())
        if not images:
            if lost := next((m for e, m in members.items() if e.rpartition(".")[2] in _IMAGES), None):
                raise SourceError(
                    f"the image {start}{lost.name} belongs to no sample: a key ends at the first dot of the name, as "
                    "in webdataset. Pack the tar again, with other characters than dots in the keys."
                )
            if members.keys() & ATTACHED.keys():
                self.ignored.append((as_text(os.fsencode(start + key)), "a sample without an image"))
            return
        image = members[images[0]]
        if len(images) > 1:
            raise SourceError(f"{image.name}: its sample has {len(images)} images ({', '.join(images)}); expected one")
        self.names += os.fsencode(start + image.name.removeprefix("./"))
        self.ends.append(len(self.names))
        for member in (image, *map(members.get, ATTACHED)):
            if member is not None and (member.issparse() or not member.isfile()):
                raise SourceError(
                    f"{member.name}: is packed as a link or a sparse file. Pack the files themselves: tar "
                    "--dereference --hard-dereference, without --sparse."
                )
            self.places.extend((-1, 0) if member is None else (member.offset_data, member.size))


def _list_tar(file: Any, prefix: str) -> _Tar:
    """Return the samples of one tar, from its headers.

    Raises:
        SourceError: It is damaged, or its members make no samples.
    """
    found, others = _Tar(), Others()
    litter, finished = set[bytes](), set[int]()
    key, members = "", dict[str, tarfile.TarInfo]()
    for member in _members(file):
        name = member.name.removeprefix("./")
        if name.startswith("/") or ".." in name.split("/"):
            raise SourceError(f"its member {name!r} is outside of the archive")
        if (left := litter_in(os.fsencode(name))) is not None:
            litter.add(left)
            continue
        parts = _KEY.fullmatch(name)
        if member.isdir() or parts is None or not (member.isfile() or member.issym() or member.islnk()):
            if not member.isdir():
                reason = "no key and extension in its name" if member.isfile() else "not a regular file"
                found.ignored.append((as_text(os.fsencode(prefix + name)), reason))
            continue
        if parts[1] != key:
            found.add_sample(prefix, key, members)
            # A key's hash takes half of the memory that the key takes.
            finished.add(hash(key))
            key, members = parts[1], {}
            if hash(key) in finished:
                raise SourceError(
                    f"{name}: the members of {key} are not next to each other. Sort the names when packing (tar "
                    "--sort=name)."
                )
        extension = parts[2].lower()
        if extension in members:
            raise SourceError(f"holds {name} twice. It is not clear which one belongs to the sample.")
        members[extension] = member
    found.add_sample(prefix, key, members)
    for left in sorted(litter):
        others.add_litter(os.fsencode(prefix) + left)
    found.ignored += others.ignored()
    return found


class _Headers:
    """A tar as `tarfile` reads it: headers only, of a limited length, because `tarfile` trusts every size in them.

    Attributes:
        left: Bytes that may be read for the next member.
    """

    def __init__(self, file: Any) -> None:
        self._file, self.left = file, _MOST_DESCRIPTION_NBYTES
        self.seek, self.tell = file.seek, file.tell

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        self.left -= nbytes
        if nbytes < 0 or self.left < 0:
            raise tarfile.ReadError("a member's description is too long")
        try:
            data = bytes(self._file.read(nbytes))
        except ValueError as error:  # of fsspec, and of streams
            raise SourceError(_NO_PARTS) from error
        if nbytes > tarfile.BLOCKSIZE and _LONG_NUMBER.search(data):
            raise tarfile.ReadError("a member's description has a number of 300 digits")
        return data


def _members(file: Any) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar. `tarfile` takes damage after the first member for the end: nothing may follow it.

    Raises:
        SourceError: It is not a tar, or is damaged or cut short.
    """
    nbytes, end, headers = file.seek(0, os.SEEK_END), 0, _Headers(file)
    file.seek(0)
    try:
        with tarfile.open(fileobj=headers, mode="r:") as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                tar.members = []  # it would hold all of them
                is_longer = member.size > nbytes and member.isfile() and not member.issparse()
                if not end < tar.offset <= nbytes or member.size < 0 or is_longer:
                    raise tarfile.ReadError(f"the member at byte {end} is damaged, or cut short")
                end, headers.left = tar.offset, _MOST_DESCRIPTION_NBYTES
                if _TIME.match(member.name):
                    # GNU's incremental tars have a time where POSIX has the start of a long name.
                    file.seek(member.offset_data - tarfile.BLOCKSIZE)
                    header = file.read(tarfile.BLOCKSIZE)
                    if header[257:265] == tarfile.GNU_MAGIC and header[345:356] == os.fsencode(member.name[:11]):
                        member.name = member.name[12:]
                yield member
            end = tar.offset
    except SourceError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise SourceError("is not a tar, or is compressed, damaged or cut short") from error
    file.seek(end)
    rest = file.read(tarfile.BLOCKSIZE)
    if len(rest) < tarfile.BLOCKSIZE:
        raise SourceError(f"is cut short: it ends at byte {end} without the mark at the end of a tar")
    while rest:
        if rest.strip(b"\0"):
            raise SourceError(f"is damaged at byte {end}, or two tars were joined there: the rest would be lost")
        rest = file.read(64 * 1024)


def _list_tars(paths: Sequence[bytes], names: Sequence[bytes]) -> list[_Tar]:
    """Return the samples of tars in order; several at URLs are read at once."""
    if not is_url(paths[0]):
        return list(map(_list_local, paths, names))
    filesystem, _ = remote.open_place(os.fsdecode(paths[0]))
    with ThreadPoolExecutor(_MOST_AT_ONCE if remote.takes_many(filesystem) else 1) as readers:
        return list(readers.map(_list_remote, paths, names))


def _list_local(path: bytes, name: bytes) -> _Tar:
    try:
        with open(open_regular(path), "rb") as file:
            return _list_tar(file, _prefix(name))
    except OSError as error:
        raise SourceError(f"{as_text(path)}: cannot be read ({error.strerror})") from error
    except SourceError as error:
        raise SourceError(f"{as_text(path)}: {error}") from error


def _list_remote(path: bytes, name: bytes) -> _Tar:
    url = os.fsdecode(path)
    filesystem, place = remote.open_place(url)
    with remote.explain(url):
        info = filesystem.info(place)
        if info["size"] is None:
            raise SourceError(f"{url}: the server gives no size for it. Copy it to a disk first.")
        try:
            with filesystem.open(place, "rb", block_size=_BLOCK_NBYTES) as file:
                found = _list_tar(file, _prefix(name))
        except SourceError as error:
            raise SourceError(f"{url}: {error}") from error
        except ValueError as error:
            raise SourceError(f"{url}: {_NO_PARTS}") from error
    found.changed_ns = remote.changed_ns(info)
    return found


def _prefix(name: bytes) -> str:
    return os.fsdecode(name + b"/") if name else ""


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
        return _expand_url(src)
    pattern = os.fspath(src)
    if src.is_dir():
        with os.scandir(os.fsencode(src)) as entries:
            tars, ignored = _tars_among((entry.name, entry.is_dir()) for entry in entries)
        if not tars:
            packed = any(_PACKED.search(os.fsencode(name)) for name, _ in ignored)
            raise SourceError(f"{src}: no tars in it{': they are compressed, decompress them first' * packed}")
        return [os.path.join(os.fsencode(src), name) for name in tars], ignored
    if src.exists():
        return [os.fsencode(src)], []
    found: list[str] = []
    for path in _braces(pattern):
        is_pattern = glob.has_magic(path) and not os.path.exists(path)
        matches = sorted(glob.glob(path), key=os.fsencode) if is_pattern else [path]
        if not matches or not os.path.exists(matches[0]):
            raise SourceNotFoundError(f"{path}: there is no such tar" + f" ({pattern} names it)" * (path != pattern))
        found += matches
    return [os.fsencode(path) for path in found], []


def _tars_among(entries: Iterable[tuple[bytes, bool]]) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the tars among (name, whether it is a folder) of what is in a folder, and (name, reason) of the others."""
    tars, ignored, others = [], list[tuple[str, str]](), Others()
    for name, is_folder in sorted(entries):
        path = name + b"/" * is_folder
        if is_litter(path):
            others.add_litter(path)
        elif is_folder:
            ignored.append((f"{as_text(name)}/", "a folder, which is not searched for tars"))
        elif name.lower().endswith(b".tar"):
            tars.append(name)
        elif _PACKED.search(name):
            ignored.append((as_text(name), "a compressed tar: decompress it first"))
        else:
            others.add(name)
    return tars, [*ignored, *others.ignored()]


def _expand_url(src: str) -> tuple[list[bytes], list[tuple[str, str]]]:
    filesystem, root = remote.open_place(src)
    with remote.explain(src):
        filesystem.invalidate_cache()
        # What is there is meant by its name, also if that reads like a pattern.
        is_pattern = (glob.has_magic(root) or _BRACES.search(root) is not None) and not filesystem.exists(root)
        if not is_pattern and is_tar_name(root):
            return [os.fsencode(src)], []
        if not is_pattern:
            listed = remote.list_folder(filesystem, root, b"", src)
            names, ignored = _tars_among((name, info["type"] == "directory") for name, info in listed)
            if not names:
                raise SourceError(f"{src}: no tars in it")
            return [below(os.fsencode(src), name) for name in names], ignored
        if not glob.has_magic(root):
            return [os.fsencode(url) for url in _braces(src)], []
        found: list[bytes] = []
        for pattern in _braces(root):
            matches = [pattern] if filesystem.exists(pattern) else sorted(filesystem.glob(pattern))
            if not matches:
                raise SourceNotFoundError(f"{src}: there is no such tar (looked for {pattern})")
            found += [os.fsencode(filesystem.unstrip_protocol(path)) for path in matches]
        return found, []


def _braces(pattern: str) -> list[str]:
    """Return the paths of a pattern with braces, as a shell expands it.

    >>> _braces("a-{08..10}.tar"), _braces("{x,y}-{1..0}"), _braces("a{1}.tar")
    (['a-08.tar', 'a-09.tar', 'a-10.tar'], ['x-1', 'x-0', 'y-1', 'y-0'], ['a{1}.tar'])
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    if found[3] is not None:
        choices = found[3].split(",")
    else:
        first, last = int(found[1]), int(found[2])
        width = max(map(len, found.group(1, 2))) if any(re.match("0.", end) for end in found.group(1, 2)) else 0
        step = 1 if first <= last else -1
        choices = [f"{i:0{width}}" for i in range(first, last + step, step)]
    rests = _braces(pattern[found.end() :])
    return [pattern[: found.start()] + choice + rest for choice in choices for rest in rests]
