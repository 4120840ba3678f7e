"""Programs in processes of their own that start in milliseconds: forks of one interpreter that has imported already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import lmdbloader

ROOT = Path(__file__).resolve().parents[1]
# Nothing here takes a tenth of it; torch's own workers look after their parent only every five seconds.
PATIENCE_SECONDS = 60.0

_MAIN = """
import gc, os, signal, sys
import torch, torch.distributed, torch.utils.data
import lmdbloader, lmdbloader.cli
ds = lmdbloader.LMDBDataset(sys.argv[1])
ds[0]
loader = lmdbloader.Loader(ds, 1, shuffle=True)
list(loader)
loader.close()
del ds, loader
gc.collect()
gc.freeze()  # or each fork copies all of this memory when it looks for garbage at its end
while True:
    folder = sys.stdin.readline().rstrip()
    if not folder:
        sys.exit()
    if folder.startswith("import "):
        exec(folder)
        gc.collect()
        gc.freeze()
        continue
    child = os.fork()
    if not child:
        break
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
os.setsid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored by who started the tests
for number, name in (0, os.devnull), (1, f"{folder}/out"), (2, f"{folder}/err"):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), number)
sys.argv = [folder]
exec(compile(open(f"{folder}/program.py").read(), f"{folder}/program.py", "exec"), {"__name__": "__main__"})
"""
_COMMAND = """
import os, runpy, sys
os.chdir({cwd!r})
os.environ.clear()
os.environ.update({environment!r})
sys.argv = {words!r}
if sys.argv[0] == "lmdbloader":
    from lmdbloader.cli import main
    sys.exit(main())
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Nursery:
    """Starts programs, one at a time: one that a failed test has left is killed. Leave it by `close`."""

    _running = 0

    def __init__(self, folder: Path) -> None:
        """Start the interpreter that is forked; `folder` is empty."""
        # So that it has loaded the kernels.
        lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8), "label": 0}], folder / "d")
        # Read when torch is imported: beside other tests a second thread makes training slower.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        self._imported: set[str] = set()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(folder / "d")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip

    def start(self, program: str, folder: Path) -> Program:
        """Start a program in a session of its own.

        Args:
            program: Its text. Whatever comes after it in the life of an interpreter is done as well.
            folder: Its own; also its `sys.argv[0]`.
        """
        assert self._parent.stdin is not None
        self._clear()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.py").write_text(program)
        self._parent.stdin.write(f"{folder}\n")
        self._parent.stdin.flush()
        self._running = int(self._line())
        return Program(self._running, folder, self)

    def start_command(self, words: Sequence[str], folder: Path, *, cwd: Path) -> Program:
        """Start a command line as a shell would, with the present environment.

        Args:
            words: `lmdbloader` and its words, or the path of a script and its words.
            folder: The program's own.
            cwd: It works there.
        """
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        return self.start(_COMMAND.format(cwd=str(cwd), environment=environment, words=list(words)), folder)

    def load(self, *modules: str) -> None:
        """Import modules once, for all programs that are started from now on."""
        assert self._parent.stdin is not None
        self._clear()
        for module in set(modules) - self._imported:
            self._parent.stdin.write(f"import {module}\n")
        self._imported |= set(modules)

    def status(self) -> int:
        """Wait for the program to end; return its status as the system gives it."""
        status = int(self._line())
        self._running = 0
        return status

    def _clear(self) -> None:
        if self._running:
            with suppress(ProcessLookupError):
                os.killpg(self._running, signal.SIGKILL)
            self.status()

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline()

    def close(self) -> None:
        """End it."""
        self._clear()
        self._parent.communicate()


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was started.

    Attributes:
        pid: Of the process, and of the session.
        folder: Its own.
    """

    pid: int
    folder: Path
    _nursery: Nursery

    @property
    def out(self) -> str:
        """Its output so far."""
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    @property
    def errors(self) -> str:
        """Its output on stderr so far."""
        return (self.folder / "err").read_text() if (self.folder / "err").exists() else ""

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until it has printed a text so many times."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self.out.count(text) < count:
            assert self.is_running and time.monotonic() < until, self.out + self.errors
            time.sleep(0.005)

    @property
    def is_running(self) -> bool:
        """Whether its first process has not ended."""
        try:
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def session(self) -> list[psutil.Process]:
        """Return all its processes that have not ended."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def signal(self, number: int, *, everyone: bool = False) -> None:
        """Send a signal to its first process, or to all that a terminal would send it to."""
        (os.killpg if everyone else os.kill)(self.pid, number)

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the first process to end; return its exit status, negative where a signal ended it.

        Whatever is left of its session after that must end, too.
        """
        until, pause = time.monotonic() + patience_seconds, 0.002
        while self.is_running:
            if time.monotonic() > until:
                left = self.session()
                self.signal(signal.SIGKILL, everyone=True)
                raise AssertionError(f"still runs: {left}; it said {self.out}{self.errors}")
            time.sleep(pause)
            pause = min(1.2 * pause, 0.05)
        status = os.waitstatus_to_exitcode(self._nursery.status())
        until = time.monotonic() + patience_seconds
        while left := self.session():
            if time.monotonic() > until:
                self.signal(signal.SIGKILL, everyone=True)
                raise AssertionError(f"left running: {left}; it said {self.out}{self.errors}")
            time.sleep(0.02)
        return status
