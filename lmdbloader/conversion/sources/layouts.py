"""Which layout a source has, and the ordered list of samples that it makes: images, pairs, class folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lmdbloader.conversion.sources.folders import find_images
from lmdbloader.conversion.sources.listing import Found, Layout, Listing, Sources, as_text
from lmdbloader.conversion.sources.lmdbs import find_lmdb_images
from lmdbloader.conversion.sources.pairs import find_halves, match
from lmdbloader.conversion.sources.remote import Location, find_remote_images, only_here
from lmdbloader.conversion.sources.tars import is_tar_name, list_tars
from lmdbloader.errors import OptionError, SourceError
from lmdbloader.images.decode import IMAGE_SUFFIXES
from lmdbloader.store.lmdb_file import lmdb_file

LAYOUTS = get_args(Layout)


def list_sources(
    src: Location | None,
    *,
    layout: Layout | Literal["auto"] = "auto",
    hr: Location | None = None,
    lr: Location | None = None,
    prefer_images: bool = False,
) -> Listing:
    """Return the images or pairs in a folder, an LMDB or tars.

    Args:
        src: The folder, LMDB or tar, or a URL; not needed with `hr` and `lr`.
        layout: "auto" takes pairs where `hr` and `lr` are given or the folder has a subfolder of each kind, an LMDB or
            tars where they are there, classes where the images lie in two or more subfolders and none beside them,
            images otherwise.
        hr: Folder or LMDB of the high-resolution images of pairs.
        lr: Folder or LMDB of their low-resolution images.
        prefer_images: Never take subfolders for classes by itself.

    Raises:
        SourceError: No such folder, no images in it, or pairs that do not match.
        OptionError: Options that contradict each other.
    """
    if layout not in ("auto", *LAYOUTS):
        raise OptionError(f"layout {layout!r}: expected auto, {', '.join(LAYOUTS)}")
    if (hr is None) != (lr is None):
        raise OptionError("--hr and --lr go together: give the folders of both halves of the pairs")
    if hr is not None and lr is not None:
        if layout not in ("auto", "pairs", "lmdb"):
            raise OptionError(f"layout {layout!r} with --hr and --lr: they make pairs")
        if src is not None:
            raise OptionError(f"{src} together with --hr and --lr: give either one folder or the two")
        listing = match(hr, _find(hr, layout), lr, _find(lr, layout))
    elif src is None:
        raise OptionError("nothing to convert: give a folder, or --hr and --lr")
    else:
        listing = _list_one(src, layout, prefer_images)
    remote = any(isinstance(place, str) and only_here(place) for place in (src, hr, lr))
    return replace(listing, in_process=remote)


def _list_one(src: Location, layout: Layout | Literal["auto"], prefer_images: bool) -> Listing:
    if layout == "tar" or (layout == "auto" and _holds_tars(src)):
        return list_tars(src)
    if layout == "lmdb" or (layout == "auto" and _is_lmdb(src)):
        found = find_lmdb_images(_local(src))
        return Listing("lmdb", Sources(found.names, found.nbytes, spans=found.spans), ignored=found.ignored)
    if layout in ("auto", "pairs") and isinstance(src, Path) and src.is_dir() and (halves := find_halves(src)):
        high, low = halves
        return match(high, find_images(high), low, find_images(low))
    if layout == "pairs":
        raise SourceError(f"{src}: has no pair of folders named like x_HR and x_LR. Name them with --hr and --lr.")
    images = _find(src, layout)
    if not len(images.names):
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise SourceError(f"{src}: no images in it (looked for {suffixes} in it and the folders below)")
    sources = Sources(images.names, images.nbytes)
    found_images = Listing("images", sources, ignored=images.ignored, changed_ns=images.changed_ns)
    if layout == "images" or (layout == "auto" and prefer_images):
        return found_images
    loose = next((name for name in images.names if b"/" not in name), None)
    if loose is not None and layout == "auto":
        return found_images
    if loose is not None:
        raise SourceError(f"{src}: {as_text(loose)} lies in no class folder. Move it into one, or use --layout images.")
    classes = sorted({_class_of(name) for name in images.names})
    return found_images if layout == "auto" and len(classes) == 1 else _label(src, found_images, classes)


def _find(place: Location, layout: Layout | Literal["auto"]) -> Found:
    """Return the images of a folder, of what is one behind a URL, or of an LMDB."""
    if layout == "lmdb" or _is_lmdb(place):
        return find_lmdb_images(_local(place))
    return find_remote_images(place) if isinstance(place, str) else find_images(place)


def _is_lmdb(place: Location) -> bool:
    return isinstance(place, Path) and lmdb_file(place) is not None


def _holds_tars(src: Location) -> bool:
    """Return whether a source is a tar or a pattern of tars, or a folder with tars in it and no image."""
    if is_tar_name(os.fspath(src)):
        return not (isinstance(src, Path) and src.is_dir())
    if isinstance(src, str) or not src.is_dir():
        return False
    return any(is_tar_name(p.name) for p in src.iterdir()) and not len(find_images(src).names)


def _local(place: Location) -> Path:
    if isinstance(place, str):
        raise OptionError(f"{place}: an LMDB is read from a disk. Copy it to one first.")
    return place


def _class_of(name: bytes) -> bytes:
    return name.partition(b"/")[0]


def _label(src: Location, found: Listing, classes: Sequence[bytes]) -> Listing:
    numbers = {name: i for i, name in enumerate(classes)}
    names = found.sources.names
    labels = np.fromiter((numbers[_class_of(name)] for name in names), np.int64, len(names))
    empty: list[tuple[str, str]] = []
    if isinstance(src, Path):
        with os.scandir(os.fsencode(src)) as entries:
            folders = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        empty = [(as_text(name) + "/", "a class folder without images") for name in folders if name not in numbers]
    return replace(
        found,
        layout="classes",
        sources=replace(found.sources, labels=labels),
        classes=tuple(map(as_text, classes)),
        fields=(("label", "int"),),
        ignored=(*found.ignored, *empty),
    )
