"""Feeds of a training loop on a device, with one interface: batches that are already there, lmdbloader's Loader, FFCV,
and torch's DataLoader over files or over a dataset; and the networks that they feed.

A `Feed` gives (images, labels) or (lr, hr): `epoch()` once through the data, `batches()` without end. With
`endless=True` they read the data many times over in one long epoch, like a large dataset, so the start of an epoch is
never timed. Several may be open at once; `close()` ends their threads and processes.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype, Transform

Batch = tuple[Tensor, Tensor]
# Options of a Loader by the name of the way: transforms on the CPU, and a copy of the result; bytes copied, and
# transforms there; from the device's memory; from decoded copies of JPEGs.
WAYS: dict[str, dict[str, Any]] = {
    "copied": {},
    "on device": {"on": "device"},
    "kept": {"keep": "device"},
    "kept decoded": {"keep": "memory"},
    "kept decoded, on device": {"keep": "memory", "on": "device"},
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Samples of the one long epoch of an endless feed, at least, and batches.
_LONG_SAMPLES, _LONG_BATCHES = 200_000, 1000
_NUM_RESIDENT = 4


class Feed:
    """One way of feeding a training loop.

    Attributes:
        name: Such as "loader raw256".
        kind: "resident", "loader", "ffcv", "folder" or "dataloader".
        source: The source of the batches: a Loader, a DataLoader, FFCV's Loader, or a list of batches.
        device: Where batches go.
        batch_size: Samples in a batch.
        period: Batches after which the way in which they arrive, several at a time, repeats itself.
        ahead: Batches that may be ready when the loop begins.
        finish: Applied to the two tensors once they are on the device; None for nothing.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        source: Any,
        device: torch.device,
        batch_size: int,
        *,
        period: int = 1,
        ahead: int = 1,
        finish: Callable[[Tensor, Tensor], Batch] | None = None,
    ) -> None:
        self.name, self.kind, self.source, self.device, self.batch_size = name, kind, source, device, batch_size
        self.period, self.ahead = period, ahead
        self.finish = finish

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of one epoch, on the device."""
        return map(self.place, self._once())

    def batches(self) -> Iterator[Batch]:
        """Yield batches without end, one epoch after another, on the device."""
        return map(self.place, self.raw())

    def raw(self) -> Iterator[Any]:
        """Yield batches without end as the source gives them; `place` brings them to the device."""
        while True:
            yield from self._once()

    def place(self, batch: Any) -> Batch:
        """Return a batch on the device, in the layout that the network wants; the copy may still be under way."""
        first, second = (part.to(self.device, non_blocking=True) for part in tuple(batch)[:2])
        return (first, second) if self.finish is None else self.finish(first, second)

    def close(self) -> None:
        """End the threads and processes of the source."""
        if isinstance(self.source, Loader):
            self.source.close()
        iterator = getattr(self.source, "_iterator", None)  # where DataLoader keeps its persistent workers
        if iterator is not None:
            iterator._shutdown_workers()
            self.source._iterator = None
        self.source = []
        gc.collect()

    def _once(self) -> Iterator[Any]:
        batches = iter(self.source)
        try:
            for batch in batches:
                yield batch
                del batch  # its memory is the source's again
        finally:
            end = getattr(batches, "close", None)
            if end is not None:
                end()


def long_view(dataset: LMDBDataset, batch_size: int) -> LMDBDataset:
    """Return a view that has every sample many times, so that an epoch is long."""
    wanted = max(_LONG_SAMPLES, _LONG_BATCHES * batch_size)
    times = max(1, -(-wanted // len(dataset)))
    return dataset.select(np.tile(np.arange(len(dataset)), times))


def open_loader(dataset: LMDBDataset, batch_size: int, **options: Any) -> Loader:
    """Return a Loader in random order, by default; it may have more threads than there are cores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_threads=", UserWarning)
        return Loader(dataset, batch_size, **{"order": "random", **options})


def image_transforms(size: int, dtype: torch.dtype) -> list[Transform]:
    """Return the transforms of images: a random resized crop, a flip, the type, normalization; uint8 is unchanged."""
    moved: list[Transform] = [RandomResizedCrop(size), RandomHorizontalFlip()]
    return moved if dtype == torch.uint8 else [*moved, ToDtype(dtype, scale=True), Normalize(MEAN, STD)]


def normalize_there(device: torch.device) -> Callable[[Tensor, Tensor], Batch]:
    """Return a function that makes normalized bfloat16 of uint8 images on the device."""
    factor = torch.tensor([1 / (255 * std) for std in STD], device=device).view(1, 3, 1, 1)
    offset = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)], device=device).view(1, 3, 1, 1)

    def finish(images: Tensor, labels: Tensor) -> Batch:
        return torch.addcmul(offset, images.float(), factor).to(torch.bfloat16), labels

    return finish


def resident(
    batches: Iterator[Batch],
    device: torch.device,
    batch_size: int,
    *,
    count: int = _NUM_RESIDENT,
    name: str = "resident",
) -> Feed:
    """Return a feed that repeats some batches that are on the device: the ceiling."""
    kept = [tuple(part.clone(memory_format=torch.preserve_format) for part in next(batches)) for _ in range(count)]
    return Feed(name, "resident", kept, device, batch_size)


def random_images(device: torch.device, batch_size: int, size: int, dtype: torch.dtype) -> Iterator[Batch]:
    """Yield batches of random numbers on the device, channels last, with labels of ten classes."""
    generator = torch.Generator(device).manual_seed(0)
    while True:
        images = torch.randn((batch_size, 3, size, size), generator=generator, device=device).to(dtype)
        labels = torch.randint(10, (batch_size,), generator=generator, device=device)
        yield images.contiguous(memory_format=torch.channels_last), labels


def random_pairs(device: torch.device, batch_size: int, patch: int = 96, scale: int = 2) -> Iterator[Batch]:
    """Yield batches of random uint8 pairs on the device."""
    while True:
        yield tuple(  # type: ignore[misc]
            torch.randint(256, (batch_size, 3, side, side), dtype=torch.uint8, device=device)
            for side in (patch // scale, patch)
        )


def loader_images(
    path: Path,
    *,
    batch_size: int,
    size: int,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    threads: int | Literal["auto"] = "auto",
    endless: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Feed:
    """Return a Loader over images with labels: random crops and flips, normalized, channels last.

    With `dtype=torch.uint8` bytes are sent, and normalized on the device, to bfloat16.
    """
    dataset = LMDBDataset(path)
    loader = open_loader(
        long_view(dataset, batch_size) if endless else dataset,
        batch_size,
        device=device,
        seed=seed,
        drop_last=True,
        num_threads=threads,
        transforms=image_transforms(size, dtype),
        memory_format=torch.channels_last,
    )
    feed = loader_feed(name or f"loader {path.name}", loader, device)
    if dtype == torch.uint8:
        feed.finish = normalize_there(device)
    return feed


def loader_pairs(
    path: Path,
    *,
    batch_size: int,
    device: torch.device,
    endless: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Feed:
    """Return a Loader over pairs, uint8 as stored."""
    dataset = LMDBDataset(path)
    dataset = long_view(dataset, batch_size) if endless else dataset
    loader = open_loader(dataset, batch_size, device=device, seed=seed, drop_last=True)
    return loader_feed(name or f"loader {path.name}", loader, device)


class ClassFolders(Dataset[Any]):
    """JPEG files in class folders, made as most training scripts make them; classes are numbered by their names.

    A sample is a normalized image (3, size, size) float32, and its label.
    """

    def __init__(self, folder: Path, size: int) -> None:
        from photos import PillowRecipe

        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self._files = [
            (path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())
        ]
        self._recipe = PillowRecipe(size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path, label = self._files[number]
        return self._recipe(path), label


def loader_feed(name: str, loader: Loader, device: torch.device) -> Feed:
    """Return a Loader as a feed."""
    at_once = loader.batches_at_once
    ahead = (loader.num_threads + loader.prefetch + 1) * at_once
    return Feed(name, "loader", loader, device, loader.batch_size, period=loader.num_threads * at_once, ahead=ahead)


def folder_images(
    folder: Path,
    *,
    batch_size: int,
    size: int,
    device: torch.device,
    workers: int,
    pinned: bool = True,
    endless: bool = False,
    seed: int = 0,
    name: str = "folder",
) -> Feed:
    """Return torch's DataLoader over class folders: Pillow, random windows and flips, normalized float32."""
    source = _dataloader(
        ClassFolders(folder, size), batch_size, workers, device, pinned=pinned, endless=endless, seed=seed
    )
    return _dataloader_feed(name, "folder", source, device, batch_size, _channels_last)


def folder_pairs(
    folder: Path,
    *,
    batch_size: int,
    device: torch.device,
    workers: int,
    pinned: bool = True,
    endless: bool = False,
    seed: int = 0,
    name: str = "folder",
) -> Feed:
    """Return torch's DataLoader over PNG pairs: Pillow, uint8."""
    from stores import PngPairs

    source = _dataloader(
        PngPairs(folder, _as_they_are), batch_size, workers, device, pinned=pinned, endless=endless, seed=seed
    )
    return _dataloader_feed(name, "folder", source, device, batch_size, None)


def _dataloader(
    dataset: Any, batch_size: int, workers: int, device: torch.device, *, pinned: bool, endless: bool, seed: int
) -> DataLoader[Any]:
    from stores import EndlessOrder

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*worker processes", UserWarning)
        return DataLoader(
            dataset,
            batch_size,
            sampler=EndlessOrder(len(dataset), seed) if endless else None,
            shuffle=None if endless else True,
            generator=torch.Generator().manual_seed(seed),
            num_workers=workers,
            pin_memory=pinned and device.type == "cuda",
            persistent_workers=workers > 0,
            drop_last=True,
        )


def _dataloader_feed(
    name: str,
    kind: str,
    source: DataLoader[Any],
    device: torch.device,
    batch_size: int,
    finish: Callable[[Tensor, Tensor], Batch] | None,
) -> Feed:
    workers = max(source.num_workers, 1)
    ahead = (source.prefetch_factor or 0) * source.num_workers + 1
    return Feed(name, kind, source, device, batch_size, period=workers, ahead=ahead, finish=finish)


def ffcv_images(
    path: Path,
    *,
    batch_size: int,
    size: int,
    device: torch.device,
    workers: int,
    endless: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Feed:
    """Return FFCV's Loader over images with labels, as its example sets it up: float16 on a GPU, channels last."""
    from ffcv_peer import image_loader

    source = image_loader(
        path,
        batch_size=batch_size,
        size=size,
        workers=workers,
        device=str(device),
        dtype=torch.float16 if device.type == "cuda" else torch.float32,
        channels_last=True,
        seed=seed,
    )
    if endless:
        _lengthen(source, batch_size)
    name = name or f"FFCV {'jpg' if path.stem == 'original' else path.stem}"
    return Feed(name, "ffcv", source, device, batch_size, period=2, ahead=4, finish=_flat_labels)


def ffcv_pairs(
    path: Path,
    *,
    batch_size: int,
    device: torch.device,
    workers: int,
    crop: int | None = None,
    endless: bool = False,
    name: str = "FFCV",
) -> Feed:
    """Return FFCV's Loader over pairs, uint8."""
    from ffcv_peer import pair_loader

    options: dict[str, Any] = {} if crop is None else {"crop": crop}
    source = pair_loader(path, batch_size=batch_size, workers=workers, device=str(device), dtype=torch.uint8, **options)
    if endless:
        _lengthen(source, batch_size)
    return Feed(name, "ffcv", source, device, batch_size, period=2, ahead=4)


def _lengthen(loader: Any, batch_size: int) -> None:
    """Let FFCV's random order have every sample many times; another release's stays as it is."""
    order = getattr(loader, "traversal_order", None)
    with suppress(AttributeError, TypeError):
        indices = np.asarray(order.indices)  # type: ignore[union-attr]
        wanted = max(_LONG_SAMPLES, _LONG_BATCHES * batch_size)
        order.indices = np.tile(indices, max(1, -(-wanted // len(indices))))  # type: ignore[union-attr]
        loader.first_traversal_order = loader.next_traversal_order()


def _as_they_are(sample: Any) -> Any:
    return sample


def _channels_last(images: Tensor, labels: Tensor) -> Batch:
    return images.contiguous(memory_format=torch.channels_last), labels


def _flat_labels(images: Tensor, labels: Tensor) -> Batch:
    return images, labels.reshape(len(labels)).long()


def residual_network(name: str, num_classes: int = 1000) -> tuple[nn.Module, str]:
    """Return "resnet18", "resnet50" (torchvision's if installed, else an identical one) or "tiny",
    and whose it is."""
    if name != "tiny":
        with suppress(ImportError, RuntimeError):
            import torchvision

            return getattr(torchvision.models, name)(num_classes=num_classes), f"torchvision {torchvision.__version__}"
    from classification.models import build_model

    return build_model(name, num_classes), "classification"  # type: ignore[arg-type]


def restoring_network(name: str, *, small: bool = False) -> nn.Module:
    """Return "srcnn" (9-1-5, on luma) or "edsr" (EDSR's baseline: 16 residual blocks of 64 features), both for x2.

    With `small`, EDSR has next to nothing of these.
    """
    from superresolution import EDSR, SRCNN

    features, blocks = (8, 1) if small else (64, 16)
    model = SRCNN(2) if name == "srcnn" else EDSR(2, num_features=features, num_blocks=blocks)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def first_of(feed: Feed) -> Any:
    """Return the first batch as the source gives it, and end that pass."""
    with closing(feed.raw()) as batches:  # type: ignore[type-var]
        return next(batches)
