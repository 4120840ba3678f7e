"""Reads a dataset with little memory or from a slow disk: in its own process, in a Linux cgroup.

Versions 1 and 2 of cgroups both work, and need root. A group's memory counts the pages of files that its processes
read, so a dataset that is larger than the group's limit is read from the disk again and again. A disk is throttled by
its device, so the folder must be on a disk of its own, or on the system's, and not on a partition.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path("/sys/fs/cgroup")
_NAME = "lmdbloader-benchmark"
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Limit:
    """What a process gets.

    Attributes:
        name: For tables.
        memory_nbytes: For its own memory from then on, and for the pages of files that it reads; None without a limit.
        read_nbytes_per_s: Of the disk; None without a limit.
        is_warm: Whether each sample is read once before.
    """

    name: str
    memory_nbytes: int | None = None
    read_nbytes_per_s: int | None = None
    is_warm: bool = False


def _groups(limit: Limit, folder: Path) -> list[tuple[Path, str, str]]:
    """Return (group, file, text) of each limit."""
    device = os.stat(folder).st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    found = []
    is_second = (_ROOT / "cgroup.controllers").exists()
    if limit.memory_nbytes is not None:
        where = (_ROOT, "memory.max") if is_second else (_ROOT / "memory", "memory.limit_in_bytes")
        found.append((where[0] / _NAME, where[1], str(limit.memory_nbytes)))
    if limit.read_nbytes_per_s is not None:
        speed = limit.read_nbytes_per_s
        if is_second:
            found.append((_ROOT / _NAME, "io.max", f"{disk} rbps={speed}"))
        else:
            found.append((_ROOT / "blkio" / _NAME, "blkio.throttle.read_bps_device", f"{disk} {speed}"))
    return found


def forget(folder: Path) -> None:
    """Write a folder's files to the disk, and take their pages from the page cache; no process may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pairs_per_s(
    path: Path, limit: Limit, seconds: float, program: Sequence[str | Path] = (), *, work: str = "uint8"
) -> float:
    """Return the pairs a second that a Loader reads within a limit, from a dataset whose pages are on the disk.

    Args:
        path: The dataset.
        limit: Of the process.
        seconds: To read, after the first epoch where memory is limited.
        program: An interpreter and a program that reads in place of the Loader.
        work: What that program does with the pairs.

    Raises:
        PermissionError: Control groups cannot be made here.
        subprocess.CalledProcessError: The process has failed.
    """
    groups = _groups(limit, path)
    try:
        for group, file, text in groups:
            group.mkdir(exist_ok=True)
            (group / file).write_text(text)
    except OSError as error:
        raise PermissionError(f"{error.filename}: {error.strerror}; control groups need root") from error
    try:
        joins = [str(group / "cgroup.procs") for group, _, _ in groups]
        # In half of the memory the cache is filled first: each sample is read once.
        asked = {
            "path": str(path), "joins": joins, "seconds": seconds, "work": work,
            "fills": limit.memory_nbytes is not None or limit.is_warm,
        }  # fmt: skip
        command = [*(program or (sys.executable, __file__)), json.dumps(asked)]
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        for group, _, _ in groups:
            with suppress(OSError):
                group.rmdir()


def _serve(asked: dict[str, Any]) -> float:
    import torch

    import lmdbloader

    torch.set_num_threads(1)
    path = Path(asked["path"])
    # What the first batches load and allocate is not limited.
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(path.parent / "warm-up"), BATCH_SIZE)
    for _ in loader:
        pass
    loader.close()
    forget(path)
    for join in asked["joins"]:
        Path(join).write_text(str(os.getpid()))
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(path), BATCH_SIZE, shuffle=True)
    if asked["fills"]:
        for _ in loader:
            pass
    # From a cold disk, one epoch at most: afterwards pages are in memory.
    batches = itertools.chain.from_iterable(itertools.repeat(loader)) if asked["fills"] else iter(loader)
    pairs, began = 0, time.perf_counter()
    for batch in batches:
        pairs += len(batch[0])
        if time.perf_counter() - began >= asked["seconds"]:
            break
    return pairs / (time.perf_counter() - began)


if __name__ == "__main__":
    print(_serve(json.loads(sys.argv[1])))
