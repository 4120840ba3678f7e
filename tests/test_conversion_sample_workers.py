"""Workers of `write`: the same files for any number and kind of them, and failures that name their sample."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from light_samples import COUNT, Pictures, die, drawn, fail, numbered, picture, prepared
from torch.utils.data import Dataset

from lmdbloader import LMDBDataset, fields, write
from lmdbloader.conversion import pool
from lmdbloader.conversion.sample_workers import cut_tasks
from lmdbloader.errors import OptionError, WorkerError

FILES = ("data.mdb", "index.arrow", "manifest.json")
CREWS: dict[str, dict[str, Any]] = {
    "processes": {"workers": 2},
    "threads": {"workers": 3, "threads": True},
}


def content(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in FILES]


class TorchPictures(Pictures, Dataset[Any]):
    """A dataset of torch, which a process imports torch for."""


SOURCES: dict[str, Callable[[], Any]] = {
    "dataset": TorchPictures,
    "list": lambda: [Pictures()[i] for i in range(COUNT)],
}


@pytest.mark.parametrize("crew", CREWS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_files_do_not_depend_on_the_workers(tmp_path: Path, source: str, crew: str) -> None:
    write(SOURCES[source](), tmp_path / "one", prepare=prepared)
    write(SOURCES[source](), tmp_path / "many", prepare=prepared, **CREWS[crew])
    assert content(tmp_path / "one") == content(tmp_path / "many")
    assert len(LMDBDataset(tmp_path / "many")) == COUNT


@pytest.mark.parametrize("options", [{}, {"write_mode": "jpg"}, {"write_mode": "proportion", "seed": 4}], ids=str)
def test_samples_of_any_size_and_storage_are_the_same_in_processes(tmp_path: Path, options: dict[str, Any]) -> None:
    write(range(COUNT), tmp_path / "one", prepare=drawn, **options)
    write(range(COUNT), tmp_path / "many", prepare=drawn, workers=2, **options)
    assert content(tmp_path / "one") == content(tmp_path / "many")


def test_tensors_in_a_list_are_sent_to_processes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one tensor, whose memory pickle would send whole with each task."""
    sent, send = [], pool._send_memory

    def noted(pieces: list[Any], connection: Any) -> None:
        sent.append(sum(map(len, pieces)))
        send(pieces, connection)

    monkeypatch.setattr(pool, "_send_memory", noted)
    images = torch.arange(COUNT * 300, dtype=torch.int64).to(torch.uint8).reshape(COUNT, 3, 10, 10)
    samples = [{"image": images[i], "more": [{"number": torch.tensor(i)}]} for i in range(COUNT)]
    write(samples, tmp_path / "one", prepare=numbered)
    write(samples, tmp_path / "many", prepare=numbered, workers=2)
    assert content(tmp_path / "one") == content(tmp_path / "many")
    assert sent and max(sent) < images.nbytes


# --- tasks ---


@given(st.integers(1, 20), st.integers(0, 60), st.data())
def test_tasks_have_the_same_bounds_from_wherever_they_begin(first: int, more: int, data: st.DataObject) -> None:
    end = first + more
    whole = cut_tasks(first, 0, end)
    assert [number for task in whole for number in task] == list(range(end))
    begin = data.draw(st.integers(0, end))
    rest = cut_tasks(first, begin, end)
    assert [number for task in rest for number in task] == list(range(begin, end))
    assert [task.stop for task in rest] == [task.stop for task in whole if task.stop > begin]


# --- failures ---


def test_an_exception_of_the_dataset_in_a_process_names_the_sample(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"converting sample 200 failed:[\s\S]*ZeroDivisionError: the lamp is broken"):
        write(Pictures(200, fail), tmp_path / "out", prepare=prepared, workers=2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options", [{}, {"workers": 2, "threads": True}], ids=["alone", "threads"])
def test_an_exception_of_the_dataset_in_this_process_passes(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError, match="the lamp is broken"):
        write(Pictures(200, fail), tmp_path / "out", prepare=prepared, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize("at", [3, 200])
@pytest.mark.parametrize("options", [{}, {"workers": 2, "threads": True}], ids=["alone", "threads"])
def test_an_exception_of_the_dataset_has_a_note_with_its_sample(
    tmp_path: Path, options: dict[str, Any], at: int
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        write(Pictures(at, fail), tmp_path / "out", prepare=prepared, **options)
    assert caught.value.__notes__ == [f"lmdbloader.write was at sample {at}."]


@pytest.mark.parametrize("crew", CREWS)
def test_a_sample_that_does_not_fit_is_named(tmp_path: Path, crew: str) -> None:
    samples = [{"image": picture(i), "label": "none" if i == 222 else i} for i in range(COUNT)]
    with pytest.raises(OptionError, match=r"sample 222, field 'label': 'none' where the first sample had int"):
        write(samples, tmp_path / "out", prepare=dict, **CREWS[crew])
    assert os.listdir(tmp_path) == []


def test_a_worker_that_dies_is_named_with_its_sample(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"was killed.* while converting sample 200\..* Write again with the same"):
        write(Pictures(200, die), tmp_path / "out", prepare=prepared, workers=2)


@pytest.mark.parametrize("workers", [-1, 1.5, "two", True])
def test_numbers_of_workers_that_make_no_sense(tmp_path: Path, workers: Any) -> None:
    with pytest.raises(OptionError, match=r"workers=.* a whole number"):
        write([{"x": 1}], tmp_path / "out", workers=workers)


def test_threads_without_their_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="threads=True has no effect without workers: give their number"):
        write([{"x": 1}], tmp_path / "out", threads=True)
    write([{"x": 1}], tmp_path / "out", threads=True, workers=0)


def test_an_iterator_has_no_workers(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers=2"):
        write(iter([{"x": 1}]), tmp_path / "out", workers=2)


@pytest.mark.parametrize("options", [{}, {"workers": 2, "threads": True}], ids=["alone", "threads"])
def test_boxes_that_are_shares_of_the_sides_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    share, pixels, corner = [0.1, 0.2, 0.5, 0.9], [1, 1, 4, 5], [0, 0, 1, 1]
    samples = [{"image": picture(i), "boxes": [pixels, share] if i % 2 else [corner]} for i in range(COUNT)]
    kinds = {"image": fields.Image(), "boxes": fields.Boxes()}
    write(samples, tmp_path / "out", fields=kinds, **options)
    samples[200] = {"image": picture(0), "boxes": [share]}
    with pytest.raises(OptionError, match="sample 200, field 'boxes'"):
        write(samples, tmp_path / "refused", fields=kinds, **options)
