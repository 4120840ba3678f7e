"""Folders of images to an ordered list of sources: which files make a sample, and what it is called."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

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
    sources: tuple[Source, ...]
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
    files, ignored = _walk(src)
    if not files:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise SourceError(f"{src}: no images in it (looked for {suffixes} in it and the folders below)")
    found = Listing(
        "images", tuple(Source(_text(name), os.path.join(os.fsencode(src), name), size) for name, size in files)
    )
    found = replace(found, ignored=tuple(ignored))
    tops = [name.split(b"/", 1)[0] if b"/" in name else None for name, _ in files]
    by_class = None not in tops and len(set(tops)) > 1
    if layout == "classes" and None in tops:
        loose = found.sources[tops.index(None)].name
        raise SourceError(f"{src}: {loose} lies in no class folder. Move it into one, or use --layout images.")
    if layout == "classes" or (layout == "auto" and by_class and not prefer_images):
        return _label(src, found, tops)
    return found


def _label(src: Path, found: Listing, tops: Sequence[bytes | None]) -> Listing:
    names = sorted({top for top in tops if top is not None})
    labels = {name: i for i, name in enumerate(names)}
    sources = tuple(replace(s, label=labels[top or b""]) for s, top in zip(found.sources, tops, strict=True))
    with os.scandir(os.fsencode(src)) as entries:
        folders = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    empty = [(_text(name) + "/", "a class folder without images") for name in folders if name not in labels]
    return Listing("classes", sources, tuple(map(_text, names)), (*found.ignored, *empty))


def _list_pairs(hr: Path, lr: Path) -> Listing:
    (high, ignored_high), (low, ignored_low) = _walk(hr), _walk(lr)
    for folder, files in ((hr, high), (lr, low)):
        if not files:
            raise SourceError(f"{folder}: no images in it")
    high_by_stem = _by_stem(hr, [(os.path.splitext(name)[0], name, size) for name, size in high])
    stems = ((os.path.splitext(name)[0], name, size) for name, size in low)
    plain = [(s if s in high_by_stem else _SCALE_SUFFIX.sub(b"", s), name, size) for s, name, size in stems]
    low_by_stem = _by_stem(lr, plain)
    for folder, mine, other, theirs in ((hr, high_by_stem, lr, low_by_stem), (lr, low_by_stem, hr, high_by_stem)):
        alone = [_text(name) for stem, (name, _) in mine.items() if stem not in theirs]
        if alone:
            shown = ", ".join(alone[:_NAMES_SHOWN]) + (
                f" and {len(alone) - _NAMES_SHOWN} more" if len(alone) > _NAMES_SHOWN else ""
            )
            raise SourceError(
                f"{folder}: no partner in {other} for {shown}. "
                "Pairs are matched by name: 0001.png with 0001.png or 0001x2.png."
            )
    sources = []
    for stem, (name, size) in high_by_stem.items():
        low_name, low_size = low_by_stem[stem]
        path, lr_path = os.path.join(os.fsencode(hr), name), os.path.join(os.fsencode(lr), low_name)
        sources.append(Source(_text(name), path, size + low_size, lr_path))
    return Listing("pairs", tuple(sources), ignored=(*ignored_high, *ignored_low))


def _by_stem(folder: Path, files: Sequence[tuple[bytes, bytes, int]]) -> dict[bytes, tuple[bytes, int]]:
    found: dict[bytes, tuple[bytes, int]] = {}
    for stem, name, size in files:
        if stem in found:
            raise SourceError(
                f"{folder}: {_text(found[stem][0])} and {_text(name)} have the same stem, so their partner is not clear"
            )
        found[stem] = (name, size)
    return found


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


def _walk(root: Path) -> tuple[list[tuple[bytes, int]], list[tuple[str, str]]]:
    """Return (relative path, size) of the image files below a folder in byte order, and what is no regular file."""
    files: list[tuple[bytes, int]] = []
    ignored: list[tuple[str, str]] = []
    folders = [b""]
    while folders:
        folder = folders.pop()
        path = os.path.join(os.fsencode(root), folder)
        try:
            # One entry at a time: each holds a kilobyte once it was asked for its size.
            with os.scandir(path) as entries:
                for entry in entries:
                    name = os.path.join(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    elif os.path.splitext(name)[1].lower() in _SUFFIXES:
                        found = _size(entry)
                        if isinstance(found, int):
                            files.append((name, found))
                        elif found:
                            ignored.append((_text(name), found))
        except OSError as error:
            raise SourceError(f"{_text(path)}: cannot be listed ({error.strerror})") from error
    files.sort()
    return files, sorted(ignored)


def _size(entry: os.DirEntry[bytes]) -> int | str:
    """Return a file's size, or why it is left out; "" for a link to a folder.

    Such a link could lead in a circle, or list the same image twice.
    """
    try:
        if entry.is_file():
            return entry.stat().st_size
        if entry.is_symlink():
            return "" if entry.is_dir() else "a broken link"
        return "not a regular file"
    except OSError as error:
        return str(error.strerror)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
