"""Makes the golden datasets next to it: run once with the release that brought joinable content digests, never again.

They hold what every later release must still read, verify and join; tests/test_store_contents.py does so. PARTS are
parts of "whole". From the root of the repository: python tests/data/joinable/make_joinable.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
COUNT = 12
PARTS = {"first": range(5), "rest": range(5, COUNT)}


def samples(rows: range = range(COUNT)) -> Iterator[dict[str, Any]]:
    """Yield samples whose every value follows from their number."""
    for i in rows:
        y, x, c = np.ogrid[: 6 + i, :9, :3]
        small = {"label": i - 2, "score": i / 3, "caption": "grün" * (i % 4), "vector": np.arange(i % 2 + 1) * 0.5}
        yield {"image": (y * 7 + x * 5 + c * 50 + i).astype(np.uint8), **small}


def main() -> None:
    """Write the datasets."""
    import lmdbloader

    for name, rows in {"whole": range(COUNT), **PARTS}.items():
        lmdbloader.write(samples(rows), HERE / f"{name}.lmdb", codec="lz4")


if __name__ == "__main__":
    main()
