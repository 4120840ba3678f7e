"""The numbers of a chain of degradations that Python and kernels share, by name; no compiler is imported here.

A step is a row of float64: its code, and what may be drawn for it. What is drawn is another row, of NUM_DRAWN.
"""

from __future__ import annotations

# Of every step: what it does, and the probability that it is done.
CODE, P = range(2)
BLUR, RESIZE, NOISE, JPEG, SHARPEN = range(1, 6)

# BLUR: sides of kernels (odd), the probability of a low-pass filter, and its least cutoffs, of sides below 13 and of
# others; cumulative probabilities of the six families; ranges of both standard deviations, of that of isotropic
# kernels, and of the angle; whether the former are variances; the ranges of the exponents.
(
    LEAST_SIZE, MOST_SIZE, SINC_P, LEAST_OMEGA, LEAST_OMEGA_OF_LARGE, FAMILIES, _1, _2, _3, _4, _5,
    LEAST_SIGMA, MOST_SIGMA, LEAST_ISO, MOST_ISO, LEAST_ANGLE, MOST_ANGLE, IS_VARIANCE,
    LEAST_GENERALIZED, MOST_GENERALIZED, LEAST_PLATEAU, MOST_PLATEAU,
) = range(2, 24)  # fmt: skip
NUM_FAMILIES = 6

# Kernels are given in rows of weights, so many of which are applied at a time: zeros fill up a row. Their room is that
# of the largest one.
TAPS, LARGEST = 4, 51
KERNEL_ROOM = (LARGEST + TAPS) * LARGEST

# RESIZE: probabilities to enlarge and to shrink; the ranges of factors of both; whether the latter are divisors; what
# the factor is of: the image as it is, or the size of the result; whether sizes are rounded or cut, the factor gives
# the coordinates, bilinear and bicubic are antialiased, no resize is done if it neither enlarges nor shrinks, and the
# result is clipped; the probability of a blur that keeps every n-th pixel instead, n, and the range of its standard
# deviation; cumulative probabilities of the modes of `modes`.
UP_P, DOWN_P, LEAST_UP, MOST_UP, LEAST_DOWN, MOST_DOWN, DIVIDES, OF = range(2, 10)
ROUNDS, BY_FACTOR, ANTIALIAS, KEEPS, CLIPS, EVERY_P, EVERY, LEAST_EVERY, MOST_EVERY, MODES = range(10, 20)
OF_IMAGE, OF_RESULT = range(2)
NUM_MODES = 8

# NOISE: probabilities of Gaussian and of Poisson noise, else speckle; of gray noise, and of one that is correlated
# between channels; the range of the standard deviation in 255ths, whether it is whole; the range of Poisson's scale; of
# the logarithm (base 10) of its values, both 0 if these are those of the image.
GAUSSIAN_P, POISSON_P, GRAY_P, CORRELATED_P, LEAST_NOISE, MOST_NOISE, IS_WHOLE = range(2, 9)
LEAST_SCALE, MOST_SCALE, LEAST_VALUES, MOST_VALUES = range(9, 13)

# JPEG: the range of the quality, whether it is whole, and by whose arithmetic.
LEAST_QUALITY, MOST_QUALITY, IS_WHOLE_QUALITY, ARITHMETIC = range(2, 6)
LIBJPEG, DIFFJPEG = range(2)

NUM_STEP = MODES + NUM_MODES

# What is drawn. DONE: whether the step is done. Then of BLUR, of RESIZE, of NOISE, and of JPEG:
DONE = 0
SHAPE, SIZE, FIRST, SECOND, ANGLE, BETA = range(1, 7)
HEIGHT, WIDTH, MODE, FACTOR, SPREAD, IS_ANTIALIASED = range(1, 7)
KIND, SIGMA, COLORS, VALUES = range(1, 5)
QUALITY, ARITHMETIC_OF = range(1, 3)
NUM_DRAWN = 7
GAUSSIAN, POISSON, SPECKLE = range(3)
COLOR, GRAY, CORRELATED = range(3)
# A mode after those of `resample`: a blur that keeps every n-th pixel.
EVERY_NTH = NUM_MODES

# How far numbers may walk from one frame of a window to the next: standard deviations of blurs, their angle, the
# exponents of generalized and of plateau kernels, and the cutoff of low-pass filters; the factor of a resize; the
# standard deviation of noise in 255ths, and Poisson's scale; the quality.
SIGMA_STEP, ANGLE_STEP, GENERALIZED_STEP, PLATEAU_STEP, OMEGA_STEP = range(5)
RESIZE_STEP, NOISE_STEP, SCALE_STEP, QUALITY_STEP = range(5, 9)

# How the order of steps is drawn, a row each: first place and end, the probability, and what is done with these places:
# shuffled; the first one becomes the last; the two steps of these numbers change places if the latter comes first.
FIRST_PLACE, END_PLACE, ORDER_P, REORDER = range(4)
SHUFFLE, FIRST_LAST, KEEP_ORDER = range(3)
