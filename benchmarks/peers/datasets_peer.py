"""Hugging Face datasets: an Arrow table in mapped files, whole batches of rows taken from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pixels import Batch, make_batch

NAME = "Hugging Face datasets"
PACKAGES = ("datasets", "torchvision", "pillow")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "save_to_disk, pixels in binary columns; format arrow; DataLoader with a BatchSampler, so that a batch of rows is "
    "one look-up, and persistent workers; bytes are read from Arrow's buffers without a copy"
)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write with save_to_disk."""
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    columns = {
        name: np.asarray(values) if name in ("index", "label") else [bytes(value) for value in values]
        for name, values in samples.items()
    }
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))


class _Batch:
    """Turns a table of rows into a batch."""

    def __init__(self, job: Any) -> None:
        self._shapes = dict(job.shapes)

    def __call__(self, table: Any) -> Batch:
        columns: dict[str, Any] = {}
        for name in table.column_names:
            if name in ("index", "label"):
                columns[name] = table.column(name).to_numpy()
            elif name in self._shapes:
                columns[name] = [
                    np.frombuffer(value.as_buffer(), np.uint8).reshape(self._shapes[name])
                    for value in table.column(name)
                ]
            else:
                columns[name] = [memoryview(value.as_buffer()) for value in table.column(name)]
        return make_batch([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


class Loader:
    """Epochs of a DataLoader over a Dataset on disk."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        os.environ["HF_DATASETS_OFFLINE"] = "1"
        import datasets
        import torch
        from torch.utils.data import BatchSampler, DataLoader, RandomSampler

        dataset = datasets.load_from_disk(str(folder)).with_format("arrow")
        order = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
        self._loader: Any = DataLoader(
            dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None, num_workers=workers,
            collate_fn=_Batch(job), persistent_workers=workers > 0,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)


open = Loader
