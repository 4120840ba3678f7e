"""Samples read many in one call never bypass code of the user: wrappers, subclasses, and views of subclasses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError

COUNT = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("many") / "d.lmdb"
    samples = (
        {"image": np.full((4, 4, 3), i, np.uint8), "label": i, "info": {"n": [i] * (i % 3)}} for i in range(COUNT)
    )
    lmdbloader.write(samples, made)
    return made


class Wrapper(Dataset[Any]):
    """Passes on the attributes of its dataset, and changes the labels."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> int:
        return int(self.inner[index].label) + 1000


class Noted(LMDBDataset):
    """Returns the index that it gets, the label, and its own entry for the index."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entries = [f"entry {k}" for k in range(COUNT)]

    def __getitem__(self, index: Any) -> Any:
        return int(index), super().__getitem__(index).label, self.entries[index]


LOADERS: dict[str, Callable[[Any], Any]] = {
    "torch": lambda ds: DataLoader(ds, 4, collate_fn=list),
    "torch, a worker": lambda ds: DataLoader(ds, 4, collate_fn=list, num_workers=1),
    "dataloader": lambda ds: lmdbloader.dataloader(ds, 4, collate_fn=list, num_workers=0),
    "dataloader, a worker": lambda ds: lmdbloader.dataloader(ds, 4, collate_fn=list, num_workers=1),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_wrapper_that_passes_on_attributes_is_called(path: Path, make: Callable[[Any], Any]) -> None:
    ds = LMDBDataset(path)
    wrapped = {
        "dataset": Wrapper(ds),
        "Subset": Subset(Wrapper(ds), range(8)),
    }
    for name, dataset in wrapped.items():
        assert next(iter(make(dataset))) == [1000, 1001, 1002, 1003], name


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_ways_of_reading_give_the_same_samples(path: Path, make: Callable[[Any], Any]) -> None:
    for as_ in (None, "dict", "tuple"):
        ds = LMDBDataset(path, as_=as_)
        for dataset in (ds, Subset(ds, range(2, 10)), Subset(Subset(ds, range(10)), [3, 1]), ConcatDataset([ds, ds])):
            found = [sample for batch in make(dataset) for sample in batch]
            assert [type(sample) for sample in found] == [type(dataset[0])] * len(dataset)
            label = "label" if as_ == "dict" else 1
            assert [sample[label] for sample in found] == [dataset[k][label] for k in range(len(dataset))]


VIEWS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "select": (lambda ds: ds.select([7, 2, -1]), [7, 2, 11]),
    "select a slice": (lambda ds: ds.select(slice(8, 2, -2)), [8, 6, 4]),
    "select a mask": (lambda ds: ds.select(np.arange(COUNT) % 5 == 4), [4, 9]),
    "where": (lambda ds: ds.where("label >= 9"), [9, 10, 11]),
    "split": (lambda ds: ds.split([0.5, 0.5], seed=3, by=None)[1], [0, 5, 6, 7, 8, 11]),
    "twice": (lambda ds: Subset(ds.where("label >= 6"), [4, 1]), [10, 7]),
    "of a copy": (lambda ds: copy.deepcopy(ds).select([3]), [3]),
    "pickled": (lambda ds: pickle.loads(pickle.dumps(ds.select([3]))), [3]),
}


@pytest.mark.parametrize(("view", "numbers"), VIEWS.values(), ids=VIEWS)
def test_a_view_calls_a_subclass_with_the_numbers_of_its_dataset(
    path: Path, view: Callable[[Any], Any], numbers: list[int]
) -> None:
    part = view(Noted(path))
    if len(numbers) == 6:
        numbers = sorted(part.indices)
    expected = [(k, k, f"entry {k}") for k in numbers]
    assert [part[i] for i in range(len(part))] == list(part) == expected
    for make in LOADERS.values():
        assert [sample for batch in make(part) for sample in batch] == expected
    with pytest.raises(OptionError, match="overrides __getitem__"):
        Loader(part, 4)


@pytest.mark.parametrize("make", [Wrapper, lambda ds: Noted(Path(ds.path))], ids=["wrapper", "subclass"])
def test_stored_samples_are_not_taken_past_code_of_the_user(path: Path, tmp_path: Path, make: Any) -> None:
    dataset = make(LMDBDataset(path))
    for call in (
        lambda: lmdbloader.merge([dataset, dataset], tmp_path / "merged"),
        lambda: lmdbloader.subset(dataset, tmp_path / "part", limit=3),
        lambda: lmdbloader.append(tmp_path / "none", [dataset]),
        lambda: lmdbloader.mix([dataset]),
        lambda: Loader(dataset, 4),
    ):
        with pytest.raises((OptionError, lmdbloader.errors.NotFoundError)):
            call()
