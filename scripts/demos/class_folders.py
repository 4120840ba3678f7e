"""Makes class folders of image files from the photographs included in scikit-image: one class per photograph."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from lmdbloader.errors import LmdbloaderError, SourceError

# Photographs whose pieces are easy to distinguish.
CLASSES = (
    "astronaut.png",
    "brick.png",
    "chelsea.png",
    "coffee.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "rocket.jpg",
)
QUALITY = 90


def make_class_folders(
    folder: Path,
    *,
    num_train: int,
    num_val: int,
    sides: tuple[int, int] = (160, 256),
    num_classes: int = len(CLASSES),
    photographs: Sequence[Path] | None = None,
    suffix: Literal[".jpg", ".png"] = ".jpg",
    seed: int = 0,
) -> list[str]:
    """Write `folder/train/CLASS/*.jpg` and `folder/val/CLASS/*.jpg`.

    Crops for training come from the left three fifths of a photograph, those for validation from the right two, so that
    no pixel is in both.

    Args:
        folder: Made if it is not there.
        num_train: Files of each class to train on.
        num_val: Files of each class to score.
        sides: Least and most height and width of a crop, in pixels, drawn independently; less where the part of the
            photograph has less.
        num_classes: At most ten.
        photographs: Others than those that scikit-image carries, each a class; `num_classes` then says nothing.
        suffix: Of the files; PNG files have the pixels of the photographs.
        seed: Of the crops.

    Returns:
        The names of the classes.

    Raises:
        SourceError: scikit-image is not installed.
    """
    if photographs is None:
        home = find_photographs()
        chosen = {Path(name).stem: home / name for name in CLASSES[:num_classes]}
    else:
        chosen = {f"{number:02}_{path.stem}": path for number, path in enumerate(photographs)}
    rng = np.random.default_rng(seed)
    for name, path in chosen.items():
        with Image.open(path) as file:
            photograph = file.convert("RGB")
        border = photograph.width * 3 // 5
        parts = {"train": (0, border, num_train), "val": (border, photograph.width, num_val)}
        for split, (left, right, count) in parts.items():
            target = folder / split / name
            target.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                box = _draw_box(rng, (left, right), photograph.height, sides)
                photograph.crop(box).save(target / f"{number:04}{suffix}", quality=QUALITY)
    return list(chosen)


def find_photographs() -> Path:
    """Return the folder of the photographs in scikit-image.

    Raises:
        SourceError: It is not installed.
    """
    try:
        import skimage
    except ImportError:
        raise SourceError("the photographs come from scikit-image: pip install scikit-image.") from None
    return Path(skimage.__file__).parent / "data"


def _draw_box(
    rng: np.random.Generator, columns: tuple[int, int], height: int, sides: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a crop within columns."""
    left, right = columns
    wide, high = (int(rng.integers(min(sides[0], room), min(sides[1], room) + 1)) for room in (right - left, height))
    x, y = int(rng.integers(left, right - wide + 1)), int(rng.integers(0, height - high + 1))
    return x, y, x + wide, y + high


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="where train/ and val/ are made")
    add("--num-train", type=int, default=100, metavar="N", help="files of each class to train on (default: 100)")
    add("--num-val", type=int, default=20, metavar="N", help="files of each class to score (default: 20)")
    add("--num-classes", type=int, default=len(CLASSES), metavar="N", help="at most %(default)s (the default)")
    add("--side", type=int, metavar="PIXELS",
        help="cut squares of this side, as PNG files (default: JPEG files of 160 to 256 pixels)")  # fmt: skip
    add("--seed", type=int, default=0, help="of the pieces that are cut (default: 0)")
    options = parser.parse_args(argv)
    try:
        names = make_class_folders(
            options.folder,
            num_train=options.num_train,
            num_val=options.num_val,
            sides=(160, 256) if options.side is None else (options.side, options.side),
            num_classes=options.num_classes,
            suffix=".jpg" if options.side is None else ".png",
            seed=options.seed,
        )
    except (LmdbloaderError, OSError) as error:
        print(f"class_folders: {error}", file=sys.stderr)
        return 1
    counts = f"{options.num_train} files of each in train/, {options.num_val} in val/"
    print(f"{options.folder}: {len(names)} classes, {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
