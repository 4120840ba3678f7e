"""shard='auto' in real processes: each rank reads its share of a Loader that was made before the ranks existed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

import lmdbloader
from lmdbloader import LMDBDataset, Loader

COUNT, RANKS = 40, 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "d.lmdb"
    lmdbloader.write(({"image": np.full((4, 4), i, np.uint8), "number": i} for i in range(COUNT)), path)
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.number.tolist()]


def read_share(rank: int, loader: Loader, folder: Path) -> None:
    """Read an epoch as one rank of a group, and write down what was seen."""
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = {"length": len(loader), "numbers": numbers(loader), "state": loader.state_dict(), "repr": repr(loader)}
        numbers(loader)
    distributed.barrier()
    distributed.destroy_process_group()
    found["state after the group"] = loader.state_dict()
    found["warnings"] = [str(w.message) for w in caught]
    (folder / f"{rank}.json").write_text(json.dumps({**found, "rank": loader.rank, "world_size": loader.world_size}))


def in_ranks(loader: Loader, folder: Path, method: str) -> list[dict[str, Any]]:
    start_processes(read_share, (loader, folder), nprocs=RANKS, start_method=method)  # type: ignore[no-untyped-call]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(("method", "is_used"), [("spawn", True), ("fork", False)])
def test_ranks_read_their_shares_of_a_loader_made_before_them(
    ds: LMDBDataset, tmp_path: Path, method: str, is_used: bool
) -> None:
    loader = Loader(ds, 4, shuffle=True, shard="auto", seed=3, num_threads=1)
    assert "shard='auto'" in repr(loader)
    if is_used:  # nothing that is asked of it in the parent settles its share
        assert len(loader) == COUNT // 4
        assert len(numbers(loader)) == COUNT
        assert (loader.rank, loader.world_size) == (0, 1)
        loader.state_dict()
        loader.close()
    found = in_ranks(loader, tmp_path, method)
    assert [each["length"] for each in found] == [COUNT // 4 // RANKS] * RANKS
    for rank, each in enumerate(found):
        expected = Loader(ds, 4, shuffle=True, shard=(rank, RANKS), seed=3, num_threads=1)
        expected.set_epoch(1 if is_used else 0)
        assert each["numbers"] == numbers(expected)
        assert each["state"] == expected.state_dict()
        assert each["state after the group"]["epoch"] == each["state"]["epoch"] + 1
        assert each["warnings"] == []
    assert sorted(found[0]["numbers"] + found[1]["numbers"]) == list(range(COUNT))


def test_without_a_shard_every_rank_reads_everything_and_warns_once(ds: LMDBDataset, tmp_path: Path) -> None:
    found = in_ranks(Loader(ds, 4, shuffle=True, num_threads=1), tmp_path, "fork")
    for each in found:
        assert sorted(each["numbers"]) == list(range(COUNT))
        (message,) = each["warnings"]
        assert "2 processes, and each of them reads all samples" in message
        assert "Loader(..., shard='auto')" in message


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"shard": "auto"}, [2, 2]),
        ({"shard": "auto", "pad": False}, [2, 1]),
        ({"shard": "auto", "drop_last": True}, [1, 1]),
        ({"shard": "own"}, [2, 1]),
        ({"shard": "own", "pad": True}, [2, 2]),
    ],
    ids=str,
)
def test_an_automatic_shard_is_padded_unless_it_says_otherwise(
    ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lengths: list[int]
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: RANKS)
    found = []
    for rank in range(RANKS):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        shard = (rank, RANKS) if options["shard"] == "own" else "auto"
        found.append(len(Loader(ds[:9], 4, shuffle=True, seed=0, **{**options, "shard": shard})))
    assert found == lengths


def test_a_place_is_that_of_the_ranks_that_reached_it(ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(ds, 4, shuffle=True, seed=0, shard="auto", num_threads=1)
    with monkeypatch.context() as group:
        group.setattr(torch.distributed, "is_initialized", lambda: True)
        group.setattr(torch.distributed, "get_rank", lambda: 1)
        group.setattr(torch.distributed, "get_world_size", lambda: 2)
        iterator = iter(loader)
        next(iterator), next(iterator)
        assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 5)
    # The group is gone, as after the last line of a training function.
    assert loader.state_dict()["position"] == 2 * 2 * 4
    assert len(loader) == 10
