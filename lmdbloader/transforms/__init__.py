"""Transforms of images on their way into a batch, as frozen descriptions; and functions of whole batches."""

from __future__ import annotations

from lmdbloader.transforms import operations
from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.batch_functions import BatchFunction, CutMix, LabelSmoothing, MixUp, WithIndices
from lmdbloader.transforms.operations import *  # noqa: F403 - a new transform is listed in `operations` only

__all__ = ["BatchFunction", "CutMix", "Geometry", "LabelSmoothing", "MixUp", "Transform", "WithIndices"]
__all__ += operations.__all__
