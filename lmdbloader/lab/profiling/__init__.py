"""Whether the model waits for data, what makes it wait, and which change would help most."""

from __future__ import annotations

from lmdbloader.base.step_timer import StepTimer
from lmdbloader.lab.profiling.advice import Advice
from lmdbloader.lab.profiling.figures import PhaseTimes
from lmdbloader.lab.profiling.recorder import Recorder
from lmdbloader.lab.profiling.results import Comparison, Profile
from lmdbloader.lab.profiling.run import profile, rehearse
from lmdbloader.lab.profiling.threads import ThreadTimes

__all__ = [
    "Advice",
    "Comparison",
    "PhaseTimes",
    "Profile",
    "Recorder",
    "StepTimer",
    "ThreadTimes",
    "profile",
    "rehearse",
]
