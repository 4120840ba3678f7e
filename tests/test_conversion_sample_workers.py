"""Workers of `write`: the same files for any number and kind of them, and failures that name their sample."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from light_samples import COUNT, Pictures, die, drawn, fail, numbered, picture, prepared
from torch.utils.data import Dataset, Subset

from lmdbloader import LMDBDataset, fields, write
from lmdbloader.conversion import pool
from lmdbloader.conversion.sample_workers import Bounds, own
from lmdbloader.errors import OptionError, WorkerError

FILES = ("data.mdb", "index.arrow", "manifest.json")
CREWS: dict[str, dict[str, Any]] = {
    "processes": {"workers": 2},
    "threads": {"workers": 3, "threads": True},
}
KINDS = {"image": fields.Image(), "boxes": fields.Boxes()}


def content(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in FILES]


class TorchPictures(Pictures, Dataset[Any]):
    """A dataset of torch, which a process imports torch for."""


SOURCES: dict[str, Callable[[], Any]] = {
    "dataset": TorchPictures,
    "subset": lambda: Subset(Pictures(), range(COUNT)),
    "list": lambda: [Pictures()[i] for i in range(COUNT)],
    "tuple": lambda: tuple(Pictures()[i] for i in range(COUNT)),
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


@pytest.mark.parametrize("has_prepare", [True, False])
def test_an_iterator_gives_the_same_files_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_prepare: bool
) -> None:
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 2000)
    options: dict[str, Any] = {"prepare": drawn} if has_prepare else {}
    makes: Callable[[int], Any] = int if has_prepare else drawn
    readers = set()

    def samples() -> Iterator[Any]:
        for number in range(COUNT):
            readers.add(threading.current_thread())
            yield makes(number)

    write(samples(), tmp_path / "one", **options)
    write(samples(), tmp_path / "many", workers=3, **options)
    assert content(tmp_path / "one") == content(tmp_path / "many")
    assert readers == {threading.current_thread()}  # an iterator may belong to its thread


def test_an_iterator_is_read_ahead_only_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 2000)
    begun = threading.Semaphore(0)
    asked, most = [0], [0]

    def samples() -> Iterator[Any]:
        for number in range(200):
            asked[0] += 1
            yield {"image": np.full((10, 10, 3), number % 256, np.uint8)}

    def done(count: int) -> None:
        begun.release()
        most[0] = max(most[0], asked[0] - sum(written))
        written.append(count)

    written: list[int] = []
    write(samples(), tmp_path / "out", workers=2, progress=done)
    assert sum(written) == 200
    assert most[0] <= 7 * 5  # a first group, and at most three tasks that wait for two threads


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
    bounds, end = Bounds.after(first), first + more
    whole = bounds.cut(0, end)
    assert [number for task in whole for number in task] == list(range(end))
    begin = data.draw(st.integers(0, end))
    rest = bounds.cut(begin, end)
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


class Counted(Pictures):
    """A dataset whose second task waits for others to begin before it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.has_begun = 0, threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if index == 64:
            self.has_begun.wait(60)
            raise ZeroDivisionError("the lamp is broken")
        if index == 130:
            self.has_begun.set()
        if index > 130:
            threading.Event().wait(0.2)  # so slow that the other threads are told to stop
        return super().__getitem__(index)


def test_threads_do_not_end_their_tasks_after_an_error(tmp_path: Path) -> None:
    samples = Counted()
    with pytest.raises(ZeroDivisionError, match="the lamp is broken"):
        write(samples, tmp_path / "out", prepare=prepared, workers=2, threads=True)
    assert samples.read < 64 + 30


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    write(range(COUNT), tmp_path / "out", prepare=drawn, progress=True)
    assert ("of 300 samples" in screen.getvalue()) == is_terminal


# --- copies of samples that are read ahead ---


def test_a_copy_shares_nothing_that_can_be_filled_again() -> None:
    array, buffer, inner = np.zeros(3), bytearray(b"abc"), [1]
    copied = own({"a": array, "b": (buffer, inner)}, 0)
    array[:] = 1
    buffer[:] = b"xyz"
    inner.append(2)
    assert copied["a"].tolist() == [0, 0, 0] and copied["b"] == (b"abc", [1])


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    locks = ({"number": i, "other": threading.Lock()} for i in range(COUNT))
    with pytest.raises(OptionError, match=r"sample 64: a value of type lock cannot be copied .* Leave workers out\."):
        write(locks, tmp_path / "out", prepare=lambda s: {"number": s["number"]}, workers=2)


# --- the unit of boxes ---


def boxed(number: int, boxes: Any) -> dict[str, Any]:
    return {"image": picture(number), "boxes": np.asarray(boxes, np.float32).reshape(-1, 4)}


@pytest.mark.parametrize("options", [{}, *CREWS.values()], ids=["none", *CREWS])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_boxes_are_shares_until_one_reaches_beyond_the_first_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_indexed: bool
) -> None:
    """Also if that is shown by a group, or by a process, that the first samples are not in."""
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 1000)
    share, pixels = [0.1, 0.2, 0.5, 0.9], [1, 1, 4, 5]
    empty = [boxed(i, []) for i in range(60)]

    def written(samples: list[dict[str, Any]], name: str) -> list[Any]:
        write(samples if is_indexed else iter(samples), tmp_path / name, fields=KINDS, **options)
        return [sample["boxes"].tolist() for sample in LMDBDataset(tmp_path / name)]

    with pytest.raises(OptionError, match=r"sample 60, field 'boxes': all boxes so far, such as \[0\.1.* one pixel"):
        written([*empty, boxed(60, share), boxed(61, pixels)], "refused")
    assert len(written([*empty, boxed(60, pixels), *empty, boxed(121, share)], "later")[-1]) == 1
    assert len(written([*empty, boxed(60, pixels), boxed(61, share)], "next")[-1]) == 1
