"""Quasi-random orders: blocks of neighboring samples in random order, many of them mixed at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.loader.orders import EpochOrder, Layout, RankPositions, SeededOrders, Windows

I64 = npt.NDArray[np.int64]
MIB = 2**20
# The purposes of permutations, which differ from those of other modules.
_BLOCKS, _LANES = 1, 2


@dataclass(frozen=True, slots=True)
class QuasiRandom:
    """Reads blocks of neighboring samples, in random order, and mixes the samples of many blocks.

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


EXPECTED = (
    "expected 'random', 'quasi_random', 'sequential', QuasiRandom(...), a list of sample numbers, or a function of the "
    "epoch that returns one"
)
Order = Literal["random", "quasi_random", "sequential"] | QuasiRandom


def check_order(order: Any) -> Order:
    """Return an order; raise OptionError if it is something else."""
    if order in ("random", "quasi_random", "sequential") or isinstance(order, QuasiRandom):
        return cast("Order", order)
    raise OptionError(f"order={order!r}: {EXPECTED}")


class QuasiOrders(SeededOrders):
    """Quasi-random orders; `shown` is the sizes, or "quasi_random" for the usual ones."""

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        return epoch_order(self.shown, layout, seed=seed, epoch=epoch, repeat=self.repeat)

    def text(self, epoch: int, layout: Layout) -> str:
        return text_of_kind(self.shown, layout, self.times)


def text_of_kind(kind: Order, layout: Layout, more: str) -> str:
    """Return a short text of a kind of order, and what else belongs to it."""
    if kind in ("random", "sequential"):
        return f"{kind}{more}"
    # Blocks and windows depend on where samples are in the file, which may differ in another copy of the dataset.
    sizes = kind if isinstance(kind, QuasiRandom) else QuasiRandom()
    return f"quasi_random({sizes.block_nbytes}, {sizes.window_nbytes}), stored {layout.digest}{more}"


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Blocks of neighbors in random order, dealt to lanes that take turns; see `kernels.orders.read_lanes`.

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
    if order == "random" or order == "sequential":
        return SeededOrders(layout.length, order, repeat).of(epoch, layout, seed)
    length = layout.length * repeat
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
    found = _Lanes(length, lanes, ends, firsts, layout.stored, seed, epoch)
    return EpochOrder(length, found.samples, found.windows)
