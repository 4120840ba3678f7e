"""Finds folders that probably mean something else than they would be read as: they are refused, or there is a note."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from lmdbloader.base.option_names import flags_in_use, option, pasted, pasted_convert
from lmdbloader.base.text import counted, extent, first_of
from lmdbloader.conversion.options import RunOptions
from lmdbloader.conversion.sources.folders import have_equal_names, holds_images
from lmdbloader.conversion.sources.listing import Listing, Location, Names, as_text, stem_of
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import SourceError
from lmdbloader.format.folder_names import (
    half_of,
    is_high,
    is_low,
    is_of_images,
    is_of_masks,
    is_of_targets,
    is_of_training,
    is_split,
    without_mask_suffix,
)
from lmdbloader.store import is_dataset

_NAMES_SHOWN = 3
# Files that often hold labels of the images next to them.
_ANNOTATIONS = {"*.csv", "*.json", "*.jsonl", "*.mat", "*.parquet", "*.tsv", "*.txt", "*.xml"}
_OTHER_IMAGES = {"*.avif", "*.exr", "*.hdr", "*.heic", "*.heif", "*.jp2", "*.jxl", "*.psd", "*.svg", "*.tga"}
_OTHER_IMAGES |= {"*.apng", "*.dib", "*.jfif", "*.jif", "*.jpe", "*.jpg_large"}
_OTHER_IMAGES |= {"*.arw", "*.cr2", "*.dcm", "*.dng", "*.nef", "*.npy", "*.npz", "*.raw"}
_NAMES_TRIED = 1000


def refuse_swapped(src: str | os.PathLike[str] | None, out: Path, options: RunOptions) -> None:
    """Refuse a source that is not a folder of images if the destination is one.

    Raises:
        SourceError: The two are swapped.
    """
    place = None if src is None else locate(src)
    if not isinstance(place, Path) or not out.is_dir() or is_dataset(out):
        return
    what = "is a dataset of lmdbloader" if is_dataset(place) else "" if place.exists() else "there is no such folder"
    if what and holds_images(out):
        names = flags_in_use() or [f.name for f in fields(options) if f.name != "log"]
        given = {f.name: value for f in fields(options) if (value := getattr(options, f.name)) != f.default}
        line = pasted_convert(out, place, **{name: value for name, value in given.items() if name in names})
        raise SourceError(f"{place}: {what}, and {out} holds images. The source comes first. Write: {line}")


def notes_on(src: Location, listing: Listing, *, is_sure: bool, wants_labels: bool) -> tuple[str, ...]:
    """Return notes, as sentences, about what is in a folder but will not be in the dataset.

    Args:
        src: The folder.
        listing: What was found in it.
        is_sure: Whether the caller named the layout.
        wants_labels: Whether folders may be classes.

    Raises:
        SourceError: The layout was guessed, and the folder's subfolders have names of splits, of masks or of halves of
            pairs. The message has the line for each meaning.
    """
    if listing.layout not in ("images", "classes"):
        return ()
    folders = _find_folders(listing)
    if not is_sure:
        splits = [name for name in folders.names if is_split(name)]
        training = [name for name in splits if is_of_training(name)]
        if training and len(training) < len(splits):
            raise _splits_error(src, folders, splits)
        if listing.layout == "classes" or not folders.num_loose:
            _refuse_other_folders(src, folders)
            if halves := _find_halves(listing.sources.names):
                raise _halves_error(src, listing.sources.names, *halves)
        if 1 < len(training) == len(folders.names):  # CycleGAN's trainA and trainB, train2014 and train2017
            raise _splits_error(src, folders, splits)
    found = [] if is_sure and listing.layout == "images" else _note_labels(src, listing, folders, wants_labels)
    if not is_sure and (masks := _masks_next_to_images(listing.sources.names)):
        found.append(f"{masks} and other images are named like masks. Each of them will be a separate image")
    if not is_sure and folders.num_loose and (halves := _find_halves(listing.sources.names)):
        names = " and ".join(as_text(name) for name in halves)
        found.append(f"{names} are probably halves of a pair. Each of them will be a separate image")
    if hidden := _first_hidden(listing.sources.names):
        found.append(f"hidden files are read too, such as {hidden}")
    suffixes = [name for name, _ in listing.ignored]
    if others := [name for name in suffixes if name in _OTHER_IMAGES]:
        found.append(f"{_joined(others)} files are not read. If they are images, convert them to PNG or JPEG first")
    if others := [name for name in suffixes if name in _ANNOTATIONS]:
        found.append(
            f"{_joined(others)} files are not read: labels, boxes or captions in them will not be in the dataset. "
            f"{_line_for_boxes(others)}Write samples that have them with lmdbloader.write(samples, out)"
        )
    return tuple(found)


def _line_for_boxes(suffixes: list[str]) -> str:
    lines = {
        "*.json": f"COCO's boxes: {option('layout', 'coco')}",
        "*.txt": f"YOLO's boxes: {option('layout', 'yolo')}",
    }
    return "".join(f"{line}. " for suffix, line in lines.items() if suffix in suffixes)


def _splits_error(src: Location, folders: _Folders, splits: list[str]) -> SourceError:
    """Return the error for a folder that holds splits of a dataset."""
    place = _below(src, folders.inside) if folders.inside else str(src)
    return SourceError(
        f"{place}: holds {_shown(splits)}, which are probably splits of a dataset. {_line_for_splits(src, place)} "
        f"{_insist()}; for one dataset of all of them, {option('layout', 'images')}."
    )


def _refuse_other_folders(src: Location, folders: _Folders) -> None:
    names, place, insist = folders.names, str(src), f"{_insist()}."
    if folders.inside:
        place = _below(src, folders.inside)
        insist = f"For one dataset of all of them, write {option('layout', 'images')}."
    images, targets = list(filter(is_of_images, names)), list(filter(is_of_targets, names))
    if images and targets:
        masks = next(filter(is_of_masks, targets), None)
        both = "" if masks is None else pasted_convert(f"{place}/{images[0]}", masks=f"{place}/{masks}")
        advice = f"For images with masks, write {both}. " if both else ""
        if isinstance(src, Path) and any(_holds_texts(Path(place, name)) for name in targets):
            advice = f"For images with YOLO's boxes, write {option('layout', 'yolo')}. "
        raise SourceError(
            f"{place}: holds {_shown([*images, *targets])}, which are probably images and their masks or labels. "
            f"{advice}For the images alone, convert {place}/{images[0]}. {insist}"
        )
    high, low = list(filter(is_high, names)), list(filter(is_low, names))
    if high and low:
        line = pasted(hr=f"{place}/{high[0]}", lr=f"{place}/{low[0]}")
        raise SourceError(
            f"{place}: holds {_shown([*high, *low])}, which are probably halves of pairs. Write {line}, and leave "
            f"{option('src')} out. {insist}"
        )


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


def _halves_error(src: Location, names: Names, high: bytes, low: bytes) -> SourceError:
    """Return the error for a folder of images that are probably halves of pairs, given those of one pair."""
    places = [name.split(b"/")[:-1] for name in (high, low)]
    while min(map(len, places)) > 1 and places[0][-1] == places[1][-1]:
        places = [place[:-1] for place in places]
    hr, lr = (as_text(b"/".join(place)) for place in places)
    line = pasted(hr=_below(src, hr), lr=_below(src, lr))
    are_apart = (
        all(places)
        and have_equal_names(high, low)
        and all(name.startswith((b"/".join(places[0]) + b"/", b"/".join(places[1]) + b"/")) for name in names)
    )
    first = "" if are_apart else "put the halves into a folder of each, under equal names, and "
    return SourceError(
        f"{src}: holds {as_text(high)} and {as_text(low)}, which are probably halves of a pair. If one is 2 to 8 times "
        f"as high as the other, {first}write {line if are_apart else pasted(hr='HIGH', lr='LOW')}, and leave "
        f"{option('src')} out. Pairs of one size: lmdbloader.write(samples, out), with an image field for each half. "
        f"{_insist()}; for one dataset of all images, {option('layout', 'images')}."
    )


def _note_labels(src: Location, listing: Listing, folders: _Folders, wants_labels: bool) -> list[str]:
    """Return a note about folders that may be classes, but are not."""
    names, classes = folders.names, option("layout", "classes")
    if not wants_labels:
        is_doubtful = listing.layout == "images" and len(names) > 1 and not folders.num_loose and not folders.inside
        return [
            f"with patches or scales, the folders {_shown(names)} give no labels. If they are classes, write {classes}"
        ] * is_doubtful
    if folders.inside and len(names) > 1:
        place = _below(src, folders.inside)
        return [f"all images are in {place}. If its folders ({_shown(names)}) are classes, convert {place} instead"]
    if listing.layout == "classes":
        return []
    if folders.num_loose:
        if len(names) < 2 or 2 * folders.num_loose > len(listing.sources):
            return []
        loose, it = (
            (f"{folders.loose} is", "it") if folders.num_loose == 1 else (f"{folders.loose} and others are", "them")
        )
        return [
            f"{loose} in no folder, so {_shown(names)} give no labels. If they are classes, move {it} into one of them"
        ]
    only = folders.inside or names[0]
    return [f"all images are in {_below(src, only)}, so they have no labels. If it is a class, write {classes}"]


def _holds_texts(folder: Path) -> bool:
    """Return whether a folder has text files."""
    with os.scandir(folder) as entries:
        return any(entry.name.endswith(".txt") for entry in entries)


def _masks_next_to_images(names: Names) -> str:
    """Return the first image with the name of a mask if every second or third of the first images has one, else ""."""
    first = [names[number] for number in range(min(len(names), _NAMES_TRIED))]
    stems = {stem_of(name) for name in first}
    found = [name for name in first if without_mask_suffix(stem_of(name)) in stems - {stem_of(name)}]
    return as_text(found[0]) if found and 3 * len(found) >= len(first) else ""


def _first_hidden(names: Names) -> str:
    """Return the first name with a part that begins with a dot, "" if there is none."""
    is_hidden = np.frombuffer(names.text, np.uint8)[names.bounds[:-1]] == ord(".")
    at = names.text.find(b"/.")
    numbers = [*np.flatnonzero(is_hidden)[:1], *[np.searchsorted(names.bounds, at, "right") - 1] * (at >= 0)]
    return as_text(names[int(min(numbers))]) if numbers else ""


def describe_classes(images_of: dict[str, int], what: str = "image") -> str:
    """Return the classes and their numbers of images or boxes; of many classes, the first and the last.

    >>> describe_classes({"cat": 1200, "dog": 31})
    '2 classes: cat (1,200 images), dog (31)'
    >>> describe_classes({f"n{i:03}": 7 + i for i in range(1000)})
    '1,000 classes of 7 to 1,006 images: n000 (7), n001 (8), n002 (9) ... n999 (1,006)'
    """
    whats = f"{what}es" if what == "box" else f"{what}s"
    parts = [f"{name} ({count:,})" for name, count in images_of.items()]
    most = 2 * _NAMES_SHOWN
    if len(parts) <= most:
        first = next(iter(images_of.values()), 0)
        parts[:1] = [f"{name} ({counted(first, what, whats)})" for name in list(images_of)[:1]]
        return f"{counted(len(parts), 'class', 'classes')}: {', '.join(parts)}"
    counts = images_of.values()
    sizes = extent((min(counts), max(counts)))
    return f"{len(parts):,} classes of {sizes} {whats}: {', '.join(parts[:_NAMES_SHOWN])} ... {parts[-1]}"


@dataclass(frozen=True, slots=True)
class _Folders:
    """The folders that hold the images.

    Attributes:
        inside: The folder that all images are in, below the source; "" for the source itself.
        names: The folders directly in it that hold images.
        num_loose: Images that are in none of these.
        loose: The name of one of them.
    """

    inside: str
    names: list[str]
    num_loose: int
    loose: str


def _find_folders(listing: Listing) -> _Folders:
    names = listing.sources.names
    tops = _Folders("", [*listing.classes], 0, "") if listing.classes else _folders_in(names, "")
    if len(tops.names) != 1 or tops.num_loose:
        return tops
    inner = _folders_in(names, tops.names[0])
    return inner if inner.names else tops


def _folders_in(names: Names, inside: str) -> _Folders:
    """Return the folders directly in the source, or in its folder `inside` that holds all images."""
    start = len(names[0].partition(b"/")[0]) + 1 if inside else 0
    found: set[bytes] = set()
    num_loose, loose = 0, b""
    for name in names:
        top, slash, _ = name[start:].partition(b"/")
        if slash:
            found.add(top)
        else:
            num_loose, loose = num_loose + 1, loose or name
    return _Folders(inside, sorted(map(as_text, found)), num_loose, as_text(loose))


def _insist() -> str:
    return f"If they are classes, write {option('layout', 'classes')}"


def _line_for_splits(src: Location, place: str) -> str:
    if isinstance(src, str):
        return "Convert them one by one: splits are found only in local folders."
    if "split" in flags_in_use():
        return f"For a dataset of each, write: {pasted_convert(place)} --split."
    return (
        f"For a dataset of each, write `for split in lmdbloader.find_splits({place!r}): "
        'lmdbloader.convert(split.path, f"{split.name}.lmdb", classes=split.classes)`.'
    )


def _below(src: Location, name: str) -> str:
    return str(src / name) if isinstance(src, Path) else f"{src.rstrip('/')}/{name}"


def _shown(names: list[str]) -> str:
    return first_of([f"{name}/" for name in names], _NAMES_SHOWN)


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
