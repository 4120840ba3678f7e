"""dataloader(): keywords that are passed through, and the settings that `tune` found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from payloads import write_columns
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    default_collate,
)

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.batch.collate import collate
from lmdbloader.loader import torch_loader, tuning_cache

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


def test_settings_that_are_not_given_are_those_of_torch_but_for_collating(ds: LMDBDataset, cache: Path) -> None:
    loader = lmdbloader.dataloader(ds, 4, persistent_workers=True)
    assert loader.num_workers == 0 and not loader.persistent_workers
    assert loader.collate_fn is collate
    assert loader.pin_memory == (torch_loader.accelerator() is not None)


def test_keywords_are_passed_through_and_win(ds: LMDBDataset, cache: Path) -> None:
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


def test_without_a_batch_size_samples_come_alone(ds: LMDBDataset, cache: Path) -> None:
    loader = lmdbloader.dataloader(ds, None, sampler=[3, 1])

    assert loader.batch_size is None
    assert [(s.number, s.image.shape) for s in loader] == [(3, (3, 6, 4)), (1, (3, 6, 4))]


def test_the_result_of_tune_is_taken(ds: LMDBDataset, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loader, "accelerator", lambda: torch.device("cuda"))
    tuning_cache.remember_workers(tuning_cache.case_of(ds, 4), tuning_cache.Workers(2, pin_memory=False))
    loader = lmdbloader.dataloader(ds, 4)
    assert (loader.num_workers, loader.pin_memory) == (2, False)

    assert lmdbloader.dataloader(ds, 4, num_workers=0).pin_memory  # the result is for its number of workers
    assert lmdbloader.dataloader(ds, 4, pin_memory=True).pin_memory
    tuning_cache.remember_workers(tuning_cache.case_of(ds, 8), tuning_cache.Workers(0))
    assert lmdbloader.dataloader(ds, 8).pin_memory  # not measured: on
