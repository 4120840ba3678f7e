"""Clips: numbered frames in a folder for each clip, as REDS and Vimeo-90K have them, or in a video file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.conversion.sources.folders import find_images
from lmdbloader.conversion.sources.listing import Listing, Location, as_text, stem_of
from lmdbloader.conversion.sources.videos import find_frames
from lmdbloader.errors import OptionError, SourceError
from lmdbloader.format.layout import CLIP, FRAME, Kind

FIELDS: tuple[tuple[str, Kind], ...] = ((CLIP, "text"), (FRAME, "int"))
_NUMBER = re.compile(rb"(\d+)\D*$")


def holds(place: Location) -> bool:
    """Return False: clips are never guessed."""
    return False


def list_samples(place: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the frames of a folder, see `layouts.Source`; of layout "images", in the order of their names."""
    found = find_images(place)
    if not len(found.sources) and isinstance(place, Path):
        found = find_frames(place)
    if not len(found.sources):
        raise SourceError(f"{place}: no frames in it: neither images in folders, nor video files")
    return found if layout == "images" else as_clips(place, found)


def as_clips(place: Location, listing: Listing) -> Listing:
    """Return frames, or pairs of frames, clip by clip, in the order of their numbers.

    Raises:
        SourceError: A frame is in no folder, or has no number, or that of another one of its clip.
    """
    found: dict[tuple[bytes, int], int] = {}
    names = listing.sources.names
    for i, name in enumerate(names):
        clip, number = os.path.dirname(name), _NUMBER.search(os.path.basename(stem_of(name)))
        if not clip:
            raise SourceError(f"{place}: {as_text(name)} is in no folder. Each clip has one: convert the folder above.")
        if number is None or len(number[1]) > 18:
            raise SourceError(
                f"{place}: {as_text(name)} has no number. Frames are numbered in their names: 00000012.png."
            )
        first = found.setdefault((clip, int(number[1])), i)
        if first != i:
            raise SourceError(f"{place}: {as_text(names[first])} and {as_text(name)} have the same number in a clip")
    order = np.array([found[key] for key in sorted(found)], np.int64)
    made = "clips" if listing.layout == "images" else listing.layout
    return replace(listing, layout=made, sources=listing.sources.take(order), fields=FIELDS)


def place_in_clip(name: str) -> dict[str, Any]:
    """Return the clip of a frame, and its number there, by the name of its source.

    >>> place_in_clip("00001/0001/im7.png")
    {'clip': '00001/0001', 'frame': 7}
    """
    clip, base = os.path.split(name)
    number = _NUMBER.search(stem_of(os.fsencode(base)))
    return {CLIP: clip, FRAME: int(number[1]) if number else 0}


def refuse_options(options: Any) -> None:
    """Raise OptionError for options that would tear clips apart."""
    if options.patch_size is not None:
        raise OptionError(
            f"{option('patch_size', options.patch_size)} with clips: frames are stored whole. Crop all frames of a "
            "window alike when they are loaded: Loader(Clips(dataset, 5), 16, transforms=[RandomCrop(256)])."
        )
    if options.subset is not None:
        raise OptionError(
            f"{option('subset', options.subset)} with clips: it would take single frames out of them. Choose clips "
            "when they are loaded: dataset.where(\"clip in ('000', '011')\")."
        )
