"""Makes the golden dataset next to it: run once with the release that brought masks, never again.

It holds what every later release must still read; tests/test_fields_masks.py compares it with the formula below.
From the root of the repository: python tests/data/masks/make_masks.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def samples() -> Iterator[dict[str, Any]]:
    """Yield samples whose every value follows from their number; the last mask is stored in tiles."""
    for i, (height, width) in enumerate([(9, 14), (5, 6), (520, 510)]):
        y, x = np.ogrid[:height, :width]
        mask = ((y // 3 + x // 4 + i) % 5).astype(np.uint8)
        mask[0] = 254
        wide = mask[:5, :6].astype(np.uint16) * 257
        yield {"image": np.full((4, 4, 3), i, np.uint8), "mask": mask, "wide": wide}


def main() -> None:
    """Write the dataset."""
    import lmdbloader
    from lmdbloader import fields

    declared = {"mask": fields.Mask(ignore_index=254), "wide": fields.Mask(ignore_index=65278)}
    lmdbloader.write(samples(), HERE / "masks.lmdb", fields=declared, codec={"mask": "lz4", "wide": "raw"})


if __name__ == "__main__":
    main()
