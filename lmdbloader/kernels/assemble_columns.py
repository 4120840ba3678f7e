"""The columns of the tables that `assemble` and its callers share, by name; no compiler is imported here."""

from __future__ import annotations

# Addresses of the index's columns of an image field, and the ends of their names there.
OFFSET, STORED_NBYTES, RAW_NBYTES, CHECKSUM, CODEC, IMAGE_HEIGHT, IMAGE_WIDTH, CHANNELS, BITS = range(9)
INDEX_COLUMNS = ("offset", "stored_nbytes", "raw_nbytes", "checksum", "codec", "height", "width", "channels", "bits")
# In the same row of the table follows for each column what of a row's number counts: all bits (-1), or none (0) if the
# column has one value in all rows, so that the first one serves them all: of many rows none is in a cache.
OWN_ROW = len(INDEX_COLUMNS)

# Description of a field: the side of its tiles, how its values are made (see `opcodes.COPY`), bytes of a value, whether
# pixels are (H, W, C) in memory, shape of the result, bits of a stored value, address and row bytes of its table, and
# whether whole cache lines of the batch are written past the caches.
TILE, KIND, OUT_ITEMSIZE, CHANNELS_LAST, OUT_CHANNELS, OUT_HEIGHT, OUT_WIDTH, IN_BITS, TABLE, TABLE_STEP = range(10)
STREAMED = 10
NUM_DESCRIBED = 11

# A thread's working memory, addresses: stored bytes, one tile, decoded pixels, two images between stages, and the
# JPEG decoder's tables; then, from ROOM_NBYTES on, the bytes of each in the same order.
ROOM_STORED, ROOM_TILE, ROOM_PIXELS, ROOM_FIRST, ROOM_SECOND, ROOM_JPEG, ROOM_NBYTES = range(7)

# The first failure: its position in the rows, and the field.
FAILED_ROW, FAILED_FIELD = range(2)

# In place of bytes: `given` is the address of a block with a decoded image; and where its pixels begin.
KEPT, KEPT_AT = -(2**40), 64

# What `draw` raises: the most pixels, height and width of an image on the way, and pixels between the two directions
# of a resize.
MOST_PIXELS, MOST_HEIGHT, MOST_WIDTH, MOST_BETWEEN = range(4)

# What `measure` finds of a field's results.
LOW_HEIGHT, HIGH_HEIGHT, LOW_WIDTH, HIGH_WIDTH = range(4)
