"""Runs faults, each in a process of its own: where that one dies the fault has failed, and the next one follows."""

from __future__ import annotations

import dataclasses
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from .outcome import Outcome
from .registry import Fault


def run_fault(fault: Fault, count: int, seed: int) -> Outcome:
    """Run a fault in a child process, in an empty folder of its own that is removed afterwards."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=f"fault-{fault.name}-", ignore_cleanup_errors=True) as folder:
        child = context.Process(target=_run_here, args=(theirs, fault, count, seed, folder))
        child.start()
        theirs.close()
        try:
            outcome: Outcome = ours.recv()
        except EOFError:
            child.join()
            outcome = Outcome(fault.name, fault.must_hold, {}, [f"its process ended by {_how(child.exitcode)}"])
        finally:
            ours.close()
        child.join()
    return dataclasses.replace(outcome, seconds=time.perf_counter() - start)


def _run_here(result: Connection, fault: Fault, count: int, seed: int, folder: str) -> None:
    faulthandler.enable()
    os.environ.update(XDG_CACHE_HOME=folder)  # measurements of this machine are neither read nor left
    try:
        work = Path(folder, "work")
        work.mkdir()
        outcome = fault.load()(count, seed, work)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(fault.name, fault.must_hold, {}, [f"its run ended with {type(error).__name__}: {error}"])
    result.send(outcome)
    result.close()


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"
