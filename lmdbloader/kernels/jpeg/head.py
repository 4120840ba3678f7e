"""The marker segments of a JPEG file up to its scan: size, sampling, quantization and Huffman tables.

Source: ITU-T T.81, annex B; the colors of the components are decided as in libjpeg.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.jpeg.bits import MOST_BLOCKS, NUM_TABLES, TABLE_WORDS, build_table
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import part

# The facts of a file's head: size, components, most samples of a component across and down an MCU, MCUs between restart
# markers (0: no markers), first coded byte; then for each of three components: samples across and down, number of its
# quantization table, of its Huffman tables for the first and the other coefficients; then the components' names.
WIDTH, HEIGHT, COMPONENTS, ACROSS_MOST, DOWN_MOST, RESTART, SCAN, PER_COMPONENT = range(8)
ACROSS, DOWN, QUANTIZATION, FIRST_TABLE, TABLE = range(5)
NAMES = PER_COMPONENT + 3 * 5
HEAD_WORDS = NAMES + 3
QUANTIZATION_WORDS = 4 * 64
TABLES_WORDS = NUM_TABLES * TABLE_WORDS

# Statuses: read; damaged; of a kind that these kernels do not decode; of a kind of which they read the codes alone;
# progressive, which is decoded once it is recoded.
FINE, DAMAGED, UNSUPPORTED, CODES_ONLY, PROGRESSIVE = 0, 1, 2, 3, 4


@kernel
def word_at(data, at):
    """Return two bytes of a file as a number."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@kernel
def _read_quantization(data, at, end, quantization):
    """Return one bit for each table that was read; -1 if they are damaged."""
    found = np.int64(0)
    while at < end:
        wide, number = data[at] >> 4, np.int64(data[at] & 15)
        nbytes = 128 if wide else 64
        if wide > 1 or number > 3 or at + 1 + nbytes > end:
            return np.int64(-1)
        for k in range(64):
            value = word_at(data, at + 1 + 2 * k) if wide else np.int64(data[at + 1 + k])
            quantization[64 * number + k] = value
        found |= np.int64(1) << number
        at += 1 + nbytes
    return found


@kernel
def read_tables(data, at, end, tables, needs_tables):
    """Return one bit for each table that was read, first those of first coefficients; -1 if they are damaged."""
    found = np.int64(0)
    while at < end:
        if at + 17 > end:
            return np.int64(-1)
        kind, number = np.int64(data[at] >> 4), np.int64(data[at] & 15)
        if kind > 1 or number > 3:
            return np.int64(-1)
        table = 4 * kind + number
        if needs_tables:
            count = build_table(data, at + 1, end, kind == 0, part(tables, table * TABLE_WORDS, TABLE_WORDS))
        else:
            count = np.int64(0)
            for length in range(16):
                count += data[at + 1 + length]
        if count < 0:
            return np.int64(-1)
        found |= np.int64(1) << table
        at += 17 + count
    return found


@kernel
def _read_frame(data, at, end, head, names):
    if end - at < 6 or data[at] != 8:
        return UNSUPPORTED
    head[HEIGHT], head[WIDTH] = word_at(data, at + 1), word_at(data, at + 3)
    count = np.int64(data[at + 5])
    if count not in (1, 3) or head[HEIGHT] == 0 or head[WIDTH] == 0:
        return UNSUPPORTED
    if end - at < 6 + 3 * count:
        return DAMAGED
    head[COMPONENTS] = count
    head[ACROSS_MOST] = head[DOWN_MOST] = 1
    blocks = np.int64(0)
    for c in range(count):
        p = PER_COMPONENT + 5 * c
        names[c] = data[at + 6 + 3 * c]
        head[p + ACROSS], head[p + DOWN] = data[at + 7 + 3 * c] >> 4, data[at + 7 + 3 * c] & 15
        head[p + QUANTIZATION] = data[at + 8 + 3 * c]
        head[p + FIRST_TABLE], head[p + TABLE] = 0, 4
        if head[p + QUANTIZATION] > 3:
            return DAMAGED
        if count == 1:  # its blocks follow each other one by one, whatever its sampling says
            head[p + ACROSS] = head[p + DOWN] = 1
        if not (1 <= head[p + ACROSS] <= 4 and 1 <= head[p + DOWN] <= 4):
            return DAMAGED
        head[ACROSS_MOST] = max(head[ACROSS_MOST], head[p + ACROSS])
        head[DOWN_MOST] = max(head[DOWN_MOST], head[p + DOWN])
        blocks += head[p + ACROSS] * head[p + DOWN]
    return FINE if blocks <= MOST_BLOCKS else DAMAGED


@kernel
def _is_decoded(head):
    """Return whether the first component is as fine as the others, or has two samples for each of theirs."""
    for c in range(1, head[COMPONENTS]):
        p = PER_COMPONENT + 5 * c
        if head[p + ACROSS] != 1 or head[p + DOWN] != 1:
            return False
    return head[ACROSS_MOST] <= 2 and head[DOWN_MOST] <= 2


@kernel
def _read_scan(data, at, end, head, names, seen):
    count = np.int64(data[at]) if at < end else 0
    if count != head[COMPONENTS]:
        return UNSUPPORTED
    if end - at < 4 + 2 * count:
        return DAMAGED
    for c in range(count):
        if data[at + 1 + 2 * c] != names[c]:
            return UNSUPPORTED
        p = PER_COMPONENT + 5 * c
        first, other = data[at + 2 + 2 * c] >> 4, data[at + 2 + 2 * c] & 15
        if first > 3 or other > 3 or not seen & (1 << np.int64(first)) or not seen & (16 << np.int64(other)):
            return DAMAGED
        head[p + FIRST_TABLE], head[p + TABLE] = first, 4 + other
    # The three bytes behind mean nothing in a sequential file: some cameras write others than 0, 63, 0.
    return FINE


@kernel
def _is_luminance_first(names, seen_jfif, adobe):
    """Return whether three components are luminance and two color differences."""
    if seen_jfif:
        return True
    if adobe >= 0:
        return adobe == 1
    return not (names[0] == 0x52 and names[1] == 0x47 and names[2] == 0x42)


@kernel
def read_head(data, head, quantization, tables, needs_tables):
    """Read the segments before the coded bytes.

    Args:
        data: uint8, the file.
        head: (HEAD_WORDS,) int64, filled.
        quantization: (QUANTIZATION_WORDS,) int32, filled in zigzag order.
        tables: (TABLES_WORDS,) int32, filled if needs_tables.

    Returns:
        FINE, DAMAGED, UNSUPPORTED, CODES_ONLY or PROGRESSIVE.
    """
    size = np.int64(data.shape[0])
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return DAMAGED
    names = part(head, NAMES, 3)
    at = np.int64(2)
    head[RESTART] = head[COMPONENTS] = 0
    seen, quantized = np.int64(0), np.int64(0)
    seen_jfif, adobe, is_progressive = False, np.int64(-1), False
    while True:
        if at >= size or data[at] != 0xFF:
            return DAMAGED
        while at < size and data[at] == 0xFF:
            at += 1
        if at + 2 >= size:
            return DAMAGED
        marker = np.int64(data[at])
        at += 1
        if marker == 0x01 or (marker >= 0xD0 and marker <= 0xD7):
            continue
        end = at + word_at(data, at)
        at += 2
        if end < at or end > size or marker == 0xD9:
            return DAMAGED
        status = FINE
        if marker == 0xDB:
            found = _read_quantization(data, at, end, quantization)
            status = FINE if found >= 0 else DAMAGED
            quantized |= found
        elif marker == 0xC4:
            found = read_tables(data, at, end, tables, needs_tables)
            status = FINE if found >= 0 else DAMAGED
            seen |= found
        elif marker >= 0xC0 and marker <= 0xC2:
            is_progressive = marker == 0xC2
            status = _read_frame(data, at, end, head, names) if head[COMPONENTS] == 0 else DAMAGED
        elif marker >= 0xC3 and marker <= 0xCF and marker != 0xC8:
            status = UNSUPPORTED
        elif marker == 0xDD:
            if end - at != 2:
                return DAMAGED
            head[RESTART] = word_at(data, at)
        elif marker == 0xE0 and end - at >= 5:
            seen_jfif |= data[at] == 0x4A and data[at + 1] == 0x46 and data[at + 2] == 0x49 and data[at + 3] == 0x46
        elif marker == 0xEE and end - at >= 12:
            if data[at] == 0x41 and data[at + 1] == 0x64 and data[at + 2] == 0x6F and data[at + 3] == 0x62:
                adobe = np.int64(data[at + 11])
        elif marker == 0xDA:
            if head[COMPONENTS] == 0:
                return DAMAGED
            for c in range(head[COMPONENTS]):  # a table that is not in the file would be old bytes of the scratch
                if not quantized >> head[PER_COMPONENT + 5 * c + QUANTIZATION] & 1:
                    return DAMAGED
            head[SCAN] = end
            status = PROGRESSIVE if is_progressive else _read_scan(data, at, end, head, names, seen)
            if head[COMPONENTS] == 1 or (_is_decoded(head) and _is_luminance_first(names, seen_jfif, adobe)):
                return status
            return CODES_ONLY if status == FINE else UNSUPPORTED if is_progressive else status
        if status != FINE:
            return status
        at = end


@kernel
def past_marker(data, at, number):
    """Return the first coded byte after restart marker `number` (0 to 7, -1: any); -1 without such a marker."""
    size = data.shape[0]
    while at + 1 < size and data[at] == 0xFF and data[at + 1] == 0xFF:
        at += 1
    if at + 1 >= size or data[at] != 0xFF or data[at + 1] & 0xF8 != 0xD0:
        return np.int64(-1)
    if number >= 0 and np.int64(data[at + 1] & 7) != number:
        return np.int64(-1)
    return at + 2
