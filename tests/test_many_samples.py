"""What is done once for a dataset, a view or a Loader takes memory that does not grow with the samples."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many import write_many

from lmdbloader import LMDBDataset, Loader, QuasiRandom
from lmdbloader.transforms import RandomHorizontalFlip

COUNT = 400_000
# A byte for each sample would already be more.
MOST_NBYTES = 350_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_many(tmp_path_factory.mktemp("many") / "d", COUNT)
    # Imports, and what is kept once for a process.
    for batch in Loader(LMDBDataset(write_many(path.with_name("few"), 100)), 32, shuffle=True):
        assert batch.image.shape[1:] == (3, 1, 1)
    return path


@pytest.fixture(scope="module")
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def peak_of(call: Callable[[], Any]) -> int:
    """Return the most memory that a call takes, with its result."""
    tracemalloc.start()
    try:
        kept = call()
        del kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_opening(path: Path, io: Any) -> None:
    LMDBDataset(path)
    held = (path / "index.arrow").stat().st_size if io == "pread" else 0  # reserved, and taken when it is used
    assert peak_of(lambda: LMDBDataset(path, io=io)) < held + MOST_NBYTES


@pytest.mark.parametrize(
    "view_of",
    [
        lambda ds: ds[5:],
        lambda ds: ds[:-5][::-1],
        lambda ds: ds.select(range(-COUNT, -7, 2)),
        lambda ds: pickle.dumps(ds[1:]),
        lambda ds: ds[5:][-1],
        lambda ds: ds[7:].table,
        lambda ds: ds.transformed([RandomHorizontalFlip()], seed=2)[5:][3],
        lambda ds: ds[:5],
        lambda ds: ds[7],
    ],
)
def test_a_view(ds: LMDBDataset, view_of: Callable[[LMDBDataset], Any]) -> None:
    ds[0]
    assert peak_of(lambda: view_of(ds)) < MOST_NBYTES


@pytest.mark.parametrize("view_of", [lambda ds: ds, lambda ds: ds[5:], lambda ds: ds[::-2]])
@pytest.mark.parametrize("transforms", [[], [RandomHorizontalFlip()]])
def test_a_loader(ds: LMDBDataset, view_of: Callable[[LMDBDataset], LMDBDataset], transforms: list[Any]) -> None:
    view = view_of(ds)
    assert peak_of(lambda: Loader(view, 64, shuffle=True, transforms=transforms)) < MOST_NBYTES


def test_slices_hold_the_samples_of_their_numbers(ds: LMDBDataset) -> None:
    for view, expected in (
        (ds[100_000::70_000], range(100_000, COUNT, 70_000)),
        (ds[::-1][3:399_000:60_000], range(COUNT - 4, 999, -60_000)),
        (ds.select(range(-3, 0)), range(COUNT - 3, COUNT)),
    ):
        assert [sample.label for sample in view] == list(expected)
        assert [int(sample.image[0, 0, 0]) for sample in view] == [number % 251 for number in expected]
        assert view.table.column("label").to_pylist() == list(view.targets) == list(expected)
        batches = [batch.label.tolist() for batch in Loader(view, 2)]
        assert [label for batch in batches for label in batch] == list(expected)
        shuffled = np.concatenate([batch.label for batch in Loader(view, 2, order="quasi_random", seed=1)])
        assert sorted(shuffled.tolist()) == sorted(expected)


@pytest.mark.parametrize(("order", "window_nbytes"), [("random", 0), ("sequential", 2 * 65_536 * 24)])
def test_an_epoch_and_its_state(ds: LMDBDataset, order: Any, window_nbytes: int) -> None:
    found = []
    for view in (ds[:1000], ds[5:]):
        loader = Loader(view, 64, order=order, num_threads=1)

        def begin(loader: Loader = loader) -> None:
            batches = iter(loader)
            assert len(next(batches).label) == 64
            assert loader.state_dict()["position"] == 64

        begin()  # the memory of the batches
        found.append(peak_of(begin))
    # Nothing for each sample, but for the windows in memory.
    assert found[1] < found[0] + window_nbytes + 50_000


def test_the_next_epoch_of_a_quasi_random_order(ds: LMDBDataset) -> None:
    loader = Loader(ds[5:], 64, order="quasi_random", num_threads=1)
    for _ in range(2):  # in the first one the blocks are found
        next(iter(loader))
    # Of a window in memory: 24 bytes for each of its samples.
    assert peak_of(lambda: next(iter(loader))) < MOST_NBYTES + 24 * COUNT


def test_windows_of_many_samples_that_are_in_memory_are_not_listed(ds: LMDBDataset) -> None:
    # 48 of 60 blocks are in use at a time: the numbers of their samples take 3 MB.
    loader = Loader(ds, 64, order=QuasiRandom(20_000, 1_000_000), seed=0, num_threads=1)
    expected = Loader(ds, 64, order=QuasiRandom(20_000, 1_000_000), seed=0, num_threads=1, io="pread", prefetch=0)
    for _ in range(2):  # in the first one the blocks are found
        batch = next(iter(loader))
        assert batch.label.tolist() == next(iter(expected)).label.tolist()
    assert peak_of(lambda: next(iter(loader))) < MOST_NBYTES
