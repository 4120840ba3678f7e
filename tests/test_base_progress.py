"""The line about how far work is: on a terminal, in a log, and in neither."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from lmdbloader.base import progress
from lmdbloader.base.progress import ProgressLine, shown_steps, watched
from lmdbloader.cli import main


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True

    @property
    def states(self) -> list[str]:
        """What the line said, one state after the other; "" where it was cleared."""
        return self.getvalue().split("\r\x1b[K")[1:]


class Clock:
    """Goes on by a second for each item."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made)
    return made


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return the standard error from now on. A fixture could not set it: pytest does, after fixtures."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def work(clock: Clock, count: int, seconds: float = 1.0, *, total: int | None = None) -> None:
    for _ in watched("trying images", range(count), total):
        clock.now += seconds


def test_a_terminal_has_one_line_with_the_time_left_which_is_cleared(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with shown_steps():
        work(clock, 3, total=3)
    assert terminal.states == [
        "trying images: 0 of 3",
        "trying images: 1 of 3, about 2 s left",
        "trying images: 2 of 3, about 1 s left",
        "trying images: 3 of 3",
        "",
    ]
    assert "\n" not in terminal.getvalue()


def test_fast_items_are_not_all_drawn_and_an_unknown_number_is_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with shown_steps():
        work(clock, 1000, 0.001)
    assert len(terminal.states) < 15
    assert re.fullmatch(r"trying images: (9\d\d|1,000) so far", terminal.states[-2])


def test_a_log_gets_a_line_after_two_seconds_and_two_a_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown_steps():
        work(clock, 1, total=1)
    assert capsys.readouterr().err == ""
    with shown_steps():
        work(clock, 90, total=90)
    assert capsys.readouterr().err == (
        "trying images: 2 of 90, about 88 s left\ntrying images: 32 of 90, about 58 s left\n"
        "trying images: 62 of 90, about 28 s left\n"
    )


def test_only_the_first_process_of_a_run_shows_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("RANK", "1")
    with shown_steps():
        work(clock, 3, total=3)
    assert terminal.getvalue() == ""


def test_items_may_count_for_several_and_all_come(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with shown_steps():
        done = []
        for item in watched("trying", [0, 2, 3], 5, lambda item: item):
            clock.now += 1
            done.append(item)
    assert done == [0, 2, 3]
    assert [state.partition(",")[0] for state in terminal.states] == [
        "trying: 0 of 5", "trying: 0 of 5", "trying: 2 of 5", "trying: 5 of 5", "",
    ]  # fmt: skip
    assert list(watched("trying", [0, 2, 3], 5)) == [0, 2, 3]


def test_a_stream_that_cannot_be_written_to_does_not_end_the_work(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise OSError("no")

    monkeypatch.setattr(sys, "stderr", Closed())
    with shown_steps():
        work(clock, 3, total=3)
    monkeypatch.setattr(sys, "stderr", None)
    with shown_steps():
        work(clock, 3, total=3)


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("converting", 1100, "images", shown=True, first=100) as line:
        for _ in range(100):
            clock.now += 0.5
            line.update(10)
    said = capsys.readouterr().err
    assert said == (
        "converting: 400 of 1,100 images, about 35 s left\n"
        "converting: 1,000 of 1,100 images, about 5 s left\n"
    )  # fmt: skip
    with ProgressLine("copying", None, "B", shown=True) as line:
        clock.now += 20
        line.update(3 * 2**20)
    assert capsys.readouterr().err == "copying: 3 MiB so far\n"
    for is_shown, seconds in ((False, 1000), (True, 14)):  # soon done
        with ProgressLine("converting", 10, "images", shown=is_shown) as line:
            clock.now += seconds
            line.update(10)
    assert capsys.readouterr().err == ""


# --- Where it is used ---


def test_estimate_and_convert_show_what_they_do_before_the_first_result(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    assert main(["estimate", str(photos), "--workers", "1"]) == 0
    titles = [state.partition(":")[0] for state in terminal.states if state]
    assert list(dict.fromkeys(titles)) == ["listing images", "trying images"]
    assert terminal.states[-1] == ""

    terminal.truncate(0)
    assert main(["convert", str(photos), str(tmp_path / "db"), "--workers", "1"]) == 0
    said = terminal.getvalue()
    begun = [said.index(text) for text in ("listing images", "trying images: 0 of 8", "converting: 0 of 8 images")]
    assert begun == sorted(begun)

    terminal.truncate(0)
    assert main(["convert", str(photos), str(tmp_path / "quiet"), "--workers", "1", "--quiet"]) == 0
    assert terminal.getvalue().strip("\0") == ""
