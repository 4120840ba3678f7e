"""Draws the pictures of docs/how-to/self-supervision.md from what its code makes of two photographs.

python scripts/draw_recipes.py                # into docs/how-to/pictures
python scripts/draw_recipes.py --out DIR      # into another folder
"""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draw_gallery import GAP, GROUND, LETTERS, WIDTH, Pixels, pixels
from PIL import Image, ImageDraw

import lmdbloader
from lmdbloader.transforms import Normalize, ToDtype

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "self-supervision.md"
PHOTOGRAPHS = ("chelsea", "coffee")
COLORS = ((255, 214, 10), (100, 210, 255), (255, 105, 97), (48, 209, 88))
DIM = 0.16
# Of choices that say most.
SEEDS = {"MAE": 4, "I-JEPA": 4}


def names_of_page(folder: Path) -> dict[str, Any]:
    """Run the Python of the page in a folder with a dataset, and return its names."""
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), namespace)
    return namespace


def bytes_of(steps: Sequence[Any]) -> list[Any]:
    """Return the transforms of a view without those that make floats, which cannot be shown."""
    return [step for step in steps if not isinstance(step, ToDtype | Normalize)]


def shown(image: Pixels, patches: Any, grid: int) -> Pixels:
    """Return a square image with all patches but some darkened."""
    mask = np.zeros(grid * grid, bool)
    mask[np.asarray(patches)] = True
    size = image.shape[0] // grid
    keep = np.kron(mask.reshape(grid, grid), np.ones((size, size)))[..., None]
    return np.asarray(np.where(keep > 0, image, image * DIM + 10), np.uint8)


def framed(image: Pixels, boxes: Sequence[Sequence[float]], colors: Any = COLORS, width: int = 3) -> Pixels:
    """Return an image with rectangles (left, top, right, bottom) in colours."""
    drawn = Image.fromarray(image)
    for (left, top, right, bottom), color in zip(boxes, colors, strict=False):
        ImageDraw.Draw(drawn).rectangle([left, top, right - 1, bottom - 1], outline=color, width=width)
    return np.asarray(drawn)


def sheet(rows: Sequence[Sequence[tuple[str, Pixels]]]) -> Image.Image:
    """Return rows of images of one height each, under their captions."""
    from lmdbloader.show.drawing import font_of

    strips = []
    for row in rows:
        room = WIDTH - GAP * (len(row) - 1)
        height = round(room / sum(image.shape[1] / image.shape[0] for _, image in row))
        above = LETTERS + 8 if any(caption for caption, _ in row) else 0
        strip, left = Image.new("RGB", (WIDTH, above + height + GAP), GROUND), 0
        for caption, image in row:
            width = round(height * image.shape[1] / image.shape[0])
            strip.paste(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS), (left, above))
            ImageDraw.Draw(strip).text((left + 4, 2), caption, fill="white", font=font_of(LETTERS - 3))
            left += width + GAP
        strips.append(np.asarray(strip))
    return Image.fromarray(np.concatenate(strips)[:-GAP])


def load(steps: Any, seed: int) -> Any:
    """Return both photographs through transforms."""
    return next(iter(lmdbloader.Loader("photos.lmdb", 2, shuffle=False, transforms=steps, seed=seed)))


def mae(page: dict[str, Any]) -> Image.Image:
    """Return a crop, the patches that are seen, and those that are not."""
    torch.manual_seed(1)
    rows = []
    for image in load(bytes_of(page["mae"]), seed=SEEDS["MAE"]).image:
        seen = page["visible_patches"](image[None])[0]
        rest, plain = np.setdiff1d(np.arange(14 * 14), seen), pixels(image)
        captions = ("", "", "") if rows else ("a crop of 224 pixels", "the encoder sees 49 patches", "and paints 147")
        rows.append(list(zip(captions, (plain, shown(plain, seen, 14), shown(plain, rest, 14)), strict=True)))
    return sheet(rows)


def jepa(page: dict[str, Any]) -> Image.Image:
    """Return a crop, its context, and its targets."""
    rows, size = [], 14
    batch = load([*bytes_of(page["jepa"][:-1]), page["BlockMasks"]()], seed=SEEDS["I-JEPA"])
    for image, context, targets in zip(batch["image"], batch["context"], batch["targets"], strict=True):
        plain, boxes = pixels(image), []
        for target in targets.numpy():
            down, across = np.divmod(target, 16)
            boxes.append((across.min() * size, down.min() * size, (across.max() + 1) * size, (down.max() + 1) * size))
        targeted = framed(shown(plain, targets.flatten(), 16), boxes)
        captions = ("", "", "") if rows else ("a crop of 224 pixels", "the context", "the four targets")
        rows.append(list(zip(captions, (plain, shown(plain, context, 16), targeted), strict=True)))
    return sheet(rows)


PICTURES = {"MAE": mae, "I-JEPA": jepa}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all pictures."""
    import skimage.data

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE.parent / "pictures", metavar="DIR", help="[%(default)s]")
    out: Path = parser.parse_args(arguments).out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lmdbloader-recipes-") as temporary:
        samples = [{"image": getattr(skimage.data, name)()} for name in PHOTOGRAPHS]
        lmdbloader.write(samples, Path(temporary, "photos.lmdb"), codec="raw", workers=1)
        page = names_of_page(Path(temporary))
        with contextlib.chdir(temporary):
            for name, draw in PICTURES.items():
                draw(page).save(out / f"{name}.jpg", quality=88, optimize=True)
    print(f"{len(PICTURES)} pictures in {out}")


if __name__ == "__main__":
    main()
