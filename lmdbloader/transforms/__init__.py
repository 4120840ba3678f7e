"""Transforms of images on their way into a batch, as frozen descriptions; and functions of whole batches."""

from __future__ import annotations

from lmdbloader.transforms import operations
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.batch_functions import BatchFunction, CutMix, LabelSmoothing, MixUp, WithIndices
from lmdbloader.transforms.boxes import SanitizeBoxes
from lmdbloader.transforms.compiled_function import CompiledFunction
from lmdbloader.transforms.marks import thread_safe
from lmdbloader.transforms.operations import *  # noqa: F403 - a new transform is listed in `operations` only

__all__ = [
    "BatchFunction", "CompiledFunction", "CutMix", "Geometry", "LabelSmoothing", "MixUp", "SanitizeBoxes", "Transform",
    "WithIndices", "thread_safe",
]  # fmt: skip
__all__ += operations.__all__
