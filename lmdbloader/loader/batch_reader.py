"""BatchReader: the batches of a Loader from sample numbers, for one list of transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.stage_times import Clock
from lmdbloader.batch.assembly import Assembler, finished
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.memory import BatchMemory, PinnedMemory
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.errors import CorruptError
from lmdbloader.store import Damage
from lmdbloader.transforms import Transform
from lmdbloader.transforms.in_step import in_step

I64 = npt.NDArray[np.int64]
# In place of a batch whose samples are all damaged.
LEFT_OUT = object()


class BatchReader:
    """Reads batches; safe from several threads.

    It must not refer to the Loader, whose deletion ends the threads.

    Attributes:
        dataset: The dataset that is read.
        batch_size: Samples of a batch.
        pipeline: Of all image fields.
        is_pinned: Whether images are in pinned memory, which a forked child must not touch.
    """

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
    ) -> None:
        """Check that the transforms, which include the dataset's own, suit the images.

        The other arguments are those of Pipeline and of Assembler; `pinned` puts images into pinned memory.
        """
        self.dataset, self.batch_size, self.is_pinned = dataset, batch_size, pinned
        self._seed = seed
        images = [name for name, f in dataset.fields.items() if f.kind == "image"]
        rows = dataset.rows_of(np.arange(len(dataset), dtype=np.int64))
        self.pipeline = Pipeline(
            dataset.reader, images, transforms, rows=rows, seed=seed, channels_last=channels_last, verify=verify
        )
        memory = PinnedMemory if pinned else BatchMemory
        self._assembler = Assembler(self.pipeline, dataset.fields, memory, keep=keep)
        self._functions = tuple(in_step(function, self._assembler.kinds) for function in functions)
        self._extents: tuple[I64, I64] | None = None

    def extents(self) -> tuple[I64, I64]:
        """Return the offset of each sample in the file, and its bytes there, (n,) each."""
        if self._extents is None:
            rows = self.dataset.rows_of(np.arange(len(self.dataset), dtype=np.int64))
            self._extents = self.dataset.reader.extents(tuple(self.dataset.fields), rows)
        return self._extents

    def read(self, samples: I64, epoch: int, clock: Clock) -> list[Any]:
        """Return the batches of samples (n,), all of batch_size but the last; each still has to go through `finish`."""
        return self._assembler.read_batches(self.dataset.rows_of(samples), samples, epoch, self.batch_size, clock)

    def finish(self, batch: Any, epoch: int, first_sample: int) -> Any:
        """Return a batch of `read` after the dataset's own transform and the functions, called once for each batch."""
        transform = self.dataset._own_transform
        if transform is not None:
            transform = in_step(transform, self._assembler.kinds)
        return finished(batch, transform, self._functions, seed=self._seed, epoch=epoch, first_sample=first_sample)

    def read_sound(self, samples: I64, epoch: int, clock: Clock) -> tuple[Any, tuple[Damage, ...]]:
        """Return one finished batch without its damaged samples, and the damage; `LEFT_OUT` if no sample is left."""
        sound = samples
        damaged: list[Damage] = []
        while len(sound):
            try:
                stored = self.read(sound, epoch, clock)
            except CorruptError:
                found = [self._damage(sound[i : i + 1], epoch, clock) for i in range(len(sound))]
                if not any(found):  # each sample can be read by itself: this is not damage to one of them
                    raise
                damaged += filter(None, found)
                sound = sound[[damage is None for damage in found]]
                continue
            # The random numbers of batch functions stay those of the whole batch.
            batch = self.finish(stored[0], epoch, int(samples[0]))
            clock.count(len(sound), 1)
            return batch, tuple(damaged)
        return LEFT_OUT, tuple(damaged)

    def _damage(self, sample: I64, epoch: int, clock: Clock) -> Damage | None:
        """Return the damage to one sample, given as (1,); None if it can be read."""
        try:
            self.read(sample, epoch, clock)
        except CorruptError as error:
            if error.sample is None or error.field is None:
                raise
            return Damage(error.sample, error.field, error.source, str(error))
        return None

    def images_of(self, sample: int, epoch: int) -> dict[str, torch.Tensor]:
        """Return the images (C, H, W) of one sample after the compiled transforms, by the names of their fields."""
        row = int(self.dataset.rows_of(np.array([sample], np.int64))[0])
        return self._assembler.read_images(row, sample, epoch)
