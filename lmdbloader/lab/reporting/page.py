"""Writes reports, each one HTML file that needs no others."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import matplotlib
from matplotlib.figure import Figure

from lmdbloader.base.files import replacing
from lmdbloader.base.text import plain
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.lab.formatting import Table
from lmdbloader.lab.reporting.charts import draw
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.tables import sections


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page.

    Attributes:
        name: In addresses.
        figure: Its chart; None if it has none.
        table: Its figures; the caption is the heading.
        lines: Sentences below the heading.
    """

    name: str
    figure: Figure | None
    table: Table
    lines: Sequence[str]

    @property
    def image(self) -> str:
        """The chart as the address of an image that needs no file."""
        assert self.figure is not None
        out = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "lmdbloader"}):  # the same chart gives the same bytes
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


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


def write_report(study: Study, path: str | os.PathLike[str]) -> None:
    """Write a study's report as one HTML file; an existing file is replaced once the new one is complete.

    Args:
        study: The study.
        path: Of the file; it ends in .html or .htm.

    Raises:
        OptionError: The name does not end so.
        DestinationError: It is a folder, or its folder does not exist.
        DiskFullError: The disk is full.
    """
    figures = draw(study)
    shown = [
        PageSection(section.name, figures.get(section.name), section.table, [section.line])
        for section in sections(study.rows)
    ]
    write_page(Page(study.facts["dataset"], shown, list(study.facts.items()), (), study.notes), path)


def write_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a report as one HTML file that loads nothing, as `write_report` does; it raises the same errors."""
    target = Path(path)
    check_report_path(target)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lmdbloader.lab.reporting", ""), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=lambda value: plain(value) if type(value) is str else value,
    )  # fmt: skip
    with replacing(target) as hidden:
        hidden.write_text(environment.get_template("report.html.j2").render(page=page), "utf-8")


def check_report_path(path: Path) -> None:
    """Refuse a name that no report can have, for example before minutes are spent on measuring.

    Raises:
        OptionError: It does not end in .html or .htm.
        DestinationError: It is a folder, or its folder does not exist.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise OptionError(f"{path}: expected a file name that ends in .html, the format that a report is written in")
    if path.is_dir():
        raise DestinationError(f"{path}: is a folder. Choose another name.")
    if not path.absolute().parent.is_dir():
        raise DestinationError(f"{path}: the folder {path.absolute().parent} does not exist. Create it first.")
