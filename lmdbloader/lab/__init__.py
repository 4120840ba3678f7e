"""Measures and advises: tune, profile, doctor, bench and plan, and facts about the machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmdbloader.base.stopwatch import StepTimer as StepTimer
    from lmdbloader.lab.checkup import Checkup as Checkup
    from lmdbloader.lab.checkup import Finding as Finding
    from lmdbloader.lab.checkup import doctor as doctor
    from lmdbloader.lab.planning import Plan as Plan
    from lmdbloader.lab.planning import plan as plan
    from lmdbloader.lab.profiling import Comparison as Comparison
    from lmdbloader.lab.profiling import Profile as Profile
    from lmdbloader.lab.profiling import Recorder as Recorder
    from lmdbloader.lab.profiling import profile as profile
    from lmdbloader.lab.profiling import rehearse as rehearse
    from lmdbloader.lab.study import Study as Study
    from lmdbloader.lab.study import bench as bench
    from lmdbloader.lab.tuning import Tuning as Tuning
    from lmdbloader.lab.tuning import tune as tune

# Each loads when it is first used: a plan needs no torch, and a profile no model.
_HOMES = {
    **dict.fromkeys(("Checkup", "Finding", "doctor"), "checkup"),
    **dict.fromkeys(("Plan", "plan"), "planning"),
    **dict.fromkeys(("Comparison", "Profile", "Recorder", "StepTimer", "profile", "rehearse"), "profiling"),
    **dict.fromkeys(("Study", "bench"), "study"),
    **dict.fromkeys(("Tuning", "tune"), "tuning"),
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmdbloader.lab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lmdbloader.lab.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
