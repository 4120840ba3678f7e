"""The study of how batches come: experiments on one dataset and this machine, and their results."""

from __future__ import annotations

from lmdbloader.lab.study.experiment import BATCH_SIZES, CROPS, SECTIONS, bench
from lmdbloader.lab.study.results import Study

__all__ = ["BATCH_SIZES", "CROPS", "SECTIONS", "Study", "bench"]
