"""Remembered measurements: the conditions they are valid for, damaged files, and several processes at once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.loader import loader as loader_module
from lmdbloader.loader import tuning_cache
from lmdbloader.loader.tuning_cache import Case, Workers, case_of
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomDihedral, Resize, ToDtype

CASE = Case(("here", 2, "2.4"), ("digest",), 8, ("fields", "as stored"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets") / "d"
    shades = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    lmdbloader.write([{"image": shades + i, "number": i} for i in range(20)], folder)
    return folder


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remember in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/lmdbloader/settings.json"


def test_a_measurement_is_remembered_for_its_own_case(file: Path) -> None:
    assert tuning_cache.recall_threads(CASE) is None
    assert tuning_cache.recall_workers(CASE) is None
    assert tuning_cache.remember_threads(CASE, 3, samples_per_s=1e4)
    assert tuning_cache.remember_workers(CASE, Workers(0, pin_memory=False))

    assert tuning_cache.recall_threads(CASE) == 3
    assert tuning_cache.recall_workers(CASE) == Workers(0, False)
    assert tuning_cache.settings_file() == file
    assert [p.name for p in file.parent.iterdir()] == ["settings.json"]
    for other in (
        Case(("there", 2, "2.4"), *_rest(CASE)),
        Case(("here", 4, "2.4"), *_rest(CASE)),
        Case(("here", 2, "2.5"), *_rest(CASE)),
        Case(CASE.machine, ("another",), 8, CASE.parts),
        Case(CASE.machine, CASE.datasets, 16, CASE.parts),
        Case(CASE.machine, CASE.datasets, None, CASE.parts),
        Case(CASE.machine, CASE.datasets, 8, ("fields", "64 x 64")),
    ):
        assert tuning_cache.recall_threads(other) is None
        assert tuning_cache.recall_workers(other) is None


def _rest(case: Case) -> Any:
    return case.datasets, case.batch_size, case.parts


def test_the_newest_measurement_counts(file: Path) -> None:
    for count in (4, 1):
        tuning_cache.remember_threads(CASE, count)
    assert tuning_cache.recall_threads(CASE) == 1
    (entry,) = json.loads(file.read_text())["entries"].values()
    assert (entry["kind"], entry["batch_size"], entry["datasets"], entry["cores"]) == ("threads", 8, ["digest"], 2)


def test_a_case_is_the_size_of_images_not_how_they_come_to_it(path: Path) -> None:
    ds = LMDBDataset(path)
    same = case_of(ds, 4, [RandomCrop(4)])
    assert case_of(ds, 4, [RandomDihedral(), CenterCrop((4, 4)), ToDtype(torch.float32, scale=True)]) == same
    assert case_of(ds.transformed([Resize(6), RandomCrop(4)]).scaled(), 4) == same
    assert case_of(LMDBDataset(path, io="pread"), 4, [RandomCrop(4)]) == same


class Folder(TensorDataset):
    """The attributes of torchvision's folders of images."""

    def __init__(self, root: str, transform: Any, target_transform: Any = None) -> None:
        super().__init__(torch.zeros(500))
        self.root, self.transform, self.target_transform = root, transform, target_transform


def test_a_case_is_of_a_dataset_and_the_fields_that_are_read(path: Path, tmp_path: Path) -> None:
    ds = LMDBDataset(path)
    shades = np.zeros((8, 8, 3), np.uint8)
    lmdbloader.write([{"image": shades, "number": i} for i in range(20)], tmp_path / "other")
    cases = [
        case_of(ds, 4),
        case_of(ds, 8),
        case_of(ds, None),
        case_of(ds, 4, [RandomCrop(5)]),
        case_of(ds, 4, [Resize(5)]),
        case_of(ds, 4, [], [str]),
        case_of(ds[:8], 4),
        case_of(LMDBDataset(path, fields=["image"]), 4),
        case_of(LMDBDataset(path, transform=tuple), 4),
        case_of(type("Own", (LMDBDataset,), {})(path), 4),
        case_of(LMDBDataset(tmp_path / "other"), 4),
        case_of(ConcatDataset([ds, ds]), 4),
        case_of(TensorDataset(torch.zeros(500)), 4),
        case_of(TensorDataset(torch.zeros(501)), 4),
        *[
            case_of(Folder(*own), 4)
            for own in [("/a", None), ("/b", None), ("/a", str), ("/a", tuple), ("/a", None, str)]
        ],
    ]
    assert len({case.key("threads") for case in cases} | {case.key("workers") for case in cases}) == 2 * len(cases)
    assert case_of(Subset(ds, range(20)), 4).datasets == (ds.reader.manifest.content_digest,)


def test_of_many_batches_the_number_does_not_matter(path: Path) -> None:
    """A measurement of a whole dataset is valid for its splits."""
    ds = LMDBDataset(path)
    many = ds.select(np.arange(6400) % 20)
    assert case_of(many, 4) == case_of(many[:300], 4) != case_of(many[:200], 4)


def test_the_loader_takes_the_measured_number(path: Path) -> None:
    ds = LMDBDataset(path)
    cores = Loader(ds, 4, shuffle=True).num_threads
    tuning_cache.remember_threads(case_of(ds, 4, [RandomCrop(4)]), 1)
    assert Loader(ds, 4, shuffle=True, transforms=[RandomCrop(4), RandomDihedral()]).num_threads == 1
    assert (
        Loader(ds, 4, shuffle=True).num_threads
        == Loader(ds, 5, shuffle=True, transforms=[RandomCrop(4)]).num_threads
        == cores
    )

    tuning_cache.remember_threads(case_of(ds, 4), 1000)  # on a machine that had more cores to give
    assert Loader(ds, 4, shuffle=True).num_threads == cores


@pytest.mark.parametrize("number", [0, -1, 10_000, 1.5, True, "2", None, [2]])
def test_an_absurd_number_is_not_used(file: Path, number: Any) -> None:
    tuning_cache.remember_threads(CASE, 2)
    tuning_cache.remember_workers(CASE, Workers(2))
    content = json.loads(file.read_text())
    for entry in content["entries"].values():
        entry.update(num_threads=number, num_workers=number or -1)
    file.write_text(json.dumps(content))

    assert tuning_cache.recall_threads(CASE) is None
    assert tuning_cache.recall_workers(CASE) is None


def test_more_workers_than_cores_were_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("count_cores", "count_own_cores"):
        monkeypatch.setattr(tuning_cache, name, lambda: 4)
    for count in (4, 5, 900):
        tuning_cache.remember_workers(CASE, Workers(count))
        assert tuning_cache.recall_workers(CASE) == (Workers(4) if count == 4 else None)


def test_processes_of_torchrun_take_their_share(
    path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cores, own = 8, [8]
    for module in (tuning_cache, loader_module):
        monkeypatch.setattr(module, "count_cores", lambda: cores)
    monkeypatch.setattr(tuning_cache, "count_own_cores", lambda: own[0])
    ds = LMDBDataset(path)

    def threads() -> int:
        loader = Loader(ds, 4, shuffle=True)
        request.addfinalizer(loader.close)
        return loader.num_threads

    assert threads() == 8
    own[0] = 2
    assert threads() == 2
    tuning_cache.remember_threads(case_of(ds, 4), 6)
    tuning_cache.remember_workers(CASE, Workers(6))
    assert threads() == 2
    assert tuning_cache.recall_workers(CASE) == Workers(2)
    tuning_cache.remember_threads(case_of(ds, 4), 1)
    assert threads() == 1
    own[0] = 8
    tuning_cache.remember_threads(case_of(ds, 4), 6)
    assert threads() == 6
    assert tuning_cache.recall_workers(CASE) == Workers(6)


@pytest.mark.parametrize("pin", [1, "yes", []])
def test_pinned_or_not_must_be_known(file: Path, pin: Any) -> None:
    tuning_cache.remember_workers(CASE, Workers(2))
    file.write_text(file.read_text().replace("null", json.dumps(pin)))
    assert tuning_cache.recall_workers(CASE) is None


GARBLED = [
    b"", b"{", b"\xff\xfe", b"[1, 2]", b"null", b"3", b'{"a": {}}', b"[" * 100_000, b'{"version": 1}',
    b'{"version": 1, "entries": [1]}', b'{"version": 2, "entries": {}}', b'{"version": 1, "entries": {"a": 1}}',
    b'{"0123": 2}',
]  # fmt: skip


@pytest.mark.parametrize("content", GARBLED, ids=range(len(GARBLED)))
def test_a_damaged_or_foreign_file_is_as_good_as_none(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)

    assert tuning_cache.recall_threads(CASE) is None
    assert tuning_cache.forget("digest") == 0
    assert tuning_cache.remember_threads(CASE, 2)
    assert tuning_cache.recall_threads(CASE) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(entry=JSON)
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_entry_makes_anything_fail(file: Path, entry: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {**entry, "num_threads": 7} if isinstance(entry, dict) else entry
    entries = {CASE.key("threads"): found, CASE.key("workers"): entry, "more": {"datasets": entry}}
    file.write_text(json.dumps({"version": 1, "entries": entries}))

    assert tuning_cache.recall_threads(CASE) in (None, 7)
    tuning_cache.recall_workers(CASE)
    tuning_cache.forget("digest")
    assert tuning_cache.remember_threads(CASE, 2)
    assert tuning_cache.recall_threads(CASE) == 2


def test_a_huge_file_is_not_read(file: Path) -> None:
    tuning_cache.remember_threads(CASE, 2)
    with file.open("a") as more:
        more.write(" " * 5 * 2**20)
    assert tuning_cache.recall_threads(CASE) is None


def test_a_home_that_cannot_be_written_to_only_means_measuring_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made in it, not even by root
    assert not tuning_cache.remember_threads(CASE, 2)
    assert tuning_cache.recall_threads(CASE) is None
    assert tuning_cache.forget("digest") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_without_a_home_nothing_is_written_where_one_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "also/relative")
    monkeypatch.chdir(tmp_path)
    assert tuning_cache.settings_file() is None
    assert not tuning_cache.remember_threads(CASE, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_cache.remember_threads(CASE, 2)

    def full(*arguments: Any) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not tuning_cache.remember_threads(CASE, 3)
    assert tuning_cache.recall_threads(CASE) == 2
    assert [p.name for p in file.parent.iterdir()] == ["settings.json"]


def test_a_dataset_is_forgotten_with_all_that_was_measured_of_it(path: Path) -> None:
    ds = LMDBDataset(path)
    tuning_cache.remember_threads(CASE, 2)
    for batch_size in (4, 8):
        tuning_cache.remember_threads(case_of(ds, batch_size), 1)
        tuning_cache.remember_workers(case_of(ConcatDataset([ds, ds]), batch_size), Workers(1))

    assert tuning_cache.forget(ds.reader.manifest.content_digest) == 4
    assert tuning_cache.recall_threads(case_of(ds, 4)) is None
    assert tuning_cache.recall_threads(CASE) == 2


def test_the_oldest_are_forgotten_when_there_are_very_many(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_cache, "_MOST_ENTRIES", 10)
    cases = [Case(CASE.machine, CASE.datasets, batch_size, ()) for batch_size in range(15)]
    for case in cases:
        tuning_cache.remember_threads(case, 2)
        tuning_cache.remember_threads(cases[0], 2)
    assert [tuning_cache.recall_threads(case) for case in cases] == [2, *[None] * 5, *[2] * 9]


def _remember_some(first: int) -> None:
    for batch_size in range(first, first + 10):
        assert tuning_cache.remember_threads(Case(CASE.machine, CASE.datasets, batch_size, ()), batch_size + 1)
        assert tuning_cache.recall_threads(Case(CASE.machine, CASE.datasets, batch_size, ())) == batch_size + 1


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_several_at_once_lose_no_entry_and_read_no_half_file(
    file: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_cache, "_LOCK_SECONDS", 60.0)  # the machine may be busy
    processes = ProcessPoolExecutor(4, mp_context=get_context("fork"))
    with ThreadPoolExecutor(4) if kind == "threads" else processes as pool:
        list(pool.map(_remember_some, range(0, 40, 10)))
    assert len(json.loads(file.read_text())["entries"]) == 40
    assert [p.name for p in file.parent.iterdir()] == ["settings.json"]


def test_the_key_of_a_dataset_does_not_depend_on_where_its_class_is_defined(tmp_path: Path) -> None:
    lmdbloader.write([{"image": np.zeros((2, 2), np.uint8)}], tmp_path / "db")
    assert "lmdbloader.dataset.LMDBDataset" in case_of(LMDBDataset(tmp_path / "db"), 4).parts
