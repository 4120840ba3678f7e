"""A dataset's Python transform, however it is given: as an argument, a method, or an assigned attribute."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError

READS: dict[str, Callable[[LMDBDataset], Any]] = {
    "ds[i]": lambda ds: [ds[i] for i in range(len(ds))],
    "__getitems__": lambda ds: ds.__getitems__(list(range(len(ds)))),
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
    assert ds.__getitems__([0, 1]) == [100, 101]
    assert next(iter(Loader(ds, 4, order="sequential"))).tolist() == [100, 101, 102, 103]
    assert ds[2:][0] == 102
    assert pickle.loads(pickle.dumps(ds))[3] == 103
    ds.transform = None  # type: ignore[assignment, method-assign]
    assert ds[3].label == 3
    assert not ds.has_own_transform


class OwnNames(LMDBDataset):
    """A subclass with names that are private names elsewhere."""

    def own_transform(self, sample: Any) -> Any:
        return sample.label

    def _open(self) -> int:
        return 3

    def transform(self, sample: Any) -> Any:
        return self.own_transform(sample), self._open()


def test_methods_of_a_subclass_are_its_own(path: Path) -> None:
    ds = OwnNames(path)
    assert ds[2] == (2, 3)
    assert [batch[1].tolist() for batch in Loader(ds, 4, order="sequential")] == [[3] * 4] * 2
