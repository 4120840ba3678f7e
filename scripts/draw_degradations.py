"""Draws the pictures of docs/how-to/degradations.md: random draws of each preset, and the steps of one chain.

python scripts/draw_degradations.py                # into docs/how-to/pictures
python scripts/draw_degradations.py --out DIR      # into another folder
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage import data

import lmdbloader
from lmdbloader import Loader, fields
from lmdbloader.kernels.degrade import modes, steps
from lmdbloader.superres import degradations
from lmdbloader.transforms import CenterCrop

OUT = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "pictures"
PRESETS = ("real_esrgan", "bsrgan", "bsrgan_plus", "first_order", "neosr", "trainner_redux")
SIZE, SCALE, ROWS, COLUMNS = 256, 4, 3, 8
# A sample whose chain has many steps.
SEED, SHOWN = 1, 20


def low_images(folder: Path, degradation: degradations.Degradation, count: int) -> torch.Tensor:
    """Return the `lr` (count, 3, H, W) of the first samples of a dataset."""
    loader = Loader(folder, count, shuffle=False, transforms=[CenterCrop(SIZE), degradation], seed=SEED, num_threads=1)
    batch = next(iter(loader))
    loader.close()
    return batch.lr


def enlarged(images: torch.Tensor) -> np.ndarray:
    """Return images (n, 3, H, W) as one row (2 H, n 2 W, 3), each pixel twice as wide and high."""
    twice = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return np.concatenate(list(twice.permute(0, 2, 3, 1).numpy()), 1)


def after_each_step(folder: Path, degradation: degradations.Degradation) -> np.ndarray:
    """Return one sample after each step of its chain, in the size of the result."""
    drawn, orders, _ = degradation.draw(np.array([SHOWN]), SIZE, SIZE, seed=SEED)
    order = [k for k in orders[0] if drawn[0, k, steps.DONE]]
    found = []
    for number in range(len(order) + 1):
        kept = order[:number]
        chain = [s if k in kept else {} for k, s in enumerate(degradation.variants[0].steps)]
        shown = {
            steps.CODE: steps.RESIZE, steps.P: 1.0, steps.OF: steps.OF_RESULT, steps.MODES + modes.AREA_OF_PARTS: 1.0,
        }  # fmt: skip
        variant = dataclasses.replace(degradation.variants[0], steps=(*chain, shown))
        cut = dataclasses.replace(degradation, variants=(variant,))
        found.append(low_images(folder, cut, SHOWN + 1)[SHOWN])
    return enlarged(torch.stack(found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where to write them [%(default)s]")
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    photograph = data.astronaut()[20 : 20 + SIZE, 90 : 90 + SIZE]
    with tempfile.TemporaryDirectory(prefix="lmdbloader-degradations-") as temporary:
        folder = Path(temporary) / "hr.lmdb"
        lmdbloader.write([{"hr": photograph}] * (ROWS * COLUMNS), folder, fields={"hr": fields.Image()})
        for name in PRESETS:
            low = low_images(folder, getattr(degradations, name)(SCALE), ROWS * COLUMNS)
            rows = [enlarged(low[k : k + COLUMNS]) for k in range(0, len(low), COLUMNS)]
            Image.fromarray(np.concatenate(rows)).save(out / f"{name}.jpg", quality=88)
        Image.fromarray(after_each_step(folder, degradations.real_esrgan(SCALE))).save(out / "steps.jpg", quality=90)
    print(f"{len(PRESETS) + 1} pictures in {out}")


if __name__ == "__main__":
    main()
