"""LMDBDataset in several processes and threads: DataLoader workers of every start method, forks, threads."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.collate import collate
from lmdbloader.batch.memory import BatchMemory
from lmdbloader.errors import CorruptError
from lmdbloader.transforms import RandomCrop, ToDtype

COUNT = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of images large enough that a batch's memory is used again."""
    folder = tmp_path_factory.mktemp("datasets") / "d"
    lmdbloader.write(
        ({"image": np.full((64, 64, 3), i, np.uint8), "number": i} for i in range(COUNT)), folder, codec="lz4"
    )
    return folder


def check_epoch(loader: DataLoader[Any], expected: list[int]) -> None:
    """Fail unless an epoch holds these samples, each with its own pixels."""
    numbers: list[int] = []
    for batch in loader:
        assert batch.image.shape[1:] == (3, 64, 64)
        assert batch.image.amin((1, 2, 3)).tolist() == batch.image.amax((1, 2, 3)).tolist() == batch.number.tolist()
        numbers += batch.number.tolist()
    assert numbers == expected


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_every_start_method_read_epoch_after_epoch(path: Path, method: str) -> None:
    ds = LMDBDataset(path)
    assert ds[3].number == 3  # used before the workers start

    loader = DataLoader(
        ds[::-1],
        batch_size=8,
        num_workers=2 if method == "fork" else 1,
        multiprocessing_context=method,
        persistent_workers=True,
        collate_fn=collate,
    )
    for _ in range(2):
        check_epoch(loader, list(reversed(range(COUNT))))
    assert ds[4].number == 4


def exit_status_of_child(job: Any) -> int:
    """Run `job` in a fork of this process; 0 if it returned a true value."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # one that hangs ends
        status = 1
        try:
            status = 0 if job() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("used_before", [False, True])
def test_a_dataset_works_on_both_sides_of_a_fork(path: Path, used_before: bool) -> None:
    ds = LMDBDataset(path)
    held = ds._many(range(20)) if used_before else None

    def read() -> bool:
        return all((ds._many([i, 0, i])[2].image == i).all() for i in range(COUNT))

    assert exit_status_of_child(read) == 0
    assert read()
    assert held is None or [int(s.image[0, 0, 0]) for s in held] == list(range(20))


def random_batches(seed: int, count: int) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.integers(-COUNT, COUNT, rng.integers(1, 20)).tolist()


def test_threads_that_read_at_random_agree(path: Path) -> None:
    """Eight threads share one dataset and hold on to some of their batches, which no other thread may change."""
    ds = LMDBDataset(path)
    scaled = ds.transformed([ToDtype(torch.float32, True)])
    wrong: list[str] = []

    def read(seed: int) -> None:
        held: list[tuple[list[int], int, torch.Tensor]] = []
        try:
            for turn, numbers in enumerate(random_batches(seed, 40)):
                source, factor = ((ds, 1), (scaled, 255))[turn % 2]
                held.append(([i % COUNT for i in numbers], factor, source._many(numbers).columns["image"]))
                del held[:-4]
                time.sleep(0)
                for expected, unit, pixels in held:
                    first = (pixels[:, 0, 0, 0] * unit).round().tolist()
                    if first != expected or np.ptp(pixels.numpy().reshape(len(expected), -1), 1).any():
                        wrong.append(f"thread {seed}, turn {turn}: {first}, expected {expected}")
                number = int(numbers[0])
                if ds[number].number != number % COUNT:
                    wrong.append(f"thread {seed}: sample {number}")
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_child_forked_while_a_thread_takes_memory_takes_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    original = BatchMemory._allocate

    def allocate(memory: BatchMemory, count: int, process: int = os.getpid()) -> Any:
        if os.getpid() == process:
            entered.set()
            leave.wait()
        return original(memory, count)

    loader = Loader(LMDBDataset(path), 8, shuffle=True, num_threads=1)
    monkeypatch.setattr(BatchMemory, "_allocate", allocate)
    thread = threading.Thread(target=lambda: list(loader))
    thread.start()
    try:
        assert entered.wait(60)
        assert exit_status_of_child(lambda: sum(len(batch.number) for batch in loader) == COUNT) == 0
    finally:
        leave.set()
        thread.join()
    loader.close()


def numbers(ds: Any) -> list[int]:
    return [int(ds[i].number) for i in range(len(ds))]


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_everything_that_reads_pickles(path: Path, io: Any) -> None:
    ds = LMDBDataset(path, io=io)
    loader = Loader(ds.transformed([RandomCrop(8)], seed=3), 8, shuffle=True)
    for thing in (ds, ds[5:9], ds.transformed([RandomCrop(8)], seed=3), Subset(ds, [3, 1])):
        copy: Any = pickle.loads(pickle.dumps(thing))
        assert numbers(copy) == numbers(thing)
        assert torch.equal(copy[1].image, thing[1].image)
    assert pickle.loads(pickle.dumps(ds)).reader.io == io
    reader = pickle.loads(pickle.dumps(ds.reader))
    assert reader.io == io and (reader.read_image("image", 7) == 7).all()
    copied = pickle.loads(pickle.dumps(loader))
    for found, expected in zip(copied, loader, strict=True):
        assert found.number.tolist() == expected.number.tolist() and torch.equal(found.image, expected.image)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_pickle_of_a_dataset_that_was_replaced_or_moved_is_an_error(path: Path, tmp_path: Path, io: Any) -> None:
    place = tmp_path / "d"
    shutil.copytree(path, place)
    open_before = LMDBDataset(place, io=io)
    data = [pickle.dumps(thing) for thing in (open_before, Loader(open_before, 4, shuffle=True), open_before.reader)]
    place.rename(tmp_path / "moved")
    for pickled in data:
        with pytest.raises(FileNotFoundError, match="no such folder"):
            pickle.loads(pickled)
    assert numbers(open_before) == list(range(COUNT))  # who has it open reads on
    assert numbers(LMDBDataset(tmp_path / "moved", io=io)) == list(range(COUNT))

    lmdbloader.write([{"image": np.zeros((64, 64, 3), np.uint8), "number": 5}], place)
    for pickled in data:
        with pytest.raises(CorruptError, match=r"was replaced by another dataset.*Open it again"):
            pickle.loads(pickled)
    assert numbers(open_before) == list(range(COUNT))
