"""A JPEG decoded in a block of memory that stays: the planes of all scales, used again as if they were just decoded.

A block begins with int64 words: 0 (where other images have the bytes of their pixels), the orientation, the file's
head, and the scales, whose addresses are those of the planes in the block.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.decode import decode_planes, stored_shape, want, want_nothing
from lmdbloader.kernels.jpeg.seek import orientation_of
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at
from lmdbloader.kernels.runtime.symbols import memcpy

_HEAD = 2
_SCALES = _HEAD + facts.HEAD_WORDS
_PLANES_AT = (8 * (_SCALES + space.FREE) + 63) // 64 * 64
# Vectors may be read past the end of the last plane.
_SLACK = 64


@kernel
def keep_jpeg(payload, nbytes, image, work, block):
    """Decode all planes of a JPEG; or copy what this has decoded.

    Args:
        payload, nbytes: Address of the payload and its length.
        image: (height, width, channels) of the upright image.
        work: Address of `jpeg_room` bytes.
        block: Address of as many bytes as the first call has returned, to copy; 0 to decode.

    Returns:
        The bytes of the block; 0 if the JPEG is damaged.
    """
    orientation = orientation_of(payload, nbytes)
    head, scales = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    if block == 0:
        height, width, _ = stored = stored_shape(image, orientation)
        want_nothing(work)
        for exponent in range(space.NUM_SCALES):
            want(work, exponent, (np.int64(0), height), (np.int64(0), width))
        if not decode_planes(payload, nbytes, work, stored):
            return np.int64(0)
    else:
        words = i64_at(block, _SCALES)
        words[0], words[1] = 0, orientation
        for k in range(facts.HEAD_WORDS):
            words[_HEAD + k] = head[k]
    at, color_at, color_size = np.int64(_PLANES_AT), np.int64(0), np.int64(0)
    for exponent in range(space.NUM_SCALES):
        s = space.SCALE_WORDS * exponent
        plane, row, plane_at = scales[s + space.PLANE], scales[s + space.ROW], at
        color, color_row, num_rows = scales[s + space.COLOR], scales[s + space.COLOR_ROW], scales[s + space.COLOR_PLANE]
        num_rows //= color_row
        at += _copy_rows(plane, (color - plane) // row, row, block, at)
        # Color with half the samples is the same at the first two scales.
        if head[facts.COMPONENTS] == 3 and scales[s + space.COLOR_SIZE] != color_size:
            color_at, color_size = at, scales[s + space.COLOR_SIZE]
            at += _copy_rows(color, 2 * num_rows, color_row, block, at)
        if block:
            words = i64_at(block + np.uint64(8 * (_SCALES + s)), space.SCALE_WORDS)
            for k in range(space.SCALE_WORDS):
                words[k] = scales[s + k]
            words[space.PLANE], words[space.COLOR] = np.int64(block) + plane_at, np.int64(block) + color_at
            words[space.ROW], words[space.COLOR_ROW] = row - space.PLANE_SLACK, color_row - space.PLANE_SLACK
            words[space.COLOR_PLANE] = num_rows * (color_row - space.PLANE_SLACK)
    return at + _SLACK


@kernel
def _copy_rows(source, num_rows, row, block, at):
    """Copy rows without the slack behind each to a place in a block, unless it is 0; return their bytes."""
    nbytes = row - space.PLANE_SLACK
    for y in range(num_rows if block else 0):
        memcpy(block + np.uint64(at + y * nbytes), np.uint64(source + y * row), np.uint64(nbytes))
    return num_rows * nbytes


@kernel
def use_planes(block, work, image):
    """Do as `decode_planes` does, with the planes of a block; return whether it has an image of these sizes."""
    head, scales = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    words = i64_at(block, _SCALES + space.FREE)
    for k in range(facts.HEAD_WORDS):
        head[k] = words[_HEAD + k]
    for k in range(space.FREE):
        scales[k] = words[_SCALES + k]
    scales[space.FREE] = space.lines_at(work, np.int64(0)) + np.uint64(16 * (image[1] + 128))
    return head[facts.HEIGHT] == image[0] and head[facts.WIDTH] == image[1] and head[facts.COMPONENTS] == image[2]
