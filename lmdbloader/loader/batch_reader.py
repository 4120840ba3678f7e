"""BatchReader: the batches of a Loader from sample numbers, for one list of transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.stage_times import Clock
from lmdbloader.batch.assembly import Assembler, Begun, finished
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.forms import Form
from lmdbloader.batch.memory import BatchMemory, PinnedMemory
from lmdbloader.batch.pipeline import Pipeline
from lmdbloader.batch.steps import ConversionStep, OwnStep
from lmdbloader.errors import CorruptError
from lmdbloader.loader.orders import Layout
from lmdbloader.loader.surroundings import Surroundings
from lmdbloader.store import Damage
from lmdbloader.store.rows import Rows
from lmdbloader.transforms import Transform

I64 = npt.NDArray[np.int64]
# In place of a batch whose samples are all damaged.
LEFT_OUT = object()


# Small batches are read several at a time: a call, and waking a thread, costs as much as reading some samples.
_SAMPLES_AT_ONCE = 64
# Samples are so large then that more of them in a call save nothing.
_NBYTES_AT_ONCE = 16 * 2**20
# Of all groups that are read ahead. There are at least two: one to be read, and one for the loop in the meantime.
_NBYTES_AHEAD = 2**30


@dataclass(frozen=True, slots=True)
class Plan:
    """How batches are read ahead.

    Attributes:
        batches_at_once: Batches of a group, which a thread reads at once.
        num_parts: Parts of a group of one large batch, each of which a thread reads.
        ahead: Groups that are being read or ready.
    """

    batches_at_once: int
    num_parts: int
    ahead: int


def plan_groups(batch_size: int, sample_nbytes: int, num_threads: int, prefetch: int) -> Plan:
    """Return how batches are read ahead: `num_threads + prefetch` groups, or fewer if they are large.

    >>> plan_groups(16, 34_560, num_threads=2, prefetch=2)
    Plan(batches_at_once=4, num_parts=1, ahead=4)
    >>> plan_groups(1, 8_298_720, num_threads=16, prefetch=2)
    Plan(batches_at_once=2, num_parts=1, ahead=18)
    >>> plan_groups(64, 8_298_720, num_threads=16, prefetch=2)
    Plan(batches_at_once=1, num_parts=16, ahead=2)
    """
    batch_nbytes = max(batch_size * sample_nbytes, 1)
    group_nbytes = min(_NBYTES_AT_ONCE, _NBYTES_AHEAD // (num_threads + 2))
    at_once = max(1, min(-(-_SAMPLES_AT_ONCE // batch_size), group_nbytes // batch_nbytes))
    most = max(2, _NBYTES_AHEAD // (at_once * batch_nbytes))
    if num_threads + prefetch <= most:
        return Plan(at_once, 1, num_threads + prefetch)
    # There are fewer batches than threads, and one of them may be waiting for the loop: the threads share the others.
    return Plan(at_once, min(batch_size, -(-num_threads // (most - 1))), most)


def _extents(dataset: LMDBDataset, first: int, end: int) -> tuple[I64, I64]:
    """Return the offset of samples first ... end - 1 in the file, and their bytes there, (n,) each."""
    return dataset.reader.extents(tuple(dataset.fields), dataset.stored_rows[first:end])


class BatchReader:
    """Reads batches; safe from several threads.

    It must not refer to the Loader, whose deletion ends the threads.

    Attributes:
        dataset: The dataset that is read, by whatever `io`.
        batch_size: Samples of a batch.
        pipeline: Of all fields of images and masks.
        plan: How batches are read ahead.
        layout: Where the samples lie in the file.
        is_pinned: Whether images are in pinned memory, which a forked child must not touch.
        form: Of the batches; None until the Loader has set it.
        repeats: Whether samples may come more than once in an epoch; False until the Loader has set it.

    Samples are given as draws, on which the random choices depend: sample + len(dataset) * occurrence.
    """

    def __init__(
        self,
        dataset: LMDBDataset,
        transforms: Sequence[Transform],
        functions: Sequence[Callable[[Any], Any]],
        batch_size: int,
        *,
        owner: LMDBDataset,
        seed: int,
        channels_last: bool,
        num_threads: int,
        prefetch: int,
        pinned: bool,
        verify: bool,
    ) -> None:
        """Check that the transforms, which include the dataset's own, suit the images.

        `owner` is the user's dataset, whose own transform may change at any time. The other arguments are those of
        Pipeline; `pinned` puts images into pinned memory. `num_threads` read, and `prefetch` more groups are ready.
        """
        self._owner = owner
        self.form: Form = None
        self.dataset, self.batch_size, self.is_pinned = dataset, batch_size, pinned
        self._seed, self.repeats = seed, False
        rows = dataset.stored_rows
        images = [name for name, f in dataset.fields.items() if f.has_pixels]
        # Images of different sizes are read without the pipeline if nothing compiled changes them.
        self._different: dict[str, int] = {}
        if not dataset._transforms and tuple(transforms) == dataset.all_transforms:
            if owner.has_own_transform:  # it may crop them to one size
                images = dataset.uniform_images()
            elif batch_size == 1 and len(rows):
                alike = dataset.uniform_images(rows, of_any_channels=True)
                reader = dataset.reader
                self._different = {n: reader.extremes(n, "channels", rows)[1] for n in images if n not in alike}
                images = alike
            transforms = transforms if images else ()
        self._channels_last = channels_last
        self.pipeline = Pipeline(
            dataset.reader, images, transforms, rows=rows, seed=seed, channels_last=channels_last, verify=verify
        )
        self.plan = plan_groups(batch_size, self._sample_nbytes(images, rows), num_threads, prefetch)
        keep = (self.plan.ahead + 2) * self.plan.batches_at_once
        memory = PinnedMemory if pinned else BatchMemory
        self._assembler = Assembler(self.pipeline, dataset.fields, memory, keep=keep, dtype=dataset._dtype)
        own = owner._own_transform
        self._assembler.check_pixels([*([] if own is None else [own]), *functions])
        self._functions = self._assembler.bound(functions, keep)
        self.layout = Layout(len(dataset), partial(_extents, dataset))

    def _sample_nbytes(self, images: Sequence[str], rows: Rows) -> int:
        """Return the bytes of a sample in a batch, on average; numbers and text do not count."""
        others = [name for name, f in self.dataset.fields.items() if f.is_payload and name not in images]
        nbytes = sum(self.dataset.reader.mean_nbytes(name, "raw_nbytes", rows) for name in others)
        return int(nbytes) + sum(output.nbytes for output in self.pipeline.outputs)

    def samples_of(self, draws: I64) -> I64:
        """Return the sample numbers (n,) of draws (n,)."""
        return draws % len(self.dataset) if self.repeats else draws

    def rows_of(self, draws: I64) -> I64:
        """Return the rows of the stored index (n,) of draws (n,)."""
        return self.dataset.rows_of(draws % len(self.dataset) if self.repeats else draws)

    def read(self, samples: I64, epoch: int, clock: Clock) -> list[Any]:
        """Return the batches of samples (n,), all of batch_size but the last; each still has to go through `finish`."""
        assembler = self._assembler
        read = assembler.read_many_samples if self._owner.has_own_transform else assembler.read_batches
        return read(self.rows_of(samples), samples, epoch, self.batch_size, clock)

    def begin(self, num_samples: int) -> Begun:
        """Return a batch without values. Threads fill it with `read_part`, and the last one calls `complete`."""
        return self._assembler.begin(num_samples)

    def read_part(self, begun: Begun, samples: I64, first: int, epoch: int, clock: Clock) -> None:
        """Read samples (n,) of a batch, whose places in it begin with `first`."""
        self._assembler.read_part(begun, self.rows_of(samples), samples, epoch, first, clock)

    def complete(self, begun: Begun, samples: I64, epoch: int, clock: Clock) -> Any:
        """Return a batch as `read` does, of all its samples (n,)."""
        assembler = self._assembler
        complete = assembler.complete_samples if self._owner.has_own_transform else assembler.complete
        return complete(begun, self.rows_of(samples), samples, epoch, clock)

    @property
    def python_functions(self) -> list[Callable[[Any], Any]]:
        """The dataset's own transform and the functions that are called in Python."""
        own = self._owner._own_transform
        functions = [function for function in self._functions if not isinstance(function, OwnStep | ConversionStep)]
        return functions if own is None else [own, *functions]

    def finish(self, batch: Any, epoch: int, position: int, samples: I64, around: Surroundings | None = None) -> Any:
        """Return a batch of `read` after the dataset's own transform and the functions, called once for each batch.

        Args:
            batch: Of `read`.
            epoch: Its number.
            position: Of the whole batch's first sample in the epoch's order.
            samples: (B,) numbers of its samples.
            around: What holds in the thread of the loop; None in that thread itself.
        """
        transform = self._owner._own_transform
        if transform is not None:
            transform = self._assembler.in_step(transform)
        elif self._different:
            changed = {name: self._as_from_pipeline(name, getattr(batch, name)) for name in self._different}
            batch = batch._replace(**changed)
        return finished(
            batch,
            transform,
            self._functions,
            seed=self._seed,
            epoch=epoch,
            position=position,
            samples=self.samples_of(samples),
            draws=samples,
            form=self.form,
            run=None if around is None else around.run,
        )

    def _as_from_pipeline(self, name: str, images: torch.Tensor) -> torch.Tensor:
        """Return images (1, C, H, W) with the channels and the memory format of a pipeline's; masks (1, H, W) as is."""
        if images.ndim == 3:
            return images
        images = images.expand(-1, self._different[name], -1, -1)
        return images.contiguous(memory_format=torch.channels_last if self._channels_last else torch.contiguous_format)

    def read_sound(
        self, samples: I64, epoch: int, position: int, clock: Clock, around: Surroundings | None
    ) -> tuple[Any, tuple[Damage, ...]]:
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
            batch = self.finish(stored[0], epoch, position, sound, around)
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
        row = int(self.rows_of(np.array([sample], np.int64))[0])
        return self._assembler.read_images(row, sample, epoch)
