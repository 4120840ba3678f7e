"""Clips: numbered frames in a folder for each clip, as REDS and Vimeo-90K have them, in an LMDB, or in video files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.option_names import option
from lmdbloader.conversion.sources import lmdbs
from lmdbloader.conversion.sources.folders import find_images
from lmdbloader.conversion.sources.listing import Listing, Location, as_text, stem_of
from lmdbloader.conversion.sources.videos import find_frames
from lmdbloader.errors import OptionError, SourceError
from lmdbloader.format.layout import CLIP, FRAME, Kind

FIELDS: tuple[tuple[str, Kind], ...] = ((CLIP, "text"), (FRAME, "int"))
_NUMBER = re.compile(rb"(\d{1,18})\D*$")


def holds(place: Location) -> bool:
    """Return False: clips are never guessed."""
    return False


def list_samples(place: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the frames of a folder, or of an LMDB with keys like their paths, for `as_clips`; see `layouts.Source`."""
    found = lmdbs.list_samples(place, layout, prefer_images) if lmdbs.holds(place) else find_images(place)
    if not len(found.sources) and isinstance(place, Path):
        found = find_frames(place)
    if not len(found.sources):
        raise SourceError(f"{place}: no frames; expected folders of images, video files, or an LMDB of images")
    return found


def as_clips(place: object, listing: Listing) -> Listing:
    """Return frames, or pairs of frames, clip by clip in the order of their numbers.

    Raises:
        SourceError: A frame is in no folder, or has no number, or that of another one of its clip.
    """
    found: dict[tuple[Any, ...], int] = {}
    names = [*map(as_text, listing.sources.names)]
    for i, name in enumerate(names):
        if (first := found.setdefault(tuple(place_in_clip(name).values()), i)) != i:
            raise SourceError(f"{place}: {names[first]} and {name} are the same frame of a clip. Rename one")
    order = np.array([found[key] for key in sorted(found)], np.int64)
    layout = "pairs" if listing.layout == "pairs" else "clips"
    return replace(listing, layout=layout, sources=listing.sources.take(order), fields=FIELDS)


def place_in_clip(name: str) -> dict[str, Any]:
    """Return the clip of a frame, and its number there, by the name of its source.

    Raises:
        SourceError: It is in no folder, or has no number.

    >>> place_in_clip("00001/0001/im7.png")
    {'clip': '00001/0001', 'frame': 7}
    """
    clip, base = os.path.split(name)
    number = _NUMBER.search(stem_of(os.fsencode(base)))
    if not clip or number is None:
        raise SourceError(f"{name}: expected a folder for each clip, with numbered frames: 000/00000012.png")
    return {CLIP: clip, FRAME: int(number[1])}


def refuse_options(options: Any) -> None:
    """Raise OptionError for options that would tear clips apart."""
    for name in ("patch_size", "subset", "degradation"):
        if (value := getattr(options, name)) is not None:
            line = "Loader(Clips(dataset.where(\"clip < '100'\"), 5), 16, transforms=[RandomCrop(256), ...])"
            raise OptionError(
                f"{option(name, value)} with clips: expected whole clips with whole frames. Choose, crop and degrade "
                f"when you load them: {line}."
            )
