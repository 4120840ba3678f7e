"""Counts of what a conversion stores: images by how they are stored, and by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lmdbloader.format import CODEC_NAMES, Field
from lmdbloader.store import Chunk

_MOST_BITS = 32


class Tally:
    """Counts chunk by chunk.

    Args:
        fields: Of the dataset.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._names = [f.name for f in fields if f.kind == "image"]
        self._codes = np.zeros(len(CODEC_NAMES), np.int64)
        self._bits = np.zeros(_MOST_BITS + 1, np.int64)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk's images."""
        for name in self._names:
            self._codes += np.bincount(chunk.payloads[name].codec, minlength=len(CODEC_NAMES))
        # Of a pair the larger one, which is the last.
        height, width = (np.asarray(chunk.columns[f"{self._names[-1]}.{side}"]) for side in ("height", "width"))
        longest = np.maximum(height, width).astype(np.int64)
        self._bits += np.bincount(np.frexp(longest - 0.5)[1], minlength=_MOST_BITS + 1)

    @property
    def stored_as(self) -> Mapping[str, int]:
        """How many images of all fields are stored how: raw, lz4, tiles, jpeg or file."""
        return {name: count for name, count in zip(CODEC_NAMES, self._codes.tolist(), strict=True) if count}

    @property
    def longest_sides(self) -> Mapping[int, int]:
        """How many samples by their image's longer side: up to 1, 2, 4, 8 ... pixels."""
        return {1 << bits: count for bits, count in enumerate(self._bits.tolist()) if count}
