"""Measures and advises: tune, profile, doctor, bench and plan, their results, and facts about the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy

if TYPE_CHECKING:
    from lmdbloader.base.stopwatch import StepTimer as StepTimer
    from lmdbloader.lab.checkup import Checkup as Checkup
    from lmdbloader.lab.checkup import doctor as doctor
    from lmdbloader.lab.example_times import ExampleTimes as ExampleTimes
    from lmdbloader.lab.example_times import time_examples as time_examples
    from lmdbloader.lab.planning import Plan as Plan
    from lmdbloader.lab.planning import plan as plan
    from lmdbloader.lab.profiling import Profile as Profile
    from lmdbloader.lab.profiling import Recorder as Recorder
    from lmdbloader.lab.profiling import profile as profile
    from lmdbloader.lab.profiling import rehearse as rehearse
    from lmdbloader.lab.study import Study as Study
    from lmdbloader.lab.study import bench as bench
    from lmdbloader.lab.tuning import Tuning as Tuning
    from lmdbloader.lab.tuning import tune as tune

# Each loads when it is first used: a plan needs no torch, and a profile no model.
if not TYPE_CHECKING:  # A type checker that saw it would take every name for one that exists.
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "checkup": "Checkup doctor",
            "example_times": "ExampleTimes time_examples",
            "planning": "Plan plan",
            "profiling": "Profile Recorder StepTimer profile rehearse",
            "study": "Study bench",
            "tuning": "Tuning tune",
        },
    )
