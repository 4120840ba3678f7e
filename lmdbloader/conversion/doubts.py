"""Refuses sources that probably mean something else than they would be read as: they would be wrong datasets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.base.text import first_of
from lmdbloader.conversion.sources.folders import holds_images, without_scale
from lmdbloader.conversion.sources.listing import Listing, Location, Names, as_text, stem_of
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import SourceError
from lmdbloader.format.folder_names import (
    half_of,
    is_high,
    is_low,
    is_of_images,
    is_of_masks,
    is_of_scale,
    is_of_training,
    is_split,
    without_mask_suffix,
)
from lmdbloader.store import is_dataset

_NAMES_TRIED = 1000


def refuse_swapped(src: str | os.PathLike[str] | None, out: Path) -> None:
    """Refuse a source that is not a folder of images if the destination is one.

    Raises:
        SourceError: The two are swapped.
    """
    place = None if src is None else locate(src)
    if not isinstance(place, Path) or not out.is_dir() or is_dataset(out):
        return
    what = "is a dataset of lmdbloader" if is_dataset(place) else "" if place.exists() else "there is no such folder"
    if what and holds_images(out):
        raise SourceError(f"{place}: {what}, and {out} holds images. The source comes first.")


def refuse_mistaken(src: Location, listing: Listing) -> None:
    """Refuse a folder that was detected as images or classes, or named as clips, if its names say something else.

    Args:
        src: The folder.
        listing: What was found in it. Clips are refused only if they are halves of pairs.

    Raises:
        SourceError: It seems to hold splits, images with masks, halves of pairs, or images at several scales.
    """
    if listing.layout not in ("images", "classes", "clips"):
        return
    are_clips = listing.layout == "clips"
    names = listing.sources.names
    inside, folders, has_loose = _folders_of(listing)
    place = src if not inside else src / inside if isinstance(src, Path) else f"{src.rstrip('/')}/{inside}"
    splits = [name for name in folders if is_split(name)]
    training = [name for name in splits if is_of_training(name)]
    halves = _find_halves(names)
    # CycleGAN's trainA and trainB, train2014 and train2017 are splits too; train_sharp and train_sharp_bicubic are not.
    is_split_up = len(training) < len(splits) or (1 < len(training) == len(folders) and not halves)
    if training and is_split_up and not are_clips:
        line = "Convert each on its own"
        if isinstance(src, Path):
            line += ", or all with `lmdbloader convert --split`"
        raise _refused(place, _shown(splits), "splits of a dataset", line)
    if not has_loose:
        images, masks = list(filter(is_of_images, folders)), list(filter(is_of_masks, folders))
        if images and masks and not are_clips:
            line = f"Write {option('layout', 'masks')}, or convert {images[0]}/ with {option('masks')}"
            raise _refused(place, _shown([*images, *masks]), "images and their masks", line)
        scales = list(filter(is_of_scale, folders))
        high = [name for name in folders if is_high(name) or (scales and half_of(name)[0] == "high")]
        low = [*filter(is_low, folders), *scales]
        if high and low:
            raise _refused(place, _shown([*high, *low]), "halves of pairs", _line_for_halves(), are_clips)
        if 1 < len(scales) == len(folders) and _are_of_equal_names(names, scales):
            raise _refused(place, _shown(folders), "the same images at several scales", _line_for_halves(), are_clips)
    if halves:
        line = _line_for_halves()
        if not are_clips:
            line += f", or write {option('layout', 'pairs')}, which pairs them by these words"
        raise _refused(src, " and ".join(map(as_text, halves)), "halves of a pair", line, are_clips)
    if not are_clips and (mask := _find_mask(names)):
        line = f"Put the masks into a folder of their own, and name it with {option('masks')}"
        raise _refused(src, mask, "the mask of another image", line)


def refuse_halves(src: Path, splits: Mapping[str, Names]) -> None:
    """Refuse splits that are all of training and seem to be the halves of pairs, such as those of REDS.

    Args:
        src: The folder of the splits.
        splits: The names of the images in each.

    Raises:
        SourceError: They are halves.
    """
    if len(splits) > 1 and all(map(is_of_training, splits)):
        names = (os.fsencode(split) + b"/" + name for split, found in splits.items() for name in found)
        if halves := _find_halves(Names.join(b"", names)):
            what = f"holds {' and '.join(map(as_text, halves))}, probably halves of a pair and not splits"
            raise SourceError(f"{src}: {what}. {_line_for_halves()}, or convert each on its own.")


def refuse_swapped_halves(hr: Any, lr: Any) -> None:
    """Refuse folders of pairs of one size if their names say that they are swapped; their sizes cannot.

    Args:
        hr: The folder of HR images, None if it was not given.
        lr: That of LR images.

    Raises:
        SourceError: Such as hr=noisy with lr=clean.
    """
    high, low = ([*Path(str(place)).parts] for place in (hr, lr))
    of_high = half_of("/".join(part for part in high if part not in low))[0]
    of_low = half_of("/".join(part for part in low if part not in high))[0]
    if (of_high, of_low) == ("low", "high"):
        raise SourceError(
            f"{option('hr')} is {hr} and {option('lr')} is {lr}, probably swapped: HR images are the sharp or clean "
            f"ones. Write {option('hr', str(lr))} and {option('lr', str(hr))}, or give the folders other names."
        )


def splits_as_classes(classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return a note if the names of all classes are those of splits, which was asked for."""
    if not classes or not all(map(is_split, classes)):
        return ()
    return (f"the classes are {', '.join(classes)}: `lmdbloader convert --split` makes a dataset of each.",)


def _refused(place: Location, what: str, probably: str, line: str, are_clips: bool = False) -> SourceError:
    insist = f"{option('layout', 'classes')} takes folders for classes, {option('layout', 'images')} every image alike"
    if are_clips:
        insist = "To make clips of all of them, give the folders other names"
    return SourceError(f"{place}: holds {what}, probably {probably}. {line}. {insist}.")


def _are_of_equal_names(names: Names, folders: Sequence[str]) -> bool:
    """Return whether most images in a folder of one scale have the name of one in the next folder, as 1x2 and 1x3."""
    found: list[set[bytes]] = []
    for folder in map(os.fsencode, folders[:2]):
        inside = (name.rpartition(folder + b"/")[2] for name in names if folder + b"/" in name)
        found.append({without_scale(stem_of(name)) for name in inside})
    return 2 * len(found[0] & found[1]) > min(map(len, found))


def _line_for_halves() -> str:
    return f"Name the folder of each half with {option('hr')} and {option('lr')}"


def _find_halves(names: Names) -> tuple[bytes, bytes] | None:
    """Return the names of the high and the low half of a pair if most images seem to be halves of pairs, else None."""
    tried = [names[at] for at in np.unique(np.linspace(0, len(names) - 1, _NAMES_TRIED).astype(int)).tolist()]
    # The high half may have a name that says nothing: vimeo/00001/1.png, vimeo_LRx4/00001/1.png.
    num_low = [half_of(as_text(stem_of(name)))[0] for name in tried].count("low")
    if not len(tried) <= 4 * num_low < 4 * len(tried):
        return None
    found: dict[str, dict[str, bytes]] = {}
    counts: Counter[str] = Counter()
    for name in names:
        half, pair = half_of(as_text(stem_of(name)))
        found.setdefault(pair, {}).setdefault("low" if half == "low" else "high", name)
        counts[pair] += 1
    pairs = [pair for pair, halves in found.items() if len(halves) == 2]
    if 3 * sum(counts[pair] for pair in pairs) < 2 * len(names):
        return None
    return found[pairs[0]]["high"], found[pairs[0]]["low"]


def _find_mask(names: Names) -> str:
    """Return the first image with the name of a mask if every second or third of the first images has one, else ""."""
    first = [names[number] for number in range(min(len(names), _NAMES_TRIED))]
    stems = {stem_of(name) for name in first}
    found = [name for name in first if without_mask_suffix(stem_of(name)) in stems - {stem_of(name)}]
    return as_text(found[0]) if found and 3 * len(found) >= len(first) else ""


def _folders_of(listing: Listing) -> tuple[str, list[str], bool]:
    """Return the folder that all images are in, "" for the source; the folders in it; and if images are in none."""
    names = listing.sources.names
    if listing.classes:
        folders, has_loose = [*listing.classes], False
    else:
        folders, has_loose = _folders_in(names, 0)
    if len(folders) != 1 or has_loose:
        return "", folders, has_loose
    inner, has_inner_loose = _folders_in(names, len(os.fsencode(folders[0])) + 1)
    return (folders[0], inner, has_inner_loose) if inner else ("", folders, has_loose)


def _folders_in(names: Names, start: int) -> tuple[list[str], bool]:
    """Return the folders in the names of images from a position on, and whether images are in none of them."""
    tops = {name[start:].partition(b"/")[0] if b"/" in name[start:] else b"" for name in names}
    return sorted(as_text(top) for top in tops if top), b"" in tops


def _shown(names: list[str]) -> str:
    return first_of([f"{name}/" for name in names], 3)
