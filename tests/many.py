"""Datasets of many tiny samples, which the store's writer makes in a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from payloads import write_chunks

from lmdbloader.format.codecs import Payloads
from lmdbloader.format.layout import make_field
from lmdbloader.kernels import entries
from lmdbloader.store import Chunk, estimate_map_nbytes

_AT_ONCE = 50_000
_NBYTES = 3


def write_many(path: Path, count: int, *, images: tuple[str, ...] = ("image",)) -> Path:
    """Write samples with images of one pixel, whose first value is the sample's number modulo 251, and `label`."""
    fields = [*(make_field(name, "image", "raw") for name in images), make_field("label", "int")]
    nbytes = estimate_map_nbytes(count * _NBYTES * len(images), count * len(images))
    firsts = range(0, count, _AT_ONCE)
    chunks = (_chunk(np.arange(first, min(first + _AT_ONCE, count)), images) for first in firsts)
    write_chunks(path, fields, chunks, map_nbytes=nbytes)
    return path


def _chunk(numbers: np.ndarray[tuple[int], np.dtype[np.int64]], images: tuple[str, ...]) -> Chunk:
    n = len(numbers)
    pixels, lengths, sums = np.zeros((n, _NBYTES), np.uint8), np.full(n, _NBYTES), np.empty(n, np.uint64)
    pixels[:, 0] = numbers % 251
    data = pixels.reshape(-1)
    entries.hash_many(data, np.arange(n) * _NBYTES, lengths, sums)
    payloads = Payloads(data, lengths, lengths, sums, np.zeros(n, np.uint8))
    geometry = {"height": 1, "width": 1, "channels": 3, "bits": 8}
    columns = {f"{name}.{part}": np.full(n, value) for name in images for part, value in geometry.items()}
    return Chunk(n, dict.fromkeys(images, payloads), {"label": numbers, **columns})
