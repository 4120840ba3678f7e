"""Writes reports, each one HTML file that needs no others: of a study, or of what others measure; charts as files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

import jinja2
from markupsafe import Markup, escape

from lmdbloader.base.files import replacing
from lmdbloader.base.text import counted, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.lab.formatting import Table
from lmdbloader.lab.reporting import charts, style, svg
from lmdbloader.lab.reporting.canvas import NARROW, WIDE, Chart
from lmdbloader.lab.study import conclusion, findings
from lmdbloader.lab.study.compare import StudyComparison
from lmdbloader.lab.study.conclusion import Step
from lmdbloader.lab.study.findings import Section
from lmdbloader.lab.study.results import Study

_TEMPLATE = "report.html.j2"
# Sentences next to the chart; the others are with the table.
_READ_FIRST = 2
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:s|ms|µs|ns|times)\b)")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page: its sentences, its chart and its table.

    Attributes:
        section: The words and the table.
        draw: Returns the chart, without its title; it gets `narrow`, whether for a narrow screen.
    """

    section: Section
    draw: Callable[[bool], Chart]


@dataclass(frozen=True, slots=True)
class Page:
    """A report as it is shown.

    Attributes:
        title: Of the browser's tab.
        subject: What was measured, in a few words, for the line above the headline.
        headline: The conclusion, one sentence without its full stop.
        findings: The sentences below it, at most three.
        sections: In their order.
        facts: Names and values of what was measured on what.
        notes: Sentences for the page's end.
        created: When it was measured, in ISO 8601's format.
        release: Of lmdbloader.
        steps: What to do now, at the end.
    """

    title: str
    subject: str
    headline: str
    findings: tuple[str, ...]
    sections: tuple[PageSection, ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    created: str
    release: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class _ShownSection:
    """A section as the template takes it."""

    name: str
    title: str
    reading: str
    note: str
    more: tuple[str, ...]
    wide_svg: str
    narrow_svg: str
    table: Table


def render(study: Study) -> str:
    """Return a study's report, an HTML document that loads nothing and runs no script.

    The same study gives the same text.
    """
    name = PurePath(study.dataset.path).name or study.dataset.path

    def draw(name: str, narrow: bool) -> Chart:
        return charts.CHARTS[name](study, narrow=narrow, titled=False)

    return render_page(
        Page(
            title=f"{name}: {conclusion.question(study)}",
            subject=name,
            headline=conclusion.headline(study),
            findings=findings.summary(study),
            sections=tuple(PageSection(found, partial(draw, found.name)) for found in findings.sections(study)),
            facts=(*_facts(study), *((row[0], " ".join(row[1:])) for row in study.machine if row)),
            notes=study.notes,
            created=study.created,
            release=study.release,
            steps=conclusion.next_steps(study),
        )
    )


def render_page(page: Page) -> str:
    """Return a report as an HTML document that loads nothing and runs no script.

    The same page gives the same text.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lmdbloader.lab.reporting", ""), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.filters["prose"] = _prose
    return environment.get_template(_TEMPLATE).render(
        page=page,
        sections=[_shown_section(section) for section in page.sections],
        light=style.variables(dark=False),
        dark=style.variables(dark=True),
        wide=WIDE,
        narrow=NARROW,
    )


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
    target = Path(path)
    check_report_path(target)
    _write(render(study), target)


def render_comparison(found: StudyComparison, created: str, release: str) -> str:
    """Return the report of two studies compared, an HTML document that loads nothing and runs no script.

    Args:
        found: The comparison.
        created: When the second study was measured.
        release: Of lmdbloader, of the second study.
    """
    first, second = found.names
    return render_page(
        Page(
            title=f"{second} compared with {first}",
            subject=f"{second} compared with {first}",
            headline=found.headline,
            findings=tuple(f"{section.title}: {section.sentences[0]}" for section in found.sections())[:3],
            sections=tuple(
                PageSection(section, partial(_draw_ratios, found, section.name)) for section in found.sections()
            ),
            facts=tuple((name, f"{here} | {there}") for name, here, there in found.differences),
            notes=found.notes,
            created=created,
            release=release,
            steps=found.steps,
        )
    )


def _draw_ratios(found: StudyComparison, section: str, narrow: bool) -> Chart:
    return charts.ratios(found, section, narrow=narrow, titled=False)


def write_comparison(found: StudyComparison, second: Study, path: str | os.PathLike[str]) -> None:
    """Write the report of two studies compared, as `write_report` does; it raises the same errors.

    Args:
        found: The comparison.
        second: Its second study.
        path: Of the file; it ends in .html or .htm.
    """
    target = Path(path)
    check_report_path(target)
    _write(render_comparison(found, second.created, second.release), target)


def write_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a report as one HTML file, as `write_report` does; it raises the same errors."""
    target = Path(path)
    check_report_path(target)
    _write(render_page(page), target)


def _write(document: str, target: Path) -> None:
    # `_shown` has escaped half surrogate pairs, which come from file names that are not UTF-8.
    with replacing(target) as hidden:
        hidden.write_bytes(document.encode())


def check_report_path(path: Path) -> None:
    """Refuse a name that no report can have, for example before hours are spent on measuring.

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


def check_charts_folder(folder: Path) -> None:
    """Refuse a folder that cannot be, as `check_report_path` does; it is not made.

    Raises:
        DestinationError: It is a file or inside one, or it is not writable.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise DestinationError(f"{folder}: is a file, or lies in one. Choose another folder for charts.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise DestinationError(f"{folder}: nothing may be written in {there}. Choose another folder for charts.")


def write_charts(study: Study, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write every chart of a study as PNG and as SVG, light, with its title; existing files are replaced.

    Args:
        study: The study.
        folder: Where to; it is made if it is missing.

    Returns:
        The files.

    Raises:
        DestinationError: The folder cannot be made.
        DiskFullError: The disk is full.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DestinationError(f"{target}: is a file, or lies in one. Choose another folder for charts.") from error
    written = []
    for section in findings.sections(study):
        chart = charts.CHARTS[section.name](study)
        for ending, contents in ((".png", chart.png()), (".svg", svg.file_text(chart).encode())):
            written.append(target / f"{section.name}{ending}")
            with replacing(written[-1]) as hidden:
                hidden.write_bytes(contents)
    return tuple(written)


def _shown_section(shown: PageSection) -> _ShownSection:
    section = shown.section
    reading = plain(" ".join(section.sentences[:_READ_FIRST]))  # it may name the user's model
    wide, narrow = (
        svg.inline(
            shown.draw(is_narrow), f"{section.name}-{'narrow' if is_narrow else 'wide'}", title=section.title,
            description=f"{reading} {section.explanation} The figures are in the table below.",
        )
        for is_narrow in (False, True)
    )  # fmt: skip
    return _ShownSection(
        section.name,
        section.title,
        reading,
        section.explanation,
        section.sentences[_READ_FIRST:],
        wide,
        narrow,
        section.table,
    )


def _prose(text: str) -> Markup:
    """Return a sentence with its numbers tied to their units, so that no line ends between them."""
    return escape(_BEFORE_UNIT.sub("\u00a0", plain(text)))


def _shown(value: object) -> object:
    """Return a value for the template: text on one line, without control characters."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return plain(value)
    return value


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    """Yield facts about the dataset and the measurement, by name."""
    data, how = study.dataset, study.settings
    yield "dataset", data.path
    yield (
        "samples",
        f"{data.num_samples:,}; {show_nbytes(data.stored_nbytes)} stored, {show_nbytes(data.raw_nbytes)} decoded",
    )
    yield "fields", "; ".join(" ".join(filter(None, (f.name, f.kind, f.description))) for f in data.fields)
    yield "fields read", ", ".join(data.fields_read)
    yield "digest", data.content_digest
    if study.baseline is not None:
        files = study.baseline
        where = "extracted from the dataset" if files.path == "auto" else files.path
        yield (
            "files",
            f"{where}: {counted(files.num_files, 'file')} ({', '.join(files.formats)}), {show_nbytes(files.nbytes)}",
        )
    yield "model", f"{how.model or 'none'}; device {how.device}"
    yield (
        "measured",
        f"{how.seconds:g} s a turn, {counted(how.repeats, 'turn')} of each setting, {study.seconds:,.0f} s in all",
    )
    yield "loaders", f"{counted(how.num_threads, 'thread')} (Loader), {counted(how.num_workers, 'worker')} (DataLoader)"
    yield "command", how.command
    yield "lmdbloader", study.release
