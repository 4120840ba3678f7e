"""Grain: ArrayRecord files with random access, read by threads or processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pixels import Batch, make_batch

NAME = "Grain"
PACKAGES = ("grain", "torchvision", "pillow")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "ArrayRecord with group_size:1; MapDataset.shuffle, map, batch, "
    "mp_prefetch with as many processes as workers, two threads in each; without workers 16 threads, its default"
)
_HEADER = np.dtype([("index", "<i8"), ("label", "<i8")])


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write a record a sample: two numbers, then the bytes of its fields."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "samples.array_record"), "group_size:1")
    labels = samples.get("label", np.zeros(len(samples["index"]), np.int64))
    names = [name for name in samples if name not in ("index", "label")]
    for number, index in enumerate(samples["index"]):
        header = np.array((index, labels[number]), _HEADER).tobytes()
        writer.write(header + b"".join(bytes(samples[name][number]) for name in names))
    writer.close()


def _parse(record: bytes, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    header = np.frombuffer(record, _HEADER, count=1)[0]
    sample: dict[str, Any] = {"index": int(header["index"]), "label": int(header["label"])}
    if not shapes:
        sample["image"] = memoryview(record)[_HEADER.itemsize :]
    begin = _HEADER.itemsize
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        sample[name] = np.frombuffer(record, np.uint8, count=count, offset=begin).reshape(shape)
        begin += count
    return sample


def _make_arrays(samples: Any) -> dict[str, np.ndarray]:
    """Make a batch of arrays: Grain's processes hand those over in shared memory."""
    return {name: tensor.numpy() for name, tensor in make_batch(samples).items()}


class Loader:
    """Epochs of one endless iterator: processes live for all of them, and read ahead into the next one."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        import grain.python as grain

        source = grain.ArrayRecordDataSource([str(folder / "samples.array_record")])
        batches = (
            grain.MapDataset.source(source)
            .seed(seed)
            .shuffle()
            .map(partial(_parse, shapes=dict(job.shapes)))
            .batch(batch_size, batch_fn=_make_arrays)
        )
        self._count = len(batches)
        threads = grain.ReadOptions(num_threads=2 if workers else 16, prefetch_buffer_size=4 if workers else 16)
        endless = batches.repeat().to_iter_dataset(threads)
        if workers:
            endless = endless.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
        self._batches = iter(endless)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._count):
            yield {name: torch.from_numpy(array) for name, array in next(self._batches).items()}

    def close(self) -> None:
        """End its processes."""
        if hasattr(self._batches, "close"):
            self._batches.close()


open = Loader
