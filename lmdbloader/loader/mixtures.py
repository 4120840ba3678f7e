"""Computes the order of a mixture by position: the dataset, and its sample. A dataset that ends is shuffled again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.loader.orders import EpochOrder, Layout, Orders, RankPositions, Windows
from lmdbloader.loader.quasi_random import Order, QuasiRandom, check_order, epoch_order, text_of_kind

I64 = npt.NDArray[np.int64]
# The purpose number of a mixture's permutations; `orders` has those of others.
_PILES = 4
# The largest denominator of a share that is found in a float, and the largest sum of all shares as whole numbers.
_FINEST, _LARGEST = 10**6, 2**50
# The sum of shares that have to be rounded, and the error up to which a float counts as a fraction.
_ROUNDED = 2**40
_CLOSE = 1e-9
# Rounded to a 2**40th, a smaller one would be another share by more than half a percent.
_SMALLEST = Fraction(1, 10**10)
# In any run of so many positions each dataset has exactly its share, if that is a whole number.
_STRETCH = 1000


def whole_shares(weights: Sequence[float], lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest whole numbers in proportion to weights; weights without such numbers are rounded.

    Args:
        weights: One weight for each dataset.
        lengths: The numbers of samples of the datasets.

    Raises:
        OptionError: A weight is negative, not finite, or too small compared with the others; all are 0; there is not
            one for each dataset; or a dataset without samples has a weight above 0.

    >>> whole_shares([0.7, 0.3], [10, 10]), whole_shares([1 / 3, 2 / 3], [10, 10]), whole_shares([800, 2650], [9, 9])
    ((7, 3), (1, 2), (16, 53))
    """
    if len(weights) != len(lengths):
        raise OptionError(f"weights={shown(list(weights))}: {len(weights)} weights for {len(lengths)} datasets")
    for number, (weight, length) in enumerate(zip(weights, lengths, strict=True)):
        if not math.isfinite(weight) or weight < 0:
            raise OptionError(f"weights[{number}] is {weight}; expected finite numbers of at least 0")
        if weight and not length:
            raise OptionError(f"weights[{number}] is {weight}, but dataset {number} has no samples. Leave it out.")
    total = sum(map(Fraction, weights))
    if not total:
        raise OptionError(f"weights={shown(list(weights))}: they add up to 0; expected a sum above 0")
    if all(isinstance(weight, int) for weight in weights) and total <= _LARGEST:
        numbers = [int(weight) for weight in weights]
    else:
        exact = [Fraction(weight) / total for weight in weights]
        near = [share.limit_denominator(_FINEST) for share in exact]
        scale = math.lcm(*(share.denominator for share in near))
        is_close = all(abs(a - b) <= b * Fraction(_CLOSE) for a, b in zip(near, exact, strict=True))
        if is_close and sum(near) == 1 and scale <= _LARGEST:
            numbers = [int(share * scale) for share in near]
        else:
            if small := [number for number, share in enumerate(exact) if 0 < share < _SMALLEST]:
                raise OptionError(
                    f"weights[{small[0]}] is too small: its share of the draws is below 1e-10. Leave it out."
                )
            numbers = [round(share * _ROUNDED) for share in exact]
    common = math.gcd(*numbers)
    return tuple(number // common for number in numbers)


@dataclass(frozen=True)
class Mixture:
    """How the positions of an epoch are dealt to datasets.

    Attributes:
        lengths: The number of samples of each dataset.
        shares: Whole numbers, one for each dataset, in proportion to which positions are dealt.
        length: The number of positions of an epoch.
    """

    lengths: tuple[int, ...]
    shares: tuple[int, ...]
    length: int

    @property
    def num_samples(self) -> int:
        """The number of samples of all datasets together."""
        return sum(self.lengths)

    @cached_property
    def text(self) -> str:
        """A short text; mixtures with equal texts deal positions equally."""
        if len(self.lengths) > 8:
            described = repr((self.shares, self.lengths)).encode()
            return f"a mixture {hashlib.blake2b(described, digest_size=8).hexdigest()}"
        return f"mixed {':'.join(map(str, self.shares))} from {' + '.join(map(str, self.lengths))} samples"

    def deal(self, positions: I64, seed: int = 0, epoch: int = 0) -> tuple[I64, I64]:
        """Return the dataset of each position (m,), and the number of earlier positions with the same dataset (m,).

        Positions beyond the end of the epoch begin it again.
        """
        chosen, numbers = np.empty_like(positions), np.empty_like(positions)
        if len(positions):
            positions = positions % self.length
            self._deal(positions, -1, seed, epoch, chosen, numbers)
        return chosen, numbers

    def _deal(self, positions: I64, pile: int, seed: int, epoch: int, chosen: I64, numbers: I64) -> None:
        entries.deal(positions, self._shares, pile, self.length, self._cycle, seed, epoch, _PILES, chosen, numbers)

    def positions_of(self, dataset: int, numbers: I64, seed: int = 0, epoch: int = 0) -> I64:
        """Return the positions (m,) of some draws from a dataset, given their numbers (m,), counted from 0."""
        low, high = np.zeros_like(numbers), np.full_like(numbers, self.length)
        while (high - low > 1).any():
            middle, counts = (low + high) // 2, np.empty_like(low)
            self._deal(middle, dataset, seed, epoch, np.empty_like(low), counts)
            is_more = counts > numbers
            low, high = np.where(is_more, low, middle), np.where(is_more, middle, high)
        return low

    def num_draws(self, dataset: int) -> int:
        """Return how many positions of an epoch a dataset has."""
        left, rest = self.length, sum(self.shares)
        for number, share in enumerate(self.shares):
            draws = (left * share + rest // 2) // rest if rest else 0
            if number == dataset:
                return draws
            left, rest = left - draws, rest - share
        raise IndexError(dataset)

    @property
    def _cycle(self) -> int:
        """The period of the dealing, in multiples of the sum of the shares; 0 if 1,000 is not a multiple of the sum."""
        total = sum(self.shares)
        return _STRETCH // total if _STRETCH % total == 0 else 0

    @cached_property
    def _shares(self) -> I64:
        return np.array(self.shares, np.int64)

    @cached_property
    def all_lengths(self) -> I64:
        """The lengths, (d,)."""
        return np.array(self.lengths, np.int64)

    @cached_property
    def begins(self) -> I64:
        """The number of each dataset's first sample, (d,)."""
        return np.cumsum(self.all_lengths) - self.all_lengths

    def order(self, kind: Order, layout: Layout, *, seed: int, epoch: int) -> EpochOrder:
        """Return the order of an epoch, which gives draws: sample + num_samples * times.

        Samples are counted through all datasets, and `times` is how often the dataset was drawn completely before.

        Args:
            kind: The order within each dataset.
            layout: The layout of all samples, one dataset after the other.
            seed, epoch: From 0 to 2**64 - 1.
        """
        if kind in ("sequential", "random"):
            return _dealt(self, epoch, seed if kind == "random" else None)
        sizes = kind if isinstance(kind, QuasiRandom) else QuasiRandom()
        window = max(sizes.window_nbytes // len(self.lengths), 1)
        lanes = _Lanes(self, QuasiRandom(min(sizes.block_nbytes, window), window), layout, seed, epoch)
        return EpochOrder(self.length, lanes.samples, lanes.windows)


def orders_of_mixture(mixture: Mixture, *, order: Any, weights: object, draws: object, repeat: object) -> MixedOrders:
    """Return the orders of a mixture for arguments of a Loader.

    Raises:
        OptionError: Anything other than the mixture chooses the samples.
    """
    is_chosen = weights is not None or draws is not None or repeat != 1
    if is_chosen or not isinstance(order, str | QuasiRandom):
        raise OptionError(
            "order, weights, num_samples, repeat: the dataset is a mixture, which chooses the samples itself. Write "
            "lmdbloader.mix(datasets, weights=[...], length=n) with a weight for each dataset, and an order of "
            "'random', 'quasi_random', 'sequential' or QuasiRandom(...)."
        )
    return MixedOrders(mixture, check_order(order))


class MixedOrders(Orders):
    """The orders of a mixture; `shown` is the order within each dataset."""

    def __init__(self, mixture: Mixture, shown: Order) -> None:
        """Take how positions are dealt to datasets, and the order within each."""
        self.mixture, self.shown = mixture, shown
        self.options = {"order": shown}
        self.follow_the_seed = shown != "sequential"

    def length(self, epoch: int) -> int:
        return self.mixture.length

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        return self.mixture.order(self.shown, layout, seed=seed, epoch=epoch)

    def text(self, epoch: int, layout: Layout) -> str:
        return text_of_kind(self.shown, layout, f", {self.mixture.text}")


def _dealt(mixture: Mixture, epoch: int, seed: int | None) -> EpochOrder:
    """Return each dataset in its own order or, with a seed, in a random permutation; again from there when it ends.

    Random permutations differ each time.
    """

    def samples(positions: I64) -> I64:
        found: I64 = np.empty_like(positions)
        if not len(positions):
            return found
        if seed is None:
            chosen, numbers = mixture.deal(positions)
            times, place = np.divmod(numbers, mixture.all_lengths[chosen])
            found = mixture.begins[chosen] + place + mixture.num_samples * times
            return found
        chosen, numbers = mixture.deal(positions, seed, epoch)
        entries.shuffle_piles(chosen, numbers, mixture.all_lengths, seed, epoch, _PILES, found)
        return found

    return EpochOrder(mixture.length, samples)


class _Lanes:
    """Each dataset in quasi-random order, by lanes of its own; its blocks are shuffled again when it ends.

    The datasets divide the window equally. A dataset that fits into its part of the window is read once, and is in
    random order.
    """

    def __init__(self, mixture: Mixture, sizes: QuasiRandom, layout: Layout, seed: int, epoch: int) -> None:
        """Prepare an epoch; `sizes` are those of one dataset, and `layout` is that of all samples."""
        self._mixture, self._sizes, self._seed, self._epoch = mixture, sizes, seed, epoch
        begins = mixture.begins.tolist()
        self._layouts = [layout.part(begin, begin + n) for begin, n in zip(begins, mixture.lengths, strict=True)]
        self._fits = [part.mean_nbytes * part.length <= sizes.window_nbytes for part in self._layouts]
        self._orders: dict[tuple[int, int], EpochOrder] = {}

    def _order(self, dataset: int, times: int) -> EpochOrder:
        """Return the order of a dataset that was drawn completely `times` times before."""
        found = self._orders.get((dataset, times))
        if found is None:
            text = f"{self._seed} {dataset} {times}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
            found = epoch_order(self._sizes, self._layouts[dataset], seed=seed, epoch=self._epoch)
            self._orders[dataset, times] = found
        return found

    def samples(self, positions: I64) -> I64:
        """Return the draws at positions (m,)."""
        mixture, found = self._mixture, np.empty_like(positions)
        if not len(positions):
            return found
        chosen, numbers = mixture.deal(positions, self._seed, self._epoch)
        entries.shuffle_piles(chosen, numbers, mixture.all_lengths, self._seed, self._epoch, _PILES, found)
        for dataset, begin in enumerate(mixture.begins.tolist()):
            if self._fits[dataset]:
                continue
            mine = np.flatnonzero(chosen == dataset)
            times, place = np.divmod(numbers[mine], mixture.lengths[dataset])
            for time in np.unique(times).tolist():
                here = times == time
                samples = self._order(dataset, time).samples(place[here])
                found[mine[here]] = samples + (begin + mixture.num_samples * time)
        return found

    def windows(self, positions: RankPositions) -> Windows:
        """Return the blocks of all datasets by their first use; ranks share them, as they share the lanes."""
        mixture = self._mixture
        where = partial(mixture.positions_of, seed=self._seed, epoch=self._epoch)
        begins, ends, sources, ahead = [], [], [], 1
        for dataset, (begin, n) in enumerate(zip(mixture.begins.tolist(), mixture.lengths, strict=True)):
            num_draws = mixture.num_draws(dataset)
            if num_draws and self._fits[dataset]:
                begins.append(where(dataset, np.zeros(1, np.int64)))
                ends.append(where(dataset, np.array([num_draws - 1], np.int64)) + 1)
                sources.append((_whole(n), 0, begin))
                continue
            for time in range(-(-num_draws // n) if num_draws else 0):
                own = self._order(dataset, time).windows(RankPositions(0, 1, n, 1))
                assert own is not None
                first, last = own.begins + time * n, np.minimum(own.ends - 1 + time * n, num_draws - 1)
                kept = np.flatnonzero(first < num_draws)
                begins.append(where(dataset, first[kept]))
                ends.append(where(dataset, last[kept]) + 1)
                sources += [(own, int(k), begin + mixture.num_samples * time) for k in kept]
                ahead = max(ahead, own.ahead)
        return _by_first_use(begins, ends, sources, ahead, positions.first)


def _by_first_use(
    begins: list[I64], ends: list[I64], sources: list[tuple[Windows, int, int]], ahead: int, start: int
) -> Windows:
    """Return windows of several datasets in one sequence.

    Args:
        begins, ends: The positions at which windows begin and end, in the order of `sources`.
        sources: For each window, the windows of its dataset, its number among these, and what to add to its samples.
        ahead: The number of windows that are read before they are needed.
        start: The first position that is read.
    """
    nothing = np.empty(0, np.int64)
    all_begins, all_ends = np.concatenate([nothing, *begins]), np.concatenate([nothing, *ends])
    order = np.argsort(all_begins, kind="stable")
    all_begins, all_ends = all_begins[order], all_ends[order]

    def samples(first: int, end: int) -> I64:
        parts = [nothing]
        for k in range(first, end):
            if all_ends[k] > start:  # otherwise it is over, because the epoch continues in the middle
                own, number, shift = sources[order[k]]
                parts.append(own.samples(number, number + 1) + shift)
        return np.concatenate(parts)

    return Windows(all_begins, all_ends, ahead, samples)


def _whole(length: int) -> Windows:
    """Return a dataset as one window."""
    zero = np.zeros(1, np.int64)
    return Windows(zero, zero + 1, 1, lambda first, end: np.arange(length, dtype=np.int64))
