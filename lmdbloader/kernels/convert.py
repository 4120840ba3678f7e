"""Whole batches of pixels to other number types, in one pass."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def scale_to_float32(pixels: np.ndarray, factor: np.float32, out: np.ndarray) -> None:
    """Write pixels (n,) uint8 or uint16 times factor into out (n,) float32."""
    for i in range(pixels.shape[0]):
        out[i] = np.float32(pixels[i]) * factor
