"""Images with masks: two folders, local or behind URLs, whose files are matched by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.base.text import first_of
from lmdbloader.conversion.sources.folders import find_images, holds_images, same_stem
from lmdbloader.conversion.sources.listing import Found, Listing, Location, Names, Sources, as_text, is_url, stem_of
from lmdbloader.errors import SourceError
from lmdbloader.format.folder_names import is_of_images, is_of_masks, without_mask_suffix


def list_masked(src: Location, masks: Location | None, *, skip: bool = False) -> Listing:
    """Return the images of a folder, each with the file of its mask as the field `mask`.

    Args:
        src: The folder of the images; without `masks`, one that holds a folder of each kind.
        masks: The folder of the masks.
        skip: Leave images without a mask out, rather than refuse them.

    Raises:
        SourceNotFoundError: A folder does not exist.
        SourceError: A folder is empty, both are one, or an image or a mask has no partner, or several.
    """
    if masks is None:
        src, masks = _find_folders(src)
    images = find_images(src)
    if _is_same(src, masks):
        raise SourceError(
            f"{masks}: is the folder of the images and that of the masks, so each image would be its own mask. Move "
            f"the masks into a folder of their own, and name it with {option('masks')}."
        )
    images = _without(images, _places_in(src, masks), "the folder of the masks")
    found = _without(find_images(masks), _places_in(masks, src), "the folder of the images")
    for place, names, other in ((src, images.names, masks), (masks, found.names, src)):
        if not len(names):
            besides = f" besides those in {other}" * bool(_places_in(place, other))
            raise SourceError(f"{place}: no images in it{besides}")
    partners = _partners(src, images.names, masks, found.names)
    _refuse_own_masks(images, found, partners)
    alone = np.flatnonzero(partners < 0)
    if len(alone) and (not skip or len(alone) == len(partners)):
        missing = [as_text(images.names[i]) for i in alone.tolist()]
        raise SourceError(
            f"{src}: no mask in {masks} for {first_of(missing)}. Masks are matched by name: a.jpg "
            f"with a.png or a_mask.png. {option('on_error', 'skip')} leaves such images out."
        )
    kept = np.flatnonzero(partners >= 0)
    others = tuple((as_text(images.names[i]), f"has no mask in {masks}") for i in alone.tolist())
    sources = Sources(
        images.names.take(kept.tolist()),
        images.nbytes[kept] + found.nbytes[partners[kept]],
        attached={"mask": found.names.take(partners[kept].tolist())},
    )
    ignored = (*images.ignored, *found.ignored, *others)
    return Listing("masks", sources, fields=(("mask", "mask"),), ignored=ignored, changed_ns=_newest(images, found))


def _find_folders(src: Location) -> tuple[Path, Path]:
    """Return the folder of the images and that of the masks in a folder."""
    if isinstance(src, str):
        raise SourceError(
            f"{src}: folders behind URLs are not searched. Name the folder of the masks with {option('masks')}."
        )
    if not src.is_dir():
        raise SourceError(f"{src}: there is no such folder")
    folders = sorted(p for p in src.iterdir() if p.is_dir())
    images = [p for p in folders if is_of_images(p.name)]
    masks = [p for p in folders if is_of_masks(p.name) and holds_images(p)]
    if len(images) != 1 or len(masks) != 1:
        there = first_of([f"{p.name}/" for p in folders]) or "no folders"
        raise SourceError(
            f"{src}: holds {there}; expected one folder of images and one of masks, such as images/ and masks/. Give "
            f"the folder of the images, and name that of the masks with {option('masks')}."
        )
    return images[0], masks[0]


def _is_same(src: Location, masks: Location) -> bool:
    """Return whether two places are one folder."""
    if isinstance(src, str) or isinstance(masks, str):
        return isinstance(src, str) and isinstance(masks, str) and _chain(src) == _chain(masks)
    return src.exists() and masks.exists() and os.path.samefile(src, masks)


def _places_in(place: Location, other: Location) -> list[bytes]:
    """Return the relative paths at which another place may be found in a place: several, if links lead to it."""
    if isinstance(place, str) != isinstance(other, str):
        return []
    if isinstance(place, str):
        (first, *rest), (inner, *tail) = _chain(place), _chain(str(other))
        return [os.fsencode(inner[len(first) + 1 :])] * (rest == tail and inner.startswith(f"{first}/"))
    ways = [(Path(see(place)), Path(see(other))) for see in (os.path.abspath, os.path.realpath)]
    return [os.fsencode(b.relative_to(a).as_posix()) for a, b in dict.fromkeys(ways) if a != b and b.is_relative_to(a)]


def _chain(url: str) -> list[str]:
    """Return the places of a chained URL, from the inner one, without slashes around them, and without caches.

    >>> _chain("simplecache::s3://bucket/masks/"), _chain("memory:///masks")
    (['s3:bucket/masks'], ['memory:masks'])
    """
    links = [link.partition("://") for link in url.split("::")]
    return [f"{protocol}:{rest.strip('/')}" for protocol, mark, rest in links if mark]


def _without(found: Found, folders: Sequence[bytes], why: str) -> Found:
    """Return the images that are in none of some folders."""
    ignored = []
    for folder in folders:
        kept = [i for i, name in enumerate(found.names) if not name.startswith(folder + b"/")]
        if len(kept) < len(found.names):
            ignored.append((f"{as_text(folder)}/", why))
            found = replace(found, names=found.names.take(kept), nbytes=found.nbytes[kept])
    return replace(found, ignored=(*found.ignored, *ignored))


def _refuse_own_masks(images: Found, found: Found, partners: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Refuse an image that is its own mask: its name leads to the same file, through a link."""
    if is_url(images.names.folder) or is_url(found.names.folder):
        return
    # Other sizes are other files, so few are looked at.
    for i in np.flatnonzero((partners >= 0) & (images.nbytes == found.nbytes[partners])).tolist():
        image, mask = images.names.path(i), found.names.path(int(partners[i]))
        with contextlib.suppress(OSError):  # one is gone: the conversion names it
            if not os.path.samefile(image, mask):
                continue
            raise SourceError(
                f"{as_text(mask)}: is the same file as {as_text(image)}, so the image would be its own mask. Put the "
                "mask in its place."
            )


def _partners(
    src: Location, images: Names, masks: Location, found: Names
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of the mask of each image, -1 for an image without a mask."""
    by_stem: dict[bytes, int] = {}
    for i, name in enumerate(images):
        first = by_stem.setdefault(stem_of(name), i)
        if first != i:
            raise same_stem(src, images[first], name)
    partners = np.full(len(images), -1, np.int64)
    alone = []
    for i, name in enumerate(found):
        stem = stem_of(name)
        number = by_stem.get(stem, by_stem.get(without_mask_suffix(stem)))
        if number is None:
            alone.append(i)
        elif partners[number] >= 0:
            raise same_stem(masks, found[int(partners[number])], name)
        else:
            partners[number] = i
    if alone:
        stems = {stem_of(name) for name in found}
        swapped = all(without_mask_suffix(stem) in stems for stem in by_stem)
        advice = "The two folders are probably swapped." if swapped else "Remove it, or add its image."
        raise SourceError(f"{masks}: no image in {src} for {first_of([as_text(found[i]) for i in alone])}. {advice}")
    return partners


def _newest(one: Found, other: Found) -> int | None:
    """Return `Listing.changed_ns` of two places."""
    if one.changed_ns is None or other.changed_ns is None:
        return None
    return max(one.changed_ns, other.changed_ns)
