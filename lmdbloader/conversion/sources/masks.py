"""Images with masks: two folders, local or at URLs, whose files are matched by name."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.base.text import first_of
from lmdbloader.conversion.sources.folders import find_images, holds_images, match_names
from lmdbloader.conversion.sources.listing import Listing, Location, Sources, as_text, is_url
from lmdbloader.conversion.sources.remote import newest
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
    images, found = find_images(src), find_images(masks)
    if _path_of(src) == _path_of(masks):
        raise SourceError(
            f"{masks}: is the folder of the images and that of the masks, so each image would be its own mask. Move "
            f"the masks into a folder of their own, and name it with {option('masks')}."
        )
    images = _without(images, src, masks, "the folder of the masks")
    found = _without(found, masks, src, "the folder of the images")
    for place, listed in ((src, images), (masks, found)):
        if not len(listed.sources):
            raise SourceError(f"{place}: no images in it")
    sources, files = images.sources, found.sources
    matched = "Masks are matched by name: a.jpg with a.png or a_mask.png. lmdbloader.write stores pairs of other names."
    partners, masks_alone = match_names(src, sources.names, masks, files.names, without_mask_suffix)
    if masks_alone:
        alone_there = first_of([*map(as_text, masks_alone)])
        raise SourceError(f"{masks}: no image in {src} for {alone_there}. Remove it, or add its image. {matched}")
    alone = np.flatnonzero(partners < 0)
    if len(alone) and (not skip or len(alone) == len(partners)):
        missing = [as_text(sources.names[i]) for i in alone.tolist()]
        raise SourceError(
            f"{src}: no mask in {masks} for {first_of(missing)}. {matched} "
            f"{option('on_error', 'skip')} leaves such images out."
        )
    kept = np.flatnonzero(partners >= 0)
    of_images, of_masks = sources.take(kept), files.take(partners[kept])
    _refuse_own_masks(of_images, of_masks)
    others = tuple((as_text(sources.names[i]), f"has no mask in {masks}") for i in alone.tolist())
    sources = replace(of_images, nbytes=of_images.nbytes + of_masks.nbytes, attached={"mask": of_masks.names})
    return Listing(
        "masks",
        sources,
        fields=(("mask", "mask"),),
        ignored=(*images.ignored, *found.ignored, *others),
        changed_ns=newest([images.changed_ns, found.changed_ns]),
    )


def _find_folders(src: Location) -> tuple[Path, Path]:
    """Return the folder of the images and that of the masks in a folder."""
    if isinstance(src, str):
        raise SourceError(
            f"{src}: folders at URLs are not searched. Name the folder of the masks with {option('masks')}."
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


def _refuse_own_masks(images: Sources, masks: Sources) -> None:
    """Refuse an image that is its own mask: its name leads to the same file, through a link."""
    if is_url(images.names.folder) or is_url(masks.names.folder):
        return
    for i in np.flatnonzero(images.nbytes == masks.nbytes).tolist():  # other sizes are other files
        image, mask = images.names.path(i), masks.names.path(i)
        with suppress(OSError):  # one is gone: the conversion names it
            if os.path.samefile(image, mask):
                raise SourceError(f"{as_text(mask)}: is the same file as {as_text(image)}. Put the mask in its place.")


def _path_of(place: Location) -> str:
    """Return a place's path without links; of a URL, without slashes at its end."""
    return place.rstrip("/") if isinstance(place, str) else os.path.realpath(place)


def _without(found: Listing, place: Location, other: Location, why: str) -> Listing:
    """Return the images of a place without those of another place below it."""
    top, inner = _path_of(place), _path_of(other)
    if not inner.startswith(f"{top}/"):
        return found
    below = os.fsencode(inner[len(top) + 1 :]) + b"/"
    names = found.sources.names
    kept = np.array([i for i, name in enumerate(names) if not name.startswith(below)], np.int64)
    if len(kept) == len(names):
        return found
    return replace(found, sources=found.sources.take(kept), ignored=(*found.ignored, (as_text(below), why)))
