"""Which faults there are, in the order of the table, and how many of each a full run makes.

To add one: a line here, a module `<name>.py` next to this one with `run(count, seed, folder) -> Outcome`, and a
`test_<name>.py` that calls it with a small count and checks that the fault really happened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .outcome import Outcome

Run = Callable[[int, int, Path], Outcome]


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

    def load(self) -> Run:
        """Return its function `run(count, seed, folder)`."""
        return cast(Run, importlib.import_module(f".{self.name}", __package__).run)


_NOTHING_KEPT = "memory growth under 1 MB, no descriptors left"
FAULTS = (
    Fault("kills", 300, "SIGKILL at random times and at each named step of a conversion", "same digest, 0 lost"),
    Fault(
        "power_cuts", 3000, "a power cut at any call of a conversion, sectors of 64 to 4,096 bytes", "0 stuck, 0 lost"
    ),
    Fault("disk_full", 50, "a disk that is full at random points of a conversion", "a clear error, resumes"),
    Fault("truncation", 2000, "files cut at, next to and between page boundaries", "refused at open, 0 signals"),
    Fault("bad_sectors", 500, "sectors that the disk does not read, in all three files", "named, 0 signals"),
    Fault("io_errors", 5000, "EIO from every call of every command, one in each run", "named, the next run is right"),
    Fault("flips", 10_000, "flipped bits in all three files", "0 crashes, 0 silent differences"),
    Fault("fuzz", 200_000, "random and mutated manifests, indexes and records", "0 crashes, only our errors"),
    Fault(
        "hostile_tars", 1000, "tars that were made to do harm, of 13 kinds, converted", "only our errors, 32 MB, 5 s"
    ),
    Fault("resume_training", 200, "an epoch interrupted at a random step, resumed on others", "bit-equal remainder"),
    Fault("late_copies", 20_000, "copies to a stand-in GPU read after the batch was dropped", "0 of other bytes"),
    Fault("epochs", 1000, "epochs of a small dataset", _NOTHING_KEPT),
    Fault("open_close", 10_000, "a dataset opened and closed", _NOTHING_KEPT),
    Fault("readers", 200, "reader processes at once, one killed at random each second", "the others read on"),
    Fault("reused", 1000, "samples in memory that their producer refills, of 25 kinds", "the dataset of copies"),
    Fault("zoo", 100, "bad and odd images, converted together and alone", "the stated policy, each named"),
)


def fault_named(name: str) -> Fault:
    """Return the fault of this name."""
    (found,) = [fault for fault in FAULTS if fault.name == name]
    return found
