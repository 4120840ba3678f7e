"""The layouts of inputs: a table of the modules that list them, and the choice between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

from lmdbloader.base.option_names import option
from lmdbloader.errors import OptionError, SourceError

if TYPE_CHECKING:
    from lmdbloader.conversion.sources.listing import Listing, Location

Layout = Literal["images", "pairs", "classes", "clips", "lmdb", "tar", "masks", "coco", "yolo"]
# The module that lists each layout, see `Source`. "auto" tries the modules from the last to the first, which takes
# every place. The command line needs the names only, so a module is imported when it is tried.
LAYOUTS: dict[str, str] = {
    "images": "lmdbloader.conversion.sources.folders",
    "pairs": "lmdbloader.conversion.sources.folders",
    "classes": "lmdbloader.conversion.sources.folders",
    "clips": "lmdbloader.conversion.sources.clips",
    "lmdb": "lmdbloader.conversion.sources.lmdbs",
    "tar": "lmdbloader.conversion.sources.tars",
}
# Images with masks or boxes are never guessed; they have more options, see `_list_labeled`.
_LABELED = ("masks", "coco", "yolo")


class Source(Protocol):
    """The functions of a module in LAYOUTS."""

    def holds(self, place: Location) -> bool:
        """Return whether a place looks like one of the module's layouts."""

    def list_samples(self, place: Location, layout: str, prefer_images: bool) -> Listing:
        """Return the samples of a place, in order.

        Args:
            place: A local path, or a URL.
            layout: One of the module's layouts, or "auto".
            prefer_images: With "auto", never take subfolders for classes.

        Raises:
            SourceError: The place has no samples, or they cannot be read.
        """


def layout_names() -> tuple[str, ...]:
    """Return the names of all layouts."""
    return (*LAYOUTS, *_LABELED)


def list_sources(
    src: Location | None,
    *,
    layout: str = "auto",
    hr: Location | None = None,
    lr: Location | list[Location] | None = None,
    masks: Location | None = None,
    annotations: Location | None = None,
    classes: Sequence[str] | None = None,
    prefer_images: bool = False,
    skip: bool = False,
) -> Listing:
    """Return the images, pairs, or images with masks or boxes in a folder, an LMDB or tars.

    Args:
        src: The folder, LMDB or tar, or a URL; not needed with `hr` and `lr`.
        layout: "auto" takes pairs with `hr` and `lr`, or if the folder has a subfolder of each kind; the samples of an
            LMDB or of tars if there are any; classes if all images are in two or more subfolders; else images.
        hr: Folder or LMDB of the high-resolution images of pairs.
        lr: Folder or LMDB of their low-resolution images; a list of those of several scales.
        masks: Folder of the masks of the images in `src`.
        annotations: COCO's JSON file with the boxes of the images in `src`.
        classes: Names of YOLO's classes by number.
        prefer_images: With "auto", never take subfolders for classes.
        skip: Leave images without a mask, and annotations without an image, out, rather than refuse them.

    Raises:
        SourceError: No such folder, no images in it, or pairs, masks or boxes that do not match.
        OptionError: Options that contradict each other.
    """
    from lmdbloader.conversion.sources.clips import as_clips
    from lmdbloader.conversion.sources.remote import only_here

    if layout != "auto" and layout not in layout_names():
        raise OptionError(f"{option('layout', layout)}: expected auto, {', '.join(layout_names())}")
    both = f"{option('hr')} and {option('lr')}"
    lows: Sequence[Location] = [] if lr is None else lr if isinstance(lr, list) else [lr]
    if (hr is None) != (lr is None):
        raise OptionError(f"{both} go together: give the folders of both halves, or one folder as SRC")
    if hr is not None and lr is not None:
        if layout in ("images", "classes", *_LABELED):
            raise OptionError(f"{option('layout', layout)} with {both}: they make pairs")
        if src is not None:
            raise OptionError(f"{src} together with {both}: give either one folder or the two")
        for name, place in (("masks", masks), ("annotations", annotations)):
            if place is not None:
                raise OptionError(f"{option(name)} with {both}: give the folder of the images as {option('src')}")
        listing = _match_halves(hr, lows, layout)
    elif src is None:
        raise OptionError(f"nothing to convert: give {option('src')}, or {both}")
    elif (labeled := _list_labeled(src, layout, masks, annotations, classes, skip)) is not None:
        listing = labeled
    else:
        asked = [_module(layout)] if layout != "auto" else _modules()
        module = next(m for m in asked if layout != "auto" or m.holds(src))
        listing = module.list_samples(src, layout, prefer_images)
    listing = as_clips(src or hr, listing) if layout == "clips" else listing
    is_here = any(isinstance(place, str) and only_here(place) for place in (src, hr, *lows, masks))
    return replace(listing, in_process=is_here)


def _list_labeled(
    src: Location,
    layout: str,
    masks: Location | None,
    annotations: Location | None,
    classes: Sequence[str] | None,
    skip: bool,
) -> Listing | None:
    """Return images with masks or boxes, None if other layouts are asked for."""
    for name, place, made in (("annotations", annotations, "coco"), ("masks", masks, "masks")):
        if place is not None:
            if layout not in ("auto", made):
                given = option("layout", layout)
                raise OptionError(f"{given} with {option(name)}, which means {option('layout', made)}")
            layout = made
    if layout == "coco":
        from lmdbloader.conversion.sources.coco import list_coco

        return list_coco(src, annotations, skip=skip)
    if layout == "masks":
        from lmdbloader.conversion.sources.masks import list_masked

        return list_masked(src, masks, skip=skip)
    if layout == "yolo":
        from lmdbloader.conversion.sources.yolo import list_yolo

        return list_yolo(src, classes)
    return None


def _match_halves(hr: Location, lows: Sequence[Location], layout: str) -> Listing:
    from lmdbloader.conversion.sources.folders import match

    if os.path.realpath(hr) in map(os.path.realpath, lows):
        raise SourceError(f"{hr}: is given as {option('hr')} and {option('lr')}. Give the folder of each half.")
    return match(hr, _list_half(hr, layout), *((low, _list_half(low, layout)) for low in lows))


def _list_half(place: Location, layout: str) -> Listing:
    """Return the images of one half of pairs."""
    is_open = layout in ("auto", "pairs")
    module = next(m for m in _modules() if m.holds(place)) if is_open else _module(layout)
    return module.list_samples(place, "images", True)


def _module(layout: str) -> Source:
    return cast(Source, import_module(LAYOUTS[layout]))


def _modules() -> list[Source]:
    """Return the modules in the order in which "auto" tries them."""
    return [cast(Source, import_module(name)) for name in dict.fromkeys(reversed(LAYOUTS.values()))]
