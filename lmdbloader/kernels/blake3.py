"""BLAKE3 of bytes in memory, sixteen chunks or sixteen nodes of its tree side by side in registers.

Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020), and its names: a
chunk is 1024 bytes, a block 64; each chunk has a chaining value, and so has each node above two of them. A group here
is 64 chunks, a whole subtree. LLVM compiles the vectors to the registers of the processor.

All addresses are int64. `work` has WORK_NBYTES that a kernel may fill; a stack has STACK_ROWS rows of eight
uint32: the chaining values of the complete subtrees so far, the largest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lmdbloader.kernels.blake3_sizes import BLOCK_NBYTES, CHUNK_NBYTES, GROUP_NBYTES
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import copy_32, u32_at

_LANES = 16
_GROUP = GROUP_NBYTES // CHUNK_NBYTES
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_START = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_START_WORDS = np.array(_START, np.uint32)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_ROUNDS = 7
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip

# Offsets in `work`: eight vectors of chaining values, two of counters, rows of chaining values, one block.
_COUNTERS = 8 * 4 * _LANES
_ROWS = _COUNTERS + 2 * 4 * _LANES
_NODE = _ROWS + 32 * (_GROUP + 2 * _LANES)
_ROW_NBYTES = 32

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I32, _LANES)


def _splat(number: int) -> Any:
    return ir.Constant(_VECTOR, [_I32(number)] * _LANES)


def _shuffle(builder: Any, a: Any, b: Any, lanes: Any) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(_VECTOR, [_I32(i) for i in lanes]))


def _everywhere(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _I32(0))
    return _shuffle(builder, one, one, [0] * _LANES)


def _pointer(builder: Any, address: Any, offset: int = 0) -> Any:
    return builder.inttoptr(builder.add(address, _I64(offset)), _VECTOR.as_pointer())


def _load(builder: Any, address: Any, offset: int = 0) -> Any:
    return builder.load(_pointer(builder, address, offset), align=1)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of sixteen vectors: interleaving rows i and i + 8 four times moves each word to its place."""
    half = _LANES // 2
    for _ in range(4):
        rows = [
            _shuffle(builder, rows[i], rows[i + half], [first + k // 2 + k % 2 * _LANES for k in range(_LANES)])
            for i in range(half)
            for first in (0, half)
        ]
    return rows


def _rotated(builder: Any, value: Any, bits: int) -> Any:
    return builder.or_(builder.lshr(value, _splat(bits)), builder.shl(value, _splat(32 - bits)))


@intrinsic
def _compress(typing_context, chaining, blocks, step, counters, nbytes, flags):
    """Replace sixteen chaining values by those after one more block each.

    Args:
        chaining: Address of eight vectors, the first words of all, then the second ones.
        blocks: Address of 64 bytes; step: int64, from each to the next.
        counters: Address of the lower, then the upper halves of the numbers of the chunks.
        nbytes: uint32, of the blocks; flags: uint32.
    """

    def generate(context, builder, signature, arguments):
        chaining, blocks, step, counters, nbytes, flags = arguments
        before = [_load(builder, chaining, 4 * _LANES * i) for i in range(8)]
        rows = [_load(builder, builder.add(blocks, builder.mul(step, _I64(i)))) for i in range(_LANES)]
        words = _turned(builder, rows)
        v = [*before, *(_splat(word) for word in _START[:4])]
        v += [_load(builder, counters), _load(builder, counters, 4 * _LANES)]
        v += [_everywhere(builder, nbytes), _everywhere(builder, flags)]
        for _ in range(_ROUNDS):
            for number, (a, b, c, d) in enumerate(_COLUMNS_AND_DIAGONALS):
                for word, right, left in ((words[2 * number], 16, 12), (words[2 * number + 1], 8, 7)):
                    v[a] = builder.add(builder.add(v[a], v[b]), word)
                    v[d] = _rotated(builder, builder.xor(v[d], v[a]), right)
                    v[c] = builder.add(v[c], v[d])
                    v[b] = _rotated(builder, builder.xor(v[b], v[c]), left)
            words = [words[i] for i in _PERMUTATION]
        for i in range(8):
            builder.store(builder.xor(v[i], v[i + 8]), _pointer(builder, chaining, 4 * _LANES * i), align=1)
        return context.get_dummy_value()

    address = types.int64
    return types.void(address, address, types.int64, address, types.uint32, types.uint32), generate


@njit
def _begin(work, counter, each):
    """Set all sixteen lanes to the start of a chunk; the number of lane i is `counter + i * each`."""
    chaining, counters = u32_at(work, 8 * _LANES), u32_at(work + _COUNTERS, 2 * _LANES)
    for lane in range(_LANES):
        for word in range(8):
            chaining[word * _LANES + lane] = _START_WORDS[word]
        number = counter + lane * each
        counters[lane] = np.uint32(number & 0xFFFFFFFF)
        counters[_LANES + lane] = np.uint32(number >> 32)


@njit
def _keep(work, rows, count):
    """Write the chaining values of the first lanes as rows."""
    chaining, out = u32_at(work, 8 * _LANES), u32_at(rows, 8 * count)
    for lane in range(count):
        for word in range(8):
            out[8 * lane + word] = chaining[word * _LANES + lane]


@njit
def _hash_chunks(data, count, counter, work):
    """Write the chaining values of whole chunks as the first rows of `work`; reads up to a multiple of 16 chunks."""
    for first in range(0, count, _LANES):
        _begin(work, counter + first, 1)
        for block in range(CHUNK_NBYTES // BLOCK_NBYTES):
            flags = (_CHUNK_START if block == 0 else 0) | (_CHUNK_END if block == 15 else 0)
            at = data + first * CHUNK_NBYTES + block * BLOCK_NBYTES
            _compress(work, at, CHUNK_NBYTES, work + _COUNTERS, np.uint32(BLOCK_NBYTES), np.uint32(flags))
        _keep(work, work + _ROWS + first * _ROW_NBYTES, _LANES)


@njit
def _join(left, right, target, flags, work):
    """Write the chaining value of a node above two rows as a row, which may be one of them."""
    node, a, b = u32_at(work + _NODE, 16), u32_at(left, 8), u32_at(right, 8)
    for word in range(8):
        node[word] = a[word]
        node[8 + word] = b[word]
    _begin(work, 0, 0)
    _compress(work, work + _NODE, 0, work + _COUNTERS, np.uint32(BLOCK_NBYTES), np.uint32(_PARENT | flags))
    _keep(work, target, 1)


@njit
def _push(stack, depth, row, number, work):
    """Add a row to a stack as subtree `number`, counted from 1, of its size; return how many rows there are then."""
    while number & 1 == 0:
        depth -= 1
        _join(stack + depth * _ROW_NBYTES, row, row, 0, work)
        number >>= 1
    copy_32(np.uint64(row), np.uint64(stack + depth * _ROW_NBYTES))
    return depth + 1


@njit
def _depth(number):
    """Return how many rows a stack has after so many subtrees of one size: the bits that are set."""
    depth = 0
    while number:
        depth += number & 1
        number >>= 1
    return depth


@kernel
def add_groups(data, num_groups, done, stack, work):
    """Add whole groups, behind which more bytes follow.

    Args:
        data: Address of num_groups times GROUP_NBYTES.
        num_groups: How many; done: How many were added before.
        stack: Address of the stack.
        work: Address of WORK_NBYTES.
    """
    rows = work + _ROWS
    for group in range(num_groups):
        _hash_chunks(data + group * GROUP_NBYTES, _GROUP, (done + group) * _GROUP, work)
        count = _GROUP // 2
        while count:
            for first in range(0, count, _LANES):
                _begin(work, 0, 0)
                pairs = rows + 2 * first * _ROW_NBYTES
                flags = np.uint32(_PARENT)
                _compress(work, pairs, BLOCK_NBYTES, work + _COUNTERS, np.uint32(BLOCK_NBYTES), flags)
                _keep(work, rows + first * _ROW_NBYTES, _LANES)
            count >>= 1
        _push(stack, _depth(done + group), rows, done + group + 1, work)


@kernel
def finish(data, nbytes, done, stack, work, out):
    """Write the hash of all groups that were added and of the bytes behind them.

    Args:
        data: Address of GROUP_NBYTES, with zeros from `nbytes` up to the next multiple of 64.
        nbytes: Of the last bytes: at most GROUP_NBYTES, 0 only where there are none at all.
        done: How many groups were added before.
        stack: Address of the stack, which is changed.
        work: Address of WORK_NBYTES.
        out: Address of eight uint32.
    """
    num_whole = max(nbytes - 1, 0) // CHUNK_NBYTES  # but the last chunk, which may be whole too
    depth = _depth(done)
    _hash_chunks(data, num_whole, done * _GROUP, work)
    for chunk in range(num_whole):
        depth = _push(stack, depth, work + _ROWS + chunk * _ROW_NBYTES, done * _GROUP + chunk + 1, work)
    _begin(work, done * _GROUP + num_whole, 0)
    at, end = num_whole * CHUNK_NBYTES, nbytes
    flags = _CHUNK_START
    while True:
        length = min(end - at, BLOCK_NBYTES)
        if at + length == end:
            flags |= _CHUNK_END if depth else _CHUNK_END | _ROOT
        _compress(work, data + at, 0, work + _COUNTERS, np.uint32(length), np.uint32(flags))
        at += length
        flags = 0
        if at >= end:
            break
    _keep(work, out, 1)
    while depth:
        depth -= 1
        _join(stack + depth * _ROW_NBYTES, out, out, 0 if depth else _ROOT, work)
