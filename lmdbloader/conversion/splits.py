"""train/, val/ and others below one folder, each to become a dataset of its own with the same labels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmdbloader.conversion.sources import Layout, is_image_name, list_sources, locate
from lmdbloader.errors import OptionError, SourceError

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
        raise SourceError(f"{folder}: holds no folders like train/ and val/. Convert it without --split.")
    paths = [p for p in paths if p.name.lower() in _NAMES or _holds_images(p)]
    listings = [list_sources(path, layout=layout, prefer_images=prefer_images) for path in paths]
    layouts = {listing.layout for listing in listings}
    if len(layouts) > 1:
        found = ", ".join(f"{p.name}: {listing.layout}" for p, listing in zip(paths, listings, strict=True))
        raise OptionError(f"{folder}: its folders are laid out differently ({found}). Say how with --layout.")
    classes = None
    if layouts == {"classes"}:
        classes = tuple(sorted({name for listing in listings for name in listing.classes}, key=os.fsencode))
    return [Split(path.name, path, classes) for path in paths]


def _holds_images(folder: Path) -> bool:
    """Return whether there is any image in a folder; folders of other things often lie beside the splits."""
    return any(is_image_name(os.fsencode(name)) for _, _, names in os.walk(folder) for name in names)
