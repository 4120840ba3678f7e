"""A dataset that does not fit into memory is read without its map, and not in windows that would leave memory first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from machines import plant

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base import system
from lmdbloader.store import Readahead
from lmdbloader.store.opening import DataFile

NUM_SAMPLES = 64


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """64 samples of 12 kB."""
    path = tmp_path_factory.mktemp("little") / "d"
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, 64, 64, 3), np.uint8)
    lmdbloader.write(({"image": image, "label": i} for i, image in enumerate(images)), path)
    return LMDBDataset(path)


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFile, "is_cached", lambda self, at: False)


def io_of(loader: Loader) -> str:
    return loader._read_from.reader.io


@pytest.mark.parametrize("order", ["random", "quasi_random", "sequential"])
@pytest.mark.parametrize("free", [100_000, None])
def test_batches_are_the_same_with_little_memory(
    dataset: LMDBDataset, monkeypatch: pytest.MonkeyPatch, order: Any, free: int | None
) -> None:
    expected = list(Loader(dataset, 8, order=order, seed=1))
    monkeypatch.setattr(system, "free_memory", lambda: free)
    loader = Loader(dataset, 8, order=order, seed=1)
    assert io_of(loader) == ("mmap" if free is None else "pread")
    for batch, other in zip(loader, expected, strict=True):
        assert torch.equal(batch.image, other.image) and torch.equal(batch.label, other.label)


def test_only_what_a_loader_reads_must_fit(dataset: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "free_memory", lambda: 500_000)
    assert io_of(Loader(dataset, 8)) == "pread"
    assert io_of(Loader(dataset.select(range(16)), 8)) == "mmap"
    assert io_of(Loader(dataset.select([3] * 2 * NUM_SAMPLES), 8)) == "pread"


def test_a_map_is_kept_that_was_asked_for_or_is_in_memory(
    dataset: LMDBDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "free_memory", lambda: 1)
    assert io_of(Loader(dataset, 8, io="mmap")) == "mmap"
    monkeypatch.setattr(DataFile, "is_cached", lambda self, at: True)
    assert io_of(Loader(dataset, 8)) == "mmap"


@pytest.mark.parametrize(("free", "waits"), [(2**40, True), (1, False), (None, True)])
def test_windows_are_read_only_if_they_fit(
    dataset: LMDBDataset, monkeypatch: pytest.MonkeyPatch, free: int | None, waits: bool
) -> None:
    calls = set[str]()
    for name in ("load", "will_need"):
        function = getattr(Readahead, name)
        monkeypatch.setattr(
            Readahead, name, lambda self, rows, name=name, function=function: calls.add(name) or function(self, rows)
        )
    monkeypatch.setattr(Readahead, "is_resident", lambda self, rows: False)
    monkeypatch.setattr(system, "free_memory", lambda: free)
    order = lmdbloader.QuasiRandom(block_nbytes=50_000, window_nbytes=200_000)
    assert len(list(Loader(dataset, 8, order=order))) == 8
    assert calls == {"load" if waits else "will_need"}


def test_free_memory_is_what_all_groups_leave(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 800 kB\n",
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": "600000\n",
        "sys/fs/cgroup/job/memory.current": "500000\n",
        "sys/fs/cgroup/job/memory.stat": "file 200000\nshmem 50000\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
    }
    assert system.free_memory(plant(tmp_path, files)) == 250_000
    assert system.free_memory(plant(tmp_path / "other", dict(list(files.items())[:1]))) == 800 * 1024
    assert system.free_memory(tmp_path / "without") is None
