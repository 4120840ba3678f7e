"""Two conversions to one place: the second is refused by the first's name, and nothing of the first's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.errors import LockedError

ROOT = Path(__file__).resolve().parent.parent
# The command, which stops at each of some steps until a file is there.
HALTED = """
import os, socket, sys, time
from pathlib import Path
import lmdbloader.cli
from lmdbloader.conversion import pool, tasks
from lmdbloader.store.writing import writer
from tests.faults.steps import watch

folder, host, steps, *words = sys.argv[1:]
if host:
    socket.gethostname = lambda: host
writer.TRANSACTION_NBYTES = pool.TASK_NBYTES = 1

def see(found):
    for number, step in enumerate(steps.split(",")):
        if str(found) == step and not Path(folder, f"halted-{number}").exists():
            Path(folder, f"halted-{number}").touch()
            while not Path(folder, f"go-{number}").exists():
                time.sleep(0.01)

watch(Path(folder, "place"), see)
sys.exit(lmdbloader.cli.main(words))
"""


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Halted:
    """The command in a process of its own, which stops at some steps, one after the other.

    It goes on with `go`, and to its end when the block ends.
    """

    def __init__(self, src: Path, out: Path, *steps: str, host: str = "") -> None:
        self.folder, self.steps, self.at = out.parent.parent, steps, -1
        words = [str(self.folder), host, ",".join(steps), "convert", str(src), str(out), "--workers", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HALTED, *words],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Halted:
        return self.go()

    def __exit__(self, *error: object) -> None:
        for number in range(len(self.steps)):
            (self.folder / f"go-{number}").touch()
        self.said = self.process.communicate(timeout=60)

    def go(self) -> Halted:
        """Go on, and wait until the process has come to the next step."""
        if self.at >= 0:
            (self.folder / f"go-{self.at}").touch()
        self.at += 1
        sign = self.folder / f"halted-{self.at}"
        until = time.monotonic() + 60
        while not sign.exists() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert sign.exists(), self.process.communicate()
        return self


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_second_names_the_first_until_the_first_has_published(src: Path, out: Path) -> None:
    steps = ("after commit out.partial/data.mdb", "before rename out.partial", "after rename out.partial")
    with Halted(src, out, *steps, host="node17.cluster") as first:
        expected = rf"out\.partial: process {first.process.pid} on host node17\.cluster is writing there"
        for _ in range(2):  # in the middle, and when all is written
            before = content(out.parent)
            with pytest.raises(LockedError, match=expected):
                lmdbloader.convert(src, out)
            assert content(out.parent) == before
            first.go()
        assert lmdbloader.convert(src, out).was_finished
    assert first.process.returncode == 0, first.said
    assert os.listdir(out.parent) == ["out"]
    assert lmdbloader.verify(out).is_sound


def test_a_second_that_came_just_before_the_first_was_done_does_nothing(src: Path, out: Path) -> None:
    with Halted(src, out, "before mkdir out.partial") as second:
        assert not lmdbloader.convert(src, out).was_finished
        before = content(out.parent)
    assert second.process.returncode == 0, second.said
    assert "nothing to do" in second.said[0]
    assert content(out.parent) == before


# Code for a worker: with one of the images it takes 300 seconds, and writes its own number down.
SLOW = """
import os, time
from lmdbloader.conversion import tasks
real = tasks.read_files
def slow(source, hashes=None, fetched=None):
    if source.name == "2.png":
        with open({sign!r} + "~", "w") as file:
            file.write(str(os.getpid()))
        os.rename({sign!r} + "~", {sign!r})
        time.sleep(300)
    return real(source, hashes, fetched)
tasks.read_files = slow
"""
WITH_SLOW_WORKERS = """
import sys
import lmdbloader.cli
from lmdbloader.conversion import one_dataset, pool

slow, *words = sys.argv[1:]
pool.TASK_NBYTES = 1
real = one_dataset.try_out
def try_out(*arguments):
    with pool.WorkerPool(1) as alone:
        return real(*arguments[:2], alone, *arguments[3:])
one_dataset.try_out = try_out
pool._START = slow + pool._START
sys.exit(lmdbloader.cli.main(words))
"""


def test_a_worker_that_outlives_its_parent_does_not_hold_the_destination(src: Path, out: Path) -> None:
    sign = out.parent.parent / "sign"
    words = [SLOW.format(sign=str(sign)), "convert", str(src), str(out), "--workers", "2"]
    with subprocess.Popen([sys.executable, "-c", WITH_SLOW_WORKERS, *words], env=environment()) as first:
        until = time.monotonic() + 60
        while not sign.exists() and first.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        worker = psutil.Process(int(sign.read_text()))
        first.kill()
    try:
        assert os.listdir(out.parent) == ["out.partial"]
        assert lmdbloader.convert(src, out).num_samples == 4
        assert worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
    finally:
        worker.kill()
    assert os.listdir(out.parent) == ["out"]
