"""A window of one image, decoded by the kernel that decodes payloads."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmdbloader.kernels.entries import gather


def read_window(
    file: tuple[int, int, int, int, int], at: int, nbytes: int, checksum: Any, codec: Any, verify: bool,
    image: tuple[int, int, int, int], tile: int, window: tuple[int, int, int, int], out: np.ndarray, room: np.ndarray,
    tile_room: np.ndarray, work: np.ndarray,
) -> int:  # fmt: skip
    """Write a window (top, bottom, left, right) of an image (height, width, channels, bytes of a value) into `out`.

    The other arguments are those of `gather`, for one row. Returns its status.
    """
    height, width, channels, itemsize = image
    top, bottom, left, right = window
    raw, wanted = (h * w * channels * itemsize for h, w in ((height, width), (bottom - top, right - left)))
    columns = (
        np.array([at], np.int64), np.array([nbytes], np.uint32), np.array([raw], np.uint32),
        np.array([checksum], np.uint64), np.array([codec], np.uint8),
    )  # fmt: skip
    sizes = np.array([height], np.uint32), np.array([width], np.uint32)
    kinds = np.array([channels], np.uint8), np.array([8 * itemsize], np.uint8)
    first = np.zeros(1, np.int64)
    status: int = gather(
        file, first, columns, verify, (*sizes, *kinds), tile, np.array([window], np.int64), out, first,
        np.array([wanted], np.int64), room, tile_room, work, first.copy(),
    )  # fmt: skip
    return status
