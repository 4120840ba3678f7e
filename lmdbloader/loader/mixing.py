"""`lmdbloader.mix`: several datasets as one, drawn from by weight, for a Loader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from lmdbloader.base.arguments import shown, whole
from lmdbloader.base.text import counted
from lmdbloader.batch.clips import Clips
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.many import overridden
from lmdbloader.errors import OptionError
from lmdbloader.loader.mixtures import Mixture, whole_shares
from lmdbloader.loader.views import union_of, view_of


class Mix:
    """Samples of several datasets in some shares; `lmdbloader.mix` makes it, and a Loader reads it.

    Attributes:
        datasets: The datasets, opened.
        weights: The weight of each dataset, as given; the lengths by default.
        union: All samples of all datasets, one dataset after the other; the `dataset` of a Loader.
        mixture: How positions are dealt to the datasets.
    """

    def __init__(self, datasets: tuple[LMDBDataset, ...], weights: tuple[float, ...], length: int) -> None:
        """Take datasets that fit together; see `mix`."""
        self.datasets, self.weights, self.union = datasets, weights, union_of(datasets, "mix")
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
        """Raise OptionError: which samples an epoch has depends on its number, which only a Loader knows."""
        raise OptionError(
            f"mixed[{shown(index)}]: only a Loader reads a mixture: Loader(mixed, batch_size, shuffle=True). For some "
            "of the samples mix views: lmdbloader.mix([first[:100], second[:100]])."
        )

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
        A Mix, for a `Loader`.

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


def opened(dataset: Any) -> tuple[LMDBDataset, Mixture | None, Clips | None]:
    """Return the view with the samples of a Loader's argument; the mixture, if it is one; and the clips, likewise.

    Raises:
        OptionError: As `view_of`.
    """
    if isinstance(dataset, Clips):
        if name := overridden(dataset):
            raise OptionError(
                f"{type(dataset).__name__} overrides {name}, which the Loader does not call. Use torch's DataLoader: "
                "lmdbloader.dataloader(dataset, batch_size)."
            )
        return view_of(dataset.dataset), None, dataset
    return (dataset.union, dataset.mixture, None) if isinstance(dataset, Mix) else (view_of(dataset), None, None)
