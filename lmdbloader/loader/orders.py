"""Seeded orders of an epoch, computed by position, and the positions that each rank reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown
from lmdbloader.base.text import counted
from lmdbloader.errors import OptionError
from lmdbloader.format.digests import new_file_digest
from lmdbloader.kernels import entries

I64 = npt.NDArray[np.int64]
MIB = 2**20
# The window of an order that is that of storage.
_SEQUENTIAL_NBYTES = 32 * MIB
# The permutations of one epoch, whose keys must differ.
_SAMPLES, _BLOCKS, _LANES = range(3)
# Of the index columns that are looked at together.
_ROWS_AT_ONCE = 2**16
_PROBED_SAMPLES = 500


@dataclass(frozen=True, slots=True)
class QuasiRandom:
    """Reads blocks of neighbouring samples, in random order, and mixes the samples of many blocks.

    The disk gets long sequential reads, and memory has to hold a window instead of the dataset. The number of blocks in
    use at a time is window_nbytes // block_nbytes, or the number of blocks if it is smaller, rounded down to a power of
    two or three times a power of two: common numbers of ranks divide it.

    Attributes:
        block_nbytes: Bytes that are read at once, to within one sample.
        window_nbytes: Bytes of the blocks that one rank has in use. Several ranks divide them.
    """

    block_nbytes: int = 2 * MIB
    window_nbytes: int = 384 * MIB

    def __post_init__(self) -> None:
        whole = isinstance(self.block_nbytes, Integral) and isinstance(self.window_nbytes, Integral)
        if not whole or not 1 <= self.block_nbytes <= self.window_nbytes < 2**63:
            raise OptionError(
                f"{self}: expected whole numbers of bytes below 2**63: a block of at least 1, and a window not smaller"
            )

    def num_lanes(self, num_blocks: int) -> int:
        """Return how many blocks are in use at a time, of `num_blocks`.

        >>> [QuasiRandom().num_lanes(blocks) for blocks in (0, 1, 5, 191, 10_000)]
        [1, 1, 4, 128, 192]
        """
        most = max(min(self.window_nbytes // self.block_nbytes, num_blocks), 1)
        power = 1 << (most.bit_length() - 1)
        return max(power, 3 * power // 2 if power > 1 and 3 * power // 2 <= most else 1)


Order = Literal["random", "quasi_random", "sequential"] | QuasiRandom


def check_order(order: Order) -> Order:
    """Return an order; raise OptionError if it is something else."""
    if order in ("random", "quasi_random", "sequential") or isinstance(order, QuasiRandom):
        return order
    raise OptionError(
        f"order={order!r}: expected 'random', 'quasi_random', 'sequential', QuasiRandom(...), a list of sample "
        "numbers, or a function of the epoch that returns one"
    )


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
        """Return where blocks of neighbours in the file begin, from 0 to n: at the first sample after each multiple."""
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
        """The checksum of all offsets and lengths."""
        digest = new_file_digest("xxh64")
        for first, end in self._pieces():
            for column in self._extents(first, end):
                digest.update(np.ascontiguousarray(column, "<i8"))
        return str(digest)

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

    def limited(self, num_batches: int | None) -> RankPositions:
        """Return the first batches, None for all."""
        if num_batches is None:
            return self
        return replace(self, num_samples=min(self.num_samples, num_batches * self.batch_size))


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


class EpochOrder(Protocol):
    """The order of an epoch, the same for all ranks. Positions after its end begin it again."""

    @property
    def length(self) -> int:
        """Number of samples."""

    def samples(self, positions: I64) -> I64:
        """Return the sample numbers at positions (m,)."""

    def windows(self, positions: RankPositions) -> Windows | None:
        """Return what a rank reads from storage at once; None if samples are read one by one."""


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """A random permutation, a new one in every epoch; it takes no memory.

    A sample is equally likely at each position, and so is each other sample after it; but a 64-bit key chooses among
    fewer permutations than there are, and of some lengths odd ones are rarer than even ones, or more frequent.
    """

    length: int
    seed: int
    epoch: int

    def samples(self, positions: I64) -> I64:
        """Return the sample numbers at positions (m,)."""
        found = np.empty_like(positions)
        if self.length:
            entries.permute(positions, self.length, self.seed, self.epoch, _SAMPLES, found)
        return found

    def windows(self, positions: RankPositions) -> None:
        """Samples are read one by one."""


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """The order of the dataset, read in windows of about 32 MiB if samples are alike; see `epoch_order` on repeats."""

    layout: Layout
    repeat: int = 1

    @property
    def length(self) -> int:
        """Number of samples."""
        return self.layout.length * self.repeat

    def samples(self, positions: I64) -> I64:
        """Return the sample numbers at positions (m,)."""
        found: I64 = positions % max(self.length, 1)
        return found

    def windows(self, positions: RankPositions) -> Windows:
        """Return windows of neighbours."""
        count = min(max(int(_SEQUENTIAL_NBYTES / self.layout.mean_nbytes), 1), _ROWS_AT_ONCE)
        begins = np.arange(0, self.length, count, dtype=np.int64)
        ends = np.minimum(begins + count, self.length)

        def samples(first: int, end: int) -> I64:
            return self.samples(positions.between(first * count, min(end * count, self.length)))

        return Windows(begins, ends, 1, samples)


@dataclass(frozen=True, slots=True)
class LanesOrder:
    """Blocks of neighbours in random order, dealt to lanes that take turns; see `kernels.orders.read_lanes`.

    A rank reads whole lanes if the number of lanes is a multiple of the number of ranks. So it reads whole blocks, and
    all ranks together read the dataset once.

    Attributes:
        length: Number of samples.
        num_lanes: Blocks in use at a time.
        ends, firsts: (b,) of the blocks, in their random order.
        stored: (n,) sample numbers in the order of storage, None if that is the dataset's.
        seed, epoch: Of the samples within their blocks.

    With repeats the blocks are those of n samples again and again, and `stored` is of the first n.
    """

    length: int
    num_lanes: int
    ends: I64
    firsts: I64
    stored: I64 | None
    seed: int
    epoch: int

    def samples(self, positions: I64) -> I64:
        """Return the sample numbers at positions (m,)."""
        found = np.empty_like(positions)
        if self.length:
            entries.read_lanes(positions, self.num_lanes, self.ends, self.firsts, self.seed, self.epoch, _LANES, found)
        return self._numbers(found)

    def _numbers(self, places: I64) -> I64:
        """Return the samples at places in the order of storage."""
        stored = self.stored
        if stored is None:
            return places
        if len(stored) == self.length:
            return stored[places]
        within = places % len(stored)
        return stored[within] + (places - within)

    def windows(self, positions: RankPositions) -> Windows:
        """Return what the rank's lanes have of each block."""
        # As lengths of the sequence: where lanes begin and end, and all the pieces of blocks that they have.
        lanes = np.arange(self.num_lanes + 1, dtype=np.int64)
        bounds = lanes * (self.length // self.num_lanes) + np.minimum(lanes, self.length % self.num_lanes)
        cuts = np.unique(np.concatenate([bounds, self.ends]))
        begins, ends = cuts[:-1], cuts[1:]
        lane = np.searchsorted(bounds, begins, "right") - 1
        apart = math.gcd(positions.stride, self.num_lanes)
        own = np.flatnonzero((lane - positions.first) % apart == 0)
        begins, ends, lane = begins[own], ends[own], lane[own]
        first_use = (begins - bounds[lane]) * self.num_lanes + lane
        order = np.argsort(first_use, kind="stable")
        begins, ends, first_use = begins[order], ends[order], first_use[order]
        last_use = first_use + (ends - begins - 1) * self.num_lanes + 1
        block = np.searchsorted(self.ends, begins, "right")
        at = self.firsts[block] + begins - np.append(0, self.ends)[block]
        num_before = int(np.searchsorted(first_use, positions.first))

        def samples(first: int, end: int) -> I64:
            # Continued in the middle: without what was read before.
            begun = range(first, min(end, num_before))
            within = [np.arange(first_use[k], last_use[k], self.num_lanes) for k in begun]
            parts = [self.samples(positions_of[positions_of >= positions.first]) for positions_of in within]
            first = max(first, num_before)
            lengths = (ends - begins)[first:end]
            place: I64 = np.arange(lengths.sum()) + np.repeat(at[first:end] - (np.cumsum(lengths) - lengths), lengths)
            parts.append(self._numbers(place))
            return np.concatenate(parts) if len(parts) > 1 else parts[0]

        in_use = self.num_lanes // apart
        return Windows(first_use, last_use, max(in_use // 4, min(in_use, 16)), samples)


def epoch_order(order: Order, layout: Layout, *, seed: int, epoch: int, repeat: int = 1) -> EpochOrder:
    """Return the order of an epoch, which depends only on the arguments.

    Args:
        order: Its kind.
        layout: Of the n samples in the file.
        seed, epoch: From 0 to 2**64 - 1.
        repeat: How many times each sample comes. The order is one of n * repeat numbers, of which number k is sample
            k % n: random numbers that depend on k differ between the times.
    """
    if order == "sequential":
        return SequentialOrder(layout, repeat)
    length = layout.length * repeat
    if order == "random":
        return RandomOrder(length, seed, epoch)
    sizes = order if isinstance(order, QuasiRandom) else QuasiRandom()
    blocks = layout.blocks(sizes.block_nbytes)
    count = len(blocks) - 1
    numbers, positions = np.empty(count * repeat, np.int64), np.arange(count * repeat, dtype=np.int64)
    if len(numbers):
        entries.permute(positions, len(numbers), seed, epoch, _BLOCKS, numbers)
    own = numbers % max(count, 1) if repeat > 1 else numbers
    firsts = blocks[:-1][own]
    ends = np.cumsum((blocks[1:] - blocks[:-1])[own])
    if repeat > 1 and count:
        firsts += numbers // count * layout.length
    lanes = sizes.num_lanes(len(numbers))
    return LanesOrder(length, lanes, ends, firsts, layout.stored, seed, epoch)


class Orders(Protocol):
    """The orders of all epochs of a Loader.

    They give draws: sample + num_samples * occurrence. Random choices depend on the draw.
    """

    @property
    def shown(self) -> Any:
        """The value of `loader.order`."""

    @property
    def repeats(self) -> bool:
        """Whether a sample may occur more than once in an epoch; if not, draws are sample numbers."""

    @property
    def follow_the_seed(self) -> bool:
        """Whether they depend on the seed."""

    @property
    def changes(self) -> bool:
        """Whether a function of the user returns the order of each epoch."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a Loader that give the same orders."""

    def length(self, epoch: int) -> int:
        """Return the number of positions of an epoch."""

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        """Return the order of an epoch.

        Args:
            epoch: Its number.
            layout: Where the samples are in the file.
            seed: From 0 to 2**64 - 1.

        Raises:
            OptionError: The function of the user returned neither sample numbers nor weights.
        """

    def text(self, epoch: int, layout: Layout) -> str:
        """Return a short text; orders of an epoch with equal texts are equal."""


@dataclass(frozen=True, slots=True)
class SeededOrders:
    """Orders that follow from their kind, a seed and the number of the epoch; see `Orders`.

    Attributes:
        num_samples: Of the dataset.
        shown: The kind.
        repeat: How many times each sample comes in an epoch.
    """

    num_samples: int
    shown: Order
    repeat: int = 1
    changes: ClassVar[bool] = False

    @property
    def repeats(self) -> bool:
        """See `Orders.repeats`."""
        return self.repeat > 1

    @property
    def follow_the_seed(self) -> bool:
        """See `Orders.follow_the_seed`."""
        return self.shown != "sequential"

    @property
    def options(self) -> dict[str, Any]:
        """See `Orders.options`."""
        return {"order": self.shown, "repeat": self.repeat}

    def length(self, epoch: int) -> int:
        """See `Orders.length`."""
        return self.num_samples * self.repeat

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        """See `Orders.of`."""
        return epoch_order(self.shown, layout, seed=seed, epoch=epoch, repeat=self.repeat)

    def text(self, epoch: int, layout: Layout) -> str:
        """See `Orders.text`."""
        return text_of_kind(self.shown, layout, f", {self.repeat} times" if self.repeat > 1 else "")


def is_kind(order: Any) -> bool:
    """Return whether an order is one of those that the package computes by position."""
    return isinstance(order, str | QuasiRandom)


def described(order: Any) -> str:
    """Return an order as text, for messages and `repr`.

    >>> described("random"), described(np.array([3, 1]))
    ("'random'", 'a list of 2 sample numbers')
    """
    if isinstance(order, np.ndarray):
        return f"a list of {counted(len(order), 'sample number')}"
    return repr(order) if is_kind(order) else shown(order)


def text_of_kind(kind: Order, layout: Layout, more: str) -> str:
    """Return a short text of a kind of order, and what else belongs to it."""
    if kind in ("random", "sequential"):
        return f"{kind}{more}"
    # Blocks and windows depend on where samples are in the file, which may differ in another copy of the dataset.
    sizes = kind if isinstance(kind, QuasiRandom) else QuasiRandom()
    return f"quasi_random({sizes.block_nbytes}, {sizes.window_nbytes}), stored {layout.digest}{more}"


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
