"""Makes the golden dataset next to it: run once with the release that brought its feature, never again.

Its boxes and points name the image that they are in. Every later release must read it; tests/test_batch_boxes.py
compares it with the samples below.
From the root of the repository: python tests/data/named_images/make_named_images.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def samples() -> Iterator[dict[str, Any]]:
    """Yield samples whose every value follows from their number."""
    for i in range(3):
        yield {
            "color": np.full((20, 30, 3), i, np.uint8),
            "depth": np.full((40, 60), 1000 * i, np.uint16),
            "boxes": np.array([[2, 3, 9 + k, 10] for k in range(i)], np.float32).reshape(-1, 4),
            "points": np.array([[i, 2 * i]], np.float32),
        }


def main() -> None:
    """Write the dataset."""
    import lmdbloader
    from lmdbloader import fields

    declared = {"boxes": fields.Boxes(image="color"), "points": fields.Points(image="depth")}
    lmdbloader.write(samples(), HERE / "named_images.lmdb", fields=declared, codec="lz4")


if __name__ == "__main__":
    main()
