"""Finds the settings with which a dataset reads best on this machine: measured, chosen, and remembered."""

from __future__ import annotations

from lmdbloader.tuning.race import Setting
from lmdbloader.tuning.results import Row, Tuning
from lmdbloader.tuning.steps import Verdict
from lmdbloader.tuning.tuner import tune

__all__ = ["Row", "Setting", "Tuning", "Verdict", "tune"]
