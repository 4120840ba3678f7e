"""Reads the fields that no pipeline reads: numbers, text, arrays, and images that differ in shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.batch.sample import Ragged
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import Field
from lmdbloader.store import Reader

I64 = npt.NDArray[np.int64]
# From uint8 (1 byte) and uint16 (2 bytes) pixels to numbers from 0 to 1.
_FACTORS = {1: np.float32(1 / 255), 2: np.float32(1 / 65535)}


def read_values(reader: Reader, f: Field, rows: I64, clock: Clock = NO_CLOCK) -> Any:
    """Return the values of a field that is not of images.

    Args:
        reader: Of the dataset.
        f: The field.
        rows: (B,) rows of the index.
        clock: This thread's, started.

    Returns:
        Numbers as a NumPy array (B,), arrays of one shape as a tensor (B, ...), boxes and the like as `Ragged`, other
        values as a list.

    Raises:
        CorruptError: A payload is damaged, or is not a value of the field's kind.
    """
    if f.kind == "array":
        return stack_if_equal([torch.from_numpy(reader.read_array(f.name, row, clock=clock)) for row in rows.tolist()])
    kind = kind_named(f.kind)
    if f.is_payload and not f.holds_text:
        found = [reader.read_value(f.name, row, clock=clock) for row in rows.tolist()]
        return Ragged(map(torch.from_numpy, found)) if kind.is_ragged else found
    if f.holds_text:
        values: Any = reader.read_texts(f.name, rows, clock=clock)
    else:
        values = reader.index.take(f.name, rows)
    return values if kind.decode is None else [kind.decode(value) for value in values]


def read_different_images(
    reader: Reader, name: str, rows: I64, dtype: torch.dtype | None, clock: Clock = NO_CLOCK
) -> Any:
    """Return images as stored or, with a dtype, from 0 to 1; masks (H, W) as stored.

    They are one tensor if all have one shape, else a list.

    Raises:
        CorruptError: A payload is damaged.
    """
    nbytes = reader.raw_nbytes(name, rows)
    # Each image starts on an 8-byte boundary: 16-bit pixels need an even one.
    room = -(-nbytes // 8) * 8
    start = np.cumsum(room) - room
    buffer = np.empty(int(room.sum()), np.uint8)
    reader.read_into(name, rows, buffer, start, nbytes, clock=clock)
    images, is_mask = [], reader.fields[name].kind == "mask"
    for row, at, length in zip(rows.tolist(), start.tolist(), nbytes.tolist(), strict=True):
        pixels = reader.as_image(name, row, buffer[at : at + length])
        if dtype is not None and not is_mask:
            pixels = pixels.astype(np.float32) * _FACTORS[pixels.itemsize]
        image = torch.from_numpy(pixels[0] if is_mask else pixels)
        images.append(image if dtype is None or is_mask else image.to(dtype))
    return stack_if_equal(images)


def stack_if_equal(values: list[torch.Tensor]) -> Any:
    """Return tensors of one shape and dtype as one tensor (B, ...), others unchanged."""
    if values and all(v.shape == values[0].shape and v.dtype == values[0].dtype for v in values):
        return torch.stack(values)
    return values
