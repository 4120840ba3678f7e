"""Converts stored pixels to a model's tensors and back: scale, channels, luma."""

from __future__ import annotations

import torch
from torch import Tensor

from lmdbloader.superres.metrics import LUMA_OFFSET, LUMA_WEIGHTS
from lmdbloader.superres.models import Model, upscale

__all__ = ["merge_luma", "model_inputs", "to_bytes", "to_channels", "unit_floats"]


def unit_floats(images: Tensor) -> Tensor:
    """Turn uint8 or uint16 images of any shape into float32 in 0..1; floating-point ones pass unchanged.

    >>> unit_floats(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if images.is_floating_point():
        return images
    return images.float() / (65535 if images.dtype == torch.uint16 else 255)


def to_channels(images: Tensor, channels: int) -> Tensor:
    """Turn (B, 1 or 3, H, W) images in 0..1 into a model's channels: RGB, or luma divided by 255.

    Grey images are used as luma unchanged, as in `metrics.luma`.
    """
    if channels == images.shape[1]:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    weights = images.new_tensor(LUMA_WEIGHTS).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True) + LUMA_OFFSET / 255


def model_inputs(model: Model, lr: Tensor) -> Tensor:
    """Turn a batch of LR images into a model's input: RGB, or for SRCNN the luma upscaled by bicubic.

    Args:
        model: Its `channels`, `upscales` and `scale` decide.
        lr: (B, 1 or 3, h, w) in 0..1, on the model's device.

    Returns:
        (B, channels, h, w), or (B, channels, h * scale, w * scale) for a model that does not upscale.
    """
    images = to_channels(lr, model.channels)
    return images if model.upscales else upscale(images, model.scale)


def to_bytes(images: Tensor) -> Tensor:
    """Round images in 0..1 to uint8."""
    return (images.float() * 255).round().clamp(0, 255).to(torch.uint8)


@torch.inference_mode()
def merge_luma(image: Tensor, luma: Tensor) -> Tensor:
    """Give an RGB image another luma and keep its colours, as SRCNN's results are shown.

    Args:
        image: (3, H, W) uint8 RGB, such as the bicubic upscaling.
        luma: (1, H, W) uint8 on the scale 16..235, such as `predict` gives for SRCNN.

    Returns:
        (3, H, W) uint8 RGB.
    """
    rgb = unit_floats(image)[None]
    # Grey is the direction in which only luma changes; 219 luma levels span black to white.
    change = (unit_floats(luma)[None] - to_channels(rgb, 1)) * (255 / 219)
    return to_bytes((rgb + change)[0])
