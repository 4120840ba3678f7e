"""Tickets: a Loader's batch sampler gives them, a dataset returns the Loader's own batch for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lmdbloader.errors import OptionError

_REBUILT = (
    "a framework has built another DataLoader from a Loader, and {does}: the Loader's transforms, threads and "
    "share of the samples would be lost."
)
_LINES = (
    ' Among several processes write Loader(..., shard="auto"); with Accelerate also '
    "`loader = lmdbloader.integrations.accelerate.prepare(accelerator, loader)`."
)


def rebuilt(does: str) -> OptionError:
    """Return the error for a framework that takes a Loader apart, with the lines to write instead."""
    return OptionError(_REBUILT.format(does=does) + _LINES)


class Ticket:
    """One batch of a Loader's epoch, in the place of its sample numbers; it is read when a dataset is asked for it.

    Frameworks build DataLoaders of their own around a dataset and a batch sampler. With tickets these deliver the
    Loader's batches, and leaving some out costs nothing.
    """

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Any]) -> None:
        """Prepare; `read` is called with nothing and returns the batch."""
        self._read = read

    def batch(self) -> Ready:
        """Return the batch: `dataset[ticket]`."""
        return Ready(self._read())

    def __len__(self) -> int:
        raise rebuilt("divides its batches among processes")

    def __iter__(self) -> Iterator[Ticket]:
        """Give itself: torch asks the dataset for each item of a batch."""
        return iter((self,))

    def __reduce__(self) -> tuple[Any, ...]:
        raise rebuilt("reads it in worker processes")


class Ready:
    """A batch that needs no collating."""

    __slots__ = ("batch",)

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def unpack(samples: Any) -> Any:
    """Return the batch of a ticket: the collate function of a Loader.

    Raises:
        OptionError: There are samples instead, which have not been through the Loader.
    """
    if isinstance(samples, list) and len(samples) == 1 and isinstance(samples[0], Ready):
        return samples[0].batch
    raise rebuilt("reads samples of the dataset itself; lmdbloader.collate stacks those")
