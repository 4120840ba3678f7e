"""The sources that are converted, and their order: splits of a folder, a random subset, and the labels of classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import ordered_texts
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted
from lmdbloader.conversion.doubts import refuse_halves, refuse_mistaken
from lmdbloader.conversion.sources.clips import FIELDS
from lmdbloader.conversion.sources.folders import holds_images, is_circular
from lmdbloader.conversion.sources.layouts import Layout, list_sources
from lmdbloader.conversion.sources.listing import Listing, Names, is_litter
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import OptionError, SourceError, SourceNotFoundError
from lmdbloader.format.folder_names import SPLITS, is_split
from lmdbloader.kernels import entries

_U64 = npt.NDArray[np.uint64]


def choose_subset(listing: Listing, count: int, seed: int) -> Listing:
    """Return a listing with some of its sources, chosen at random and kept in order.

    Every source gets a number that depends only on its name and the seed. Those with the least numbers are taken, so a
    smaller subset is a part of a larger one.

    Raises:
        OptionError: The listing has fewer sources.
    """
    total = len(listing.sources)
    if not 1 <= count <= total:
        raise OptionError(f"{option('subset', count)} of {counted(total, 'source')}: expected 1 to {total}")
    order = _random_order(listing.sources.names, seed)
    return replace(listing, sources=listing.sources.take(np.sort(order[:count])))


def shuffle(listing: Listing, seed: int) -> Listing:
    """Return a listing with its sources in a random order, which depends only on the seed and their names.

    Two sources keep their order when others are added or removed. With the seed of a subset, the first sources are it.
    Frames of a clip stay together, in their order.
    """
    names = listing.sources.names
    order = _random_order(names, seed)
    if listing.fields == FIELDS:
        folders = list(map(os.path.dirname, names))
        clips = Names.join(names.folder, dict.fromkeys(folders))
        place = dict(zip(clips, np.argsort(_random_order(clips, seed)).tolist(), strict=True))
        order = np.argsort([place[folder] for folder in folders], kind="stable")
    return replace(listing, sources=listing.sources.take(order))


def _random_order(names: Names, seed: int) -> npt.NDArray[np.int64]:
    return np.argsort(mixed(_hashes(names) ^ mixed(np.array([seed], np.uint64))), kind="stable")


def _hashes(names: Names) -> _U64:
    found = np.empty(len(names), np.uint64)
    bounds = names.bounds.astype(np.int64, copy=False)
    entries.xxh64_many(np.frombuffer(names.text, np.uint8), bounds[:-1], np.diff(bounds), found)
    return found


def mixed(words: _U64) -> _U64:
    """Return mixed words: every bit depends on all bits of the input (Steele et al., SplitMix64, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def with_classes(listing: Listing, classes: Sequence[str]) -> Listing:
    """Return a listing of class folders whose labels are indices into a given list of classes.

    Raises:
        OptionError: The inputs have no classes, one of them is not in the list, or the list has equal names.
    """
    names = ordered_texts("classes", classes)
    boxes = listing.sources.annotations
    if boxes is None and (listing.layout != "classes" or listing.sources.labels is None):
        raise OptionError(f"{option('classes')} is given, but the layout is {listing.layout!r}: expected class folders")
    numbers = {name: i for i, name in enumerate(names)}
    unknown = [name for name in listing.classes if name not in numbers]
    if unknown:
        what = "class folder" if boxes is None else "category"
        raise OptionError(f"{what} {unknown[0]!r} is not among the {len(names)} classes given")
    numbered = np.array([numbers[name] for name in listing.classes], np.int64)
    if boxes is not None:
        changed = replace(listing.sources, annotations=replace(boxes, labels=numbered[boxes.labels]))
    else:
        changed = replace(listing.sources, labels=numbered[listing.sources.labels])
    return replace(listing, sources=changed, classes=names)


@dataclass(frozen=True, slots=True)
class Split:
    """One of the splits in a folder.

    Attributes:
        name: The folder's name: train, val ...
        path: The folder's path.
        classes: Class names of all splits by label; None without class folders.
    """

    name: str
    path: Path
    classes: tuple[str, ...] | None


def find_splits(
    src: str | os.PathLike[str], *, layout: Layout | Literal["auto"] = "auto", prefer_images: bool = False
) -> list[Split]:
    """Return the splits in a folder, each for a dataset of its own: train/, val/ and others with images.

    With class folders, a class has the same label in all splits: its index among the classes of all splits, in byte
    order.

    Args:
        src: The folder with the splits.
        layout: The layout of each split, as in `convert`.
        prefer_images: With layout "auto", never take folders for classes.

    Raises:
        SourceNotFoundError: There is nothing at `src`.
        SourceError: No folder in `src` is called train, val, test or the like, one of them holds no images, or they
            seem to be the halves of pairs.
        OptionError: The splits have different layouts.

    >>> for split in lmdbloader.find_splits("imagenet"):  # doctest: +SKIP
    ...     lmdbloader.convert(split.path, f"data/{split.name}.lmdb", classes=split.classes)
    """
    folder = locate(src)
    if isinstance(folder, str):
        raise OptionError(
            f"{folder}: is a URL; splits are found only in local folders. Convert its folders one by one."
        )
    if not folder.is_dir():
        raise SourceNotFoundError(f"{folder}: there is no such folder")
    paths = sorted(
        p for p in folder.iterdir() if p.is_dir() and not is_litter(os.fsencode(p.name) + b"/") and not is_circular(p)
    )
    if not any(is_split(p.name) for p in paths):
        raise SourceError(f"{folder}: holds no folders like train/ and val/. Convert it as a whole.")
    # Arrays next to folders of photographs are hardly a split.
    rasters = not any(holds_images(p, rasters=False) for p in paths)
    paths = [p for p in paths if p.name.lower() in SPLITS or holds_images(p, rasters=rasters)]
    # What is missing is refused when the split is converted, unless it may be left out.
    listings = [list_sources(path, layout=layout, prefer_images=prefer_images, skip=True) for path in paths]
    if layout in ("auto", "clips"):
        refuse_halves(folder, {path.name: found.sources.names for path, found in zip(paths, listings, strict=True)})
    layouts = {listing.layout for listing in listings}
    if len(layouts) > 1:
        found = ", ".join(f"{p.name}: {listing.layout}" for p, listing in zip(paths, listings, strict=True))
        flat = [p.name for p, listing in zip(paths, listings, strict=True) if listing.layout == "images"]
        why = f" In {', '.join(flat)} there are no class folders." if layouts == {"classes", "images"} else ""
        raise OptionError(
            f"{folder}: its folders have different layouts ({found}).{why} Choose one with {option('layout')}, or "
            "convert them one by one."
        )
    if layout in ("auto", "clips"):
        for path, listing in zip(paths, listings, strict=True):
            refuse_mistaken(path, listing)
    classes = None
    for path, listing in zip(paths, listings, strict=True):
        if listing.sources.annotations is not None and listing.classes != listings[0].classes:
            raise OptionError(
                f"{path}: has other classes of boxes than {paths[0]}, so labels would differ. Convert them one by "
                "one, with the names of all classes in one order: classes=[...] in Python."
            )
    if layouts == {"classes"}:
        classes = tuple(sorted({name for listing in listings for name in listing.classes}, key=os.fsencode))
    return [Split(path.name, path, classes) for path in paths]
