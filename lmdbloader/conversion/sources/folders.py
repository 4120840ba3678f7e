"""Folders of images, local or at URLs: the images below one, class folders, and pairs of folders."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.base.text import first_of
from lmdbloader.conversion.sources.listing import (
    I64,
    LR,
    Listing,
    Location,
    Names,
    Others,
    Sources,
    Spans,
    as_text,
    is_image_name,
    is_litter,
    is_raster_name,
    stem_of,
    walk,
    walk_names,
)
from lmdbloader.conversion.sources.remote import find_remote_images, newest
from lmdbloader.errors import SourceError, SourceNotFoundError
from lmdbloader.format.folder_names import half_of
from lmdbloader.images.decode import IMAGE_SUFFIXES, RASTER_SUFFIXES

_SCALE_SUFFIX, _SCALE_FOLDER = re.compile(rb"x[2-9]$"), re.compile(rb"[xX][2-8]")


def holds(place: Location) -> bool:
    """Return True: every place is taken for a folder if no other module takes it."""
    return True


def list_samples(src: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the images, pairs or labeled images of a folder, see `layouts.Source`."""
    if layout in ("auto", "pairs") and isinstance(src, Path) and src.is_dir() and (halves := find_halves(src)):
        high, low = halves
        return match(high, list_samples(high, "images", True), (low, list_samples(low, "images", True)))
    found = find_images(src)
    if layout == "pairs":
        return _pairs_by_words(src, found)
    names = found.sources.names
    if not len(names):
        suffixes = " ".join(sorted(IMAGE_SUFFIXES | RASTER_SUFFIXES))
        others = "".join(f". {name}: {reason}" for name, reason in found.ignored)
        raise SourceError(f"{src}: no images in it (looked for {suffixes} in it and the folders below){others}")
    if layout == "images" or (layout == "auto" and prefer_images):
        return found
    loose = next((name for name in names if b"/" not in name), None)
    if loose is not None and layout == "auto":
        return found
    if loose is not None:
        raise SourceError(
            f"{src}: {as_text(loose)} is in no class folder. Move it into one, or use {option('layout', 'images')}."
        )
    classes = sorted({_class_of(name) for name in names})
    return found if layout == "auto" and len(classes) == 1 else _label(src, found, classes)


def find_images(place: Location) -> Listing:
    """Return the image files in a folder and the folders below it, in byte order.

    Links are followed, except those to a folder that they are in. These, and other things than regular files, are named
    and left out.

    Raises:
        SourceNotFoundError: The folder does not exist.
        SourceError: It is a file, or one of the folders cannot be listed.
    """
    if isinstance(place, str):
        return find_remote_images(place)
    if not place.exists():
        raise SourceNotFoundError(f"{place}: there is no such folder")
    if not place.is_dir():
        raise SourceError(f"{place}: is not a folder")
    top, others = os.fsencode(place), Others()
    return walk(top, partial(_list_folder, top, others), lambda name: _size(os.path.join(top, name)), others)


def holds_images(folder: Path, *, rasters: bool = True) -> bool:
    """Return whether a folder, or one below it, has any image; without `rasters`, one that is read everywhere."""
    others = Others()
    names = walk_names(partial(_list_folder, os.fsencode(folder), others), others)
    return any(rasters or not is_raster_name(name) for name in names)


def is_circular(place: str | os.PathLike[str]) -> bool:
    """Return whether a path is a link to a folder that it is in."""
    folder, name = os.path.split(os.path.abspath(os.fsencode(place)))
    return os.path.islink(place) and _leads_back(folder, b"", name)


def _list_folder(top: bytes, others: Others, folder: bytes) -> Iterator[bytes]:
    path = os.path.join(top, folder[:-1])
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield folder + entry.name + b"/"
                elif is_image_name(entry.name):
                    yield folder + entry.name
                elif not (entry.is_symlink() and os.path.isdir(entry.path)):
                    others.add(folder + entry.name)
                elif _leads_back(top, folder, entry.name):
                    others.add_link(folder + entry.name)
                else:
                    yield folder + entry.name + b"/"
    except OSError as error:
        raise SourceError(f"{as_text(path)}: cannot be listed ({error.strerror})") from error


def _leads_back(top: bytes, folder: bytes, name: bytes) -> bool:
    """Return whether a link in a folder below `top` leads to a folder that it is in, and so in a circle."""
    target = os.path.realpath(os.path.join(top, folder, name))
    parts = folder.split(b"/")
    # Every folder on the way: links were followed to get here.
    around = (os.path.realpath(os.path.join(top, *parts[:n])) for n in range(len(parts)))
    return any(os.path.join(place, b"").startswith(os.path.join(target, b"")) for place in around)


def _size(path: bytes) -> int | str:
    """Return a file's size, or why it is left out."""
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        return "a broken link" if os.path.islink(path) else str(error.strerror)
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    return "a link to a folder that is named like an image" if stat.S_ISDIR(found.st_mode) else "not a regular file"


def _class_of(name: bytes) -> bytes:
    return name.partition(b"/")[0]


def _label(src: Location, found: Listing, classes: Sequence[bytes]) -> Listing:
    numbers = {name: i for i, name in enumerate(classes)}
    sources = found.sources
    if (order := _order_of_image_folder(sources.names)) is not None:
        sources = sources.take(order)
    names = sources.names
    labels = np.fromiter((numbers[_class_of(name)] for name in names), np.int64, len(names))
    empty: list[tuple[str, str]] = []
    if isinstance(src, Path):
        with os.scandir(os.fsencode(src)) as entries:
            folders = sorted(e.name for e in entries if os.path.isdir(e.path) and not is_litter(e.name + b"/"))
        named = {name for name, _ in found.ignored}  # links in a circle
        texts = [as_text(name) for name in folders if name not in numbers]
        empty = [(f"{text}/", "a class folder without images") for text in texts if text not in named]
    return replace(
        found,
        layout="classes",
        sources=replace(sources, labels=labels),
        classes=tuple(map(as_text, classes)),
        fields=(("label", "int"),),
        ignored=(*found.ignored, *empty),
    )


def _order_of_image_folder(names: Names) -> I64 | None:
    """Return the order of torchvision's ImageFolder for names in byte order, None if it is the same.

    Its order is by class, then by folder, then by name. So numbers of its samples are numbers of ours. Byte order
    differs where the name of one class begins with that of another, as `cat` and `cat-2`, and in folders below a class.
    """
    if all(one <= other for one, other in pairwise(map(_place_of, names))):
        return None
    return np.array(sorted(range(len(names)), key=lambda number: _place_of(names[number])), np.int64)


def _place_of(name: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the class, the folder and the file of an image.

    >>> _place_of(b"cat/young/1.png")
    (b'cat', b'cat/young', b'1.png')
    """
    return _class_of(name), *os.path.split(name)


def find_halves(src: Path) -> tuple[Path, Path] | None:
    """Return the HR and LR folders below `src`, None unless there is one of each.

    Raises:
        SourceError: There are several of a kind.
    """
    # Sorted last: a list of the paths of all images would take more memory than their names.
    folders = sorted(p for p in src.iterdir() if p.is_dir() and not is_circular(p))
    high = [p for p in folders if re.search(r"(^|[_-])hr$", p.name, re.IGNORECASE)]
    low = [p for p in folders if re.search(r"(^|[_-])lr([_-]|$)", p.name, re.IGNORECASE)]
    if not high or not low:
        return None
    if len(high) > 1 or len(low) > 1:
        names = ", ".join(p.name for p in (*high, *low))
        raise SourceError(
            f"{src}: holds {names}. Name the two that make the pairs with {option('hr')} and {option('lr')}."
        )
    inner = sorted(p for p in low[0].iterdir() if re.fullmatch(r"[xX][2-9]", p.name) and p.is_dir())
    if len(inner) > 1:
        raise SourceError(
            f"{low[0]}: holds {', '.join(p.name for p in inner)}. Name one with {option('hr')} and {option('lr')}, or "
            f"several, each with {option('lr')}."
        )
    return high[0], inner[0] if inner else low[0]


def _pairs_by_words(src: Location, found: Listing) -> Listing:
    """Return the pairs of images with words such as sharp and blur, or GT and NOISY, in their paths."""
    is_low = np.array([half_of(as_text(stem_of(name)))[0] == "low" for name in found.sources.names], bool)
    if is_low.all() or not is_low.any():
        raise SourceError(
            f"{src}: has no halves of pairs: no folders named like x_HR and x_LR, and no words such as sharp and blur "
            f"in the paths of its images. Name the folders of both with {option('hr')} and {option('lr')}."
        )
    high, low = (replace(found, sources=found.sources.take(np.flatnonzero(which))) for which in (~is_low, is_low))
    return match(src, high, (src, replace(low, ignored=())))


def match(hr: object, high: Listing, *lows: tuple[object, Listing]) -> Listing:
    """Return the pairs of a place, `hr` in messages, with one other place or with one for each scale.

    Raises:
        SourceError: An image has no partner, or its partner is ambiguous.
    """
    large, nbytes, attached = high.sources, high.sources.nbytes, dict[str, Names | Spans]()
    for number, (lr, low) in enumerate(lows):
        _refuse_scales(hr, lr, low.sources.names)
        small = low.sources.take(_partners(hr, large.names, lr, low.sources.names))
        nbytes = nbytes + small.nbytes
        attached[f"{LR}{number or ''}"] = small.names if small.spans is None else small.spans
    halves = [high, *(low for _, low in lows)]
    others = [(name, "a value of samples of one half, not read") for half in halves for name, _ in half.fields]
    ignored = (*(each for half in halves for each in half.ignored), *others)
    sources = Sources(large.names, nbytes, spans=large.spans, attached=attached)
    return Listing("pairs", sources, ignored=ignored, changed_ns=newest(half.changed_ns for half in halves))


def _refuse_scales(hr: object, lr: object, names: Names) -> None:
    """Refuse a folder whose images are in folders of several scales, such as DIV2K_train_LR_bicubic."""
    found = {name.split(b"/")[0] for name in names}
    if len(found) > 1 and all(_SCALE_FOLDER.fullmatch(each) for each in found):
        one, *more = (f"--lr {shlex.quote(f'{lr}/{as_text(each)}')}" for each in sorted(found))
        command = f"lmdbloader convert --hr {shlex.quote(str(hr))} {one}"
        raise SourceError(
            f"{lr}: holds a folder for each of {len(found)} scales. For one scale: {command} OUT. "
            f"For all of them in one dataset: {' '.join([command, *more])} OUT"
        )


def _partners(hr: object, high: Names, lr: object, low: Names) -> I64:
    """Return which LR image is the partner of each HR image."""
    partners, alone_low = match_names(hr, high, lr, low, without_scale)
    if (partners < 0).all():
        partners, alone_low = match_names(hr, high, lr, low, bytes, key=_other_words)
    alone_high = [high[i] for i in np.flatnonzero(partners < 0).tolist()]
    _refuse_alone(hr, alone_high, lr)
    _refuse_alone(lr, alone_low, hr)
    return partners


def without_scale(stem: bytes) -> bytes:
    """Return the stem of an LR image without its scale.

    >>> without_scale(b"0001x2"), without_scale(b"box")
    (b'0001', b'box')
    """
    return _SCALE_SUFFIX.sub(b"", stem)


def _other_words(name: bytes) -> bytes:
    """Return what the names of both images of a pair share, if each says which half it is.

    >>> _other_words(b"GT_SRGB_010.png"), _other_words(b"NOISY_SRGB_010.png")
    (b'srgb 010', b'srgb 010')
    """
    return half_of(as_text(stem_of(name)))[1].encode()


def match_names(
    place: object,
    names: Names,
    other: object,
    others: Names,
    bare: Callable[[bytes], bytes],
    *,
    key: Callable[[bytes], bytes] = stem_of,
) -> tuple[I64, list[bytes]]:
    """Return which file of another place belongs to each of a place, by their stems, and those that belong to none.

    Args:
        place: In messages.
        names: Of its files.
        other: The other place.
        others: Of its files.
        bare: Takes from the stem of such a file what only the stems of that place have.
        key: Returns what stands for the stem of a name.

    Raises:
        SourceError: Two files of a place have the same stem.
    """
    by_stem: dict[bytes, int] = {}
    for i, name in enumerate(names):
        first = by_stem.setdefault(key(name), i)
        if first != i:
            raise same_stem(place, names[first], name)
    partners, alone = np.full(len(names), -1, np.int64), list[bytes]()
    for i, name in enumerate(others):
        stem = key(name)
        number = by_stem.get(stem, by_stem.get(bare(stem)))
        if number is None:
            alone.append(name)
        elif partners[number] >= 0:
            raise same_stem(other, others[partners.item(number)], name)
        else:
            partners[number] = i
    return partners, alone


def same_stem(place: object, one: bytes, other: bytes) -> SourceError:
    """Return the error for two files of a place that belong to the same one of another place."""
    return SourceError(
        f"{place}: {as_text(one)} and {as_text(other)} have the same stem, so their partner is ambiguous"
    )


def _refuse_alone(place: object, names: Sequence[bytes], other: object) -> None:
    if not names:
        return
    raise SourceError(
        f"{place}: no partner in {other} for {first_of([as_text(name) for name in names])}. "
        "Pairs are matched by name: 0001.png with 0001.png or 0001x2.png. "
        "If no name matches, words such as GT and NOISY are ignored."
    )
