"""Downscaling by an integer in exact integer arithmetic, and the squared error between two images."""

import numpy as np

from lmdbloader.kernels.runtime.compile import kernel


@kernel
def _add_four(acc, a, b, c, d, weight_a, weight_b, weight_c, weight_d):
    """Add four weighted rows to acc; each pass over acc is long and contiguous, so it is vectorized."""
    kind = acc.dtype.type
    for i in range(acc.size):
        acc[i] += weight_a * kind(a[i]) + weight_b * kind(b[i]) + weight_c * kind(c[i]) + weight_d * kind(d[i])


@kernel
def _divide_into(acc, divisor, shift, top, out):
    """Write acc / divisor, clipped to [0, top], into out; acc already holds the half divisor that rounds it.

    shift is the divisor's logarithm where it is a power of two, else -1. A float64 quotient is exact here: adding a
    quarter keeps it at least 0.25 / divisor away from any integer, far more than its rounding error.
    """
    kind = acc.dtype.type
    if shift >= 0:
        for i in range(out.size):
            out[i] = min(max(acc[i] >> shift, kind(0)), top)
    else:
        inverse = 1.0 / divisor
        for i in range(out.size):
            out[i] = min(kind((np.float64(max(acc[i], kind(0))) + 0.25) * inverse), top)


@kernel
def downscale(src, row_at, weights, sample_at, offset_at, divisor, shift, top, acc, row, phases, out):
    """Filter and decimate rows, then columns, rounding half up and clipping after each.

    Args:
        src: (height, width * channels) uint8 or uint16.
        row_at: (out height, taps) int64: the source row of every tap; the number of taps is a multiple of four.
        weights: (taps,) integers of acc's type; they sum to divisor.
        sample_at: (phases.size,) int64: which sample of a row goes to each place of phases, so that the samples that a
            tap meets along a row are next to each other.
        offset_at: (taps,) int64: where in phases the samples of every tap start.
        divisor: Sum of the weights, of acc's type.
        shift: Logarithm of the divisor if it is a power of two, else -1; of acc's type.
        top: Largest sample, of acc's type.
        acc: Scratch, (width * channels,) int32 or int64, wide enough for top * sum(abs(weights)) + divisor.
        row: Scratch, (width * channels,) of src's type.
        phases: Scratch, one-dimensional, of src's type.
        out: (out height, out width * channels) of src's type, that is filled.
    """
    width = out.shape[1]
    half = divisor // 2
    for y in range(out.shape[0]):
        for i in range(acc.size):
            acc[i] = half
        for tap in range(0, weights.size, 4):
            _add_four(
                acc,
                src[row_at[y, tap]],
                src[row_at[y, tap + 1]],
                src[row_at[y, tap + 2]],
                src[row_at[y, tap + 3]],
                weights[tap],
                weights[tap + 1],
                weights[tap + 2],
                weights[tap + 3],
            )
        _divide_into(acc, divisor, shift, top, row)
        for i in range(phases.size):
            phases[i] = row[sample_at[i]]
        for i in range(width):
            acc[i] = half
        for tap in range(0, weights.size, 4):
            _add_four(
                acc[:width],
                phases[offset_at[tap] :],
                phases[offset_at[tap + 1] :],
                phases[offset_at[tap + 2] :],
                phases[offset_at[tap + 3] :],
                weights[tap],
                weights[tap + 1],
                weights[tap + 2],
                weights[tap + 3],
            )
        _divide_into(acc[:width], divisor, shift, top, out[y])


@kernel
def squared_error(a, b):
    """Return the sum of squared differences of two one-dimensional uint8 or uint16 arrays of one size, as int64."""
    total = np.int64(0)
    for i in range(a.size):
        difference = np.int64(a[i]) - np.int64(b[i])
        total += difference * difference
    return total
