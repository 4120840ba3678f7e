"""Counts of what a dataset stores: images by how they are stored, and by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmdbloader.format.codecs import name_counts
from lmdbloader.format.layout import Field

_MOST_BITS = 32
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Tally:
    """What a dataset stores.

    Attributes:
        stored_as: How many images of all fields are stored how: raw, lz4, tiles, jpeg or file.
        longest_sides: How many samples by their image's longer side: up to 1, 2, 4, 8 ... pixels; of a pair the larger
            one's, which is the last.
    """

    stored_as: Mapping[str, int]
    longest_sides: Mapping[int, int]


def tally(fields: Sequence[Field], columns: Mapping[str, Any], num_samples: int) -> Tally:
    """Return the counts of an index.

    Args:
        fields: Of the dataset.
        columns: Of the index, by name: arrays (num_samples,).
        num_samples: How many there are.
    """
    names = [f.name for f in fields if f.kind == "image"]
    codes, bits = np.zeros(256, np.int64), np.zeros(_MOST_BITS + 1, np.int64)
    for rows in _parts(num_samples):
        for name in names:
            codes += np.bincount(columns[f"{name}.codec"][rows], minlength=256)
        height, width = (columns[f"{names[-1]}.{side}"][rows] for side in ("height", "width"))
        longest = np.maximum(height, width).astype(np.int64)
        bits += np.bincount(np.frexp(longest - 0.5)[1], minlength=_MOST_BITS + 1)
    return Tally(
        name_counts(codes),
        {1 << power: count for power, count in enumerate(bits.tolist()) if count},
    )


def _parts(num_samples: int) -> Iterator[slice]:
    for first in range(0, num_samples, _ROWS_AT_ONCE):
        yield slice(first, first + _ROWS_AT_ONCE)
