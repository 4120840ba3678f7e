"""A study: rows of figures, `print`ed as tables, and stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.lab.formatting import WIDTH, define, wrap
from lmdbloader.lab.study.rows import StudyRow
from lmdbloader.lab.study.tables import comparison, sections

STUDY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Study:
    """A whole study; `print` shows its tables.

    Attributes:
        facts: What was measured on what, as text by name: dataset, machine and so on.
        environment: All that reproduces it: `machine.describe_environment(path)`.
        rows: Every figure.
        notes: What was left out and why, in sentences.
    """

    facts: Mapping[str, str]
    environment: Mapping[str, Any]
    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]

    def section(self, name: str) -> tuple[StudyRow, ...]:
        """Return the rows of a section, in the order in which they were measured.

        Args:
            name: Of the section, see `StudyRow`.
        """
        return tuple(row for row in self.rows if row.section == name)

    def __str__(self) -> str:
        """Return what was measured on what, and the tables."""
        parts = ["\n".join(define([(name, plain(value)) for name, value in self.facts.items()], width=WIDTH))]
        for section in sections(self.rows):
            parts.append("\n".join([*section.table.lines(), *wrap(section.line, "  ", "  ")]))
        if self.notes:
            parts.append("\n".join(line for note in self.notes for line in wrap(plain(note), "- ", "  ")))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {"study_version": STUDY_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Study:
        """Return the study from the result of `as_json`.

        Args:
            value: Parsed JSON.

        Raises:
            FormatError: It is not a study, of another version, or damaged.
        """
        if not isinstance(value, Mapping) or value.get("study_version") != STUDY_VERSION:
            raise FormatError(
                f"study: found {value!r:.80}; expected what `lmdbloader bench --json` writes, study_version "
                f"{STUDY_VERSION}"
            )
        try:
            rows = tuple(StudyRow(**{**row, "turns": tuple(map(float, row["turns"]))}) for row in value["rows"])
            if not all(row.turns for row in rows):
                raise ValueError("a row without turns")
            return cls(dict(value["facts"]), dict(value["environment"]), rows, tuple(value["notes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"study: damaged ({error!r}); expected what `lmdbloader bench --json` writes") from error


def compare_studies(first: Study, second: Study) -> str:
    """Return what differs between two studies, and a table of the settings that both measured.

    Args:
        first: Compared with.
        second: The other one: of another machine, or after a change.

    Raises:
        OptionError: They have no setting in common.
    """
    parts = []
    for name in dict.fromkeys((*first.facts, *second.facts)):
        here, there = (plain(study.facts.get(name, "-")) for study in (first, second))
        if here != there:
            parts += [name, *define([("first", here), ("second", there)], indent="  ", width=WIDTH)]
    theirs = {row.setting: row for row in second.rows}
    pairs = [(row, theirs[row.setting]) for row in first.rows if row.setting in theirs]
    if not pairs:
        raise OptionError(
            "the two studies have no setting in common: sections, batch sizes, crops and workers. Measure the second "
            "with the options of the first."
        )
    return "\n".join([*parts, "", *comparison(pairs).lines()])
