"""The study of loading: measurements of one dataset on this machine, and their results."""

from __future__ import annotations

from lmdbloader.lab.study.experiment import BATCH_SIZES, CROPS, bench
from lmdbloader.lab.study.results import Study, StudyRow

__all__ = ["BATCH_SIZES", "CROPS", "Study", "StudyRow", "bench"]
