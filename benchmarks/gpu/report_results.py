"""Reads the runs in a folder, and for each stage the figures of the last run that has some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
STAGES = {
    "photographs": "files made",
    "betons": "FFCV's files made",
    "material": "datasets made",
    "correct": "correctness on CUDA",
    "cores": "all cores, no GPU",
    "copies": "copies to the device",
    "fed": "training throughput",
    "accuracy": "accuracy",
    "compare": "image files, LMDB and Loader",
    "device_data": "small datasets made",
    "host": "the loop's own time for a batch",
    "device": "transforms on the device",
    "keep": "datasets that are kept",
    "fed_device": "training fed by the device side",
    "ranks": "two processes on one GPU",
    "jpeg": "JPEG decoded on the GPU",
}
# Tests that were run again by hand after a fix.
REPEATED = "repeated"
# Further training runs without a GPU, for an unclear result.
CLOSER = "closer"


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        name: Of its folder.
        documents: The output of each stage: "figures", "left_out", "seconds".
        outcomes: By stage, how it ended: "status", "seconds", "reason".
    """

    name: str
    documents: dict[str, Row]
    outcomes: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Results:
    """All runs, in the order of their names."""

    runs: tuple[Run, ...] = ()

    def run_of(self, stage: str) -> Run | None:
        """Return the run whose figures count for a stage."""
        return next((run for run in reversed(self.runs) if run.documents.get(stage, {}).get("figures")), None)

    def figures(self, stage: str) -> Row:
        """Return the figures of a stage, or {}."""
        run = self.run_of(stage)
        return run.documents[stage]["figures"] if run else {}

    def rows(self, stage: str, name: str) -> list[Row]:
        """Return the rows of one figure of a stage."""
        return _rows(self.figures(stage), name)

    def filled(self, stage: str, name: str, keys: tuple[str, ...]) -> list[Row]:
        """Return the rows of one figure; those that the last run left out are of the run before, and "run" names it.

        Args:
            stage, name: Of the figure.
            keys: That identify a row.
        """
        rows, last = self.rows(stage, name), self.run_of(stage)
        seen = {tuple(row.get(key) for key in keys) for row in rows}
        for run in reversed(self.runs):
            if run is last:
                continue
            for row in _rows(run.documents.get(stage, {}).get("figures", {}), name):
                if (key := tuple(row.get(key) for key in keys)) not in seen:
                    seen.add(key)
                    rows.append({**row, "run": run.name})
        return rows

    def fact(self, stage: str, *names: str) -> Any:
        """Return a value by the names that lead to it, or None."""
        found: Any = self.figures(stage)
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def left_out(self, stage: str) -> dict[str, str]:
        """Return the figures that the stage left out, with the reasons."""
        run = self.run_of(stage)
        return dict(run.documents[stage].get("left_out", {})) if run else {}


def read_results(folder: Path, *, small: bool = False) -> Results:
    """Return the runs of a folder that does not have to exist.

    Args:
        folder: With a folder for each run.
        small: Whether rehearsals count.

    Raises:
        json.JSONDecodeError: A file is not valid JSON.
    """
    found = []
    for path in sorted(path for path in folder.glob("*") if path.is_dir()):
        documents: dict[str, Row] = {}
        outcomes: dict[str, Row] = {}
        for file in sorted(path.glob("*.json")):
            document = json.loads(file.read_text("utf-8"))
            if document.get("small") and not small:
                continue
            if file.stem in (*STAGES, REPEATED, CLOSER):
                documents[file.stem] = document
            for stage, outcome in document.get("stages", {}).items():
                # A later command of the same run reuses the files of an earlier one.
                if outcome["seconds"] >= outcomes.get(stage, outcome)["seconds"]:
                    outcomes[stage] = outcome
        if documents or outcomes:
            found.append(Run(path.name, documents, outcomes))
    return Results(tuple(found))


def _rows(figures: Row, name: str) -> list[Row]:
    found = figures.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def matching(rows: list[Row], **wanted: Any) -> Iterator[Row]:
    """Yield the rows that have these values."""
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            yield row


def first(rows: list[Row], **wanted: Any) -> Row:
    """Return the first such row, or an empty one."""
    return next(matching(rows, **wanted), {})


def over(one: float | None, other: float | None) -> float | None:
    """Return the ratio of two figures, None where one is missing or the second is 0."""
    return one / other if one is not None and other else None
