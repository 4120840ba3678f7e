"""Tries an installed lmdbloader without this clone, in a folder that holds photos/ (PNG) and jpegs/.

    python -I smoke.py all          # converts, reads, loads and verifies
    python -I smoke.py patches      # afterwards: prints the seconds from torch imported to the first batch
    python -I smoke.py jpegs        # the same for JPEG files

scripts/release_check.py runs it in the environment that it makes.
"""

from __future__ import annotations

import argparse
import time


def main() -> None:
    """Do the part that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["all", "patches", "jpegs"], help="`all` comes first: it makes the datasets")
    part = parser.parse_args().part

    import torch

    torch_imported = time.perf_counter()
    import lmdbloader
    from lmdbloader import transforms as t

    patches = [t.RandomCrop(32), t.RandomDihedral(), t.ToDtype(torch.float32, scale=True)]
    crops = [t.RandomResizedCrop(64), t.ToDtype(torch.float32, scale=True), t.Normalize(0.45, 0.22)]
    if part == "all":
        if "site-packages" not in lmdbloader.__file__:
            raise SystemExit(f"{lmdbloader.__file__} is not installed")
        for codec in ("raw", "lz4"):
            done = lmdbloader.convert("photos", f"{codec}.lmdb", patch_size=48, stride=48, scale=2, codec=codec)
            ds = lmdbloader.LMDBDataset(f"{codec}.lmdb")
            assert len(ds) > 100, done
            lr, hr = ds[len(ds) - 1]
            assert lr.shape == (3, 24, 24) and hr.shape == (3, 48, 48)
            shapes = [
                tuple(hr.shape) for _, hr in lmdbloader.Loader(ds, batch_size=16, shuffle=True, transforms=patches)
            ]
            assert set(shapes[:-1]) == {(16, 3, 32, 32)}, shapes
            assert lmdbloader.verify(f"{codec}.lmdb").is_sound
        lmdbloader.convert("jpegs", "jpegs.lmdb")
        ds = lmdbloader.LMDBDataset("jpegs.lmdb")
        images = next(iter(lmdbloader.Loader(ds, batch_size=4, shuffle=True, transforms=crops)))[0]
        assert images.shape == (4, 3, 64, 64) and 0.3 < float(images.std()) < 3
        assert lmdbloader.verify("jpegs.lmdb").is_sound
        print(f"smoke test: lmdbloader {lmdbloader.__version__}, torch {torch.__version__}: patches, JPEG, verify")
    else:
        ds = lmdbloader.LMDBDataset("raw.lmdb" if part == "patches" else "jpegs.lmdb")
        next(
            iter(lmdbloader.Loader(ds, batch_size=4, shuffle=True, transforms=patches if part == "patches" else crops))
        )
        print(time.perf_counter() - torch_imported)


if __name__ == "__main__":
    main()
