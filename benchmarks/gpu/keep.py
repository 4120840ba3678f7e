"""Stage (i): epochs of datasets that stay on the device, or decoded in the computer's memory: the first and later ones.

The batches of a later epoch are compared with those of a Loader that keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import feeds
import torch
from device_data import folder_of
from fed import rounded, synchronize
from stage import Stage, parse_stage

from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T

EPOCHS = 3
# Batches of the last epoch that are compared.
_COMPARED = 10


def main() -> None:
    """Run the stage."""
    stage = parse_stage("keep", __doc__)
    device = torch.device(stage.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    folder, size = folder_of(stage), 32 if stage.small else 128
    floats = [T.ToDtype(torch.float32, scale=True), T.Normalize(feeds.MEAN, feeds.STD)]
    cifar = [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), *floats]
    div2k = [T.RandomCrop(96), T.RandomDihedral(), T.ToDtype(torch.float32, scale=True)]
    jpegs = [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]
    on_gpu, decoded = ("kept", "on device", "copied"), ("kept decoded", "kept decoded, on device", "copied")
    rows: list[dict[str, Any]] = []
    # Pairs are read many times over in one epoch: its start does not count.
    for data, transforms, batch_size, repeat, ways in (
        ("large", div2k, 256, 512, on_gpu),
        ("tiny", cifar, 512, 1, on_gpu),
        ("large", div2k, 64, 256, on_gpu),
        ("large", div2k, 1024, 512, on_gpu),
        ("pairs", div2k, 256, 4, on_gpu),
        ("jpegs", jpegs, 256, 1, decoded),
        ("pixels", jpegs, 256, 1, ("copied",)),
    ):
        for way in ways:
            count, times = (4, 1) if stage.small else (batch_size, repeat)
            measure = partial(epochs, stage, folder / data, transforms, count, way, times)
            row = stage.attempt(f"{data}, {batch_size}, {way}", 4, measure)
            if row is not None:
                rows.append({"data": data, "batch_size": count, "way": way, **row})
                stage.put("epochs", rows)
    refusal = stage.attempt("a dataset that does not fit", 2, partial(refused, folder / "large", device))
    stage.put("refused", refusal)


def open_kept(path: Path, transforms: Sequence[T.Transform], batch_size: int, way: str, **options: Any) -> Loader:
    """Return a Loader that keeps a dataset in one of the ways."""
    options = {"seed": 0, "transforms": transforms, **feeds.WAYS[way], **options}
    return feeds.open_loader(LMDBDataset(path), batch_size, **options)


def epochs(
    stage: Stage, path: Path, transforms: Sequence[T.Transform], batch_size: int, way: str, repeat: int
) -> dict[str, Any]:
    """Time whole epochs, and compare batches of the last one with those of a plain Loader."""
    device = torch.device(stage.device)
    loader = open_kept(path, transforms, batch_size, way, device=device, repeat=repeat)
    seconds: list[float] = []
    with closing(loader):
        for _ in range(2 if stage.small else EPOCHS):
            began = time.perf_counter()
            for batch in loader:
                del batch
            synchronize(device)
            seconds.append(time.perf_counter() - began)
        there = [tuple(part.cpu() for part in tuple(batch)) for batch in islice(loader, _COMPARED)]
    plain = open_kept(path, transforms, batch_size, "copied", device="cpu", repeat=repeat)
    with closing(plain):
        plain.set_epoch(len(seconds))
        here = [tuple(part.clone() for part in tuple(batch)) for batch in islice(plain, _COMPARED)]
    count = len(LMDBDataset(path)) * repeat
    alike = [torch.equal(a, b) for one, other in zip(here, there, strict=True) for a, b in zip(one, other, strict=True)]
    return {
        "samples": count,
        "epoch_s": [rounded(each) for each in seconds],
        "first_per_s": rounded(count / seconds[0]),
        "later_per_s": rounded(count / min(seconds[1:])),
        "mib": rounded(torch.cuda.memory_allocated(device) / 2**20) if device.type == "cuda" else None,
        "is_equal": all(alike),
    }


def refused(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the error of a dataset for which a millionth of the memory may be used."""
    try:
        with closing(open_kept(path, [T.RandomCrop(96)], 2, "kept", device=device, keep_fraction=1e-7)) as loader:
            next(iter(loader))
    except Exception as error:
        return {"is_refused": True, "message": f"{type(error).__name__}: {error}"[:500]}
    return {"is_refused": False, "message": ""}


if __name__ == "__main__":
    main()
