"""The study of loading: experiments on one dataset and this machine, and their results."""

from __future__ import annotations

from lmdbloader.lab.study.compare import ComparedRow, StudyComparison, compare_studies
from lmdbloader.lab.study.conclusion import Step
from lmdbloader.lab.study.experiment import BATCH_SIZES, CROPS, SECTIONS, bench
from lmdbloader.lab.study.ranges import Measured
from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import (
    BaselineFolder,
    ColdRow,
    GpuLoad,
    IsolationRow,
    Latency,
    OversubscriptionRow,
    Phases,
    StudiedDataset,
    StudiedField,
    StudySettings,
    SweepRow,
    ThreadsRow,
    Training,
)
from lmdbloader.lab.study.turns import forget_turns

__all__ = [
    "BATCH_SIZES",
    "CROPS",
    "SECTIONS",
    "BaselineFolder",
    "ColdRow",
    "ComparedRow",
    "GpuLoad",
    "IsolationRow",
    "Latency",
    "Measured",
    "OversubscriptionRow",
    "Phases",
    "Step",
    "StudiedDataset",
    "StudiedField",
    "Study",
    "StudyComparison",
    "StudySettings",
    "SweepRow",
    "ThreadsRow",
    "Training",
    "bench",
    "compare_studies",
    "forget_turns",
]
