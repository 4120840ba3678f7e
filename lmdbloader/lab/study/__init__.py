"""The study of loading: experiments on one dataset and this machine, and their results."""

from __future__ import annotations

from lmdbloader.lab.study.experiment import ALL_SECTIONS, BATCH_SIZES, CROPS, SECTIONS, bench
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import StudyRow

__all__ = ["ALL_SECTIONS", "BATCH_SIZES", "CROPS", "SECTIONS", "Study", "StudyRow", "bench"]
