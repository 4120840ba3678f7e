"""The ways of storing pairs that the benchmarks compare, each as its users would read it at its best."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from common import Pairs
from torch.utils.data import DataLoader, Dataset, Sampler

import lmdbloader
from lmdbloader.transforms import ToDtype

# Where uint8 pixels become float32: sample by sample in the dataset, in the collate function (so in a worker), or in
# the consumer, which converts the collated batch.
Conversion = Literal["sample", "collate", "consumer"]
CONVERSIONS: tuple[Conversion, ...] = ("sample", "collate", "consumer")
Tensors = tuple[torch.Tensor, ...]


def to_float(pixels: torch.Tensor) -> torch.Tensor:
    """Return uint8 pixels as float32 in 0..1."""
    return pixels.float().div_(255)


def floats(batch: Any) -> Tensors:
    """Return the fields of a sample or a batch as float32."""
    return tuple(map(to_float, batch))


class PngPairs(Dataset[Tensors]):
    """Two PNG files a pair, decoded by Pillow."""

    def __init__(self, folder: Path, finish: Callable[[Tensors], Any]) -> None:
        self.folder, self.finish = str(folder), finish
        self.names = sorted(os.listdir(folder / "hr"))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        tensors = []
        for half in ("lr", "hr"):
            with Image.open(f"{self.folder}/{half}/{self.names[index]}") as image:
                tensors.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous())
        return self.finish(tuple(tensors))


def write_png(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `PngPairs`."""
    from PIL import Image

    for half in ("lr", "hr"):
        (folder / half).mkdir(parents=True)
        for i, pixels in enumerate(getattr(pairs, half)):
            Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(folder / half / f"{i:06d}.png")


class HandWrittenLmdb(Dataset[Tensors]):
    """One pair a key, pickled and compressed by lz4: opened lazily in each process, one transaction kept, no copies."""

    def __init__(self, folder: Path, finish: Callable[[Tensors], Any]) -> None:
        self.path, self.finish = str(folder), finish
        self.transaction: Any = None
        self.length = int((folder / "length").read_text())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import lz4.frame

        if self.transaction is None:
            self.transaction = _environment(self.path, os.getpid()).begin(buffers=True)
        value = self.transaction.get(f"{index:08d}".encode())
        lr, hr = pickle.loads(lz4.frame.decompress(value))
        return self.finish((torch.from_numpy(lr), torch.from_numpy(hr)))


@cache
def _environment(path: str, process: int) -> Any:
    """Return the LMDB environment of a path; a process may open only one, however many datasets stand on it."""
    import lmdb

    return lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False)


def close_hand_written(folder: Path) -> None:
    """Close this process's environment: a worker forked while it is open cannot open its own."""
    _environment(str(folder), os.getpid()).close()
    _environment.cache_clear()


def write_hand_written(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `HandWrittenLmdb`: already (C, H, W), with pickle's fastest protocol."""
    import lmdb
    import lz4.frame

    folder.mkdir(parents=True)
    environment = lmdb.open(str(folder), map_size=2 * (pairs.lr.nbytes + pairs.hr.nbytes) + len(pairs) * 8192 + 2**22)
    with environment.begin(write=True) as transaction:
        for i in range(len(pairs)):
            value = pickle.dumps((pairs.lr[i], pairs.hr[i]), protocol=pickle.HIGHEST_PROTOCOL)
            transaction.put(f"{i:08d}".encode(), lz4.frame.compress(value))
    environment.close()
    (folder / "lock.mdb").unlink(missing_ok=True)
    (folder / "length").write_text(str(len(pairs)))


class Hdf5Pairs(Dataset[Tensors]):
    """One HDF5 dataset a half, one chunk a sample; opened lazily in each process."""

    def __init__(self, folder: Path, finish: Callable[[Tensors], Any]) -> None:
        import h5py

        self.path, self.finish = str(folder / "pairs.h5"), finish
        self.halves: Any = None
        with h5py.File(self.path, "r") as file:
            self.length = len(file["hr"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import h5py

        if self.halves is None:
            file = h5py.File(self.path, "r")
            self.halves = (file["lr"], file["hr"])
        return self.finish(tuple(torch.from_numpy(half[index]) for half in self.halves))


def _write_hdf5(pairs: Pairs, folder: Path, compression: str | None) -> None:
    import h5py

    folder.mkdir(parents=True)
    with h5py.File(folder / "pairs.h5", "w", libver="latest") as file:
        for half in ("lr", "hr"):
            pixels = getattr(pairs, half)
            file.create_dataset(half, data=pixels, chunks=(1, *pixels.shape[1:]), compression=compression)


def write_hdf5(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `Hdf5Pairs`, uncompressed."""
    _write_hdf5(pairs, folder, None)


def write_hdf5_lzf(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `Hdf5Pairs`, compressed by h5py's fastest filter."""
    _write_hdf5(pairs, folder, "lzf")


def _write_ours(pairs: Pairs, folder: Path, codec: str) -> None:
    # As PyTorch tensors, so that (3, H, W) is understood as an image.
    samples = (
        {"lr": torch.from_numpy(lr), "hr": torch.from_numpy(hr)} for lr, hr in zip(pairs.lr, pairs.hr, strict=True)
    )
    lmdbloader.write(samples, folder, codec=codec)


def write_ours_raw(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `LMDBDataset`, uncompressed."""
    _write_ours(pairs, folder, "raw")


def write_ours_lz4(pairs: Pairs, folder: Path) -> None:
    """Write pairs for `LMDBDataset`, compressed by lz4."""
    _write_ours(pairs, folder, "lz4")


@dataclass(frozen=True, slots=True)
class Store:
    """One way of storing pairs.

    Attributes:
        name: For the tables.
        write: Writes pairs into a new folder.
        dataset: Opens the store that `write` made; None means LMDBDataset.
        close: Called with the folder once this process has read it.
    """

    name: str
    write: Callable[[Pairs, Path], None]
    dataset: Callable[[Path, Callable[[Tensors], Any]], Dataset[Tensors]] | None
    close: Callable[[Path], None] = lambda folder: None

    @property
    def conversions(self) -> tuple[Conversion, ...]:
        """Where this store's users convert to float32; LMDBDataset.transformed does it while it reads."""
        return CONVERSIONS if self.dataset else ("sample", "consumer")


HAND_WRITTEN, OURS_LZ4 = "LMDB by hand", "LMDBDataset lz4"
STORES = (
    Store("PNG files", write_png, PngPairs),
    Store("HDF5", write_hdf5, Hdf5Pairs),
    Store("HDF5 lzf", write_hdf5_lzf, Hdf5Pairs),
    Store(HAND_WRITTEN, write_hand_written, HandWrittenLmdb, close_hand_written),
    Store("LMDBDataset raw", write_ours_raw, None),
    Store(OURS_LZ4, write_ours_lz4, None),
)


class EndlessOrder(Sampler[int]):
    """One random order after another, without end, so the start of an epoch is never timed."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(self.seed)
        while True:
            yield from rng.permutation(self.length).tolist()


def _keep(sample: Tensors) -> Tensors:
    return sample


def _collate_floats(samples: Any) -> Tensors:
    return floats(torch.utils.data.default_collate(samples))


def open_dataset(store: Store, folder: Path, conversion: Conversion = "consumer") -> Dataset[Any]:
    """Return the dataset of a written store."""
    if store.dataset is None:
        ds = lmdbloader.LMDBDataset(folder)
        return ds.transformed([ToDtype(torch.float32, scale=True)]) if conversion == "sample" else ds
    return store.dataset(folder, floats if conversion == "sample" else _keep)


def open_loader(
    store: Store, folder: Path, conversion: Conversion, *, batch_size: int, workers: int, seed: int
) -> DataLoader[Any]:
    """Return a DataLoader over an endless random order whose batches are uint8 only where the consumer converts."""
    dataset = open_dataset(store, folder, conversion)
    order = EndlessOrder(len(dataset), seed)  # type: ignore[arg-type]
    persistent = workers > 0
    if store.dataset is None:
        return lmdbloader.dataloader(dataset, batch_size, sampler=order, num_workers=workers)
    function = _collate_floats if conversion == "collate" else None
    return DataLoader(
        dataset, batch_size, sampler=order, num_workers=workers, collate_fn=function, persistent_workers=persistent
    )
