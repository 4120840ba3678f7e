"""Folders of images to an ordered list of sources: which files make a sample, and what it is called."""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError, SourceError
from lmdbloader.images import IMAGE_SUFFIXES

Layout = Literal["images", "pairs", "classes"]
LAYOUTS = get_args(Layout)
_SUFFIXES = frozenset(suffix.encode() for suffix in IMAGE_SUFFIXES)
_SCALE_SUFFIX = re.compile(rb"x[2-9]$")
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one image, or of one pair.

    Attributes:
        name: Relative path as text; bytes that are no UTF-8 are shown as \\xNN.
        path: The image; of a pair, the high-resolution one.
        lr_path: The low-resolution image of a pair.
        label: Of its class.
        nbytes: Size of its files together.
    """

    name: str
    path: bytes
    nbytes: int
    lr_path: bytes | None = None
    label: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Relative paths below a folder, one behind the other: as a list of bytes they would take three times as much.

    Attributes:
        folder: Where they start.
        text: All of them.
        bounds: (n + 1,) int64: name i is text[bounds[i] : bounds[i + 1]].
    """

    folder: bytes
    text: bytes
    bounds: npt.NDArray[np.int64]

    @classmethod
    def join(cls, folder: bytes, names: Iterable[bytes]) -> Names:
        """Return names, which are taken one at a time.

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
        return os.path.join(self.folder, self[number])


@dataclass(frozen=True, slots=True, eq=False)
class Sources(Sequence[Source]):
    """Sources in about fifty bytes each: a `Source` is made when it is asked for, and a slice is a list of them.

    Attributes:
        names: Of the images; of pairs, of the high-resolution ones.
        nbytes: (n,) int64, the size of each source's files together.
        lr_names: Of the low-resolution images of pairs.
        labels: (n,) int64, of their classes.
    """

    names: Names
    nbytes: npt.NDArray[np.int64]
    lr_names: Names | None = None
    labels: npt.NDArray[np.int64] | None = None

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
            name=_text(self.names[number]),
            path=self.names.path(number),
            nbytes=self.nbytes.item(number),
            lr_path=None if self.lr_names is None else self.lr_names.path(number),
            label=None if self.labels is None else self.labels.item(number),
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds.

    Attributes:
        layout: How it is laid out.
        sources: In the byte order of their relative paths.
        classes: Names by label, for class folders.
        ignored: (name, reason) of what looks like an image but is no regular file, and of classes without images.
    """

    layout: Layout
    sources: Sources
    classes: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()


def list_sources(
    src: Path | None,
    *,
    layout: Layout | Literal["auto"] = "auto",
    hr: Path | None = None,
    lr: Path | None = None,
    prefer_images: bool = False,
) -> Listing:
    """Return the images or pairs in a folder.

    Args:
        src: The folder; not needed with `hr` and `lr`.
        layout: "auto" takes pairs where `hr` and `lr` are given or the folder has a subfolder of each kind, classes
            where the images lie in two or more subfolders and none beside them, images otherwise.
        hr: Folder of the high-resolution images of pairs.
        lr: Folder of their low-resolution images.
        prefer_images: Never take subfolders for classes by itself.

    Raises:
        SourceError: No such folder, no images in it, or pairs that do not match.
        OptionError: Options that contradict each other.
    """
    if layout not in ("auto", *LAYOUTS):
        raise OptionError(f"layout {layout!r}: expected auto, {', '.join(LAYOUTS)}")
    if (hr is None) != (lr is None):
        raise OptionError("--hr and --lr go together: give the folders of both halves of the pairs")
    for folder in (src, hr, lr):
        if folder is not None and not folder.is_dir():
            raise SourceError(
                f"{folder}: there is no such folder" if not folder.exists() else f"{folder}: is no folder"
            )
    if hr is not None and lr is not None:
        if layout not in ("auto", "pairs"):
            raise OptionError(f"layout {layout!r} with --hr and --lr: they make pairs")
        if src is not None:
            raise OptionError(f"{src} together with --hr and --lr: give either one folder or the two")
        return _list_pairs(hr, lr)
    if src is None:
        raise OptionError("nothing to convert: give a folder, or --hr and --lr")
    halves = _find_halves(src) if layout in ("auto", "pairs") else None
    if halves:
        return _list_pairs(*halves)
    if layout == "pairs":
        raise SourceError(f"{src}: has no pair of folders named like x_HR and x_LR. Name them with --hr and --lr.")
    names, nbytes, ignored = _walk(src)
    if not len(names):
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise SourceError(f"{src}: no images in it (looked for {suffixes} in it and the folders below)")
    found = Listing("images", Sources(names, nbytes), ignored=ignored)
    if layout == "images" or (layout == "auto" and prefer_images):
        return found
    loose = next((name for name in names if b"/" not in name), None)
    if loose is not None and layout == "auto":
        return found
    if loose is not None:
        raise SourceError(f"{src}: {_text(loose)} lies in no class folder. Move it into one, or use --layout images.")
    classes = sorted({_class_of(name) for name in names})
    return found if layout == "auto" and len(classes) == 1 else _label(src, found, classes)


def _class_of(name: bytes) -> bytes:
    return name.partition(b"/")[0]


def _label(src: Path, found: Listing, classes: Sequence[bytes]) -> Listing:
    numbers = {name: i for i, name in enumerate(classes)}
    names = found.sources.names
    labels = np.fromiter((numbers[_class_of(name)] for name in names), np.int64, len(names))
    with os.scandir(os.fsencode(src)) as entries:
        folders = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    empty = [(_text(name) + "/", "a class folder without images") for name in folders if name not in numbers]
    sources = replace(found.sources, labels=labels)
    return Listing("classes", sources, tuple(map(_text, classes)), (*found.ignored, *empty))


def _list_pairs(hr: Path, lr: Path) -> Listing:
    (high, high_nbytes, ignored_high), (low, low_nbytes, ignored_low) = _walk(hr), _walk(lr)
    for folder, names in ((hr, high), (lr, low)):
        if not len(names):
            raise SourceError(f"{folder}: no images in it")
    partners = _match(hr, high, lr, low)
    low = Names.join(low.folder, map(low.__getitem__, partners))
    return Listing("pairs", Sources(high, high_nbytes + low_nbytes[partners], low), ignored=ignored_high + ignored_low)


def _match(hr: Path, high: Names, lr: Path, low: Names) -> npt.NDArray[np.int64]:
    """Return which LR image is the partner of each HR image."""
    by_stem: dict[bytes, int] = {}
    for i, name in enumerate(high):
        first = high[by_stem.setdefault(os.path.splitext(name)[0], i)]
        if first != name:
            raise _same_stem(hr, first, name)
    partners = np.full(len(high), -1, np.int64)
    alone: dict[bytes, bytes] = {}
    for i, name in enumerate(low):
        stem = os.path.splitext(name)[0]
        if stem not in by_stem:
            stem = _SCALE_SUFFIX.sub(b"", stem)
        number = by_stem.get(stem)
        if number is None:
            first = alone.setdefault(stem, name)
        else:
            partners[number] = i if partners[number] < 0 else partners[number]
            first = low[partners.item(number)]
        if first != name:
            raise _same_stem(lr, first, name)
    _refuse_alone(hr, [high[i] for i in np.flatnonzero(partners < 0).tolist()], lr)
    _refuse_alone(lr, list(alone.values()), hr)
    return partners


def _same_stem(folder: Path, one: bytes, other: bytes) -> SourceError:
    return SourceError(f"{folder}: {_text(one)} and {_text(other)} have the same stem, so their partner is not clear")


def _refuse_alone(folder: Path, names: Sequence[bytes], other: Path) -> None:
    if not names:
        return
    shown = ", ".join(map(_text, names[:_NAMES_SHOWN]))
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    raise SourceError(
        f"{folder}: no partner in {other} for {shown}{more}. "
        "Pairs are matched by name: 0001.png with 0001.png or 0001x2.png."
    )


def _find_halves(src: Path) -> tuple[Path, Path] | None:
    """Return the HR and LR folders below `src`, None unless there is one of each."""
    folders = [p for p in sorted(src.iterdir()) if p.is_dir() and not p.is_symlink()]
    high = [p for p in folders if re.search(r"(^|[_-])hr$", p.name, re.IGNORECASE)]
    low = [p for p in folders if re.search(r"(^|[_-])lr([_-]|$)", p.name, re.IGNORECASE)]
    if not high or not low:
        return None
    if len(high) > 1 or len(low) > 1:
        names = ", ".join(p.name for p in (*high, *low))
        raise SourceError(f"{src}: holds {names}. Say which two make the pairs with --hr and --lr.")
    inner = [p for p in sorted(low[0].iterdir()) if p.is_dir() and re.fullmatch(r"[xX][2-9]", p.name)]
    if len(inner) > 1:
        raise SourceError(f"{low[0]}: holds {', '.join(p.name for p in inner)}. Say which one with --hr and --lr.")
    return high[0], inner[0] if inner else low[0]


def _walk(root: Path) -> tuple[Names, npt.NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """Return the image files below a folder in byte order, their sizes, and what is no regular file."""
    top = os.fsencode(root)
    nbytes = array("q")
    ignored: list[tuple[str, str]] = []

    def files() -> Iterator[bytes]:
        # A folder with "/" behind it has the place of everything in it, so no more than what is in the folders on the
        # way is held and sorted at once.
        waiting = [b""]
        while waiting:
            name = waiting.pop()
            if not name or name.endswith(b"/"):
                waiting += sorted(_list_folder(top, name), reverse=True)
                continue
            found = _size(os.path.join(top, name))
            if isinstance(found, int):
                nbytes.append(found)
                yield name
            elif found:
                ignored.append((_text(name), found))

    names = Names.join(top, files())
    return names, np.array(nbytes, np.int64), tuple(sorted(ignored))


def _list_folder(top: bytes, folder: bytes) -> Iterator[bytes]:
    """Yield the relative paths of what may be images in a folder, and those of its folders with "/" behind them."""
    path = os.path.join(top, folder[:-1])
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield folder + entry.name + b"/"
                elif os.path.splitext(entry.name)[1].lower() in _SUFFIXES:
                    yield folder + entry.name
    except OSError as error:
        raise SourceError(f"{_text(path)}: cannot be listed ({error.strerror})") from error


def _size(path: bytes) -> int | str:
    """Return a file's size, or why it is left out; "" for a link to a folder.

    Such a link could lead in a circle, or list the same image twice.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        return "a broken link" if os.path.islink(path) else str(error.strerror)
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    if os.path.islink(path):
        return "" if stat.S_ISDIR(found.st_mode) else "a broken link"
    return "not a regular file"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
