"""Cards: what a notebook shows of an object, as HTML: a title, some samples as thumbnails, facts and a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lmdbloader.base.text import plain
from lmdbloader.show.thumbnails import SIDE, Pixels, Thumbnail, Tones, thumbnail, tones

# More of them, at the size that a thumbnail may have, would make a card larger than 60 KB.
_MAX_THUMBNAILS = 8
_MAX_SAMPLES = 6
MAX_SIDE_BY_SIDE = 4
_MAX_ROWS = 20

# Colours and fonts are the notebook's own, so that they suit its light side and its dark one. The classes keep MathJax
# from taking dollar signs for formulas.
_CARD = '<div class="tex2jax_ignore mathjax_ignore" style="line-height:1.4">'
_STRIP = '<div style="display:flex;flex-wrap:wrap;align-items:flex-start;margin:8px 0 2px">'
_CELL = "text-align:left;padding:2px 16px 2px 0;vertical-align:top;white-space:normal"
_FRAME = "border:1px solid rgba(128,128,128,.45);box-sizing:content-box"
_FAINT = "opacity:.75;font-size:90%"


@dataclass(frozen=True, slots=True)
class Shown:
    """One sample as a card shows it.

    Attributes:
        pictures: Names of fields, and their pixels (C, H, W) or a text that says why there are none.
        caption: What is written under it.
    """

    pictures: Sequence[tuple[str, Pixels | str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """What a notebook shows of an object. Every text in it is escaped, and cut where it is long.

    Attributes:
        title: Its kind, such as LMDBDataset.
        place: Where it is.
        headline: The numbers that matter most.
        samples: As many as `num_shown` says.
        facts: Names, and what there is to say of each.
        header, rows: A table.
        notes: What else a reader should know.
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
        """Return it as HTML that needs nothing else, less than 60 KB."""
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
    """Return how many samples a card has room for, with so many pictures each.

    >>> [num_shown(n) for n in (0, 1, 2, 4)]
    [6, 6, 4, 2]
    """
    return min(_MAX_SAMPLES, _MAX_THUMBNAILS // max(side_by_side, 1))


def place_of(path: str | os.PathLike[str]) -> str:
    """Return a path as people write it: from the current folder on where it lies in that."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):  # it lies elsewhere, or the current folder was removed
        return os.fspath(path)


def _sample(shown: Shown, extents: Tones) -> str:
    made = [(name, p if isinstance(p, str) else thumbnail(name, p, extents)) for name, p in shown.pictures]
    sizes = [(t.width, t.height) for _, t in made if isinstance(t, Thumbnail)]
    # All at the size of the largest, so that lr beside hr shows what is lost.
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
    """Return text as HTML may hold it; of more than `limit` characters the middle is left out.

    >>> _text("<b>"), _text("a" * 99, 9)
    ('&lt;b&gt;', 'aaaaaa ... aaa')
    """
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]} ... {text[-(limit // 3) :]}"
    return escape(plain(text))
