"""`lmdbloader.mix`: several datasets as one, drawn from by weight; and the sampler with which torch reads it."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from lmdbloader.base.arguments import shown, whole
from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.many import ReadsMany
from lmdbloader.errors import OptionError
from lmdbloader.loader.mixtures import Mixture, whole_shares
from lmdbloader.loader.orders import Layout
from lmdbloader.loader.views import union_of, view_of
from lmdbloader.store import check_rows

I64 = npt.NDArray[np.int64]
# The number of positions that a sampler computes at once.
_AT_ONCE = 4096


class Drawn(int):
    """The number of a draw from a mixture: sample + num_samples * times, with all samples in a row."""


class Mix(ReadsMany):
    """Samples of several datasets in some shares; `lmdbloader.mix` makes it, `Loader` and `dataloader` take it.

    `mixed[i]` is the same sample in every epoch: each dataset in its own order, again from its beginning when it ends.
    A Loader, and `dataloader(mixed, shuffle=True)`, shuffle each dataset, and shuffle it again when it ends.

    Attributes:
        datasets: The datasets, opened.
        weights: The weight of each dataset, as given; the lengths by default.
        union: All samples of all datasets, one dataset after the other; the `dataset` of a Loader.
        fields, classes, class_to_idx: Those of every dataset, as of an LMDBDataset.
        mixture: How positions are dealt to the datasets.
    """

    def __init__(self, datasets: tuple[LMDBDataset, ...], weights: tuple[float, ...], length: int) -> None:
        """Take datasets that fit together; see `mix`."""
        self.datasets, self.weights = datasets, weights
        self.union = union_of(datasets, "mix")
        self.fields, self.classes, self.class_to_idx = self.union.fields, self.union.classes, self.union.class_to_idx
        lengths = tuple(map(len, datasets))
        self.mixture = Mixture(lengths, whole_shares(weights, lengths), length)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute while it is made; raise OptionError later, when nothing would notice it."""
        if "mixture" in self.__dict__:
            raise OptionError(
                f"mixed.{name} = ...: a mixture cannot change. Write mix(datasets, weights, length) again, or set "
                "`transform` on each of its datasets."
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Return the number of draws of an epoch."""
        return self.mixture.length

    def __getitem__(self, index: Any) -> Any:
        """Return sample `index` of an epoch that is not shuffled.

        Raises:
            IndexError: Beyond either end.
            OptionError: It is not a number.
        """
        if not isinstance(index, Drawn):
            try:
                index = operator.index(index)
            except TypeError:
                raise OptionError(
                    f"mixed[{shown(index)}]: expected the number of a sample. For some of the samples mix views: "
                    "lmdbloader.mix([first[:100], second[:100]])."
                ) from None
        sample: Any = self._many([index])[0]
        return sample

    def _many(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return many samples read in one call."""
        if len(numbers) and isinstance(numbers[0], Drawn):
            draws = np.array(numbers, np.int64)
        else:
            order = self.mixture.order("sequential", Layout(0, _nowhere), seed=0, epoch=0)
            draws = order.samples(check_rows(numbers, len(self)))
        return self.union._read((draws % self.mixture.num_samples), draws)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random choices of datasets that are `transformed`, as `LMDBDataset.set_epoch`."""
        self.union.set_epoch(epoch)

    def __repr__(self) -> str:
        shares = [share / sum(self.mixture.shares) for share in self.mixture.shares]
        parts = "; ".join(
            f"{share:.1%} of {dataset.path!r} ({counted(len(dataset), 'sample')})"
            for share, dataset in zip(shares, self.datasets, strict=True)
        )
        return f"Mix({counted(len(self), 'sample')}: {parts})"


def mix(
    datasets: Sequence[LMDBDataset | str | os.PathLike[str]],
    weights: Sequence[float] | None = None,
    length: int | None = None,
) -> Mix:
    """Return several datasets as one, drawn from in given shares; nothing is copied on the disk.

    The shares are exact: with weights 0.7 and 0.3, any 1,000 draws in a row have 700 of the first dataset and 300 of
    the second (to within about 5 if a share of 1,000 is not a whole number). Without weights the shares are those of
    the lengths, so that each sample comes once in an epoch. A dataset that ends within an epoch is shuffled again.
    Orders, ranks and states are those of a Loader, which refuses a state of other datasets or weights.

    Args:
        datasets: LMDBDatasets, which may be views, or paths. All have the same fields and the same names of classes.
        weights: Numbers in proportion to the shares of the draws, one for each dataset; by default the lengths. Unless
            they are whole numbers, a share is 0 or at least 1e-10.
        length: The number of draws in an epoch; by default the number of samples of all datasets.

    Returns:
        A Mix, for `Loader` and `dataloader`.

    Raises:
        OptionError: The datasets do not fit together, with the line that merges them if that can help; or weights or
            length are out of range.

    Warns:
        UserWarning: An epoch is so short that a dataset has no draw in any.

    >>> df2k = lmdbloader.mix(["div2k.lmdb", "flickr2k.lmdb"], weights=[0.5, 0.5])  # doctest: +SKIP
    >>> loader = lmdbloader.Loader(df2k, 16, shuffle=True, transforms=[RandomCrop(192)])  # doctest: +SKIP
    """
    if not isinstance(datasets, list | tuple):  # a set has no order
        raise OptionError(f"mix({shown(datasets)}): expected a list of datasets")
    views = tuple(view_of(dataset, "mix") for dataset in datasets)
    num_samples = sum(map(len, views))
    if not num_samples:
        raise OptionError(f"mix: {counted(len(views), 'dataset')} without samples; expected at least one sample")
    count = num_samples if length is None else whole("length", length, 1, 2**62 // num_samples)
    mixed = Mix(views, tuple(map(len, views)) if weights is None else _numbers(weights), count)
    for number, share in enumerate(mixed.mixture.shares):
        if share and not mixed.mixture.num_draws(number):
            warnings.warn(
                f"mix: an epoch of {counted(count, 'draw')} has none of dataset {number}, {views[number].path}, whose "
                f"share is {share / sum(mixed.mixture.shares):.1g}. Leave it out, or write a larger weight or length.",
                stacklevel=2,
            )
    return mixed


def _numbers(weights: Any) -> tuple[float, ...]:
    """Return weights as Python's numbers; raise OptionError for anything else."""
    items: Any = weights.tolist() if isinstance(weights, torch.Tensor | np.ndarray) else weights
    if not isinstance(items, list | tuple) or not all(isinstance(item, Real) for item in items):
        raise OptionError(f"weights={shown(weights)}: expected a list of numbers, one for each dataset")
    return tuple(int(item) if isinstance(item, Integral) else float(item) for item in items)


def opened(dataset: Any) -> tuple[LMDBDataset, Mixture | None]:
    """Return the view with the samples of a Loader's argument, and the mixture if it is one.

    Raises:
        OptionError: As `view_of`.
    """
    return (dataset.union, dataset.mixture) if isinstance(dataset, Mix) else (view_of(dataset), None)


def _nowhere(first: int, end: int) -> Any:
    raise AssertionError("an order that is not shuffled does not look where samples lie")


class MixSampler(Sampler[int]):
    """The random order of a mixture for torch's DataLoader, a new one in every iteration."""

    def __init__(self, mixed: Mix, generator: torch.Generator | None = None) -> None:
        """Draw from a mixture; the seed of each iteration is drawn from a generator, torch's own by default."""
        self._mixed, self._generator = mixed, generator

    def __len__(self) -> int:
        return len(self._mixed)

    def __iter__(self) -> Iterator[int]:
        device = "cpu" if self._generator is None else self._generator.device
        seed = int(torch.empty((), dtype=torch.int64, device=device).random_(generator=self._generator).item())
        order = self._mixed.mixture.order("random", Layout(0, _nowhere), seed=seed, epoch=0)
        for first in range(0, len(self), _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, len(self)), dtype=np.int64)
            yield from map(Drawn, order.samples(positions).tolist())
