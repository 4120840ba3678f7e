"""Sharpening as Real-ESRGAN's: unsharp masking where an image differs from its blurred self."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.degrade.blur import GAUSSIAN, blur, make_kernel
from lmdbloader.kernels.runtime.compile import kernel

# OpenCV's standard deviation for a kernel of this side.
SIZE, _SIGMA = 51, 8.0
_WEIGHT, _THRESHOLD = np.float32(0.5), np.float32(10.0)
_ZERO, _ONE, _MOST = np.float32(0), np.float32(1), np.float32(255)


@kernel
def _find_edges(image, blurred, mask):
    for k in range(image.shape[0]):
        mask[k] = _ONE if abs(image[k] - blurred[k]) * _MOST > _THRESHOLD else _ZERO


@kernel
def _blend(image, blurred, mask):
    for k in range(image.shape[0]):
        sharp = min(max(image[k] + _WEIGHT * (image[k] - blurred[k]), _ZERO), _ONE)
        image[k] = mask[k] * sharp + (_ONE - mask[k]) * image[k]


@kernel
def sharpen(image, channels, height, width, blurred, mask, weights, padded):
    """Sharpen an image in place, by `usm_sharp` of BasicSR with its default values.

    Args:
        image: float32 (channels * height * width,), values from 0 to 1.
        channels, height, width: Of it.
        blurred, mask: float32, as large as the image, scratch.
        weights, padded: Scratch of `blur`, for a kernel of SIZE.
    """
    separable = make_kernel(GAUSSIAN, SIZE, _SIGMA, _SIGMA, 0.0, 1.0, weights)
    blur(image, channels, height, width, SIZE, separable, weights, blurred, padded)
    _find_edges(image, blurred, mask)
    blur(mask, channels, height, width, SIZE, separable, weights, mask, padded)
    _blend(image, blurred, mask)
