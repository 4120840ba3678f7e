"""Which of a listing's sources are converted, and under which labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import ordered_texts
from lmdbloader.conversion.sources import Listing, Names
from lmdbloader.errors import OptionError

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
        raise OptionError(f"a subset of {count} of {total} sources: expected 1 to {total}")
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
