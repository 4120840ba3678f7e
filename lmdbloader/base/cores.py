"""How many processor cores this process may use, whoever limits it, and the control groups that do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def count_cores() -> int:
    """Return how many cores this process may use, at least 1.

    The least of: the machine's cores, the process's CPU affinity, and the CPU quota of the control groups (version 1 or
    2) that a container runs in, rounded up.

    >>> count_cores() >= 1
    True
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores()
    return allowed if quota is None else min(allowed, quota)


def quota_cores(root: Path = _ROOT) -> int | None:
    """Return how many cores' worth of time the control groups of this process grant it, rounded up.

    Args:
        root: Where `proc` and `sys` lie.

    Returns:
        At least 1; None where nothing limits it, or the system has no control groups.
    """
    quotas = [quota for folder in group_folders("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas) if quotas else None


def group_folders(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yield the folders of the process's control groups and of all groups around them: the tightest limit holds.

    Args:
        controller: Of version 1, "cpu" or "memory"; version 2 has one hierarchy for all.
        root: Where `proc` and `sys` lie.
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
        if ".." in names:  # a group outside of what this container sees
            names = []
        # In a container the group's name is often that on the host, which is not there: then its parents are looked at.
        for hierarchy in hierarchies:
            for length in range(len(names), -1, -1):
                yield hierarchy.joinpath(*names[:length])


def _quota(folder: Path) -> int | None:
    """Return the cores' worth of time that one group grants, rounded up; None where it sets no limit."""
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
    """Return the text of a file of the system's, empty where there is none or it does not read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
