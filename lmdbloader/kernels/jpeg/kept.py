"""A decoded image that stays in memory: of a JPEG the planes of all scales, used again as if they were just decoded.

An image is a block of int64 words, and pixels or planes after them. The first word has the bytes of the pixels, 0 for
planes. Then come the orientation, the file's head, and the scales, whose addresses are those of the block's own planes.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.assemble_columns import KEPT_AT
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg import workspace as space
from lmdbloader.kernels.jpeg.decode import decode_planes, stored_shape, want, want_nothing
from lmdbloader.kernels.jpeg.seek import orientation_of
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i64_at
from lmdbloader.kernels.runtime.symbols import memcpy

_ORIENTATION, _HEAD = 1, 2
_SCALES = _HEAD + facts.HEAD_WORDS
_WORDS = _SCALES + space.FREE
# Vectors may be read past the end of the last plane.
_SLACK = 64


@kernel
def decode_whole(payload, nbytes, image, work):
    """Decode all planes of a JPEG at all scales; return the bytes of its block, 0 if it is damaged.

    Args:
        payload, nbytes: Address of the payload and its length.
        image: (height, width, channels) of the upright image.
        work: Address of `jpeg_room` bytes.
    """
    stored = stored_shape(image, orientation_of(payload, nbytes))
    want_nothing(work)
    for exponent in range(space.NUM_SCALES):
        want(work, exponent, (np.int64(0), stored[0]), (np.int64(0), stored[1]))
    if not decode_planes(payload, nbytes, work, stored):
        return np.int64(0)
    return _copy_planes(work, np.uint64(0))


@kernel
def keep_planes(payload, nbytes, work, block):
    """Fill a block, an address of as many bytes as `decode_whole` has returned, with the planes that it decoded."""
    words, head = i64_at(block, _WORDS), i64_at(work, facts.HEAD_WORDS)
    words[0], words[_ORIENTATION] = 0, orientation_of(payload, nbytes)
    for k in range(facts.HEAD_WORDS):
        words[_HEAD + k] = head[k]
    _copy_planes(work, block)


@kernel
def _copy_planes(work, block):
    """Copy scales and planes of the scratch into a block, unless it is 0; return its bytes."""
    head, scales = i64_at(work, facts.HEAD_WORDS), i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    at, color_at, color_size = np.int64(KEPT_AT), np.int64(0), np.int64(0)
    for exponent in range(space.NUM_SCALES):
        s = space.SCALE_WORDS * exponent
        plane, color = scales[s + space.PLANE], scales[s + space.COLOR]
        plane_at, row, color_row = at, scales[s + space.ROW], scales[s + space.COLOR_ROW]
        at += _copy_rows(plane, (color - plane) // row, row, block, at)
        # Colour with half the samples is the same at the first two scales.
        if head[facts.COMPONENTS] == 3 and scales[s + space.COLOR_SIZE] != color_size:
            color_at, color_size = at, scales[s + space.COLOR_SIZE]
            at += _copy_rows(color, 2 * (scales[s + space.COLOR_PLANE] // color_row), color_row, block, at)
        if block:
            words = i64_at(block + np.uint64(8 * (_SCALES + s)), space.SCALE_WORDS)
            for k in range(space.SCALE_WORDS):
                words[k] = scales[s + k]
            words[space.PLANE], words[space.ROW] = np.int64(block) + plane_at, row - space.PLANE_SLACK
            words[space.COLOR], words[space.COLOR_ROW] = np.int64(block) + color_at, color_row - space.PLANE_SLACK
            words[space.COLOR_PLANE] = scales[s + space.COLOR_PLANE] // color_row * (color_row - space.PLANE_SLACK)
    return at + _SLACK


@kernel
def _copy_rows(source, num_rows, row, block, at):
    """Copy rows at an address, without the slack behind each, to a place in a block, unless it is 0; return bytes."""
    nbytes = row - space.PLANE_SLACK
    for y in range(num_rows if block else 0):
        memcpy(block + np.uint64(at + y * nbytes), np.uint64(source + y * row), np.uint64(nbytes))
    return num_rows * nbytes


@kernel
def kept_orientation(block):
    """Return the orientation, 1 to 8, of the image in a block with planes."""
    return i64_at(block, _WORDS)[_ORIENTATION]


@kernel
def use_planes(block, work, image):
    """Prepare the scratch as `decode_planes` does, with the planes of a block.

    Args:
        block: Address of it.
        work: Address of `jpeg_room` bytes.
        image: (height, width, components) that the file must have had.

    Returns:
        Whether it is that image.
    """
    words, head = i64_at(block, _WORDS), i64_at(work, facts.HEAD_WORDS)
    scales = i64_at(work + np.uint64(space.SCALES_AT), space.FREE + 1)
    for k in range(facts.HEAD_WORDS):
        head[k] = words[_HEAD + k]
    for k in range(space.FREE):
        scales[k] = words[_SCALES + k]
    scales[space.FREE] = space.lines_at(work, np.int64(0)) + np.uint64(16 * (image[1] + 128))
    return head[facts.HEIGHT] == image[0] and head[facts.WIDTH] == image[1] and head[facts.COMPONENTS] == image[2]
