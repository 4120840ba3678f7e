"""The list of sources: names, places and sizes, in about fifty bytes a source; and the walk that finds images."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from lmdbloader.base.progress import watched
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import Kind
from lmdbloader.images.decode import IMAGE_SUFFIXES, RASTER_SUFFIXES

I64 = npt.NDArray[np.int64]
#: The field of the low-resolution image of a pair.
LR = "lr"
#: A local path, or the URL (str) of something that fsspec reads.
Location: TypeAlias = Path | str

_RASTERS = frozenset(suffix.encode() for suffix in RASTER_SUFFIXES)
_SUFFIXES = frozenset(suffix.encode() for suffix in IMAGE_SUFFIXES) | _RASTERS
# What macOS, Python, Windows, NAS servers and Linux leave in folders of images, in lower case: copies, thumbnails, and
# files that were deleted. None of it is an image of its own, nor a class; nor is what hidden folders hold.
_LITTER = re.compile(
    rb"\._.*|__macosx|network trash folder|__pycache__|\$recycle\.bin|recycler|system volume information|found\.\d{3}|"
    rb"@eadir|#recycle|#snapshot|@recycle|@__thumb|@recently-snapshot|lost\+found",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a larger file: a member of a tar, a value of an LMDB.

    Attributes:
        path: Of the larger file; a local path or a URL.
        start: Its first byte there.
        nbytes: Its length.
    """

    path: bytes
    start: int
    nbytes: int


#: A whole file, by its path or URL, or a part of one.
File: TypeAlias = bytes | Span


@dataclass(frozen=True, slots=True)
class Annotation:
    """The boxes of one image.

    Attributes:
        boxes: (n, 4) float64: left, top, right, bottom in pixels, or as shares of the width and the height.
        labels: (n,) int64, the class of each box.
        size: (height, width) of the image that pixels refer to; None for shares.
    """

    boxes: bytes
    labels: bytes
    size: tuple[int, int] | None

    def digest(self) -> int:
        """Return the XXH3 of its values."""
        return checksum(f"{self.size}\0".encode() + self.boxes + self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The boxes of some images, image by image.

    Attributes:
        boxes: (m, 4) float64, see `Annotation`.
        labels: (m,) int64.
        bounds: (n + 1,) int64: the boxes of image i are boxes[bounds[i] : bounds[i + 1]].
        sizes: (n, 2) int64, height and width of the images; None for boxes in shares.
    """

    boxes: npt.NDArray[np.float64]
    labels: I64
    bounds: I64
    sizes: I64 | None

    def __getitem__(self, number: int) -> Annotation:
        rows = slice(self.bounds.item(number), self.bounds.item(number + 1))
        size = None if self.sizes is None else (self.sizes.item(number, 0), self.sizes.item(number, 1))
        return Annotation(self.boxes[rows].tobytes(), self.labels[rows].tobytes(), size)

    def parts(self) -> Iterator[bytes]:
        """Yield all values, as bytes for a digest."""
        for values in (self.bounds, self.sizes, self.boxes, self.labels):
            yield b"" if values is None else values.tobytes()

    def take(self, numbers: I64) -> Annotations:
        """Return those of some images, in another order."""
        counts = np.diff(self.bounds)[numbers]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        rows = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1][numbers] - bounds[:-1], counts)
        sizes = None if self.sizes is None else self.sizes[numbers]
        return Annotations(self.boxes[rows], self.labels[rows], bounds, sizes)


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one image, or of one pair.

    Attributes:
        name: Relative path as text; bytes that are not UTF-8 are shown as \\xNN.
        file: The image; of a pair, the high-resolution one.
        nbytes: Total size of its files.
        label: Of its class folder.
        attached: (field, file) of other values of the sample, of a pair the low-resolution image (LR) alone, of
            several scales numbered LR1, LR2 ... from the second on; None if only other sources have such a file.
        annotation: Its boxes, in datasets of boxes.
    """

    name: str
    file: File
    nbytes: int
    label: int | None = None
    attached: tuple[tuple[str, File | None], ...] = ()
    annotation: Annotation | None = None

    @property
    def num_images(self) -> int:
        """The number of images: two in a pair, more with several scales, else one."""
        return 1 + len(self.lr_files)

    @property
    def lr_files(self) -> list[File]:
        """The low-resolution images of a pair."""
        return [file for name, file in self.attached if name.startswith(LR) and file is not None]

    @property
    def lr_name(self) -> bytes:
        """The name of its file, or several names with zeros between; empty if it is a part of a larger file."""
        return b"\0".join(map(name_of, self.lr_files))

    @property
    def files(self) -> list[File]:
        """All files: the image, and the attached ones."""
        return [f for f in (self.file, *(file for _, file in self.attached)) if f is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Relative paths below a folder, joined: a list of bytes would take three times as much memory.

    Attributes:
        folder: The folder; a local path or a URL.
        text: All names.
        bounds: (n + 1,) int64: name i is text[bounds[i] : bounds[i + 1]].
    """

    folder: bytes
    text: bytes
    bounds: I64

    @classmethod
    def join(cls, folder: bytes, names: Iterable[bytes]) -> Names:
        """Return names from an iterable.

        >>> names = Names.join(b"photos", iter([b"a.png", b"b/c.png"]))
        >>> names[1], names.path(1), len(names)
        (b'b/c.png', b'photos/b/c.png', 2)
        """
        text, bounds = bytearray(), array("q", [0])
        for name in names:
            text += name
            bounds.append(len(text))
        return cls(folder, bytes(text), np.array(bounds, np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.text[self.bounds.item(number) : self.bounds.item(number + 1)]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def path(self, number: int) -> bytes:
        """Return a name with the folder before it."""
        return below(self.folder, self[number])

    def take(self, numbers: I64) -> Names:
        """Return some names, in another order."""
        return Names.join(self.folder, map(self.__getitem__, numbers.tolist()))


def is_url(path: bytes) -> bool:
    """Return whether a path is a URL: local paths in here have no empty component."""
    return b"://" in path


def name_of(file: File | None) -> bytes:
    """Return the name of a file without its folder; empty if it is a part of a larger file."""
    return os.path.basename(file.partition(b"::")[0] if is_url(file) else file) if isinstance(file, bytes) else b""


def below(folder: bytes, name: bytes) -> bytes:
    """Return the path or URL of a name below a folder; of a chained URL, below its first place.

    >>> below(b"zip://inner::s3://bucket/a.zip", b"b.png")
    b'zip://inner/b.png::s3://bucket/a.zip'
    """
    if not is_url(folder):
        return os.path.join(folder, name)
    links = folder.split(b"::")
    at = next(i for i, link in enumerate(links) if b"://" in link)
    start = links[at] if links[at].endswith(b"://") else links[at].rstrip(b"/") + b"/"
    return b"::".join([*links[:at], start + name, *links[at + 1 :]])


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The places of parts of larger files.

    Attributes:
        paths: Of the larger files.
        which: (n,) int32, the number of each part's file.
        start: (n,) int64, the first byte of each part; negative for a part that is missing.
        nbytes: (n,) int64, the length of each part.
    """

    paths: tuple[bytes, ...]
    which: npt.NDArray[np.int32]
    start: I64
    nbytes: I64

    def __getitem__(self, number: int) -> Span:
        return Span(self.paths[self.which.item(number)], self.start.item(number), self.nbytes.item(number))

    def get(self, number: int) -> Span | None:
        """Return a part, None if it is missing."""
        return self[number] if self.start.item(number) >= 0 else None

    def take(self, numbers: I64) -> Spans:
        """Return some rows, in another order."""
        return Spans(self.paths, self.which[numbers], self.start[numbers], self.nbytes[numbers])


@dataclass(frozen=True, slots=True, eq=False)
class Sources(Sequence[Source]):
    """Sources in about fifty bytes each. An index makes a `Source`, a slice a list of them.

    Attributes:
        names: Names of the images; of pairs, of the high-resolution ones.
        nbytes: (n,) int64, the total size of the files of each source.
        labels: (n,) int64, labels of class folders.
        spans: Places of the images in larger files; None if each is a file below `names.folder`.
        attached: Places of other values of the samples, by field, and of the low-resolution images of pairs (LR);
            names, if each is a file of its own.
        annotations: Boxes of the images.
    """

    names: Names
    nbytes: I64
    labels: I64 | None = None
    spans: Spans | None = None
    attached: Mapping[str, Spans | Names] = field(default_factory=dict)
    annotations: Annotations | None = None

    def __len__(self) -> int:
        return len(self.nbytes)

    @overload
    def __getitem__(self, which: int) -> Source: ...
    @overload
    def __getitem__(self, which: slice) -> list[Source]: ...
    def __getitem__(self, which: int | slice) -> Source | list[Source]:
        numbers = range(len(self))[which]
        return self._make(numbers) if isinstance(numbers, int) else [self._make(number) for number in numbers]

    def __iter__(self) -> Iterator[Source]:
        return map(self._make, range(len(self)))

    def _make(self, number: int) -> Source:
        return Source(
            name=as_text(self.names[number]),
            file=self.names.path(number) if self.spans is None else self.spans[number],
            nbytes=self.nbytes.item(number),
            label=None if self.labels is None else self.labels.item(number),
            attached=tuple((name, _attached(places, number)) for name, places in self.attached.items()),
            annotation=None if self.annotations is None else self.annotations[number],
        )

    def take(self, numbers: I64) -> Sources:
        """Return some rows, in another order."""
        return Sources(
            self.names.take(numbers),
            self.nbytes[numbers],
            None if self.labels is None else self.labels[numbers],
            None if self.spans is None else self.spans.take(numbers),
            {name: places.take(numbers) for name, places in self.attached.items()},
            None if self.annotations is None else self.annotations.take(numbers),
        )


def _attached(places: Spans | Names, number: int) -> File | None:
    return places.get(number) if isinstance(places, Spans) else places.path(number)


class Others:
    """What is in a folder of images but is not read: other files by suffix, litter, and links that lead in a circle."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[bool, str], tuple[int, bytes]] = {}
        self._links: list[bytes] = []

    def add(self, name: bytes) -> None:
        """Count a file by its relative path; hidden ones do not count."""
        base = os.path.basename(name)
        if not base.startswith(b"."):
            suffix = as_text(os.path.splitext(base)[1].lower())
            self._count(False, f"*{suffix}" if suffix else "files without a suffix", name)

    def add_litter(self, name: bytes) -> None:
        """Count litter by its relative path; of a folder, with a final "/"."""
        base = os.path.basename(name.rstrip(b"/"))
        self._count(True, "._*" if base.startswith(b"._") else as_text(base), name.rstrip(b"/"))

    def add_link(self, name: bytes) -> None:
        """Count a link to a folder that it is in."""
        self._links.append(name)

    def _count(self, is_litter: bool, kind: str, name: bytes) -> None:
        count, first = self._kinds.get((is_litter, kind), (0, name))
        self._kinds[is_litter, kind] = count + 1, min(first, name)

    def ignored(self) -> tuple[tuple[str, str], ...]:
        """Return (name, reason) for each kind of file, and for each link."""
        found = [(as_text(name), "a link to a folder that it is in") for name in sorted(self._links)]
        for (is_litter, kind), (count, first) in sorted(self._kinds.items()):
            what = "hidden or left by a program" if is_litter else "not read"
            load = 'lmdbloader.write(({"array": numpy.load(path)} for path in paths), OUT)'
            write = f"; as arrays: {load}" * (kind == "*.npy")
            found.append((kind, f"{count:,} {what}: {as_text(first)}{' ...' * (count > 1)}{write}"))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Listing:
    """The sources of a conversion.

    Attributes:
        layout: How the inputs are laid out.
        sources: In order.
        classes: Class names by label, for class folders and boxes.
        fields: (name, kind) of the fields in addition to the images.
        ignored: (name, reason) of files that look like inputs but are left out, and of classes without images.
        changed_ns: Last change of the newest remote file (ns since 1970), 0 without one; None if it is unknown.
        in_process: Whether only this process can see the files, as with memory://.
        notes: Sentences about what the source has, but not the listing.
    """

    layout: str
    sources: Sources
    classes: tuple[str, ...] = ()
    fields: tuple[tuple[str, Kind], ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    changed_ns: int | None = 0
    in_process: bool = False
    notes: tuple[str, ...] = ()


def as_text(name: bytes) -> str:
    """Return a file's name as text; bytes that are not UTF-8 are shown as \\xNN."""
    return name.decode("utf-8", "backslashreplace")


def is_image_name(name: bytes) -> bool:
    """Return whether a file counts as an image by its suffix."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def is_raster_name(name: bytes) -> bool:
    """Return whether a file counts as an image only where no others are, by its suffix: a .npy may hold anything."""
    return name[-4:].lower() in _RASTERS


def stem_of(name: bytes) -> bytes:
    """Return a name without its image suffix.

    >>> stem_of(b"a/b.png"), stem_of(b"0.25")
    (b'a/b', b'0.25')
    """
    return os.path.splitext(name)[0] if is_image_name(name) else name


def is_litter(path: bytes) -> bool:
    """Return whether a folder is hidden, or a file or folder is one that a program leaves: never an image or a class.

    Args:
        path: Of a folder, with a final "/".

    >>> [is_litter(name) for name in (b"__MACOSX/", b"._a.png", b"$Recycle.Bin/", b".Trash-1000/", b".a.png", b"a.png")]
    [True, True, True, True, False, False]
    """
    name = os.path.basename(path.rstrip(b"/"))
    is_hidden = path.endswith(b"/") and name.startswith(b".") and name not in (b".", b"..")
    return is_hidden or _LITTER.fullmatch(name) is not None


def litter_in(path: bytes) -> bytes | None:
    """Return the first file or folder of a path that is litter, by its own path; None if none is.

    >>> litter_in(b"a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg"), litter_in(b"a/1.jpg")
    (b'a/@eaDir/', None)
    """
    return next((path[: found.end()] for found in re.finditer(rb"[^/]+/?", path) if is_litter(found[0])), None)


def walk_names(entries: Callable[[bytes], Iterable[bytes]], others: Others) -> Iterator[bytes]:
    """Yield the relative paths of possible images below a folder in byte order.

    Args:
        entries: Given a folder's relative path ("" or with a final "/"), yields the relative paths of possible images
            in it, and of its folders with a final "/".
        others: Gets what is litter, and is left out.
    """
    # With a final "/", a folder sorts like everything in it, so only the entries of the folders on the way are held
    # and sorted at once.
    waiting = [b""]
    while waiting:
        name = waiting.pop()
        if name and is_litter(name):
            others.add_litter(name)
        elif not name or name.endswith(b"/"):
            waiting += sorted(entries(name), reverse=True)
        else:
            yield name


def walk(
    top: bytes, entries: Callable[[bytes], Iterable[bytes]], size: Callable[[bytes], int | str], others: Others
) -> Listing:
    """Return the image files below a folder in byte order.

    Args:
        top: The folder.
        entries: As for `walk_names`.
        size: Returns the size of such an image, or why it is left out.
        others: What `entries` and the walk leave out.
    """
    nbytes = array("q")
    ignored: list[tuple[str, str]] = []

    def files() -> Iterator[bytes]:
        for name in walk_names(entries, others):
            found = size(name)
            if isinstance(found, int):
                nbytes.append(found)
                yield name
            else:
                ignored.append((as_text(name), found))

    names = Names.join(top, watched("listing images", files()))
    sources = Sources(names, np.array(nbytes, np.int64))
    are_rasters = np.fromiter(map(is_raster_name, names), bool, len(names))
    if are_rasters.any() and not are_rasters.all():
        for number in np.flatnonzero(are_rasters).tolist():
            others.add(names[number])
        sources = sources.take(np.flatnonzero(~are_rasters))
    return Listing("images", sources, ignored=(*sorted(ignored), *others.ignored()))
