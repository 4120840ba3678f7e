"""Turns a folder of images into one memory-mapped LMDB dataset and reads it as a torch Dataset."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from lmdbloader.base.lazy import is_imported_by

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmdbloader import errors as errors
    from lmdbloader import fields as fields
    from lmdbloader import integrations as integrations
    from lmdbloader import lab as lab
    from lmdbloader import ray as ray
    from lmdbloader import superres as superres
    from lmdbloader import transforms as transforms
    from lmdbloader.batch.collate import collate as collate
    from lmdbloader.batch.dataset import LMDBDataset as LMDBDataset
    from lmdbloader.conversion import convert as convert
    from lmdbloader.conversion import estimate as estimate
    from lmdbloader.conversion import find_splits as find_splits
    from lmdbloader.conversion import write as write
    from lmdbloader.conversion.appending import append as append
    from lmdbloader.conversion.extraction import extract as extract
    from lmdbloader.conversion.merging import merge as merge
    from lmdbloader.conversion.staging import stage as stage
    from lmdbloader.conversion.subsets import subset as subset
    from lmdbloader.loader import Loader as Loader
    from lmdbloader.loader.mixing import mix as mix
    from lmdbloader.loader.orders import QuasiRandom as QuasiRandom
    from lmdbloader.loader.torch_loader import dataloader as dataloader
    from lmdbloader.show.sheet import preview as preview
    from lmdbloader.show.summary import info as info
    from lmdbloader.store import repair as repair
    from lmdbloader.store import verify as verify
    from lmdbloader.transforms.resolution import ProgressiveResize as ProgressiveResize

# Modules load when they are first used: `import lmdbloader` costs no torch, NumPy or pyarrow.
_MODULES = ("errors", "fields", "integrations", "lab", "ray", "superres", "transforms")
_HOMES = {
    "LMDBDataset": "batch.dataset",
    "Loader": "loader",
    "ProgressiveResize": "transforms.resolution",
    "QuasiRandom": "loader.orders",
    "append": "conversion.appending",
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
    "repair": "store",
    "stage": "conversion.staging",
    "subset": "conversion.subsets",
    "verify": "store",
    "write": "conversion",
}
__all__ = ["__version__", *sorted((*_HOMES, *_MODULES))]

# Names of earlier versions, and the line to write now.
_MOVED = {
    **{name: f"lmdbloader.fields.{name}" for name in ("Array", "Bytes", "Float", "Image", "Int", "Json", "Text")},
    **{name: f"lmdbloader.lab.{name}" for name in ("Checkup", "Plan", "Profile", "Recorder", "Study", "Tuning")},
    **{name: f"lmdbloader.lab.{name}" for name in ("bench", "doctor", "plan", "profile", "tune")},
    **{name: f"lmdbloader.conversion.{name}" for name in ("Estimate", "Report", "Split")},
    **{
        name: f"lmdbloader.lab.{name}"
        for name in ("checkup", "machine", "planning", "profiling", "reporting", "study", "tuning")
    },
    "checkpoints": "lmdbloader.loader.checkpoints",
    "classify": "scripts/classification in the repository, used by scripts/train_classifier.py",
    "dataset": "lmdbloader.batch.dataset",
    "extraction": "lmdbloader.conversion.extraction",
    "loading": "lmdbloader.loader.torch_loader",
    "looking": "lmdbloader.show",
    "open": "lmdbloader.LMDBDataset(path)",
    "stages": "lmdbloader.base.stage_times",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"lmdbloader.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"lmdbloader.{_HOMES[name]}"), name)
    if message := _message_about(name):
        # `from lmdbloader import name` would replace the message of an AttributeError with its own.
        from lmdbloader.errors import UnknownNameError

        raise ImportError(message, name=name) if is_imported_by(sys._getframe(1)) else UnknownNameError(message)
    raise AttributeError(f"module 'lmdbloader' has no attribute {name!r}{_suggestion(name)}")


def _message_about(name: str) -> str:
    """Return the advice for a name of an earlier version or of another library, "" if it is neither."""
    if name.startswith("_"):  # Python asks for many of these
        return ""
    if name in _MOVED:
        return f"lmdbloader.{name} is now {_MOVED[name]}"
    from lmdbloader.base.foreign_names import MODULE

    return f"lmdbloader.{name}: {MODULE[name].advice(None)}" if name in MODULE else ""


def _suggestion(name: str) -> str:
    from lmdbloader import errors
    from lmdbloader.base.suggestions import did_you_mean

    if name in errors.__all__:
        return f". Write lmdbloader.errors.{name}."
    return "" if name.startswith("_") else did_you_mean(name, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
