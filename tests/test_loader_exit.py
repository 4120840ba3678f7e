"""However a loop over a Loader ends, the interpreter exits at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lmdbloader

PACKAGE = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "d.lmdb"
    lmdbloader.write(({"image": np.full((8, 8, 3), i, np.uint8), "number": i} for i in range(83)), path)
    return path


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; it must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, cwd=PACKAGE, check=False
    )  # fmt: skip


BEGIN = "import sys, lmdbloader; ds = lmdbloader.LMDBDataset(sys.argv[1]); loader = lmdbloader.Loader(ds, 4)\n"


@pytest.mark.parametrize(
    ("code", "code_of_exit"),
    [
        ("it = iter(loader); next(it)", 0),
        ("it = iter(loader); next(it); sys.exit(3)", 3),
        ("for batch in loader: raise ValueError('mine')", 1),
        ("import threading\nfor batch in loader: break\nassert threading.active_count() > 1", 0),
    ],
)
def test_the_interpreter_exits_at_once_whatever_is_under_way(path: Path, code: str, code_of_exit: int) -> None:
    child = run(BEGIN + code, path)
    assert child.returncode == code_of_exit, child.stderr
    assert ("mine" in child.stderr) == (code_of_exit == 1)


def test_ctrl_c_ends_a_loop_that_waits_for_a_batch(path: Path) -> None:
    code = BEGIN + (
        "import os, signal, threading, time\n"
        "batch = next(iter(loader))\n"
        "def slow(batch): time.sleep(0.3); return batch\n"
        "loader = lmdbloader.Loader(ds, 4, transforms=[slow], num_threads=1)\n"
        "threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    for epoch in range(100):\n"
        "        for batch in loader: pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "print(sum(1 for _ in lmdbloader.Loader(ds, 4)))\n"
    )
    child = run(code, path)
    assert child.stdout.split() == ["interrupted", "21"], child.stderr
