"""Orders by class: as many draws of each class, and batches of some classes with some samples of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import shown, whole
from lmdbloader.base.text import counted
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.loader.choices import with_occurrences
from lmdbloader.loader.orders import BatchOrders, EpochOrder, Layout, Orders, in_batches

I64 = npt.NDArray[np.int64]
# The purpose numbers of permutations; `orders` has those of others.
_PLACES, _CLASSES, _SAMPLES = 5, 6, 7


@dataclass(frozen=True, slots=True)
class ClassBatches:
    """Batches of some classes with some samples of each, for losses that compare the samples of a batch.

    Every batch has `num_classes` different classes, one after the other, and `num_samples` different samples of each.
    A class with fewer samples gives them several times, each time with random choices of its own, as with
    pytorch-metric-learning's MPerClassSampler. Classes come in rounds, each in random order, without the
    fewer than `num_classes` that would not fill a batch; and so do the samples of a class. An epoch has
    len(dataset) // (num_classes * num_samples) batches of all ranks together, at least 1.

    Attributes:
        num_classes: Of a batch, at least 1.
        num_samples: Of each class in a batch, at least 1.

    >>> Loader(dataset, batch_sampler=ClassBatches(num_classes=8, num_samples=4))  # doctest: +SKIP
    """

    num_classes: int
    num_samples: int

    def __post_init__(self) -> None:
        for name in ("num_classes", "num_samples"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, 2**31 - 1))


@dataclass(frozen=True)
class Classes:
    """The samples of each class.

    Attributes:
        field: The name of the label field.
        samples: (n,) sample numbers, those of a class after those of another.
        sizes: (c,) how many samples each class has, at least 1.
    """

    field: str
    samples: I64
    sizes: I64

    def draws(self, chosen: I64, numbers: I64, seed: int, epoch: int) -> I64:
        """Return draws of classes (m,), given how many came of the class before, (m,).

        The samples of a class are shuffled, and again whenever all of them came.
        """
        found = np.empty_like(chosen)
        if len(chosen):
            entries.shuffle_piles(chosen, numbers, self.sizes, seed, epoch, _SAMPLES, found)
        times, places = np.divmod(found, max(len(self.samples), 1))
        draws: I64 = self.samples[places] + len(self.samples) * times
        return draws


def classes_of(dataset: LMDBDataset, call: str) -> Classes:
    """Return the samples of each class of a dataset; `call` is the Loader's argument that needs them.

    Raises:
        OptionError: It has not one label for each sample.
    """
    name = _label_field(dataset, call)
    labels: I64 = np.asarray(dataset.reader.index.take(name, dataset.stored_rows), np.int64)
    without = np.flatnonzero(labels < 0)
    if len(without):
        raise OptionError(
            f"{call}: {counted(len(without), 'sample')} of {len(labels):,} without a label, as sample {without[0]}, "
            f"whose {name} is {labels[without[0]]}. Leave them out: dataset.where('{name} >= 0')."
        )
    samples = np.argsort(labels, kind="stable")
    return Classes(name, samples, np.unique(labels, return_counts=True)[1].astype(np.int64))


def _label_field(dataset: LMDBDataset, call: str) -> str:
    """Return the name of the field of labels."""
    fields = dataset.reader.fields
    names = dict.fromkeys((*dataset.reader.manifest.classes, "label"))
    labels = [name for name in names if name in fields and fields[name].kind == "int"]
    chosen = [name for name in labels if name in dataset.fields] if len(labels) > 1 else labels
    if len(chosen) == 1:
        return chosen[0]
    if labels:
        one = [name for name in dataset.fields if name not in labels[1:]]
        raise OptionError(
            f"{call}: the dataset has labels in several fields: {', '.join(labels)}. Read it with one of them: "
            f"LMDBDataset(path, fields={one})."
        )
    found = ", ".join(f"{name} ({f.kind})" for name, f in fields.items())
    raise OptionError(
        f"{call}: expected a dataset with one class for each sample, in a field of ints named label, or one with the "
        f"names of classes; found {found}. Write Loader(..., weights=[...]), or batch_sampler=[...]."
    )


class BalancedOrders(Orders):
    """Orders with as many draws of each class, and within a class of each sample, to within one."""

    shown = "balanced"

    def __init__(self, classes: Classes, draws: Any) -> None:
        """Take the classes, and the Loader's `num_samples`.

        Raises:
            OptionError: `num_samples` is out of range.
        """
        count = len(classes.samples)
        self._draws = count if draws is None else whole("num_samples", draws, 1, 2**62 // max(count, 1))
        if self._draws and not count:
            raise OptionError(f"num_samples={shown(draws)}, weights: the dataset has no samples to draw from")
        self._classes = classes
        self.options = {"weights": "balanced", "num_samples": draws}

    def length(self, epoch: int) -> int:
        return self._draws

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        classes, length = self._classes, self._draws

        def samples(positions: I64) -> I64:
            places, chosen = np.empty_like(positions), np.empty_like(positions)
            if not len(positions) or not length:
                return places
            # Places are dealt to the classes in turns. Positions are a permutation of them, and turns one of classes.
            entries.permute(positions, length, seed, epoch, _PLACES, places)
            numbers, turns = np.divmod(places, len(classes.sizes))
            entries.permute(turns, len(classes.sizes), seed, epoch, _CLASSES, chosen)
            return classes.draws(chosen, numbers, seed, epoch)

        return EpochOrder(length, samples)

    def text(self, epoch: int, layout: Layout) -> str:
        return f"balanced by {self._classes.field}"


class ClassOrders(BatchOrders):
    """Orders of batches of some classes with some samples of each."""

    def __init__(self, classes: Classes, given: ClassBatches) -> None:
        """Take the classes of a dataset; raise OptionError if there are fewer than a batch has."""
        if given.num_classes > len(classes.sizes):
            raise OptionError(
                f"batch_sampler={given}: the dataset has {counted(len(classes.sizes), 'class', 'classes')} in "
                f"{classes.field}. Write ClassBatches(num_classes={len(classes.sizes)}, ...)."
            )
        self._classes, self.shown, self.batch_size = classes, given, given.num_classes * given.num_samples
        self._num_batches = max(len(classes.samples) // self.batch_size, 1)
        self.options = {"batch_sampler": given}

    def length(self, epoch: int) -> int:
        return self._num_batches

    def counts(self, epoch: int) -> I64:
        return np.full(self._num_batches, self.batch_size, np.int64)

    def of(self, epoch: int, layout: Layout, seed: int) -> EpochOrder:
        classes, each, per_class = self._classes, self.shown.num_classes, self.shown.num_samples
        # Rounds in which a class comes at most once.
        in_round = len(classes.sizes) // each * each
        rounds, places = np.divmod(np.arange(self._num_batches * each), in_round)
        numbers, count = rounds * len(classes.sizes) + places, np.array([len(classes.sizes)], np.int64)
        found = np.empty_like(numbers)
        entries.shuffle_piles(np.zeros_like(numbers), numbers, count, seed, epoch, _CLASSES, found)
        times, chosen = np.divmod(with_occurrences(found % count[0], int(count[0])), count[0])
        # In the same way, rounds in which a sample of a class comes at most once; of a smaller class several in a turn.
        sizes = classes.sizes[chosen]
        repeats = -(-per_class // sizes)
        rounds, turns = np.divmod(times, repeats * sizes // per_class)
        numbers = (rounds * repeats * sizes + turns * per_class)[:, None] + np.arange(per_class)
        draws = classes.draws(np.repeat(chosen, per_class), numbers.ravel(), seed, epoch) % max(len(classes.samples), 1)
        bounds = np.arange(self._num_batches + 1) * self.batch_size
        return in_batches(with_occurrences(draws, len(classes.samples)), bounds)

    def text(self, epoch: int, layout: Layout) -> str:
        return f"{self.shown} by {self._classes.field}"
