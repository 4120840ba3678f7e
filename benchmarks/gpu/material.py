"""Makes the datasets that the stages read, from the files of `photographs.py`; and, with FFCV, its file of pairs."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import Pairs
from stage import make, parse_stage
from stores import write_hand_written, write_png


def main() -> None:
    """Make everything that is missing; failures are noted, and the rest is made."""
    stage = parse_stage("material", __doc__)
    data, num_png = stage.data, 200 if stage.small else 8_000
    for name, source, options in conversions(data, stage.small):
        make(stage, name, lambda s=source, n=name, o=options: convert(s, data / n, o, stage.cores), [data / name])
    pngs, hand, beton = data / "pairs_png", data / "pairs_hand", data / "ffcv" / "pairs.beton"
    make(stage, "pairs_png", lambda: write_png_pairs(data / "pairs_raw", pngs, num_png, stage.cores), [pngs])
    make(stage, "pairs_hand", lambda: write_hand_written(read_pairs(data / "pairs_raw"), hand), [hand])
    import ffcv_peer

    if (reason := ffcv_peer.ffcv_available()) is not None:
        stage.leave_out("pairs.beton", reason)
        return
    from lmdbloader import LMDBDataset

    beton.parent.mkdir(exist_ok=True)
    pairs = LMDBDataset(data / "pairs_raw")
    make(stage, "pairs.beton", lambda: ffcv_peer.write_pairs(pairs, beton, workers=stage.cores), [beton])


def conversions(data: Path, small: bool) -> list[tuple[str, Path, dict[str, Any]]]:
    """Return name, source and options of every dataset."""
    pixels = {"layout": "classes", "write_mode": "raw", "max_resolution": 256}
    patches = {"patch_size": 96, "stride": 32 if small else 80, "scale": 2}
    return [
        ("raw256", data / "photos" / "train", pixels),
        ("pairs_raw", data / "div2k", {**patches, "codec": "raw"}),
        ("original", data / "photos" / "train", {"layout": "classes"}),
        ("pairs_lz4", data / "div2k", {**patches, "codec": "lz4"}),
        ("raw256_val", data / "photos" / "val", pixels),
        ("original_val", data / "photos" / "val", {"layout": "classes"}),
        ("pairs_val", data / "div2k_val", {"scale": 2}),
    ]


def convert(source: Path, path: Path, options: dict[str, Any], workers: int) -> None:
    """Convert a folder."""
    import lmdbloader

    lmdbloader.convert(source, path, workers=workers, **options)


def read_pairs(path: Path, first: int = 0, count: int | None = None) -> Pairs:
    """Return samples of a dataset of pairs as arrays."""
    from lmdbloader import LMDBDataset

    ds = LMDBDataset(path)
    stop = len(ds) if count is None else min(first + count, len(ds))
    batch = ds._many(range(first, stop))
    return Pairs(*(np.stack([np.asarray(sample[k]) for sample in batch]) for k in range(2)))


def write_png_pairs(path: Path, folder: Path, count: int, workers: int) -> None:
    """Write the first pairs of a dataset as PNG files, two a pair."""
    step = -(-count // workers)
    tasks = [(path, folder / f".{first}", first, min(step, count - first)) for first in range(0, count, step)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(write_some_pngs, tasks))
    for _, part, first, _ in tasks:
        for half in ("lr", "hr"):
            (folder / half).mkdir(exist_ok=True)
            for file in (part / half).iterdir():
                file.rename(folder / half / f"{first + int(file.stem):06d}.png")
        shutil.rmtree(part)


def write_some_pngs(task: tuple[Path, Path, int, int]) -> None:
    """Write the PNG files of a range of pairs."""
    path, folder, first, count = task
    write_png(read_pairs(path, first, count), folder)


if __name__ == "__main__":
    main()
