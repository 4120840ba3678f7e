"""Which faults there are, in the order of the table, and how many of each a full run makes.

To add one: a line here, a module `<name>.py` next to this one with `run(count, seed, folder) -> Outcome`, and a line in
`tests/test_faults.py`.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from .outcome import Outcome


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: Of its module next to this one.
        count: How many times a full run makes it.
        what: The fault, in words.
        must_hold: The promise.
    """

    name: str
    count: int
    what: str
    must_hold: str

    def run(self, count: int, seed: int, folder: Path) -> Outcome:
        """Make it so often, in an empty folder."""
        outcome: Outcome = importlib.import_module(f".{self.name}", __package__).run(count, seed, folder)
        return outcome

    def run_apart(self, count: int, seed: int) -> Outcome:
        """Make it in a child process, in an empty folder that is removed afterwards."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix=f"fault-{self.name}-", ignore_cleanup_errors=True) as folder:
            child = context.Process(target=_run_here, args=(theirs, self, count, seed, folder))
            child.start()
            theirs.close()
            try:
                outcome: Outcome = ours.recv()
            except EOFError:
                child.join()
                outcome = Outcome({}, [f"its process ended with status {child.exitcode}"])
            child.join()
        return outcome


def _run_here(result: Connection, fault: Fault, count: int, seed: int, folder: str) -> None:
    faulthandler.enable()
    os.environ.update(XDG_CACHE_HOME=folder)  # measurements of this machine are neither read nor left
    try:
        work = Path(folder, "work")
        work.mkdir()
        outcome = fault.run(count, seed, work)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome({}, [f"its run ended with {type(error).__name__}: {error}"])
    result.send(outcome)


FAULTS = (
    Fault(
        "kills",
        300,
        "SIGKILL at random times and after each kind of change of files in a conversion",
        "same digest, 0 lost",
    ),
    Fault(
        "power_cuts", 3000, "a power cut at any call of a conversion, sectors of 64 to 4,096 bytes", "0 stuck, 0 lost"
    ),
    Fault("disk_full", 50, "a disk that is full at random points of a conversion", "a clear error, resumes"),
    Fault("bad_sectors", 500, "sectors that the disk does not read, in all three files", "named, 0 signals"),
    Fault("io_errors", 5000, "EIO from every call of every command, one in each run", "named, the next run is right"),
    Fault("flips", 10_000, "flipped bits and cuts in all three files", "0 crashes, 0 silent differences"),
    Fault("fuzz", 200_000, "random and mutated manifests, indexes and records", "0 crashes, only our errors"),
    Fault(
        "hostile_tars", 1000, "tars that were made to do harm, of 13 kinds, converted", "only our errors, 32 MB, 5 s"
    ),
    Fault("late_copies", 20_000, "copies to a stand-in GPU read after the batch was dropped", "0 of other bytes"),
    Fault("leaks", 10_000, "epochs, and datasets opened and let go of", "memory growth under 1 MB, nothing left open"),
    Fault("reused", 1000, "samples in memory that their producer refills, of many kinds", "the dataset of copies"),
    Fault("zoo", 2, "bad and odd images, converted in both modes", "the stated policy, each named"),
)
