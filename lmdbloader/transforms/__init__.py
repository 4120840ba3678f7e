"""What can be done to images on their way into a batch: frozen descriptions, carried out by compiled code."""

from __future__ import annotations

from lmdbloader.transforms.base import Geometry, Transform
from lmdbloader.transforms.batch_functions import BatchFunction, CutMix, LabelSmoothing, MixUp
from lmdbloader.transforms.colors import ColorJitter, Cutout, RandomErasing, RandomGrayscale, RandomSolarize
from lmdbloader.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomDihedral,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
)
from lmdbloader.transforms.values import DTYPES, Normalize, ToDtype

__all__ = [
    "DTYPES",
    "BatchFunction",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Cutout",
    "Geometry",
    "LabelSmoothing",
    "MixUp",
    "Normalize",
    "RandomCrop",
    "RandomDihedral",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "Transform",
]
