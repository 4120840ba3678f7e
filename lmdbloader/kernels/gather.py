"""Kernels that verify and decode the payloads of many samples in one call."""

from __future__ import annotations

import numpy as np

from lmdbloader.base.clock_words import FUNCTION
from lmdbloader.kernels.codec_numbers import CHANGED, OK, OUT_OF_BOUNDS
from lmdbloader.kernels.decode import decode_block, decode_window, fetch, has_room, has_windows
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.presence import look
from lmdbloader.kernels.runtime.timing import tick
from lmdbloader.kernels.runtime.xxhash import xxh3


@kernel
def hash_many(data: np.ndarray, start: np.ndarray, nbytes: np.ndarray, out: np.ndarray) -> None:
    """Write XXH3 of data[start[i] : start[i] + nbytes[i]] into out[i] (uint64); the caller checks bounds."""
    base = data.ctypes.data
    for i in range(start.shape[0]):
        out[i] = xxh3(base + np.uint64(start[i]), np.uint64(nbytes[i]))


@kernel
def hash_pieces(file, start, nbytes, home, out):
    """Write XXH3 of each of some pieces of a file.

    Args:
        file: As in `gather`.
        start, nbytes: (n,) int64, which bytes.
        home: Address of the file's bytes in memory, into which a descriptor's are read.
        out: (n,) uint64.

    Returns:
        How many pieces could be read; fewer than n if one could not.
    """
    _, _, _, guard, _ = file
    look(guard)
    for i in range(start.shape[0]):
        address = fetch(file, start[i], nbytes[i], home + start[i], True)
        if address == 0:
            return np.int64(i)
        out[i] = xxh3(address, np.uint64(nbytes[i]))
    return np.int64(start.shape[0])


@kernel
def gather(
    file, rows, columns, verify, geometry, tile, windows, out, out_start, out_nbytes, room, scratch, work, failed
):
    """Decode one payload of every row of `rows`, or a window of it, into its place in `out`.

    Somebody may write into the index meanwhile: each number of it is read once, and then compared with the rooms.

    Args:
        file: (address of the map, its bytes, file descriptor, guard, clock), see `fetch`.
        rows: (b,) int64 row numbers of the index, checked by the caller.
        columns: (offset, stored_nbytes, raw_nbytes, checksum, codec), columns of the index.
        verify: Whether to verify XXH3 before anything is decompressed.
        geometry: (height, width, channels, bits), columns of the index; read only if `has_windows` is true of a codec.
        tile: Side of a tile in pixels.
        windows: (b, 4) int64 top, bottom, left and right of each; (0, 4) for whole payloads.
        out: uint8 buffer; out_start, out_nbytes: (b,) int64 position and length of each payload's raw bytes in it.
        room: uint8, the bytes of the longest stored payload if the file is read by its descriptor.
        scratch: uint8, the bytes of one decompressed tile.
        work: uint8, `jpeg_room` bytes for every JPEG among them.
        failed: (1,) int64, set to the position in `rows` of the first failure.

    Returns:
        A status.
    """
    offset, stored, raw, checksum, codec = columns
    height, width, channels, bits = geometry
    _, _, descriptor, guard, clock = file
    tick(clock, FUNCTION)
    look(guard)
    for j in range(rows.shape[0]):
        failed[0] = j
        i = rows[j]
        at, nbytes, want, start = np.int64(offset[i]), np.int64(stored[i]), np.int64(raw[i]), out_start[j]
        kind = codec[i]
        if start < 0 or out_nbytes[j] > out.shape[0] - start:
            return OUT_OF_BOUNDS
        if descriptor != -1 and nbytes > room.shape[0]:
            return CHANGED
        target = np.int64(out.ctypes.data) + start
        if has_windows(kind):
            h, w = np.int64(height[i]), np.int64(width[i])
            image = h, w, np.int64(channels[i]), np.int64(bits[i]) // 8
            if not has_room(kind, nbytes, want, image, tile, scratch.shape[0], work.shape[0]):
                return CHANGED
            window = np.int64(0), h, np.int64(0), w
            if windows.shape[0]:
                window = windows[j, 0], windows[j, 1], windows[j, 2], windows[j, 3]
            top, bottom, left, right = window
            # The numbers of a window have been checked, but for another size of the image.
            if bottom > h or right > w or (bottom - top) * (right - left) * image[2] * image[3] != out_nbytes[j]:
                return CHANGED
            status = decode_window(
                file, at, nbytes, checksum[i], kind, verify, image, tile, window, target,
                (np.int64(room.ctypes.data), np.int64(scratch.ctypes.data), np.int64(work.ctypes.data)),
            )  # fmt: skip
        elif windows.shape[0] or want != out_nbytes[j]:
            return CHANGED
        else:
            status = decode_block(file, at, nbytes, want, checksum[i], kind, verify, target, np.int64(room.ctypes.data))
        if status != OK:
            return status
    return OK
