"""Class folders through torch's DataLoader: Pillow reads the files and carries out the transforms of a recipe."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from lmdbloader.batch.pipeline import check_seed
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.errors import CorruptError, FormatError, OptionError, SourceError
from lmdbloader.loader.options import resolve_shard
from lmdbloader.loader.orders import Layout, Share
from lmdbloader.loader.quasi_random import epoch_order
from lmdbloader.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Transform,
)
from lmdbloader.transforms.base import Geometry
from lmdbloader.transforms.resolution import ProgressiveResize, with_resolution

__all__ = ["ClassFolder", "FolderLoader", "list_classes", "with_pillow"]


@dataclass(frozen=True, slots=True)
class ClassFolder:
    """The image files of class folders, in the order in which a conversion takes them.

    Attributes:
        files: Paths.
        labels: Number of the class of each.
        classes: Names of the classes by label.
        digest: Of the names, sizes and labels of the files, in hexadecimal.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    digest: str

    def __len__(self) -> int:
        return len(self.files)


def list_classes(folder: Path) -> ClassFolder:
    """Return the files of class folders: as `lmdbloader convert --layout classes` finds, orders and labels them.

    Raises:
        SourceError: There are none.
    """
    found = list_sources(folder, layout="classes")
    names, labels = found.sources.names, found.sources.labels
    assert labels is not None, "the layout classes always has labels"
    content = repr((list(names), found.sources.nbytes.tolist(), labels.tolist(), found.classes))
    return ClassFolder(
        tuple(Path(os.fsdecode(names.path(number))) for number in range(len(names))),
        tuple(labels.tolist()),
        found.classes,
        hashlib.sha256(content.encode()).hexdigest(),
    )


class FolderLoader:
    """Batches of class folders from torch's DataLoader, for a training loop that is written for Loader.

    The samples of an epoch come in the order in which Loader returns them from the dataset that is converted from the
    folder. The random numbers of a sample depend only on the seed, the epoch and the sample, not on the workers.
    """

    def __init__(
        self,
        folder: ClassFolder,
        batch_size: int,
        *,
        transforms: Sequence[Transform],
        seed: int = 0,
        order: Literal["random", "sequential"] = "random",
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
        resolution: ProgressiveResize | None = None,
    ) -> None:
        """Prepare the loader; worker processes start with the first iteration.

        Args:
            folder: The files.
            batch_size: Images of this process in a batch.
            transforms: Of a recipe, see `with_pillow`.
            seed: Of the order and the transforms.
            order: "random" or "sequential".
            drop_last: Whether to leave out the last step of all processes if it is short.
            num_workers: Worker processes that read.
            pin_memory: Whether batches are in pinned memory.
            memory_format: Of the images in a batch.
            resolution: Size of the images in each epoch.

        Raises:
            OptionError: The seed is not valid, or `with_pillow` does not support a transform.
        """
        share = Share(batch_size, *resolve_shard("auto"), drop_last)
        size = next((t.size_numbers for t in reversed(transforms) if isinstance(t, Geometry) and t.sets_size), (0, 0))
        self._order = _Order(order, check_seed(seed), len(folder), share, resolution, size)
        is_last = memory_format == torch.channels_last
        self._batches: DataLoader[Any] = DataLoader(
            _Images(folder, tuple(transforms), seed),
            batch_sampler=self._order,
            num_workers=num_workers,
            generator=torch.Generator(),  # else workers' seeds, which nothing uses, are drawn from the model's
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
            collate_fn=_collate_channels_last if is_last else _collate,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; if it is the current epoch, the position stays."""
        self._order.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the position of the next batch."""
        order = self._order
        return {"epoch": order.epoch, "position": order.position, "length": order.length, "seed": order.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the epoch and position of a state.

        Raises:
            FormatError: The state is that of another number of files or another seed.
        """
        own = self.state_dict()
        if state.keys() != own.keys() or any(state[name] != own[name] for name in ("length", "seed")):
            raise FormatError(
                f"the checkpoint is at {state}, in other samples than this run, which is at {own}. Train with the same "
                "files and the same --seed."
            )
        self._order.epoch, self._order.position = state["epoch"], state["position"]

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) of the rest of the epoch; then the next epoch begins."""
        order = self._order
        start = order.position
        for step, (images, labels) in enumerate(self._batches, 1):
            order.position = order.share.position_after(step, order.length, start)
            yield images, labels
        order.set_epoch(order.epoch + 1)

    def close(self) -> None:
        """End the worker processes; the next iteration starts new ones."""
        iterator = self._batches._iterator  # where DataLoader keeps its persistent workers
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]
            self._batches._iterator = None


class Ticket(NamedTuple):
    """A sample of an epoch: its number, the epoch, and the (height, width) of the epoch if there is a schedule."""

    number: int
    epoch: int
    size: tuple[int, int] | None


@dataclass(slots=True)
class _Order:
    """The batch sampler of a FolderLoader: an epoch and the position in it, and the tickets of the batches from there.

    It does not know the FolderLoader: in a cycle of references workers would outlive it.
    """

    order: Literal["random", "sequential"]
    seed: int
    length: int
    share: Share
    resolution: ProgressiveResize | None
    size: tuple[int, int]
    epoch: int = 0
    position: int = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def __len__(self) -> int:
        return self.share.num_batches(self.length)

    def __iter__(self) -> Iterator[list[Ticket]]:
        epoch = self.epoch
        size = None if self.resolution is None else self.resolution.size_at(epoch, self.size)
        order = epoch_order(self.order, Layout(self.length, _as_stored), seed=self.seed, epoch=epoch)
        positions = self.share.positions(self.length, self.position)
        for batch in range(len(positions)):
            samples = order.samples(positions.of_batches(batch, batch + 1))
            yield [Ticket(number, epoch, size) for number in samples.tolist()]


def _as_stored(first: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return places of files, which the orders here do not use, as those in one file of one byte for each."""
    return np.arange(first, end), np.ones(end - first, np.int64)


class _Images(Dataset[tuple[Tensor, int]]):
    """Samples by ticket: the image (H, W, 3), transformed, and its label."""

    def __init__(self, folder: ClassFolder, transforms: tuple[Transform, ...], seed: int) -> None:
        for transform in transforms:
            _check(transform)
        self._folder, self._transforms, self._seed = folder, transforms, seed

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, ticket: Ticket) -> tuple[Tensor, int]:
        path = self._folder.files[ticket.number]
        try:
            with Image.open(path) as opened:
                image = ImageOps.exif_transpose(opened).convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise CorruptError(f"{path}: Pillow cannot read it ({error}). Repair or remove the file.") from error
        transforms = self._transforms if ticket.size is None else _at_size(self._transforms, ticket.size)
        state = np.random.SeedSequence((self._seed, ticket.epoch, ticket.number)).generate_state(1, np.uint64)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(state[0]))
            try:
                return with_pillow(image, transforms), self._folder.labels[ticket.number]
            except SourceError as error:
                raise SourceError(f"{path}: {error}") from error


def with_pillow(image: Image.Image, transforms: Sequence[Transform]) -> Tensor:
    """Apply the transforms of a recipe: geometry with Pillow, the rest with torch. Random numbers are torch's.

    Args:
        image: In RGB.
        transforms: RandomResizedCrop with its defaults, RandomCrop, Resize, CenterCrop, RandomHorizontalFlip; then
            ToDtype, Normalize, RandomErasing.

    Returns:
        (H, W, 3) of the dtype of ToDtype, uint8 without one.

    Raises:
        SourceError: The image is smaller than a crop.
    """
    values, dtype = None, torch.uint8
    for transform in transforms:
        if isinstance(transform, ToDtype):
            # The type is that of the result: in between everything is float32, as in Loader.
            values, dtype = torch.from_numpy(np.array(image)).to(torch.float32).div_(255), transform.dtype
        elif values is None:
            image = _geometry(image, transform)
        elif isinstance(transform, Normalize):
            values.sub_(torch.tensor(transform.mean)).div_(torch.tensor(transform.std))
        elif isinstance(transform, RandomErasing):
            _erase(values, transform)
    return torch.from_numpy(np.array(image)) if values is None else values.to(dtype)


def _geometry(image: Image.Image, transform: Transform) -> Image.Image:
    bilinear = Image.Resampling.BILINEAR
    if isinstance(transform, RandomResizedCrop):
        height, width = transform.size_numbers
        return image.crop(_draw_window(image.height, image.width)).resize((width, height), bilinear)
    if isinstance(transform, Resize):
        short, long = sorted(image.size)
        side = transform.size_numbers[0]
        longer = side * long // short
        return image.resize((side, longer) if image.width == short else (longer, side), bilinear)
    if isinstance(transform, RandomHorizontalFlip):
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < transform.p else image
    height, width = transform.size_numbers  # type: ignore[attr-defined]
    if isinstance(transform, RandomCrop):
        image = ImageOps.expand(image, transform.padding or 0, transform.fill)  # type: ignore[arg-type]
    if height > image.height or width > image.width:
        raise SourceError(
            f"{image.height} x {image.width} pixels are too small for {transform}. Remove the image, or use a smaller "
            "--size."
        )
    if isinstance(transform, CenterCrop):
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
    else:
        top, left = (int(torch.randint(room + 1, ())) for room in (image.height - height, image.width - width))
    return image.crop((left, top, left + width, top + height))


def _draw_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a window of 8 to 100 % of the area, 3:4 to 4:3, of ten tries or the whole.

    That is the draw of torchvision's RandomResizedCrop, after Szegedy et al. (2014).
    """
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(0.08, 1).item()
        ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(torch.randint(height - h + 1, ())), int(torch.randint(width - w + 1, ()))
            return left, top, left + w, top + h
    return 0, 0, width, height


def _erase(values: Tensor, transform: RandomErasing) -> None:
    """Fill a square of one share of the area, anywhere inside the image."""
    if torch.rand(()) >= transform.p:
        return
    side = round((transform.scale[0] * values.shape[0] * values.shape[1]) ** 0.5)
    top, left = (int(torch.randint(room - side + 1, ())) for room in values.shape[:2])
    values[top : top + side, left : left + side] = transform.value  # type: ignore[assignment]


def _check(transform: Transform) -> None:
    """Raise OptionError unless `with_pillow` applies a transform exactly as Loader does."""
    known = (RandomCrop, CenterCrop, RandomHorizontalFlip, ToDtype, Normalize)
    is_known = isinstance(transform, known)
    if isinstance(transform, RandomResizedCrop):
        is_known = transform == RandomResizedCrop(transform.size)
    elif isinstance(transform, Resize):
        is_known = transform == Resize(transform.size) and isinstance(transform.size, int)
    elif isinstance(transform, RandomErasing):
        is_known = transform.scale[0] == transform.scale[1] and transform.ratio == (1.0, 1.0)
    if not is_known:
        raise OptionError(f"{transform}: --folder does not support this transform. Train from a dataset instead.")


@lru_cache(maxsize=8)
def _at_size(transforms: tuple[Transform, ...], size: tuple[int, int]) -> tuple[Transform, ...]:
    return tuple(with_resolution(transforms, size))


def _collate(samples: list[tuple[Tensor, int]]) -> list[Tensor]:
    images, labels = default_collate([(image.permute(2, 0, 1), label) for image, label in samples])
    return [images, labels]


def _collate_channels_last(samples: list[tuple[Tensor, int]]) -> list[Tensor]:
    images, labels = default_collate(samples)
    return [images.permute(0, 3, 1, 2), labels]
