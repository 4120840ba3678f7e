"""Profiles of training steps: the wait for data, its cause, and the change that would help most."""

from __future__ import annotations

from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.lab.profiling.bottleneck import Advice
from lmdbloader.lab.profiling.recorder import Recorder, profile, rehearse
from lmdbloader.lab.profiling.results import Comparison, Profile
from lmdbloader.lab.profiling.threads import ThreadTimes
from lmdbloader.lab.profiling.typical_step import PhaseTimes

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
