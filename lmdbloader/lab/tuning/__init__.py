"""Finds the settings with which a dataset reads best on this machine: measured, chosen, and remembered."""

from __future__ import annotations

from lmdbloader.lab.tuning.measuring import StepTrial
from lmdbloader.lab.tuning.race import ReadSetting
from lmdbloader.lab.tuning.results import Tuning, TuningRow
from lmdbloader.lab.tuning.tuner import tune
from lmdbloader.loader.tuning_cache import forget

__all__ = ["ReadSetting", "StepTrial", "Tuning", "TuningRow", "forget", "tune"]
