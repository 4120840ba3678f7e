"""The numbers that say how a payload is stored; it imports nothing, as compiled kernels stay valid while it does."""

from __future__ import annotations

# The last two are of images: a JPEG file with a seek table behind it, any other image file.
CODEC_RAW, CODEC_LZ4, CODEC_TILES, CODEC_JPEG, CODEC_FILE = 0, 1, 2, 3, 4
