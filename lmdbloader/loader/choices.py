"""Orders that a user gives: lists of sample numbers, functions of the epoch, weights, and repeated datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.arguments import flag, shown, whole
from lmdbloader.base.text import counted
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.loader.mixtures import Mixture
from lmdbloader.loader.orders import EpochOrder, Layout, Order, QuasiRandom, check_order, epoch_order
from lmdbloader.store import check_rows
from lmdbloader.store.rows import digest_of

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# What a Loader takes: sample numbers or weights, as a list, or a function that returns the list of an epoch.
Numbers = Sequence[int] | I64
Given = Order | Numbers | Callable[[int], Numbers]
Weights = Sequence[float] | F64 | Callable[[int], Sequence[float] | F64]
# The purpose number of the permutation that is the source of weighted draws; `orders` has those of others.
_WEIGHTED = 3
_BITS = 53
# Weights are scaled if the largest is smaller, because products with 2**-53 would lose digits.
_TINY = 1e-250
# Epochs whose lists are kept: the current one and the next.
_KEPT_EPOCHS = 2
_EXPECTED = (
    "expected 'random', 'quasi_random', 'sequential', QuasiRandom(...), a list of sample numbers, or a function of the "
    "epoch that returns one"
)


@dataclass(frozen=True, slots=True)
class ListedOrder:
    """The order of a list of sample numbers, in which a sample may occur several times.

    Attributes:
        draws: (m,) sample + num_samples * occurrence, so that each occurrence has its own random choices.
    """

    draws: I64

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.draws)

    def samples(self, positions: I64) -> I64:
        """Return the draws at positions (m,)."""
        return self.draws.take(positions, mode="wrap") if len(positions) else positions

    def windows(self, positions: Any) -> None:
        """Samples are read one by one."""


@dataclass(frozen=True, slots=True)
class WeightedOrder:
    """The order of samples that are drawn by weight, with replacement; each position is an independent draw.

    Attributes:
        length: The number of draws.
        sums: (n,) float64, the cumulative sums of the weights.
        last: The last sample with a weight above 0.
        seed, epoch: From 0 to 2**64 - 1.
    """

    length: int
    sums: F64
    last: int
    seed: int = 0
    epoch: int = 0

    def samples(self, positions: I64) -> I64:
        """Return sample + num_samples * draw at positions (m,), so that each draw has its own random choices."""
        positions = positions % max(self.length, 1)
        numbers = np.empty_like(positions)
        # A few numbers of a permutation of 2**53 are as good as independent ones.
        entries.permute(positions, 2**_BITS, self.seed, self.epoch, _WEIGHTED, numbers)
        found: I64 = np.searchsorted(self.sums, numbers * (self.sums[-1] * 2.0**-_BITS), "right")
        return np.minimum(found, self.last) + len(self.sums) * positions

    def windows(self, positions: Any) -> None:
        """Samples are read one by one."""


class Orders:
    """The orders of all epochs of a Loader.

    They give draws: sample + num_samples * occurrence. Random choices depend on the draw. If `repeats` is False, draws
    are sample numbers.

    Attributes:
        shown: The value of `loader.order`.
        repeats: Whether a sample may occur more than once in an epoch.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        order: Given | None,
        shuffle: bool | None,
        weights: Weights | None,
        draws: int | None,
        repeat: int,
        mixture: Mixture | None = None,
    ) -> None:
        """Check the arguments of a Loader.

        Args:
            num_samples: The number of samples of the dataset.
            order, shuffle, weights, repeat: The Loader's arguments.
            draws: The Loader's `num_samples`.
            mixture: The mixture that is read; None for a single dataset.

        Raises:
            OptionError: One of them is invalid, or two of them set the order.
        """
        self._count, self._mixture = num_samples, mixture
        self._weights = self._draws = None
        self._repeat = whole("repeat", repeat, 1, max((2**62) // max(num_samples, 1), 1))
        self._kept: dict[int, tuple[EpochOrder, str]] = {}
        self.options: dict[str, Any] = {"order": order, "weights": weights, "num_samples": draws, "repeat": repeat}
        if mixture is not None:
            _check_of_mixture(order, weights, draws, repeat)
        if weights is not None:
            _check_alone(order, shuffle, repeat)
            self._draws = num_samples
            if draws is not None:  # as in torch, at least one
                self._draws = whole("num_samples", draws, 1, 2**62 // max(num_samples, 1))
                if not num_samples:
                    raise OptionError(f"num_samples={draws}, weights: the dataset has no samples to draw from")
            if not callable(weights):
                # A copy, from which another Loader may be made: the caller may change the list.
                weights = self.options["weights"] = _numbers_of_weights(weights, num_samples, "weights").copy()
            self._weights = weights if callable(weights) else _sums(weights, "weights")
            self.shown: Any = "weighted"
        else:
            if draws is not None:
                raise OptionError(
                    f"num_samples={shown(draws)}: it is the number of draws by weight, with no effect without weights"
                )
            self.shown = self.options["order"] = _order(order, shuffle, num_samples)
        is_computed = self._weights is None and self._repeat == 1 and _is_kind(self.shown)
        self.repeats = not is_computed or mixture is not None

    @property
    def follow_the_seed(self) -> bool:
        """Whether they depend on the seed."""
        return self._weights is not None or (_is_kind(self.shown) and not is_sequential(self.shown))

    @property
    def changes(self) -> bool:
        """Whether a function of the user returns the order of each epoch."""
        return callable(self._weights) or callable(self.shown)

    def length(self, epoch: int) -> int:
        """Return the number of positions of an epoch."""
        if self._mixture is not None:
            return self._mixture.length
        if self._draws is not None:
            return self._draws
        if _is_kind(self.shown):
            return self._count * self._repeat
        return self._given(epoch)[0].length

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        """Return the order of an epoch.

        Args:
            epoch: Its number.
            layout: Where the samples are in the file.
            seed: From 0 to 2**64 - 1.

        Raises:
            OptionError: The function of the user returned neither sample numbers nor weights.
        """
        if self._mixture is not None:
            return self._mixture.order(self.shown, layout, seed=seed, epoch=epoch)
        if self._weights is None and _is_kind(self.shown):
            return epoch_order(self.shown, layout, seed=seed, epoch=epoch, repeat=self._repeat)
        order, _ = self._given(epoch)
        return replace(order, seed=seed, epoch=epoch) if isinstance(order, WeightedOrder) else order

    def text(self, epoch: int, layout: Layout) -> str:
        """Return a short text; orders of an epoch with equal texts are equal."""
        if self._weights is not None or not _is_kind(self.shown):
            return self._given(epoch)[1]
        times = f", {self._repeat} times" if self._repeat > 1 else ""
        times += "" if self._mixture is None else f", {self._mixture.text}"
        if self.shown in ("random", "sequential"):
            return f"{self.shown}{times}"
        # Blocks and windows depend on where samples are in the file, which may differ in another copy of the dataset.
        sizes = self.shown if isinstance(self.shown, QuasiRandom) else QuasiRandom()
        return f"quasi_random({sizes.block_nbytes}, {sizes.window_nbytes}), stored {layout.digest}{times}"

    def _given(self, epoch: int) -> tuple[EpochOrder, str]:
        """Return the order of an epoch that follows from a list, weights or a function of the user, and its text."""
        key = epoch if self.changes else 0
        if key not in self._kept:
            found = self._ask(epoch)
            while len(self._kept) >= _KEPT_EPOCHS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = found
        return self._kept[key]

    def _ask(self, epoch: int) -> tuple[EpochOrder, str]:
        if self._draws is not None:
            sums: Any = self._weights
            if callable(sums):
                name = f"weights({epoch})"
                sums = _sums(_numbers_of_weights(sums(epoch), self._count, name), name)
            last = int(np.searchsorted(sums, sums[-1])) if len(sums) else 0
            text = f"weighted {digest_of(sums.view(np.int64))}"
            return WeightedOrder(self._draws, sums, last), text
        numbers = self.shown
        if callable(numbers):
            numbers = _numbers(numbers(epoch), self._count, f"order({epoch})")
        if self._repeat > 1:
            numbers = np.tile(numbers, self._repeat)
        draws = _with_occurrences(numbers, self._count)
        return ListedOrder(draws), f"listed {digest_of(draws)}"


def _is_kind(order: Any) -> bool:
    """Return whether an order is one of those that the package computes by position."""
    return isinstance(order, str | QuasiRandom)


def _check_of_mixture(order: Any, weights: Any, draws: Any, repeat: Any) -> None:
    """Raise OptionError if anything other than the mixture chooses the samples."""
    line = "Write lmdbloader.mix(datasets, weights=[...], length=n) with a weight for each dataset"
    for name, value in (("weights", weights), ("num_samples", draws)):
        if value is not None:
            raise OptionError(f"{name}={shown(value)}: the dataset is a mixture. {line}.")
    if repeat != 1:
        raise OptionError(f"repeat={shown(repeat)}: the dataset is a mixture. {line}; datasets that end begin again.")
    if order is not None and not _is_kind(order):
        raise OptionError(
            f"order={shown(order)}: the dataset is a mixture; expected 'random', 'quasi_random', 'sequential' or "
            f"QuasiRandom(...). {line}."
        )


def _check_alone(order: Any, shuffle: Any, repeat: int) -> None:
    """Raise OptionError if anything other than weights sets the order."""
    for name, value in (("order", order), ("shuffle", shuffle)):
        if value is not None:
            raise OptionError(
                f"weights, {name}={shown(value)}: both set the order; draws by weight are random. Leave one out."
            )
    if repeat != 1:
        raise OptionError(f"weights, repeat={repeat}: write num_samples, the number of draws of an epoch, instead.")


def _order(order: Any, shuffle: bool | None, num_samples: int) -> Any:
    """Return the order that `order` or `shuffle` sets, by default that of the dataset; a list as an array (m,).

    Raises:
        OptionError: One of them is not valid, or both are given.
    """
    if shuffle is not None:
        is_random = flag("shuffle", shuffle)
        if order is not None:
            raise OptionError(f"shuffle={shuffle}, order={shown(order)}: both set the order. Leave one of them out.")
        return "random" if is_random else "sequential"
    if order is None:
        return "sequential"
    if _is_kind(order):
        return check_order(order)
    if callable(order) and not isinstance(order, type):
        return order
    if isinstance(order, type) or not hasattr(order, "__len__"):
        raise OptionError(f"order={shown(order)}: {_EXPECTED}")
    return _numbers(order, num_samples, "order")


def _numbers(given: Any, num_samples: int, name: str) -> I64:
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


def _with_occurrences(numbers: I64, num_samples: int) -> I64:
    """Return sample + num_samples * occurrence for sample numbers (m,), with occurrences counted from 0.

    >>> _with_occurrences(np.array([3, 1, 3, 3, 1]), 10).tolist()
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


def _numbers_of_weights(given: Any, num_samples: int, name: str) -> F64:
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
        raise OptionError(f"{name}: {shown(given)}; expected a list of numbers, one for each sample") from error
    if weights.shape != (num_samples,):
        raise OptionError(
            f"{name}: {shown(given)} has shape {weights.shape}; expected one weight for each of {num_samples} samples"
        )
    wrong = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if len(wrong):
        raise OptionError(f"{name}[{wrong[0]}] is {weights[wrong[0]]}; expected finite numbers of at least 0")
    return weights


def _sums(weights: F64, name: str) -> F64:
    """Return the cumulative sums of weights, (n,) float64.

    Raises:
        OptionError: They are all 0, or add up to more than a float holds.
    """
    if len(weights) and 0 < (most := weights.max()) < _TINY:
        # Draws multiply the sum with 2**-53, which must not lose digits; a power of two changes no share.
        weights = np.ldexp(weights, -int(np.frexp(most)[1]))
    with np.errstate(over="ignore"):
        sums: F64 = np.cumsum(weights)
    if len(weights) and not 0 < sums[-1] < np.inf:
        raise OptionError(f"{name}: the weights add up to {sums[-1]}; expected a finite sum above 0")
    return sums


def is_sequential(order: Any) -> bool:
    """Return whether an order is the dataset's own."""
    return isinstance(order, str) and order == "sequential"


def described(order: Any) -> str:
    """Return an order as text, for messages and `repr`.

    >>> described("random"), described(np.array([3, 1]))
    ("'random'", 'a list of 2 sample numbers')
    """
    if isinstance(order, np.ndarray):
        return f"a list of {counted(len(order), 'sample number')}"
    return repr(order) if _is_kind(order) else shown(order)


def epoch_in(state: Any) -> int:
    """Return the epoch of a Loader's state, 0 if it has none."""
    epoch = state.get("epoch") if isinstance(state, dict) else None
    try:
        return whole("epoch", epoch, 0, 2**63 - 1)
    except OptionError:
        return 0
