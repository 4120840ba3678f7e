"""The memory: how much there is, how much of it this process may still take, and the room in shared memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base.cores import group_folders, read_text

_ROOT = Path("/")
# Version 1 of the control groups has no word for "no limit", but the largest number of whole pages.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in bytes; 0 where the system does not tell.

    Attributes:
        total_nbytes: Of the machine.
        available_nbytes: What can be taken without swapping, the page cache that would be given up included.
        limit_nbytes: The tightest limit of the process's control groups; None without one.
        limit_left_nbytes: What that limit leaves, page cache that would be given up included; None without one.
        shm_nbytes, shm_free_nbytes: Size of /dev/shm, and what is free in it; None where there is none.
    """

    total_nbytes: int
    available_nbytes: int
    limit_nbytes: int | None
    limit_left_nbytes: int | None
    shm_nbytes: int | None
    shm_free_nbytes: int | None

    @property
    def usable_nbytes(self) -> int:
        """Bytes that this process may have at all, its page cache included."""
        return self.total_nbytes if self.limit_nbytes is None else min(self.total_nbytes, self.limit_nbytes)

    @property
    def free_nbytes(self) -> int:
        """Bytes that this process may still take, whoever limits it; the page cache may have them, too."""
        left = self.limit_left_nbytes
        return self.available_nbytes if left is None else min(self.available_nbytes, left)


def describe_memory(root: Path = _ROOT) -> Memory:
    """Return sizes of the memory.

    Args:
        root: Where `proc`, `sys` and `dev` lie.
    """
    found = {}
    for line in read_text(root / "proc" / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    total = found.get("MemTotal", 0)
    available = found.get("MemAvailable", found.get("MemFree", 0) + found.get("Cached", 0))
    limits = [limit for folder in group_folders("memory", root) if (limit := _limit(folder)) is not None]
    # A limit beyond the machine's memory is none.
    limits = [limit for limit in limits if not total or limit[0] < total]
    shm, shm_free = _shared(root / "dev" / "shm")
    return Memory(
        total,
        available,
        min(limit for limit, _ in limits) if limits else None,
        min(left for _, left in limits) if limits else None,
        shm,
        shm_free,
    )


def _limit(folder: Path) -> tuple[int, int] | None:
    """Return the limit of one control group and what is left of it, None where it sets none."""
    for limit_file, usage_file, cache_names in (
        ("memory.max", "memory.current", ("file", "shmem")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_cache", "total_shmem")),
    ):
        text = read_text(folder / limit_file).strip()
        if not text.isdecimal() or int(text) >= _NO_LIMIT:
            continue
        limit, used = int(text), read_text(folder / usage_file).strip()
        counts = dict(line.split(None, 1) for line in read_text(folder / "memory.stat").splitlines() if " " in line)
        # Files in tmpfs count as page cache, and cannot be given up.
        cache, shared = (int(counts[name]) if counts.get(name, "").isdecimal() else 0 for name in cache_names)
        taken = int(used) - max(0, cache - shared) if used.isdecimal() else 0
        return limit, max(0, limit - max(0, taken))
    return None


def _shared(folder: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
