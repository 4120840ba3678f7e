"""The Loader: epochs of batches that threads assemble with compiled code, straight from the data file."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.batches import Batch, sample_type
from lmdbloader.columns import read_batch_values
from lmdbloader.cores import count_cores
from lmdbloader.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.format import CODEC_TILES
from lmdbloader.loader.ahead import Ahead
from lmdbloader.loader.device import on_device, usable_device
from lmdbloader.loader.memory import BatchMemory
from lmdbloader.loader.threads import Threads
from lmdbloader.loading import collate, stacked
from lmdbloader.pipeline import Output, Pipeline, Scratch, check_seed
from lmdbloader.sampling import EpochOrder, Order, batch_bounds, check_order, epoch_order, num_batches
from lmdbloader.transforms import Transform

I64 = npt.NDArray[np.int64]
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
        io: Literal["mmap", "pread"] = "mmap",
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
            num_threads: Threads that read; "auto" means one for each core that this process may use.
            prefetch: Batches to have ready beyond those that the threads are working on; batches of fewer than 64
                samples are read, and counted, by as many as make 64.
            device: Where batches go; "cuda" copies them while the step before runs. Without CUDA it means nothing.
            memory_format: torch.contiguous_format or torch.channels_last, of the images.
            shard: (rank, world_size) reads this rank's share of one common order; "auto" asks torch.distributed.
            io: "mmap" reads through the memory map; "pread" reads copies, which cost some speed, but a file that is
                cut short while it is read is an error instead of the end of the process.
            verify: Whether to check every payload's checksum before using it.

        Raises:
            OptionError: An option is out of its range, or a transform does not suit the images.
        """
        self._check(dataset, batch_size, prefetch, num_threads, io)
        self._options = {
            "order": order, "seed": seed, "drop_last": drop_last, "transforms": tuple(transforms),
            "num_threads": num_threads, "prefetch": prefetch, "device": device, "memory_format": memory_format,
            "shard": shard, "io": io, "verify": verify,
        }  # fmt: skip
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.seed, self.order = check_seed(seed), check_order(order)
        self.rank, self.world_size = _resolve_shard(shard)
        self.num_threads = count_cores() if num_threads == "auto" else num_threads
        self.prefetch = prefetch
        self._epoch = 0
        self._device = usable_device(device)
        if num_threads != "auto" and num_threads > count_cores():
            warnings.warn(
                f"num_threads={num_threads}, and this process may use {count_cores()} cores: more threads help only "
                "where the disk is slow to answer",
                stacklevel=2,
            )
        compiled = [t for t in transforms if isinstance(t, Transform)]
        functions = [t for t in transforms if not isinstance(t, Transform)]
        for t in functions:
            if not callable(t):
                raise OptionError(f"transforms: {t!r} is neither of lmdbloader.transforms nor a function")
        if list(transforms) != compiled + functions:
            raise OptionError("transforms: functions are called with whole batches, after all others. Move them last.")
        self._source = _Source(
            dataset,
            [*dataset.all_transforms, *compiled],
            functions,
            batch_size,
            seed=self.seed,
            channels_last=_is_channels_last(memory_format),
            keep=(self.num_threads + prefetch + 2) * self._batches_at_once,
            pinned=self._device is not None or torch.cuda.is_available(),
            verify=verify,
            by_descriptor=io == "pread",
        )
        self._threads = Threads(self.num_threads, "lmdbloader")

    @staticmethod
    def _check(dataset: LMDBDataset, batch_size: int, prefetch: int, num_threads: Any, io: str) -> None:
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
        if io not in ("mmap", "pread"):
            raise OptionError(f"io={io!r}: expected 'mmap' or 'pread'")

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
            OptionError: It is negative.
        """
        if epoch < 0:
            raise OptionError(f"set_epoch({epoch}): expected at least 0")
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the next epoch."""
        epoch = self._epoch
        self._epoch += 1
        return self._iterate(epoch)

    def _iterate(self, epoch: int) -> Iterator[Any]:
        batches = _deliver(self._run(epoch), self._threads, self.num_threads + self.prefetch)
        return batches if self._device is None else on_device(batches, self._device)

    def _run(self, epoch: int) -> _Run:
        order = self._source.order(self.order, self.seed, epoch)
        starts, stops = batch_bounds(
            len(self.dataset), self.batch_size, rank=self.rank, world_size=self.world_size, drop_last=self.drop_last
        )
        return _Run(self._source, epoch, order, starts, stops, self._batches_at_once)

    def benchmark(self, seconds: float = 5.0) -> Throughput:
        """Read batches for some seconds and say how fast; the epoch that the next iteration has stays.

        Raises:
            OptionError: There is no batch to read.
        """
        if len(self) == 0:
            raise OptionError(f"benchmark: {self.dataset!r} gives this loader no batch")
        epoch = self._epoch
        next(iter(self._iterate(epoch)))  # compiles, starts the threads
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
        return _open_loader, (self.dataset, self.batch_size, self._options, self._epoch)

    def __repr__(self) -> str:
        return (
            f"Loader({self.dataset!r}, {self.batch_size}, order={self.order!r}, seed={self.seed}, "
            f"num_threads={self.num_threads}, shard=({self.rank}, {self.world_size}))"
        )


def _open_loader(dataset: LMDBDataset, batch_size: int, options: dict[str, Any], epoch: int) -> Loader:
    loader = Loader(dataset, batch_size, **options)
    loader.set_epoch(epoch)
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


class _Source:
    """What the threads read from: it knows nothing of the Loader, which ends them when it is deleted."""

    def __init__(
        self,
        dataset: LMDBDataset,
        transforms: Sequence[Transform],
        functions: Sequence[Callable[[Any], Any]],
        batch_size: int,
        *,
        seed: int,
        channels_last: bool,
        keep: int,
        pinned: bool,
        verify: bool,
        by_descriptor: bool,
    ) -> None:
        self._dataset, self._functions, self._batch_size = dataset, tuple(functions), batch_size
        self._descriptor = dataset.reader.descriptor if by_descriptor else -1
        everything = np.arange(len(dataset), dtype=np.int64)
        self._images = [name for name, f in dataset.fields.items() if f.kind == "image"]
        self._others = [f for f in dataset.fields.values() if f.kind != "image"]
        self.pipeline = Pipeline(
            dataset.reader,
            self._images,
            transforms,
            rows=dataset.rows_of(everything),
            seed=seed,
            channels_last=channels_last,
            verify=verify,
            descriptor=self._descriptor,
        )
        self._memory = [
            BatchMemory((batch_size, *o.stored_shape), o.values.carrier, keep=keep, pinned=pinned)
            for o in self.pipeline.outputs
        ]
        self._type = sample_type(tuple(dataset.fields))
        self._places = [list(dataset.fields).index(name) for name in self._images]
        self._scratch: list[Scratch] = []
        self._extents: tuple[I64, I64] | None = None

    def order(self, order: Order, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        if self._extents is None:
            rows = self._dataset.rows_of(np.arange(len(self._dataset), dtype=np.int64))
            self._extents = self._dataset.reader.extents(tuple(self._dataset.fields), rows)
        offset, nbytes = self._extents
        return epoch_order(order, seed=seed, epoch=epoch, offset=offset, nbytes=nbytes)

    def ahead(self, order: EpochOrder, starts: I64, stops: I64) -> Ahead:
        """Return what brings in the bytes of a rank's coming batches."""
        cut = {o.name for o in self.pipeline.outputs if self._is_cut_from_large(o)}
        payloads = [name for name, f in self._dataset.fields.items() if f.is_payload and name not in cut]
        return Ahead(self._dataset.reader, payloads, self._dataset.rows_of, order, starts, stops)

    def _is_cut_from_large(self, output: Output) -> bool:
        """Return whether small windows of a field's large images are read: which ones, nobody knows ahead."""
        arrays = self._dataset.reader.index.arrays
        codec, raw = arrays[f"{output.name}.codec"], arrays[f"{output.name}.raw_nbytes"]
        return bool((codec == CODEC_TILES).any() and 2 * math.prod(output.shape) < raw.mean())

    def read(self, samples: I64, epoch: int) -> list[Any]:
        """Return the batches of samples (n,), all of batch_size but the last."""
        rows = self._dataset.rows_of(samples)
        starts = range(0, len(samples), self._batch_size)
        batches: list[list[Any]] = [[None] * len(self._type._fields) for _ in starts]
        self._read_images(rows, samples, epoch, batches)
        for f in self._others:
            place = self._type._fields.index(f.name)
            for batch, start in zip(batches, starts, strict=True):
                column = read_batch_values(
                    self._dataset.reader, f, rows[start : start + self._batch_size], self._descriptor
                )
                batch[place] = stacked(f.name, column)
        finished = [self._type(*batch) for batch in batches]
        if self._dataset.has_own_transform:
            finished = [self._transformed(batch) for batch in finished]
        for function in self._functions:
            finished = [function(batch) for batch in finished]
        return finished

    def _read_images(self, rows: I64, samples: I64, epoch: int, batches: list[list[Any]]) -> None:
        addresses = np.empty((len(batches), len(self._memory)), np.int64)
        for number, batch in enumerate(batches):
            for f, memory in enumerate(self._memory):
                batch[self._places[f]], addresses[number, f] = memory.take()
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = self.pipeline.scratch()
        try:
            self.pipeline.read(rows, samples, epoch, addresses, self._batch_size, scratch)
        finally:
            self._scratch.append(scratch)
        short = len(rows) % self._batch_size
        for f, output in enumerate(self.pipeline.outputs):
            for batch in batches:
                batch[self._places[f]] = output.finished(batch[self._places[f]])
            if short:
                batches[-1][self._places[f]] = batches[-1][self._places[f]][:short]

    def _transformed(self, batch: Any) -> Any:
        """Return a batch whose samples went through the dataset's own transform one by one."""
        columns = dict(zip(self._type._fields, batch, strict=True))
        return collate([self._dataset.transform(sample) for sample in Batch(columns, len(batch[0]))])


class _Run:
    """One pass through an epoch: what the threads and the iterator share."""

    def __init__(
        self, source: _Source, epoch: int, order: EpochOrder, starts: I64, stops: I64, batches_at_once: int
    ) -> None:
        self._source, self._epoch, self._order = source, epoch, order
        self._starts, self._stops, self._at_once = starts, stops, batches_at_once
        self._ahead = source.ahead(order, starts, stops)
        self.num_groups = -(-len(starts) // batches_at_once)
        self.results: SimpleQueue[tuple[int, list[Any], BaseException | None]] = SimpleQueue()
        self.cancelled = False

    def cancel(self) -> None:
        """Let the threads skip what they have not begun."""
        self.cancelled = True
        self._ahead.close()

    def read_group(self, group: int) -> None:
        """Read some batches that follow each other and put them into `results`, with the error that ended it."""
        if self.cancelled:
            return
        error = None
        first = group * self._at_once
        end = min(first + self._at_once, len(self._starts))
        try:
            self._ahead.need(first, end)
            batches = self._source.read(self._samples(first, end), self._epoch)
        except BaseException:
            batches, error = self._read_singly(group)
        self.results.put((group, batches, error))

    def _samples(self, first: int, end: int) -> I64:
        starts, stops = self._starts[first:end], self._stops[first:end]
        if len(starts) == 1 or (starts[1:] == stops[:-1]).all():
            return self._order.samples[starts[0] : stops[-1]]
        return np.concatenate([self._order.samples[a:b] for a, b in zip(starts, stops, strict=True)])

    def _read_singly(self, group: int) -> tuple[list[Any], BaseException | None]:
        """Return the batches of a group up to the one that cannot be read."""
        batches: list[Any] = []
        for number in range(group * self._at_once, min((group + 1) * self._at_once, len(self._starts))):
            try:
                batches += self._source.read(self._samples(number, number + 1), self._epoch)
            except BaseException as error:
                return batches, error
        return batches, None


def _deliver(run: _Run, threads: Threads, ahead: int) -> Iterator[Any]:
    """Yield the batches of a run in order, keeping so many groups under way."""
    arrived: dict[int, Any] = {}
    submitted = 0
    try:
        for group in range(run.num_groups):
            while submitted < min(group + ahead, run.num_groups):
                threads.submit(_Job(run, submitted))
                submitted += 1
            while group not in arrived:
                result = run.results.get()
                arrived[result[0]] = result
                del result  # a batch that nobody else holds is free for reuse
            _, found, error = arrived.pop(group)
            found.reverse()
            while found:
                yield found.pop()
            if error is not None:
                raise error
    finally:
        run.cancel()


class _Job:
    """One group of a run, to be read."""

    __slots__ = ("_group", "_run")

    def __init__(self, run: _Run, group: int) -> None:
        self._run, self._group = run, group

    def __call__(self) -> None:
        self._run.read_group(self._group)
