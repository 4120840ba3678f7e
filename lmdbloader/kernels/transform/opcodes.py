"""Numbers of transforms that kernels and Python share: opcodes, columns, statuses; no compiler is imported here."""

# The operation of a transform. From JITTER on they change values (see `kernels/transform/color.py`), the others move
# pixels (see `kernels/transform/program.py`). A POLICY draws one of several operations of both kinds; a BRANCH skips
# operations after it.
RANDOM_CROP, CENTER_CROP, RANDOM_RESIZED_CROP, RESIZE = range(4)
HORIZONTAL_FLIP, VERTICAL_FLIP, DIHEDRAL, ERASE = range(4, 8)
AFFINE, PERSPECTIVE, ELASTIC, POLICY, BRANCH = range(8, 13)
JITTER, BLUR, NOISE = range(13, 16)
POSTERIZE, EQUALIZE, AUTOCONTRAST, SHARPNESS, PERMUTE, AUGMIX = range(16, 22)

# Columns of an operation's whole numbers: its code, its fields (one bit each), its stage, (height, width) of the result
# (a width of 0: the height is that of the shorter side), whether a crop pads and by how many pixels on each side,
# whether a resize is bicubic or a warp bilinear, the number of an erased rectangle, whether a rotation expands, which
# of the operations of a policy it is, and the fill of three channels: as a whole number, and as the bits of a float32.
# Images of more channels have one fill.
(
    OP_CODE, OP_FIELDS, OP_STAGE, OP_HEIGHT, OP_WIDTH, OP_PADS, OP_PAD_TOP, OP_PAD_BOTTOM, OP_PAD_LEFT, OP_PAD_RIGHT,
    OP_CUBIC, OP_RECTANGLE, OP_EXPANDS, OP_SLOT, OP_FILL,
) = range(15)  # fmt: skip
NUM_WHOLE = OP_FILL + 6
# Of OP_PADS: nothing around the image, the pixels given, or as many more as an image lacks for the crop on both sides.
PADS_NOTHING, PADS, PADS_SMALL_IMAGES = range(3)
# Of OP_EXPANDS: the size stays; it holds all of the turned image; or it would do so at any angle, for `measure`.
EXPANDS_NOT, EXPANDS, EXPANDS_MOST = range(3)
# Of BRANCH, in the columns from OP_HEIGHT on: how many operations after it are skipped unless the draw hits; how many
# before it made the draw; and of an order its place, the number of items, and the item that must come at this place.
BRANCH_SKIPS, BRANCH_BACK, BRANCH_PLACE, BRANCH_COUNT, BRANCH_ITEM = range(OP_HEIGHT, OP_HEIGHT + 5)
# Columns of an operation's real numbers, by operation. P is a probability; a range is its low and its high end.
FLIP_P = 0
BRANCH_LOW, BRANCH_HIGH = range(2)
CROP_SCALE_LOW, CROP_SCALE_HIGH, CROP_RATIO_LOW, CROP_RATIO_HIGH = range(4)
ERASE_P, ERASE_SCALE_LOW, ERASE_SCALE_HIGH, ERASE_RATIO_LOW, ERASE_RATIO_HIGH = range(5)
# Of JITTER: three ranges of factors (brightness, contrast, saturation), then these; the hue is a share of the circle.
JITTER_P, JITTER_THRESHOLD, JITTER_HUE_LOW, JITTER_HUE_HIGH = range(6, 10)
# Of BLUR: standard deviations, and the sides of the kernel. Of NOISE: mean and standard deviation. Then their P.
BLUR_LOW, BLUR_HIGH, BLUR_ACROSS, BLUR_DOWN, BLUR_P = range(5)
NOISE_MEAN, NOISE_SIGMA, NOISE_P = range(3)
# Of POSTERIZE, EQUALIZE, AUTOCONTRAST and SHARPNESS: bits or the factor, then their P.
TONE_AMOUNT, TONE_P = range(2)
# Of AFFINE: degrees, the largest shifts as shares of the sides, factors, degrees of the shears along x and y, and the
# center in pixels, NaN for the middle of the image.
AFFINE_LOW, AFFINE_HIGH, AFFINE_ACROSS, AFFINE_DOWN, AFFINE_SCALE_LOW, AFFINE_SCALE_HIGH = range(6)
AFFINE_SHEAR, AFFINE_CENTER = 6, 10
# Of PERSPECTIVE: how far corners move, as a share of half the side, and its P. Of ELASTIC: the strengths and standard
# deviations across and down.
PERSPECTIVE_SHARE, PERSPECTIVE_P = range(2)
ELASTIC_ALPHA, ELASTIC_SIGMA = 0, 2
# Of POLICY: the space of magnitudes, how many there are, the number of the one to take (-1: a random one), the table of
# sub-policies (-1: none; see `policy_tables`), and how pixels are blended, see WARP_BILINEAR.
POLICY_SPACE, POLICY_BINS, POLICY_MAGNITUDE, POLICY_TABLE, POLICY_BLENDS = range(5)
# Of AUGMIX, which has POLICY_BLENDS too: how many magnitudes it draws from, the number of chains, the operations of
# each (0: a random number), the parameter of its distributions, and whether brightness and the like are among them.
MIX_SEVERITY, MIX_WIDTH, MIX_DEPTH, MIX_ALPHA = range(4)
MIX_ALL = 5
MOST_CHAINS = 1000
NUM_REAL = 12

# Columns of a view: its first operation, the one after its last, and how many at its beginning are drawn once for all
# views. The number of an operation, on which random choices depend, has so many bits; above them is that of the view.
VIEW_BEGIN, VIEW_END, VIEW_SHARED = range(3)
NUM_VIEW = 3
VIEW_BITS = 16

# The geometry of one field of one sample at one stage: out(y, x) is in(row + down * y, column + across * x), with y and
# x exchanged on the right if `transposed`, for (y, x) inside of the valid rectangle, and the fill elsewhere. The first
# stage has the size of the stored image. MASK says that the pixels are labels, which are never mixed; OWN_FILL is 3 if
# they are floats, whose fill is bits; WRITES that every stage ends with pixels, never with CARRY. These and a mask's
# fill are the caller's.
(
    TRANSPOSED, DOWN, ACROSS, ROW, COLUMN, HEIGHT, WIDTH, TOP, BOTTOM, LEFT, RIGHT, CLOSING, NEW_HEIGHT, NEW_WIDTH,
    CUBIC, STORED_HEIGHT, STORED_WIDTH, MASK, OWN_FILL, WRITES, FILL,
) = range(21)  # fmt: skip
NUM_GEOMETRY = FILL + 3
# The end of a stage: the next one continues from the same pixels; the result is written out, resized, recolored, or
# warped to NEW_HEIGHT and NEW_WIDTH.
CARRY, WRITE, THEN_RESIZE, THEN_COLOR, THEN_WARP = range(5)
# The numbers drawn for an operation on colors: its code, then of JITTER: three factors, the order of the four changes,
# the threshold, the hue; of BLUR: the standard deviation, and both sides; of NOISE: mean, standard deviation, and two
# halves of a key, of 53 bits each; of POSTERIZE and SHARPNESS: bits, the factor; of PERMUTE: which channel becomes the
# first, the second and the third.
COLOR_CODE, COLOR_FACTORS, COLOR_ORDER, COLOR_THRESHOLD, COLOR_HUE = 0, 1, 4, 5, 6
COLOR_SIGMA, COLOR_ACROSS, COLOR_DOWN = range(1, 4)
COLOR_MEAN, COLOR_DEVIATION, COLOR_KEY = range(1, 4)
COLOR_AMOUNT = COLOR_SOURCES = 1
# Of a warp, after its code: whether it is bilinear; of AFFINE: two rows of the matrix that carries places of the
# result, in pixels from its middle, to the image, and whether it expands; of PERSPECTIVE: torchvision's eight
# coefficients; of ELASTIC: its real numbers, two halves of a key, and the size of the field of displacements.
WARP_BILINEAR, WARP_MATRIX, WARP_EXPANDS = 1, 2, 8
WARP_ELASTIC, WARP_KEY, WARP_HEIGHT, WARP_WIDTH = 2, 6, 8, 9
# Of WARP_BILINEAR: the edge is blended with the black around the image; with a fill it is blended twice.
TO_BLACK = 2
# Of AUGMIX: the key, its real numbers, the fill, and how many times smaller the image is than the largest one.
MIX_KEY, MIX_NUMBERS, MIX_FILL, MIX_RATIO = 1, 3, 9, 12
# Of all stages: the last operation, of all those of all views.
COLOR_OPERATION = 13
NUM_COLOR = COLOR_OPERATION + 1
# The number of a sample has so many bits; above them is the number of a frame in its window.
FRAME_BITS = 44
# A set of fields has one bit for each.
MAX_FIELDS = 62

# How a value of the batch is made from a stored one: copied; times a factor plus a term, as float32, bfloat16 or
# float16; or looked up in a table of words of 8, 16 or 32 bits.
COPY, FLOAT, BFLOAT, HALF, TABLE_8, TABLE_16, TABLE_32 = range(7)

# Statuses of a sample that does not suit a program.
CROP_TOO_LARGE, NOT_SQUARE, NOT_ALIGNED, NOT_DIVISIBLE = range(100, 104)
