"""Made-up results of scripts/compare_training.py, for tests of its reports."""

from __future__ import annotations

import numpy as np
from comparison.plan import Plan, TurnOf
from comparison.results import Results
from comparison.settings import Setting
from comparison.training import Epoch, Turn

BASE = {"srcnn": Setting("srcnn", 16, 64, 2), "tiny": Setting("tiny", 16, 64, 2)}
# How many times as fast as the folder an arm is.
FASTER = {"folder": 1.0, "dataloader": 2.0, "lmdbloader": 4.0}


def made_up(*, seeds: int = 3, better: float = 0.0, sweeps: tuple[str, ...] = ("batch-size", "workers")) -> Results:
    """Return results in which DataLoader over LMDB is twice and Loader four times as fast as the folder."""
    plan = Plan(
        BASE, tuple(range(seeds)), {"srcnn": 4, "tiny": 4}, {"srcnn": sweeps, "tiny": sweeps}, 1.0, ("left out.",), 60.0
    )  # fmt: skip
    results = Results(
        {"source": "photographs"}, [("source", "photographs")], "2026-11-23 10:00:00+00:00", "0", 2, "cpu",
        {"srcnn": 1000, "tiny": 1000}, plan, {"srcnn": 30.0},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for item in plan.items(2):
        faster = FASTER[item.arm]
        phases = {"data": 1 / faster, "copy": 0.0, "forward": 1.0, "backward": 1.0, "update": 0.1, "compute": 0.0}
        if isinstance(item, TurnOf):
            results.turns[item.key] = Turn(100 * faster * (1 + item.place), 20, phases, 2.0)
        else:
            start = 0.5 if item.model == "tiny" else 30.0
            gain = better if item.arm == "lmdbloader" else 0.0
            results.runs[item.key] = [
                Epoch(10 / faster, 1000, 0.1, start + 0.1 * (1 - 0.5**k) + gain + rng.normal(0, 0.001), phases)
                for k in range(4)
            ]
    return results


def used(percent: float, **others: float | None) -> dict[str, float | None]:
    """Return what NVML says of a turn."""
    known = {"power_watts": 150.0, "memory_mib": 4000.0, "temperature_celsius": 60.0, "performance_state": 2}
    return {"utilization_percent": percent, "fan_percent": None, **known, **others}
