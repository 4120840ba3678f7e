"""The numbers by which kernels know transforms; no compiler is imported here."""

# What a transform does.
RANDOM_CROP, CENTER_CROP, RANDOM_RESIZED_CROP, RESIZE = range(4)
HORIZONTAL_FLIP, VERTICAL_FLIP, DIHEDRAL, JITTER, ERASE = range(4, 9)

# Columns of a program's whole numbers: the transform, which fields it concerns (one bit each), the stage in which it
# takes part, (height, width) of its result (a width of 0: the shorter side is `height`), padding on every side, how a
# resize interpolates, which rectangle an erasing writes, and the fill.
OP_CODE, OP_FIELDS, OP_STAGE, OP_HEIGHT, OP_WIDTH, OP_PADDING, OP_CUBIC, OP_RECTANGLE, OP_FILL = range(9)
NUM_WHOLE = OP_FILL + 3
# Its real numbers: a probability and ranges, in the order of the transform's own arguments; of what changes colours the
# least and most brightness, contrast and saturation, the probability, and from which value on pixels are inverted.
NUM_REAL = 8

# What is known of one field of one sample at one stage: out(y, x) is in(row + down * y, column + across * x), with y
# and x exchanged on the right where `transposed`, for (y, x) inside the valid rectangle, and the fill elsewhere.
(
    TRANSPOSED, DOWN, ACROSS, ROW, COLUMN, HEIGHT, WIDTH, TOP, BOTTOM, LEFT, RIGHT, CLOSING, NEW_HEIGHT, NEW_WIDTH,
    CUBIC, FILL,
) = range(16)  # fmt: skip
NUM_GEOMETRY = FILL + 3
# How a stage ends: handed on as it is, written out as pixels, resized, its colours changed.
CARRY, WRITE, THEN_RESIZE, THEN_JITTER = range(4)
# Brightness, contrast, saturation, the order in which they come, and from which value on pixels are inverted.
NUM_COLOR = 5
# Fields of a dataset are told apart by the bits of a whole number.
MAX_FIELDS = 62

# What becomes of a value: copied; times a factor plus a term, as float32, bfloat16 or float16; looked up (8, 16 or 32
# bits come out).
COPY, FLOAT, BFLOAT, HALF, TABLE_8, TABLE_16, TABLE_32 = range(7)

# Why a sample does not suit a program.
CROP_TOO_LARGE, NOT_SQUARE, NOT_ALIGNED, NOT_DIVISIBLE, WRONG_SHAPE = range(100, 105)
