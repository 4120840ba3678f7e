"""Makes the golden datasets beside it: run once with the release that defined format version 2, never again.

They hold what every later release must still read; tests/test_store_reader.py compares them with the formula below.
From the root of the repository: python tests/data/format2/make_format2.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
NAMES = ("sha256", "blake3")


def samples() -> Iterator[dict[str, Any]]:
    """Yield samples whose every value follows from their number."""
    for i in range(30):
        y, x, c = np.ogrid[: 20 + i, :25, :3]
        yield {"image": (y * 7 + x * 5 + c * 50 + i).astype(np.uint8), "label": i - 2, "caption": "grün" * (i % 4)}


def main() -> None:
    """Write a dataset of each algorithm."""
    import lmdbloader

    for name in NAMES:
        lmdbloader.write(samples(), HERE / f"{name}.lmdb", codec="lz4", digest=name)


if __name__ == "__main__":
    main()
