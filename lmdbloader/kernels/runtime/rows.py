"""Rows of pixels moved in registers: copied, turned from right to left, transposed, and converted on the way.

A row of 96 bytes is two loads and two stores here. A loop over its values calls the library for each row, or moves the
rest of a row byte by byte, which takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.runtime.memory import (
    LINE_NBYTES,
    f32_at,
    store_past_caches,
    u8_at,
)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
BLOCK = 16


def _shuffled(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), [_I32(i) for i in lanes]))


def _moves(nbytes: int, turned: int = 0) -> Any:
    """Return move(source, target), which moves bytes, and turns their order by values of `turned` bytes unless 0."""

    @intrinsic
    def move(typing_context, source, target):
        def generate(context, builder, signature, arguments):
            source, target = arguments
            vector = ir.VectorType(_I8, nbytes)
            block = builder.load(builder.inttoptr(source, vector.as_pointer()), align=1)
            if turned:
                lanes = [at + k for at in range(nbytes - turned, -1, -turned) for k in range(turned)]
                block = _shuffled(builder, block, block, lanes)
            builder.store(block, builder.inttoptr(target, vector.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), generate

    return move


def _rows_moved_by(nbytes: int, turned: int) -> Callable[..., None]:
    """Return a function that moves rows of at least `nbytes` bytes; the last block of a row overlaps the one before."""
    move = _moves(nbytes, turned)

    @njit(inline="always")
    def run(source, source_step, target, target_step, rows, row_nbytes):
        last = np.uint64(row_nbytes - nbytes)
        for y in range(rows):
            begin = source + np.uint64(y * source_step)
            out = target + np.uint64(y * target_step)
            for k in range(0, row_nbytes - nbytes, nbytes):
                move(begin + (last - np.uint64(k) if turned else np.uint64(k)), out + np.uint64(k))
            move(begin + (np.uint64(0) if turned else last), out + last)

    return run


def _rows_moved(turned: int) -> Callable[..., None]:
    """Return a function that moves rows, and turns the order of values of `turned` bytes unless 0."""
    # The shortest rows are moved value by value, as blocks that do not overlap.
    wide, half, least, value = (_rows_moved_by(nbytes, turned) for nbytes in (64, 32, BLOCK, turned or 1))

    @njit(inline="always")
    def run(source, source_step, target, target_step, rows, row_nbytes):
        if row_nbytes >= 64:
            wide(source, source_step, target, target_step, rows, row_nbytes)
        elif row_nbytes >= 32:
            half(source, source_step, target, target_step, rows, row_nbytes)
        elif row_nbytes >= BLOCK:
            least(source, source_step, target, target_step, rows, row_nbytes)
        else:
            value(source, source_step, target, target_step, rows, row_nbytes)

    return run


# move(source, source_step, target, target_step, rows, row_nbytes): uint64 addresses of the first rows, which do not
# overlap, and begin with the value that is first in memory; int64 bytes from one row to the next, which may be
# negative; int64. Values of 1, 2 and 4 bytes come from right to left in the last three.
copy_rows, turn_rows, turn_rows_of_words, turn_rows_of_floats = (_rows_moved(nbytes) for nbytes in (0, 1, 2, 4))


def _transposed(builder: Any, source: Any, source_step: Any, blocks: int) -> list[Any]:
    """Return the columns of 16 rows of some blocks of 16 bytes: register i has column i of each block."""
    count = BLOCK * blocks
    wide = ir.VectorType(_I8, count).as_pointer()
    rows = []
    for i in range(BLOCK):
        address = builder.add(source, builder.mul(source_step, _I64(i)))
        rows.append(builder.load(builder.inttoptr(address, wide), align=1))
    # Interleaving rows i and i + 8 four times moves every byte to the transposed place of its block.
    low, high = (
        [BLOCK * b + half + k // 2 + k % 2 * count for b in range(blocks) for k in range(BLOCK)]
        for half in (0, BLOCK // 2)
    )
    for _ in range(4):
        pairs = [(rows[i], rows[i + BLOCK // 2]) for i in range(BLOCK // 2)]
        rows = [_shuffled(builder, a, b, lanes) for a, b in pairs for lanes in (low, high)]
    return rows


def _transposes(blocks: int) -> Any:
    @intrinsic
    def transpose(typing_context, source, source_step, target, target_step):
        def generate(context, builder, signature, arguments):
            source, source_step, target, target_step = arguments
            narrow = ir.VectorType(_I8, BLOCK).as_pointer()
            columns = _transposed(builder, source, source_step, blocks)
            for b in range(blocks):
                for i, column in enumerate(columns):
                    value = _shuffled(builder, column, column, range(BLOCK * b, BLOCK * (b + 1)))
                    address = builder.add(target, builder.mul(target_step, _I64(BLOCK * b + i)))
                    builder.store(value, builder.inttoptr(address, narrow), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.int64, types.uint64, types.int64), generate

    return transpose


# Row i of the target is column i of the source: of 16 and of 32 columns of 16 rows of bytes, each as uint64 addresses
# and int64 bytes from one row to the next, which may be negative.
transpose_block, transpose_two_blocks = _transposes(1), _transposes(2)


def _write_floats(builder: Any, pixels: Any, target: Any, factor: Any, term: Any, *, past_caches: bool) -> None:
    """Write 16 uint8 as 16 float32."""
    floats = ir.VectorType(ir.FloatType(), BLOCK)

    def everywhere(value):
        one = builder.insert_element(ir.Constant(floats, ir.Undefined), value, _I32(0))
        return _shuffled(builder, one, one, [0] * BLOCK)

    value = builder.fadd(builder.fmul(builder.uitofp(pixels, floats), everywhere(factor)), everywhere(term))
    pointer = builder.inttoptr(target, floats.as_pointer())
    if past_caches:
        store_past_caches(builder, value, pointer)
    else:
        builder.store(value, pointer, align=4)


def _converts(*, turned: bool, past_caches: bool) -> Any:
    @intrinsic
    def convert(typing_context, source, target, factor, term):
        def generate(context, builder, signature, arguments):
            source, target, factor, term = arguments
            vector = ir.VectorType(_I8, BLOCK)
            pixels = builder.load(builder.inttoptr(source, vector.as_pointer()), align=1)
            if turned:
                pixels = _shuffled(builder, pixels, pixels, range(BLOCK - 1, -1, -1))
            _write_floats(builder, pixels, target, factor, term, past_caches=past_caches)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.float32, types.float32), generate

    return convert


def _converts_transposed(*, past_caches: bool) -> Any:
    @intrinsic
    def convert(typing_context, source, source_step, target, target_step, factor, term):
        def generate(context, builder, signature, arguments):
            source, source_step, target, target_step, factor, term = arguments
            for i, column in enumerate(_transposed(builder, source, source_step, 1)):
                address = builder.add(target, builder.mul(target_step, _I64(i)))
                _write_floats(builder, column, address, factor, term, past_caches=past_caches)
            return context.get_dummy_value()

        number = types.float32
        return types.void(types.uint64, types.int64, types.uint64, types.int64, number, number), generate

    return convert


# convert(uint64 address of 16 uint8, uint64 address of 16 float32, factor, term): each value times a factor plus a
# term, which are float32; and of 16 x 16 values, whose steps from row to row are int64 bytes.
_convert, _convert_turned, _stream, _stream_turned = (
    _converts(turned=turned, past_caches=past_caches) for past_caches in (False, True) for turned in (False, True)
)
_convert_block, _stream_block = (_converts_transposed(past_caches=past_caches) for past_caches in (False, True))


@njit(inline="always")
def convert_rows(source, source_step, target, target_step, rows, width, factor, term, is_turned, streams):
    """Write rows of at least 16 uint8 times a factor plus a term as float32.

    Args:
        source: uint64 address of the first row's value that is first in memory.
        target: uint64 address of the first row; on a cache line, and all rows, if `streams`.
        source_step, target_step: int64 bytes from one row to the next; may be negative.
        rows, width: int64.
        factor, term: float32.
        is_turned: Whether rows run from right to left.
        streams: Whether to write past the caches.
    """
    last = width - BLOCK
    for y in range(rows):
        begin, out = source + np.uint64(y * source_step), target + np.uint64(y * target_step)
        for block in range(0, width, BLOCK):
            x = min(block, last)  # the last block may write some values again
            to = out + np.uint64(4 * x)
            if streams:
                if is_turned:
                    _stream_turned(begin + np.uint64(last - x), to, factor, term)
                else:
                    _stream(begin + np.uint64(x), to, factor, term)
            elif is_turned:
                _convert_turned(begin + np.uint64(last - x), to, factor, term)
            else:
                _convert(begin + np.uint64(x), to, factor, term)


@njit(inline="always")
def convert_transposed(source, source_step, target, target_step, factor, term, streams):
    """Write 16 rows of 16 uint8 as the columns of 16 rows of 16 float32; arguments as for `convert_rows`."""
    if streams:
        _stream_block(source, source_step, target, target_step, factor, term)
    else:
        _convert_block(source, source_step, target, target_step, factor, term)


@njit(inline="always")
def stream_as_floats(source, target, count, factor, term):
    """Write uint8 times a factor plus a term, both float32, as float32 at a multiple of 4, lines past the caches."""
    head = min(np.int64(np.uint64(0) - target & np.uint64(LINE_NBYTES - 1)) // 4, count)
    read, write = u8_at(source, count), f32_at(target, count)
    for k in range(head):
        write[k] = np.float32(read[k]) * factor + term
    done = head + (count - head) // BLOCK * BLOCK
    for k in range(head, done, BLOCK):
        _stream(source + np.uint64(k), target + np.uint64(4 * k), factor, term)
    for k in range(done, count):
        write[k] = np.float32(read[k]) * factor + term
