"""The cache of a part of a dataset: what is kept, what comes and goes, and that nothing goes while it is read."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from remote_store import Server, cached_nbytes, objects_of, same, serving, write_dataset
from torch.utils.data import DataLoader

from lmdbloader import LMDBDataset, Loader, QuasiRandom
from lmdbloader.store.remote import cache as cache_module

URL = "s3://bucket/train.lmdb"
MIB = 2**20
# Small blocks and windows, so that a small dataset has many.
ORDER = QuasiRandom(MIB, 4 * MIB)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return LMDBDataset(write_dataset(tmp_path_factory.mktemp("cached") / "train.lmdb", num_samples=3000))


@pytest.fixture
def server(local: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(cache_module, "_SPARE", 2)
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
    assert local.reader.data_file.nbytes <= fetched[0] <= limit + 2.5 * streamed + 2 * MIB
    assert all(streamed * 0.9 - 2 * MIB <= nbytes <= 2.5 * streamed + 2 * MIB for nbytes in fetched[1:])


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
        return remote.hold(np.array([piece * MIB]), np.array([piece * MIB + 1]))

    def read_others() -> None:
        for piece in range(1, num_pieces(local)):
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
    assert int(np.count_nonzero(remote.pieces.states)) <= 3


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
