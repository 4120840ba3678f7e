"""Draws the pictures of docs/how-to/self-supervision.md from what its code makes of two photographs.

python scripts/draw_recipes.py                # into docs/how-to/pictures
python scripts/draw_recipes.py --out DIR      # into another folder
"""

from __future__ import annotations

import argparse
import os
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
from lmdbloader.transforms import Normalize, ToDtype, Views

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "self-supervision.md"
COLORS = ((255, 214, 10), (100, 210, 255), (48, 209, 88), (255, 105, 97))
# For each method, of choices that say most, and what is above the first row of its picture.
SHOWN = {
    "SimCLR": (1, "two windows of a photograph", "first view", "second view"),
    "BYOL": (1, "two windows of a photograph", "first view: blurred", "second: some solarized"),
    "DINO": (1, "ten windows of a photograph", "first large view", "second large view"),
    "MAE": (4, "a crop of 224 pixels", "the encoder sees 49 patches", "and paints 147"),
    "I-JEPA": (4, "a crop of 224 pixels", "the context", "the four targets"),
}
Row = list[Pixels]


def photographs() -> list[Pixels]:
    """Return two photographs, each (H, W, 3) uint8."""
    from skimage import data

    return [data.chelsea(), data.coffee()]


def load(steps: Sequence[Any] | Views, seed: int) -> Any:
    """Return both photographs through transforms, without those that make floats, which cannot be shown."""

    def of_bytes(each: Sequence[Any]) -> list[Any]:
        return [step for step in each if not isinstance(step, ToDtype | Normalize)]

    kept: Any = Views(*map(of_bytes, steps)) if isinstance(steps, Views) else of_bytes(steps)
    return next(iter(lmdbloader.Loader("photos.lmdb", 2, shuffle=False, transforms=kept, seed=seed)))


def framed(image: Pixels, boxes: Sequence[Sequence[float]], colors: Any = COLORS, width: int = 3) -> Pixels:
    """Return an image with rectangles (left, top, right, bottom) in colors."""
    drawn = Image.fromarray(image)
    for (left, top, right, bottom), color in zip(boxes, colors, strict=False):
        ImageDraw.Draw(drawn).rectangle([left, top, right - 1, bottom - 1], outline=color, width=width)
    return np.asarray(drawn)


def among(image: Pixels, patches: Any, grid: int) -> Pixels:
    """Return a square image with all patches but some darkened."""
    mask = np.isin(np.arange(grid * grid), patches).reshape(grid, grid)
    keep = np.kron(mask, np.ones((image.shape[0] // grid,) * 2, bool))[..., None]
    return np.where(keep, image, image * 0.16 + 10).astype(np.uint8)


def window_of(corners: torch.Tensor, size: int, photograph: Pixels) -> list[float]:
    """Return (left, top, right, bottom) of a view in its photograph, from where its first and last corner went."""
    (x0, y0), (x1, y1) = corners.tolist()
    height, width = photograph.shape[:2]
    across, down = (
        sorted(-start * side / (end - start) + at * side / (end - start) for at in (0, size))
        for start, end, side in ((x0, x1, width), (y0, y1, height))
    )
    return [across[0], down[0], across[1], down[1]]


def of_views(views: Views, seed: int) -> list[Row]:
    """Return photographs with the windows of all views, and the views; of ten, those of one photograph."""
    batch, rows = load(views, seed), []
    colors = [COLORS[min(k, 2)] for k in range(len(views))]
    for number, photograph in enumerate(photographs()[: 1 if len(views) > 2 else 2]):
        images = [pixels(view[number]) for view in batch.image]
        corners = [view[number] for view in batch.points]
        windows = [window_of(each, len(image), photograph) for each, image in zip(corners, images, strict=True)]
        own = [framed(image, [(0, 0, len(image), len(image))], [color], len(image) // 32)
               for image, color in zip(images, colors, strict=True)]  # fmt: skip
        rows.append([framed(photograph, windows[::-1], colors[::-1], 4), *own[:2]])
        if len(views) > 2:
            rows.append(own[2:])
    return rows


def mae(page: dict[str, Any], seed: int) -> list[Row]:
    """Return crops, the patches that are seen, and those that are not."""
    torch.manual_seed(seed)
    images = load(page["mae"], seed).image
    return [
        [pixels(image), among(pixels(image), seen, 14), among(pixels(image), np.setdiff1d(np.arange(196), seen), 14)]
        for image, seen in zip(images, page["visible_patches"](images), strict=True)
    ]


def jepa(page: dict[str, Any], seed: int) -> list[Row]:
    """Return crops, their contexts, and their targets."""
    batch, rows = load(page["jepa"], seed), []
    for image, context, targets in zip(batch["image"], batch["context"], batch["targets"].numpy(), strict=True):
        places = [np.divmod(target, 16) for target in targets]
        boxes = [14 * np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) for y, x in places]
        rows.append([pixels(image), among(pixels(image), context, 16)])
        rows[-1].append(framed(among(pixels(image), targets, 16), boxes))
    return rows


def sheet(captions: Sequence[str], rows: Sequence[Row]) -> Image.Image:
    """Return rows of images of one height each, the first one under its captions."""
    from lmdbloader.show.drawing import font_of

    strips = []
    for row in rows:
        height = round((WIDTH - GAP * (len(row) - 1)) / sum(image.shape[1] / image.shape[0] for image in row))
        above, left = 0 if strips else LETTERS + 8, 0
        strip = Image.new("RGB", (WIDTH, above + height + GAP), GROUND)
        for number, image in enumerate(row):
            width = round(height * image.shape[1] / image.shape[0])
            strip.paste(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS), (left, above))
            if not strips:
                ImageDraw.Draw(strip).text((left + 4, 2), captions[number], fill="white", font=font_of(LETTERS - 3))
            left += width + GAP
        strips.append(np.asarray(strip))
    return Image.fromarray(np.concatenate(strips)[:-GAP])


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE.parent / "pictures", metavar="DIR", help="[%(default)s]")
    out: Path = parser.parse_args(arguments).out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    page: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lmdbloader-recipes-") as folder:
        os.chdir(folder)  # the code of the page names a dataset there
        samples = [{"image": each, "points": [[0, 0], each.shape[1::-1]]} for each in photographs()]
        declared = {"points": lmdbloader.fields.Points()}
        lmdbloader.write(samples, "photos.lmdb", fields=declared, codec="raw", workers=1)
        for block in re.findall(r"(?ms)(?<!no-test -->\n)^```python\n(.*?)^```$", PAGE.read_text("utf-8")):
            exec(compile(block, PAGE.name, "exec"), page)
        for name, (seed, *captions) in SHOWN.items():
            other = {"MAE": mae, "I-JEPA": jepa}.get(name)
            rows = of_views(page[name.lower()], seed) if other is None else other(page, seed)
            sheet(captions, rows).save(out / f"{name}.jpg", quality=88, optimize=True)
    print(f"{len(SHOWN)} pictures in {out}")


if __name__ == "__main__":
    main()
