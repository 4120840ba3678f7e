"""The decoder of `delta` that docs/reference/format.md gives in plain NumPy, and payloads made by hand."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.kernels import entries
from lmdbloader.kernels.delta.layout import NUMBERS

_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "format.md"
# Codes of 8 bits for all differences: sixteen runs of sixteen.
_PLAIN_TABLE = bytes([8 | 15 << 4] * 16)


def documented_decoder() -> Callable[..., np.ndarray]:
    """Return `decode_delta(payload, channels, height, width, bits)` as the documentation has it."""
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "def decode_delta" in block)
    names: dict[str, Any] = {"np": np, "struct": struct}
    exec(block, names)
    return names["decode_delta"]


decode_delta = documented_decoder()


def plain_payload(differences: np.ndarray, width: int, predictors: Sequence[int]) -> bytes:
    """Return a payload whose codes are the numbers of the differences.

    Args:
        differences: (channels, bytes of a value, pixels) uint8.
        width: Of the image.
        predictors: Of each channel.
    """
    channels, itemsize, count = differences.shape
    numbers, share = NUMBERS[differences].reshape(-1, count), count // 8
    streams = [numbers[:, k * share : (k + 1) * share if k < 7 else count].tobytes() for k in range(8)]
    tables = b"".join(bytes([predictor]) + _PLAIN_TABLE * itemsize for predictor in predictors)
    return b"".join(streams) + tables + struct.pack("<8HIBB", *map(len, streams), width, channels, itemsize)


def encoded(image: np.ndarray) -> bytes:
    """Return the payload of an image (C, H, W), however long."""
    channels, height, width = image.shape
    out = np.empty(2 * image.nbytes + 1000 * channels, np.uint8)
    work = np.empty(entries.delta_room(image.nbytes, channels * image.itemsize), np.uint8)
    data = np.ascontiguousarray(image).reshape(-1).view(np.uint8)
    found = entries.delta_compress(data, channels, height, width, image.itemsize, out, out.size - 16, work)
    return out[:found].tobytes()
