"""Counts the processor cores that this process may use."""

from __future__ import annotations

from lmdbloader.base import system


def count_cores() -> int:
    """Return how many cores this process may use, at least 1.

    It is the minimum of the machine's cores, the process's CPU affinity, and the CPU quota of the control groups
    (version 1 or 2) that a container runs in, rounded up.

    >>> count_cores() >= 1
    True
    """
    allowed, quota = system.allowed_cores(), system.quota_cores()
    return allowed if quota is None else min(allowed, quota)
