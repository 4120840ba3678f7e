"""Small datasets that between them hold every kind of field and every way of storing a payload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .material import NAMES, photographs

FILES = ("data.mdb", "index.arrow", "manifest.json")


def make_datasets(folder: Path) -> dict[str, Path]:
    """Make the datasets; return their paths by name.

    pairs: patches in lz4, with their sources; values: every kind of field, images raw and in lz4; tiles: images large
    enough for them, 8 and 16 bits; jpegs: files with seek tables; files: PNGs as they are, decoded by Pillow.
    """
    import lmdbloader

    pngs = photographs(folder / "png", 2, 64, 96)
    jpegs = photographs(folder / "jpg", 3, 96, 144, suffix="jpg")
    paths = {name: folder / f"{name}.lmdb" for name in ("pairs", "values", "tiles", "jpegs", "files")}
    lmdbloader.convert(pngs, paths["pairs"], patch_size=32, scale=2, codec="lz4", workers=1)
    lmdbloader.convert(jpegs, paths["jpegs"], workers=1)
    lmdbloader.convert(pngs, paths["files"], write_mode="original", workers=1)
    lmdbloader.write(_values(24, 32), paths["values"], codec={"lz4": "lz4", "array": "lz4"})
    lmdbloader.write(_large(304, 296), paths["tiles"], codec={"raw": "raw", "lz4": "lz4", "deep": "lz4"})
    return paths


def _crop(name: str, height: int, width: int) -> Any:
    import numpy as np
    import skimage.data

    image = getattr(skimage.data, name)()
    image = image if image.ndim == 3 else np.repeat(image[:, :, None], 3, 2)
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return np.ascontiguousarray(image[top : top + height, left : left + width, :3])


def _values(height: int, width: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    for i, name in enumerate(NAMES):
        image = _crop(name, height, width)
        yield {
            "raw": image, "lz4": image // 16 * 16, "array": np.full((3, 40), i, np.float32), "data": bytes([i]) * i,
            "more": {"name": name, "of": [i, None]}, "number": i, "share": i / 7, "words": f"{name} é",
        }  # fmt: skip


def _large(height: int, width: int) -> Iterator[dict[str, Any]]:
    import numpy as np

    image = _crop("astronaut", height, width)
    yield {"raw": image, "lz4": image // 32 * 32, "deep": image.astype(np.uint16)[:, :, :1] * 256}
