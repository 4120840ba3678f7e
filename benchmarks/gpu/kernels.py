"""Compiles the kernels before anything needs them: the two that take longest at once, each on its own core."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent


def write_some(folder: Path) -> Path:
    """Write a dataset of a few pairs."""
    import lmdbloader

    pair = {"lr": np.zeros((8, 8, 3), np.uint8), "hr": np.zeros((16, 16, 3), np.uint8)}
    lmdbloader.write([pair] * 4, folder, codec="lz4")
    return folder


def gather(folder: Path) -> None:
    """Verify, which takes the kernel of single samples."""
    import lmdbloader

    assert lmdbloader.verify(write_some(folder)).is_sound


def assemble(folder: Path) -> None:
    """Read a batch, which takes the kernel of batches."""
    import lmdbloader

    next(iter(lmdbloader.Loader(lmdbloader.LMDBDataset(write_some(folder)), 2)))


def main() -> None:
    """Compile all of them."""
    sys.path.insert(0, str(ROOT / "tests"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            for done in [pool.submit(gather, folder / "gather"), pool.submit(assemble, folder / "assemble")]:
                done.result()
        from conftest import compile_kernels

        # The other kernels that these need take seconds.
        (folder / "all").mkdir()
        compile_kernels(folder / "all")


if __name__ == "__main__":
    main()
