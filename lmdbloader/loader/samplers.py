"""The samplers of a Loader, from which frameworks read its order and build other DataLoaders."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from lmdbloader.batch.tickets import Ticket, rebuilt
from lmdbloader.errors import OptionError
from lmdbloader.loader.state import Place


class Loader(Protocol):
    """The part of a Loader that its samplers use."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def _set_sampler_epoch(self, epoch: int) -> None: ...

    def __len__(self) -> int: ...

    def _num_samples(self) -> int:
        """Return the samples of this rank in a whole epoch."""

    def _coming(self) -> tuple[Place, int]:
        """Return the place of the next iteration, and the number of its batches."""

    def _iterate(self, place: Place, step: int) -> Iterator[Any]:
        """Return an iterator from a place on without its first batches."""


class LoaderSampler(Sampler[int]):
    """The order of a Loader; its length is that of this rank, and only the Loader iterates it.

    Attributes:
        loader: The Loader.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the Loader's next batch, also in an iterator that has given none."""
        self.loader._set_sampler_epoch(epoch)

    def __len__(self) -> int:
        return self.loader._num_samples()

    def __iter__(self) -> Iterator[int]:
        raise rebuilt("chooses the samples itself")


class _Sequential(LoaderSampler, SequentialSampler):
    """A sequential order."""


class _Shard(LoaderSampler, DistributedSampler):  # type: ignore[type-arg]
    """One rank's share of an order, which frameworks leave as it is."""

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The number of ranks."""
        return self.loader.world_size

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank of this process."""
        return self.loader.rank


class _SequentialShard(_Shard, _Sequential):
    """One rank's share of a sequential order."""


def sampler_of(loader: Loader, *, is_sequential: bool, is_shard: bool) -> LoaderSampler:
    """Return the sampler of a loader, as an instance of the torch types that describe it."""
    kinds = {(False, False): LoaderSampler, (True, False): _Sequential, (False, True): _Shard}
    return kinds.get((is_sequential, is_shard), _SequentialShard)(loader)


class LoaderBatches(BatchSampler):
    """The batches of a Loader's next epoch, as tickets in place of sample numbers.

    Attributes:
        loader: The Loader.
        sampler: Its sampler.
        batch_size: Samples in a batch of one rank.
        drop_last: Whether short batches are left out.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        """Prepare. Frameworks call it with another sampler.

        Raises:
            OptionError: The sampler is not a Loader's.
        """
        if not isinstance(sampler, LoaderSampler):
            raise OptionError(
                f"a framework gives a Loader a {type(sampler).__name__}, but a Loader makes its own order. "
                f"{_line(sampler)}"
            )
        self.loader, self.sampler = sampler.loader, sampler
        self.batch_size, self.drop_last = batch_size, drop_last

    @property
    def num_processes(self) -> int:
        """The number of ranks that share the epoch."""
        return self.loader.world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the Loader's next batch, also in an iterator that has given none."""
        self.loader._set_sampler_epoch(epoch)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        epoch = _Epoch(self.loader)
        return (Ticket(partial(epoch.read, step)) for step in range(epoch.num_batches))


def _line(sampler: object) -> str:
    if isinstance(sampler, DistributedSampler):
        return 'Write Loader(..., shard="auto") for a share of them in each process, shard=(0, 1) for all of them.'
    if isinstance(sampler, SequentialSampler):
        return 'Write Loader(..., order="sequential") for batches that are the same in every epoch.'
    return "For your own sampler write lmdbloader.dataloader(dataset, batch_size, sampler=...)."


class _Epoch:
    """The next epoch of a Loader, or the rest of a restored one; it is begun by its first batch that is read."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._place, self.num_batches = loader._coming()
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None

    def read(self, step: int) -> Any:
        """Return a batch by its number. Batches are read in order, beginning with any of them."""
        if self._next is None:
            self._batches = self._loader._iterate(self._place, step)
        elif step != self._next:
            raise rebuilt("skips batches in the middle of an epoch")
        self._next = step + 1
        return next(self._batches)


def original_of(batch_sampler: object) -> Loader | None:
    """Return the Loader whose batch sampler a framework gives to the constructor, itself or in a wrapper; else None."""
    # Lightning's own, which notes the numbers of what it predicts.
    inner = getattr(batch_sampler, "_batch_sampler", batch_sampler)
    return inner.loader if isinstance(inner, LoaderBatches) else None
