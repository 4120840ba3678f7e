"""Profiles of training steps: the wait for data, its cause, and the change that would help most."""

from lmdbloader.base.stopwatch import StepTimer as StepTimer
from lmdbloader.lab.profiling.bottleneck import Advice as Advice
from lmdbloader.lab.profiling.recorder import Recorder as Recorder
from lmdbloader.lab.profiling.recorder import profile as profile
from lmdbloader.lab.profiling.recorder import rehearse as rehearse
from lmdbloader.lab.profiling.results import PhaseTimes as PhaseTimes
from lmdbloader.lab.profiling.results import Profile as Profile
from lmdbloader.lab.profiling.threads import ThreadTimes as ThreadTimes
