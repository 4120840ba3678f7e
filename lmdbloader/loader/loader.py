"""The Loader: epochs of batches that threads assemble with compiled code, straight from the data file."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from lmdbloader.cores import count_cores
from lmdbloader.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.loader.device import on_device, usable_device
from lmdbloader.loader.run import Run, deliver
from lmdbloader.loader.source import Source
from lmdbloader.loader.threads import Threads
from lmdbloader.pipeline import check_epoch, check_seed
from lmdbloader.resolution import ProgressiveResize, full_size, with_resolution
from lmdbloader.sampling import Order, batch_bounds, check_order, num_batches
from lmdbloader.store import IO
from lmdbloader.transforms import Transform

Shard = tuple[int, int] | Literal["auto"] | None
# Small batches are read several at a time: a call, and waking a thread, costs as much as reading some samples.
_SAMPLES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Throughput:
    """What `Loader.benchmark` measured.

    Attributes:
        samples_per_s: Samples a second.
        p50_seconds, p99_seconds: Median and 99th percentile of the time from asking for a batch to having it.
        num_batches: How many batches were measured.
    """

    samples_per_s: float
    p50_seconds: float
    p99_seconds: float
    num_batches: int


class Loader:
    """Iterates over batches of a dataset; every iteration is the next epoch.

    Batches are named tuples of the dataset's fields: images as tensors (B, C, H, W), numbers as tensors (B,), text and
    bytes as lists. Threads read ahead; a batch that is still referred to never changes.

    >>> loader = Loader(dataset, 16, transforms=[RandomCrop(64), RandomDihedral()])  # doctest: +SKIP
    >>> for lr, hr in loader:  # doctest: +SKIP
    ...     train(lr, hr)
    """

    def __init__(
        self,
        dataset: LMDBDataset,
        batch_size: int,
        *,
        order: Order = "random",
        seed: int = 0,
        drop_last: bool = False,
        transforms: Sequence[Transform | Callable[[Any], Any]] = (),
        num_threads: int | Literal["auto"] = "auto",
        prefetch: int = 2,
        device: str | torch.device | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        shard: Shard = None,
        resolution: ProgressiveResize | None = None,
        io: IO | None = None,
        verify: bool = True,
    ) -> None:
        """Prepare to load; nothing is read yet.

        Args:
            dataset: What to read. A `transform` of its own is called sample by sample, which is slow.
            batch_size: Samples in a batch of this rank.
            order: "random" (every epoch another uniform permutation), "quasi_random" (shuffled within large windows of
                neighbouring samples, for datasets larger than memory; a `QuasiRandom` sets the windows), "sequential".
            seed: Of the order and of every random choice; with the epoch and the sample's number it determines them.
            drop_last: Whether to leave out the last batches where they are short.
            transforms: Of `lmdbloader.transforms`, carried out by compiled code for all image fields in step; after
                them any functions, each called with the whole batch.
            num_threads: Threads that read; "auto" means one for each core that this process may use, which is also
                the most.
            prefetch: Batches to have ready beyond those that the threads are working on; batches of fewer than 64
                samples are read, and counted, by as many as make 64.
            device: Where batches go; "cuda" copies them while the step before runs. Without CUDA it means nothing.
            memory_format: torch.contiguous_format or torch.channels_last, of the images.
            shard: (rank, world_size) reads this rank's share of one common order; "auto" asks torch.distributed.
            resolution: A schedule of sizes, from small ones to that of the transforms; see `set_resolution`.
            io: "mmap" reads through a memory map; "pread" reads copies, which cost some speed, but a file that is cut
                short while it is read is an error instead of the end of the process. As the dataset was opened by
                default.
            verify: Whether to check every payload's checksum before using it.

        Raises:
            OptionError: An option is out of its range, or a transform does not suit the images.
        """
        self._check(dataset, batch_size, prefetch, num_threads)
        self._options = {
            "order": order, "seed": seed, "drop_last": drop_last, "transforms": tuple(transforms),
            "num_threads": num_threads, "prefetch": prefetch, "device": device, "memory_format": memory_format,
            "shard": shard, "resolution": resolution, "io": io, "verify": verify,
        }  # fmt: skip
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.seed, self.order = check_seed(seed), check_order(order)
        self.rank, self.world_size = _resolve_shard(shard)
        cores = count_cores()
        self.num_threads = cores if num_threads == "auto" else min(num_threads, cores)
        self.prefetch = prefetch
        self._epoch = 0
        self._device = usable_device(device)
        if num_threads != "auto" and num_threads > cores:
            # They would only take turns; waiting for the disk is done in the background.
            warnings.warn(
                f"num_threads={num_threads}, and this process may use {cores} cores: {cores} threads are used",
                stacklevel=2,
            )
        compiled = [t for t in transforms if isinstance(t, Transform)]
        functions = [t for t in transforms if not isinstance(t, Transform)]
        for t in functions:
            if isinstance(t, type) and issubclass(t, Transform):
                raise OptionError(f"transforms: {t.__name__} is the class. Make one of it: {t.__name__}(...)")
            if not callable(t):
                raise OptionError(f"transforms: {t!r} is neither of lmdbloader.transforms nor a function")
        if list(transforms) != compiled + functions:
            raise OptionError("transforms: functions are called with whole batches, after all others. Move them last.")
        self._transforms, self._functions = [*dataset.all_transforms, *compiled], functions
        self._channels_last = _is_channels_last(memory_format)
        self._verify = verify
        self._read_from = dataset if io is None else dataset.with_io(io)
        self._schedule = resolution
        self._size: tuple[int, int] | None = None
        if resolution is not None:
            with_resolution(self._transforms, full_size(self._transforms))
        self._source = self._make_source(self._transforms)
        self._threads = Threads(self.num_threads, "lmdbloader")

    @staticmethod
    def _check(dataset: LMDBDataset, batch_size: int, prefetch: int, num_threads: Any) -> None:
        if not isinstance(dataset, LMDBDataset):
            raise OptionError(
                f"Loader({type(dataset).__name__}): expected an LMDBDataset. torch's DataLoader reads any other."
            )
        for name in ("__getitem__", "__getitems__"):
            if getattr(type(dataset), name) is not getattr(LMDBDataset, name):
                raise OptionError(
                    f"{type(dataset).__name__} overrides {name}, which the Loader does not call. Override `transform` "
                    "instead, or use torch's DataLoader."
                )
        if batch_size < 1 or prefetch < 0:
            raise OptionError(f"batch_size={batch_size}, prefetch={prefetch}: expected at least 1 and at least 0")
        if num_threads != "auto" and num_threads < 1:
            raise OptionError(f"num_threads={num_threads}: expected at least 1, or 'auto'")

    def _make_source(self, transforms: Sequence[Transform]) -> Source:
        return Source(
            self._read_from,
            transforms,
            self._functions,
            self.batch_size,
            seed=self.seed,
            channels_last=self._channels_last,
            keep=(self.num_threads + self.prefetch + 2) * self._batches_at_once,
            pinned=self._device is not None or torch.cuda.is_available(),
            verify=self._verify,
        )

    def set_resolution(self, size: int | tuple[int, int] | None) -> None:
        """Let images have another size from the next iteration on; iterators that are under way keep theirs.

        The last of the transforms that gives images a size (RandomResizedCrop, CenterCrop, RandomCrop or Resize to a
        height and a width) gets this one, those before it change in proportion. Threads and order stay, and so do the
        random choices. This ends a schedule that was given as `resolution`.

        Args:
            size: Of both sides, or (height, width); None means that of the transforms.

        Raises:
            OptionError: It is no size, none of the transforms has one, or images are too small for it.
        """
        sides = (size, size) if isinstance(size, int) else size
        if sides is not None and (len(sides) != 2 or min(sides) < 1):
            raise OptionError(f"set_resolution({size}): expected a size of at least 1, (height, width), or None")
        self._use_size(sides)
        self._schedule = None

    def _use_size(self, size: tuple[int, int] | None) -> None:
        if size == self._size:
            return
        transforms = self._transforms if size is None else with_resolution(self._transforms, size)
        self._source = self._make_source(transforms)
        self._size = size

    def _begin(self, epoch: int) -> None:
        """Take the size that the schedule has for an epoch."""
        if self._schedule is not None:
            self._use_size(self._schedule.size_at(epoch, full_size(self._transforms)))

    @property
    def _batches_at_once(self) -> int:
        return -(-_SAMPLES_AT_ONCE // self.batch_size)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return num_batches(
            len(self.dataset),
            self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch; the one after it is epoch + 1.

        Raises:
            OptionError: It is negative, or does not fit 63 bits.
        """
        self._epoch = check_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the next epoch."""
        epoch = self._epoch
        self._epoch += 1
        return self._iterate(epoch)

    def _iterate(self, epoch: int) -> Iterator[Any]:
        self._begin(epoch)
        batches = deliver(self._run(epoch), self._threads, self.num_threads + self.prefetch)
        return batches if self._device is None else on_device(batches, self._device)

    def _run(self, epoch: int, limit: int | None = None) -> Run:
        """Return a pass through an epoch, or its first batches."""
        order = self._source.order(self.order, self.seed, epoch)
        starts, stops = batch_bounds(
            len(self.dataset), self.batch_size, rank=self.rank, world_size=self.world_size, drop_last=self.drop_last
        )
        return Run(self._source, epoch, order, starts[:limit], stops[:limit], self._batches_at_once)

    def benchmark(self, seconds: float = 5.0) -> Throughput:
        """Read batches for some seconds and say how fast; the epoch that the next iteration has stays.

        Raises:
            OptionError: There is no batch to read.
        """
        if len(self) == 0:
            raise OptionError(f"benchmark: {self.dataset!r} gives this loader no batch")
        epoch = self._epoch
        self._begin(epoch)
        for _ in deliver(self._run(epoch, self._batches_at_once), self._threads, 1):
            pass  # compiles, starts the threads
        latencies: list[float] = []
        samples = 0
        began = before = time.perf_counter()
        while before - began < seconds:
            for batch in self._iterate(epoch):
                now = time.perf_counter()
                latencies.append(now - before)
                before = now
                samples += len(batch[0])
                if now - began >= seconds:
                    break
            epoch += 1
        p50, p99 = np.percentile(latencies, [50, 99])
        return Throughput(samples / (before - began), float(p50), float(p99), len(latencies))

    def close(self) -> None:
        """End the threads; a later iteration starts new ones."""
        self._threads.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._options, "resolution": self._schedule}
        size = None if self._schedule is not None else self._size
        return _open_loader, (self.dataset, self.batch_size, options, self._epoch, size)

    def __repr__(self) -> str:
        return (
            f"Loader({self.dataset!r}, {self.batch_size}, order={self.order!r}, seed={self.seed}, "
            f"num_threads={self.num_threads}, shard=({self.rank}, {self.world_size}))"
        )


def _open_loader(dataset: LMDBDataset, batch_size: int, options: dict[str, Any], epoch: int, size: Any) -> Loader:
    loader = Loader(dataset, batch_size, **options)
    loader.set_epoch(epoch)
    if size is not None:
        loader.set_resolution(size)
    return loader


def _is_channels_last(memory_format: torch.memory_format) -> bool:
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise OptionError(f"memory_format={memory_format}: expected torch.contiguous_format or torch.channels_last")
    return memory_format == torch.channels_last


def _resolve_shard(shard: Shard) -> tuple[int, int]:
    """Return (rank, world_size)."""
    if shard is None:
        return 0, 1
    if shard != "auto":
        rank, world_size = shard
        if not 0 <= rank < world_size:
            raise OptionError(f"shard={shard}: expected (rank, world_size) with a rank from 0 to world_size - 1")
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError(
            "shard='auto': this is one of several processes (WORLD_SIZE is set), but torch.distributed is not "
            "initialised yet. Call torch.distributed.init_process_group first, or give shard=(rank, world_size)."
        )
    return 0, 1
