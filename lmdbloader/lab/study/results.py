"""A study: rows of figures, `print`ed as tables, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.base.text import plain
from lmdbloader.lab.formatting import WIDTH, define, wrap
from lmdbloader.lab.study.rows import StudyRow
from lmdbloader.lab.study.tables import tables_of


@dataclass(frozen=True, slots=True)
class Study:
    """A whole study; `print` shows its tables.

    Attributes:
        facts: What was measured on what, as text by name: dataset, machine and so on.
        environment: All that reproduces it: `machine.describe(path).as_json()`.
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
        for table, line in tables_of(self.rows):
            parts.append("\n".join([*table.lines(), *wrap(line, "  ", "  ")]))
        if self.notes:
            parts.append("\n".join(line for note in self.notes for line in wrap(plain(note), "- ", "  ")))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return asdict(self)
