"""Finds the settings with which a dataset reads best on this machine: measured, chosen, and remembered."""

from __future__ import annotations

from lmdbloader.lab.tuning.race import Setting
from lmdbloader.lab.tuning.results import Row, Tuning
from lmdbloader.lab.tuning.steps import Verdict
from lmdbloader.lab.tuning.tuner import tune
from lmdbloader.loader.tuning_cache import forget

__all__ = ["Row", "Setting", "Tuning", "Verdict", "forget", "tune"]
