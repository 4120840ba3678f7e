"""The decoder of `delta` that docs/reference/format.md gives in plain NumPy, and payloads made by hand."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.kernels import entries
from lmdbloader.kernels.delta import layout

_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "format.md"


def _documented() -> dict[str, Any]:
    """Return the names of the documentation's decoder."""
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"np": np, "struct": struct}
    for block in blocks:
        if "def decode_delta" in block or block.startswith("DELTA ="):
            exec(block, names)
    return names


_NAMES = _documented()
# decode_delta(payload, channels, height, width, bits) -> image, and the rows of its table.
decode_delta: Callable[..., np.ndarray] = _NAMES["decode_delta"]
DELTA: list[str] = _NAMES["DELTA"]


def write_streams(codes: Iterable[str]) -> list[bytes]:
    """Return eight streams of codes, each a text of 0 and 1, in turn."""
    texts = [""] * 8
    for number, code in enumerate(codes):
        texts[number % 8] += code
    return [bytes(int(text[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(text), 8)) for text in texts]


def codes_of_kinds(kinds: np.ndarray) -> list[str]:
    """Return the codes of a group's kinds of blocks, the first ones in its streams."""
    steps = np.diff(kinds, prepend=0) & 15
    steps = np.pad(steps, (0, -len(steps) % 16))
    entries_of = layout.ENCODED[(steps[0::2] | steps[1::2] << 4)[::-1]]
    return [f"{int(entry) >> 8:0{int(entry) & 15}b}" for entry in entries_of]


def plain_payload(differences: np.ndarray, width: int, predictors: Sequence[int], shift: int = 0) -> bytes:
    """Return a payload in which all bits of the differences are raw; of at most 1,024 blocks.

    Args:
        differences: (channels, bytes of a value, pixels) uint8.
        width: Of the image.
        predictors: Of each channel.
        shift: Bits by which values are shifted.
    """
    channels, itemsize, count = differences.shape
    planes = differences.reshape(channels * itemsize, count // width, width)
    steps = [(p, y, x) for p in range(len(planes)) for y in range(0, count // width, 8) for x in range(0, width, 8)]
    blocks = [planes[p, y : y + 8, x : x + 8].reshape(-1) for p, y, x in steps]
    raw = b""
    for block in sorted(blocks, key=lambda block: len(block) < 64):
        padded = np.pad(block, (0, -len(block) % 16))
        raw += b"".join(np.packbits(padded >> bit & 1, bitorder="little").tobytes() for bit in range(7, -1, -1))
    streams = write_streams(codes_of_kinds(np.full(len(blocks), layout.RAW)))
    foot = struct.pack("<8HIBB", *map(len, streams), width, channels, itemsize | shift << 4)
    return b"".join(streams) + raw + bytes(predictors) + foot


def encoded(image: np.ndarray) -> bytes:
    """Return the payload of an image (C, H, W), however long."""
    channels, height, width = image.shape
    out = np.empty(2 * image.nbytes + 1000 * channels, np.uint8)
    work = np.empty(entries.delta_room(image.nbytes, channels * image.itemsize), np.uint8)
    data = np.ascontiguousarray(image).reshape(-1).view(np.uint8)
    found = entries.delta_compress(data, channels, height, width, image.itemsize, out, out.size - 16, work)
    return out[:found].tobytes()
