"""Seeded orders of an epoch, and which part of them each rank reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError

I64 = npt.NDArray[np.int64]
# What is read from storage at once where the order is that of storage.
_SEQUENTIAL_NBYTES = 32 * 2**20
# What a shuffle is for: two of one epoch must not draw the same numbers.
_SAMPLES, _BLOCKS, _WINDOWS = np.uint64(0), np.uint64(1), np.uint64(2)


@dataclass(frozen=True, slots=True)
class QuasiRandom:
    """Shuffles blocks of neighbouring samples, and the samples of the blocks that follow each other in one window.

    The disk then sees long sequential reads, and memory has to hold two windows instead of the dataset.

    Attributes:
        block_nbytes: Bytes that are read in one go, to within one sample.
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
        samples: (n,) the dataset's sample numbers as they are read.
        windows: (k + 1,) positions where a part begins that is read from storage as a whole, with 0 and n at the ends;
            None where samples are read one by one.
    """

    samples: I64
    windows: I64 | None


def check_order(order: Order) -> Order:
    """Return an order.

    Raises:
        OptionError: There is no such order.
    """
    if order in ("random", "quasi_random", "sequential") or isinstance(order, QuasiRandom):
        return order
    raise OptionError(f"order={order!r}: expected 'random', 'quasi_random', 'sequential' or QuasiRandom(...)")


def epoch_order(order: Order, *, seed: int, epoch: int, offset: I64, nbytes: I64) -> EpochOrder:
    """Return the order of an epoch; it depends on nothing but the arguments.

    Args:
        order: Which kind.
        seed, epoch: From 0 to 2**64 - 1.
        offset: (n,) where each sample lies in the file.
        nbytes: (n,) how many bytes of the file it takes.
    """
    if order == "sequential":
        samples = np.arange(len(offset), dtype=np.int64)
        return EpochOrder(samples, _parts(nbytes, _SEQUENTIAL_NBYTES))
    from lmdbloader.kernels.orders import shuffle, shuffle_parts

    key = np.uint64(seed), np.uint64(epoch)
    if order == "random":
        samples = np.arange(len(offset), dtype=np.int64)
        shuffle(samples, *key, _SAMPLES, np.uint64(0))
        return EpochOrder(samples, None)
    sizes = order if isinstance(order, QuasiRandom) else QuasiRandom()
    stored = _storage_order(offset)
    blocks = _parts(nbytes[stored], sizes.block_nbytes)
    numbers = np.arange(len(blocks) - 1, dtype=np.int64)
    shuffle(numbers, *key, _BLOCKS, np.uint64(0))
    lengths = (blocks[1:] - blocks[:-1])[numbers]
    ends = np.cumsum(lengths)
    samples = stored[np.arange(len(stored)) + np.repeat(blocks[:-1][numbers] - (ends - lengths), lengths)]
    # A window is a number of whole blocks.
    block_nbytes = np.add.reduceat(nbytes[samples], ends - lengths) if len(ends) else ends
    windows = np.append(0, ends)[_parts(block_nbytes, sizes.window_nbytes)]
    shuffle_parts(samples, windows, *key, _WINDOWS)
    return EpochOrder(samples, windows)


def _storage_order(offset: I64) -> I64:
    """Return sample numbers (n,) by their place in the file; of samples in the same place, the first comes first."""
    if (offset[1:] >= offset[:-1]).all():
        return np.arange(len(offset), dtype=np.int64)
    # Faster than a stable sort. But what it does with equal offsets depends on NumPy and the processor.
    stored = np.argsort(offset)
    placed = offset[stored]
    return stored if (placed[1:] > placed[:-1]).all() else np.argsort(offset, kind="stable")


def _parts(nbytes: I64, part_nbytes: int) -> I64:
    """Return where parts begin, with 0 and n at the ends: at the first value after every multiple of so many bytes."""
    if len(nbytes) == 0:
        return np.zeros(1, np.int64)
    number = (np.cumsum(nbytes) - nbytes) // part_nbytes
    return np.concatenate([[0], np.flatnonzero(number[1:] != number[:-1]) + 1, [len(nbytes)]]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a common order one of several ranks reads, and in what batches.

    Attributes:
        batch_size: Samples of a batch of one rank.
        rank, world_size: Which rank, of how many.
        drop_last: Whether the last step is left out where it is short.
        pad: Whether the last step is filled up with positions from the beginning, so that all ranks get as much.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad: bool = False

    def num_batches(self, length: int) -> int:
        """Return how many batches the rank reads of so many samples.

        >>> [Share(2, rank, 2).num_batches(9) for rank in (0, 1)]
        [3, 2]
        >>> [Share(2, rank, 2, pad=True).num_batches(9) for rank in (0, 1)]
        [3, 3]
        """
        whole, rest = divmod(length, self.batch_size * self.world_size)
        return whole + (not self.drop_last and rest > (0 if self.pad else self.rank))

    def bounds(self, length: int, start: int = 0) -> tuple[I64, I64]:
        """Return which positions of the epoch's order the rank reads: where its batches begin and end, (n,) each.

        Step s takes the next world_size * batch_size positions, rank r the r-th batch_size of them. The last, short
        step is spread over the ranks in their order, so that sizes differ by at most one; a rank for which nothing is
        left has one batch less. With `pad` each has ceil(left / world_size) positions in it, of which fewer than
        world_size lie beyond the end: see `with_repeats`.

        Args:
            length: Of the order.
            start: How many of its positions were given out earlier, to any number of ranks.

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
        """Return how many positions all ranks together have been given after so many steps, the same for every rank.

        The last step counts to the end, whatever is left out of it or repeated in it.

        >>> [Share(3, rank=1, world_size=2).position_after(steps, 11) for steps in (0, 1, 2)]
        [0, 6, 11]
        """
        # The first rank has as many batches as any.
        most = replace(self, rank=0).num_batches(length - start)
        return length if 0 < most <= num_steps else start + num_steps * self.batch_size * self.world_size


def with_repeats(order: EpochOrder, length: int) -> EpochOrder:
    """Return an order of at least so many samples: where it ends it begins again, within its last window.

    >>> with_repeats(EpochOrder(np.array([2, 0, 1]), np.array([0, 3])), 5)
    EpochOrder(samples=array([2, 0, 1, 2, 0]), windows=array([0, 5]))
    """
    if length <= len(order.samples):
        return order
    windows = order.windows if order.windows is None else np.append(order.windows[:-1], length)
    return EpochOrder(np.resize(order.samples, length), windows)


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well an order mixes samples that are stored side by side.

    Attributes:
        correlation: Of a sample's position in the epoch with its rank in storage: 1 for the order of storage, about 0
            for a random one.
        neighbour_distance: Median distance in the epoch of two samples stored side by side, as a share of what a
            uniform permutation has (0.29 of the epoch).
    """

    correlation: float
    neighbour_distance: float


def mixing(samples: I64, offset: I64) -> Mixing:
    """Return how well an order (n,) mixes samples whose places in the file are `offset` (n,), for n of at least 3."""
    count = len(samples)
    position = np.empty(count)
    position[samples] = np.arange(count)
    in_storage = position[np.argsort(offset, kind="stable")]
    correlation = float(np.corrcoef(in_storage, np.arange(count))[0, 1])
    # Of two uniform positions in [0, 1): the median of their distance is 1 - 1 / sqrt(2).
    distance = float(np.median(np.abs(np.diff(in_storage))) / count / (1 - 0.5**0.5))
    return Mixing(correlation, distance)


def storage_reads(order: EpochOrder, offset: I64, nbytes: I64, *, gap_nbytes: int = 128 * 1024) -> tuple[int, float]:
    """Return how many reads of storage an epoch needs and their mean length in bytes; near neighbours are read at once.

    Args:
        order: Of the epoch; within each of its windows samples may be read in the order of storage.
        offset, nbytes: (n,) where each sample lies, and how long it is.
        gap_nbytes: Reads with no more than this between them become one.
    """
    bounds = np.arange(len(offset) + 1) if order.windows is None else order.windows
    window = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order_in_windows = order.samples[np.lexsort((offset[order.samples], window))]
    start, end = offset[order_in_windows], offset[order_in_windows] + nbytes[order_in_windows]
    new = np.ones(len(start), np.bool_)
    new[1:] = (window[1:] != window[:-1]) | (start[1:] - end[:-1] > gap_nbytes)
    first = np.flatnonzero(new)
    last_end = np.maximum.reduceat(end, first) if len(first) else end
    return len(first), float((last_end - start[first]).mean()) if len(first) else 0.0
