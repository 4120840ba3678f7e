"""What frameworks find on a Loader, and what DataLoaders that they build from it deliver: the Loader's batches."""

from __future__ import annotations

import inspect
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop

COUNT = 23


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    path = tmp_path_factory.mktemp("samplers") / "d.lmdb"
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), np.uint8)
    lmdbloader.write(({"image": pictures[i], "label": i} for i in range(COUNT)), path)
    return LMDBDataset(path)


def loader_of(ds: LMDBDataset, **options: Any) -> Loader:
    return Loader(ds, 4, transforms=[RandomCrop(8)], **{"order": "random", "seed": 0, **options})


def rebuilt(loader: Loader, batch_sampler: Any = None) -> DataLoader[Any]:
    """Return the DataLoader that a framework builds from one that it was given."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler or loader.batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
    )


def same(found: Any, expected: Any) -> bool:
    found, expected = list(found), list(expected)
    return len(found) == len(expected) and all(
        torch.equal(a.image, b.image) and torch.equal(a.label, b.label) for a, b in zip(found, expected, strict=True)
    )


def test_a_loader_has_what_frameworks_look_for(ds: LMDBDataset) -> None:
    loader = loader_of(ds, drop_last=True)
    assert isinstance(loader, DataLoader)
    names = {name for name in vars(DataLoader(ds)) if not name.startswith("_DataLoader__")}
    assert [name for name in sorted(names) if not hasattr(loader, name)] == []
    assert loader.batch_sampler.batch_size == loader.batch_size == 4
    assert loader.batch_sampler.drop_last is loader.drop_last is True
    assert len(loader.batch_sampler) == len(loader) == COUNT // 4 and len(loader.sampler) == COUNT // 4 * 4
    assert isinstance(loader.batch_sampler, BatchSampler)


@pytest.mark.parametrize("order", ["random", "sequential", "quasi_random"])
@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_the_sampler_says_what_the_order_is(ds: LMDBDataset, order: Any, shard: Any) -> None:
    sampler = loader_of(ds, order=order, shard=shard).sampler
    assert isinstance(sampler, SequentialSampler) == (order == "sequential")
    assert isinstance(sampler, DistributedSampler) == (shard is not None)
    if isinstance(sampler, DistributedSampler):
        assert (sampler.rank, sampler.num_replicas) == shard
        assert len(sampler) == COUNT - 12


def test_setting_the_epoch_of_the_sampler_is_that_of_the_loader(ds: LMDBDataset) -> None:
    loader, other, third = loader_of(ds), loader_of(ds), loader_of(ds)
    loader.sampler.set_epoch(3)
    other.set_epoch(3)
    third.batch_sampler.set_epoch(3)
    expected = list(loader_of(ds)), list(other)
    assert same(loader, expected[1]) and same(third, expected[1]) and not same(expected[0], expected[1])


@pytest.mark.parametrize("by", [lambda loader: loader, lambda loader: loader.sampler])
def test_an_iterator_without_a_batch_takes_the_epoch_that_is_set(ds: LMDBDataset, by: Any) -> None:
    expected, loader = loader_of(ds), loader_of(ds)
    expected.set_epoch(2)
    batches = iter(loader)  # as Lightning: the iterator, then the epoch
    by(loader).set_epoch(2)
    assert same(batches, expected)
    assert loader.state_dict()["epoch"] == 3
    batches = iter(loader)
    next(batches)
    by(loader).set_epoch(2)  # too late for this one: it is that of the next iteration
    assert loader.state_dict()["position"] == 4
    expected.set_epoch(3)
    assert same(batches, list(expected)[1:])
    by(loader).set_epoch(3)
    expected.set_epoch(3)
    assert same(loader, expected)


def test_a_restored_epoch_keeps_its_place_if_the_sampler_names_it(ds: LMDBDataset) -> None:
    first, loader = loader_of(ds), loader_of(ds)
    rest = iter(first)
    next(rest)
    loader.load_state_dict(first.state_dict())
    batches = iter(loader)
    for _ in range(2):
        loader.sampler.set_epoch(0)
    assert same(batches, rest)


def test_a_rebuilt_loader_gives_the_same_batches_epoch_for_epoch(ds: LMDBDataset) -> None:
    expected, loader = loader_of(ds), loader_of(ds)
    other = rebuilt(loader)
    for _ in range(3):
        assert same(other, expected)
    assert len(other) == len(expected)


class Skip:
    """A batch sampler without the first batches of another, as Accelerate's."""

    def __init__(self, batch_sampler: Any, count: int) -> None:
        self.batch_sampler, self.count = batch_sampler, count

    def __iter__(self) -> Any:
        return (numbers for step, numbers in enumerate(self.batch_sampler) if step >= self.count)


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_batches_that_are_skipped_are_not_read(ds: LMDBDataset, count: int) -> None:
    expected, loader = loader_of(ds), loader_of(ds)
    expected.set_epoch(2)
    loader.set_epoch(2)
    loader.time_stages()
    assert same(rebuilt(loader, Skip(loader.batch_sampler, count)), list(expected)[count:])
    assert loader.stage_times().num_samples == max(COUNT - 4 * count, 0)


@pytest.mark.parametrize("split", [lambda tickets: [*tickets[0], *tickets[1]], lambda tickets: len(tickets[0])])
def test_dividing_batches_a_second_time_is_an_error_with_the_line(ds: LMDBDataset, split: Any) -> None:
    with pytest.raises(OptionError, match=r'write Loader\(..., shard="auto"\)'):
        split(list(loader_of(ds).batch_sampler))


def test_every_other_batch_is_an_error_with_the_line(ds: LMDBDataset) -> None:
    loader = loader_of(ds)
    with pytest.raises(OptionError, match=r'skips batches.*shard="auto"'):
        list(rebuilt(loader, list(loader.batch_sampler)[::2]))


@pytest.mark.parametrize("sampler", [DistributedSampler, SequentialSampler, RandomSampler])
def test_samples_chosen_by_others_are_an_error_with_the_line(ds: LMDBDataset, sampler: Any) -> None:
    options = {"num_replicas": 2, "rank": 0} if sampler is DistributedSampler else {}
    loader = loader_of(ds)
    other = DataLoader(loader.dataset, 4, sampler=sampler(ds, **options), collate_fn=loader.collate_fn)
    with pytest.raises(OptionError, match=r'lmdbloader.collate.*shard="auto"'):
        next(iter(other))
    with pytest.raises(OptionError, match=r'chooses the samples itself.*shard="auto"'):
        next(iter(DataLoader(loader.dataset, 4, sampler=loader.sampler, collate_fn=loader.collate_fn)))


def test_worker_processes_of_others_are_an_error(ds: LMDBDataset) -> None:
    (ticket, *_) = loader_of(ds).batch_sampler
    with pytest.raises(OptionError, match="reads it in worker processes"):
        pickle.dumps(ticket)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in inspect.signature(Loader).parameters if name != "foreign"),
        *("batch_sampler", "collate_fn", "epoch", "generator", "num_workers", "persistent_workers"),
        *("sampler", "worker_init_fn"),
    ],
)
def test_what_a_loader_would_not_notice_cannot_be_set(ds: LMDBDataset, name: str) -> None:
    loader = loader_of(ds)
    for owner in (loader, loader.sampler, loader.batch_sampler, loader_of(ds, shard=(0, 2)).sampler):
        with pytest.raises(OptionError, match=rf"{name} = .*it cannot change"):
            setattr(owner, name, None)


def test_lightnings_worker_init_fn_is_taken(ds: LMDBDataset) -> None:
    def prepare(worker: int, rank: int) -> None: ...

    prepare.__module__ = "lightning_fabric.utilities.seed"
    loader_of(ds).worker_init_fn = partial(prepare, rank=0)
    with pytest.raises(OptionError, match="worker_init_fn"):
        loader_of(ds).worker_init_fn = prepare
