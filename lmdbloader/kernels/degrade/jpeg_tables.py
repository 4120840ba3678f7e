"""The numbers of JPEG that Python and kernels share: tables of quantization, and colors."""

from __future__ import annotations

import numpy as np

LUMINANCE = np.array(
    [
        16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29,
        51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121,
        120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
    ],
    np.uint8,
)  # fmt: skip
COLOR = np.array(
    [
        17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99,
        99, 99, 99, 99,
    ]
    + [99] * 32,
    np.uint8,
)  # fmt: skip
# RGB to YCbCr: factors and term; libjpeg's are of 16 bits of fraction and round.
TO_YCC = np.array(
    [[0.299, 0.587, 0.114, -128], [-0.168736, -0.331264, 0.5, 0], [0.5, -0.418688, -0.081312, 0]], np.float32
)
TO_YCC_BITS = np.array(
    [[19595, 38470, 7471, 32768], [-11059, -21709, 32768, 8421375], [32768, -27439, -5329, 8421375]], np.float32
)
TO_RGB = np.array([[0, 1.402], [-0.344136, -0.714136], [1.772, 0]], np.float32)
