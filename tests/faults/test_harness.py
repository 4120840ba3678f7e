"""The harness sees faults: it reports a crash, a hang or a wrong answer, and continues with the next case."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from . import cases, report
from .cases import Case, Wrong, run_cases
from .outcome import Outcome
from .registry import FAULTS, Fault
from .running import run_fault


def prepare_trouble(word: str) -> Case:
    """Return the case of a different trouble for each number."""

    def case(number: int) -> str | dict[str, int]:
        if number == 1:
            raise Wrong("pixels differ")
        if number == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 3:
            raise KeyError("x")
        return {word: 2} if number == 4 else word

    return case


def prepare_nothing() -> Case:
    """Never come as far as a case."""
    raise RuntimeError("nothing is ready")


def test_every_trouble_is_told_and_the_rest_still_runs(tmp_path: Path) -> None:
    counts, failures = run_cases(prepare_trouble, ("fine",), 6, tmp_path)
    assert counts == {"fine": 4, "signals": 1}
    assert failures[0] == "case 1: pixels differ"
    assert failures[1] == "case 2: ended by SIGSEGV"
    assert failures[2].startswith("case 3: KeyError: 'x' (test_harness.py:")
    assert len(failures) == 3


def test_a_child_that_cannot_begin_is_told(tmp_path: Path) -> None:
    counts, failures = run_cases(prepare_nothing, (), 5, tmp_path)
    assert failures == ["case 0: exit status 1"]
    assert counts == {"signals": 0}


def prepare_sleep() -> Case:
    """Return the case that never ends, once."""
    import time

    return lambda number: time.sleep(1000) or "" if number == 1 else "fine"  # type: ignore[func-returns-value]


def test_a_case_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "_HUNG_SECONDS", 5)  # on a busy machine a child may take one to begin
    counts, failures = run_cases(prepare_sleep, (), 3, tmp_path)
    assert failures == ["case 1: hung"]
    assert counts == {"fine": 2, "signals": 0}


def test_every_fault_has_a_module_and_a_quick_test() -> None:
    here = Path(__file__).parent
    assert all(callable(fault.load()) for fault in FAULTS)
    tests = "".join(path.read_text("utf-8") for path in here.glob("test_*.py"))
    used = [f"from .{fault.name} import" in tests or f'fault_named("{fault.name}")' in tests for fault in FAULTS]
    assert [fault.name for fault, is_used in zip(FAULTS, used, strict=True) if not is_used] == []


def test_a_fault_that_cannot_run_has_failed() -> None:
    outcome = run_fault(Fault("nowhere", 1, "nothing", "everything"), 1, 0)
    assert "ModuleNotFoundError" in outcome.failures[0]


def test_the_table_keeps_the_rows_of_faults_that_were_not_run(tmp_path: Path) -> None:
    document = tmp_path / "reliability.md"
    document.write_text(f"# Before\n\n{report.BEGIN}\n{report.END}\n\nAfter.\n", "utf-8")
    report.write([Outcome("flips", "nothing silent", {"flips": 10_000}, [], 61.5)], document)
    report.write([Outcome("kills", "nothing lost", {"kills": 3}, ["case 1"], 2.0)], document)
    lines = document.read_text("utf-8").splitlines()
    assert lines[0] == "# Before" and lines[-1] == "After."
    (kills,) = [line for line in lines if line.startswith("| `kills`")]
    (flips,) = [line for line in lines if line.startswith("| `flips`")]
    assert lines.index(kills) + 1 == lines.index(flips)
    assert "| kills 3 | nothing lost | **1 failed** | 2 |" in kills
    assert "| flips 10,000 | nothing silent | holds | 62 |" in flips
    report.write([Outcome("kills", "nothing lost", {"kills": 3}, [], 2.0)], document)
    assert "failed" not in document.read_text("utf-8")
    with pytest.raises(ValueError, match="expected the lines"):
        report.write([], Path(__file__))


def test_the_document_has_its_place_for_the_table() -> None:
    text = report.DOCUMENT.read_text("utf-8")
    assert text.index(report.BEGIN) < text.index(report.END)
