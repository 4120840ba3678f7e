"""Cards that notebooks show for an object, as HTML: a title, thumbnails of some samples, facts and a table."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lmdbloader.base.text import plain

Pixels = npt.NDArray[Any]
Tones = Mapping[tuple[str, str], tuple[float, float]]

# The longer side of a thumbnail, in pixels of the screen; the browser enlarges smaller ones by a whole number.
SIDE = 96
# Of one encoded thumbnail: a PNG if it fits, else the best JPEG that does.
MAX_NBYTES = 3600
_QUALITIES = (85, 70, 50, 30, 10)
_CHANNELS = (1, 3, 4)
# Thinner arrays are not shown as pictures.
_MIN_SIDE, _MAX_ASPECT = 4, 8
# With more thumbnails, a card could exceed 60 KB.
_MAX_THUMBNAILS = 8
_MAX_SAMPLES = 6
MAX_SIDE_BY_SIDE = 4
_MAX_ROWS = 20

# Colours and fonts are the notebook's, which suits light and dark themes. The classes keep MathJax from reading dollar
# signs as formulas.
_CARD = '<div class="tex2jax_ignore mathjax_ignore" style="line-height:1.4">'
_STRIP = '<div style="display:flex;flex-wrap:wrap;align-items:flex-start;margin:8px 0 2px">'
_CELL = "text-align:left;padding:2px 16px 2px 0;vertical-align:top;white-space:normal"
_FRAME = "border:1px solid rgba(128,128,128,.45);box-sizing:content-box"
_FAINT = "opacity:.75;font-size:90%"


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample as a card shows it.

    Attributes:
        pictures: Names of fields, and their pixels (C, H, W) or a text that explains why there are none.
        caption: The text under it.
    """

    pictures: Sequence[tuple[str, Pixels | str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """An object's card in a notebook; every text is escaped, and long ones are shortened.

    Attributes:
        title: The object's type, such as LMDBDataset.
        place: Its path.
        headline: The numbers that matter most.
        samples: Up to `num_shown` of them.
        facts: Pairs of a name and a text.
        header, rows: A table.
        notes: Sentences below it.
    """

    title: str
    place: str
    headline: str
    samples: Sequence[Shown] = ()
    facts: Sequence[tuple[str, str]] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def to_html(self) -> str:
        """Return the card as self-contained HTML of less than 60 KB."""
        extents = tones((name, p) for s in self.samples for name, p in s.pictures if not isinstance(p, str))
        parts = [
            f"<div><b>{_text(self.title)}</b> <code>{_text(self.place)}</code></div><div>{_text(self.headline)}</div>"
        ]
        if self.samples:
            parts.append(f"{_STRIP}{''.join(_sample(s, extents) for s in self.samples)}</div>")
        notes = [
            f"{name}: {dtype} values from {low:,.6g} to {high:,.6g} are shown as black to white."
            for (name, dtype), (low, high) in extents.items()
        ]
        notes += self.notes
        if len(self.rows) > _MAX_ROWS:
            notes.append(f"The table goes on: {len(self.rows) - _MAX_ROWS:,} more.")
        if self.facts:
            parts.append(_table((), self.facts))
        if self.rows:
            parts.append(_table(self.header, self.rows[:_MAX_ROWS]))
        parts += [f'<div style="{_FAINT}">{_text(note, 400)}</div>' for note in notes]
        return f"{_CARD}{''.join(parts)}</div>"


def num_shown(side_by_side: int) -> int:
    """Return how many samples fit on a card, with `side_by_side` pictures each.

    >>> [num_shown(n) for n in (0, 1, 2, 4)]
    [6, 6, 4, 2]
    """
    return min(_MAX_SAMPLES, _MAX_THUMBNAILS // max(side_by_side, 1))


def place_of(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the current folder if it is inside of it, else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):  # outside, or the current folder was removed
        return os.fspath(path)


def _sample(shown: Shown, extents: Tones) -> str:
    made = [(name, p if isinstance(p, str) else thumbnail(name, p, extents)) for name, p in shown.pictures]
    sizes = [(t.width, t.height) for _, t in made if isinstance(t, Thumbnail)]
    # All at the size of the largest: lr next to hr shows the detail that is lost.
    box = max(sizes, key=lambda size: size[0] * size[1], default=(SIDE, SIDE))
    pictures = "".join(_picture(name, t, box) for name, t in made)
    width = max(SIDE, len(made) * (box[0] + 4))
    caption = f'<div style="{_FAINT};max-width:{width}px;overflow-wrap:anywhere">{_text(shown.caption, 80)}</div>'
    pictures = f'<div style="display:flex;align-items:flex-end">{pictures}</div>'
    return f'<div style="margin:0 16px 8px 0">{pictures}{caption}</div>'


def _picture(name: str, shown: Thumbnail | str, box: tuple[int, int]) -> str:
    label = _text(name, 60)
    if isinstance(shown, str):
        size = f"width:{max(box[0], SIDE)}px;min-height:{box[1]}px;overflow:hidden;overflow-wrap:anywhere"
        return f'<div title="{label}" style="{_FRAME};{size};margin-right:2px;font-size:80%">{_text(shown, 120)}</div>'
    ratio = min(box[0] / shown.width, box[1] / shown.height)
    width, height = max(1, round(shown.width * ratio)), max(1, round(shown.height * ratio))
    sharp = ";image-rendering:pixelated" if shown.is_enlarged or ratio > 1 else ""
    return (
        f'<img alt="{label}" title="{label}" width="{width}" height="{height}" src="{shown.uri}" '
        f'style="{_FRAME};width:{width}px;height:{height}px;max-width:none;margin:0 2px 0 0{sharp}">'
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="{_CELL}">{_text(cell, 300)}</{tag}>' for cell in cells) + "</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<table style="margin:4px 0;border-collapse:collapse;max-width:60em">{head}<tbody>{body}</tbody></table>'


def _text(text: str, limit: int = 300) -> str:
    """Return text escaped for HTML; the middle of one longer than `limit` characters is left out.

    >>> _text("<b>"), _text("a" * 99, 9)
    ('&lt;b&gt;', 'aaaaaa ... aaa')
    """
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]} ... {text[-(limit // 3) :]}"
    return escape(plain(text))


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture.

    Attributes:
        uri: The picture itself, as a data URI.
        width, height: The size on the screen, in pixels.
        is_enlarged: Whether that is more than the picture has, so single pixels are visible.
    """

    uri: str
    width: int
    height: int
    is_enlarged: bool


def as_picture(array: Pixels) -> Pixels | None:
    """Return an array of numbers as (C, H, W) with C of 1, 3 or 4 if it looks like a picture, else None.

    >>> as_picture(np.zeros((32, 48, 4))).shape, as_picture(np.zeros((3, 32, 48))).shape, as_picture(np.zeros(9))
    ((4, 32, 48), (3, 32, 48), None)
    """
    if array.dtype.kind not in "buif" or array.ndim not in (2, 3):
        return None
    if array.ndim == 2:
        array = array[None]
    elif array.shape[0] not in _CHANNELS and array.shape[2] in _CHANNELS:
        array = np.moveaxis(array, 2, 0)
    shorter, longer = sorted(array.shape[1:])
    fits = array.shape[0] in _CHANNELS and shorter >= _MIN_SIDE and longer <= _MAX_ASPECT * shorter
    return array if fits else None


def tones(pictures: Iterable[tuple[str, Pixels]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the values shown as black and white, for each (field, dtype) other than uint8.

    They are the same for all pictures, which makes these comparable: 0 and the largest for whole numbers, 0 and 1
    for floats between them, else the smallest and the largest.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for name, picture in pictures:
        if picture.dtype == np.uint8:
            continue
        finite = picture[np.isfinite(picture)] if picture.dtype.kind == "f" else picture
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        before = found.get((name, picture.dtype.name), (low, high))
        found[name, picture.dtype.name] = min(low, before[0]), max(high, before[1])
    return {key: _rounded(key[1], *values) for key, values in found.items()}


def _rounded(dtype: str, low: float, high: float) -> tuple[float, float]:
    if dtype.startswith("float"):
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    return min(low, 0.0), max(high, 1.0)


def thumbnail(name: str, picture: Pixels, tones: Tones) -> Thumbnail:
    """Return pixels (C, H, W), C of 1, 3 or 4, as a small picture; a fourth channel is the opacity.

    Args:
        name: The field's.
        picture: Of any numeric dtype.
        tones: As `tones` returns them.
    """
    _, height, width = picture.shape
    # A large picture is subsampled first, then resized with a good filter: fast enough.
    step = max(1, max(height, width) // (8 * SIDE))
    image = _to_pil(_to_bytes(picture[:, ::step, ::step], tones.get((name, picture.dtype.name), (0.0, 255.0))))
    longer = max(image.size)
    if longer > SIDE:
        size = max(1, round(image.width * SIDE / longer)), max(1, round(image.height * SIDE / longer))
        image = image.resize(size, Image.Resampling.LANCZOS)
    factor = max(1, SIDE // max(image.size))
    return Thumbnail(_encoded(image), image.width * factor, image.height * factor, factor > 1)


def _to_bytes(picture: Pixels, extent: tuple[float, float]) -> npt.NDArray[np.uint8]:
    if picture.dtype == np.uint8:
        return picture
    low, high = extent
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(all="ignore"):
        values = np.nan_to_num((picture.astype(np.float64) - low) * scale, nan=0.0, posinf=255.0, neginf=0.0)
    return np.clip(values + 0.5, 0, 255).astype(np.uint8)


def _to_pil(picture: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(picture[0] if len(picture) == 1 else np.moveaxis(picture, 0, 2)))


def _encoded(image: Image.Image) -> str:
    """Return a picture as a data URI, if possible of at most MAX_NBYTES * 4 / 3 characters."""
    data, kind = _saved(image, "PNG", optimize=True), "png"
    if len(data) > MAX_NBYTES and image.mode == "RGBA":  # JPEG does not store transparency: use fewer colours
        data = _saved(image.quantize(32, Image.Quantize.FASTOCTREE), "PNG", optimize=True)
    for quality in _QUALITIES if len(data) > MAX_NBYTES and image.mode != "RGBA" else ():
        data, kind = _saved(image, "JPEG", quality=quality, optimize=True), "jpeg"
        if len(data) <= MAX_NBYTES:
            break
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()
