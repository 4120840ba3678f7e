"""The processor: its model, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base.cores import quota_cores, read_text

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Processor:
    """What computes.

    Attributes:
        model: As the system names it; the architecture where it does not.
        num_online: Logical cores of the machine.
        num_allowed: Cores of the process's CPU affinity.
        quota: Cores' worth of time that control groups grant, rounded up; None where nothing limits it.
    """

    model: str
    num_online: int
    num_allowed: int
    quota: int | None

    @property
    def num_usable(self) -> int:
        """Cores that this process may use: the least of all limits, at least 1."""
        return max(1, min(self.num_allowed, self.num_online, self.quota or self.num_online))


def describe_processor(root: Path = _ROOT) -> Processor:
    """Return what computes.

    Args:
        root: Where `proc` and `sys` lie.
    """
    online = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online
    return Processor(_model(root), online, allowed, quota_cores(root))


def _model(root: Path) -> str:
    for line in read_text(root / "proc" / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():  # x86, some ARM boards, MIPS
            return " ".join(value.split())
    return platform.machine() or "unknown"
