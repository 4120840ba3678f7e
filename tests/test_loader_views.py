"""What a Loader reads: paths, Subsets, ConcatDatasets of views; others are an error with the line to write."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop, ToDtype

COUNT = 20


def make(path: Path, first: int = 0) -> Path:
    shades = (np.full((16, 16, 3), first + i, np.uint8) for i in range(COUNT))
    lmdbloader.write(({"image": shade, "number": first + i} for i, shade in enumerate(shades)), path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("views") / "d.lmdb")


@pytest.fixture(scope="module")
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.number.tolist()]


def in_order(dataset: Any) -> list[int]:
    loader = Loader(dataset, 3, shuffle=False)
    assert isinstance(loader.dataset, LMDBDataset)
    assert numbers(pickle.loads(pickle.dumps(loader))) == numbers(Loader(dataset, 3, order="sequential"))
    return numbers(loader)


def test_the_parts_of_random_split_are_read(ds: LMDBDataset) -> None:
    parts = random_split(ds, [0.75, 0.25], generator=torch.Generator().manual_seed(1))
    for part in parts:
        assert in_order(part) == [sample.number for sample in part]
        assert len(Loader(part, 4, order="random")) == len(DataLoader(part, 4))


@given(data=st.data())
def test_nested_subsets_and_sums_have_the_samples_that_torch_gives(ds: LMDBDataset, data: st.DataObject) -> None:
    def subset(dataset: Any) -> Any:
        rows = st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1, max_size=8)
        return Subset(dataset, data.draw(rows))

    first, second = subset(subset(ds)), subset(ds[::2])
    for dataset in (first, second, first + second, ConcatDataset([subset(first + second), ds[:3]])):
        expected = [dataset[i].number for i in range(len(dataset))]
        assert numbers(Loader(dataset, 3, order="sequential")) == expected


class Scaled(LMDBDataset):
    """A subclass with a setting of its own."""

    def __init__(self, path: Path, factor: Any) -> None:
        super().__init__(path)
        self.factor = factor


@pytest.mark.parametrize(
    "parts",
    [
        lambda path: [LMDBDataset(path), LMDBDataset(path, ["number"])],
        lambda path: [LMDBDataset(path), LMDBDataset(path).transformed([ToDtype(torch.float32, True)])],
        lambda path: [LMDBDataset(path), LMDBDataset(path).transformed([RandomCrop(4)])],
        lambda path: [LMDBDataset(path).transformed([RandomCrop(4)], seed=seed) for seed in (1, 2)],
        lambda path: [LMDBDataset(path), LMDBDataset(path, transform=lambda sample: sample)],
        lambda path: [LMDBDataset(path), Scaled(path, 1)],
        lambda path: [Scaled(path, 2), Scaled(path, 1)],
        lambda path: [Scaled(path, np.ones(2)), Scaled(path, np.ones(2))],
    ],
)
def test_parts_that_differ_in_more_than_their_samples_are_refused(path: Path, parts: Any) -> None:
    with pytest.raises(OptionError, match="have different fields or transforms") as caught:
        Loader(ConcatDataset(parts(path)), 4)
    assert "lmdbloader.dataloader(dataset, batch_size)" in str(caught.value)


def test_what_makes_other_samples_than_its_dataset_is_refused(ds: LMDBDataset, path: Path) -> None:
    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) * 2

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    class Wrapped(Dataset[Any]):
        dataset = ds

    class Other(LMDBDataset):
        def __getitem__(self, index: Any) -> Any:
            return 0

    for dataset in (Doubled(ds, [1]), Wrapped()):
        with pytest.raises(OptionError, match="expected an LMDBDataset"):
            Loader(dataset, 4)
    for dataset in (Other(path), Subset(Other(path), [1, 2])):
        with pytest.raises(OptionError, match="overrides __getitem__"):
            Loader(dataset, 4)


class Strong(LMDBDataset):
    """Adds its own strength to the number, in each epoch perhaps another one."""

    strength = 0

    def transform(self, sample: Any) -> int:
        return int(sample.number) + 1000 * self.strength


READERS: dict[str, Any] = {
    "Loader": lambda ds: Loader(ds, 4),
    "Loader of a Subset": lambda ds: Loader(Subset(ds, range(10)), 4),
    "Loader of parts": lambda ds: Loader(ConcatDataset([Subset(ds, range(5)), Subset(ds, range(5, 10))]), 4),
    "Loader of a mixture": lambda ds: Loader(lmdbloader.mix([ds]), 4),
    "dataloader": lambda ds: lmdbloader.dataloader(ds, 4, num_workers=0),
    "dataloader of a Subset": lambda ds: lmdbloader.dataloader(Subset(ds, range(10)), 4, num_workers=0),
    "dataloader, workers": lambda ds: lmdbloader.dataloader(Subset(ds, range(10)), 4, num_workers=2),
}


@pytest.mark.parametrize("kind", ["transform", "attribute", "state"])
@pytest.mark.parametrize("name", READERS)
def test_what_changes_between_epochs_is_seen(path: Path, name: str, kind: str) -> None:
    """As with torch's DataLoader of a Subset."""

    class Own:
        strength = 0

        def __call__(self, sample: Any) -> int:
            return int(sample.number) + 1000 * self.strength

    own = Own()
    ds: Any = Strong(path) if kind == "attribute" else LMDBDataset(path, transform=own)
    loader = READERS[name](ds)
    for strength in (0, 1, 2):
        if kind == "transform":
            ds.transform = lambda sample, k=strength: sample.number + 1000 * k
        elif kind == "attribute":
            ds.strength = strength
        else:
            own.strength = strength
        assert next(iter(loader)).tolist() == [1000 * strength + k for k in range(4)]


def test_a_view_of_a_loader_takes_a_transform_and_refuses_other_attributes(path: Path) -> None:
    ds = Strong(path)
    loader = Loader(Subset(ds, range(8)), 4)
    with pytest.raises(OptionError, match=r"dataset\.strength = "):
        loader.dataset.strength = 3  # type: ignore[attr-defined]
    loader.dataset.transform = lambda sample: -1  # type: ignore[method-assign]
    assert next(iter(loader)).tolist() == [-1] * 4 and ds[0] == 0


def renumber(subset: Any) -> None:
    subset.indices[0] = 9


@pytest.mark.parametrize(
    "change",
    [
        renumber,
        lambda subset: setattr(subset, "indices", [3, 4]),
        lambda subset: setattr(subset, "dataset", subset.dataset[1:]),
    ],
)
def test_samples_that_change_between_epochs_are_seen_or_refused(path: Path, change: Any) -> None:
    """Of torch's Subset, which people also fill again for active or curriculum learning."""
    ds = LMDBDataset(path)
    views: list[Any] = [ds, ds.transformed([RandomCrop(4)])]
    for view in views:
        subset: Any = Subset(view, [5, 6, 7])
        loader = lmdbloader.dataloader(subset, 4, num_workers=0)
        assert numbers(loader) == [5, 6, 7]
        change(subset)
        assert numbers(loader) == [sample.number for sample in subset]
    kinds: list[Any] = [
        lambda subset: subset,
        lambda subset: Subset(subset, [2, 0]),
        lambda subset: ConcatDataset([subset, ds]),
        lambda subset: lmdbloader.mix([subset]),
    ]
    for of in kinds:
        subset = Subset(ds, [5, 6, 7])
        changed = Loader(of(subset), 4)
        assert sorted(numbers(changed)) == sorted(numbers(changed))
        change(subset)
        with pytest.raises(OptionError, match=r"samples of the Subset have changed.*Loader\(dataset, batch_size"):
            iter(changed)
