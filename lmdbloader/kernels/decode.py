"""Kernels that fetch, verify and decode one payload: the one place where a codec's number leads to its decoder."""

from __future__ import annotations

import numpy as np

from lmdbloader.base.clock_words import DECODE, VERIFY
from lmdbloader.kernels import codec_numbers as num
from lmdbloader.kernels.delta.decode import delta_decompress
from lmdbloader.kernels.jpeg.decode import decode_pixels
from lmdbloader.kernels.jpeg.seek import orientation_of
from lmdbloader.kernels.jpeg.workspace import jpeg_room
from lmdbloader.kernels.lz4 import lz4_decompress
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.guard_words import BY_DIRECTORY
from lmdbloader.kernels.runtime.memory import copy_line, load_u32, load_u64
from lmdbloader.kernels.runtime.presence import file_of, is_there
from lmdbloader.kernels.runtime.symbols import memcpy, pread
from lmdbloader.kernels.runtime.timing import tick, tick_read
from lmdbloader.kernels.runtime.xxhash import xxh3, xxh3_copy

# No payload is as long: products of an image's sizes that are below are exact, and do not wrap around.
_MOST_NBYTES = 2**31


@kernel
def fetch(file, at, nbytes, room, is_whole):
    """Return the address of stored bytes; 0 if the file does not have them.

    Args:
        file: (address of the map, its bytes, file descriptor, guard, clock). The map is read if the descriptor is -1;
            if it is BY_DIRECTORY, the guard is a directory with the descriptors of several files. For the guard see
            `is_there` (0: memory that cannot fail), for the clock `tick`.
        at, nbytes: Which bytes.
        room: Address of nbytes, into which a descriptor's bytes are read.
        is_whole: Whether the caller reads all of them.
    """
    base, size, descriptor, guard, clock = file
    if at < 0 or nbytes < 0 or at > size - nbytes:
        return np.uint64(0)
    if descriptor == -1:
        if guard != 0 and not is_there(guard, base, at, nbytes):
            return np.uint64(0)
        tick_read(clock, base + at, nbytes, True, is_whole)
        return np.uint64(base) + np.uint64(at)
    if descriptor == BY_DIRECTORY:
        descriptor, begin = file_of(guard, at, nbytes)
        if descriptor < 0:
            return np.uint64(0)
        at -= begin
    done = np.int64(0)
    while done < nbytes:
        count = pread(np.int32(descriptor), np.uint64(room + done), np.uint64(nbytes - done), np.int64(at + done))
        if count <= 0:
            return np.uint64(0)
        done += count
    tick_read(clock, room, nbytes, False, True)
    return np.uint64(room)


@kernel
def is_intact(address, nbytes, checksum, clock):
    """Return whether XXH3 of the bytes at an address is the checksum; clock: see `tick`."""
    found = xxh3(np.uint64(address), np.uint64(nbytes))
    tick(clock, VERIFY)
    return found == checksum


@kernel
def _entry(group, number):
    """Return a tile's (start, end, XXH3) from its group of a table: the first one's start, then (sum, end) of each."""
    at = group + np.uint64(num.TILE_ENTRY_NBYTES * (number % num.TILES_IN_GROUP))
    end = load_u32(at + np.uint64(num.TILE_ENTRY_NBYTES))
    return np.int64(load_u32(at)), np.int64(end), load_u64(at + np.uint64(num.FIRST_START_NBYTES))


@kernel
def _unpack(codec, source, nbytes, out, raw):
    """Decompress `nbytes` at one address to `raw` bytes at another; return a status."""
    if codec == num.CODEC_DELTA:
        return num.OK if delta_decompress(source, np.uint64(out), nbytes, raw) == raw else num.BAD_DELTA
    if codec == num.CODEC_LZ4:
        return num.OK if lz4_decompress(source, np.uint64(out), nbytes, raw) == raw else num.BAD_LZ4
    return num.BAD_CODEC


@kernel
def decode_tiles(file, at, nbytes, checksum, codec, verify, image, tile, window, out, room, scratch):
    """Write a window of a tiled image as (C, h, w), reading and verifying only the tiles that it touches.

    Of the tile table, it reads and verifies the sums of all groups and the groups of these tiles.

    Args:
        file: See `fetch`.
        at, nbytes, checksum: The payload: its first byte, its length, XXH3 of its groups' sums.
        codec: One of `TILED`.
        verify: Whether to verify the checksums of the table and the tiles.
        image: (height, width, channels, bytes of a value) of the stored image; the window is inside it.
        tile: Side of a tile in pixels.
        window: (top, bottom, left, right).
        out: Address of the window's first byte; the caller has room for it.
        room: Address of nbytes, used only if the file is read by its descriptor.
        scratch: Address of one tile's bytes.

    Returns:
        A status.
    """
    _, size, _, _, clock = file
    height, width, channels, itemsize = image
    top, bottom, left, right = window
    tiles_down = (height + tile - 1) // tile
    tiles_across = (width + tile - 1) // tile
    num_tiles = tiles_down * tiles_across
    head_nbytes = (num_tiles + num.TILES_IN_GROUP - 1) // num.TILES_IN_GROUP * num.GROUP_SUM_NBYTES
    table_nbytes = head_nbytes + num.FIRST_START_NBYTES + num_tiles * num.TILE_ENTRY_NBYTES
    if at < 0 or at > size - nbytes:
        return num.OUT_OF_BOUNDS
    if table_nbytes > nbytes:
        return num.BAD_TILES
    address = fetch(file, at, head_nbytes, room, True)
    if address == 0:
        return num.OUT_OF_BOUNDS
    if verify and not is_intact(address, head_nbytes, checksum, clock):
        return num.BAD_CHECKSUM
    head = group = address
    last_group = np.int64(-1)
    body_at = at + table_nbytes
    body_nbytes = nbytes - table_nbytes
    out_row = (right - left) * itemsize
    out_plane = (bottom - top) * out_row
    for tile_row in range(top // tile, (bottom + tile - 1) // tile):
        y0 = tile_row * tile
        y1 = min(y0 + tile, height)
        for tile_column in range(left // tile, (right + tile - 1) // tile):
            x0 = tile_column * tile
            x1 = min(x0 + tile, width)
            number = tile_row * tiles_across + tile_column
            if number // num.TILES_IN_GROUP != last_group:  # numbers only grow, so a group is read once
                last_group = number // num.TILES_IN_GROUP
                first = last_group * num.TILES_IN_GROUP
                count = min(num.TILES_IN_GROUP, num_tiles - first)
                group_at = head_nbytes + first * num.TILE_ENTRY_NBYTES
                group_nbytes = count * num.TILE_ENTRY_NBYTES + num.FIRST_START_NBYTES
                address = fetch(file, at + group_at, group_nbytes, room + group_at, True)
                if address == 0:
                    return num.OUT_OF_BOUNDS
                group_sum = load_u64(head + np.uint64(last_group * num.GROUP_SUM_NBYTES))
                if verify and not is_intact(address, group_nbytes, group_sum, clock):
                    return num.BAD_CHECKSUM
                group = address
            start, end, tile_sum = _entry(group, number)
            raw = (y1 - y0) * (x1 - x0) * channels * itemsize
            if start > end or end > body_nbytes or end - start > raw:
                return num.BAD_TILES
            source = fetch(file, body_at + start, end - start, room + table_nbytes, True)
            if source == 0:
                return num.OUT_OF_BOUNDS
            if verify and not is_intact(source, end - start, tile_sum, clock):
                return num.BAD_CHECKSUM
            if end - start < raw:  # a tile as long as its pixels is stored raw
                kind = num.CODEC_DELTA if codec == num.CODEC_DELTA_TILES else num.CODEC_LZ4
                status = _unpack(kind, source, end - start, scratch, raw)
                if status:
                    return status
                source = np.uint64(scratch)
            tile_line = (x1 - x0) * itemsize
            from_y, to_y = max(y0, top), min(y1, bottom)
            from_x, to_x = max(x0, left), min(x1, right)
            line = (to_x - from_x) * itemsize
            for c in range(channels):
                origin = out + c * out_plane + (from_x - left) * itemsize
                for y in range(from_y, to_y):
                    inside = (c * (y1 - y0) + y - y0) * tile_line + (from_x - x0) * itemsize
                    copy_line(source + np.uint64(inside), np.uint64(origin + (y - top) * out_row), line)
            tick(clock, DECODE)
    return num.OK


@kernel
def decode_block(file, at, nbytes, raw, checksum, codec, verify, out, room):
    """Write all raw bytes of a payload whose codec decodes whole payloads only.

    Args:
        file, at, nbytes, checksum, verify: As in `decode_tiles`; the checksum is of the whole payload.
        raw: Bytes when decoded; the caller has room for them at `out`, an address.
        codec: Number of the codec.
        room: Address of nbytes, used only if the file is read by its descriptor.

    Returns:
        A status.
    """
    _, _, _, _, clock = file
    source = fetch(file, at, nbytes, room, True)
    if source == 0:
        return num.OUT_OF_BOUNDS
    if codec == num.CODEC_RAW:
        if nbytes != raw:
            return num.OUT_OF_BOUNDS
        if not verify:
            memcpy(np.uint64(out), source, np.uint64(nbytes))
            tick(clock, DECODE)
            return num.OK
        # The copy is verified: a file that is written to meanwhile is found out.
        found = xxh3_copy(source, np.uint64(out), np.uint64(nbytes), False)
        tick(clock, DECODE)
        return num.OK if found == checksum else num.BAD_CHECKSUM
    if verify and not is_intact(source, nbytes, checksum, clock):
        return num.BAD_CHECKSUM
    status = _unpack(codec, source, nbytes, out, raw)
    tick(clock, DECODE)
    return status


@kernel
def decode_jpeg(file, at, nbytes, checksum, verify, image, window, out, room, work):
    """Write a window of a JPEG payload's upright image as (C, h, w), decoding no more of the file than necessary.

    Args:
        file, at, nbytes, checksum, verify: As in `decode_block`.
        image: (height, width, channels) of the upright image.
        window: (top, bottom, left, right), inside it.
        out: Address of the window's first byte; the caller has room for it.
        room: Address of nbytes, used only if the file is read by its descriptor.
        work: Address of `jpeg_room` bytes.

    Returns:
        A status.
    """
    status, source, _ = fetch_jpeg(file, at, nbytes, checksum, verify, room)
    if status:
        return status
    fine = decode_pixels(source, nbytes, image, window, np.uint64(out), np.uint64(work))
    tick(file[4], DECODE)
    return num.OK if fine else num.BAD_JPEG


@kernel
def fetch_jpeg(file, at, nbytes, checksum, verify, room):
    """Return (a status, the address of a payload, the orientation of its image), see `decode_jpeg`."""
    source = fetch(file, at, nbytes, room, verify)
    if source == 0:
        return num.OUT_OF_BOUNDS, source, np.int64(1)
    if verify and not is_intact(source, nbytes, checksum, file[4]):
        return num.BAD_CHECKSUM, source, np.int64(1)
    return num.OK, source, orientation_of(source, nbytes)


@kernel
def is_jpeg(codec):
    """Return whether a payload is a JPEG file, recoded or with a seek table, whose planes are decoded at any scale."""
    return codec == num.CODEC_JPEG


@kernel
def has_windows(codec):
    """Return whether `decode_window` decodes a payload; `decode_block` decodes the others."""
    return codec in (num.CODEC_JPEG, num.CODEC_TILES, num.CODEC_DELTA_TILES)


@kernel
def has_room(codec, nbytes, raw, image, tile, tile_nbytes, work_nbytes):
    """Return whether an image takes `raw` bytes when decoded, and scratch memory is enough for `decode_window`.

    Numbers of any size may be given.
    """
    height, width, channels, itemsize = image
    if np.float64(height) * width * channels * itemsize != raw or not 0 < raw < _MOST_NBYTES:
        return False
    if codec in num.TILED:
        return tile_nbytes >= tile * tile * channels * itemsize
    return itemsize == 1 and work_nbytes >= jpeg_room(nbytes, height, width)


@kernel
def decode_window(file, at, nbytes, checksum, codec, verify, image, tile, window, out, rooms):
    """Write a window of an image as (C, h, w), reading and decoding only a part of its payload.

    Args:
        file, at, nbytes, checksum, verify, image, tile, window, out: As in `decode_tiles`.
        codec: One of those for which `has_windows` is true.
        rooms: Addresses of nbytes (used only if the file is read by its descriptor), of one tile's bytes, and of
            `jpeg_room` bytes.

    Returns:
        A status.
    """
    room, tile_room, work = rooms
    if codec in num.TILED:
        return decode_tiles(file, at, nbytes, checksum, codec, verify, image, tile, window, out, room, tile_room)
    height, width, channels, _ = image
    return decode_jpeg(file, at, nbytes, checksum, verify, (height, width, channels), window, out, room, work)
