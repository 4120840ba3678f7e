"""Copies to a device that read long after the loop has let go of their batch: by a stand-in for CUDA."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .late_cuda import LateCuda, late_cuda
from .outcome import Outcome
from .small import write_small

_SAMPLES = 192

# The result of a way of copying: copies, and the numbers of their samples.
Copies = Iterator[tuple[Any, Any]]
Way = Callable[[Any, LateCuda], Copies]


def in_the_loop(loader: Any, cuda: LateCuda) -> Copies:
    """Copy the loop's batch."""
    for batch in loader:
        yield batch.image.to("cuda", non_blocking=True), batch.number


def on_two_streams(loader: Any, cuda: LateCuda) -> Copies:
    """Copy a batch twice."""
    import torch

    side = torch.cuda.Stream()
    for batch in loader:
        yield batch.image.to("cuda", non_blocking=True), batch.number
        with torch.cuda.stream(side):
            copy = batch.image.to("cuda", non_blocking=True)
        yield copy, batch.number


def of_views(loader: Any, cuda: LateCuda) -> Copies:
    """Copy parts of a batch, none of which begins where the batch does."""
    for batch in loader:
        half = len(batch.image) // 2
        yield batch.image[half:].to("cuda", non_blocking=True), batch.number[half:]
        yield batch.image[-1:].to("cuda", non_blocking=True), batch.number[-1:]


def of_strided_views(loader: Any, cuda: LateCuda) -> Copies:
    """Copy every other sample, and crops: parts that are not contiguous."""
    for batch in loader:
        yield batch.image[1::2].to("cuda", non_blocking=True), batch.number[1::2]
        yield batch.image[:, :, 3:, 2:].to("cuda", non_blocking=True), batch.number


def through_numpy(loader: Any, cuda: LateCuda) -> Copies:
    """Hold a batch by NumPy, and copy it as a whole."""
    import torch

    for batch in loader:
        array, number = batch.image.permute(0, 2, 3, 1).numpy(), batch.number
        del batch
        yield torch.from_numpy(array).permute(0, 3, 1, 2).to("cuda", non_blocking=True), number


def of_broken_off_epochs(loader: Any, cuda: LateCuda) -> Copies:
    """Leave an epoch in the middle, and begin the next one."""
    for steps in (3, 1, 5):
        for batch in islice(loader, steps):
            yield batch.image.to("cuda", non_blocking=True), batch.number


def at_another_size(loader: Any, cuda: LateCuda) -> Copies:
    """Read an epoch of smaller images during the current one."""
    larger = iter(loader)
    loader.set_resolution(12)
    for one, other in zip(larger, loader, strict=True):
        yield one.image.to("cuda", non_blocking=True), one.number
        yield other.image.to("cuda", non_blocking=True), other.number
    loader.set_resolution(None)


def by_the_loader(loader: Any, cuda: LateCuda) -> Copies:
    """Have the Loader copy."""
    for batch in loader:
        yield batch.image, batch.number


WAYS: tuple[tuple[Way, str | None], ...] = (
    (in_the_loop, None), (on_two_streams, None), (of_views, None), (of_strided_views, None), (through_numpy, None),
    (of_broken_off_epochs, None), (at_another_size, None), (by_the_loader, "cuda"),
)  # fmt: skip


def not_from_the_beginning(batch: Any) -> Any:
    """Return a batch without its first sample, by way of NumPy: a copy of it is one that torch cannot attribute."""
    import torch

    return batch._replace(image=torch.from_numpy(batch.image.numpy()[1:]), number=batch.number[1:])


def make_loader(path: Path, device: str | None, choose: random.Random, **options: Any) -> Any:
    """Return a loader with settings at random."""
    import torch

    import lmdbloader
    from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip, ToDtype

    transforms = [RandomCrop(choose.choice((16, 20))), RandomHorizontalFlip()]
    types = (torch.uint8, torch.float16, torch.float32)
    functions = [not_from_the_beginning] if device is not None and choose.random() < 0.5 else []
    settings = {
        "device": device, "transforms": [*transforms, ToDtype(choose.choice(types), scale=False), *functions],
        "memory_format": choose.choice((torch.contiguous_format, torch.channels_last)),
        "prefetch": choose.randrange(3), "seed": choose.randrange(1000), "order": "random", **options,
    }  # fmt: skip
    return lmdbloader.Loader(lmdbloader.LMDBDataset(path), choose.choice((7, 16, 64)), **settings)


def num_wrong(copies: list[tuple[Any, Any]]) -> int:
    """Return how many copies, now that they are done, hold anything else than the samples that they are of."""
    return sum(bool((copy != number.view(-1, 1, 1, 1) % 251).any()) for copy, number in copies)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Start `count` copies that read late."""
    path = write_small(folder / "d", _SAMPLES)
    choose = random.Random(seed)
    failures: list[str] = []
    counts = {"late copies": 0, "others": 0, "epochs": 0, "of other bytes": 0}
    while counts["late copies"] < count:
        way, device = WAYS[counts["epochs"] % len(WAYS)]
        with late_cuda(choose.randrange(2**32), most_lag=choose.choice((2, 12, 60))) as cuda:
            loader = make_loader(path, device, choose)
            copies = list(way(loader, cuda))
            cuda.synchronize()
            wrong = num_wrong(copies)
            loader.close()
        counts["epochs"] += 1
        counts["late copies"] += cuda.num_late
        counts["others"] += max(0, len(copies) - cuda.num_late)
        counts["of other bytes"] += wrong
        if wrong:
            failures.append(f"epoch {counts['epochs'] - 1}, {way.__name__}: {wrong} of {len(copies)} copies")
    return Outcome(counts, failures)
