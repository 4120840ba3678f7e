"""Counts the processor cores that this process may use, and its share of them."""

from __future__ import annotations

import os

from lmdbloader.base import system


def count_cores() -> int:
    """Return how many cores this process may use, at least 1.

    It is the minimum of the machine's cores, the process's CPU affinity, and the CPU quota of the control groups
    (version 1 or 2) that a container runs in, rounded up.

    >>> count_cores() >= 1
    True
    """
    return _within_quota(system.allowed_cores())


def count_own_cores() -> int:
    """Return this process's share of the cores, at least 1: all of them, or one of LOCAL_WORLD_SIZE equal shares.

    torchrun sets LOCAL_WORLD_SIZE in every process that it starts. A process that was bound to some of its launcher's
    cores keeps those, up to a share of all cores of the launcher.

    >>> 1 <= count_own_cores() <= count_cores()
    True
    """
    cores, processes = count_cores(), _count_local_processes()
    if processes == 1:
        return cores
    of_all = max(cores, _within_quota(system.cores_of_parent()))
    return min(cores, max(1, of_all // processes))


def _within_quota(allowed: int) -> int:
    quota = system.quota_cores()
    return allowed if quota is None else min(allowed, quota)


def _count_local_processes() -> int:
    """Return LOCAL_WORLD_SIZE; 1 if it is not set, or no number."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() else 1
