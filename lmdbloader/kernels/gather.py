"""From the memory map to a batch: check, decompress and place the payloads of many samples in one call."""

from __future__ import annotations

import numba
import numpy as np

from lmdbloader.format import CODEC_LZ4, CODEC_RAW, CODEC_TILES
from lmdbloader.kernels._symbols import lz4_decompress, memcpy, xxh64

OK, OUT_OF_BOUNDS, BAD_CHECKSUM, BAD_LZ4, BAD_TILES, BAD_CODEC = 0, 1, 2, 3, 4, 5
TILE_ENTRY_NBYTES = 12


@numba.njit(nogil=True, cache=True)
def hash_many(data: np.ndarray, start: np.ndarray, nbytes: np.ndarray, out: np.ndarray) -> None:
    """Write XXH64 (seed 0) of data[start[i] : start[i] + nbytes[i]] into out[i] (uint64); the caller checks bounds."""
    base = data.ctypes.data
    for i in range(start.shape[0]):
        out[i] = xxh64(base + np.uint64(start[i]), np.uint64(nbytes[i]), np.uint64(0))


@numba.njit(nogil=True, cache=True, inline="always")
def _load(data, at, nbytes):
    """Return the little-endian unsigned integer of nbytes at data[at], which need not be aligned."""
    value = np.uint64(0)
    for k in range(nbytes):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@numba.njit(nogil=True, cache=True)
def read_window(
    data, at, nbytes, checksum, verify, height, width, channels, itemsize, tile, top, left, out, out_at, scratch
):
    """Copy a window of a tiled image into out as (C, h, w), reading and verifying only the tiles that it touches.

    Args:
        data: (n,) uint8, the mapped file.
        at, nbytes, checksum: The payload: where it starts, how long it is, XXH64 of its tile table.
        verify: Whether to check the table's and the tiles' checksums.
        height, width, channels, itemsize, tile: The stored image and its tiles' side, pixels and bytes.
        top, left: (t, b), (l, r): rows and columns of the window, inside the image.
        out, out_at: uint8 buffer and the position in it of the window's first byte.
        scratch: uint8, room for one decompressed tile.

    Returns:
        A status.
    """
    tiles_down = (height + tile - 1) // tile
    tiles_across = (width + tile - 1) // tile
    num_tiles = tiles_down * tiles_across
    table_nbytes = num_tiles * TILE_ENTRY_NBYTES
    if table_nbytes > nbytes:
        return BAD_TILES
    base = data.ctypes.data
    if verify and xxh64(base + np.uint64(at), np.uint64(table_nbytes), np.uint64(0)) != checksum:
        return BAD_CHECKSUM
    ends_at = at + num_tiles * 8
    body_at = at + table_nbytes
    body_nbytes = nbytes - table_nbytes
    t0, t1 = top
    l0, l1 = left
    out_row = (l1 - l0) * itemsize
    out_plane = (t1 - t0) * out_row
    for tile_row in range(t0 // tile, (t1 + tile - 1) // tile):
        y0 = tile_row * tile
        y1 = min(y0 + tile, height)
        for tile_column in range(l0 // tile, (l1 + tile - 1) // tile):
            x0 = tile_column * tile
            x1 = min(x0 + tile, width)
            number = tile_row * tiles_across + tile_column
            start = np.int64(_load(data, ends_at + 4 * (number - 1), 4)) if number else 0
            end = np.int64(_load(data, ends_at + 4 * number, 4))
            raw = (y1 - y0) * (x1 - x0) * channels * itemsize
            if start > end or end > body_nbytes or end - start > raw:
                return BAD_TILES
            source = base + np.uint64(body_at + start)
            if verify and xxh64(source, np.uint64(end - start), np.uint64(0)) != _load(data, at + 8 * number, 8):
                return BAD_CHECKSUM
            if end - start < raw:  # a tile as long as its pixels is stored raw
                if raw > scratch.shape[0]:
                    return BAD_TILES
                if lz4_decompress(source, scratch.ctypes.data, np.int32(end - start), np.int32(raw)) != raw:
                    return BAD_LZ4
                source = scratch.ctypes.data
            tile_line = (x1 - x0) * itemsize
            first, last = max(y0, t0), min(y1, t1)
            from_x, to_x = max(x0, l0), min(x1, l1)
            line = np.uint64((to_x - from_x) * itemsize)
            for c in range(channels):
                origin = out_at + c * out_plane + (from_x - l0) * itemsize
                for y in range(first, last):
                    inside = (c * (y1 - y0) + y - y0) * tile_line + (from_x - x0) * itemsize
                    target = out.ctypes.data + np.uint64(origin + (y - t0) * out_row)
                    memcpy(target, source + np.uint64(inside), line)
    return OK


@numba.njit(nogil=True, cache=True)
def _decode(data, i, columns, verify, geometry, tile, out, start, scratch):
    """Decode the payload of row i into out[start:]; see `gather`."""
    offset, stored, raw, checksum, codec = columns
    at, nbytes, want = np.int64(offset[i]), np.int64(stored[i]), np.int64(raw[i])
    if at < 0 or at + nbytes > data.shape[0] or start < 0 or start + want > out.shape[0]:
        return OUT_OF_BOUNDS
    if codec[i] == CODEC_TILES:
        height, width, channels, bits = geometry
        h, w = np.int64(height[i]), np.int64(width[i])
        if np.float64(h) * w * channels[i] * (bits[i] // 8) != want:  # what follows writes exactly that much
            return OUT_OF_BOUNDS
        return read_window(
            data, at, nbytes, checksum[i], verify, h, w, np.int64(channels[i]), np.int64(bits[i]) // 8,
            tile, (0, h), (0, w), out, start, scratch,
        )  # fmt: skip
    source = data.ctypes.data + np.uint64(at)
    target = out.ctypes.data + np.uint64(start)
    if verify and xxh64(source, np.uint64(nbytes), np.uint64(0)) != checksum[i]:
        return BAD_CHECKSUM
    if codec[i] == CODEC_RAW:
        if nbytes != want:
            return OUT_OF_BOUNDS
        memcpy(target, source, np.uint64(nbytes))
        return OK
    if codec[i] == CODEC_LZ4:
        return OK if lz4_decompress(source, target, np.int32(nbytes), np.int32(want)) == want else BAD_LZ4
    return BAD_CODEC


@numba.njit(nogil=True, cache=True)
def gather(data, rows, columns, verify, geometry, tile, out, out_start, scratch, failed):
    """Decode one payload of every row of `rows` into its place in `out`.

    Args:
        data: (n,) uint8, the mapped file.
        rows: (b,) int64 row numbers of the index, checked by the caller.
        columns: (offset, stored_nbytes, raw_nbytes, checksum, codec), columns of the index.
        verify: Whether to check XXH64 before anything is decompressed.
        geometry: (height, width, channels, bits), columns of the index; only read for tiled payloads.
        tile: Side of a tile in pixels.
        out: uint8 buffer; out_start: (b,) int64 position of each payload's raw bytes in it.
        scratch: uint8, room for one decompressed tile.
        failed: (1,) int64, set to the position in `rows` of the first failure.

    Returns:
        A status.
    """
    for j in range(rows.shape[0]):
        status = _decode(data, rows[j], columns, verify, geometry, tile, out, out_start[j], scratch)
        if status != OK:
            failed[0] = j
            return status
    return OK


@numba.njit(nogil=True, cache=True)
def gather_scaled(data, rows, columns, verify, geometry, tile, factor, pixels, out, scratch, failed):
    """Decode images of one shape and write them times `factor` into `out`, (b, values of one image) float32.

    Args:
        pixels: (values of one image,) uint8 or uint16, room for one decoded image; it stays in the processor's cache.
        factor: float32. The other arguments are those of `gather`.

    Returns:
        A status.
    """
    offset, stored, raw, checksum, codec = columns
    raw_pixels = pixels.view(np.uint8)
    for j in range(rows.shape[0]):
        i = rows[j]
        at, nbytes = np.int64(offset[i]), np.int64(stored[i])
        if codec[i] == CODEC_RAW and nbytes == raw[i] == pixels.shape[0] and 0 <= at <= data.shape[0] - nbytes:
            # 8-bit pixels that are stored as they are need no copy on their way.
            if verify and xxh64(data.ctypes.data + np.uint64(at), np.uint64(nbytes), np.uint64(0)) != checksum[i]:
                failed[0] = j
                return BAD_CHECKSUM
            scale_to_float32(data[at : at + nbytes], factor, out[j])
            continue
        status = _decode(data, i, columns, verify, geometry, tile, raw_pixels, 0, scratch)
        if status != OK:
            failed[0] = j
            return status
        scale_to_float32(pixels, factor, out[j])
    return OK


@numba.njit(nogil=True, cache=True)
def scale_to_float32(pixels, factor, out):
    """Write pixels (n,) uint8 or uint16 times factor into out (n,) float32."""
    for i in range(pixels.shape[0]):
        out[i] = np.float32(pixels[i]) * factor
