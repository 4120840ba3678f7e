"""The cache of a part of a dataset: what is kept, what comes and goes, and that nothing goes while it is read."""

from __future__ import annotations

import gc
import multiprocessing
import os
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

from lmdbloader import LMDBDataset, Loader, QuasiRandom, errors
from lmdbloader.base import system
from lmdbloader.store import reader as reader_module
from lmdbloader.store.remote import cache as cache_module
from lmdbloader.store.remote import fetcher as fetcher_module
from lmdbloader.store.remote import pieces as pieces_module
from lmdbloader.store.remote.pieces import PIECE_NBYTES
from lmdbloader.store.remote.service import Service

URL = "s3://bucket/train.lmdb"
MIB = 2**20
# Small blocks and windows, so that a small dataset has many.
ORDER = QuasiRandom(MIB, 4 * MIB)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_dataset(tmp_path_factory.mktemp("cached") / "train.lmdb", num_samples=3000))


@pytest.fixture
def server(local: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(cache_module, "_SPARE", 32)  # 2 MiB
    with serving(objects_of(Path(local.path))) as found:
        yield found


def num_pieces(local: LMDBDataset) -> int:
    return -(-local.reader.data_file.nbytes // MIB)


def epoch(dataset: LMDBDataset, seed: int, order: Any = ORDER) -> torch.Tensor:
    return torch.cat([batch.image for batch in Loader(dataset, 50, order=order, seed=seed)])


@pytest.mark.parametrize("fraction", [0, 0.3, "12MiB"])
def test_a_part_is_kept_and_the_rest_comes_and_goes(
    server: Server, local: LMDBDataset, tmp_path: Path, fraction: Any
) -> None:
    limit = {0: 0, 0.3: int(0.3 * local.reader.data_file.nbytes), "12MiB": 12 * MIB}[fraction]
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
    fetched = []
    for seed in range(3):
        before = len(server.ranges())
        assert torch.equal(epoch(dataset, seed), epoch(local, seed))
        fetched.append(sum(last + 1 - first for first, last in server.ranges()[before:]))
        assert cached_nbytes(tmp_path) <= limit + 3 * MIB
    streamed = local.reader.data_file.nbytes - limit
    assert local.reader.data_file.nbytes <= fetched[0] <= limit + 1.15 * streamed + MIB
    assert all(streamed * 0.9 - 2 * MIB <= nbytes <= 1.15 * streamed + MIB for nbytes in fetched[1:])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each request for data, which is answered at once."""
    found: list[int] = []
    get = Service.get

    def counted(service: Service, name: str, start: int, stop: int, version: str = "") -> bytes:
        if name == "data.mdb":
            found.append(stop - start)
        return get(service, name, start, stop, version)

    monkeypatch.setattr(Service, "get", counted)
    return found


@pytest.mark.parametrize("order", ["sequential", QuasiRandom(2 * MIB, 8 * MIB)])
@pytest.mark.parametrize("fraction", [0, 0.2, 0.5])
def test_an_epoch_fetches_little_more_than_what_is_not_kept(
    local: LMDBDataset, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch, order: Any, fraction: float
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
    nbytes = local.reader.data_file.nbytes
    dataset = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path, cache_fraction=fraction)
    for seed in range(4):
        asked.clear()
        labels = torch.cat([batch.label for batch in Loader(dataset, 50, order=order, seed=seed)])
        assert sorted(labels.tolist()) == list(range(len(local)))
        kept = fraction * nbytes if seed else 0
        assert 0.95 * (nbytes - kept) - MIB <= sum(asked) <= 1.05 * (nbytes - kept) + MIB
        assert len(asked) <= 1.1 * nbytes / MIB


def test_single_samples_fetch_little_of_what_is_not_kept(
    local: LMDBDataset, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
    dataset = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path, cache_fraction=0)
    rows = np.random.default_rng(0).permutation(len(local))[:200].tolist()
    assert all(same(dataset[row], local[row]) for row in rows)
    # An image and a text, each in one piece or two.
    assert sum(asked) <= len(rows) * 4 * 2**16
    asked.clear()
    whole = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path)
    assert all(same(whole[row], local[row]) for row in rows)
    assert len(asked) <= 2 * num_pieces(local)  # what is kept comes by the MiB


def test_the_live_windows_bound_what_is_here(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.25)
    most = 0
    for _ in Loader(dataset, 50, order="sequential", num_threads=1):
        most = max(most, cached_nbytes(tmp_path))
    assert most <= 0.25 * local.reader.data_file.nbytes + 34 * MIB
    for _ in Loader(dataset, 50, order=QuasiRandom(MIB, 2 * MIB), num_threads=1):
        break  # in the middle of an epoch
    assert cached_nbytes(tmp_path) <= 0.25 * local.reader.data_file.nbytes + 24 * MIB


@pytest.mark.parametrize("order", ["random", "sequential", ORDER])
def test_threads_and_workers_never_read_a_piece_that_was_given_back(
    server: Server, local: LMDBDataset, tmp_path: Path, order: Any
) -> None:
    few = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.1)[:700]
    for found, expected in zip(
        Loader(few, 20, order=order, num_threads=4, verify=False, seed=1), Loader(local[:700], 20, order=order, seed=1),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(found.image, expected.image)


def test_a_piece_that_is_held_stays(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    remote = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0).reader.data_file.remote
    assert remote is not None

    def hold(piece: int) -> Any:
        return remote.hold(np.array([piece * PIECE_NBYTES]), np.array([piece * PIECE_NBYTES + 1]))

    def read_others() -> None:
        for piece in range(1, 60):
            hold(piece).release()

    held = hold(0)
    read_others()
    assert np.flatnonzero(remote.pieces.states).tolist()[0] == 0
    ours, theirs = multiprocessing.Pipe()

    def hold_here() -> None:
        mine = hold(0)
        theirs.send("held")
        theirs.recv()
        mine.release()
        theirs.send("released")

    child = multiprocessing.get_context("fork").Process(target=hold_here)
    child.start()
    assert ours.recv() == "held"
    held.release()
    read_others()
    assert remote.pieces.states[0] == 1  # another process reads it
    ours.send("release")
    assert ours.recv() == "released"
    child.join()
    read_others()
    assert remote.pieces.states[0] == 0
    assert int(np.count_nonzero(remote.pieces.states)) <= 33


def test_two_processes_and_single_samples_share_a_part(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.1)
    loader = DataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork")
    labels = [label for batch in loader for label in batch.label.tolist()]
    assert labels == list(range(len(local)))
    rows = np.random.default_rng(0).integers(0, len(local), 60).tolist()
    assert all(same(dataset[row], local[row]) for row in rows)
    assert cached_nbytes(tmp_path) <= 0.1 * local.reader.data_file.nbytes + 10 * MIB


def test_what_a_killed_process_has_left_is_given_back(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    code = (
        f"import lmdbloader, os, signal; ds = lmdbloader.LMDBDataset({URL!r}, cache_dir={str(tmp_path)!r}, "
        "cache_fraction=0); [ds[i] for i in range(0, 3000, 50)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert cached_nbytes(tmp_path) > 5 * MIB
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0)
    assert cached_nbytes(tmp_path) == 0
    assert same(dataset[2999], local[2999])


def test_whoever_keeps_everything_loses_nothing_to_others(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    whole = LMDBDataset(URL, cache_dir=tmp_path)
    assert torch.equal(epoch(whole, 0), epoch(local, 0))
    count = len(server.ranges())
    part = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.1)
    assert torch.equal(epoch(part, 1), epoch(local, 1))
    assert torch.equal(epoch(whole, 2), epoch(local, 2))
    assert len(server.ranges()) == count


def test_a_smaller_part_deletes_nothing_that_was_kept(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    whole = LMDBDataset(URL, cache_dir=tmp_path)
    assert torch.equal(epoch(whole, 0), epoch(local, 0))
    del whole
    gc.collect()
    before, count = cached_nbytes(tmp_path), len(server.ranges())
    for fraction in (0.3, 0):
        part = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=fraction)
        assert torch.equal(epoch(part, 1), epoch(local, 1))
        del part
        gc.collect()
    assert (cached_nbytes(tmp_path), len(server.ranges())) == (before, count)


def test_what_one_keeps_and_another_has_fetched_stays(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    little = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0)
    much = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.5)
    for row in range(0, len(local), 4):
        assert same(little[row], local[row]) and same(much[row], local[row])
    assert same(little[1], local[1])
    gc.collect()
    assert 0.5 * local.reader.data_file.nbytes - 2 * MIB <= cached_nbytes(tmp_path)
    assert cached_nbytes(tmp_path) <= 0.5 * local.reader.data_file.nbytes + 5 * MIB


def test_what_ended_workers_have_left_goes_after_the_next_use(
    server: Server, local: LMDBDataset, tmp_path: Path
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0)

    def read_and_leave() -> None:
        for first in range(0, 3000, 500):  # they are held to the end
            dataset.reader.data_file.remote.request(  # type: ignore[union-attr]
                *dataset.reader.ranges(("image",), np.arange(first, first + 500)), once=True
            )
        until = time.monotonic() + 30
        while cached_nbytes(tmp_path) < 30 * MIB and time.monotonic() < until:
            time.sleep(0.01)
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=read_and_leave)
    child.start()
    child.join()
    assert cached_nbytes(tmp_path) >= 30 * MIB
    assert torch.equal(epoch(dataset, 0), epoch(local, 0))
    assert cached_nbytes(tmp_path) <= 3 * MIB


def test_a_process_that_is_stopped_is_an_error_and_no_endless_wait(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces_module, "_OTHERS_SECONDS", 0.3)
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    pieces = dataset.reader.data_file.remote.pieces  # type: ignore[union-attr]
    ours, theirs = multiprocessing.Pipe()

    def claim() -> None:
        theirs.send(pieces.claims.claim(0, pieces.count))
        theirs.recv()

    child = multiprocessing.get_context("fork").Process(target=claim)
    child.start()
    assert ours.recv()
    with pytest.raises(errors.DiskError, match=r"another process has locked .* Is one of those .* stopped"):
        dataset[0]
    ours.send("end")
    child.join()
    assert same(dataset[0], local[0])


def test_damage_that_comes_again_later_is_mended_again(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = LMDBDataset(URL, cache_dir=tmp_path)
    offset = int(local.reader.index.arrays["image.offset"][7])

    def damage() -> None:
        (pieces,) = tmp_path.glob("*/data.pieces")
        with open(pieces, "r+b") as file:
            file.seek(offset)
            file.write(bytes(1000))

    def times() -> int:
        return len([first for first, last in server.ranges() if first <= offset <= last])

    assert same(dataset[7], local[7])
    damage()
    assert same(dataset[7], local[7])
    damage()
    with pytest.raises(errors.CorruptError, match="sample 7"):
        dataset[7]
    with pytest.raises(errors.CorruptError, match="sample 7"):
        dataset[7]
    assert times() == 2  # soon after, it is not fetched by every attempt
    monkeypatch.setattr(cache_module, "_RENEWED_SECONDS", 0.0)
    assert same(dataset[7], local[7])
    damage()
    assert same(dataset[7], local[7])
    assert times() == 4


def test_a_file_system_that_frees_nothing_is_refused(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "free_part", lambda descriptor, at, nbytes: False)
    with pytest.raises(errors.OptionError, match="cannot give parts of a file back"):
        LMDBDataset(URL, cache_dir=tmp_path, cache_fraction=0.5)
    assert same(LMDBDataset(URL, cache_dir=tmp_path)[0], local[0])


def test_threads_of_a_forked_child_begin_once(
    server: Server, local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LMDBDataset(URL, cache_dir=tmp_path).reader.data_file.remote
    assert cache is not None
    begin, begun, ready = cache._begin, [], threading.Barrier(4)

    def slowly() -> None:
        begun.append(threading.get_ident())
        time.sleep(0.05)
        begin()

    monkeypatch.setattr(cache, "_begin", slowly)
    cache._pid = -1  # as in a child
    found: list[Any] = []

    def use() -> None:
        ready.wait()
        before = cache._fetcher
        found.append(cache.present()._fetcher is not before)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(begun), found) == (1, [True] * 4)


def test_a_forked_child_ends_though_a_thread_had_the_lock(server: Server, local: LMDBDataset, tmp_path: Path) -> None:
    cache = LMDBDataset(URL, cache_dir=tmp_path).reader.data_file.remote
    assert cache is not None
    locked, end = threading.Event(), threading.Event()

    def lock() -> None:
        with cache.pieces.claims.lock:
            locked.set()
            end.wait()

    thread = threading.Thread(target=lock)
    thread.start()
    locked.wait()

    child = multiprocessing.get_context("fork").Process(target=cache_module._stop, args=(cache._fetcher, os.getpid()))
    child.start()
    child.join(10)
    is_alive = child.is_alive()
    child.kill()
    end.set()
    thread.join()
    assert not is_alive


def test_a_loader_that_ends_takes_nothing_from_another_one(
    local: LMDBDataset, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
    nbytes = local.reader.data_file.nbytes
    dataset = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path, cache_fraction=0)
    for number, _ in enumerate(Loader(dataset, 50, order=QuasiRandom(2 * MIB, 12 * MIB), num_threads=1)):
        if number % 10 == 0:  # as a validation in the middle of an epoch
            assert len(list(Loader(dataset[:50], 50, order="sequential"))) == 1
    assert sum(asked) <= 1.05 * nbytes + 6 * MIB  # 0.6 MiB of each validation
    assert cached_nbytes(tmp_path) <= MIB


def test_very_many_pieces_are_brought_some_at_a_time_however_slowly(
    local: LMDBDataset, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "_MOST_BROUGHT", 100)
    monkeypatch.setattr(fetcher_module, "MOST_REQUESTS", 2)
    monkeypatch.setattr(pieces_module, "_OTHERS_SECONDS", 0.05)
    get = Service.get

    def slowly(*arguments: Any, **options: Any) -> bytes:
        time.sleep(0.1)
        return get(*arguments, **options)

    monkeypatch.setattr(Service, "get", slowly)
    dataset = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path)
    file = dataset.reader.data_file
    assert file.read(0, file.nbytes) == Path(local.path, "data.mdb").read_bytes()
    assert sum(asked) == file.nbytes


def test_a_column_of_all_texts_is_read_without_all_of_the_file_on_the_disk(
    local: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
    monkeypatch.setattr(reader_module, "_ROWS_HELD", 300)
    dataset, most = LMDBDataset(f"file://{local.path}", cache_dir=tmp_path, cache_fraction=0), []
    release = cache_module.Held.release

    def measured(held: Any) -> None:
        most.append(cached_nbytes(tmp_path))
        release(held)

    monkeypatch.setattr(cache_module.Held, "release", measured)
    assert dataset.table.equals(local.table)
    assert max(most) <= 3 * MIB  # all texts lie in 10 MiB of pieces
