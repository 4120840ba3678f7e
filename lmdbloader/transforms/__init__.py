"""Transforms of images on their way into a batch, as frozen descriptions; and functions of whole batches."""

from __future__ import annotations

import sys

from lmdbloader.base.lazy import is_imported_by
from lmdbloader.base.suggestions import did_you_mean
from lmdbloader.transforms import operations
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.batch_functions import BatchFunction, CutMix, LabelSmoothing, MixUp, WithIndices
from lmdbloader.transforms.boxes import SanitizeBoxes
from lmdbloader.transforms.compiled_function import CompiledFunction
from lmdbloader.transforms.foreign import instead_of
from lmdbloader.transforms.marks import thread_safe
from lmdbloader.transforms.operations import *  # noqa: F403 - a new transform is listed in `operations` only

__all__ = [
    "BatchFunction", "CompiledFunction", "CutMix", "Geometry", "LabelSmoothing", "MixUp", "SanitizeBoxes", "Transform",
    "WithIndices", "thread_safe",
]  # fmt: skip
__all__ += operations.__all__


def __getattr__(name: str) -> object:
    message = instead_of(name)
    if message is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        near = "" if name.startswith("_") else did_you_mean(name, __all__)
        if not near:
            raise AttributeError(message)
        message += near
    # `from lmdbloader.transforms import name` would replace the message of an AttributeError with its own.
    raise ImportError(message, name=name) if is_imported_by(sys._getframe(1)) else AttributeError(message)
