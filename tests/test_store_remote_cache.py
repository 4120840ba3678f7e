"""The cache of a dataset at a URL: what processes share, what a fraction keeps, and what memory holds of the rest."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from remote_store import Server, cached_nbytes, objects_of, same, serving, write_dataset
from torch.utils.data import DataLoader

from lmdbloader import LMDBDataset, Loader, QuasiRandom
from lmdbloader.base import system
from lmdbloader.store.opening import DataFile, OpenFile
from lmdbloader.store.remote import cache as cache_module
from lmdbloader.store.remote import window as window_module
from lmdbloader.store.remote.window import WindowFile

URL = "s3://bucket/train.lmdb"
MIB = 2**20
NUM_SAMPLES = 3000
# Small blocks and windows, so that a small dataset has many.
ORDER = QuasiRandom(MIB, 4 * MIB)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_dataset(tmp_path_factory.mktemp("cached") / "train.lmdb", num_samples=NUM_SAMPLES))


@pytest.fixture
def server(local: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(window_module, "_SPARE", 32)  # 2 MiB
    monkeypatch.setattr(window_module, "_FREED", 8)
    with serving(objects_of(Path(local.path))) as found:
        yield found


def epoch(dataset: LMDBDataset, seed: int, order: Any = ORDER, **options: Any) -> torch.Tensor:
    return torch.cat([batch.image for batch in Loader(dataset, 50, order=order, seed=seed, **options)])


def fetched(server: Server, before: int = 0) -> int:
    return sum(last + 1 - first for first, last in server.ranges()[before:])


def in_memory(dataset: LMDBDataset) -> int:
    """Return the bytes of a dataset in part that are in memory."""
    file = dataset.reader.data_file
    assert isinstance(file, WindowFile)
    return int(np.count_nonzero(file.remote.states)) * window_module.BLOCK_NBYTES


# -- Processes


def test_processes_share_the_cache_and_ask_for_each_block_once(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    server.delay = 0.02
    code = "import pickle, sys; r = pickle.load(sys.stdin.buffer); "
    code += f"print(sum(int(r.read_bytes('image', i).sum()) for i in range({NUM_SAMPLES})))"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    sums = [int(child.communicate(pickle.dumps(dataset.reader))[0]) for child in children]
    assert sums == [sum(int(sample.image.sum()) for sample in local)] * 2
    assert fetched(server) == local.reader.data_file.nbytes
    before = len(server.requests)
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork")
    assert [label for batch in loader for label in batch.label.tolist()] == list(range(NUM_SAMPLES))
    assert len(server.requests) == before


def test_a_process_that_is_killed_blocks_no_other(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_OTHERS_SECONDS", 0.1)
    code = f"import lmdbloader; lmdbloader.LMDBDataset({URL!r}, cache_dir={str(tmp_path)!r})[0]"
    server.fault = lambda number, start: "hang" if number == 0 else ""
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        until = time.monotonic() + 60
        while not server.num_data and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert same(LMDBDataset(URL, cache_dir=tmp_path)[0], local[0])


def test_what_was_not_flushed_is_fetched_again_after_the_machine_was_started_again(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SETTLE_SECONDS", 0.0)
    assert same(LMDBDataset(URL, cache_dir=tmp_path)[0], local[0])
    (states,) = tmp_path.glob("*/states")
    until = time.monotonic() + 30
    while 2 not in states.read_bytes()[4096:] and time.monotonic() < until:
        time.sleep(0.01)
    num_flushed = states.read_bytes()[4096:].count(2)
    monkeypatch.setattr(cache_module, "_SETTLE_SECONDS", 1e9)
    assert torch.equal(epoch(LMDBDataset(URL, cache_dir=tmp_path), 0), epoch(local, 0))
    (data,) = tmp_path.glob("*/data")
    with open(data, "r+b") as file:  # as if the power had failed
        file.seek(num_flushed * MIB)
        file.write(bytes(data.stat().st_size - num_flushed * MIB))
    monkeypatch.setattr(system, "boot_id", lambda: "another")
    before = len(server.ranges())
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert torch.equal(epoch(dataset, 1, verify=False), epoch(local, 1))
    assert fetched(server, before) == data.stat().st_size - num_flushed * MIB


def test_a_write_that_fails_in_the_end_is_fetched_again(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    assert same(dataset[0], local[0])
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "_SETTLE_SECONDS", 0)
        patch.setattr(system, "flush", failing)
        dataset.reader.data_file.remote.settle()  # type: ignore[union-attr]
    before = len(server.ranges())
    assert same(dataset[0], local[0])
    assert len(server.ranges()) > before


# -- A part


@pytest.mark.parametrize("fraction", [0.3])
def test_a_part_is_kept_and_the_rest_comes_and_goes(
    server: Server, local: LMDBDataset, tmp_path: Path, fraction: Any
) -> None:
    nbytes = local.reader.data_file.nbytes
    limit = int(fraction * nbytes)
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
    for seed, order in enumerate([ORDER, ORDER, "sequential", ORDER]):
        before = len(server.ranges())
        assert torch.equal(epoch(dataset, seed, order), epoch(local, seed, order))
        ideal = nbytes if seed == 0 else nbytes - limit
        assert ideal - 2 * MIB <= fetched(server, before) <= 1.1 * ideal + 2 * MIB
        assert cached_nbytes(tmp_path) <= limit + MIB
        assert in_memory(dataset) <= 3 * MIB  # all windows are over
    whole = LMDBDataset(URL, cache_dir=tmp_path)  # uses what is kept, and keeps the rest
    before = len(server.ranges())
    assert torch.equal(epoch(whole, 9), epoch(local, 9))
    assert nbytes - limit - 2 * MIB <= fetched(server, before) <= nbytes - limit + 2 * MIB
    before = len(server.ranges())
    assert torch.equal(epoch(dataset, 5), epoch(local, 5))
    assert len(server.ranges()) == before  # what others have kept is used


@pytest.mark.parametrize("order", ["random", "sequential", ORDER])
def test_threads_never_read_a_block_that_was_freed(
    server: Server, local: LMDBDataset, tmp_path: Path, order: Any
) -> None:
    few = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.1)[:700]
    for found, expected in zip(
        Loader(few, 20, order=order, num_threads=4, verify=False, seed=1), Loader(local[:700], 20, order=order, seed=1),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(found.image, expected.image)


def test_forks_have_windows_of_their_own(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.1)
    assert same(dataset[0], local[0])
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork")
    images = []
    for number, batch in enumerate(loader):
        images.append(batch.image)
        assert same(dataset[7 * number], local[7 * number])
    assert torch.equal(torch.cat(images), epoch(local, 0, "sequential"))


class Slow(OpenFile):
    """A file of numbers that takes its time, and counts how many blocks of it are read."""

    def __init__(self, nbytes: int) -> None:
        self.path, self.descriptor, self.nbytes, self.num_read = Path("slow"), 0, nbytes, 0

    def read(self, at: int, nbytes: int) -> bytes:
        self.num_read += 1
        time.sleep(0.001)
        return bytes(np.arange(at // 2**16, -(-(at + nbytes) // 2**16), dtype=np.uint8).repeat(2**16)[:nbytes])


def test_what_is_held_is_there_for_every_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(window_module, "_SPARE", 2)
    monkeypatch.setattr(window_module, "_FREED", 1)
    count = 64
    file = WindowFile(DataFile([Slow(count * 2**16)], "pread", tmp_path), tmp_path)
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            starts = rng.integers(0, count, 3) * 2**16 + 5
            release = file.remote.hold(starts, starts + 100)
            file.remote.bring(starts, starts + 100)
            if rng.random() < 0.1:
                file.remote.renew(starts[:1], starts[:1] + 100)
            wrong.extend(int(at) for at in starts if file.data[at] != at // 2**16)
            release()

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert np.count_nonzero(file.remote.states) <= 3
