"""Makes the golden datasets beside it: run once with the release that defined format version 1, never again.

They hold what every later release must still read; tests/test_store_reader.py compares them with the formulas below.
From the root of the repository: python tests/data/format1/make.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def pixels(height: int, width: int, channels: int, dtype: Any = np.uint8) -> np.ndarray:
    """Return an image (H, W, C) whose every value follows from its place."""
    y, x, c = np.ogrid[:height, :width, :channels]
    return (y // 6 * 7 + x // 9 * 5 + c * 50).astype(dtype) * (257 if dtype == np.uint16 else 1)


def samples() -> Iterator[dict[str, Any]]:
    """Yield one sample with every kind of field for every kind of image, the last one large enough for tiles."""
    shapes = [(9, 14, 3), (5, 6, 1), (1, 1, 3), (300, 310, 3)]
    for i, shape in enumerate(shapes):
        yield {
            "raw": pixels(*shape[:2], 1)[:20, :20],
            "image": pixels(*shape, np.uint16 if i == 1 else np.uint8),
            "mask": np.arange(i * 2, dtype=np.float32).reshape(i, 2),
            "label": i - 2,
            "score": i / 8,
            "caption": "grün" * i,
            "blob": bytes(range(i)),
            "extra": {"number": i, "list": [None, True, "é"]},
        }


def photographs(folder: Path) -> None:
    """Write two images in two class folders."""
    from PIL import Image

    for name, size in (("cat/a.png", 20), ("dog/ü.png", 33)):
        (folder / name).parent.mkdir(parents=True)
        Image.fromarray(pixels(size, size + 5, 3)).save(folder / name)


def main() -> None:
    """Write samples.lmdb, from Python, and patches.lmdb, converted from class folders."""
    import lmdbloader

    codecs = {"raw": "raw", "image": "lz4", "mask": "lz4", "blob": "raw", "extra": "raw"}
    lmdbloader.write(samples(), HERE / "samples.lmdb", codec=codecs)
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder) / "photos")
        source, out = Path(folder) / "photos", HERE / "patches.lmdb"
        lmdbloader.convert(source, out, layout="classes", patch_size=10, codec="lz4")


if __name__ == "__main__":
    main()
