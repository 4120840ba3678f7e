"""Stage (l): JPEG files decoded on the GPU, by what can be imported there, against this package's decoder on all cores.

Images of 500 x 375 pixels are decoded whole; the Loader takes only those of one orientation.
Wheels of decoders that the machine lacks can be put into the pack's folder `wheels`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import cycle
from typing import Any

import feeds
import numpy as np
import torch
from device_data import folder_of
from fed import rounded, synchronize
from stage import parse_stage

from lmdbloader import LMDBDataset
from lmdbloader.lab.arms import cpu_seconds
from lmdbloader.lab.stored import image_sizes

TURNS, SECONDS = 3, 1.0
Decode = Callable[[list[bytes]], Any]


def main() -> None:
    """Run the stage."""
    stage = parse_stage("jpeg", __doc__)
    device = torch.device(stage.device)
    dataset = LMDBDataset(folder_of(stage) / "jpegs")
    sizes = image_sizes(dataset, "image")
    alike = np.flatnonzero((sizes == sizes[0]).all(axis=1))
    paths = sorted((folder_of(stage) / "photos" / "train").rglob("*.jpg"))
    files = [path.read_bytes() for path in paths[: 32 if stage.small else 1024]]
    rows: list[dict[str, Any]] = []
    ours = feeds.open_loader(dataset.select(alike), min(64, len(alike)), device=device, seed=0, drop_last=True)
    with closing(ours):
        feed = feeds.loader_feed("", ours, device)
        batches = feed.raw()
        row = stage.attempt("Loader", 4, partial(rate, lambda: next(batches), ours.batch_size, device, stage.small))
        batches.close()  # type: ignore[attr-defined]
    if row is not None:
        rows.append({"decoder": "Loader", "batch_size": ours.batch_size, "cores": stage.cores, **row})
    stage.put("decoders", rows)
    for name, prepare in DECODERS.items():
        for batch_size in (4,) if stage.small else (64, 256):
            several = [files[first : first + batch_size] for first in range(0, len(files) - batch_size + 1, batch_size)]
            try:
                decode = prepare(device)
            except Exception as error:  # not there, or built without it
                stage.leave_out(name, f"{type(error).__name__}: {error}"[:300])
                break
            ready = cycle(several)
            function = lambda decode=decode, ready=ready: decode(next(ready))  # noqa: E731
            row = stage.attempt(f"{name}, {batch_size}", 4, partial(rate, function, batch_size, device, stage.small))
            if row is not None:
                rows.append({"decoder": name, "batch_size": batch_size, **row})
                stage.put("decoders", rows)


def rate(function: Callable[[], Any], batch_size: int, device: torch.device, small: bool) -> dict[str, Any]:
    """Return the images a second of a function that decodes a batch, and the cores that are busy."""
    for _ in range(3):
        function()
    speeds, cpu, first = [], cpu_seconds(), time.perf_counter()
    for _ in range(TURNS):
        count, began = 0, time.perf_counter()
        while not count or time.perf_counter() - began < (0 if small else SECONDS):
            function()
            count += 1
        synchronize(device)
        speeds.append(count * batch_size / (time.perf_counter() - began))
    busy = (cpu_seconds() - cpu) / (time.perf_counter() - first)
    middle = rounded(statistics.median(speeds))
    return {"images_per_s": middle, "turns": list(map(rounded, speeds)), "busy": rounded(busy)}


def by_torchvision(device: torch.device) -> Decode:
    """Return torchvision's decoder."""
    from torchvision.io import decode_jpeg

    def tensor(data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    return lambda files: decode_jpeg([tensor(data) for data in files], device=device)


def by_nvimgcodec(device: torch.device) -> Decode:
    """Return nvImageCodec's decoder."""
    from nvidia import nvimgcodec

    decoder = nvimgcodec.Decoder()
    return lambda files: decoder.decode(files)


DECODERS = {"torchvision": by_torchvision, "nvImageCodec": by_nvimgcodec}


if __name__ == "__main__":
    main()
