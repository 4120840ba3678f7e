"""Whether the model waits for data, what makes it wait, and which change would help most."""

from __future__ import annotations

from lmdbloader.profiling.advice import Advice
from lmdbloader.profiling.figures import PhaseTimes
from lmdbloader.profiling.recorder import Recorder
from lmdbloader.profiling.results import Comparison, Profile
from lmdbloader.profiling.run import profile, rehearse
from lmdbloader.profiling.threads import ThreadTimes
from lmdbloader.profiling.timer import StepTimer

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
