"""dataloader(): keywords that are passed through, settings that are measured once and remembered."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from payloads import write_columns
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    default_collate,
)

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.batch.collate import collate
from lmdbloader.loader import torch_loader, tuning_cache
from lmdbloader.transforms import RandomCrop

COUNT = 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_columns(tmp_path_factory.mktemp("datasets") / "d", COUNT)


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember measurements in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/lmdbloader/settings.json"


class Speeds:
    """Stands in for measuring, and counts the measurements.

    Attributes:
        measured: The numbers of workers that were tried, in order.
    """

    def __init__(self, speed_of: dict[int, float]) -> None:
        self.speed_of = speed_of
        self.measured: list[int] = []

    def __call__(self, dataset: Dataset[Any], batch_size: int | None, collate_fn: Any, num_workers: int) -> float:
        self.measured.append(num_workers)
        return self.speed_of[num_workers]


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    """Measuring finds one worker best, on a machine of two cores."""
    stand_in = Speeds({0: 100, 1: 300, 2: 310})
    monkeypatch.setattr(torch_loader, "_speed", stand_in)
    monkeypatch.setattr(torch_loader, "_candidates", lambda: [1, 2])
    return stand_in


@pytest.mark.parametrize(
    "dataset",
    [
        lambda ds: ds,
        lambda ds: ds[:8],
        lambda ds: Subset(ds, range(8)),
        lambda ds: ConcatDataset([ds[:5], ds[5:8]]),
        lambda ds: Subset(ConcatDataset([ds, ds]), range(8)),
    ],
    ids=["dataset", "view", "subset", "concatenation", "subset of a concatenation"],
)
def test_datasets_and_datasets_made_of_them_are_loaded(
    ds: LMDBDataset, cache: Path, dataset: Callable[[LMDBDataset], Dataset[Any]]
) -> None:
    loader = lmdbloader.dataloader(dataset(ds), 4)

    assert isinstance(loader, DataLoader)
    batches = list(loader)[:2]
    assert [batch.number.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[1].image.equal(torch.stack([ds[i].image for i in range(4, 8)]))


def test_settings_that_are_not_given_are_tuned(ds: LMDBDataset, cache: Path, speeds: Speeds) -> None:
    loader = lmdbloader.dataloader(ds, 4)

    assert loader.num_workers == 1
    assert loader.collate_fn is collate
    assert loader.pin_memory == (torch_loader.accelerator() is not None)
    assert not loader.persistent_workers  # as in torch: workers that live on would not see a transform set later


@pytest.mark.parametrize(
    "options",
    [{"persistent_workers": True}, {"prefetch_factor": 4}, {"timeout": 9}, {"multiprocessing_context": "spawn"}],
    ids=str,
)
def test_options_of_workers_are_accepted_where_no_workers_are_best(
    ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Which number is best depends on the machine, and the line should run on every one."""
    monkeypatch.setattr(torch_loader, "tuned_workers", lambda *arguments: tuning_cache.Workers(0))
    assert len(list(lmdbloader.dataloader(ds, 4, **options))) == -(-len(ds) // 4)
    if "timeout" not in options:  # torch asserts that one when it reads
        with pytest.raises(ValueError, match="num_workers"):
            lmdbloader.dataloader(ds, 4, num_workers=0, **options)


def test_keywords_are_passed_through_and_win(ds: LMDBDataset, cache: Path, speeds: Speeds) -> None:
    generator = torch.Generator().manual_seed(5)
    loader = lmdbloader.dataloader(
        ds,
        6,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        persistent_workers=False,
        prefetch_factor=5,
        collate_fn=default_collate,
        pin_memory=False,
        generator=generator,
        timeout=7,
    )

    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (6, True, 1)
    assert (loader.persistent_workers, loader.prefetch_factor, loader.timeout) == (False, 5, 7)
    assert loader.collate_fn is default_collate
    assert loader.generator is generator
    assert speeds.measured == []


def test_an_unknown_keyword_is_refused(ds: LMDBDataset) -> None:
    with pytest.raises(TypeError, match="shufle"):
        lmdbloader.dataloader(ds, 4, num_workers=0, shufle=True)


def test_samplers_are_passed_through(ds: LMDBDataset) -> None:
    loader = lmdbloader.dataloader(ds, 2, sampler=[7, 3, 5], num_workers=0)
    assert [batch.number.tolist() for batch in loader] == [[7, 3], [5]]

    loader = lmdbloader.dataloader(ds, batch_sampler=[[1], [4, 2]], num_workers=0)
    assert [batch.number.tolist() for batch in loader] == [[1], [4, 2]]


def test_without_a_batch_size_samples_come_alone(ds: LMDBDataset, cache: Path) -> None:
    loader = lmdbloader.dataloader(ds, None, sampler=[3, 1])

    assert loader.batch_size is None
    assert [(s.number, s.image.shape) for s in loader] == [(3, (3, 6, 4)), (1, (3, 6, 4))]


def test_a_batch_sampler_gives_the_batch_size_that_is_measured(
    ds: LMDBDataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int | None] = []

    def speed(dataset: Dataset[Any], batch_size: int | None, collate_fn: Any, num_workers: int) -> float:
        sizes.append(batch_size)
        return 1.0

    monkeypatch.setattr(torch_loader, "_speed", speed)
    sampler = BatchSampler(SequentialSampler(ds), 16, drop_last=False)
    assert len(list(lmdbloader.dataloader(ds, batch_sampler=sampler))) == 2
    assert set(sizes) == {16}


def test_the_number_of_workers_is_measured_once(ds: LMDBDataset, path: Path, cache: Path, speeds: Speeds) -> None:
    lmdbloader.dataloader(ds, 4)
    assert speeds.measured == [0, 1, 2]

    assert lmdbloader.dataloader(LMDBDataset(path), 4, shuffle=True).num_workers == 1
    assert speeds.measured == [0, 1, 2]
    assert list(json.loads(cache.read_text()).values()) == [[1, None]]


def test_another_collate_function_is_measured_again(ds: LMDBDataset, cache: Path, speeds: Speeds) -> None:
    lmdbloader.dataloader(ds, 4)
    for times in (6, 6):
        lmdbloader.dataloader(ds, 4, collate_fn=list)
        assert len(speeds.measured) == times


def test_the_result_of_tune_is_taken(
    ds: LMDBDataset, cache: Path, speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_loader, "accelerator", lambda: torch.device("cuda"))
    tuning_cache.remember_workers(tuning_cache.case_of(ds, 4), tuning_cache.Workers(2, pin_memory=False))
    loader = lmdbloader.dataloader(ds, 4)
    assert (loader.num_workers, loader.pin_memory) == (2, False)
    assert speeds.measured == []

    assert lmdbloader.dataloader(ds, 4, num_workers=0).pin_memory  # the result is for its number of workers
    assert lmdbloader.dataloader(ds, 4, pin_memory=True).pin_memory
    tuning_cache.remember_workers(tuning_cache.case_of(ds, 8), tuning_cache.Workers(0))
    assert lmdbloader.dataloader(ds, 8).pin_memory  # not measured: on


def test_pinned_memory_that_was_found_best_is_not_used_without_an_accelerator(ds: LMDBDataset, cache: Path) -> None:
    tuning_cache.remember_workers(tuning_cache.case_of(ds, 4), tuning_cache.Workers(1, pin_memory=True))
    loader = lmdbloader.dataloader(ds, 4)

    assert (loader.num_workers, loader.pin_memory) == (1, torch_loader.accelerator() is not None)


def test_another_dataset_batch_size_field_or_transform_is_measured_again(
    ds: LMDBDataset, path: Path, cache: Path, speeds: Speeds
) -> None:
    def transform(sample: Any) -> Any:
        return sample.number

    others: list[tuple[Dataset[Any], int]] = [
        (ds, 4),
        (ds, 8),
        (ds[:10], 4),
        (ds.transformed([RandomCrop(2, fields=("image",))]), 4),
        (LMDBDataset(path, fields=["image"]), 4),
        (LMDBDataset(path, transform=transform), 4),
        (ConcatDataset([ds[:4], ds[4:]]), 4),
        (ConcatDataset([ds[:4].transformed([RandomCrop(2, fields=("image",))]), ds[4:]]), 4),
    ]
    for count, (other, batch_size) in enumerate(others, 1):
        lmdbloader.dataloader(other, batch_size)
        assert speeds.measured == [0, 1, 2] * count


def test_workers_that_bring_little_are_not_taken(ds: LMDBDataset, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = Speeds({0: 100, 1: 105, 2: 900})
    monkeypatch.setattr(torch_loader, "_speed", stand_in)
    monkeypatch.setattr(torch_loader, "_candidates", lambda: [1, 2])

    assert lmdbloader.dataloader(ds, 4).num_workers == 0
    assert stand_in.measured == [0, 1]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_dataset_of_one_batch_gets_no_workers(ds: LMDBDataset, cache: Path, count: int) -> None:
    """There is nothing to measure on; starting workers would cost more than reading."""
    loader = lmdbloader.dataloader(ds[:count], 8)

    assert loader.num_workers == 0
    assert sum(len(batch.number) for batch in loader) == count


def test_measuring_moves_no_random_state(ds: LMDBDataset, cache: Path) -> None:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002 - people still draw from NumPy's one generator
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    lmdbloader.dataloader(ds, 4)

    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


def test_dataloader_takes_torchs_own_keywords() -> None:
    """Every keyword that torch's DataLoader has can be given by name, and none of them means something else here."""
    own = inspect.signature(lmdbloader.dataloader).parameters
    theirs = inspect.signature(DataLoader.__init__).parameters

    assert list(own)[:2] == ["dataset", "batch_size"]
    assert {name for name, p in own.items() if p.kind is not inspect.Parameter.VAR_KEYWORD} & set(theirs) == {
        "dataset",
        "batch_size",
    }
