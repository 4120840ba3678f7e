"""Makes the golden dataset next to it: run once with the release that brought its features, never again.

It has names with 64-bit offsets, tables of tiles that are verified in groups, and long texts. Every later release must
read it; tests/test_fields_text.py compares it with the formula below.
From the root of the repository: python tests/data/features/make_features.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def samples() -> Iterator[dict[str, Any]]:
    """Yield samples whose every value follows from their number; the second image has 81 tiles, in two groups."""
    for i, (height, width) in enumerate([(9, 14), (520, 516), (5, 6)]):
        y, x = np.ogrid[:height, :width]
        yield {
            "image": ((y // 16 + x // 24 + i) % 5).astype(np.uint8),
            "caption": "äb" * (i * 60),
            "name": f"ö{i}",
            "facts": np.full((i, 2), i, np.float32),
        }


def main() -> None:
    """Write the dataset."""
    import lmdbloader

    lmdbloader.write(samples(), HERE / "features.lmdb", codec="lz4")


if __name__ == "__main__":
    main()
