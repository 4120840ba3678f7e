"""The samplers of a Loader, from which frameworks read its order and build other DataLoaders.

Its batch sampler gives tickets, and its collate function the Loader's own batch for each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from lmdbloader.batch.many import Ticket, rebuilt
from lmdbloader.errors import OptionError


def unpack(samples: Any) -> Any:
    """Return the batch of a ticket: the collate function of a Loader.

    Raises:
        OptionError: There are samples instead, which have not been through the Loader.
    """
    if isinstance(samples, list) and len(samples) == 1 and isinstance(samples[0], Ticket):
        return samples[0].read()
    raise rebuilt("reads samples of the dataset itself; lmdbloader.collate stacks those")


class _Fixed:
    """What a framework finds on a Loader; a value that is set there would have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise OptionError(f"{type(self).__name__}.{name} = ...: it cannot change. Make another Loader.")
        object.__setattr__(self, name, value)


class LoaderSampler(_Fixed, Sampler[int]):
    """The order of a Loader; its length is that of this rank, and only the Loader iterates it.

    Attributes:
        loader: The Loader.
    """

    loader: Any

    def __init__(self, loader: Any) -> None:
        vars(self).update(loader=loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the Loader's next iteration, as `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        return int(self.loader._num_samples())

    def __iter__(self) -> Iterator[int]:
        raise rebuilt("chooses the samples itself")


class _Sequential(LoaderSampler, SequentialSampler):
    """A sequential order."""


class _Shard(LoaderSampler, DistributedSampler):  # type: ignore[type-arg]
    """One rank's share of an order, which frameworks leave as it is."""

    @property
    def num_replicas(self) -> Any:  # type: ignore[override]
        """The number of ranks."""
        return self.loader.world_size

    @property
    def rank(self) -> Any:  # type: ignore[override]
        """The rank of this process."""
        return self.loader.rank


class _SequentialShard(_Shard, _Sequential):
    """One rank's share of a sequential order."""


def sampler_of(loader: Any, *, is_sequential: bool, is_shard: bool) -> LoaderSampler:
    """Return the sampler of a loader, as an instance of the torch types that describe it."""
    if is_shard:
        return _SequentialShard(loader) if is_sequential else _Shard(loader)
    return _Sequential(loader) if is_sequential else LoaderSampler(loader)


class LoaderBatches(_Fixed, BatchSampler):
    """The batches of a Loader's next epoch, as tickets in place of sample numbers.

    Attributes:
        loader: The Loader.
        sampler: Its sampler.
        batch_size: Samples in a batch of one rank; None if a batch sampler makes the batches.
        drop_last: Whether short batches are left out.
    """

    loader: Any

    def __init__(self, sampler: Any, batch_size: int | None, drop_last: bool) -> None:
        """Prepare. Frameworks call it with another sampler.

        Raises:
            OptionError: The sampler is not a Loader's.
        """
        if not isinstance(sampler, LoaderSampler):
            raise OptionError(
                f"a framework gives a Loader a {type(sampler).__name__}, but a Loader makes its own order. "
                f"{_line(sampler)}"
            )
        vars(self).update(loader=sampler.loader, sampler=sampler, batch_size=batch_size, drop_last=drop_last)
        self._named: int | None = None

    @property
    def num_processes(self) -> Any:
        """The number of ranks that share the epoch."""
        return self.loader.world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the Loader's next iteration, as `Loader.set_epoch`."""
        self._named = epoch
        self.loader.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Return the Loader's place, for torchdata's StatefulDataLoader."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a place; a number that was set before is one of the restored epoch, if it can be."""
        self.loader.load_state_dict(state_dict)
        if self._named is not None and self._named <= state_dict["epoch"]:
            self.loader.set_epoch(self._named)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.loader.world_size > 1 and _is_dispatched():
            raise OptionError(
                "Accelerate's dispatch_batches reads the batches of all processes in the main one, and this loader "
                f"reads share {self.loader.rank} of {self.loader.world_size}: the other shares would be lost. Leave "
                "dispatch_batches out and write lmdbloader.integrations.accelerate.prepare(accelerator, loader), or "
                "read all samples with Loader(..., shard=(0, 1))."
            )
        return self._tickets()

    def _tickets(self) -> Iterator[Ticket]:
        epoch = _Epoch(self.loader)
        for step in range(self.loader._num_coming()):
            yield Ticket(partial(epoch.read, step))
        epoch.end()


def _is_dispatched() -> bool:
    """Return whether the iteration that begins is one of Accelerate, which divides the batches of one process."""
    module = sys.modules.get("accelerate.state")
    active = None if module is None else module.GradientState().active_dataloader
    return type(active).__name__ == "DataLoaderDispatcher"


def _line(sampler: object) -> str:
    if isinstance(sampler, DistributedSampler):
        return 'Write Loader(..., shard="auto") for a share of them in each process, shard=(0, 1) for all of them.'
    if isinstance(sampler, SequentialSampler):
        return 'Write Loader(..., order="sequential") for batches that are the same in every epoch.'
    return "For your own sampler write lmdbloader.dataloader(dataset, batch_size, sampler=...)."


class _Epoch:
    """The next epoch of a Loader, or the rest of a restored one; it is begun by its first batch that is read."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None

    def read(self, step: int) -> Any:
        """Return a batch by its number. Batches are read in order, beginning with any of them."""
        if self._next is None:
            self._batches = self._loader._iterate(step)
        elif step != self._next:
            raise rebuilt("skips batches in the middle of an epoch")
        self._next = step + 1
        return next(self._batches)

    def end(self) -> None:
        """Note that the epoch is complete: whoever asks for no more batches has them all."""
        next(self._batches, None)


def original_of(batch_sampler: object) -> Any:
    """Return the Loader whose batch sampler a framework gives to the constructor, itself or in a wrapper; else None."""
    # Lightning's own, which notes the numbers of what it predicts.
    inner = getattr(batch_sampler, "_batch_sampler", batch_sampler)
    return inner.loader if isinstance(inner, LoaderBatches) else None
