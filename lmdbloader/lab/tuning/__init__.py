"""Finds the settings with which a dataset reads best on this machine: measured, chosen, and remembered."""

from lmdbloader.lab.tuning.results import StepTrial as StepTrial
from lmdbloader.lab.tuning.results import Tuning as Tuning
from lmdbloader.lab.tuning.results import TuningRow as TuningRow
from lmdbloader.lab.tuning.tuner import tune as tune
