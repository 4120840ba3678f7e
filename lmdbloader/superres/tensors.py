"""Converts stored pixels to a model's tensors and back: scale, channels, luma, and the bicubic upscaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.superres.metrics import LUMA_OFFSET, LUMA_WEIGHTS

__all__ = ["Model", "merge_luma", "model_inputs", "to_bytes", "to_channels", "unit_floats", "upscale"]

# LR pixels mirrored around an image before upscaling: bicubic needs two, and one more keeps the cut exact.
_MARGIN = 3


class Model(Protocol):
    """A network that enlarges images: a `torch.nn.Module` with these attributes.

    Attributes:
        channels: 3 for RGB, 1 for luma.
        scale: The upscaling factor.
        upscales: Whether its input is the small image; False for a network that sharpens what bicubic has enlarged.
    """

    channels: int
    scale: int
    upscales: bool
    training: bool

    def __call__(self, images: Tensor, /) -> Any: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def train(self, mode: bool = True) -> object: ...


def upscale(images: Tensor, scale: int) -> Tensor:
    """Enlarge images by bicubic interpolation, as MATLAB's `imresize` does (a = -0.5, borders mirrored).

    Plain `F.interpolate(mode="bicubic")` uses a = -0.75. With `antialias=True` it uses -0.5, and when enlarging
    antialiasing changes nothing else.

    Args:
        images: (B, C, h, w) floating point.
        scale: Whole-number factor, 1 or more.

    Returns:
        (B, C, h * scale, w * scale) of the same type and device; it can leave the input's range a little.

    >>> import torch
    >>> upscale(torch.full((1, 3, 5, 7), 0.5), 2).shape
    torch.Size([1, 3, 10, 14])
    """
    height, width = images.shape[-2:]
    padded = images[..., _mirrored(height, images.device), :][..., _mirrored(width, images.device)]
    large = functional.interpolate(
        padded,
        size=((height + 2 * _MARGIN) * scale, (width + 2 * _MARGIN) * scale),
        mode="bicubic",
        align_corners=False,
        antialias=True,
    )
    cut = _MARGIN * scale
    return large[..., cut : cut + height * scale, cut : cut + width * scale]


def _mirrored(length: int, device: torch.device) -> Tensor:
    """Return the positions -_MARGIN .. length + _MARGIN - 1, mirrored into 0 .. length - 1 with the edge repeated."""
    positions = torch.arange(-_MARGIN, length + _MARGIN, device=device) % (2 * length)
    return torch.where(positions < length, positions, 2 * length - 1 - positions)


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

    Gray images are used as luma unchanged, as in `metrics.luma`.
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
    """Give an RGB image another luma and keep its colors, as SRCNN's results are shown.

    Args:
        image: (3, H, W) uint8 RGB, such as the bicubic upscaling.
        luma: (1, H, W) uint8 on the scale 16..235, such as `predict` gives for SRCNN.

    Returns:
        (3, H, W) uint8 RGB.
    """
    rgb = unit_floats(image)[None]
    # Gray is the direction in which only luma changes; 219 luma levels span black to white.
    change = (unit_floats(luma)[None] - to_channels(rgb, 1)) * (255 / 219)
    return to_bytes((rgb + change)[0])
