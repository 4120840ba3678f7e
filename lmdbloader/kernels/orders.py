"""Kernels that shuffle, with random numbers that depend only on seed, epoch and position."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.philox import ORDER_STREAM, below, philox


@kernel
def shuffle(values, seed, epoch, purpose, number):
    """Put values into a uniformly random order (Fisher and Yates, from the end).

    Args:
        values: (n,) int64, changed.
        seed, epoch: uint64.
        purpose, number: uint64; each shuffle of an epoch needs its own pair.
    """
    for i in range(values.shape[0] - 1, 0, -1):
        word = philox(seed, ORDER_STREAM, np.uint64(i), epoch, purpose, number)[0]
        j = below(word, i + 1)
        values[i], values[j] = values[j], values[i]


@kernel
def shuffle_parts(values, bounds, seed, epoch, purpose):
    """Shuffle each values[bounds[k] : bounds[k + 1]] on its own."""
    for k in range(bounds.shape[0] - 1):
        shuffle(values[bounds[k] : bounds[k + 1]], seed, epoch, purpose, np.uint64(k))
