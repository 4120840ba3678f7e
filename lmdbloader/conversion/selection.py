"""The sources that are converted: splits of a folder, a random subset, and the labels of classes."""

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
from lmdbloader.conversion.sources.layouts import Layout, list_sources
from lmdbloader.conversion.sources.listing import Listing, Names, is_image_name
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import OptionError, SourceError

_U64 = npt.NDArray[np.uint64]


def choose_subset(listing: Listing, count: int, seed: int) -> Listing:
    """Return a listing with so many of its sources, chosen at random and kept in order.

    Every source draws a number that depends on its name and the seed only; those with the least are taken, so a smaller
    subset is a part of a larger one.

    Raises:
        OptionError: There are fewer sources.
    """
    total = len(listing.sources)
    if not 1 <= count <= total:
        raise OptionError(f"{option('subset', count)} of {total} sources: expected 1 to {total}")
    order = np.argsort(_mixed(_hashes(listing.sources.names) ^ _mixed(np.array([seed], np.uint64))), kind="stable")
    return replace(listing, sources=listing.sources.take(np.sort(order[:count])))


def _hashes(names: Names) -> _U64:
    from lmdbloader.kernels.gather import hash_many

    found = np.empty(len(names), np.uint64)
    hash_many(np.frombuffer(names.text, np.uint8), names.bounds[:-1], np.diff(names.bounds), found)
    return found


def _mixed(words: _U64) -> _U64:
    """Return words whose every bit depends on all bits of the given ones (Steele et al., SplitMix64, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def with_classes(listing: Listing, classes: Sequence[str]) -> Listing:
    """Return a listing of class folders whose labels are numbers in a given list of classes.

    Raises:
        OptionError: There are no class folders, or one of them is not in the list; or the names are not a
            list of different ones.
    """
    names = ordered_texts("classes", classes)
    if listing.layout != "classes" or listing.sources.labels is None:
        raise OptionError(f"classes are given, and the layout is {listing.layout!r}: expected class folders")
    numbers = {name: i for i, name in enumerate(names)}
    unknown = [name for name in listing.classes if name not in numbers]
    if unknown:
        raise OptionError(f"class folder {unknown[0]!r} is none of the {len(names)} classes given")
    labels = np.array([numbers[name] for name in listing.classes], np.int64)[listing.sources.labels]
    return replace(listing, sources=replace(listing.sources, labels=labels), classes=names)


# One of them must be there: class folders, taken for splits by mistake, would become a dataset each.
_NAMES = frozenset(
    {"train", "training", "trainval", "val", "valid", "validation", "test", "testing", "dev", "eval", "evaluation"}
)


@dataclass(frozen=True, slots=True)
class Split:
    """One of the folders below a common one.

    Attributes:
        name: Of the folder: train, val ...
        path: Of the folder.
        classes: Names of the classes of all splits by label; None where they hold no class folders.
    """

    name: str
    path: Path
    classes: tuple[str, ...] | None


def find_splits(
    src: str | os.PathLike[str], *, layout: Layout | Literal["auto"] = "auto", prefer_images: bool = False
) -> list[Split]:
    """Return the folders below one, each of which `convert` makes a dataset of: train/, val/ and others with images.

    Where they hold class folders, a class has the same label in all of them: its number among the classes of all
    splits, in byte order.

    Args:
        src: The folder with the splits.
        layout: Of each split, as for `convert`.
        prefer_images: Never take folders for classes where the layout is "auto".

    Raises:
        SourceError: No folder in `src` is called train, val, test or the like, or one of these holds no images.
        OptionError: They are laid out differently.

    >>> for split in lmdbloader.find_splits("imagenet"):  # doctest: +SKIP
    ...     lmdbloader.convert(split.path, f"data/{split.name}.lmdb", classes=split.classes)
    """
    folder = locate(src)
    if isinstance(folder, str):
        raise OptionError(f"{folder}: splits are looked for in local folders. Convert what is behind a URL one by one.")
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder")
    paths = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith("."))
    if not any(p.name.lower() in _NAMES for p in paths):
        raise SourceError(f"{folder}: holds no folders like train/ and val/. Convert it as a whole.")
    paths = [p for p in paths if p.name.lower() in _NAMES or _holds_images(p)]
    listings = [list_sources(path, layout=layout, prefer_images=prefer_images) for path in paths]
    layouts = {listing.layout for listing in listings}
    if len(layouts) > 1:
        found = ", ".join(f"{p.name}: {listing.layout}" for p, listing in zip(paths, listings, strict=True))
        raise OptionError(f"{folder}: its folders are laid out differently ({found}). Say how with {option('layout')}.")
    classes = None
    if layouts == {"classes"}:
        classes = tuple(sorted({name for listing in listings for name in listing.classes}, key=os.fsencode))
    return [Split(path.name, path, classes) for path in paths]


def _holds_images(folder: Path) -> bool:
    """Return whether there is any image in a folder; folders of other things often lie beside the splits."""
    return any(is_image_name(os.fsencode(name)) for _, _, names in os.walk(folder) for name in names)
