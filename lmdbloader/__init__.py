"""Turns a folder of images into one memory-mapped LMDB dataset and reads it as a torch Dataset."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmdbloader import errors as errors
    from lmdbloader import fields as fields
    from lmdbloader import integrations as integrations
    from lmdbloader import lab as lab
    from lmdbloader import ray as ray
    from lmdbloader import superres as superres
    from lmdbloader import transforms as transforms
    from lmdbloader.batch.clips import Clips as Clips
    from lmdbloader.batch.collate import collate as collate
    from lmdbloader.batch.dataset import LMDBDataset as LMDBDataset
    from lmdbloader.conversion import convert as convert
    from lmdbloader.conversion import estimate as estimate
    from lmdbloader.conversion import find_splits as find_splits
    from lmdbloader.conversion import write as write
    from lmdbloader.conversion.extraction import extract as extract
    from lmdbloader.conversion.merging import append as append
    from lmdbloader.conversion.merging import merge as merge
    from lmdbloader.conversion.recoding import recode as recode
    from lmdbloader.conversion.staging import stage as stage
    from lmdbloader.conversion.subsets import subset as subset
    from lmdbloader.loader import Loader as Loader
    from lmdbloader.loader.buckets import Buckets as Buckets
    from lmdbloader.loader.classes import ClassBatches as ClassBatches
    from lmdbloader.loader.mixing import mix as mix
    from lmdbloader.loader.quasi_random import QuasiRandom as QuasiRandom
    from lmdbloader.loader.torch_loader import dataloader as dataloader
    from lmdbloader.show.sheet import preview as preview
    from lmdbloader.show.summary import info as info
    from lmdbloader.store import repair as repair
    from lmdbloader.store import verify as verify
    from lmdbloader.transforms.resolution import ProgressiveResize as ProgressiveResize

# Modules load when they are first used: `import lmdbloader` costs no torch, NumPy or pyarrow.
_MODULES = ("errors", "fields", "integrations", "lab", "ray", "superres", "transforms")
_HOMES = {
    "Buckets": "loader.buckets",
    "ClassBatches": "loader.classes",
    "Clips": "batch.clips",
    "LMDBDataset": "batch.dataset",
    "Loader": "loader",
    "ProgressiveResize": "transforms.resolution",
    "QuasiRandom": "loader.quasi_random",
    "append": "conversion.merging",
    "collate": "batch.collate",
    "convert": "conversion",
    "dataloader": "loader.torch_loader",
    "estimate": "conversion",
    "extract": "conversion.extraction",
    "find_splits": "conversion",
    "info": "show.summary",
    "merge": "conversion.merging",
    "mix": "loader.mixing",
    "preview": "show.sheet",
    "recode": "conversion.recoding",
    "repair": "store",
    "stage": "conversion.staging",
    "subset": "conversion.subsets",
    "verify": "store",
    "write": "conversion",
}
__all__ = ["__version__", *sorted((*_HOMES, *_MODULES))]


if not TYPE_CHECKING:  # A type checker that saw it would take every name for one that exists.

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"lmdbloader.{name}")
        if name in _HOMES:
            return getattr(importlib.import_module(f"lmdbloader.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'lmdbloader' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
