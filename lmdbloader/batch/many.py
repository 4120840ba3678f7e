"""How torch reads a dataset: many samples in one call where that bypasses no user's code, or a Loader's own batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch.utils.data import Dataset, Subset, get_worker_info

from lmdbloader.errors import OptionError

ReadMany = Callable[[Sequence[int]], Sequence[Any]]


def rebuilt(does: str) -> OptionError:
    """Return the error for a framework that takes a Loader apart, with the lines to write instead."""
    return OptionError(
        f"a framework has built another DataLoader from a Loader, and {does}: the Loader's transforms, threads and "
        'share of the samples would be lost. Among several processes write Loader(..., shard="auto"); with Accelerate '
        "also `loader = lmdbloader.integrations.accelerate.prepare(accelerator, loader)`."
    )


class Ticket:
    """One batch of a Loader's epoch, in the place of its sample numbers; it is read when it is collated.

    Frameworks build DataLoaders of their own around a dataset and a batch sampler. With tickets these deliver the
    Loader's batches, and leaving some out costs nothing.

    Attributes:
        read: Returns the batch.
    """

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        raise rebuilt("divides its batches among processes")

    def __iter__(self) -> Iterator[Ticket]:
        """Give itself: torch asks the dataset for each item of a batch, and it gives the ticket back."""
        return iter((self,))

    def __reduce__(self) -> tuple[Any, ...]:
        raise rebuilt("reads it in worker processes")


class ReadsMany(Dataset[Any]):
    """A dataset with a method `_many`, which returns the samples of a list of numbers, read in one call."""

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return samples by their numbers."""
        raise NotImplementedError

    @property
    def __getitems__(self) -> ReadMany:
        """What torch reads batches with, in a worker of a DataLoader of this dataset or of a Subset of it.

        Elsewhere there is no such attribute: a wrapper that passes on the attributes of its dataset would pass on this
        method too, and torch would never call the wrapper's own `__getitem__`. Only a worker can tell them apart. In
        the process itself, `lmdbloader.dataloader` uses `many_of`.
        """
        info = get_worker_info()
        if info is None or _innermost(info.dataset) is not self or overridden(self):
            raise AttributeError("__getitems__")
        return self._many


def many_of(dataset: object) -> ReadMany | None:
    """Return the function that reads many samples of a dataset; None if they have to be read one by one."""
    if type(dataset) is Subset:
        read = many_of(dataset.dataset)
        return None if read is None else partial(_of_subset, read, dataset.indices)
    return dataset._many if isinstance(dataset, ReadsMany) and not overridden(dataset) else None


def _of_subset(read: ReadMany, indices: Sequence[int], numbers: Sequence[int]) -> Sequence[Any]:
    return read([indices[number] for number in numbers])


def _innermost(dataset: object) -> object:
    """Return the dataset inside torch's Subsets; their subclasses may make other samples."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def overridden(dataset: ReadsMany) -> str | None:
    """Return the method in which the dataset's class makes its own samples or numbers; None if it has none."""
    kind = type(dataset)
    ours = next(base for base in kind.__mro__ if "_many" in vars(base))
    names = ("__getitem__", "__getitems__", "__len__")
    return next((name for name in names if getattr(kind, name) is not getattr(ours, name)), None)
