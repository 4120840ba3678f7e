"""A study as text that fits 100 columns: its tables, arranged to compare the loaders, and its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lmdbloader.base.text import counted, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.lab.formatting import WIDTH, Table, align, define, wrap
from lmdbloader.lab.study import tables
from lmdbloader.lab.study.conclusion import headline, next_steps, scope
from lmdbloader.lab.study.findings import conclusions
from lmdbloader.lab.study.rows import LOADER_NAMES, StudyFigures

Record = Mapping[str, Any]
Show = Callable[[Record], str]


def as_text(study: StudyFigures) -> str:
    """Return the conclusion, the tables and the sentences, and what to do now."""
    first = " ".join(filter(None, (f"{headline(study)}.", scope(study))))
    parts = ["\n".join(wrap(plain(first)))]
    parts += ["\n".join(define([(name, plain(value)) for name, value in _head(study)], width=WIDTH))]
    parts += [f"{title}\n" + "\n".join(lines) for title, lines in _tables(study) if lines]
    sentences = [line for text in conclusions(study) for line in wrap(plain(text), "- ", "  ")]
    parts.append("\n".join(["What this says", *sentences]))
    steps = [line for step in next_steps(study) for line in (f"  {plain(step.why)}", f"    {plain(step.line)}")]
    parts.append("\n".join(["What to do now", *steps]))
    return "\n\n".join(parts)


def _head(study: StudyFigures) -> Iterator[tuple[str, str]]:
    data, s, files = study.dataset, study.settings, study.baseline
    shown = {f.name: f.description for f in data.fields}
    yield "dataset", f"{data.path}: {counted(data.num_samples, 'sample')}"
    yield "read", "; ".join(f"{name} ({shown.get(name, '')})" for name in data.fields_read)
    if files is not None:
        where = "extracted for this" if files.path == "auto" else files.path
        yield "files", f"{where}: {files.num_files:,} ({', '.join(files.formats)}), {show_nbytes(files.nbytes)}"
    yield from ((name, " ".join(value)) for name, *value in study.machine)
    workers = f"{counted(s.num_threads, 'thread')} of the Loader, {counted(s.num_workers, 'worker')} of torch's"
    if s.num_workers > study.cores:
        workers += f", more than the {counted(study.cores, 'core')}"
    yield (
        "measured",
        f"medians of {counted(s.repeats, 'turn')} of {s.seconds:g} s that all settings took by turns; {workers}; "
        f"{study.seconds:.0f} s in all",
    )


def _tables(study: StudyFigures) -> Iterator[tuple[str, list[str]]]:
    """Yield titles and lines; a section that was not measured has no lines."""
    loading, training = tables.throughput(study), tables.split(study)
    about = f"Training {study.settings.model} on {study.settings.device}"
    yield "Loading alone: samples/s (seconds of an epoch)", _by_loader(loading, _speed)
    yield (
        "Loading alone: milliseconds from asking for a batch to having it, p50 / p99",
        _by_loader(tables.latency(study), lambda r: f"{_ms(r['median'])} / {_ms(r['99 % within'])}"),
    )
    yield (
        "Loading alone: processor time of a sample in microseconds",
        _by_loader(loading, lambda r: _figure(r["CPU for a sample"] * 1e6)),
    )
    yield f"{about}: samples/s (seconds of an epoch)", _by_loader(training, _speed)
    yield f"{about}: use of the GPU, power in W, most memory in MiB", _by_loader(tables.gpu(study), _gpu)
    yield (
        "A training step in milliseconds, by what it was busy with: smallest and largest batches",
        _steps(study, training),
    )
    if study.threads:
        found = tables.threads(study)
        yield found.caption, align([found.header, *found.cells()], (), indent="  ")
    if study.oversubscription:
        title = f"Threads or workers on {counted(study.cores, 'core')}, batches of "
        yield (
            f"{title}{study.oversubscription[0].batch_size}: samples/s (of what one for each core gives)",
            _oversubscription(tables.oversubscription(study), study.cores),
        )
    if study.cold:
        found = tables.cold(study)
        yield found.caption, align([found.header, *found.cells()], (0, 1), indent="  ")
    yield (
        "Processes at the same time, a loader each: samples/s together (of the slowest)",
        _isolation(tables.isolation(study)),
    )


def _speed(record: Record) -> str:
    return f"{record['samples/s']} ({record['epoch']})"


def _gpu(record: Record) -> str:
    watts = "" if record["power"] is None else f" {record['power']:.0f} W"
    return f"{record['utilisation']:.0f}%{watts} {record['most memory']:,.0f}"


def _by_loader(table: Table, show: Show) -> list[str]:
    """Return a table of the sweep with a line for each crop and batch size, and a column for each loader."""
    places = {(r["source"], r.get("memory")): None for r in table.records()}
    rows, columns = _pivot(table, ("images", "batch"), places, ("source", "memory"), show)
    if not rows:
        return []
    has_both = {source for source, memory in columns if (source, not memory) in columns and memory is not None}
    header = [["crop", "batch", *(LOADER_NAMES[source] for source, _ in columns)]]
    if has_both:  # five columns fit if their names are split over lines
        names = [LOADER_NAMES[source].partition(" ") for source, _ in columns]
        memories = [("pinned" if memory else "paged") if source in has_both else "" for source, memory in columns]
        header = [["crop", "batch", *(first for first, _, _ in names)], ["", "", *(last for _, _, last in names)]]
        header.append(["", "", *memories])
    lines = [[_window(row[0]), *map(str, row[1:])] for row in rows]
    return align([*header, *_apart(lines, 0)], (), indent="  ")


def _pivot(
    table: Table, by: Sequence[str], places: Mapping[Any, Any], across: Sequence[str], show: Show
) -> tuple[list[list[Any]], list[Any]]:
    """Return rows of the values of `by` and one cell for each place, and the places: the values of `across`."""
    found: dict[tuple[Any, ...], dict[Any, str]] = {}
    for record in table.records():
        key = tuple(record[name] for name in by)
        found.setdefault(key, {})[tuple(record.get(name) for name in across)] = show(record)
    return [[*key, *(cells.get(place, "") for place in places)] for key, cells in found.items()], list(places)


def _steps(study: StudyFigures, table: Table) -> list[str]:
    """Return the phases of a step with the smallest and with the largest batches."""
    times = ("step", *tables.PHASES, "99 % wait")
    sizes = study.settings.batch_sizes
    is_pinned = bool(study.sweep) and study.sweep[0].is_pinned
    rows = [
        [
            LOADER_NAMES[r["source"]], _window(r["images"]), str(r["batch"]),
            "pinned" if r.get("memory", is_pinned) else "paged", *(_ms(r[name]) for name in times),
        ]
        for r in table.records()
        if r["batch"] in (sizes[0], sizes[-1])
    ]  # fmt: skip
    header = ["", "crop", "batch", "memory", *times[:-1], "data p99"]
    return align([header, *_apart(rows, 2)], indent="  ") if rows else []


def _oversubscription(table: Table, cores: int) -> list[str]:
    counts = {(r["workers"],): None for r in table.records()}
    rows, _ = _pivot(
        table, ("source",), counts, ("workers",),
        lambda r: f"{r['samples/s']} ({r['of one for each core']:.0%})",
    )  # fmt: skip
    header = ["", *(f"{count}*" if count > cores else str(count) for (count,) in counts)]
    lines = align([header, *([LOADER_NAMES[source], *cells] for source, *cells in rows)], indent="  ")
    beyond = any(count > cores for (count,) in counts)
    return [*lines, f"  * more than the {counted(cores, 'core')}"] if beyond else lines


def _isolation(table: Table) -> list[str]:
    sources = {(r["source"],): None for r in table.records()}
    by = ("processes", "workers each", "batch")
    rows, _ = _pivot(table, by, sources, ("source",), lambda r: f"{r['samples/s']} ({r['slowest']})")
    header = [*by, *(LOADER_NAMES[source] for (source,) in sources)]
    return align([header, *_apart([list(map(str, row)) for row in rows], 0)], (), indent="  ") if rows else []


def _window(crop: int | None) -> str:
    return "whole" if crop is None else str(crop)


def _ms(seconds: float) -> str:
    return _figure(seconds * 1e3)


def _figure(value: float) -> str:
    """Return a number with about three digits, and no more than three after the point.

    >>> _figure(0.0004), _figure(0.0124), _figure(1.234), _figure(12.34), _figure(1234.5)
    ('0.000', '0.012', '1.23', '12.3', '1,234')
    """
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.{1 if size >= 9.995 else 2 if size >= 1 else 3}f}"


def _apart(rows: Sequence[list[str]], column: int) -> list[list[str]]:
    """Return rows with an empty one before each change of a column's value."""
    found: list[list[str]] = []
    for row in rows:
        if found and found[-1][column] != row[column]:
            found.append([""] * len(row))
        found.append(row)
    return found
