"""Seeded orders of an epoch, computed by position, and the positions that each rank reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown
from lmdbloader.base.text import counted
from lmdbloader.format.codecs import checksum
from lmdbloader.kernels import entries

I64 = npt.NDArray[np.int64]
MIB = 2**20
# The window of an order that is that of storage.
_SEQUENTIAL_NBYTES = 32 * MIB
# The purpose of a permutation, which differs from those of other modules.
_SAMPLES = 0
# Of the index columns that are looked at together.
_ROWS_AT_ONCE = 2**16
_PROBED_SAMPLES = 500


class Layout:
    """Where the samples of an order lie in the file; looked up when an order needs it, once.

    Attributes:
        length: Number of samples.
    """

    def __init__(self, length: int, extents: Callable[[int, int], tuple[I64, I64]]) -> None:
        """Prepare; `extents(first, end)` returns the offset and the bytes of samples first ... end - 1."""
        self.length, self._extents = length, extents
        self._blocks: dict[int, I64] = {}

    def part(self, first: int, end: int) -> Layout:
        """Return the layout of samples first ... end - 1."""
        return Layout(end - first, lambda low, high: self._extents(first + low, first + high))

    def _pieces(self) -> list[tuple[int, int]]:
        return [(k, min(k + _ROWS_AT_ONCE, self.length)) for k in range(0, self.length, _ROWS_AT_ONCE)]

    @cached_property
    def stored(self) -> I64 | None:
        """Sample numbers (n,) by their offset in the file, equal offsets in order; None if all are in order."""
        last = -1
        for first, end in self._pieces():
            offset, _ = self._extents(first, end)
            if int(offset[0]) < last or (offset[1:] < offset[:-1]).any():
                offset, _ = self._extents(0, self.length)
                # Without `stable` the order of equal offsets would depend on NumPy and the processor.
                return np.argsort(offset, kind="stable")
            last = int(offset[-1])
        return None

    def blocks(self, nbytes: int) -> I64:
        """Return where blocks of neighbors in the file begin, from 0 to n: at the first sample after each multiple."""
        if nbytes not in self._blocks:
            self._blocks[nbytes] = self._find_blocks(nbytes)
        return self._blocks[nbytes]

    def _find_blocks(self, nbytes: int) -> I64:
        if self.length == 0:
            return np.zeros(1, np.int64)
        bounds, total, last = [np.zeros(1, np.int64)], 0, 0  # number 0 begins at 0
        # Lengths in the order of storage; with `stored` there is an array of all samples anyway.
        stored = self.stored
        all_nbytes = None if stored is None else self._extents(0, self.length)[1][stored]
        for first, end in self._pieces():
            lengths = self._extents(first, end)[1] if all_nbytes is None else all_nbytes[first:end]
            ends = total + np.cumsum(lengths)
            number = (ends - lengths) // nbytes
            bounds.append(first + np.flatnonzero(np.diff(number, prepend=last)))
            total, last = int(ends[-1]), int(number[-1])
        return np.concatenate([*bounds, [self.length]]).astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """The checksum of the checksums of all offsets and lengths, some rows at a time."""
        columns = (column for first, end in self._pieces() for column in self._extents(first, end))
        sums = [checksum(np.ascontiguousarray(column, "<i8")) for column in columns]
        return f"{checksum(np.array(sums, '<u8')):016x}"

    @cached_property
    def mean_nbytes(self) -> float:
        """Bytes of a sample, the mean of some that are evenly spread."""
        if self.length == 0:
            return 1.0
        first = range(0, self.length, max(self.length // _PROBED_SAMPLES, 1))
        return max(float(np.mean([self._extents(k, k + 1)[1][0] for k in first])), 1.0)


@dataclass(frozen=True, slots=True)
class RankPositions:
    """The positions of one rank's samples in an order, and their batches.

    Attributes:
        first: Position of the rank's first sample.
        stride: From one of its positions to the next: the number of ranks.
        num_samples: Of this rank; the last positions may be beyond the end of the order, which then begins again.
        batch_size: Samples of a batch; the last one may be shorter.
    """

    first: int
    stride: int
    num_samples: int
    batch_size: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-self.num_samples // self.batch_size)

    def of_batches(self, first: int, end: int) -> I64:
        """Return the positions of batches first ... end - 1.

        >>> RankPositions(first=1, stride=2, num_samples=5, batch_size=2).of_batches(1, 3).tolist()
        [5, 7, 9]
        """
        low, high = first * self.batch_size, min(end * self.batch_size, self.num_samples)
        return np.arange(self.first + self.stride * low, self.first + self.stride * high, self.stride, dtype=np.int64)

    def between(self, low: int, high: int) -> I64:
        """Return the positions from `low` to before `high`."""
        first, end = (max(-(-(at - self.first) // self.stride), 0) for at in (low, high))
        return self.first + self.stride * np.arange(first, min(end, self.num_samples), dtype=np.int64)

    def first_of(self, batch: int) -> int:
        """Return the first position of a batch."""
        return self.first + self.stride * batch * self.batch_size

    def last_of(self, batch: int) -> int:
        """Return the last position of a batch."""
        return self.first + self.stride * (min((batch + 1) * self.batch_size, self.num_samples) - 1)

    def place_of(self, batch: int) -> int:
        """Return how many samples the batches before one have."""
        return min(batch * self.batch_size, self.num_samples)

    def size_of(self, batch: int) -> int:
        """Return the samples of a batch."""
        return self.batch_size

    def kind_of(self, batch: int) -> int:
        """Return the kind of a batch; there is one."""
        return 0


class RankBatches:
    """The batches of one rank, of different sizes and kinds; with the methods of `RankPositions`.

    Attributes:
        batch_size: The mean, at least 1.
        num_samples: Of this rank.
    """

    def __init__(self, bounds: I64, kinds: I64, numbers: I64) -> None:
        """Take the batches of an epoch, and the numbers (b,) of this rank's; those after the end begin it again."""
        numbers = numbers % max(len(kinds), 1)
        self._firsts, self._sizes, self._kinds = bounds[numbers], np.diff(bounds)[numbers], kinds[numbers]
        self._places = np.append(0, np.cumsum(self._sizes))
        self.num_samples = int(self._places[-1])
        self.batch_size = max(self.num_samples // max(len(numbers), 1), 1)

    def __len__(self) -> int:
        return len(self._sizes)

    def of_batches(self, first: int, end: int) -> I64:
        sizes = self._sizes[first:end]
        shifts = self._firsts[first:end] - self._places[first:end]
        found: I64 = np.repeat(shifts, sizes) + np.arange(self._places[first], self._places[end], dtype=np.int64)
        return found

    def first_of(self, batch: int) -> int:
        return int(self._firsts[batch])

    def last_of(self, batch: int) -> int:
        return int(self._firsts[batch] + self._sizes[batch] - 1)

    def place_of(self, batch: int) -> int:
        return int(self._places[batch])

    def size_of(self, batch: int) -> int:
        return int(self._sizes[batch])

    def kind_of(self, batch: int) -> int:
        return int(self._kinds[batch])


@dataclass(frozen=True, slots=True)
class Windows:
    """What a rank reads from storage at once, in the order in which it is needed.

    Attributes:
        begins: (w,) the position at which each is needed first, not decreasing.
        ends: (w,) the position after its last use.
        ahead: How many are read before they are needed.
        samples: Returns the samples of windows, of `samples(first, end)` those of first ... end - 1.
    """

    begins: I64
    ends: I64
    ahead: int
    samples: Callable[[int, int], I64]


def _one_by_one(positions: RankPositions | RankBatches) -> None:
    """Samples are read one by one."""


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of an epoch, the same for all ranks. Positions after its end begin it again.

    Attributes:
        length: Number of positions.
        samples: Returns the draws (m,) at positions (m,); see `Orders`.
        windows: Returns what a rank reads from storage at once; None if samples are read one by one.
        batches: How the positions are batches, those of all ranks: (b + 1,) the first position of each, and the end;
            and (b,) the kind of each. None if batches of one size follow each other.
    """

    length: int
    samples: Callable[[I64], I64]
    windows: Callable[[RankPositions], Windows | None] = _one_by_one
    batches: tuple[I64, I64] | None = None


def random_order(length: int, seed: int, epoch: int) -> EpochOrder:
    """Return a random permutation, a new one in every epoch; it takes no memory.

    A sample is equally likely at each position, and so is each other sample after it; but a 64-bit key chooses among
    fewer permutations than there are, and of some lengths odd ones are rarer than even ones, or more frequent.
    """

    def samples(positions: I64) -> I64:
        found = np.empty_like(positions)
        if length:
            entries.permute(positions, length, seed, epoch, _SAMPLES, found)
        return found

    return EpochOrder(length, samples)


def sequential_order(layout: Layout, repeat: int = 1) -> EpochOrder:
    """Return the order of the dataset, read in windows of about 32 MiB if samples are alike; see `SeededOrders`."""
    length = layout.length * repeat

    def samples(positions: I64) -> I64:
        found: I64 = positions % max(length, 1)
        return found

    def windows(positions: RankPositions) -> Windows:
        count = min(max(int(_SEQUENTIAL_NBYTES / layout.mean_nbytes), 1), _ROWS_AT_ONCE)
        begins = np.arange(0, length, count, dtype=np.int64)
        ends = np.minimum(begins + count, length)
        return Windows(begins, ends, 1, lambda k, end: samples(positions.between(k * count, min(end * count, length))))

    return EpochOrder(length, samples, windows)


def on_rank(order: EpochOrder, share: Share, start: int = 0) -> RankPositions | RankBatches:
    """Return what a rank reads of an epoch, from a position or, if positions are batches, from a batch on."""
    if order.batches is None:
        return share.positions(order.length, start)
    own = share.positions(len(order.batches[1]), start)
    return RankBatches(*order.batches, own.of_batches(0, len(own)))


class Orders:
    """The orders of all epochs of a Loader.

    They give draws: sample + num_samples * occurrence. Random choices depend on the draw.

    Attributes:
        shown: The value of `loader.order`.
        options: The arguments of a Loader that give the same orders.
        repeats: Whether a sample may occur more than once in an epoch; if not, draws are sample numbers.
        follow_the_seed: Whether they depend on the seed.
        changes: Whether a function of the user returns the order of each epoch.
    """

    shown: Any
    options: dict[str, Any]
    repeats = True
    follow_the_seed = True
    changes = False

    def among(self, world_size: int) -> Orders:
        """Return the orders that so many ranks share."""
        return self

    def length(self, epoch: int) -> int:
        """Return the number of positions of an epoch, or of its batches."""
        raise NotImplementedError

    def samples_on(self, epoch: int, share: Share) -> int:
        """Return how many samples a rank reads in an epoch."""
        return share.positions(self.length(epoch)).num_samples

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        """Return the order of an epoch.

        Args:
            epoch: Its number.
            layout: Where the samples are in the file.
            seed: From 0 to 2**64 - 1.

        Raises:
            OptionError: The function of the user returned neither sample numbers nor weights.
        """
        raise NotImplementedError

    def text(self, epoch: int, layout: Layout) -> str:
        """Return a short text; orders of an epoch with equal texts are equal."""
        raise NotImplementedError


class SeededOrders(Orders):
    """Random orders, and that of the dataset.

    With `repeat` the order has num_samples * repeat numbers, and number k is sample k % num_samples. So a sample gets
    other random numbers each time, because they depend on k.
    """

    def __init__(self, num_samples: int, shown: Any, repeat: int = 1) -> None:
        """Take the number of samples of the dataset, the kind, and how many times each sample comes in an epoch."""
        self.num_samples, self.shown, self.repeat = num_samples, shown, repeat
        self.options = {"order": shown, "repeat": repeat}
        self.repeats, self.follow_the_seed = repeat > 1, shown != "sequential"
        self.times = f", {repeat} times" if repeat > 1 else ""

    def length(self, epoch: int) -> int:
        return self.num_samples * self.repeat

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        if self.shown == "sequential":
            return sequential_order(layout, self.repeat)
        return random_order(self.num_samples * self.repeat, seed, epoch)

    def text(self, epoch: int, layout: Layout) -> str:
        return f"{self.shown}{self.times}"


def described(order: Any) -> str:
    """Return an order as text, for messages and `repr`.

    >>> described("random"), described(np.array([3, 1]))
    ("'random'", 'a list of 2 sample numbers')
    """
    if isinstance(order, np.ndarray):
        return f"a list of {counted(len(order), 'sample number')}"
    is_long = callable(order) or (hasattr(order, "__iter__") and not isinstance(order, str))
    return shown(order) if is_long else repr(order)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a common order that one rank reads.

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
        return len(self.positions(length))

    def positions(self, length: int, start: int = 0) -> RankPositions:
        """Return the positions that the rank reads of an epoch.

        Of the order from `start` on, rank r takes every world_size-th position from the r-th on, as torch's
        DistributedSampler does. So each step of all ranks takes the next world_size * batch_size positions. In the
        last, short step ranks differ by at most one sample, and a rank for which nothing is left has one batch less.
        With `pad` each rank has as many; fewer than world_size positions are then beyond the end.

        Args:
            length: Of the order.
            start: Number of its positions that were read earlier, by any number of ranks.

        >>> share = Share(3, rank=1, world_size=2)
        >>> [share.positions(11).of_batches(k, k + 1).tolist() for k in range(2)]
        [[1, 3, 5], [7, 9]]
        >>> replace(share, pad=True).positions(11, start=8).of_batches(0, 1).tolist()
        [9, 11]
        """
        left = length - start
        if self.drop_last:
            count = left // (self.batch_size * self.world_size) * self.batch_size
        elif self.pad:
            count = -(-left // self.world_size)
        else:
            count = max(-(-(left - self.rank) // self.world_size), 0)
        return RankPositions(start + self.rank, self.world_size, count, self.batch_size)

    def position_after(self, num_steps: int, length: int, start: int = 0) -> int:
        """Return the position in the order after some steps of all ranks; it is the same for every rank.

        After the last step it is the end, even if that step leaves out or repeats samples.

        >>> [Share(3, rank=1, world_size=2).position_after(steps, 11) for steps in (0, 1, 2)]
        [0, 6, 11]
        """
        # The first rank has as many batches as any.
        most = replace(self, rank=0).num_batches(length - start)
        return length if 0 < most <= num_steps else start + num_steps * self.batch_size * self.world_size


def in_batches(draws: I64, bounds: I64, kinds: I64 | None = None) -> EpochOrder:
    """Return an epoch of batches: draws (n,), bounds (b + 1,) in them, kinds (b,)."""
    kinds = np.zeros(len(bounds) - 1, np.int64) if kinds is None else kinds
    return EpochOrder(len(draws), lambda positions: draws[positions], batches=(bounds, kinds))


class BatchOrders(Orders):
    """Orders of batches: what ranks share, and states count, are batches.

    Attributes:
        batch_size: Samples of a batch, as far as it is known: it decides how many are read at once.
        shards: Whether they are one process's share already.
    """

    batch_size: int
    shards = False

    def counts(self, epoch: int) -> I64:
        """Return how many samples each batch of an epoch has, (b,)."""
        raise NotImplementedError

    def length(self, epoch: int) -> int:
        return len(self.counts(epoch))

    def samples_on(self, epoch: int, share: Share) -> int:
        counts, own = self.counts(epoch), share.positions(self.length(epoch))
        return int(counts[own.of_batches(0, len(own)) % max(len(counts), 1)].sum())
