"""Every command that is interrupted says one line, has status 130 and leaves no process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from nursery import Nursery

import lmdbloader
from lmdbloader import cli
from lmdbloader.cli import info

# The program stops at the moment when it, or a worker of it, opens a file of this name, until a signal comes.
STOP = """
import os, sys, time, lmdbloader.cli
def stop(event, arguments):
    if event == "open" and NAME in str(arguments[0]):
        os.write(1, b"there\\n")
        time.sleep(1000)
sys.addaudithook(stop)
sys.exit(lmdbloader.cli.main(WORDS))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    lmdbloader.convert(photos, folder / "db", workers=1)
    return folder


@pytest.mark.parametrize(
    ("words", "name", "number", "everyone"),
    [
        (["verify", "{place}/db"], "data.mdb", signal.SIGINT, True),
        (["extract", "{place}/db", "{own}/out"], "data.mdb", signal.SIGTERM, False),
        (["merge", "{place}/db", "{place}/db", "-o", "{own}/out"], "plan.json", signal.SIGINT, True),
    ],
)
def test_an_interrupted_command_says_one_line(
    nursery: Nursery,
    place: Path,
    photos: Path,
    tmp_path: Path,
    words: list[str],
    name: str,
    number: signal.Signals,
    everyone: bool,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    said = [word.format(place=place, own=own, photos=photos) for word in words]
    program = nursery.start(f"NAME, WORDS = {name!r}, {said!r}\n" + STOP, tmp_path / "program")
    program.wait_for("there")
    program.signal(number, everyone=everyone)
    assert program.end() == 130, program.errors
    assert program.errors == "lmdbloader: interrupted\n"
    assert list(own.iterdir()) == []


@pytest.mark.parametrize(("pause", "expected"), [(0.0, ["cleaned up"]), (1.2, [])])
def test_a_signal_that_comes_twice_at_once_interrupts_once(
    monkeypatch: pytest.MonkeyPatch, keep_signals: None, pause: float, expected: list[str]
) -> None:
    """A cancelled job gets SIGTERM from Slurm and from its batch script; a person who sends it again means it."""
    done = []

    def run(options: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            time.sleep(pause)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            done.append("cleaned up")
        return 0

    monkeypatch.setattr(info, "run", run)
    assert cli.main(["info", "anything"]) == 130
    assert done == expected
