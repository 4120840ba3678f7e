"""Draws on pictures: texts in Pillow's font, masks in colors, and the boxes and points of a sample."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor, ImageDraw, ImageFont

from lmdbloader.format.layout import image_of
from lmdbloader.store import Reader

_MOST_CHARACTERS = 200


def font_of(size: int) -> Any:
    """Return Pillow's font in a size, in pixels."""
    return ImageFont.load_default(size)


def printable(text: str) -> str:
    """Return a text as the font can draw it, in one line: without accents, and with ? for other characters.

    >>> printable("\u00dcbung caf\u00e9 \u6f22.png")
    'Ubung cafe ?.png'
    """
    letters = (c for c in unicodedata.normalize("NFKD", text[:_MOST_CHARACTERS]) if not unicodedata.combining(c))
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in letters)


_IGNORED = (224, 224, 192)


def in_colors(mask: npt.NDArray[Any], ignore_index: int | None = None) -> npt.NDArray[np.uint8]:
    """Return a mask (H, W) or (1, H, W) as a picture (3, H, W).

    Label 0 is black, and small labels have very different colors: each bit of a label is a bit of red, green or blue,
    and its lowest three bits are the highest bits of the colors.

    Args:
        mask: Of whole numbers.
        ignore_index: The label shown as light gray.

    >>> in_colors(np.array([[0, 1, 2, 255]]), 255).reshape(3, -1).T.tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0], [224, 224, 192]]
    """
    labels = mask.reshape(mask.shape[-2:]).astype(np.int64)
    picture = np.zeros((3, *labels.shape), np.uint8)
    for bit in range(16):
        picture[bit % 3] |= ((labels >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    if ignore_index is not None:
        picture[:, labels == ignore_index] = np.array(_IGNORED, np.uint8)[:, None]
    return picture


# Of one sample: more would hide its image.
_MOST = 200
_RADIUS = 2
_BORDER = "#000000"


def draw_places(picture: Image.Image, reader: Reader, row: int, full_width: int) -> None:
    """Draw the boxes and points of a sample; those with one label have one color, and boxes have their class's name.

    Args:
        picture: RGB, of the whole image; it is changed.
        reader: Of the dataset.
        row: The sample's row in the index.
        full_width: Of the sample's largest image, for boxes that name none.

    Raises:
        CorruptError: A payload is damaged.
    """
    draw, font = ImageDraw.Draw(picture), font_of(11)
    for f in reader.manifest.fields:
        if f.kind not in ("boxes", "points"):
            continue
        image = image_of(f, reader.manifest.fields)
        scale = picture.width / (full_width if image is None else reader.image_shape(image, row)[2])
        places = reader.read_value(f.name, row)[:_MOST].tolist()
        labels, names = _labels(reader, row, len(places))
        for place, label in zip(places, labels, strict=True):
            if f.kind == "boxes":
                limits = picture.size * 2
                box = [round(min(max(scale * side, 0), most)) for side, most in zip(place, limits, strict=True)]
                _draw_box(draw, box, label, names, font)
            else:
                for point in place if isinstance(place[0], list) else [place]:
                    x, y = (scale * (side + 0.5) for side in point)
                    if 0 <= x <= picture.width and 0 <= y <= picture.height:
                        around = (x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS)
                        draw.ellipse(around, fill=_color(label), outline=_BORDER)


def _draw_box(draw: ImageDraw.ImageDraw, box: list[int], label: int, names: tuple[str, ...], font: Any) -> None:
    left, top, right, bottom = box
    right, bottom, color = max(right - 1, left), max(bottom - 1, top), _color(label)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_BORDER)
    draw.rectangle((left, top, right, bottom), outline=color, width=2)
    name = printable(names[label]) if 0 <= label < len(names) else ""
    if name and draw.textlength(name, font=font) <= right - left - 2:
        draw.rectangle(draw.textbbox((left + 2, top + 1), name, font=font), fill=color)
        draw.text((left + 2, top + 1), name, font=font, fill=_BORDER)


def _color(label: int) -> tuple[int, ...]:
    """Return a bright color; those of neighboring labels are very different."""
    return ImageColor.getrgb(f"hsv({label * 222.5 % 360:.0f}, 75%, 100%)")


def _labels(reader: Reader, row: int, count: int) -> tuple[list[int], tuple[str, ...]]:
    """Return a label for each of the places of a sample, 0 if there are none, and the names of labels."""
    for f in reader.manifest.fields:
        if f.kind == "labels" and len(labels := reader.read_value(f.name, row)[:_MOST]) == count:
            return labels.tolist(), reader.manifest.classes.get(f.name, ())
    return [0] * count, ()
