"""Seeded orders of an epoch, and the part of them that each rank reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries

I64 = npt.NDArray[np.int64]
# The window of an order that is that of storage.
_SEQUENTIAL_NBYTES = 32 * 2**20
# The shuffles of one epoch, whose random numbers must differ.
_SAMPLES, _BLOCKS, _WINDOWS = range(3)


@dataclass(frozen=True, slots=True)
class QuasiRandom:
    """Shuffles blocks of neighbouring samples, then the samples within windows of several blocks.

    The disk gets long sequential reads, and memory has to hold two windows instead of the dataset.

    Attributes:
        block_nbytes: Bytes that are read at once, to within one sample.
        window_nbytes: Bytes among which samples are shuffled, to within one block.
    """

    block_nbytes: int = 4 * 2**20
    window_nbytes: int = 128 * 2**20

    def __post_init__(self) -> None:
        whole = isinstance(self.block_nbytes, Integral) and isinstance(self.window_nbytes, Integral)
        if not whole or not 1 <= self.block_nbytes <= self.window_nbytes < 2**63:
            raise OptionError(
                f"{self}: expected whole numbers of bytes below 2**63: a block of at least 1, and a window not smaller"
            )


Order = Literal["random", "quasi_random", "sequential"] | QuasiRandom


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of an epoch, the same for all ranks.

    Attributes:
        samples: (n,) the dataset's sample numbers in this order.
        windows: (k + 1,) positions at which windows begin, from 0 to n; a window is read from storage as a whole. None
            if samples are read one by one.
    """

    samples: I64
    windows: I64 | None


def check_order(order: Order) -> Order:
    """Return an order; raise OptionError if it is something else."""
    if order in ("random", "quasi_random", "sequential") or isinstance(order, QuasiRandom):
        return order
    raise OptionError(f"order={order!r}: expected 'random', 'quasi_random', 'sequential' or QuasiRandom(...)")


def epoch_order(order: Order, *, seed: int, epoch: int, offset: I64, nbytes: I64) -> EpochOrder:
    """Return the order of an epoch, which depends only on the arguments.

    Args:
        order: Its kind.
        seed, epoch: From 0 to 2**64 - 1.
        offset: (n,) of each sample in the file.
        nbytes: (n,) of each sample in the file.
    """
    if order == "sequential":
        samples = np.arange(len(offset), dtype=np.int64)
        return EpochOrder(samples, _parts(nbytes, _SEQUENTIAL_NBYTES))
    key = seed, epoch
    if order == "random":
        samples = np.arange(len(offset), dtype=np.int64)
        entries.shuffle(samples, *key, _SAMPLES, 0)
        return EpochOrder(samples, None)
    sizes = order if isinstance(order, QuasiRandom) else QuasiRandom()
    stored = _storage_order(offset)
    blocks = _parts(nbytes[stored], sizes.block_nbytes)
    numbers = np.arange(len(blocks) - 1, dtype=np.int64)
    entries.shuffle(numbers, *key, _BLOCKS, 0)
    lengths = (blocks[1:] - blocks[:-1])[numbers]
    ends = np.cumsum(lengths)
    samples = stored[np.arange(len(stored)) + np.repeat(blocks[:-1][numbers] - (ends - lengths), lengths)]
    # A window is a number of whole blocks.
    block_nbytes = np.add.reduceat(nbytes[samples], ends - lengths) if len(ends) else ends
    windows = np.append(0, ends)[_parts(block_nbytes, sizes.window_nbytes)]
    entries.shuffle_parts(samples, windows, *key, _WINDOWS)
    return EpochOrder(samples, windows)


def _storage_order(offset: I64) -> I64:
    """Return sample numbers (n,) by their offset in the file; samples with equal offsets stay in order."""
    if (offset[1:] >= offset[:-1]).all():
        return np.arange(len(offset), dtype=np.int64)
    # Faster than a stable sort, but the order of equal offsets depends on NumPy and the processor.
    stored = np.argsort(offset)
    placed = offset[stored]
    return stored if (placed[1:] > placed[:-1]).all() else np.argsort(offset, kind="stable")


def _parts(nbytes: I64, part_nbytes: int) -> I64:
    """Return the positions at which parts begin, from 0 to n: the first value after each multiple of `part_nbytes`."""
    if len(nbytes) == 0:
        return np.zeros(1, np.int64)
    number = (np.cumsum(nbytes) - nbytes) // part_nbytes
    return np.concatenate([[0], np.flatnonzero(number[1:] != number[:-1]) + 1, [len(nbytes)]]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a common order that one rank reads, divided into batches.

    Attributes:
        batch_size: Samples of a batch of one rank.
        rank, world_size: The rank, and the number of ranks.
        drop_last: Whether to leave out the last step if it is short.
        pad: Whether to fill the last step up with positions from the beginning, so that all ranks get the same number.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: bool = False

    def num_batches(self, length: int) -> int:
        """Return the number of batches that the rank reads of `length` samples.

        >>> [Share(2, rank, 2).num_batches(9) for rank in (0, 1)]
        [3, 2]
        >>> [Share(2, rank, 2, pad=True).num_batches(9) for rank in (0, 1)]
        [3, 3]
        """
        whole, rest = divmod(length, self.batch_size * self.world_size)
        return whole + (not self.drop_last and rest > (0 if self.pad else self.rank))

    def bounds(self, length: int, start: int = 0) -> tuple[I64, I64]:
        """Return the positions of the epoch's order at which the rank's batches begin and end, (n,) each.

        Each step takes the next world_size * batch_size positions; rank r gets the r-th batch_size of them. The last,
        short step is divided among the ranks in their order; sizes differ by at most one, and a rank for which nothing
        is left has one batch less. With `pad` each rank has ceil(left / world_size) positions in it, of which fewer
        than world_size are beyond the end: see `with_repeats`.

        Args:
            length: Of the order.
            start: Number of its positions that were read earlier, by any number of ranks.

        >>> [bounds.tolist() for bounds in Share(3, rank=1, world_size=2).bounds(11)]
        [[3, 9], [6, 11]]
        >>> [bounds.tolist() for bounds in Share(3, rank=1, world_size=2, pad=True).bounds(11, start=8)]
        [[10], [12]]
        """
        step = self.batch_size * self.world_size
        whole, rest = divmod(length - start, step)
        starts = start + np.arange(whole, dtype=np.int64) * step + self.rank * self.batch_size
        stops = starts + self.batch_size
        if self.num_batches(length - start) > whole:
            each, more = (-(-rest // self.world_size), 0) if self.pad else divmod(rest, self.world_size)
            last = length - rest + self.rank * each + min(self.rank, more)
            starts, stops = np.append(starts, last), np.append(stops, last + each + (self.rank < more))
        return starts, stops

    def position_after(self, num_steps: int, length: int, start: int = 0) -> int:
        """Return the position in the order after some steps of all ranks; it is the same for every rank.

        After the last step it is the end, even if that step leaves out or repeats samples.

        >>> [Share(3, rank=1, world_size=2).position_after(steps, 11) for steps in (0, 1, 2)]
        [0, 6, 11]
        """
        # The first rank has as many batches as any.
        most = replace(self, rank=0).num_batches(length - start)
        return length if 0 < most <= num_steps else start + num_steps * self.batch_size * self.world_size


def with_repeats(order: EpochOrder, length: int) -> EpochOrder:
    """Return an order of at least `length` samples: at its end it starts again, within its last window.

    >>> with_repeats(EpochOrder(np.array([2, 0, 1]), np.array([0, 3])), 5)
    EpochOrder(samples=array([2, 0, 1, 2, 0]), windows=array([0, 5]))
    """
    if length <= len(order.samples):
        return order
    windows = order.windows if order.windows is None else np.append(order.windows[:-1], length)
    return EpochOrder(np.resize(order.samples, length), windows)
