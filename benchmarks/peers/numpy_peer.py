"""Memory-mapped NumPy arrays: the strongest simple way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_loader import SETTINGS as LOADER
from torch_loader import Stored, open_loader, pixel_fields, write_labels

NAME = "NumPy, memory-mapped"
PACKAGES = ("numpy", "torchvision")
JOBS = ("pairs", "crops")
NOT = {"crops-jpeg": "an array has no place for files of different lengths"}
SETTINGS = f"one .npy file a field, mapped, rows not copied before they are converted; {LOADER}"


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write an array for each field."""
    for name, column in pixel_fields(samples).items():
        np.save(folder / f"{name}.npy", column)
    write_labels(samples, folder)


class _Rows(Stored):
    _columns: dict[str, Any] | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._columns is None:
            # As plain arrays: each row of a memmap would be a memmap, which costs more than the row.
            self._columns = {
                name: np.asarray(np.load(f"{self.folder}/{name}.npy", mmap_mode="r")) for name in self.job.out
            }
        return self.sample(index, {name: column[index] for name, column in self._columns.items()})


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the arrays."""
    return open_loader(_Rows(job, folder), batch_size, workers, seed)
