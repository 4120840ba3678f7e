"""Pixels to batches, for the peers that hand over one sample after the other and leave the rest to the user.

The fastest way that NumPy and torchvision have. A pair is turned and converted in one pass, straight into the batch:
11 us of CPU an image of 96x96, against 25 to 47 us for stacking first and converting with torch. A crop is cut by
torchvision's transforms on bytes, which its documentation names as the fastest, and the batch is converted as a whole.
"""

from __future__ import annotations

import functools
import io
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SCALE = np.float32(1 / 255)
# Files that are mapped are read-only, and nobody writes.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

Batch = dict[str, torch.Tensor]


def make_batch(samples: Sequence[dict[str, Any]]) -> Batch:
    """Make a batch of either job, in any process: pair_batch, or crop_batch after decoding what is a JPEG."""
    if "lr" in samples[0]:
        return pair_batch(samples, random_of(os.getpid()))
    if isinstance(samples[0]["image"], bytes | memoryview):
        samples = [{**sample, "image": decode_jpeg(sample["image"])} for sample in samples]
    return crop_batch(samples)


@functools.cache
def random_of(process: int) -> np.random.Generator:
    """Return this process's own numbers; in a worker of a DataLoader they follow from its seed."""
    return np.random.default_rng([torch.initial_seed() % 2**63, process])


def pair_batch(samples: Sequence[dict[str, Any]], random: np.random.Generator) -> Batch:
    """Make a batch of pairs; each pair is flipped, or is not.

    Args:
        samples: Each with `index`, and `lr` and `hr`: uint8, HWC.
        random: Draws the flips.

    Returns:
        index: int64 (N,); lr, hr: float32 NCHW in [0, 1].
    """
    flips = random.random(len(samples)) < 0.5
    batch: Batch = {"index": torch.tensor([int(sample["index"]) for sample in samples])}
    for name in ("lr", "hr"):
        height, width, channels = samples[0][name].shape
        out = torch.empty((len(samples), channels, height, width))
        for sample, flip, place in zip(samples, flips, out.numpy(), strict=True):
            pixels = sample[name][:, ::-1] if flip else sample[name]
            np.multiply(pixels.transpose(2, 0, 1), _SCALE, out=place)
        batch[name] = out
    return batch


def crop_batch(samples: Sequence[dict[str, Any]]) -> Batch:
    """Make a batch of crops.

    Args:
        samples: Each with `index`, `label` and `image`: uint8, HWC, which is cropped here.

    Returns:
        index, label: int64 (N,); image: float32 NCHW, normalized.
    """
    return crops_of([crop(sample["image"]) for sample in samples], samples)


def crops_of(crops: Sequence[torch.Tensor], samples: Sequence[dict[str, Any]]) -> Batch:
    """Make a batch of images that are cropped: uint8, CHW. The rest is as in crop_batch."""
    image = torch.stack(list(crops)).to(torch.float32, memory_format=torch.contiguous_format)
    batch: Batch = {"image": normalize(image)}
    for name in ("index", "label"):
        batch[name] = torch.tensor([int(sample[name]) for sample in samples])
    return batch


def normalize(image: torch.Tensor) -> torch.Tensor:
    """Normalize float32 NCHW of 0 to 255, in place."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    return image.sub_(mean).mul_(1 / std)


def crop(image: np.ndarray) -> torch.Tensor:
    """Crop, resize and perhaps flip an image of bytes, HWC; the result is uint8, CHW."""
    return _crops()(torch.from_numpy(image).permute(2, 0, 1))


def decode_jpeg(data: bytes | memoryview) -> np.ndarray:
    """Decode with Pillow: torchvision's decoder is among its operators in C++; the result is uint8, HWC."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


@functools.cache
def _crops() -> Callable[[torch.Tensor], torch.Tensor]:
    v2 = transforms_v2()
    return v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])


@functools.cache
def transforms_v2() -> Any:
    """Import torchvision's transforms.

    Its wheel is of a build with CUDA; the operators in C++, which no transform of these jobs uses, do not load with a
    build of torch without. Importing it needs two of them to be known by name.
    """
    try:
        from torchvision.transforms import v2
    except RuntimeError:
        import sys

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _define_operators()
        from torchvision.transforms import v2
    return v2


_library: Any = None


def _define_operators() -> None:
    global _library
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
