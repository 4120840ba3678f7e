"""From the data file to bytes: check and decompress the payloads of many samples in one call."""

from __future__ import annotations

import numpy as np

from lmdbloader.base.clock_words import FUNCTION
from lmdbloader.kernels.decode import OK, OUT_OF_BOUNDS, decode_block, decode_jpeg, decode_tiles, is_jpeg, is_tiled
from lmdbloader.kernels.jpeg.workspace import jpeg_room
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.presence import look
from lmdbloader.kernels.runtime.symbols import xxh64
from lmdbloader.kernels.runtime.timing import tick


@kernel
def hash_many(data: np.ndarray, start: np.ndarray, nbytes: np.ndarray, out: np.ndarray) -> None:
    """Write XXH64 (seed 0) of data[start[i] : start[i] + nbytes[i]] into out[i] (uint64); the caller checks bounds."""
    base = data.ctypes.data
    for i in range(start.shape[0]):
        out[i] = xxh64(base + np.uint64(start[i]), np.uint64(nbytes[i]), np.uint64(0))


@kernel
def read_window(file, at, nbytes, checksum, verify, image, tile, window, out, room, scratch):
    """Write a window of a tiled image into out (bytes of the window,) uint8 as (C, h, w).

    Args:
        file, at, nbytes, checksum, verify, image, tile, window: As in `decode_tiles`.
        out: uint8, at least the window's bytes.
        room: uint8, the payload's bytes where the file is read by its descriptor.
        scratch: uint8, one tile's bytes.

    Returns:
        A status.
    """
    tiles_nbytes = tile * tile * image[2] * image[3]
    window_nbytes = (window[1] - window[0]) * (window[3] - window[2]) * image[2] * image[3]
    if scratch.shape[0] < tiles_nbytes or out.shape[0] < window_nbytes:
        return OUT_OF_BOUNDS
    look(file[3])
    return decode_tiles(
        file, at, nbytes, checksum, verify, image, tile, window,
        np.int64(out.ctypes.data), np.int64(room.ctypes.data), np.int64(scratch.ctypes.data),
    )  # fmt: skip


@kernel
def read_jpeg_window(file, at, nbytes, checksum, verify, image, window, out, room, work):
    """Write a window of a JPEG into out (bytes of the window,) uint8 as (C, h, w).

    Args:
        file, at, nbytes, checksum, verify, image, window: As in `decode_jpeg`.
        out: uint8, at least the window's bytes.
        room: uint8, the payload's bytes where the file is read by its descriptor.
        work: uint8, `jpeg_room` bytes.

    Returns:
        A status.
    """
    window_nbytes = (window[1] - window[0]) * (window[3] - window[2]) * image[2]
    if out.shape[0] < window_nbytes or work.shape[0] < jpeg_room(nbytes, image[0], image[1]):
        return OUT_OF_BOUNDS
    look(file[3])
    return decode_jpeg(
        file, at, nbytes, checksum, verify, image, window,
        np.int64(out.ctypes.data), np.int64(room.ctypes.data), np.int64(work.ctypes.data),
    )  # fmt: skip


@kernel
def gather(file, rows, columns, verify, geometry, tile, out, out_start, room, scratch, work, failed):
    """Decode one payload of every row of `rows` into its place in `out`.

    Args:
        file: (address of the map, its bytes, file descriptor, guard, clock), see `fetch`.
        rows: (b,) int64 row numbers of the index, checked by the caller.
        columns: (offset, stored_nbytes, raw_nbytes, checksum, codec), columns of the index.
        verify: Whether to check XXH64 before anything is decompressed.
        geometry: (height, width, channels, bits), columns of the index; only read for tiled and JPEG payloads.
        tile: Side of a tile in pixels.
        out: uint8 buffer; out_start: (b,) int64 position of each payload's raw bytes in it.
        room: uint8, the longest stored payload where the file is read by its descriptor.
        scratch: uint8, room for one decompressed tile.
        work: uint8, `jpeg_room` bytes for every JPEG among them.
        failed: (1,) int64, set to the position in `rows` of the first failure.

    Returns:
        A status.
    """
    offset, stored, raw, checksum, codec = columns
    height, width, channels, bits = geometry
    tick(file[4], FUNCTION)
    look(file[3])
    for j in range(rows.shape[0]):
        failed[0] = j
        i = rows[j]
        at, nbytes, want, start = np.int64(offset[i]), np.int64(stored[i]), np.int64(raw[i]), out_start[j]
        if start < 0 or start + want > out.shape[0] or (file[2] >= 0 and nbytes > room.shape[0]):
            return OUT_OF_BOUNDS
        target = np.int64(out.ctypes.data) + start
        if is_tiled(codec[i]):
            h, w, c, itemsize = np.int64(height[i]), np.int64(width[i]), np.int64(channels[i]), np.int64(bits[i]) // 8
            # What follows writes exactly that much.
            if np.float64(h) * w * c * itemsize != want or scratch.shape[0] < tile * tile * c * itemsize:
                return OUT_OF_BOUNDS
            status = decode_tiles(
                file, at, nbytes, checksum[i], verify, (h, w, c, itemsize), tile, (np.int64(0), h, np.int64(0), w),
                target, np.int64(room.ctypes.data), np.int64(scratch.ctypes.data),
            )  # fmt: skip
        elif is_jpeg(codec[i]):
            h, w, c = np.int64(height[i]), np.int64(width[i]), np.int64(channels[i])
            if np.float64(h) * w * c != want or bits[i] != 8 or work.shape[0] < jpeg_room(nbytes, h, w):
                return OUT_OF_BOUNDS
            status = decode_jpeg(
                file, at, nbytes, checksum[i], verify, (h, w, c), (np.int64(0), h, np.int64(0), w), target,
                np.int64(room.ctypes.data), np.int64(work.ctypes.data),
            )  # fmt: skip
        else:
            status = decode_block(
                file, at, nbytes, want, checksum[i], codec[i], verify, target, np.int64(room.ctypes.data)
            )
        if status != OK:
            return status
    return OK
