"""Workers of `write`: the same files for any number and kind of them, and failures that name their sample."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from light_samples import COUNT, Pictures, die, drawn, fail, picture, prepared
from torch.utils.data import Dataset

from lmdbloader import LMDBDataset, fields, write
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


# --- tasks ---


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


@pytest.mark.parametrize("crew", CREWS)
def test_a_sample_that_does_not_fit_is_named(tmp_path: Path, crew: str) -> None:
    samples = [{"image": picture(i), "label": "none" if i == 222 else i} for i in range(COUNT)]
    with pytest.raises(OptionError, match=r"sample 222, field 'label': 'none' where the first sample had int"):
        write(samples, tmp_path / "out", prepare=dict, **CREWS[crew])
    assert os.listdir(tmp_path) == []


def test_a_worker_that_dies_is_named_with_its_sample(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"was killed.* while converting sample 200\..* Write again with the same"):
        write(Pictures(200, die), tmp_path / "out", prepare=prepared, workers=2)


@pytest.mark.parametrize("options", [{}, {"workers": 2, "threads": True}], ids=["alone", "threads"])
def test_boxes_that_are_shares_of_the_sides_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    share, pixels, corner = [0.1, 0.2, 0.5, 0.9], [1, 1, 4, 5], [0, 0, 1, 1]
    samples = [{"image": picture(i), "boxes": [pixels, share] if i % 2 else [corner]} for i in range(COUNT)]
    kinds = {"image": fields.Image(), "boxes": fields.Boxes()}
    write(samples, tmp_path / "out", fields=kinds, **options)
    samples[200] = {"image": picture(0), "boxes": [share]}
    with pytest.raises(OptionError, match="sample 200, field 'boxes'"):
        write(samples, tmp_path / "refused", fields=kinds, **options)
