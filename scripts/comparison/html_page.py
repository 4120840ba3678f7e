"""Writes a report with charts as one HTML file that needs no others."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lmdbloader.base.files import replacing
from lmdbloader.base.text import plain
from lmdbloader.lab.formatting import Table

_STYLE = """
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem; color: #1d2126; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.25; overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
pre { overflow-x: auto; font-size: .8125rem; }
"""


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page.

    Attributes:
        name: The section's id, to link to it.
        figure: Its chart; None if it has none.
        table: Its figures; the caption is the heading.
        lines: Sentences below the heading.
    """

    name: str
    figure: Figure | None
    table: Table
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Page:
    """A report as it is shown.

    Attributes:
        title: Its heading.
        sections: In their order.
        facts: Names and values of what was measured on what.
        lines: Sentences below the heading.
        notes: Sentences for the page's end.
    """

    title: str
    sections: Sequence[PageSection]
    facts: Sequence[tuple[str, str]]
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()


def write_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a report as one HTML file that loads nothing; an existing file is replaced once the new one is complete.

    Args:
        page: The report.
        path: Of the file.

    Raises:
        OSError: It cannot be written.
        DiskFullError: The disk is full.
    """
    with replacing(Path(path)) as hidden:
        hidden.write_text("\n".join(_html(page)), "utf-8")


def _html(page: Page) -> list[str]:
    """Return the lines of a page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(page.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(page.title)}</h1>",
        *_paragraphs(page.lines),
    ]
    for section in page.sections:
        caption = _text(section.table.caption)
        lines += [f'<section id="{_text(section.name)}"><h2>{caption}</h2>', *_paragraphs(section.lines)]
        if section.figure is not None:
            lines.append(f'<img src="{_address(section.figure)}" alt="Chart of the figures in the table: {caption}">')
        table = "\n".join(map(_text, section.table.lines()[1:]))
        lines.append(f'<details><summary>Figures</summary><pre tabindex="0">{table}</pre></details></section>')
    facts = [f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in page.facts]
    lines += ['<section id="facts"><h2>What was measured on what</h2><dl>', *facts, "</dl>", *_paragraphs(page.notes)]
    return [*lines, "</section></body></html>"]


def _text(text: str) -> str:
    return html.escape(plain(text))


def _paragraphs(lines: Sequence[str]) -> list[str]:
    return [f"<p>{_text(line)}</p>" for line in lines if line]


def _address(figure: Figure) -> str:
    """Return a chart as the address of an image that needs no file."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lmdbloader"}):  # the same chart gives the same bytes
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()
