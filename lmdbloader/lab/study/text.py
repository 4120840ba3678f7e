"""A study as text that fits 100 columns: its tables, and at the end what they say."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from lmdbloader.base.text import counted, mebibytes, plain
from lmdbloader.lab.study.findings import conclusions
from lmdbloader.lab.study.results import SOURCE_NAMES, Source, Study, SweepRow, Training

WIDTH = 100
# Who loads, and whether into pinned memory.
_Column = tuple[Source, bool]


def as_text(study: Study) -> str:
    """Return the tables and the sentences."""
    parts = [_head(study)]
    if study.sweep:
        parts += _loading(study)
    if any(row.training is not None for row in study.sweep):
        parts += _training(study)
    if study.threads:
        rows = [[str(r.num_threads), f"{r.samples_per_s:,.0f}"] for r in study.threads]
        title = f"Threads of the Loader, batches of {study.threads[0].batch_size}"
        parts.append(_section(title, [["threads", "samples/s"], *rows], left=0))
    if study.oversubscription:
        parts.append(_oversubscription(study))
    if study.isolation:
        parts.append(_isolation(study))
    sentences = [
        textwrap.fill(plain(text), WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for text in conclusions(study)
    ]
    parts.append("\n".join(["What this says", *sentences]))
    return "\n\n".join(parts)


def _head(study: Study) -> str:
    data, s = study.dataset, study.settings
    shown = {f.name: f.description for f in data.fields}
    read = "; ".join(f"{name} ({plain(shown.get(name, ''))})" for name in data.fields_read)
    rows = [("dataset", f"{plain(data.path)}: {counted(data.num_samples, 'sample')}"), ("read", read)]
    if study.baseline is not None:
        b = study.baseline
        where = "extracted for this" if b.path == "auto" else plain(b.path)
        rows.append(("files", f"{where}: {b.num_files:,} ({', '.join(b.formats)}), {mebibytes(b.nbytes)}"))
    rows += [(name, plain(" ".join(value))) for name, *value in study.machine]
    turns = f"medians of {counted(s.repeats, 'turn')} of {s.seconds:g} s"
    workers = f"{counted(s.num_threads, 'thread')} of the Loader, {counted(s.num_workers, 'worker')} of torch's"
    rows.append(("measured", f"{turns} that all settings took by turns; {workers}; {study.seconds:.0f} s in all"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 2))
        for name, text in rows
    )


def _loading(study: Study) -> Iterator[str]:
    yield _pivot(
        study,
        "Loading alone: samples/s (seconds of an epoch)",
        lambda row: f"{row.samples_per_s:,.0f} ({_figure(row.epoch_seconds)})",
    )
    yield _pivot(
        study,
        "Loading alone: milliseconds from asking for a batch to having it, p50 / p99",
        lambda row: f"{_ms(row.latency.p50_seconds)} / {_ms(row.latency.p99_seconds)}",
    )
    yield _pivot(
        study,
        "Loading alone: processor time of a sample in microseconds",
        lambda row: _figure(row.cpu_seconds_per_sample * 1e6),
    )


def _training(study: Study) -> Iterator[str]:
    about = f"Training {study.settings.model} on {study.settings.device}"
    yield _pivot(
        study,
        f"{about}: samples/s (seconds of an epoch)",
        _of_training(lambda t: f"{t.samples_per_s:,.0f} ({_figure(t.epoch_seconds)})"),
    )
    if any(row.training is not None and row.training.gpu is not None for row in study.sweep):
        yield _pivot(study, f"{about}: use of the GPU, power in W, most memory in MiB", _of_training(_use))
    header = ["", "crop", "batch", "memory", "step", "data", "copy", "forward", "backward", "update", "data p99"]
    sizes = study.settings.batch_sizes
    rows = [_split(row) for row in study.sweep if row.training is not None and row.batch_size in (sizes[0], sizes[-1])]
    title = "A training step in milliseconds, by what it was busy with: smallest and largest batches"
    yield _section(title, [header, *_apart(rows)])


def _split(row: SweepRow) -> list[str]:
    assert row.training is not None
    p = row.training.phases
    seconds = (p.total, p.data, p.copy, p.forward, p.backward, p.update, row.training.wait.p99_seconds)
    memory = "pinned" if row.is_pinned else "paged"
    return [SOURCE_NAMES[row.source], _window(row.crop), str(row.batch_size), memory, *map(_ms, seconds)]


def _of_training(show: Callable[[Training], str]) -> Callable[[SweepRow], str]:
    return lambda row: "" if row.training is None else show(row.training)


def _use(training: Training) -> str:
    use = training.gpu
    if use is None:
        return ""
    watts = "" if use.power_watts is None else f" {use.power_watts:.0f} W"
    return f"{use.utilisation_percent:.0f}%{watts} {use.memory_mib:,.0f}"


def _pivot(study: Study, title: str, show: Callable[[SweepRow], str]) -> str:
    """Return a table with a line for each crop and batch size, and a column for everyone who loads."""
    columns: list[_Column] = list(dict.fromkeys((row.source, row.is_pinned) for row in study.sweep))
    has_both = {source for source, is_pinned in columns if (source, not is_pinned) in columns}
    cells = {(row.source, row.is_pinned, row.crop, row.batch_size): show(row) for row in study.sweep}
    rows = [
        [_window(crop), str(size), *(cells.get((*column, crop, size), "") for column in columns)]
        for crop in study.settings.crops
        for size in study.settings.batch_sizes
    ]
    header = [["crop", "batch", *(SOURCE_NAMES[source] for source, _ in columns)]]
    if has_both:  # five columns fit where their names stand above each other
        names = [SOURCE_NAMES[source].partition(" ") for source, _ in columns]
        memories = [("pinned" if is_pinned else "paged") if source in has_both else "" for source, is_pinned in columns]
        header = [["crop", "batch", *(first for first, _, _ in names)], ["", "", *(last for _, _, last in names)]]
        header.append(["", "", *memories])
    return _section(title, [*header, *_apart(rows, column=0)], left=0)


def _oversubscription(study: Study) -> str:
    counts = list(dict.fromkeys(row.num_workers for row in study.oversubscription))
    rows = [["", *map(str, counts)]]
    for source in dict.fromkeys(row.source for row in study.oversubscription):
        found = {row.num_workers: row for row in study.oversubscription if row.source == source}
        cells = [
            f"{found[n].samples_per_s:,.0f} ({found[n].of_one_per_core:.0%})" if n in found else "" for n in counts
        ]
        rows.append([SOURCE_NAMES[source], *cells])
    size = study.oversubscription[0].batch_size
    cores = counted(study.cores, "core")
    title = f"Threads or workers on {cores}, batches of {size}: samples/s (of what one for each core gives)"
    return _section(title, rows)


def _isolation(study: Study) -> str:
    columns = list(dict.fromkeys((row.num_processes, row.batch_size) for row in study.isolation))
    found = {(row.source, row.num_processes, row.batch_size): row for row in study.isolation}
    sources = list(dict.fromkeys(row.source for row in study.isolation))
    rows = [["processes", "workers each", "batch", *(SOURCE_NAMES[source] for source in sources)]]
    for count, size in columns:
        each = next(row.workers_each for row in study.isolation if row.num_processes == count)
        cells = [found.get((source, count, size)) for source in sources]
        rows.append(
            [str(count), str(each), str(size)]
            + ["" if cell is None else f"{cell.samples_per_s:,.0f} ({cell.slowest:,.0f})" for cell in cells]
        )
    title = "Processes at the same time, a loader each: samples/s together (of the slowest)"
    return _section(title, [rows[0], *_apart(rows[1:], column=0)], left=0)


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
    return (
        f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.{2 if size >= 1 else 3}f}"
    )


def _apart(rows: Sequence[list[str]], column: int = 2) -> list[list[str]]:
    """Return rows with an empty one wherever a column's value changes."""
    found: list[list[str]] = []
    for row in rows:
        if found and found[-1][column] != row[column]:
            found.append([""] * len(row))
        found.append(row)
    return found


def _section(title: str, rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return a title and aligned columns under it; the first `left` columns are aligned to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  "
        + "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])
