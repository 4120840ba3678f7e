"""Draws the pictures of the transform gallery: each shows what the lines of code next to it do.

    python scripts/draw_gallery.py                         # all of them, some seconds
    python scripts/draw_gallery.py --only Cutout MixUp     # some
    python scripts/draw_gallery.py --out DIR               # into another folder

The lines are read from docs/reference/transform-gallery.md: a section `### NAME` with a `python` block and a picture.
Photographs of scikit-image become a dataset, and the transforms run in a Loader over it, with a fixed seed. Pictures go
into docs/reference/pictures. A test draws them again and compares them with the stored files.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "transform-gallery.md"
PICTURES = ROOT / "docs" / "reference" / "pictures"

Pixels = npt.NDArray[np.uint8]

WIDTH, GAP, LETTERS = 630, 6, 17
GROUND = (21, 24, 28)  # of gaps and captions; a JPEG has no transparency, and this suits light and dark pages
BOX_COLORS = ((255, 214, 10), (48, 209, 88), (100, 210, 255))
QUALITY = 60

# Of the pictures that say most about a transform; 0 for the others.
SEEDS = {
    "RandomHorizontalFlip": 6, "RandomVerticalFlip": 2, "RandomSolarize": 2, "RandomErasing": 6, "MixUp": 21,
    "CutMix": 21, "BatchFunction": 4, "RandomRotation": 4, "RandomPerspective": 2, "RandAugment": 2,
    "TrivialAugmentWide": 5, "AutoAugment": 6, "AugMix": 4, "RandomApply": 6, "RandomChoice": 2,
}  # fmt: skip
# Photographs other than the cat: colorful ones.
PHOTOGRAPHS = dict.fromkeys(
    (
        "ColorJitter",
        "RandomGrayscale",
        "RandomSolarize",
        "RandomInvert",
        "RandomPosterize",
        "RandomChannelPermutation",
        "BatchFunction",
        "CompiledFunction",
    ),
    "coffee",
)
CLASSES = ("cat", "coffee", "rocket")
# In pixels of the cat: left, top, right, bottom.
EYES, NOSE = ((135, 85, 206, 146), (295, 108, 345, 165)), (228, 224, 294, 268)
HEAD = (
    (33, 40), (45, 0), (400, 0), (375, 40), (352, 75), (361, 118), (355, 165), (318, 207), (308, 250), (285, 268),
    (240, 278), (170, 262), (95, 225), (55, 170), (30, 120),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Card:
    """A section of the page.

    Attributes:
        name: Its heading.
        code: Its lines of Python.
        picture: The name of its file in docs/reference/pictures.
    """

    name: str
    code: str
    picture: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a picture.

    Attributes:
        image: (H, W, 3) uint8.
        caption: A few words, shown on the image.
        share: Of the cell's width and height that it takes at most.
        smooth: Whether single pixels are blended where it is enlarged.
    """

    image: Pixels
    caption: str = ""
    share: float = 1.0
    smooth: bool = True


# --- The page ---


def read_cards(text: str) -> list[Card]:
    """Return the sections of the page in their order.

    Raises:
        SystemExit: A section has no block of code, or no picture.
    """
    found = []
    for section in re.split(r"(?m)^### ", text)[1:]:
        name = section.partition("\n")[0].strip()
        code = re.search(r"(?ms)^```python\n(.*?)^```$", section)
        picture = re.search(r"!\[[^\]]+\]\(pictures/([\w-]+\.(?:jpg|svg))\)", section)
        if code is None or picture is None:
            missing = "block ```python" if code is None else "picture ![...](pictures/...)"
            raise SystemExit(f"{PAGE.name}: the section {name} has no {missing}; expected both")
        found.append(Card(name, code[1], picture[1]))
    return found


def values_of(code: str) -> list[Any]:
    """Return the values of a block's expressions; its other statements are carried out before."""
    from lmdbloader import transforms

    namespace: dict[str, Any] = {"torch": torch, "T": transforms}
    values = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            values.append(eval(compile(ast.Expression(statement.value), PAGE.name, "eval"), namespace))
        else:
            exec(compile(ast.Module([statement], []), PAGE.name, "exec"), namespace)
    return values


# --- Photographs and batches ---


def photograph(name: str) -> Pixels:
    """Return a photograph of scikit-image (300, 450, 3), cut or reduced to that size."""
    import skimage.data

    image = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    height = min(image.height, image.width * 2 // 3)
    top = (image.height - height) // 2
    box = (0, top, height * 3 // 2, top + height)
    return np.asarray(image.resize((450, 300), Image.Resampling.LANCZOS, box=box))


def load(
    samples: Iterable[dict[str, Any]],
    step: Any,
    *,
    name: str = "",
    batch_size: int | None = None,
    shuffle: bool = False,
    fields: dict[str, Any] | None = None,
) -> Any:
    """Return samples as a Loader makes them: a batch, or the images of several.

    Args:
        samples: The fields of each.
        step: A transform, or a list of them.
        name: Of the section; it chooses the seed.
        batch_size: Of the Loader; by default all samples make one batch.
        shuffle: Of the Loader.
        fields: Kinds of fields that cannot be seen from their values.
    """
    import lmdbloader

    listed = list(samples)
    steps = step if isinstance(step, list) else [step]
    with tempfile.TemporaryDirectory(prefix="lmdbloader-gallery-") as folder:
        path = Path(folder, "photographs.lmdb")
        lmdbloader.write(listed, path, fields=fields, codec="raw", workers=1)
        dataset = lmdbloader.LMDBDataset(path)
        size = batch_size or len(listed)
        loader = lmdbloader.Loader(
            dataset, size, shuffle=shuffle, transforms=steps, seed=SEEDS.get(name, 0), num_threads=1
        )
        batches = list(loader)
    return batches[0] if len(batches) == 1 else (torch.cat([batch.image for batch in batches]),)


def pixels(image: torch.Tensor) -> Pixels:
    """Return (C, H, W) as (H, W, C)."""
    return image.permute(1, 2, 0).numpy()


# --- Kinds of pictures ---


def draw_choices(card: Card) -> Image.Image:
    """Return the original, and five draws of a transform, or seven in squares."""
    from lmdbloader.transforms import BatchFunction, RandomDihedral

    (step,) = values_of(card.code)
    original = photograph(PHOTOGRAPHS.get(card.name, "chelsea"))
    if isinstance(step, RandomDihedral):
        original = original[:, 40:340]
    # A function of whole batches draws once for each.
    batch_size = 1 if isinstance(step, BatchFunction) else None
    (images,) = load([{"image": original}] * 7, step, name=card.name, batch_size=batch_size)
    caption = "" if images.shape[2:] == original.shape[:2] else f"{images.shape[2]} x {images.shape[3]}"
    drawn = [Tile(pixels(image), "" if number else caption) for number, image in enumerate(images)]
    return sheet_of([Tile(original, "original"), *drawn])


def draw_results(card: Card) -> Image.Image:
    """Return the original, and the result of each transform, all at one scale."""
    original = photograph("chelsea")
    tiles = [Tile(original, "original 300 x 450")]
    for step in values_of(card.code):
        (image,) = load([{"image": original}], step)[0]
        height, width = image.shape[1:]
        tiles.append(Tile(pixels(image), f"{height} x {width}", max(height / 300, width / 450), smooth=False))
    return sheet(tiles)


def draw_mixed(card: Card) -> Image.Image:
    """Return three photographs, and the batch that is mixed of them, with its labels."""
    (step,) = values_of(card.code)
    photographs = [photograph("chelsea" if name == "cat" else name) for name in CLASSES]
    samples = [{"image": image, "label": label} for label, image in enumerate(photographs)]
    batch = load(samples, step, name=card.name)
    tiles = [Tile(image, name) for image, name in zip(photographs, CLASSES, strict=True)]
    for image, label in zip(batch.image, batch.label.tolist(), strict=True):
        shares = [f"{share:.2f} {name}" for share, name in zip(label, CLASSES, strict=True) if share]
        tiles.append(Tile(pixels(image), ", ".join(shares)))
    return sheet(tiles)


def draw_numbers(card: Card) -> Image.Image:
    """Return a batch in random order, with the numbers that a function of the batch got."""
    (step,) = values_of(card.code)
    photographs = [photograph("chelsea" if name == "cat" else name) for name in CLASSES]
    images, numbers = load([{"image": image} for image in photographs], step, shuffle=True)
    return sheet(
        [Tile(pixels(image), f"sample {number}") for image, number in zip(images, numbers.tolist(), strict=True)]
    )


def draw_pairs(card: Card) -> Image.Image:
    """Return a pair, and three draws of it: hr above lr."""
    (steps,) = values_of(card.code)
    hr = photograph("chelsea")[:, 1:449]
    lr = np.asarray(Image.fromarray(hr).resize((112, 75), Image.Resampling.BICUBIC))
    batch = load([{"hr": hr, "lr": lr}] * 3, steps, name=card.name)
    rows = []
    for field, original, images in (("hr", hr, batch.hr), ("lr", lr, batch.lr)):
        size = f"{field} {images.shape[2]} x {images.shape[3]}"
        rows.append(Tile(original, f"{field} {original.shape[0]} x {original.shape[1]}", smooth=False))
        rows += [Tile(pixels(image), "" if number else size, smooth=False) for number, image in enumerate(images)]
    return sheet(rows, columns=4, ratio=1)


def draw_masks(card: Card) -> Image.Image:
    """Return an image with its mask, and three draws: images above masks."""
    from lmdbloader import fields
    from lmdbloader.show.drawing import in_colors

    (steps,) = values_of(card.code)
    image, mask = photograph("chelsea"), Image.new("L", (450, 300))
    draw = ImageDraw.Draw(mask)
    draw.polygon(HEAD, fill=1)
    for eye in EYES:
        draw.ellipse(eye, fill=2)
    draw.ellipse(NOSE, fill=3)
    samples = [{"image": image, "mask": np.asarray(mask)}] * 3
    batch = load(samples, steps, name=card.name, fields={"mask": fields.Mask()})
    originals = [Tile(image, "image"), Tile(pixels(torch.from_numpy(in_colors(np.asarray(mask)))), "mask")]
    moved = [Tile(pixels(each)) for each in batch.image]
    masks = [Tile(pixels(torch.from_numpy(in_colors(each.numpy()))), smooth=False) for each in batch.mask]
    return sheet([originals[0], *moved, originals[1], *masks], columns=4, ratio=1)


def draw_views(card: Card) -> Image.Image:
    """Return the original, and the views of it, all at one scale."""
    (views,) = values_of(card.code)
    original = photograph("chelsea")
    (found,) = zip(*load([{"image": original}], views, name=card.name).image, strict=True)
    sizes = [f"{image.shape[1]} x {image.shape[2]}" for image in found]
    largest = max(image.shape[1] for image in found)
    tiles = [Tile(pixels(image), size, image.shape[1] / largest) for image, size in zip(found, sizes, strict=True)]
    return sheet([Tile(original, "original"), *tiles], columns=4, ratio=1)


def draw_boxes(card: Card) -> Image.Image:
    """Return an image with boxes, and seven crops with those that are left."""
    from lmdbloader import fields

    (steps,) = values_of(card.code)
    image = photograph("chelsea")
    boxes = np.array([*EYES, NOSE], np.float32)
    sample = {"image": image, "boxes": boxes, "labels": [0, 1, 2]}
    kinds = {"boxes": fields.Boxes(), "labels": fields.Labels()}
    batch = load([sample] * 7, steps, name=card.name, fields=kinds)
    tiles = [_with_boxes(image, boxes.tolist(), [0, 1, 2], "original: ")]
    for each, found, labels in zip(batch.image, batch.boxes, batch.labels, strict=True):
        tiles.append(_with_boxes(pixels(each), found.tolist(), labels.tolist(), ""))
    return sheet_of(tiles)


def _with_boxes(image: Pixels, boxes: list[list[float]], labels: list[int], caption: str) -> Tile:
    shown = Image.fromarray(image)
    draw = ImageDraw.Draw(shown)
    for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
        place = (left, top, min(right, shown.width - 1), min(bottom, shown.height - 1))
        draw.rectangle(place, outline=BOX_COLORS[label], width=5)
    count = f"{len(boxes)} box" + "es" * (len(boxes) != 1)
    return Tile(np.asarray(shown), caption + count)


def sheet_of(tiles: Sequence[Tile]) -> Image.Image:
    """Return an original and its draws, all of one size: eight squares, or six tiles that are wider."""
    height, width = tiles[1].image.shape[:2]
    return sheet(tiles, columns=4, ratio=1) if height == width else sheet(tiles[:6], ratio=width / height)


# --- Pictures of tiles ---


def sheet(tiles: Sequence[Tile], *, columns: int = 3, ratio: float = 1.5) -> Image.Image:
    """Return tiles in rows, each fitted into a cell of this ratio of width to height."""
    width = (WIDTH - GAP * (columns - 1)) // columns
    height = round(width / ratio)
    rows = -(-len(tiles) // columns)
    picture = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), GROUND)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        picture.paste(_drawn(tile, width, height), (column * (width + GAP), row * (height + GAP)))
    return picture


def _drawn(tile: Tile, width: int, height: int) -> Image.Image:
    """Return a cell."""
    from lmdbloader.show.drawing import font_of

    cell = Image.new("RGB", (width, height), GROUND)
    image = Image.fromarray(np.ascontiguousarray(tile.image))
    scale = tile.share * min(width / image.width, height / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    is_enlarged = size[0] > image.width
    way = Image.Resampling.NEAREST if is_enlarged and not tile.smooth else Image.Resampling.LANCZOS
    cell.paste(image.resize(size, way), ((width - size[0]) // 2, (height - size[1]) // 2))
    if tile.caption:
        draw = ImageDraw.Draw(cell)
        draw.rectangle((0, height - LETTERS - 8, width, height), fill=GROUND)
        draw.text((6, height - LETTERS - 6), tile.caption, fill="white", font=font_of(LETTERS))
    return cell


# --- Pictures of values ---

CHANNELS = ("#e0524d", "#3aa655", "#4a86e8")
PANEL, PLOT, BINS = 210, 96, 32
_STYLE = (
    ".values text { font: 15px system-ui, sans-serif; fill: currentColor; } "
    ".values .axis { stroke: currentColor; opacity: 0.5; } .values .line { fill: none; stroke-width: 1.8; }"
)


def draw_values(card: Card) -> str:
    """Return the histograms of the channels: of stored pixels, and after each transform."""
    original = photograph("chelsea")
    panels = [("stored", torch.from_numpy(original.copy()).permute(2, 0, 1))]
    for step in values_of(card.code):
        steps = step if isinstance(step, list) else [step]
        for number in range(1, len(steps) + 1):
            (image,) = load([{"image": original}], steps[:number])[0]
            last = steps[number - 1]
            panels.append((type(last).__name__ if len(steps) > 1 else f"scale={last.scale}", image))
    drawn = [_histogram(title, image, number * PANEL) for number, (title, image) in enumerate(panels)]
    about = "Number of pixels by value, of the three channels: " + ", ".join(title for title, _ in panels)
    return _drawing("".join(drawn), len(panels) * PANEL, PLOT + 62, about)


def draw_labels(card: Card) -> str:
    """Return the probabilities of the classes of one label, before and after."""
    (step,) = values_of(card.code)
    samples = [{"image": photograph("chelsea"), "label": label} for label in (2, 0)]
    soft = load(samples, step).label[0].tolist()
    panels = (("label 2", [float(number == 2) for number in range(len(soft))]), ("softened", soft))
    parts = []
    for at, (title, shares) in enumerate(panels):
        left = at * 1.5 * PANEL
        parts.append(f'<text x="{left + 4:.0f}" y="18">{title}</text>\n')
        step_width = 1.4 * PANEL / len(shares)
        for number, share in enumerate(shares):
            x, tall = left + number * step_width, PLOT * share
            parts.append(
                f'<rect x="{x + 4:.1f}" y="{44 + PLOT - tall:.1f}" width="{step_width - 8:.1f}" height="{tall:.1f}" '
                f'fill="{CHANNELS[2]}"/>\n<text x="{x + step_width / 2:.1f}" y="{38 + PLOT - tall:.1f}" '
                f'text-anchor="middle">{share:.2f}</text>\n'
                f'<text x="{x + step_width / 2:.1f}" y="{PLOT + 60}" text-anchor="middle">{number}</text>\n'
            )
        parts.append(_axis(left, 44 + PLOT, 1.4 * PANEL))
    return _drawing("".join(parts), 3 * PANEL, PLOT + 70, "Probabilities of the classes, before and after")


def _histogram(title: str, image: torch.Tensor, left: float) -> str:
    values = image.to(torch.float64)
    low, high = float(values.min()), float(values.max())
    heights = [torch.histc(channel, BINS, low, high).tolist() for channel in values]
    most = max(max(each) for each in heights)
    width = PANEL - 24
    parts = [f'<text x="{left + 4:.0f}" y="18">{escape(title)}</text>\n']
    for channel, each in enumerate(heights):
        points = " ".join(
            f"{left + 4 + width * (number + 0.5) / BINS:.1f},{30 + PLOT * (1 - count / most):.1f}"
            for number, count in enumerate(each)
        )
        parts.append(f'<polyline class="line" stroke="{CHANNELS[channel]}" points="{points}"/>\n')
    parts.append(_axis(left + 4, 30 + PLOT, width))
    for x, anchor, value in ((left + 4, "start", low), (left + 4 + width, "end", high)):
        parts.append(f'<text x="{x:.0f}" y="{PLOT + 48}" text-anchor="{anchor}">{_number(value, image.dtype)}</text>\n')
    parts.append(
        f'<text x="{left + 4 + width / 2:.0f}" y="{PLOT + 48}" text-anchor="middle">mean '
        f"{_number(float(values.mean()), image.dtype)}</text>\n"
    )
    return "".join(parts)


def _number(value: float, dtype: torch.dtype) -> str:
    text = f"{value:.2f}" if dtype.is_floating_point and abs(value) < 10 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _axis(x: float, y: float, width: float) -> str:
    return f'<path class="axis" d="M{x:.1f} {y:.1f}h{width:.1f}"/>\n'


def _drawing(body: str, width: float, height: float, about: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'class="drawing values" role="img">\n<title>{escape(about)}</title>\n'
        f"<style>{_STYLE}</style>\n{body}</svg>\n"
    )


# --- All of them ---

#: Kinds of pictures by the name of a section; of all others, it is the original and draws.
KINDS: dict[str, Callable[[Card], Image.Image | str]] = {
    "CenterCrop": draw_results,
    "Resize": draw_results,
    "ToDtype": draw_values,
    "Normalize": draw_values,
    "LabelSmoothing": draw_labels,
    "MixUp": draw_mixed,
    "CutMix": draw_mixed,
    "WithIndices": draw_numbers,
    "SanitizeBoxes": draw_boxes,
    "Views": draw_views,
    "Pairs": draw_pairs,
    "Masks": draw_masks,
}


def save(card: Card, folder: Path) -> Path:
    """Draw the picture of a section into a folder; return its path."""
    path = folder / card.picture
    drawn = KINDS.get(card.name, draw_choices)(card)
    if isinstance(drawn, str):
        path.write_text(drawn, "utf-8")
    else:
        drawn.save(path, quality=QUALITY, optimize=True)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw into a folder; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR", help="default: docs/reference/pictures")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="sections of the page; default: all")
    options = parser.parse_args(arguments)
    cards = read_cards(PAGE.read_text("utf-8"))
    unknown = set(options.only or ()) - {card.name for card in cards}
    if unknown:
        parser.error(f"{PAGE.name} has no section {sorted(unknown)[0]}; it has {', '.join(c.name for c in cards)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for card in cards:
        if not options.only or card.name in options.only:
            path = save(card, options.out)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
