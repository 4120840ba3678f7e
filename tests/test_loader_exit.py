"""However training ends: at most one message, the right exit status, and no process or thread is left."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from nursery import Nursery, Program

import lmdbloader


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "d.lmdb"
    samples = ({"image": np.full((32, 32, 3), i, np.uint8), "label": i % 10} for i in range(83))
    lmdbloader.write(samples, path)
    return path


def begin(path: Path) -> str:
    """Return the first lines of a program that reads a dataset by a Loader."""
    return f"import os, sys, time, lmdbloader\nds = lmdbloader.LMDBDataset({str(path)!r})\n" + (
        "loader = lmdbloader.Loader(ds, 4, shuffle=True)\n"
    )


def check_message(program: Program, status: int) -> None:
    """Fail unless a program that a signal ended printed no more than Python does for an interrupt."""
    errors = program.errors
    # In a worker of torch's that is handing over a tensor, Python's own thread says that the other end is gone.
    others = errors.count("in _serve")
    assert errors.count("Traceback") == others + (status == -signal.SIGINT), errors
    assert "Exception ignored" not in errors
    is_interrupt = "KeyboardInterrupt" in errors if others else errors.rstrip().endswith("KeyboardInterrupt")
    assert status == -signal.SIGTERM or is_interrupt, errors


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("it = iter(loader); next(it); sys.exit(3)", 3),
        ("for batch in loader: raise ValueError('mine')", 1),
        ("kept = [iter(loader) for _ in range(3)]; [next(it) for it in kept]; kept.append(kept)", 0),
        (
            "def slow(b): time.sleep(0.05); return b\n"
            "it = iter(lmdbloader.Loader(ds, 4, shuffle=True, transforms=[slow])); next(it)",
            0,
        ),
        ("import threading\nthreading.Thread(target=lambda: [b for _ in range(3) for b in loader]).start()", 0),
        ("lmdbloader.store.Readahead.is_resident = lambda self, rows: False\nit = iter(loader); next(it)", 0),
    ],
    ids=["exit", "error", "cycle", "busy", "another thread", "cold"],
)
def test_the_interpreter_exits_during_any_work(
    nursery: Nursery, path: Path, tmp_path: Path, code: str, status: int
) -> None:
    program = nursery.start(begin(path) + code, tmp_path)
    assert program.end() == status, program.errors
    assert ("mine" in program.errors) == (status == 1)
    assert program.errors.count("Traceback") == (status == 1)


def test_the_interpreter_does_not_wait_for_a_function_that_does_not_return(
    nursery: Nursery, path: Path, tmp_path: Path
) -> None:
    code = (
        "def stuck(batch):\n    if batch.label[0]: print('stuck', flush=True); time.sleep(1000)\n    return batch\n"
        "it = iter(lmdbloader.Loader(ds, 64, order='sequential', transforms=[stuck], num_threads=1))\n"
        "next(it)\n"
    )
    program = nursery.start(begin(path) + code, tmp_path)
    program.wait_for("stuck")
    assert program.end() == 0
    assert program.errors == ""


def test_ctrl_c_ends_a_loop_that_waits_for_a_batch(nursery: Nursery, path: Path, tmp_path: Path) -> None:
    code = begin(path) + (
        "def slow(batch): time.sleep(0.05); return batch\n"
        "loader = lmdbloader.Loader(ds, 4, shuffle=True, transforms=[slow], num_threads=1)\n"
        "try:\n"
        # In one write: the signal may come between the word and the end of its line.
        "    for batch in loader: print('running\\n', end='', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "print(sum(1 for _ in lmdbloader.Loader(ds, 4, shuffle=True)))\n"
    )
    program = nursery.start(code, tmp_path)
    program.wait_for("running\n")
    program.signal(signal.SIGINT)
    assert program.end() == 0, program.errors
    assert program.out.splitlines()[-2:] == ["interrupted", "21"]


TRAIN = """
if __name__ == "__main__":
    steps = 0
    while True:
        for batch in loader:
            steps += 1
            if steps % 10 == 0:
                print("running", flush=True)
            time.sleep(0.002)
"""
LOADERS = {
    "threads": "",
    # Workers that persist: an interrupt while torch ends workers is lost in its `__del__`.
    "workers": "loader = lmdbloader.dataloader(ds, 4, num_workers=2, persistent_workers=True)\n",
}


@pytest.mark.parametrize(
    ("kind", "number", "everyone"),
    [
        ("threads", signal.SIGTERM, False),
        ("threads", signal.SIGINT, False),
        ("workers", signal.SIGINT, False),
    ],
)
def test_a_signal_in_the_middle_of_an_epoch_leaves_nothing(
    nursery: Nursery, path: Path, tmp_path: Path, kind: str, number: signal.Signals, everyone: bool
) -> None:
    program = nursery.start(begin(path) + LOADERS[kind] + TRAIN, tmp_path)
    program.wait_for("running")
    while len(program.session()) < (1 if kind == "threads" else 3):
        program.wait_for("running", program.out.count("running") + 1)
    program.signal(number, everyone=everyone)
    status = program.end()
    assert status == -number
    check_message(program, status)
