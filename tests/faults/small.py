"""A small dataset whose samples follow from their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIDE = 24


def write_small(path: Path, count: int) -> Path:
    """Write a dataset of so many samples with every kind of field; return its path."""
    import lmdbloader

    lmdbloader.write((_sample(number) for number in range(count)), path, codec="lz4")
    return path


def _sample(number: int) -> dict[str, Any]:
    return {
        "image": np.full((SIDE, SIDE, 3), number % 251, np.uint8),
        "number": number,
        "name": f"sample {number}",
        "vector": np.full(3, number, np.float32),
    }


def is_right(number: int, sample: Any) -> bool:
    """Return whether a sample is the one of that number."""
    return bool(
        (sample.image == number % 251).all()
        and int(sample.number) == number
        and sample.name == f"sample {number}"
        and np.array_equal(np.asarray(sample.vector), np.full(3, number, np.float32))
    )
