"""Made the golden set here, with release 0.1.0, when sets were new: `python tests/data/sets/make_set.py`.

A set of two parts with other codecs; the only long text is in the second. Every later release reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import lmdbloader
from lmdbloader.format.layout import part_name
from lmdbloader.store.writing.sets import write_set

COUNTS = (3, 2)


def samples() -> list[dict[str, Any]]:
    """Return the samples of both parts."""
    return [
        {
            "image": np.repeat(np.arange(8, dtype=np.uint8) + i, 60).reshape(8, 20, 3),
            "caption": "long " * 30 if i == 4 else f"ü{i}",
            "label": i % 2,
        }
        for i in range(sum(COUNTS))
    ]


def make() -> None:
    """Write the set next to this file."""
    folder = Path(__file__).parent / "set.lmdb"
    folder.mkdir()
    names = [part_name(0), part_name(1)]
    for name, part, codec in zip(names, (samples()[:3], samples()[3:]), ("raw", "lz4"), strict=True):
        lmdbloader.write(part, folder / name, codec=codec, classes={"label": ["cat", "dog"]})
    write_set(folder, names, classes={"label": ("cat", "dog")}, made_by={"lmdbloader": lmdbloader.__version__})


if __name__ == "__main__":
    make()
