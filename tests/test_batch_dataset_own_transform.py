"""A dataset's Python transform, however it is given: as an argument, a method, or an assigned attribute."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import CenterCrop

READS: dict[str, Callable[[LMDBDataset], Any]] = {
    "ds[i]": lambda ds: [ds[i] for i in range(len(ds))],
    "__getitems__": lambda ds: ds._many(list(range(len(ds)))),
    "Loader": lambda ds: list(Loader(ds, 4, order="sequential", num_threads=1)),
    "DataLoader": lambda ds: list(DataLoader(ds, 4, collate_fn=list)),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own") / "db"
    lmdbloader.write(({"image": np.full((4, 4), i, np.uint8), "label": i} for i in range(8)), made)
    return made


def first(sample: Any) -> Any:
    return sample.label


def second(sample: Any) -> Any:
    return sample.label + 100


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_transform_that_raises_stop_iteration_is_an_error_and_no_shorter_batch(
    path: Path, read: Callable[[LMDBDataset], Any]
) -> None:
    numbers = iter(range(5))
    ds = LMDBDataset(path, transform=lambda sample: next(numbers))
    with pytest.raises(OptionError, match=r"raised StopIteration, .*Give next\(\) a default"):
        read(ds)


@pytest.mark.parametrize("given", [None, first])
def test_an_assigned_transform_is_used(path: Path, given: Any) -> None:
    ds = LMDBDataset(path, transform=given)
    ds.transform = second  # type: ignore[method-assign]
    assert ds[3] == 103
    assert ds._many([0, 1]) == [100, 101]
    assert next(iter(Loader(ds, 4, order="sequential"))).tolist() == [100, 101, 102, 103]
    assert ds[2:][0] == 102
    assert pickle.loads(pickle.dumps(ds))[3] == 103
    ds.transform = None  # type: ignore[assignment, method-assign]
    assert ds[3].label == 3
    assert not ds.has_own_transform


def crop(sample: Any) -> Any:
    return sample._replace(image=sample.image[:, :4, :5].float())


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of different sizes, next to a field of one size."""
    made = tmp_path_factory.mktemp("own") / "db"
    rng = np.random.default_rng(0)
    lmdbloader.write(
        (
            {
                "image": rng.integers(0, 256, (4 + i, 5 + i % 3, 3)).astype(np.uint8),
                "small": np.full((3, 3), i, np.uint8),
                "label": i,
                "is_even": i % 2 == 0,
                "name": str(i),
            }
            for i in range(8)
        ),
        made,
    )
    return made


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_transform_that_crops_makes_batches_of_images_of_different_sizes(
    different: Path, batch_size: int, on_corrupt: Any, io: Any
) -> None:
    ds = LMDBDataset(different, transform=crop)
    loader = Loader(ds, batch_size, order="sequential", num_threads=2, on_corrupt=on_corrupt, io=io)
    batches = list(loader)
    assert torch.equal(torch.cat([batch.image for batch in batches]), torch.stack([sample.image for sample in ds]))
    assert torch.cat([batch.small for batch in batches]).unique().tolist() == list(range(8))
    assert torch.cat([batch.label for batch in batches]).tolist() == list(range(8))
    assert [name for batch in batches for name in batch.name] == list("01234567")


@pytest.mark.parametrize("io", [None, "pread"])
def test_a_transform_assigned_later_reaches_what_was_made_before(path: Path, io: Any) -> None:
    """timm assigns one to datasets that it is given."""
    ds = LMDBDataset(path)
    loader, dataloader = Loader(ds, 4, order="sequential", io=io), lmdbloader.dataloader(ds, 4, num_workers=0)
    assert next(iter(loader)).label.tolist() == [0, 1, 2, 3]
    assert next(iter(dataloader)).label.tolist() == [0, 1, 2, 3]
    ds.transform = second  # type: ignore[method-assign]
    for read in (loader, dataloader, DataLoader(ds, 4, num_workers=1), Loader(ds[:4], 4, order="sequential")):
        assert next(iter(read)).tolist() == [100, 101, 102, 103]
    assert next(iter(Loader(ds.transformed([CenterCrop(2)]), 4, order="sequential"))).tolist() == [100, 101, 102, 103]
    ds.transform = None  # type: ignore[assignment, method-assign]
    assert next(iter(loader)).label.tolist() == [0, 1, 2, 3]
