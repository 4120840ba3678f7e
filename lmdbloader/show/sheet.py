"""Contact sheets: some of a dataset's images in one picture, with captions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from lmdbloader.base.arguments import new_path, optional, whole
from lmdbloader.base.files import replacing
from lmdbloader.base.text import counted
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.show.drawing import draw_places, font_of, in_colors, printable
from lmdbloader.store import Reader, check_rows, open_reader

Pixels = npt.NDArray[Any]
# What is black, and what is white.
_Range = tuple[float, float]

MAX_COUNT = 1000
_SHEET_WIDTH = 1600
# The longer side of an image on the sheet; smaller ones are enlarged by the largest whole number that stays below it.
_LONG_SIDE = 240
_MARGIN, _GAP, _PAIR_GAP, _LINE = 24, 20, 4, 18
_BACKGROUND, _INK, _FAINT, _FRAME = "#ffffff", "#1c1c1c", "#767676", "#d8d8d8"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A contact sheet.

    Attributes:
        image: The picture, RGB.
        rows: Numbers of the samples on it, in order.
        num_samples: Samples in the dataset.
        note: Sentences on how 16-bit images and floats are shown; empty if there are none.
    """

    image: Image.Image
    rows: tuple[int, ...]
    num_samples: int
    note: str


def spread(length: int, count: int, seed: int | None = None) -> list[int]:
    """Return `count` sample numbers in ascending order (all if there are fewer), evenly spread or drawn at random.

    Args:
        length: Samples in the dataset.
        count: How many to choose.
        seed: Of the random choice; None spreads them evenly.

    Raises:
        OptionError: `count` is not in 1 to 1000.
    """
    if not 1 <= count <= MAX_COUNT:
        raise OptionError(f"count {count}: expected 1 to {MAX_COUNT} samples on one sheet")
    if seed is not None and seed < 0:
        raise OptionError(f"seed {seed}: expected 0 or more")
    count = min(count, length)
    if seed is not None:
        return sorted(np.random.default_rng(seed).choice(length, count, replace=False).tolist())
    # The middle of each of `count` equal parts, in whole numbers.
    return [(2 * i + 1) * length // (2 * count) for i in range(count)]


def preview(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    count: int = 24,
    seed: int | None = None,
    columns: int | None = None,
) -> Sheet:
    """Draw a contact sheet of a dataset's images, with sample numbers, source paths and labels under them.

    Args:
        path: The dataset's folder.
        output: The PNG file to write; an existing file is replaced once the new one is complete. None writes no file.
        count: Samples on the sheet.
        seed: Chooses the samples at random; None spreads them evenly over the dataset.
        columns: Of the sheet; by default as many as make it about 1,600 pixels wide.

    Returns:
        The sheet: `.image` is a PIL image.

    Raises:
        NotFoundError: There is nothing at `path`.
        OptionError: The dataset has no image field or no samples, or an option is out of range.
        CorruptError: An image is damaged, or what is drawn on it.
        DestinationError: `output` is a folder, or its folder does not exist.
    """
    count, seed, columns = whole("count", count), optional(whole, "seed", seed), optional(whole, "columns", columns)
    target = None if output is None else _checked(new_path("output", output))
    reader = open_reader(path)
    sheet = contact_sheet(reader, spread(len(reader), count, seed), columns=columns)
    if target is not None:
        with replacing(target) as hidden:
            sheet.image.save(hidden, "PNG")
    return sheet


def contact_sheet(reader: Reader, rows: Sequence[int], *, columns: int | None = None) -> Sheet:
    """Return samples drawn in a grid, their numbers, sources and labels under them.

    The image fields of a sample are side by side at the size of the largest, so lr next to hr shows the detail that is
    lost: smaller ones are enlarged with nearest neighbor. Large images are reduced, small ones enlarged by a whole
    number. 16-bit images are scaled to 8 bits; the brightest pixel on the sheet is white. Floats are shown from a
    field's least to its greatest value on the sheet. Of several channels, the first three are red, green and blue; of
    two, the first one is shown. Masks have a color for each label. Boxes and points are drawn on the images.

    Raises:
        OptionError: The dataset has no image field or no samples, or `columns` is below 1.
        CorruptError: An image is damaged, or what is drawn on it.
    """
    fields = reader.manifest.fields
    names = [f.name for f in fields if f.has_pixels]
    if not names:
        has = ", ".join(f"{f.name} ({f.kind})" for f in fields)
        raise OptionError(f"{reader.place}: has no image field to show; it has {has}")
    numbers = tuple(check_rows(list(rows), len(reader)).tolist())
    if not numbers:
        raise OptionError(f"{reader.place}: there is no sample to show")
    if columns is not None and not 1 <= columns <= MAX_COUNT:
        raise OptionError(f"columns {columns}: expected 1 to {MAX_COUNT}")
    ranges, note = _ranges(reader, names, numbers)
    strips = [_strip(reader, names, row, ranges) for row in numbers]
    captions = [_caption(reader, row) for row in numbers]
    title = f"{len(numbers):,} of {counted(len(reader), 'sample')}, each {' | '.join(names)}. {note}"
    image = _draw(os.path.basename(reader.place), title, strips, captions, columns)
    return Sheet(image, numbers, len(reader), note)


def _checked(target: Path) -> Path:
    if target.suffix.lower() != ".png":
        raise OptionError(f"{target}: expected a file name that ends in .png, the format of a sheet")
    if target.is_dir():
        raise DestinationError(f"{target}: is a folder. Choose another name.")
    if not target.absolute().parent.is_dir():
        raise DestinationError(f"{target}: the folder {target.absolute().parent} does not exist. Create it first.")
    return target


def _ranges(reader: Reader, names: Sequence[str], rows: Sequence[int]) -> tuple[dict[str, _Range], str]:
    """Return what is black and what is white in each field that does not have 8 bits, and sentences that say it."""
    images = [name for name in names if reader.fields[name].kind == "image"]
    dtypes = [(name, row, reader.image_dtype(name, row)) for name in images for row in rows]
    wide = [(name, row) for name, row, dtype in dtypes if dtype == np.uint16]
    white = max((max(1, int(reader.read_image(name, row).max())) for name, row in wide), default=0)
    ranges: dict[str, _Range] = {name: (0, white) for name, _ in wide}
    notes = [f"16-bit pixels are shown in 8 bits, 0 to {white:,} as black to white."] if white else []
    for name in dict.fromkeys(name for name, _, dtype in dtypes if dtype.kind == "f"):
        pixels = np.concatenate([reader.read_image(name, row).ravel() for row in rows])
        finite = pixels[np.isfinite(pixels)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        ranges[name] = (low, high)
        notes.append(f"{name} is shown from {low:.4g} to {high:.4g} as black to white.")
    return ranges, " ".join(notes)


def _strip(reader: Reader, names: Sequence[str], row: int, ranges: Mapping[str, _Range]) -> Image.Image:
    """Return the images of one sample side by side, all at the size of the largest; masks are in colors."""
    shapes = [reader.image_shape(name, row) for name in names]
    _, full_height, full_width = max(shapes, key=lambda shape: shape[1] * shape[2])
    longer = max(full_width, full_height)
    ratio = _LONG_SIDE // longer if longer <= _LONG_SIDE else _LONG_SIDE / longer
    width, height = max(1, round(full_width * ratio)), max(1, round(full_height * ratio))
    strip = Image.new("RGB", (len(names) * (width + _PAIR_GAP) - _PAIR_GAP, height), _BACKGROUND)
    for number, name in enumerate(names):
        f, pixels = reader.fields[name], reader.read_image(name, row)
        if f.kind == "mask":
            part = _fit(_to_pil(in_colors(pixels, f.ignore_index), None), width, height, smooth=False)
        else:
            part = _fit(_to_pil(pixels, ranges.get(name)), width, height)
            draw_places(part, reader, row, full_width)
        strip.paste(part, (number * (width + _PAIR_GAP), 0))
    return strip


def _fit(image: Image.Image, width: int, height: int, *, smooth: bool = True) -> Image.Image:
    """Fit an image into a box and keep its proportions: reduce it smoothly, or enlarge it by repeating pixels."""
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    # Photographs look best under Lanczos.
    kept = Image.Resampling.LANCZOS if smooth and ratio < 1 else Image.Resampling.NEAREST
    return image if image.size == size else image.resize(size, kept, reducing_gap=3.0)


def _to_pil(image: Pixels, shown: _Range | None) -> Image.Image:
    """Return (C, H, W) pixels as an RGB image of 8 bits; those that do not have 8 bits from black to white."""
    image = image[:3] if len(image) > 2 else image[:1]
    if image.dtype != np.uint8 and shown is not None:
        low, high = shown
        scaled = (image.astype(np.float32) - np.float32(low)) * (255 / max(high - low, 1e-30)) + 0.5
        image = np.nan_to_num(scaled, nan=0).clip(0, 255).astype(np.uint8)
    if len(image) == 1:
        return Image.fromarray(image[0]).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, 2)))


def _caption(reader: Reader, row: int) -> tuple[str, str]:
    """Return the two lines of a sample's caption: its number and source, and its texts and numbers."""
    source = reader.source(row)
    more = []
    options = reader.manifest.made_by.get("options")
    if source is not None and isinstance(options, dict) and options.get("patch_size"):
        top, left = (int(reader.index.arrays[name][row]) for name in ("top", "left"))
        more.append(f"row {top}, column {left}")
    for f in reader.manifest.fields:
        if f.kind == "text":
            more += reader.read_texts(f.name, np.array([row]))
        elif f.kind in ("int", "float"):
            value = reader.index.take(f.name, range(row, row + 1))[0].item()
            classes = reader.manifest.classes.get(f.name, ())
            is_class = f.kind == "int" and 0 <= value < len(classes)
            shown = f"{value:.6g}" if f.kind == "float" else value
            more.append(classes[value] if is_class else f"{f.name} {shown}")
    return f"{row}  {source}" if source else f"{row}", ", ".join(more)


def _draw(
    name: str, title: str, strips: Sequence[Image.Image], captions: Sequence[tuple[str, str]], columns: int | None
) -> Image.Image:
    """Lay out the strips in columns of one width and rows of one height."""
    bold, plain = font_of(20), font_of(13)
    cell = max(max(strip.width for strip in strips), 120)
    if columns is None:
        fitting = max(1, (_SHEET_WIDTH - 2 * _MARGIN + _GAP) // (cell + _GAP))
        # Spread the samples evenly over the rows that this takes.
        columns = -(-len(strips) // -(-len(strips) // fitting))
    lines = 2 if any(second for _, second in captions) else 1
    highest = max(strip.height for strip in strips)
    pitch, first = highest + 6 + lines * _LINE + _GAP, _MARGIN + 58
    size = 2 * _MARGIN + columns * (cell + _GAP) - _GAP, first + -(-len(strips) // columns) * pitch - _GAP + _MARGIN
    sheet = Image.new("RGB", (max(size[0], 480), size[1]), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_MARGIN, _MARGIN - 4), name, bold, _INK, sheet.width - 2 * _MARGIN)
    _write(draw, (_MARGIN, _MARGIN + 24), title, plain, _FAINT, sheet.width - 2 * _MARGIN)
    for number, (strip, texts) in enumerate(zip(strips, captions, strict=True)):
        x, y = _MARGIN + number % columns * (cell + _GAP), first + number // columns * pitch
        # Images are aligned at the bottom, so their captions are on one line.
        top = y + highest - strip.height
        sheet.paste(strip, (x, top))
        draw.rectangle((x - 1, top - 1, x + strip.width, top + strip.height), outline=_FRAME)
        _write(draw, (x, y + highest + 6), _fit_path(draw, texts[0], plain, cell), plain, _INK, cell)
        _write(draw, (x, y + highest + 6 + _LINE), texts[1], plain, _FAINT, cell)
    return sheet


def _fit_path(draw: ImageDraw.ImageDraw, text: str, font: Any, width: int) -> str:
    """Return a sample's number and source, without as many of the source's first folders as do not fit."""
    number, gap, path = text.partition("  ")
    while draw.textlength(printable(text), font=font) > width and "/" in path:
        path = path.partition("/")[2]
        text = f"{number}{gap}.../{path}"
    return text


def _write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font: Any, ink: str, width: int) -> None:
    """Write one line, shortened to at most `width` pixels."""
    text = whole_text = printable(text)
    while text and draw.textlength(text, font=font) > width:
        whole_text = whole_text[:-1]
        text = f"{whole_text}..." if whole_text else ""
    draw.text(place, text, font=font, fill=ink)
