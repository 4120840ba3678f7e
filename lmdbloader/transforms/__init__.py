"""Transforms of images on their way into a batch, as frozen descriptions; and functions of whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy
from lmdbloader.transforms import operations
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.functions import BatchFunction, WithIndices, thread_safe
from lmdbloader.transforms.operations import *  # noqa: F403 - a new transform is listed in `operations` only

if TYPE_CHECKING:
    from lmdbloader.transforms.batch_functions import CutMix as CutMix
    from lmdbloader.transforms.batch_functions import LabelSmoothing as LabelSmoothing
    from lmdbloader.transforms.batch_functions import MixUp as MixUp
    from lmdbloader.transforms.boxes import SanitizeBoxes as SanitizeBoxes
    from lmdbloader.transforms.compiled_function import CompiledFunction as CompiledFunction

# Functions of batches load when they are first used.
__getattr__, __dir__, _names = lazy(
    __name__,
    {
        "batch_functions": "CutMix LabelSmoothing MixUp",
        "boxes": "SanitizeBoxes",
        "compiled_function": "CompiledFunction",
    },
)
__all__ = ["BatchFunction", "Geometry", "Transform", "WithIndices", "thread_safe"]
__all__ += operations.__all__
__all__ += _names
