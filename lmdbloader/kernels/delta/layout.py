"""The numbers of a payload of the codec `delta` that its encoder and decoder share.

A payload has eight streams of codes, a table for each plane of bytes, and a foot. The specification is in
docs/reference/format.md.
"""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels.codec_numbers import DELTA_FOOT_NBYTES, DELTA_MOST_NBYTES

# Streams are decoded side by side: a processor has finished another one's look-up while it waits for one.
STREAMS = 8
# The longest code; a table of all bits of that length is looked up in.
MOST_BITS = 11
TABLE_ENTRIES = 1 << MOST_BITS
# A byte of a table: the length of some codes, and how many successive symbols have it, less one, in the upper half. No
# symbol of length 0 occurs; a symbol that is alone has this mark instead of a length.
ALONE = 15
MOST_RUN = 16
# How a row is predicted from the row above it.
NONE, UP, LEFT, GRADIENT, SMOOTH, NUM_PREDICTORS = 0, 1, 2, 3, 4, 5
# Or-ed to the predictor of a channel from which green is subtracted.
LESS_GREEN = 8
# Lengths of the streams (u16), width (u32), channels (u8), bytes of a value (u8).
FOOT_NBYTES, MOST_RAW_NBYTES = DELTA_FOOT_NBYTES, DELTA_MOST_NBYTES
# Symbols by number: 0, -1, 1, -2, 2 ... -128.
SYMBOLS = np.array([number >> 1 ^ -(number & 1) & 0xFF for number in range(256)], np.uint8)
NUMBERS = np.argsort(SYMBOLS).astype(np.uint8)
