"""LitData: chunks that `optimize` writes, read by StreamingDataset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pixels import Batch, make_batch

NAME = "LitData"
PACKAGES = ("litdata", "torchvision", "pillow")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "chunks of 64 MB of NumPy arrays, or of JPEG bytes; StreamingDataset(shuffle=True), StreamingDataLoader with "
    "persistent workers; batches are made in the workers"
)
_samples: Any = None


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write with `optimize`, one process: it is forked, so it has the samples."""
    global _samples
    _samples = samples
    # optimize() empties "data" and "chunks" in the temporary folder, whoever uses them.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{scratch}/chunks"
        os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{scratch}/data"
        import litdata

        litdata.optimize(
            _sample, list(range(len(samples["index"]))), str(folder / "chunks"), chunk_bytes="64MB", num_workers=1,
            start_method="fork", verbose=False,
        )  # fmt: skip
    _samples = None


def _sample(number: int) -> dict[str, Any]:
    sample = {name: values[number] for name, values in _samples.items()}
    return {name: value if isinstance(value, bytes | np.ndarray) else int(value) for name, value in sample.items()}


class Loader:
    """Epochs of a StreamingDataLoader."""

    def __init__(self, job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        import litdata

        dataset = litdata.StreamingDataset(str(folder / "chunks"), shuffle=True, drop_last=False, seed=seed)
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=batch_size, num_workers=workers, collate_fn=make_batch, persistent_workers=workers > 0
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)


open = Loader
