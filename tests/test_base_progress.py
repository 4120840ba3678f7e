"""The progress bar: an interrupt during its construction prints nothing, and it needs no thread."""

from __future__ import annotations

import gc
import io
import re
import sys
import threading
from pathlib import Path

import pytest

from lmdbloader.base import first_steps
from lmdbloader.base.progress import ProgressBar, progress_bar
from lmdbloader.cli import main


def test_a_bar_that_was_interrupted_while_it_was_made_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    bar = ProgressBar.__new__(ProgressBar)
    assert bar.disable, "what tqdm's __del__ asks for"
    del bar
    gc.collect()
    assert said == []


def test_a_bar_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(total=3, disable=False) as bar:
        bar.update(3)
    assert "3/3" in capsys.readouterr().err


def test_a_bar_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with ProgressBar(total=3, disable=True) as bar:  # a warning would be an error
        bar.update(3)


def test_a_bar_shows_slow_items_after_fast_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(total=1001, disable=False, mininterval=0) as bar:
        bar.update(1000)
        bar.update(1)
        assert "1001/1001" in capsys.readouterr().err


class Clock:
    """The time, which tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(first_steps.time, "monotonic", made)
    return made


def test_a_log_gets_a_line_now_and_then_instead_of_a_bar(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("converting", 1100, "images", shown=True, first=100) as bar:
        for _ in range(100):
            clock.now += 0.5
            bar.set_postfix_str("3 MB/s")
            bar.update(10)
    said = capsys.readouterr().err
    assert said == (
        "converting: 400 of 1,100 images, about 35 s left\n"
        "converting: 1,000 of 1,100 images, about 5 s left\n"
    )  # fmt: skip
    with progress_bar("copying", None, "B", shown=True) as bar:
        clock.now += 20
        bar.update(3 * 2**20)
    assert capsys.readouterr().err == "copying: 3.0 MiB so far\n"
    for options in ({"shown": False}, {"shown": True}):
        with progress_bar("converting", 10, "images", **options) as bar:
            clock.now += 14 if options["shown"] else 1000  # soon done
            bar.update(10)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_the_bar_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("converting", 10, "images", shown=True) as bar:
        clock.now += 1000
        bar.update(10)
    assert "10/10" in terminal.getvalue() and "converting" not in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar("converting", 10, "images", shown=True) as bar:
        clock.now += 1000
        bar.update(10)


def test_a_conversion_in_a_pipe_says_how_far_it_is(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_steps, "_EVERY_LINE", 0.0)
    monkeypatch.setattr(first_steps.Line.__init__, "__defaults__", (0.0,))
    assert main(["convert", str(photos), str(tmp_path / "db"), "--workers", "1"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"^converting: [1-9]\d* of 8 images", said, re.MULTILINE)
    assert "\r" not in said
    assert main(["convert", str(photos), str(tmp_path / "quiet"), "--workers", "1", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
