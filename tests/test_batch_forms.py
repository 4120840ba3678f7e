"""Forms of samples and batches: one meaning of `as_` for datasets, the Loader and torch's DataLoader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import LabelSmoothing

COUNT = 13
RENAMED = {"pixel_values": "image", "labels": "label"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "d.lmdb"
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 6, 3), np.uint8)
    lmdbloader.write(({"image": pictures[i], "label": i, "name": f"n{i}"} for i in range(COUNT)), path)
    return path


def first_loaded(path: Path, as_: Any) -> Any:
    return next(iter(Loader(LMDBDataset(path), 5, order="sequential", as_=as_)))


def first_of_such_a_dataset(path: Path, as_: Any) -> Any:
    return next(iter(Loader(LMDBDataset(path, as_=as_), 5, order="sequential")))


def first_of_torch_with_workers(path: Path, as_: Any) -> Any:
    return next(iter(lmdbloader.dataloader(LMDBDataset(path, as_=as_), 5, num_workers=1)))


def first_collated(path: Path, as_: Any) -> Any:
    return next(iter(DataLoader(LMDBDataset(path, as_=as_), 5, collate_fn=lmdbloader.collate)))


def first_stacked_by_torch(path: Path, as_: Any) -> Any:
    return next(iter(DataLoader(LMDBDataset(path, as_=as_), 5)))


def first_sliced(path: Path, as_: Any) -> Any:
    return lmdbloader.collate(list(LMDBDataset(path, as_=as_)[:5]))


WAYS = [
    *(first_loaded, first_of_such_a_dataset, first_of_torch_with_workers, first_collated),
    *(first_stacked_by_torch, first_sliced),
]


@pytest.mark.parametrize("way", WAYS)
def test_batches_have_the_form(path: Path, way: Any) -> None:
    expected = next(iter(Loader(LMDBDataset(path), 5, order="sequential")))
    found = way(path, "dict")
    assert type(found) is dict and list(found) == ["image", "label", "name"]
    assert torch.equal(found["image"], expected.image) and found["label"].tolist() == [0, 1, 2, 3, 4]
    renamed = way(path, RENAMED)
    assert list(renamed) == ["pixel_values", "labels"]
    assert torch.equal(renamed["pixel_values"], expected.image) and torch.equal(renamed["labels"], expected.label)
    image, label, name = way(path, "tuple")
    assert torch.equal(image, expected.image) and torch.equal(label, expected.label) and list(name) == expected.name


@pytest.mark.parametrize("read", [lambda ds: ds[3], lambda ds: ds._many([3])[0], lambda ds: list(ds)[3]])
def test_samples_have_the_form(path: Path, read: Any) -> None:
    assert type(read(LMDBDataset(path, as_="tuple"))) is tuple
    found = read(LMDBDataset(path, as_=RENAMED))
    assert list(found) == ["pixel_values", "labels"] and found["labels"] == 3
    assert read(LMDBDataset(path, as_="dict"))["name"] == "n3"
    assert read(pickle.loads(pickle.dumps(LMDBDataset(path, as_="dict")))[1:][:-1].select(range(4)))["label"] == 4


def test_a_transform_and_functions_get_named_tuples(path: Path) -> None:
    def darker(sample: Any) -> Any:
        return sample._replace(image=sample.image // 2)

    ds = LMDBDataset(path, transform=darker, as_=RENAMED)
    plain = LMDBDataset(path)[2].image // 2
    assert torch.equal(ds[2]["pixel_values"], plain)
    batch = next(iter(Loader(ds, 4, order="sequential", transforms=[LabelSmoothing(0.1, COUNT)])))
    assert torch.equal(batch["pixel_values"][2], plain) and batch["labels"].shape == (4, COUNT)
    assert type(next(iter(Loader(ds, 4, order="random", as_="tuple")))) is tuple


@pytest.mark.parametrize("make", [LMDBDataset, lambda path, as_: Loader(LMDBDataset(path), 4, order="random", as_=as_)])
def test_a_field_that_is_not_there_is_named_at_once(path: Path, make: Any) -> None:
    with pytest.raises(OptionError, match=r"no field 'img'; there are image, label, name$"):
        make(path, as_={"x": "img"})
