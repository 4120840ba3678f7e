"""What policies choose from: operations, their magnitudes, and AutoAugment's sub-policies; no compiler is imported."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# The operations. RandAugment and TrivialAugmentWide choose among those before INVERT, AugMix among those without
# IDENTITY too, or without BRIGHTNESS to SHARPNESS.
NAMES = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
)  # fmt: skip
(
    IDENTITY, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE,
    SOLARIZE, AUTO_CONTRAST, EQUALIZE, INVERT,
) = range(15)  # fmt: skip
NUM_RANDOM, NUM_COLORS = INVERT, SHARPNESS - BRIGHTNESS + 1

# The spaces of magnitudes: of RandAugment and AutoAugment, TrivialAugmentWide, and AugMix. Their largest magnitude of
# SHEAR_X ... SHARPNESS, which have a sign: a tangent, pixels, degrees, or a change of a factor of 1. Shares of the
# image's side are negative. Bits that POSTERIZE keeps at magnitude 0, and how many fewer at the largest one.
STANDARD, WIDE, MIXED = range(3)
LARGEST: npt.NDArray[np.float64] = np.array([
    [0, 0.3, 0.3, -150 / 331, -150 / 331, 30, 0.9, 0.9, 0.9, 0.9],
    [0, 0.99, 0.99, 32, 32, 135, 0.99, 0.99, 0.99, 0.99],
    [0, 0.3, 0.3, -1 / 3, -1 / 3, 30, 0.9, 0.9, 0.9, 0.9],
])  # fmt: skip
BITS: npt.NDArray[np.float64] = np.array([[8, 4], [8, 6], [4, 4]], np.float64)

# AutoAugment's sub-policies: two operations each, with their probability in tenths and their magnitude of 0 to 9.
POLICIES = ("imagenet", "cifar10", "svhn")
_TEXTS = (
    """
    Posterize 4 8 Rotate 6 9; Solarize 6 5 AutoContrast 6 -; Equalize 8 - Equalize 6 -; Posterize 6 7 Posterize 6 6;
    Equalize 4 - Solarize 2 4; Equalize 4 - Rotate 8 8; Solarize 6 3 Equalize 6 -; Posterize 8 5 Equalize 10 -;
    Rotate 2 3 Solarize 6 8; Equalize 6 - Posterize 4 6; Rotate 8 8 Color 4 0; Rotate 4 9 Equalize 6 -;
    Equalize 0 - Equalize 8 -; Invert 6 - Equalize 10 -; Color 6 4 Contrast 10 8; Rotate 8 8 Color 10 2;
    Color 8 8 Solarize 8 7; Sharpness 4 7 Invert 6 -; ShearX 6 5 Equalize 10 -; Color 4 0 Equalize 6 -;
    Equalize 4 - Solarize 2 4; Solarize 6 5 AutoContrast 6 -; Invert 6 - Equalize 10 -; Color 6 4 Contrast 10 8;
    Equalize 8 - Equalize 6 -
    """,
    """
    Invert 1 - Contrast 2 6; Rotate 7 2 TranslateX 3 9; Sharpness 8 1 Sharpness 9 3; ShearY 5 8 TranslateY 7 9;
    AutoContrast 5 - Equalize 9 -; ShearY 2 7 Posterize 3 7; Color 4 3 Brightness 6 7; Sharpness 3 9 Brightness 7 9;
    Equalize 6 - Equalize 5 -; Contrast 6 7 Sharpness 6 5; Color 7 7 TranslateX 5 8; Equalize 3 - AutoContrast 4 -;
    TranslateY 4 3 Sharpness 2 6; Brightness 9 6 Color 2 8; Solarize 5 2 Invert 0 -; Equalize 2 - AutoContrast 6 -;
    Equalize 2 - Equalize 6 -; Color 9 9 Equalize 6 -; AutoContrast 8 - Solarize 2 8; Brightness 1 3 Color 7 0;
    Solarize 4 5 AutoContrast 9 -; TranslateY 9 9 TranslateY 7 9; AutoContrast 9 - Solarize 8 3;
    Equalize 8 - Invert 1 -; TranslateY 7 9 AutoContrast 9 -
    """,
    """
    ShearX 9 4 Invert 2 -; ShearY 9 8 Invert 7 -; Equalize 6 - Solarize 6 6; Invert 9 - Equalize 6 -;
    Equalize 6 - Rotate 9 3; ShearX 9 4 AutoContrast 8 -; ShearY 9 8 Invert 4 -; ShearY 9 5 Solarize 2 6;
    Invert 9 - AutoContrast 8 -; Equalize 6 - Rotate 9 3; ShearX 9 4 Solarize 3 3; ShearY 8 8 Invert 7 -;
    Equalize 9 - TranslateY 6 6; Invert 9 - Equalize 6 -; Contrast 3 3 Rotate 8 4; Invert 8 - TranslateY 0 2;
    ShearY 7 6 Solarize 4 8; Invert 6 - Rotate 8 4; ShearY 3 7 TranslateX 9 3; ShearX 1 6 Invert 6 -;
    Solarize 7 2 TranslateY 6 7; ShearY 8 4 Invert 8 -; ShearX 7 9 TranslateY 8 3; ShearY 8 5 AutoContrast 7 -;
    ShearX 7 2 Invert 1 -
    """,
)


def _table(text: str) -> list[list[int]]:
    """Return the sub-policies of a text, the six numbers of each."""
    found = []
    for entry in text.split(";"):
        words = entry.replace("-", "0").split()
        found.append([NAMES.index(word) if word in NAMES else int(word) for word in words])
    return found


# (policies, sub-policies, 6) int64: operation, tenths and magnitude, twice.
SUB_POLICIES: npt.NDArray[np.int64] = np.array([_table(text) for text in _TEXTS], np.int64)
NUM_SUB_POLICIES = SUB_POLICIES.shape[1]
