"""Transforms of images on their way into a batch, as frozen descriptions; and functions of whole batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lmdbloader.transforms.base import Geometry as Geometry
from lmdbloader.transforms.base import Transform as Transform
from lmdbloader.transforms.functions import BatchFunction as BatchFunction
from lmdbloader.transforms.functions import WithIndices as WithIndices
from lmdbloader.transforms.functions import thread_safe as thread_safe

if TYPE_CHECKING:
    from lmdbloader.transforms.batch_functions import CutMix as CutMix
    from lmdbloader.transforms.batch_functions import LabelSmoothing as LabelSmoothing
    from lmdbloader.transforms.batch_functions import MixUp as MixUp
    from lmdbloader.transforms.boxes import SanitizeBoxes as SanitizeBoxes
    from lmdbloader.transforms.compiled_function import CompiledFunction as CompiledFunction
    from lmdbloader.transforms.containers import RandomApply as RandomApply
    from lmdbloader.transforms.containers import RandomChoice as RandomChoice
    from lmdbloader.transforms.containers import RandomOrder as RandomOrder
    from lmdbloader.transforms.device_program import on_device as on_device
    from lmdbloader.transforms.operations import *  # noqa: F403 - a new transform is listed in `operations` only
    from lmdbloader.transforms.policies import AugMix as AugMix
    from lmdbloader.transforms.policies import AutoAugment as AutoAugment
    from lmdbloader.transforms.policies import RandAugment as RandAugment
    from lmdbloader.transforms.policies import TrivialAugmentWide as TrivialAugmentWide
    from lmdbloader.transforms.views import Views as Views

# Where names are that load when they are first used; all others are in `operations`.
_HOMES = {
    "AugMix": "policies",
    "AutoAugment": "policies",
    "CompiledFunction": "compiled_function",
    "CutMix": "batch_functions",
    "LabelSmoothing": "batch_functions",
    "MixUp": "batch_functions",
    "RandAugment": "policies",
    "RandomApply": "containers",
    "RandomChoice": "containers",
    "RandomOrder": "containers",
    "SanitizeBoxes": "boxes",
    "TrivialAugmentWide": "policies",
    "Views": "views",
    "on_device": "device_program",
}


if not TYPE_CHECKING:  # A type checker that saw it would take every name for one that exists.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        if not name.startswith("_") or name == "__all__":
            operations = importlib.import_module(f"{__name__}.operations")
            if name == "__all__":
                own = (each.__name__ for each in (BatchFunction, Geometry, Transform, WithIndices, thread_safe))
                return sorted([*operations.__all__, *_HOMES, *own])
            if name in operations.__all__:
                return getattr(operations, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
