"""Two studies compared: of two machines, or before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import WIDTH, Column, Table, align, define, window, wrap
from lmdbloader.lab.study.conclusion import Step, longer
from lmdbloader.lab.study.findings import Section, compared, speed_of
from lmdbloader.lab.study.ranges import Measured, is_clear, measured, ratio, show_span, show_times
from lmdbloader.lab.study.results import Study, to_plain
from lmdbloader.lab.study.rows import LOADER_NAMES, LoaderKind, loading, training

COMPARISON_VERSION = 1
# Of lines of the machine that are never the same twice.
_EPHEMERAL = ("load", "load average", "page cache")
_TITLES = {
    "loading": ("Loading alone", "Each loader alone, no model."),
    "training": ("Training", "The same model, trained on the batches."),
    "threads": ("By threads", "The Loader with so many threads."),
    "isolation": ("Several processes at once", "All processes together, each with a loader and no model."),
    "cold": ("From a cold page cache", "The first epoch from storage."),
}


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A setting that both studies measured.

    Attributes:
        section: loading, training, threads, isolation or cold.
        source: Who makes the batches.
        group: The crop, processes or order.
        place: The batch size, or the number of threads.
        first, second: Samples a second in each study.
    """

    section: str
    source: LoaderKind
    group: str
    place: str
    first: Measured
    second: Measured

    @property
    def times(self) -> Measured:
        """How many times as fast the second study is."""
        return ratio(self.second, self.first)


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Two studies compared; `print` shows it.

    Attributes:
        names: Of the two studies.
        rows: The settings that both measured.
        differences: (name, first, second) of what is not the same: machine, release, dataset, settings.
        notes: What was not compared and why, in sentences.
        steps: What to do now.
    """

    names: tuple[str, str]
    rows: tuple[ComparedRow, ...]
    differences: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def headline(self) -> str:
        """The conclusion, without its full stop: of the Loader at the smallest batches and the last crop."""
        first, second = self.names
        parts: list[str] = []
        for section, words in (("loading", "loading"), ("training", "training")):
            rows = [row for row in self.rows if (row.section, row.source) == (section, "lmdbloader")]
            if rows:
                row = next(row for row in rows if row.group == rows[-1].group)
                found = f"{show_times(row.times)} as fast" if is_clear(row.times) else "not measurably faster or slower"
                parts.append(f"{words} is {found}{'' if parts else f' {_than(row)} in {first}'}")
        if parts:
            return f"In {second} {'; '.join(parts)}"
        return self.sections()[0].sentences[0].rstrip(".")

    def sections(self) -> tuple[Section, ...]:
        """Return a section with a table for each part that both studies have."""
        found = []
        for name, (title, explanation) in _TITLES.items():
            rows = [row for row in self.rows if row.section == name]
            if rows:
                explanation += " Above 1, the second study is faster."
                found.append(Section(name, title, explanation, tuple(self._say(rows)), self._table(title, rows)))
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`: the speeds of both studies with their ranges."""
        return {"comparison_version": COMPARISON_VERSION, **to_plain(self)}

    def __str__(self) -> str:
        """Return the conclusion, what differs, the tables, and what to do now."""
        parts = ["\n".join(wrap(plain(f"{self.headline}.")))]
        if self.differences:
            header = ["", *map(plain, self.names)]
            lines = [*_narrow([header, *[list(map(plain, row)) for row in self.differences]])]
            parts.append("\n".join(["What differs", *lines]))
        for section in self.sections():
            lines = align([section.table.header, *section.table.cells()], (0, 1), indent="  ")
            said = [line for text in section.sentences for line in wrap(plain(text), "- ", "  ")]
            parts.append("\n".join([f"{section.title}: samples/s", *lines, *said]))
        if self.notes:
            parts.append("\n".join(line for note in self.notes for line in wrap(plain(note), "- ", "  ")))
        if self.steps:
            steps = [line for step in self.steps for line in (f"  {plain(step.why)}", f"    {plain(step.line)}")]
            parts.append("\n".join(["What to do now", *steps]))
        return "\n\n".join(parts)

    def _say(self, rows: Sequence[ComparedRow]) -> Iterator[str]:
        for source in dict.fromkeys(row.source for row in rows):
            ratios = [row.times for row in rows if row.source == source]
            clear = [found for found in ratios if is_clear(found)]
            name = LOADER_NAMES[source]
            if not clear:
                yield f"The {name} is as fast in both, as far as the turns tell."
                continue
            unclear = len(ratios) - len(clear)
            text = f"The {name} of {self.names[1]} gives {show_span(clear)} the samples of {self.names[0]}"
            yield f"{text}; in {unclear} of {len(ratios)} settings they do not differ." if unclear else f"{text}."

    def _table(self, title: str, rows: Sequence[ComparedRow]) -> Table:
        columns = (
            Column("source", lambda source: LOADER_NAMES[source], is_text=True), Column("setting", is_text=True),
            Column("of"), Column("first"), Column("second"),
            Column("second / first", lambda found: show_times(found) if is_clear(found) else "no difference"),
        )  # fmt: skip
        return Table(
            f"{title}: samples/s in {self.names[0]} (first) and in {self.names[1]} (second)", columns,
            tuple((row.source, row.group, row.place, row.first, row.second, row.times) for row in rows),
        )  # fmt: skip


def compare_studies(
    first: Study, second: Study, names: tuple[str, str] = ("the first", "the second")
) -> StudyComparison:
    """Compare two studies of the same images: on two machines, or before and after a change.

    Settings are compared if both studies have them. Two figures differ if their turns do not overlap.

    Args:
        first: Compared with.
        second: The other one.
        names: What they are called in sentences.

    Returns:
        The settings that both have, with the ratio of their speeds; `print` shows it.

    Raises:
        OptionError: They read other images, or have no setting in common.
    """
    _check_images(first, second, names)
    notes: list[str] = []
    rows = tuple(_rows(first, second, notes))
    if not rows:
        raise OptionError(
            f"{names[0]} and {names[1]} have no setting in common: {_settings(first)} in {names[0]}, "
            f"{_settings(second)} in {names[1]}. Measure the second with the options of the first: "
            f"{first.settings.command}"
        )
    if first.dataset.content_digest != second.dataset.content_digest:
        notes.append(
            "The datasets have different contents: the ratios are of the datasets as well as of whatever else differs."
        )
    steps: tuple[Step, ...] = ()
    if not all(is_clear(row.times) for row in rows):
        steps = tuple(
            Step(
                f"Some turns overlap. Measure {name} longer, on an idle machine:", longer(study.settings.command, name)
            )
            for name, study in zip(names, (first, second), strict=True)
        )
    return StudyComparison(names, rows, tuple(_differences(first, second)), tuple(notes), steps)


def _than(row: ComparedRow) -> str:
    return "as" if is_clear(row.times) else "than"


def _check_images(first: Study, second: Study, names: tuple[str, str]) -> None:
    fields = [
        ", ".join(f"{f.name} ({f.description})" for f in study.dataset.fields if f.name in study.dataset.fields_read)
        for study in (first, second)
    ]
    if fields[0] != fields[1]:
        raise OptionError(
            f"{names[0]} and {names[1]} are not comparable: {names[0]} read {fields[0]}, {names[1]} read {fields[1]}. "
            f"Measure the same images in both: {first.settings.command}"
        )


def _settings(study: Study) -> str:
    rows = loading(study)
    crops = ", ".join("whole" if crop is None else str(crop) for crop in rows.crops)
    sizes = ", ".join(map(str, rows.batch_sizes))
    return f"batches of {sizes} and crops {crops}" if study.sweep else "no sweep"


def _rows(first: Study, second: Study, notes: list[str]) -> Iterator[ComparedRow]:
    """Yield the settings that both have."""
    left_out = _other_files(first, second)
    if left_out:
        notes.append(left_out)
    models = {study.settings.model for study in (first, second)}
    if len(models) > 1:
        trained = " and ".join(str(study.settings.model or "none") for study in (first, second))
        notes.append(f"Training was not compared: the models are {trained}.")
    for section, figures in _FIGURES.items():
        if section == "training" and (len(models) > 1 or None in models):
            continue
        mine, theirs = figures(first), figures(second)
        for key, speed in mine.items():
            source, group, place = key
            if key in theirs and not (source == "folder" and left_out):
                yield ComparedRow(section, source, group, place, speed, theirs[key])
        alone = len(mine.keys() ^ theirs.keys())
        if alone and mine and theirs:
            notes.append(f"{_TITLES[section][0]}: {alone} settings are in one study only and were not compared.")
        elif alone:
            notes.append(f"{_TITLES[section][0]}: measured in one study only, and not compared.")


def _other_files(first: Study, second: Study) -> str:
    """Return why the files of the two are not compared; empty if they are, or if there are none."""
    if first.baseline is None or second.baseline is None:
        return ""
    if first.baseline.formats != second.baseline.formats:
        formats = [", ".join(study.baseline.formats) for study in (first, second) if study.baseline is not None]
        return f"Image files were not compared: the first study read {formats[0]} files, the second {formats[1]} files."
    if not all("folder" in compared(study) for study in (first, second)):
        return "Image files were not compared: in one study they are other images than the dataset's."
    return ""


_Figures = Mapping[tuple[LoaderKind, str, str], Measured]


def _loading(study: Study) -> _Figures:
    return {
        (row.source, window(row.crop), str(row.batch_size)): measured(row.samples_per_s, row.turns)
        for row in _curves(study, loading)
    }


def _training(study: Study) -> _Figures:
    return {(row.source, window(row.crop), str(row.batch_size)): speed_of(row) for row in _curves(study, training)}


def _curves(study: Study, choose: Callable[[Study], Any]) -> Iterator[Any]:
    sweep = choose(study)
    for crop in sweep.crops:
        for source in sweep.sources:
            yield from sweep.curve(source, crop)


def _threads(study: Study) -> _Figures:
    return {
        ("lmdbloader", f"batches of {row.batch_size}", str(row.num_threads)): measured(row.samples_per_s, row.turns)
        for row in study.threads
    }


def _isolation(study: Study) -> _Figures:
    return {
        (row.source, f"{row.num_processes} x {row.workers_each} workers", str(row.batch_size)): measured(
            row.samples_per_s, row.turns
        )
        for row in study.isolation
    }


def _cold(study: Study) -> _Figures:
    return {
        (row.source, f"{row.order}, {window(row.crop)}", str(row.batch_size)): measured(
            row.cold_samples_per_s, row.cold_turns
        )
        for row in study.cold
    }


_FIGURES: dict[str, Callable[[Study], _Figures]] = {
    "loading": _loading, "training": _training, "threads": _threads, "isolation": _isolation, "cold": _cold,
}  # fmt: skip


def _differences(first: Study, second: Study) -> Iterator[tuple[str, str, str]]:
    """Yield what is not the same in both."""
    facts = [dict(_facts(study)) for study in (first, second)]
    for name in dict.fromkeys((*facts[0], *facts[1])):
        here, there = (fact.get(name, "-") for fact in facts)
        if here != there:
            yield name, here, there


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    how, data = study.settings, study.dataset
    yield "measured", study.created[:10]
    yield "lmdbloader", study.release
    yield from ((name, " ".join(value)) for name, *value in filter(None, study.machine) if name not in _EPHEMERAL)
    yield "device", how.device
    yield "cores", str(study.cores)
    yield "threads, workers", f"{how.num_threads}, {how.num_workers}"
    yield "turns", f"{how.repeats} of {how.seconds:g} s"
    yield "dataset", data.path
    yield "samples", f"{data.num_samples:,}"
    yield "stored bytes", f"{data.stored_nbytes:,}"
    yield "digest", data.content_digest


def _narrow(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines; where a line would be too wide, its values stand below each other."""
    lines = align(rows, (0, 1, 2), indent="  ")
    if max(map(len, lines)) <= WIDTH:
        return lines
    names = rows[0][1:]
    found = []
    for name, *values in rows[1:]:
        found.append(f"  {name}")
        found += define(list(zip(names, values, strict=True)), indent="    ", width=WIDTH)
    return found
