"""The scratch memory of a JPEG decoder: the file's head, its tables, and a plan of the blocks of one MCU."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.jpeg import head as facts
from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, NUM_TABLES, ORDERED, SLACK, TABLE_WORDS, ZIGZAG, codes_of_table
from lmdbloader.kernels.jpeg.codes import CODE_ROOM
from lmdbloader.kernels.jpeg.head import read_head
from lmdbloader.kernels.jpeg.tokens import CODES, JOB_NBYTES, NUM_OFFSETS, NUM_TOKENS, SLACK_BLOCKS, TABLE_NBYTES
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import i32_at, i64_at, part, u16_at

# Columns of the plan, for each block of an MCU: its component, addresses of its Huffman tables and quantization, its
# place among the blocks of its component, address of its coefficients, its state, and the first coefficient.
OF, BY_FIRST, BY, SCALE, DOWN_AT, ACROSS_AT, BLOCK, STATE, LEVEL, PLANNED = range(10)
# Offsets in the scratch: head, quantization, Huffman tables, order of coefficients, blocks, plan; then bytes without
# stuffing, lines and planes.
_QUANTIZATION_AT = 8 * facts.HEAD_WORDS + 8
_SCALES_AT = _QUANTIZATION_AT + 4 * facts.QUANTIZATION_WORDS
TABLES_AT = _SCALES_AT + 2 * facts.QUANTIZATION_WORDS
ORDER_AT = TABLES_AT + 4 * facts.TABLES_WORDS
BLOCK_AT = (ORDER_AT + 4 * ORDERED + 63) // 64 * 64
# Blocks, each with room for the coefficients that `decode_coefficients` writes outside of one.
_BLOCK_STEP = 192
PLAN_AT = BLOCK_AT + MOST_BLOCKS * _BLOCK_STEP
LEVELS_AT = PLAN_AT + 8 * MOST_BLOCKS * PLANNED
SCALES_AT = LEVELS_AT + 3 * 8
# Columns of a scale's planes, of 1, 2, 4 and 8 pixels for one (of the exponents 0 to 3): the wanted pixels of the file
# (a BOTTOM of 0: none), the MCUs that they touch, the pixels of a block's side for luminance and color, the bytes of
# rows, addresses of the planes and bytes from one color plane to the next, the MCU of a row behind the last wanted
# one, and where the next MCU's pixels go. After all scales comes the address behind their planes.
NUM_SCALES = 4
(
    TOP, BOTTOM, LEFT, RIGHT, FIRST_ROW, END_ROW, FIRST, END, SIZE, COLOR_SIZE, ROW, COLOR_ROW, PLANE, COLOR,
    COLOR_PLANE, UNTIL, TARGETS,
) = range(17)  # fmt: skip
SCALE_WORDS = TARGETS + 3
FREE = NUM_SCALES * SCALE_WORDS
# Of a file that was scanned: the number of its scans, where their coded bytes begin and end, and the lowest known bit
# of each coefficient of a component. Libjpeg writes ten scans; more than these would only take time.
MOST_SCANS = 100
SCANS_AT = SCALES_AT + 8 * (FREE + 1)
KNOWN_AT = SCANS_AT + 8 * (3 + 2 * MOST_SCANS)
# Of a recoded file: facts of its tiles, lengths of its codes, the codes of the file, room to make codes, jobs, offsets
# of coefficients, tables and blocks. Tiles are decoded several at once, as many as fit, with their jobs.
TILES_AT = KNOWN_AT + 8 * 3 * 64
LENGTHS_AT = TILES_AT + 8 * 16
CODES_OF_FILE_AT = LENGTHS_AT + (CODES * NUM_TOKENS + 7) // 8 * 8
CODE_ROOM_AT = CODES_OF_FILE_AT + 8 * 256 * NUM_TABLES
JOBS_AT = CODE_ROOM_AT + 8 * CODE_ROOM
MOST_JOBS = 64
OFFSETS_AT = JOBS_AT + JOB_NBYTES * (MOST_JOBS + 1)
TOKEN_TABLES_AT = (OFFSETS_AT + 2 * NUM_OFFSETS + 63) // 64 * 64
TILE_BLOCKS_AT = TOKEN_TABLES_AT + CODES * TABLE_NBYTES
# A tile has two streams at most, each with slack behind its blocks; a block is before the first one.
ROOM_BLOCKS = 512
FIXED_NBYTES = TILE_BLOCKS_AT + 128 * (1 + ROOM_BLOCKS + 2 * SLACK_BLOCKS + 2)
# A plane's rows are longer by this, so that rows of vectors may be written past their end.
PLANE_SLACK = 64


@kernel
def jpeg_room(nbytes, height, width):
    """Return the bytes of scratch to decode a payload of nbytes with an image of this size, or a smaller one."""
    longest = max(height, width)
    planes = 3 * ((height + 32) * (width + 32) + PLANE_SLACK * (longest + 32))
    # Those of all scales have less than twice the bytes of the largest.
    return FIXED_NBYTES + nbytes + SLACK + 16 * (longest + 128) + 2 * planes + 3 * height * width + 4096


@kernel
def views(work):
    """Return the arrays at the beginning of the scratch: head, quantization, tables, order."""
    head = i64_at(work, facts.HEAD_WORDS)
    quantization = i32_at(work + np.uint64(_QUANTIZATION_AT), facts.QUANTIZATION_WORDS)
    tables = i32_at(work + np.uint64(TABLES_AT), facts.TABLES_WORDS)
    order = i32_at(work + np.uint64(ORDER_AT), ORDERED)
    return head, quantization, tables, order


@kernel
def set_order(work, in_zigzag):
    """Set where `decode_coefficients` writes the coefficients of a block."""
    order = views(work)[3]
    for k in range(ORDERED):
        order[k] = 128 if k >= 64 else 2 * k if in_zigzag else 2 * ZIGZAG[k]


@kernel
def prepare(data, work, needs_tables):
    """Read the head of a file into the scratch; return FINE, DAMAGED, UNSUPPORTED, CODES_ONLY or PROGRESSIVE.

    needs_tables: Whether Huffman tables are made.
    """
    head, quantization, tables, _ = views(work)
    status = read_head(data, head, quantization, tables, needs_tables)
    set_order(work, False)
    scales = u16_at(work + np.uint64(_SCALES_AT), facts.QUANTIZATION_WORDS)
    for table in range(0, facts.QUANTIZATION_WORDS, 64):
        for k in range(64):
            scales[table + ZIGZAG[k]] = quantization[table + k]
    blocks = i64_at(work + np.uint64(BLOCK_AT), MOST_BLOCKS * _BLOCK_STEP // 8)
    for k in range(blocks.shape[0]):
        blocks[k] = 0
    if status == facts.DAMAGED or status == facts.UNSUPPORTED:
        return status
    plan = i64_at(work + np.uint64(PLAN_AT), MOST_BLOCKS * PLANNED)
    b = 0
    for c in range(head[facts.COMPONENTS]):
        p = facts.PER_COMPONENT + 5 * c
        for y in range(head[p + facts.DOWN]):
            for x in range(head[p + facts.ACROSS]):
                plan[b + OF] = c
                plan[b + BY_FIRST] = work + np.uint64(TABLES_AT + 4 * TABLE_WORDS * head[p + facts.FIRST_TABLE])
                plan[b + BY] = work + np.uint64(TABLES_AT + 4 * TABLE_WORDS * head[p + facts.TABLE])
                plan[b + SCALE] = work + np.uint64(_SCALES_AT + 128 * head[p + facts.QUANTIZATION])
                plan[b + DOWN_AT], plan[b + ACROSS_AT] = y, x
                plan[b + BLOCK] = work + np.uint64(BLOCK_AT + b // PLANNED * _BLOCK_STEP)
                b += PLANNED
    return status


@kernel
def codes_of_file(work):
    """Find the codes of the file that was prepared: 256 int64 for each table, see `codes_of_table`."""
    tables = views(work)[2]
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
