"""Counts the processor cores that this process may use, and finds the control groups that limit it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def count_cores() -> int:
    """Return how many cores this process may use, at least 1.

    It is the minimum of the machine's cores, the process's CPU affinity, and the CPU quota of the control groups
    (version 1 or 2) that a container runs in, rounded up.

    >>> count_cores() >= 1
    True
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores()
    return allowed if quota is None else min(allowed, quota)


def quota_cores(root: Path = _ROOT) -> int | None:
    """Return the CPU quota of this process's control groups in cores, rounded up.

    Args:
        root: The folder with `proc` and `sys`.

    Returns:
        At least 1; None without a limit or control groups.
    """
    quotas = [quota for folder in group_folders("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas) if quotas else None


def group_folders(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the folders of the process's control groups and of their parents: the tightest limit applies.

    Args:
        controller: Of version 1, such as "cpu" or "memory"; version 2 has one hierarchy for all.
        root: The folder with `proc` and `sys`.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    for line in read_text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            hierarchies = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            hierarchies = [mounted / controllers, mounted / controller]
        else:
            continue
        names = [name for name in group.split("/") if name]
        if ".." in names:  # a group that this container cannot see
            names = []
        # In a container the group often has its name on the host, which is not mounted; its parents are.
        for hierarchy in hierarchies:
            for length in range(len(names), -1, -1):
                yield hierarchy.joinpath(*names[:length])


def _quota(folder: Path) -> int | None:
    """Return one group's quota in cores, rounded up; None if it sets no limit."""
    words = read_text(folder / "cpu.max").split() or [
        *read_text(folder / "cpu.cfs_quota_us").split(),
        *read_text(folder / "cpu.cfs_period_us").split(),
    ]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or not a pair of numbers
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def read_text(path: Path) -> str:
    """Return the text of a system file, empty if it is missing or cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
