"""HDF5 by h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_loader import SETTINGS as LOADER
from torch_loader import Stored, open_loader, pixel_fields, write_labels

NAME = "HDF5"
PACKAGES = ("h5py", "torchvision")
JOBS = ("pairs", "crops")
NOT = {"crops-jpeg": "arrays of bytes of different lengths are not what HDF5 is used for"}
SETTINGS = f"one dataset a field, one chunk a sample, not compressed; opened once in each worker; {LOADER}"


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write one file."""
    import h5py

    with h5py.File(folder / "samples.h5", "w", libver="latest") as file:
        for name, column in pixel_fields(samples).items():
            file.create_dataset(name, data=column, chunks=(1, *column.shape[1:]))
    write_labels(samples, folder)


class _Chunks(Stored):
    _columns: dict[str, Any] | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        import h5py

        if self._columns is None:
            file = h5py.File(f"{self.folder}/samples.h5", "r")
            self._columns = {name: file[name] for name in self.job.out}
        return self.sample(index, {name: column[index] for name, column in self._columns.items()})


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the file."""
    return open_loader(_Chunks(job, folder), batch_size, workers, seed)
