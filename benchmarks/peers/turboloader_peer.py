"""TurboLoader: crops in compiled code from a tar of JPEGs or from its own files of pixels; pairs as arrays."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pixels import MEAN, SIZE, STD, Batch, make_batch

NAME = "TurboLoader"
PACKAGES = ("turboloader",)
JOBS = ("pairs", "crops", "crops-jpeg")
SETTINGS = (
    "crops: RAW_U8 .tbl, DataLoader(train_aug=True), whose crops of stored pixels are not antialiased; JPEGs: a tar, "
    "DataLoader(train_aug=True, antialias=True); pairs: ArrayDataLoader over mapped arrays, flips and floats by NumPy; "
    "its threads do not follow num_workers"
)
# Its fast paths have one pool of threads for the process, of any size of workers.
WORKERS = (1,)


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write the fields for each job: arrays, or a tar of JPEGs, or a .tbl of pixels as preprocess_to_tbl does."""
    for name in set(samples) - {"image"}:
        np.save(folder / f"{name}.npy", np.asarray(samples[name]))
    if job.name == "crops":
        import turboloader

        writer = turboloader.TblWriterV2(str(folder / "image.tbl"), enable_compression=False)
        for image in samples["image"]:
            height, width, _ = image.shape
            writer.add_sample(image.tobytes(), turboloader.SampleFormat.RAW_U8, width=width, height=height)
        writer.finalize()
    elif job.name == "crops-jpeg":
        with tarfile.open(folder / "image.tar", "w") as tar:
            for number, data in enumerate(samples["image"]):
                entry = tarfile.TarInfo(f"{number:08d}.jpg")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


class Pairs:
    """Epochs of pairs."""

    def __init__(self, folder: Path, batch_size: int, seed: int) -> None:
        import turboloader

        self._names = ("index", "lr", "hr")
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in self._names]
        self._loader = turboloader.ArrayDataLoader(*arrays, batch_size=batch_size, shuffle=True, seed=seed)
        self.set_epoch = self._loader.set_epoch

    def __iter__(self) -> Iterator[Batch]:
        for arrays in self._loader:
            yield make_batch([dict(zip(self._names, row, strict=True)) for row in zip(*arrays, strict=True)])


class Crops:
    """Epochs of crops; labels are looked up by the numbers that it hands over."""

    def __init__(self, folder: Path, batch_size: int, workers: int, seed: int) -> None:
        import turboloader

        self._index, self._label = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("index", "label"))
        stored = folder / "image.tbl"
        options = {} if stored.exists() else {"antialias": True, "num_workers": max(workers, 1)}
        self._loader = turboloader.DataLoader(
            str(stored if stored.exists() else folder / "image.tar"), batch_size=batch_size, image_size=SIZE,
            output_format="pytorch", transform=turboloader.ImageNetNormalize(), shuffle=True, train_aug=True,
            seed=seed, **options,
        )  # fmt: skip
        self.set_epoch = self._loader.set_epoch

    def __iter__(self) -> Iterator[Batch]:
        for image, meta in self._loader:
            numbers = torch.from_numpy(np.asarray(meta["indices"], np.int64))
            yield {
                "image": torch.as_tensor(image),
                "index": self._index[numbers],
                "label": self._label[numbers],
            }

    def close(self) -> None:
        """End its threads."""
        self._loader.close()


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Pairs | Crops:
    """Open what write made."""
    assert MEAN == (0.485, 0.456, 0.406) and STD == (0.229, 0.224, 0.225)  # its ImageNetNormalize
    return Pairs(folder, batch_size, seed) if job.name == "pairs" else Crops(folder, batch_size, workers, seed)
