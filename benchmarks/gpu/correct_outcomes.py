"""A pytest plugin that stores the outcome of each test the moment it ends, so a run cut short loses nothing."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Where it writes; the stage sets it. Without it the plugin does nothing.
VARIABLE = "LMDBLOADER_GPU_OUTCOMES"
_MOST_CHARACTERS = 3000
_MOST_PRINTED = 1000
_MOST_WARNINGS = 30


class Outcomes:
    """Writes a line of JSON for each test, for each error of collecting, and for each kind of warning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned: set[str] = set()

    def _keep(self, kind: str, **facts: Any) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **facts}) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = getattr(session, "items", ())  # with pytest-xdist its workers have them
        if items:
            self._keep("collected", count=len(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._keep("collected", count=len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._keep("error", test=report.nodeid, text=_beginning(report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A pass is reported in the call phase; failures in set-up or tear-down carry the name of the phase.
        if report.when != "call" and report.passed:
            return
        outcome = report.outcome if report.when == "call" or report.skipped else "error"
        facts: dict[str, Any] = {"test": report.nodeid, "outcome": outcome, "seconds": round(report.duration, 2)}
        if report.when != "call":
            facts["when"] = report.when
        if report.failed:
            facts["text"] = _beginning(report.longreprtext)
            facts["printed"] = "\n".join(text for _, text in report.sections)[-_MOST_PRINTED:]
        elif report.skipped and isinstance(report.longrepr, tuple):
            facts["text"] = str(report.longrepr[2])
        self._keep("test", **facts)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"[:400]
        if text not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(text)
            self._keep("warning", text=text, test=nodeid)


def _beginning(text: str) -> str:
    """Return the error lines first, and then the beginning of the rest."""
    said = "\n".join(line for line in text.splitlines() if line.startswith("E "))
    short = f"{said[: _MOST_CHARACTERS // 2]}\n--\n{text}" if said else text
    return short[:_MOST_CHARACTERS]


def pytest_configure(config: pytest.Config) -> None:
    """Write where the stage wants it; workers of pytest-xdist report to the process that started them."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)), "lmdbloader-gpu-outcomes")
