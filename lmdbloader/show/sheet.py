"""Contact sheets: some of a dataset's images in one picture, with captions."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
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
from lmdbloader.show.labels import in_colors
from lmdbloader.show.lettering import font_of, printable
from lmdbloader.show.places import draw_places
from lmdbloader.store import Reader, check_rows, open_reader

Pixels = npt.NDArray[Any]

MAX_COUNT = 1000
_SHEET_WIDTH = 1600
# The longer side of an image on the sheet; smaller ones are enlarged by the largest whole number that stays below it.
_LONG_SIDE = 240
_MARGIN, _GAP, _PAIR_GAP, _LINE = 24, 20, 4, 18
_BACKGROUND, _INK, _FAINT, _FRAME = "#ffffff", "#1c1c1c", "#767676", "#d8d8d8"
_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Sheet:
    """A contact sheet.

    Attributes:
        image: The picture, RGB.
        rows: Numbers of the samples on it, in order.
        num_samples: Samples in the dataset.
        note: A sentence on how 16-bit images are shown; empty if there are none.
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

    >>> spread(100, 4), spread(3, 24)
    ([12, 37, 62, 87], [0, 1, 2])
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
    """Draw a contact sheet of a dataset's images, with sample numbers, source names and labels under them.

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

    >>> import tempfile, numpy, lmdbloader
    >>> path = tempfile.mkdtemp() + "/grey"
    >>> written = lmdbloader.write(({"image": numpy.zeros((8, 6), "uint8")} for _ in range(3)), path)
    >>> preview(path).rows
    (0, 1, 2)
    """
    count, seed = whole("count", count), optional(whole, "seed", seed)
    columns = optional(whole, "columns", columns)
    if output is not None:
        _check_output(new_path("output", output))
    reader = open_reader(path)
    sheet = contact_sheet(reader, spread(len(reader), count, seed), columns=columns)
    if output is not None:
        save_sheet(sheet, output)
    return sheet


def contact_sheet(reader: Reader, rows: Sequence[int], *, columns: int | None = None) -> Sheet:
    """Return samples drawn in a grid, their numbers, sources and labels under them.

    The image fields of a sample are side by side at the size of the largest, so lr next to hr shows the detail that is
    lost: smaller ones are enlarged with nearest neighbour. Large images are reduced, small ones enlarged by a whole
    number. 16-bit images are scaled to 8 bits; the brightest pixel on the sheet is white. Masks have a colour for each
    label. Boxes and points are drawn on the images.

    Args:
        reader: An open dataset.
        rows: Numbers of the samples.
        columns: Of the grid; by default as many as make the sheet about 1,600 pixels wide.

    Raises:
        OptionError: The dataset has no image field or no samples, or `columns` is below 1.
        CorruptError: An image is damaged, or what is drawn on it.
    """
    names = [f.name for f in reader.manifest.fields if f.has_pixels]
    if not names:
        fields = ", ".join(f"{f.name} ({f.kind})" for f in reader.manifest.fields)
        raise OptionError(f"{reader.place}: has no image field to show; it has {fields}")
    numbers = tuple(check_rows(list(rows), len(reader)).tolist())
    if not numbers:
        raise OptionError(f"{reader.place}: there is no sample to show")
    if columns is not None and not 1 <= columns <= MAX_COUNT:
        raise OptionError(f"columns {columns}: expected 1 to {MAX_COUNT}")
    white = _brightest(reader, names, numbers)
    strips = [_strip(reader, names, row, white) for row in numbers]
    captions = [_numbered(row, *caption(reader, row)) for row in numbers]
    note = f"16-bit pixels are shown in 8 bits, 0 to {white:,} as black to white." if white else ""
    title = f"{len(numbers):,} of {counted(len(reader), 'sample')}" + (
        f", each {' | '.join(names)}" if len(names) > 1 else ""
    )
    image = _draw(os.path.basename(reader.place), f"{title}. {note}" if note else title, strips, captions, columns)
    return Sheet(image, numbers, len(reader), note)


def save_sheet(sheet: Sheet, path: str | os.PathLike[str]) -> None:
    """Write a sheet as a PNG file; an existing file is replaced once the new one is complete.

    Raises:
        OptionError: The name does not end in .png.
        DestinationError: It is a folder, or its folder does not exist.
    """
    target = Path(path)
    _check_output(target)
    with replacing(target) as hidden:
        sheet.image.save(hidden, "PNG")


def _check_output(target: Path) -> None:
    if target.suffix.lower() != ".png":
        raise OptionError(f"{target}: expected a file name that ends in .png, the format of a sheet")
    if target.is_dir():
        raise DestinationError(f"{target}: is a folder. Choose another name.")
    if not target.absolute().parent.is_dir():
        raise DestinationError(f"{target}: the folder {target.absolute().parent} does not exist. Create it first.")


def _brightest(reader: Reader, names: Sequence[str], rows: Sequence[int]) -> int:
    """Return the largest value in the 16-bit images, 0 where all have 8 bits."""
    images = [name for name in names if reader.fields[name].kind == "image"]
    wide = [(name, row) for name in images for row in rows if reader.image_dtype(name, row) == np.uint16]
    return max((max(1, int(reader.read_image(name, row).max())) for name, row in wide), default=0)


def _strip(reader: Reader, names: Sequence[str], row: int, white: int) -> Image.Image:
    """Return the images of one sample side by side, all at the size of the largest."""
    shapes = [reader.image_shape(name, row) for name in names]
    _, full_height, full_width = max(shapes, key=lambda shape: shape[1] * shape[2])
    width, height = _shown_size(full_width, full_height)
    parts = [_part(reader, name, row, white, width, height) for name in names]
    for name, part in zip(names, parts, strict=True):
        if reader.fields[name].kind == "image":
            draw_places(part, reader, row, full_width)
    strip = Image.new("RGB", (len(parts) * (width + _PAIR_GAP) - _PAIR_GAP, height), _BACKGROUND)
    for i, part in enumerate(parts):
        strip.paste(part, (i * (width + _PAIR_GAP), 0))
    return strip


def _part(reader: Reader, name: str, row: int, white: int, width: int, height: int) -> Image.Image:
    """Return one image of a sample, or its mask in colours, fitted into a box."""
    f, pixels = reader.fields[name], reader.read_image(name, row)
    if f.kind == "mask":
        return _fit(_to_pil(in_colors(pixels, f.ignore_index), white), width, height, smooth=False)
    return _fit(_to_pil(pixels, white), width, height)


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Return an image's width and height on the sheet.

    >>> _shown_size(96, 96), _shown_size(480, 100)
    ((192, 192), (240, 50))
    """
    longer = max(width, height)
    if longer <= _LONG_SIDE:
        factor = _LONG_SIDE // longer
        return width * factor, height * factor
    return max(1, round(width * _LONG_SIDE / longer)), max(1, round(height * _LONG_SIDE / longer))


def _fit(image: Image.Image, width: int, height: int, *, smooth: bool = True) -> Image.Image:
    """Fit an image into a box and keep its proportions: reduce it smoothly, or enlarge it by repeating pixels."""
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    if not smooth:
        return image.resize(size, Image.Resampling.NEAREST)
    factor = math.ceil(ratio)
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    # Repeated pixels stay hard-edged under the box filter; photographs look best under Lanczos.
    kept = Image.Resampling.BOX if factor > 1 else Image.Resampling.LANCZOS
    return image if image.size == size else image.resize(size, kept, reducing_gap=3.0)


def _to_pil(image: Pixels, white: int) -> Image.Image:
    """Return (C, H, W) uint8 or uint16 pixels as an RGB image of 8 bits."""
    if image.dtype == np.uint16:
        image = (image.astype(np.float32) * (255 / white) + 0.5).astype(np.uint8)
    if len(image) == 1:
        return Image.fromarray(image[0]).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, 2)))


def caption(reader: Reader, row: int) -> tuple[str, str]:
    """Return the two lines of a sample's caption: its source's name, and its texts and numbers.

    Raises:
        CorruptError: A text is damaged.
    """
    source = reader.source(row)
    more = []
    for f in reader.manifest.fields:
        if f.kind == "text":
            more += reader.read_texts(f.name, np.array([row]))
        elif f.kind in ("int", "float"):
            value = reader.index.arrays[f.name][row].item()
            classes = reader.manifest.classes.get(f.name, ())
            known = f.kind == "int" and 0 <= value < len(classes)
            more.append(
                classes[value] if known else f"{f.name} {value:.6g}" if f.kind == "float" else f"{f.name} {value}"
            )
    if source is not None:
        top, left = (int(reader.index.arrays[name][row]) for name in ("top", "left"))
        if top or left or _is_cut(reader):
            more.insert(0, f"row {top}, column {left}")
    return source.rsplit("/", 1)[-1] if source else "", ", ".join(more)


def _numbered(row: int, source: str, more: str) -> tuple[str, str]:
    return f"{row}  {source}" if source else f"{row}", more


def _is_cut(reader: Reader) -> bool:
    options = reader.manifest.made_by.get("options")
    return isinstance(options, dict) and bool(options.get("patch_size"))


def _draw(
    name: str, title: str, strips: Sequence[Image.Image], captions: Sequence[tuple[str, str]], columns: int | None
) -> Image.Image:
    """Lay out the strips: columns of one width, each row as high as its highest strip."""
    bold, plain = font_of(20), font_of(13)
    cell = max(max(strip.width for strip in strips), 120)
    if columns is None:
        fitting = max(1, (_SHEET_WIDTH - 2 * _MARGIN + _GAP) // (cell + _GAP))
        # Spread the samples evenly over the rows that this takes.
        columns = -(-len(strips) // -(-len(strips) // fitting))
    lines = 2 if any(second for _, second in captions) else 1
    grid = [range(at, min(at + columns, len(strips))) for at in range(0, len(strips), columns)]
    heights = [max(strips[i].height for i in row) for row in grid]
    header = 58
    width = 2 * _MARGIN + columns * (cell + _GAP) - _GAP
    height = _MARGIN + header + sum(h + 6 + lines * _LINE + _GAP for h in heights) - _GAP + _MARGIN
    sheet = Image.new("RGB", (max(width, 480), height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_MARGIN, _MARGIN - 4), name, bold, _INK, sheet.width - 2 * _MARGIN)
    _write(draw, (_MARGIN, _MARGIN + 24), title, plain, _FAINT, sheet.width - 2 * _MARGIN)
    y = _MARGIN + header
    for row, row_height in zip(grid, heights, strict=True):
        for column, i in enumerate(row):
            x = _MARGIN + column * (cell + _GAP)
            # Images are aligned at the bottom, so their captions are on one line.
            top = y + row_height - strips[i].height
            sheet.paste(strips[i], (x, top))
            draw.rectangle((x - 1, top - 1, x + strips[i].width, top + strips[i].height), outline=_FRAME)
            _write(draw, (x, y + row_height + 6), captions[i][0], plain, _INK, cell)
            _write(draw, (x, y + row_height + 6 + _LINE), captions[i][1], plain, _FAINT, cell)
        y += row_height + 6 + lines * _LINE + _GAP
    return sheet


def _write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font: Any, ink: str, width: int) -> None:
    """Write one line, shortened to at most `width` pixels."""
    text = printable(text, font)
    if draw.textlength(text, font=font) > width:
        while text and draw.textlength(text + _ELLIPSIS, font=font) > width:
            text = text[:-1]
        text = text.rstrip() + _ELLIPSIS
    draw.text(place, text, font=font, fill=ink)
