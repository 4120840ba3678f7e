"""The resources of a process: its own memory, descriptors, threads; and their growth."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass

import psutil

MOST_NBYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of this process.

    Attributes:
        nbytes: Memory that it shares with no other process.
        descriptors: Open files and the like.
        maps: Regions of its address space that files are mapped to.
        threads: Of Python.
    """

    nbytes: int
    descriptors: int
    maps: int
    threads: int


def held() -> Held:
    """Return the resources of this process after a garbage collection."""
    gc.collect()
    process = psutil.Process()
    maps = [m for m in process.memory_maps(grouped=False) if m.path.startswith("/")]
    return Held(process.memory_full_info().uss, process.num_fds(), len(maps), threading.active_count())


def growth(before: Held, after: Held) -> tuple[dict[str, int], list[str]]:
    """Return how much more is held than before, for a table, and a line for each thing of which there is too much."""
    counts = {
        "KB grown": max(0, after.nbytes - before.nbytes) // 1000,
        "descriptors left": after.descriptors - before.descriptors,
        "maps left": after.maps - before.maps,
        "threads left": after.threads - before.threads,
    }
    failures = [f"{name}: {count}" for name, count in counts.items() if count > 0 and name != "KB grown"]
    if after.nbytes - before.nbytes >= MOST_NBYTES:
        failures.append(f"memory grew by {after.nbytes - before.nbytes:,} bytes; less than {MOST_NBYTES:,} is expected")
    return counts, failures
