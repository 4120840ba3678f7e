"""The scratch memory of a JPEG decoder: the file's head, its tables, and a plan of the blocks of one MCU."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.huffman import MOST_BITS, TABLE_SIZE
from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, NUM_TABLES, ORDERED, SLACK, TABLE_WORDS, ZIGZAG, codes_of_table
from lmdbloader.kernels.jpeg.head import read_head
from lmdbloader.kernels.jpeg.tokens import CODED, STREAMS
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i32_at, i64_at, part, u32_at

# Columns of the plan, for each block of an MCU: its component, addresses of its Huffman tables and places, its
# place among the blocks of its component, address of its coefficients, its state, and the first coefficient.
OF, BY_FIRST, BY, PLACES, DOWN_AT, ACROSS_AT, BLOCK, STATE, LEVEL, PLANNED = range(10)
# Offsets in the scratch: head, quantisation, Huffman tables, places of coefficients, blocks, plan; then bytes without
# stuffing, lines and planes.
_QUANTISATION_AT = 8 * facts.HEAD_WORDS + 8
_TABLES_AT = _QUANTISATION_AT + 4 * facts.QUANTISATION_WORDS
_PLACES_AT = _TABLES_AT + 4 * facts.TABLES_WORDS
BLOCK_AT = (_PLACES_AT + 4 * 4 * ORDERED + 63) // 64 * 64
# Blocks, each with room for the coefficients that `decode_coefficients` writes outside of one.
_BLOCK_STEP = 192
PLAN_AT = BLOCK_AT + MOST_BLOCKS * _BLOCK_STEP
LEVELS_AT = PLAN_AT + 8 * MOST_BLOCKS * PLANNED
TARGETS_AT = LEVELS_AT + 3 * 8
# For tokens: where each stream is, the tables of their codes, lengths of these, scratch, the codes of the file, and a
# tile's tokens. While tokens are made, there are their codes and `code_lengths`' room in place of the tables.
STREAMS_AT = TARGETS_AT + 3 * 8
CODES_AT = STREAMS_AT + 8 * STREAMS
ROOM_AT = CODES_AT + 8 * 256 * CODED
LENGTHS_AT = CODES_AT + 2 * TABLE_SIZE * CODED
STARTS_AT = LENGTHS_AT + 256 * CODED
CODES_OF_FILE_AT = STARTS_AT + 8 * (MOST_BITS + 1)
TILE_AT = CODES_OF_FILE_AT + 8 * 256 * NUM_TABLES
# Blocks of a tile at most; their counts and differences, tokens, and large values.
TILE_BLOCKS = 64
_TILE_NBYTES = TILE_BLOCKS * (2 + 63 + 64) + 8 * STREAMS
FIXED_NBYTES = (TILE_AT + _TILE_NBYTES + 63) // 64 * 64
# A plane's rows are longer by this, so that rows of vectors may be written past their end.
PLANE_SLACK = 64


@kernel
def jpeg_room(nbytes, height, width):
    """Return the bytes of scratch to decode a payload of nbytes with an image of this size, or a smaller one."""
    longest = max(height, width)
    planes = 3 * ((height + 32) * (width + 32) + PLANE_SLACK * (longest + 32))
    return FIXED_NBYTES + nbytes + SLACK + 16 * (longest + 128) + planes + 3 * height * width + 4096


@kernel
def _views(work):
    """Return the arrays at the beginning of the scratch: head, quantisation, tables."""
    head = i64_at(work, facts.HEAD_WORDS)
    quantisation = i32_at(work + np.uint64(_QUANTISATION_AT), facts.QUANTISATION_WORDS)
    tables = i32_at(work + np.uint64(_TABLES_AT), facts.TABLES_WORDS)
    return head, quantisation, tables


@kernel
def prepare(data, work):
    """Read the head of a file into the scratch; return FINE, DAMAGED, UNSUPPORTED or CODES_ONLY."""
    head, quantisation, tables = _views(work)
    status = read_head(data, head, quantisation, tables)
    places = u32_at(work + np.uint64(_PLACES_AT), 4 * ORDERED)
    for table in range(4):
        for k in range(ORDERED):
            if k < 64:
                places[ORDERED * table + k] = quantisation[64 * table + k] << 8 | 2 * ZIGZAG[k]
            else:
                places[ORDERED * table + k] = 128
    blocks = i64_at(work + np.uint64(BLOCK_AT), MOST_BLOCKS * _BLOCK_STEP // 8)
    for k in range(blocks.shape[0]):
        blocks[k] = 0
    if status != facts.FINE and status != facts.CODES_ONLY:
        return status
    plan = i64_at(work + np.uint64(PLAN_AT), MOST_BLOCKS * PLANNED)
    b = 0
    for c in range(head[facts.COMPONENTS]):
        p = facts.PER_COMPONENT + 5 * c
        for y in range(head[p + facts.DOWN]):
            for x in range(head[p + facts.ACROSS]):
                plan[b + OF] = c
                plan[b + BY_FIRST] = work + np.uint64(_TABLES_AT + 4 * TABLE_WORDS * head[p + facts.FIRST_TABLE])
                plan[b + BY] = work + np.uint64(_TABLES_AT + 4 * TABLE_WORDS * head[p + facts.TABLE])
                plan[b + PLACES] = work + np.uint64(_PLACES_AT + 4 * ORDERED * head[p + facts.QUANTISATION])
                plan[b + DOWN_AT], plan[b + ACROSS_AT] = y, x
                plan[b + BLOCK] = work + np.uint64(BLOCK_AT + b // PLANNED * _BLOCK_STEP)
                b += PLANNED
    return status


@kernel
def codes_of_file(work):
    """Find the codes of the file that was prepared: 256 int64 for each table, see `codes_of_table`."""
    _, _, tables = _views(work)
    codes = i64_at(work + np.uint64(CODES_OF_FILE_AT), 256 * NUM_TABLES)
    for k in range(NUM_TABLES):
        codes_of_table(part(tables, k * TABLE_WORDS, TABLE_WORDS), part(codes, 256 * k, 256))
    return codes


@kernel
def num_planned(head):
    """Return the number of words in the plan of an MCU."""
    blocks = np.int64(0)
    for c in range(head[facts.COMPONENTS]):
        blocks += head[facts.PER_COMPONENT + 5 * c + facts.ACROSS] * head[facts.PER_COMPONENT + 5 * c + facts.DOWN]
    return PLANNED * blocks


@kernel
def places(head):
    """Return the numbers of MCUs of a file, down and across."""
    down, across = 8 * head[facts.DOWN_MOST], 8 * head[facts.ACROSS_MOST]
    return (head[facts.HEIGHT] + down - 1) // down, (head[facts.WIDTH] + across - 1) // across


@kernel
def lines_at(work, nbytes):
    """Return the address of the lines in the scratch; nbytes: of the payload."""
    return (work + np.uint64(FIXED_NBYTES + nbytes + SLACK + 63)) & ~np.uint64(63)
