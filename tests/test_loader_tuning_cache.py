"""Remembered measurements: the conditions that they are valid for, and damaged files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.loader import loader as loader_module
from lmdbloader.loader import tuning_cache
from lmdbloader.loader.tuning_cache import (
    Workers,
    case_of,
    recall_threads,
    recall_workers,
    remember_threads,
    remember_workers,
)
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomDihedral, Resize, ToDtype


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets") / "d"
    shades = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    lmdbloader.write([{"image": shades + i, "number": i} for i in range(20)], folder)
    return folder


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember in an empty folder, on a machine of eight cores."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (tuning_cache, loader_module):
        monkeypatch.setattr(module, "count_cores", lambda: 8)
    monkeypatch.setattr(tuning_cache, "count_own_cores", lambda: 8)
    return tmp_path / "cache/lmdbloader/settings.json"


def test_a_measurement_is_remembered_for_its_own_case(file: Path) -> None:
    assert (recall_threads("case"), recall_workers("case")) == (8, None)
    for count in (4, 3):
        remember_threads("case", count)
    remember_workers("case", Workers(0, pin_memory=False))
    assert (recall_threads("case"), recall_workers("case")) == (3, Workers(0, False))
    assert (recall_threads("other"), recall_workers("other")) == (8, None)
    assert [p.name for p in file.parent.iterdir()] == ["settings.json"]


def test_processes_that_write_at_once_leave_a_whole_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replace_later(*paths: Any) -> None:
        """Let another process write its own between this one's writing and its rename."""
        monkeypatch.setattr(os, "replace", replace)
        remember_threads("of another process", 3)
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_later)
    remember_threads("case", 4)
    assert recall_threads("case") == 4
    assert [p.name for p in file.parent.iterdir()] == ["settings.json"]


class Folder(TensorDataset):
    """The attributes of torchvision's folders of images."""

    def __init__(self, root: str, transform: Any) -> None:
        super().__init__(torch.zeros(500))
        self.root, self.transform = root, transform


def test_a_case_is_of_a_dataset_its_fields_and_the_size_of_images(path: Path, tmp_path: Path) -> None:
    ds = LMDBDataset(path)
    shades = np.zeros((8, 8, 3), np.uint8)
    lmdbloader.write([{"image": shades, "number": i} for i in range(20)], tmp_path / "other")
    cases = [
        case_of(ds, 4),
        case_of(ds, 8),
        case_of(ds, None),
        case_of(ds, 4, [RandomCrop(4)]),
        case_of(ds, 4, [Resize(5)]),
        case_of(ds, 4, [], [str]),
        case_of(ds[:8], 4),
        case_of(LMDBDataset(path, fields=["image"]), 4),
        case_of(LMDBDataset(path, transform=tuple), 4),
        case_of(type("Own", (LMDBDataset,), {})(path), 4),
        case_of(LMDBDataset(tmp_path / "other"), 4),
        case_of(ConcatDataset([ds, ds]), 4),
        case_of(Subset(ds, range(20)), 4),
        case_of(TensorDataset(torch.zeros(500)), 4),
        case_of(TensorDataset(torch.zeros(501)), 4),
        *[case_of(Folder(*own), 4) for own in [("/a", None), ("/b", None), ("/a", str)]],
    ]
    assert len(set(cases)) == len(cases)
    same = case_of(ds, 4, [RandomCrop(4)])
    assert case_of(ds, 4, [RandomDihedral(), CenterCrop((4, 4)), ToDtype(torch.float32, scale=True)]) == same
    assert case_of(ds.transformed([Resize(6), RandomCrop(4), ToDtype(torch.float32, True)]), 4) == same
    assert case_of(LMDBDataset(path, io="pread"), 4, [RandomCrop(4)]) == same
    # A measurement of a whole dataset is valid for its splits.
    many = ds.select(np.arange(6400) % 20)
    assert case_of(many, 4) == case_of(many[:300], 4) != case_of(many[:200], 4)


def test_the_loader_takes_the_measured_number_and_its_share_of_the_cores(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = LMDBDataset(path)

    def threads(*transforms: Any) -> int:
        loader = Loader(ds, 4, shuffle=True, transforms=transforms)
        loader.close()
        return loader.num_threads

    assert threads() == 8
    remember_threads(case_of(ds, 4, [RandomCrop(4)]), 1)
    remember_workers("case", Workers(6))
    assert threads(RandomCrop(4), RandomDihedral()) == 1
    assert threads() == threads(RandomCrop(5)) == 8
    remember_threads(case_of(ds, 4), 6)
    assert threads() == 6
    monkeypatch.setattr(tuning_cache, "count_own_cores", lambda: 2)  # as one of four processes of torchrun
    assert (threads(), threads(RandomCrop(4)), threads(RandomCrop(5))) == (2, 1, 2)
    assert recall_workers("case") == Workers(2)


GARBLED = [b"", b"{", b"\xff\xfe", b"[1, 2]", b"[" * 100_000]


@pytest.mark.parametrize("content", GARBLED, ids=range(len(GARBLED)))
def test_a_damaged_or_foreign_file_is_as_good_as_none(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert (recall_threads("case"), recall_workers("case")) == (8, None)
    remember_threads("case", 2)
    assert recall_threads("case") == 2
