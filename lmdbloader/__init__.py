"""Turns a folder of images into one memory-mapped LMDB dataset and reads it as a torch Dataset."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmdbloader import transforms as transforms
    from lmdbloader.checkup import Checkup as Checkup
    from lmdbloader.checkup import doctor as doctor
    from lmdbloader.conversion import Estimate as Estimate
    from lmdbloader.conversion import Report as Report
    from lmdbloader.conversion import Split as Split
    from lmdbloader.conversion import convert as convert
    from lmdbloader.conversion import estimate as estimate
    from lmdbloader.conversion import find_splits as find_splits
    from lmdbloader.conversion import write as write
    from lmdbloader.dataset import LMDBDataset as LMDBDataset
    from lmdbloader.format import Array as Array
    from lmdbloader.format import Bytes as Bytes
    from lmdbloader.format import Float as Float
    from lmdbloader.format import Image as Image
    from lmdbloader.format import Int as Int
    from lmdbloader.format import Json as Json
    from lmdbloader.format import Text as Text
    from lmdbloader.loader import Loader as Loader
    from lmdbloader.loading import dataloader as dataloader
    from lmdbloader.planning import Plan as Plan
    from lmdbloader.planning import plan as plan
    from lmdbloader.profiling import Profile as Profile
    from lmdbloader.profiling import Recorder as Recorder
    from lmdbloader.profiling import profile as profile
    from lmdbloader.resolution import ProgressiveResize as ProgressiveResize
    from lmdbloader.sampling import QuasiRandom as QuasiRandom
    from lmdbloader.staging import stage as stage
    from lmdbloader.store import repair as repair
    from lmdbloader.store import verify as verify
    from lmdbloader.study import Study as Study
    from lmdbloader.study import bench as bench
    from lmdbloader.tuning import Tuning as Tuning
    from lmdbloader.tuning import tune as tune

# Names load their module when first used: `import lmdbloader` costs no torch, pyarrow or numba.
_HOMES = {
    **dict.fromkeys(("Array", "Bytes", "Float", "Image", "Int", "Json", "Text"), "lmdbloader.format"),
    **dict.fromkeys(("Checkup", "doctor"), "lmdbloader.checkup"),
    "Estimate": "lmdbloader.conversion",
    "LMDBDataset": "lmdbloader.dataset",
    "Loader": "lmdbloader.loader",
    "Plan": "lmdbloader.planning",
    **dict.fromkeys(("Profile", "Recorder", "profile"), "lmdbloader.profiling"),
    "ProgressiveResize": "lmdbloader.resolution",
    "QuasiRandom": "lmdbloader.sampling",
    "Report": "lmdbloader.conversion",
    "Split": "lmdbloader.conversion",
    "Study": "lmdbloader.study",
    "Tuning": "lmdbloader.tuning",
    "bench": "lmdbloader.study",
    "convert": "lmdbloader.conversion",
    "dataloader": "lmdbloader.loading",
    "estimate": "lmdbloader.conversion",
    "find_splits": "lmdbloader.conversion",
    "plan": "lmdbloader.planning",
    "repair": "lmdbloader.store",
    "stage": "lmdbloader.staging",
    "tune": "lmdbloader.tuning",
    "verify": "lmdbloader.store",
    "write": "lmdbloader.conversion",
}
__all__ = ["__version__", *sorted(_HOMES), "transforms"]


def __getattr__(name: str) -> object:
    if name == "transforms":
        return importlib.import_module("lmdbloader.transforms")
    if name not in _HOMES:
        raise AttributeError(f"module 'lmdbloader' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
