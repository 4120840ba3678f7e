"""An LMDB dataset as people write it themselves, with the best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_loader import SETTINGS as LOADER
from torch_loader import Stored, open_loader, pixel_fields, write_labels

NAME = "LMDB by hand"
PACKAGES = ("lmdb", "lz4", "torchvision")
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "one sample a key, pixels by lz4.block, JPEGs as they are; opened once in each worker with lock=False, "
    f"readahead=False, meminit=False and one transaction, buffers=True; {LOADER}"
)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write a key for each sample, its images one after the other."""
    import lmdb
    import lz4.block

    columns = list(pixel_fields(samples).values())
    nbytes = sum(len(value) if isinstance(value, bytes) else value.nbytes for column in columns for value in column)
    environment = lmdb.open(str(folder), map_size=2 * nbytes + len(columns[0]) * 8192 + 2**22)
    with environment.begin(write=True) as transaction:
        for number, images in enumerate(zip(*columns, strict=True)):
            value = images[0]
            if not isinstance(value, bytes):
                value = lz4.block.compress(b"".join(image.tobytes() for image in images))
            transaction.put(f"{number:08d}".encode(), value)
    environment.close()
    write_labels(samples, folder)


class _Keys(Stored):
    _transaction: Any = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        import lmdb
        import lz4.block

        if self._transaction is None:
            environment = lmdb.open(self.folder, readonly=True, lock=False, readahead=False, meminit=False)
            self._transaction = environment.begin(buffers=True)
        value = self._transaction.get(f"{index:08d}".encode())
        if not self.job.shapes:
            return self.sample(index, {"image": value})
        pixels, fields, at = np.frombuffer(lz4.block.decompress(value), np.uint8), {}, 0
        for name, shape in self.job.shapes.items():
            end = at + shape[0] * shape[1] * shape[2]
            fields[name], at = pixels[at:end].reshape(shape), end
        return self.sample(index, fields)


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open the LMDB."""
    return open_loader(_Keys(job, folder), batch_size, workers, seed)
