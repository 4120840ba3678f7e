"""Tar shards as webdataset writes them: the members of one key make a sample, and are read in place."""

from __future__ import annotations

import glob
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from threading import Event

import numpy as np

from lmdbloader.base.files import open_regular
from lmdbloader.conversion.sources import remote
from lmdbloader.conversion.sources.folders import find_images
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
from lmdbloader.conversion.sources.tar_members import Member, Readable, list_members
from lmdbloader.errors import SourceError, SourceNotFoundError
from lmdbloader.format.layout import Kind
from lmdbloader.images.decode import IMAGE_SUFFIXES

#: Extensions of members that become fields in addition to the image: the name and the kind of the field.
ATTACHED: dict[str, tuple[str, Kind]] = {"cls": ("label", "int"), "json": ("json", "json"), "txt": ("text", "text")}

_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
# webdataset's rule: the key ends at the first dot of the base name, and the rest is the extension.
_KEY = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]+)", re.DOTALL)
# The kinds of members that may be values of a sample, and the most links that lead from one to the next, as in Linux.
_VALUES = ("file", "link", "sparse")
_MOST_LINKS = 40
# As in a shell, other braces are a part of the name.
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
# Tars behind URLs that are listed at the same time, and what is read of one at once. Smaller blocks would pass over
# more bytes of large members, and take a request for every few small ones.
_MOST_AT_ONCE = 16
_BLOCK_NBYTES = 2**20
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
    return any(is_tar_name(p.name) for p in place.iterdir()) and not len(find_images(place).names)


def list_samples(src: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the samples in tar shards, in the order of their members, see `layouts.Source`.

    `src` is a tar, a folder of tars (in byte order of their names), or a pattern: "train-{000..012}.tar" in the order
    written, "train-*.tar" in byte order. All of them can be URLs.
    """
    paths, ignored = _expand(src)
    names = _relative(paths) if len(paths) > 1 else [b""]
    shards = _Shards()
    times: list[int | None] = [0]
    for number, (listed, time) in enumerate(_list_tars(paths, names)):
        shards.extend(listed, number)
        times.append(time)
    if not len(shards.start):
        raise SourceError(
            f"{src}: no images in it. Expected members like key.jpg or key.png, and optionally key.cls, key.json and "
            f"key.txt{shards.explain()}."
        )
    if shards.lost:
        raise SourceError(
            f"{src}: the image {shards.lost} belongs to no sample: a key ends at the first dot of the name, as in "
            "webdataset. Pack the tar again, with other characters than dots in the keys."
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
    # The first image whose key has a dot, and so is none.
    lost: str = ""
    # Of the tar that is being read: values that are links, each with its columns, its row and its member.
    links: list[tuple[array[int], array[int], int, Member]] = field(default_factory=list)
    # Set if another tar could not be read.
    stop: Event | None = None

    def extend(self, other: _Shards, number: int) -> None:
        """Add the samples of one tar, in which it is number 0."""
        before = len(self.text)
        self.text += other.text
        self.ends.extend(before + end for end in other.ends)
        self.which.extend(repeat(number, len(other.start)))
        self.start += other.start
        self.nbytes += other.nbytes
        for mine, others in zip(self.attached.values(), other.attached.values(), strict=True):
            mine[0].extend(others[0])
            mine[1].extend(others[1])
        self.ignored += other.ignored
        self.lost = self.lost or other.lost
        for extension, count in other.extensions.items():
            self.extensions[extension] = self.extensions.get(extension, 0) + count

    def add(self, file: Readable, path: bytes, prefix: bytes) -> None:
        """Read one tar's headers."""
        where = as_text(path)
        start = prefix + b"/" if prefix else b""
        finished, litter = set[int](), dict[bytes, None]()
        targets: dict[str, str] = {}
        key, members = "", dict[str, Member]()
        for member in list_members(file, where):
            if self.stop is not None and self.stop.is_set():
                raise SourceError(f"{where}: another tar could not be listed")
            name = _checked(member, where)
            if (left := litter_in(os.fsencode(name))) is not None:
                litter[left] = None
                continue
            if member.kind == "link":
                targets[name] = member.target
            parts = _KEY.fullmatch(name)
            if parts is None or member.kind not in _VALUES:
                if member.kind != "folder":
                    reason = "no key and extension in its name" if member.kind == "file" else "not a regular file"
                    self.ignored.append((as_text(start) + name, reason))
                continue
            if parts[1] != key:
                self._finish(start, key, members)
                # A key's hash takes half of the memory that the key takes.
                finished.add(hash(key))
                key, members = parts[1], {}
                if hash(key) in finished:
                    raise SourceError(
                        f"{where}: {name}: the members of {key} are not next to each other. Sort the names when "
                        "packing (tar --sort=name)."
                    )
            extension = parts[2].lower()
            if extension in members:
                raise SourceError(f"{where}: holds {name} twice. It is not clear which one belongs to the sample.")
            members[extension] = member
        self._finish(start, key, members)
        others = Others()
        for left in litter:
            others.add_litter(start + left)
        self.ignored += others.ignored()
        _follow(file, where, self.links, targets)
        self.links.clear()

    def _finish(self, start: bytes, key: str, members: dict[str, Member]) -> None:
        images = [extension for extension in members if extension in _IMAGES]
        for extension in members:
            if extension not in _IMAGES and extension not in ATTACHED:
                self.extensions[extension] = self.extensions.get(extension, 0) + 1
        if not images:
            if (lost := next((m for e, m in members.items() if e.rpartition(".")[2] in _IMAGES), None)) is not None:
                self.lost = self.lost or f"{as_text(start)}{lost.name}"
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
        columns: list[tuple[array[int], array[int], Member | None]] = [(self.start, self.nbytes, image)]
        columns += [(starts, sizes, members.get(name)) for name, (starts, sizes) in self.attached.items()]
        for starts, sizes, member in columns:
            if member is not None and member.kind == "link":
                self.links.append((starts, sizes, len(starts), member))
            elif member is not None and member.kind == "sparse":
                raise SourceError(
                    f"{as_text(start)}{member.name}: is packed as a sparse file, which is not read. Pack the tar again "
                    "without --sparse."
                )
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


def _follow(
    file: Readable,
    where: str,
    links: Sequence[tuple[array[int], array[int], int, Member]],
    targets: Mapping[str, str],
) -> None:
    """Give values that are links the places of the files that they lead to, which are anywhere in the tar.

    Args:
        file: The tar.
        where: Its name in messages.
        links: Of each value, the columns of starts and sizes, its row in them, and its member.
        targets: Where each link of the tar leads to.

    Raises:
        SourceError: A link leads to no file of the tar.
    """
    if not links:
        return
    ends: dict[str, Member | None] = {}
    for *_, link in links:
        ends[_end_of(link.target, targets)] = None
    file.seek(0)
    for member in list_members(file, where):
        if (name := _checked(member, where)) in ends and member.kind == "file":
            ends[name] = member
    for starts, sizes, row, link in links:
        found = ends[_end_of(link.target, targets)]
        if found is None:
            raise SourceError(
                f"{where}: {link.name} is a link to {link.target}, and the tar has no such file. Pack the files "
                "themselves: tar --dereference --hard-dereference."
            )
        starts[row], sizes[row] = found.offset_data, found.size


def _end_of(name: str, targets: Mapping[str, str]) -> str:
    """Return where a link to a name leads to in the end; links in a circle lead to one of them."""
    for _ in range(_MOST_LINKS):
        name = targets.get(name, name)
    return name


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


def _list_tars(paths: Sequence[bytes], names: Sequence[bytes]) -> Iterator[tuple[_Shards, int | None]]:
    """Yield the samples of tars, and when each was changed, in order; several behind URLs are read at once."""
    if not is_url(paths[0]):
        for path, name in zip(paths, names, strict=True):
            yield _list_local(path, name), 0
        return
    filesystem, _ = remote.open_place(os.fsdecode(paths[0]))
    at_once = min(len(paths), _MOST_AT_ONCE) if remote.takes_many(filesystem) else 1
    stop = Event()
    with ThreadPoolExecutor(at_once) as readers:
        try:
            yield from readers.map(_list_remote, paths, names, repeat(stop))
        finally:
            stop.set()


def _list_local(path: bytes, name: bytes) -> _Shards:
    shards = _Shards()
    try:
        with open(open_regular(path), "rb") as file:
            shards.add(file, path, name)
    except OSError as error:
        raise SourceError(f"{as_text(path)}: cannot be read ({error.strerror})") from error
    return shards


def _list_remote(path: bytes, name: bytes, stop: Event) -> tuple[_Shards, int | None]:
    url = os.fsdecode(path)
    filesystem, place = remote.open_place(url)
    shards = _Shards(stop=stop)
    with remote.explain(url):
        info = filesystem.info(place)
        if info["size"] is None:
            raise SourceError(f"{url}: the server gives no size for it. Copy it to a disk first.")
        try:
            with filesystem.open(place, "rb", block_size=_BLOCK_NBYTES) as file:
                shards.add(file, path, name)
        except SourceError:
            raise
        except ValueError as error:  # of fsspec, and of streams
            raise SourceError(f"{url}: its server does not send parts of files: copy it to a disk first") from error
    return shards, remote.changed_ns(info)


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
