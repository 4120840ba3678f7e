"""A Loader without a seed: it follows torch's generator, gives no epoch twice, and agrees with the other ranks."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop

COUNT = 60
Epoch = list[tuple[int, bytes]]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("seeds") / "d.lmdb"
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    lmdbloader.write(({"image": pictures[i], "number": i} for i in range(COUNT)), path)
    return LMDBDataset(path)


def make(ds: LMDBDataset, **options: Any) -> Loader:
    return Loader(ds, 8, **{"shuffle": True, "transforms": [RandomCrop(8)], **options})


def seen(batches: Any) -> Epoch:
    """Return the samples and their crops, in order."""
    return [(n, image.numpy().tobytes()) for b in batches for n, image in zip(b.number.tolist(), b.image, strict=True)]


def check_new(epochs: list[Epoch]) -> None:
    """Check that each epoch has every sample, in an order and with crops that no other epoch has."""
    orders = [[n for n, _ in epoch] for epoch in epochs]
    assert all(sorted(order) == [*range(COUNT)] for order in orders)
    assert len({tuple(order) for order in orders}) == len(epochs)
    # 33 * 33 places: a few crops come twice by chance.
    assert len({crop for epoch in epochs for _, crop in epoch}) > 0.97 * COUNT * len(epochs)


def test_each_loader_has_epochs_of_its_own_that_follow_torchs_seed(ds: LMDBDataset) -> None:
    def run() -> list[Epoch]:
        torch.manual_seed(3)
        return [seen(loader) for loader in (make(ds), make(ds)) for _ in range(2)]

    epochs = run()
    check_new(epochs)
    assert run() == epochs


def test_an_epoch_whose_number_comes_again_is_a_new_one(ds: LMDBDataset) -> None:
    torch.manual_seed(0)
    loader, epochs = make(ds), []
    for number in (0, 0, 1, 1, 0, 1, 2, 2):
        loader.set_epoch(number)
        loader.sampler.set_epoch(number)  # as frameworks do, which find both
        assert loader.state_dict()["epoch"] == number
        epochs.append(seen(loader))
    epochs += [seen(loader), seen(loader)]
    check_new(epochs)


def test_with_a_seed_the_epochs_of_a_number_are_equal(ds: LMDBDataset) -> None:
    loader, view = make(ds, seed=5), make(ds.transformed([RandomCrop(8)], seed=5), transforms=[])
    expected = [seen(loader), seen(loader)]
    for one in (loader, view):
        for number in (0, 1, 0):
            one.set_epoch(number)
            assert seen(one) == expected[number]
    assert loader.seed == view.seed == 5


def test_a_state_carries_the_seed(ds: LMDBDataset) -> None:
    loader = make(ds)
    loader.set_epoch(0)
    list(loader)
    loader.set_epoch(0)  # another seed from here on
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [seen(batches), seen(loader)]
    for other in (make(ds), make(ds, seed=state["seed"])):
        other.load_state_dict(state)
        assert other.seed == state["seed"]
        assert [seen(other), seen(other)] == rest
    with pytest.raises(OptionError, match="another seed"):
        make(ds, seed=1).load_state_dict(state)
    for wrong in (-1, 2**64, "3", None):
        with pytest.raises(OptionError, match="seed"):
            make(ds).load_state_dict({**state, "seed": wrong})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_has_the_seed_and_the_place(ds: LMDBDataset, copied: Any) -> None:
    loader = make(ds)
    before = torch.get_rng_state()
    batches = iter(loader)
    next(batches)
    other = copied(loader)
    rest = seen(batches)
    assert seen(other) == rest
    assert seen(other) == seen(loader)
    other.set_epoch(0)
    loader.set_epoch(0)
    assert seen(other) == seen(loader)
    assert torch.equal(torch.get_rng_state(), before)


def of_rank(rank: int, folder: str, path: str, when: str) -> None:
    """Read as one of three ranks, whose generators differ."""
    torch.manual_seed(rank)
    ds = LMDBDataset(path)
    shards: list[Any] = ["auto", (rank, 3), "auto"]
    loaders = [make(ds, shard=shard, num_threads=1) for shard in shards] if when == "before" else []
    distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=3, timeout=timedelta(seconds=100)
    )
    loaders = loaders or [make(ds, shard=shard, num_threads=1) for shard in shards]
    if rank == 0:
        loaders[0].state_dict()  # one rank alone: nobody waits for the others
    found = []
    for loader in loaders:
        for number in (0, 0, 1):
            loader.set_epoch(number)
            found.append([n for batch in loader for n in batch.number.tolist()])
    Path(folder, f"{rank}.json").write_text(json.dumps([found, [loader.state_dict() for loader in loaders]]))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_share_the_order_of_rank_0(ds: LMDBDataset, tmp_path: Path, when: str) -> None:
    start_processes(of_rank, (str(tmp_path), ds.path, when), nprocs=3, start_method="fork")  # type: ignore[no-untyped-call]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert ranks[0][1] == ranks[1][1] == ranks[2][1]
    epochs = []
    for parts in zip(*(found for found, _ in ranks), strict=True):
        epochs.append([n for step in zip(*parts, strict=True) for n in step])
        assert sorted(epochs[-1]) == [*range(COUNT)]
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs) == 9


def of_a_copy(rank: int, loader: Loader, folder: str) -> None:
    torch.manual_seed(rank)
    distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=100)
    )
    Path(folder, f"{rank}.json").write_text(json.dumps([n for batch in loader for n in batch.number.tolist()]))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["fork"])
def test_ranks_that_get_one_loader_share_its_order(ds: LMDBDataset, tmp_path: Path, method: str) -> None:
    loader = make(ds, shard="auto", num_threads=1)
    start_processes(of_a_copy, (loader, str(tmp_path)), nprocs=2, start_method=method)  # type: ignore[no-untyped-call]
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == [*range(COUNT)]
    expected = [n for n, _ in seen(Loader(ds, 8, shuffle=True, seed=loader.seed))]
    assert parts == [expected[0::2], expected[1::2]]


@pytest.mark.parametrize("options", [{}, {"order": "quasi_random"}, {"weights": [1.0] * COUNT}])
def test_ranks_that_cannot_agree_are_an_error_with_the_line(ds: LMDBDataset, options: dict[str, Any]) -> None:
    given = {"shuffle": None if options else True, **options}
    loader = make(ds, shard=(1, 4), **given)
    for read in (lambda: next(iter(loader)), loader.state_dict, lambda: next(iter(pickle.loads(pickle.dumps(loader))))):
        with pytest.raises(OptionError, match=r"shard=\(1, 4\).*Write Loader\(..., seed=0\)"):
            read()
    assert len(loader) == 2 and len(list(make(ds, shard=(1, 4), seed=0, **given))) == 2
    loader.load_state_dict(make(ds, shard=(0, 4), seed=9, **given).state_dict())
    assert loader.seed == 9 and len(list(loader)) == 2
