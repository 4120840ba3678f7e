"""Orders that a user gives: lists of sample numbers, functions of the epoch that return them, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.arguments import shown, whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.loader.orders import EpochOrder, Layout, Orders
from lmdbloader.loader.quasi_random import EXPECTED
from lmdbloader.store import check_rows
from lmdbloader.store.rows import digest_of

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# The purpose number of the permutation that is the source of weighted draws; `orders` has those of others.
_WEIGHTED = 3
_BITS = 53
# Products of the sum of weights with 2**-53 must not lose digits.
_TINY = 1e-250
# Epochs whose lists are kept: the current one and the next.
_KEPT_EPOCHS = 2


class ListedOrders(Orders):
    """Orders of sample numbers that a user or a user's function gives; those of the last epochs are kept."""

    follow_the_seed = False

    def __init__(self, num_samples: int, order: Any, repeat: int) -> None:
        """Check a list, which is copied; a function is called for each epoch.

        Raises:
            OptionError: It is neither sample numbers nor a function.
        """
        if isinstance(order, type) or not (callable(order) or hasattr(order, "__len__")):
            raise OptionError(f"order={shown(order)}: {EXPECTED}")
        self._count, self._repeat, self.changes = num_samples, repeat, callable(order)
        self.shown = order if self.changes else numbers_of(order, num_samples, "order")
        self.options = {"order": self.shown, "repeat": repeat}
        # Draws: sample + num_samples * occurrence, so that each occurrence has its own random choices.
        self._kept: dict[int, I64] = {}

    def length(self, epoch: int) -> int:
        return len(self._of(epoch))

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        draws = self._of(epoch)
        return EpochOrder(len(draws), lambda positions: draws.take(positions, mode="wrap"))

    def text(self, epoch: int, layout: Layout) -> str:
        return f"listed {digest_of(self._of(epoch))}"

    def _of(self, epoch: int) -> I64:
        key = epoch if self.changes else 0
        if key not in self._kept:
            numbers = self.shown
            if callable(numbers):
                numbers = numbers_of(numbers(epoch), self._count, f"order({epoch})")
            while len(self._kept) >= _KEPT_EPOCHS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = with_occurrences(np.tile(numbers, self._repeat), self._count)
        return self._kept[key]


class WeightedOrders(Orders):
    """Orders of draws by weight, with replacement; each position is an independent draw."""

    shown = "weighted"

    def __init__(self, num_samples: int, weights: Any, draws: Any) -> None:
        """Check weights, which are copied.

        Args:
            num_samples: The number of samples of the dataset.
            weights: The Loader's argument.
            draws: The Loader's `num_samples`.

        Raises:
            OptionError: One of them is invalid.
        """
        self._draws = num_samples
        if draws is not None:  # as in torch, at least one
            self._draws = whole("num_samples", draws, 1, 2**62 // max(num_samples, 1))
            if not num_samples:
                raise OptionError(f"num_samples={draws}, weights: the dataset has no samples to draw from")
        # A copy, from which another Loader may be made: the caller may change the list.
        weights = _numbers_of_weights(weights, num_samples).copy()
        self._sums = _sums(weights)
        self._last = int(np.searchsorted(self._sums, self._sums[-1])) if num_samples else 0
        self.options = {"weights": weights, "num_samples": draws}

    def length(self, epoch: int) -> int:
        return self._draws

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        sums, last, length = self._sums, self._last, self._draws

        def samples(positions: I64) -> I64:
            positions = positions % max(length, 1)
            numbers = np.empty_like(positions)
            # A few numbers of a permutation of 2**53 are as good as independent ones.
            entries.permute(positions, 2**_BITS, seed, epoch, _WEIGHTED, numbers)
            found: I64 = np.searchsorted(sums, numbers * (sums[-1] * 2.0**-_BITS), "right")
            # Each draw has its own random choices.
            return np.minimum(found, last) + len(sums) * positions

        return EpochOrder(length, samples)

    def text(self, epoch: int, layout: Layout) -> str:
        return f"weighted {digest_of(self._sums.view(np.int64))}"


def numbers_of(given: Any, num_samples: int, name: str) -> I64:
    """Return sample numbers as a read-only array (m,); negative ones count from the end, as in a list.

    Raises:
        OptionError: They are not a list of sample numbers, or out of range.
    """
    if not hasattr(given, "__array__") and not (isinstance(given, Sequence) and not isinstance(given, str)):
        raise OptionError(f"{name}: {shown(given)}; expected a list of sample numbers")
    try:
        array = np.asarray(_for_numpy(given))
    except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths in a list
        raise OptionError(f"{name}: {shown(given)}; expected a flat list of sample numbers") from error
    if array.dtype == np.bool_:
        raise OptionError(
            f"{name}: a mask of bools; expected a list of sample numbers, as numpy.flatnonzero(mask) returns them"
        )
    try:
        numbers = check_rows(array, num_samples)
    except (IndexError, TypeError) as error:
        expected = f"sample numbers from 0 to {num_samples - 1}, or negative ones, which count from the end"
        raise OptionError(f"{name}: {error}; expected {expected if num_samples else 'no sample numbers'}") from error
    numbers = np.array(numbers, np.int64)
    numbers.flags.writeable = False
    return numbers


def with_occurrences(numbers: I64, num_samples: int) -> I64:
    """Return sample + num_samples * occurrence for sample numbers (m,), with occurrences counted from 0.

    >>> with_occurrences(np.array([3, 1, 3, 3, 1]), 10).tolist()
    [3, 1, 13, 23, 11]
    """
    by_sample = np.argsort(numbers, kind="stable")
    alike = numbers[by_sample]
    is_first = np.append(True, alike[1:] != alike[:-1])[: len(alike)]
    if is_first.all():
        return numbers
    places = np.arange(len(alike))
    occurrence = places - np.maximum.accumulate(np.where(is_first, places, 0))
    draws = numbers.copy()
    draws[by_sample] += num_samples * occurrence
    return draws


def _for_numpy(given: Any) -> Any:
    """Return tensors, of any dtype and device, in a form that NumPy can convert; anything else unchanged."""
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu()
        return given.double() if given.is_floating_point() else given  # NumPy has no bfloat16
    if isinstance(given, list | tuple) and len(given) and isinstance(given[0], torch.Tensor):
        return [item.item() if isinstance(item, torch.Tensor) else item for item in given]
    return given


def _numbers_of_weights(given: Any, num_samples: int) -> F64:
    """Return weights as an array (n,).

    Raises:
        OptionError: A weight is negative or not finite, or there is not one for each sample.
    """
    try:
        array = np.asarray(_for_numpy(given))
        if array.dtype.kind in "USMmc":  # NumPy would make numbers of texts and times
            raise TypeError(array.dtype)
        weights: F64 = np.asarray(array, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"weights: {shown(given)}; expected a list of numbers, one for each sample") from error
    if weights.shape != (num_samples,):
        raise OptionError(
            f"weights: {shown(given)} has shape {weights.shape}; expected one weight for each of {num_samples} samples"
        )
    wrong = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if len(wrong):
        raise OptionError(f"weights[{wrong[0]}] is {weights[wrong[0]]}; expected finite numbers of at least 0")
    return weights


def _sums(weights: F64) -> F64:
    """Return the cumulative sums of weights, (n,) float64.

    Raises:
        OptionError: Their sum is not above 0, or not finite, or products with 2**-53 would lose digits.
    """
    with np.errstate(over="ignore"):
        sums: F64 = np.cumsum(weights)
    if len(weights) and not _TINY < sums[-1] < np.inf:
        raise OptionError(f"weights: the weights add up to {sums[-1]}; expected a finite sum above {_TINY}")
    return sums
