"""What the Loader's threads read from: pipelines, memory and functions, from sample numbers to finished batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base import clock_words
from lmdbloader.base.stage_times import Clock, Stopwatch
from lmdbloader.batch.columns import read_batch_values
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.memory import BatchMemory, PinnedMemory
from lmdbloader.batch.pipeline import Output, Pipeline, Scratch
from lmdbloader.batch.sample import Batch, sample_type
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format.layout import CODEC_TILES
from lmdbloader.loader.ahead import Ahead
from lmdbloader.loader.orders import EpochOrder, Order, epoch_order
from lmdbloader.loader.torch_loader import collate, stacked
from lmdbloader.store import Damage
from lmdbloader.transforms import Transform
from lmdbloader.transforms.batch_functions import call, described

I64 = npt.NDArray[np.int64]
# In the place of a batch of which nothing is left.
LEFT_OUT = object()


class Source:
    """Reads batches; it knows nothing of the Loader, which ends the threads when it is deleted."""

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
        stopwatch: Stopwatch,
    ) -> None:
        self.stopwatch = stopwatch
        self._dataset, self._functions, self.batch_size = dataset, tuple(functions), batch_size
        self._seed = seed
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
        )
        self.is_pinned = pinned
        memory = PinnedMemory if pinned else BatchMemory
        self._memory = [
            memory((batch_size, *o.stored_shape), o.values.carrier, keep=keep) for o in self.pipeline.outputs
        ]
        self._type = sample_type(tuple(dataset.fields))
        self._places = [list(dataset.fields).index(name) for name in self._images]
        self._scratch: list[Scratch] = []
        self._extents: tuple[I64, I64] | None = None

    def order(self, order: Order, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        offset, nbytes = self.extents()
        return epoch_order(order, seed=seed, epoch=epoch, offset=offset, nbytes=nbytes)

    def extents(self) -> tuple[I64, I64]:
        """Return where each sample lies in the file, and how many bytes it takes, (n,) each."""
        if self._extents is None:
            rows = self._dataset.rows_of(np.arange(len(self._dataset), dtype=np.int64))
            self._extents = self._dataset.reader.extents(tuple(self._dataset.fields), rows)
        return self._extents

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

    def read(self, samples: I64, epoch: int, clock: Clock) -> list[Any]:
        """Return the batches of samples (n,), all of batch_size but the last; `finish` is still to be called for each.

        Images are transformed by compiled code. A clock gets the times.
        """
        rows = self._dataset.rows_of(samples)
        starts = range(0, len(samples), self.batch_size)
        batches: list[list[Any]] = [[None] * len(self._type._fields) for _ in starts]
        self._read_images(rows, samples, epoch, batches, clock)
        for f in self._others:
            place = self._type._fields.index(f.name)
            for batch, start in zip(batches, starts, strict=True):
                column = read_batch_values(self._dataset.reader, f, rows[start : start + self.batch_size], clock)
                batch[place] = stacked(f.name, column)
        return [self._type(*batch) for batch in batches]

    def finish(self, batch: Any, epoch: int, first_sample: int) -> Any:
        """Return a batch that was read after the dataset's own transform and the functions, which run once each."""
        if self._dataset.has_own_transform:
            batch = self._transformed(batch)
        for function in self._functions:
            batch = call(function, batch, seed=self._seed, epoch=epoch, first_sample=first_sample)
        return batch

    def read_sound(self, samples: I64, epoch: int, clock: Clock) -> tuple[Any, tuple[Damage, ...]]:
        """Return one batch without its damaged samples, `LEFT_OUT` if no other is left, and what was left out."""
        sound = samples
        damaged: list[Damage] = []
        while len(sound):
            try:
                stored = self.read(sound, epoch, clock)
            except CorruptError:
                found = [self._damage(sound[i : i + 1], epoch, clock) for i in range(len(sound))]
                if not any(found):  # it does not read, and each part of it does: that is no damage to a sample
                    raise
                damaged += filter(None, found)
                sound = sound[[damage is None for damage in found]]
                continue
            # What a batch's random numbers follow from stays that of the whole batch.
            batch = self.finish(stored[0], epoch, int(samples[0]))
            clock.count(len(sound), 1)
            return batch, tuple(damaged)
        return LEFT_OUT, tuple(damaged)

    def images_of(self, sample: int, epoch: int) -> dict[str, torch.Tensor]:
        """Return the images (C, H, W) of one sample after the compiled transforms, in memory of their own.

        Raises:
            CorruptError: One of them is damaged.
        """
        samples = np.array([sample], np.int64)
        outputs = self.pipeline.outputs
        memory = [torch.empty(output.nbytes, dtype=torch.uint8) for output in outputs]
        at = np.array([[flat.data_ptr() for flat in memory]], np.int64)
        self.pipeline.read(self._dataset.rows_of(samples), samples, epoch, at, 1, self.pipeline.scratch())
        return {o.name: o.tensor(flat)[0] for o, flat in zip(outputs, memory, strict=True)}

    def _damage(self, sample: I64, epoch: int, clock: Clock) -> Damage | None:
        """Return what is wrong with one sample, given as (1,)."""
        try:
            self.read(sample, epoch, clock)
        except CorruptError as error:
            if error.sample is None or error.field is None:
                raise
            return Damage(error.sample, error.field, error.source, str(error))
        return None

    def _read_images(self, rows: I64, samples: I64, epoch: int, batches: list[list[Any]], clock: Clock) -> None:
        clock.tick(clock_words.FUNCTION)
        addresses = np.empty((len(batches), len(self._memory)), np.int64)
        for number, batch in enumerate(batches):
            for f, memory in enumerate(self._memory):
                batch[self._places[f]], addresses[number, f] = memory.take()
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = self.pipeline.scratch()
        clock.tick(clock_words.BUFFER)
        try:
            self.pipeline.read(rows, samples, epoch, addresses, self.batch_size, scratch, clock)
        finally:
            self._scratch.append(scratch)
        short = len(rows) % self.batch_size
        for f, output in enumerate(self.pipeline.outputs):
            for batch in batches:
                batch[self._places[f]] = output.finished(batch[self._places[f]])
            if short:
                batches[-1][self._places[f]] = batches[-1][self._places[f]][:short]

    def _transformed(self, batch: Any) -> Any:
        """Return a batch whose samples went through the dataset's own transform one by one."""
        columns = dict(zip(self._type._fields, batch, strict=True))
        samples = [self._dataset.transform(sample) for sample in Batch(columns, len(batch[0]))]
        if any(sample is None for sample in samples):
            name = described(self._dataset._transform or self._dataset.transform)
            raise OptionError(
                f"{name} returned None for a sample; expected the sample, changed or as it is. End it with `return "
                "sample`. To leave samples out, choose the others before: dataset.select(numbers)."
            )
        return collate(samples)
