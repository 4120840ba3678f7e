"""Single examples: a slow one is distinguished from a slow moment, and what it does to a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import lab
from lmdbloader.errors import OptionError
from lmdbloader.lab import ExampleTimes, example_times, time_examples
from lmdbloader.transforms import RandomCrop


class Timed:
    """A dataset whose examples take 1 ms of a clock of its own, with exceptions."""

    def __init__(self, length: int, slow: dict[int, float], moments: dict[int, float] | None = None) -> None:
        self.length, self.slow, self.moments = length, slow, moments or {}
        self.now = 0.0
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> int:
        self.now += self.moments.get(len(self.read), 0.0) + self.slow.get(number, 0.001)
        self.read.append(number)
        return number

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExampleTimes]:
    def measure(dataset: Timed, seconds: float = 100.0) -> ExampleTimes:
        monkeypatch.setattr(example_times, "time", dataset)
        return time_examples(dataset, 32, seconds=seconds)

    return measure


def test_a_slow_example_is_found_and_weighed(times: Callable[..., ExampleTimes]) -> None:
    found = times(Timed(500, {17: 0.2}))
    assert (found.num_timed, found.slowest, found.slowest_name) == (500, 17, None)
    assert found.p50_seconds == pytest.approx(0.001) and found.longest_seconds == pytest.approx(0.2)
    assert found.slowest_seconds == pytest.approx(0.2)
    text = str(found)
    assert "p99 1 ms" in text and "sample 17: 200 ms" in text and "231 ms instead of 32 ms" in text


def test_a_slow_moment_is_not_the_examples_fault(times: Callable[..., ExampleTimes]) -> None:
    found = times(Timed(500, {}, moments={40: 0.3}))
    assert found.longest_seconds == pytest.approx(0.301) and found.slowest_seconds == pytest.approx(0.001)
    assert times(Timed(500, {17: 0.05}, moments={40: 0.3})).slowest == 17


def test_the_p99_is_of_those_drawn(times: Callable[..., ExampleTimes]) -> None:
    found = times(Timed(1000, dict.fromkeys(range(30), 0.01)))
    assert found.p99_seconds == pytest.approx(0.01) and found.p50_seconds == pytest.approx(0.001)


def test_the_time_is_kept(times: Callable[..., ExampleTimes]) -> None:
    dataset = Timed(100_000, {}, None)
    assert times(dataset, seconds=0.1).num_timed == pytest.approx(50, abs=2)
    assert dataset.now < 0.2
    slow = Timed(10, dict.fromkeys(range(10), 100.0))
    assert times(slow, seconds=0.1).num_timed == 1
    assert len(slow.read) <= 1 + 1 + 5
    with pytest.raises(OptionError, match="the dataset is empty"):
        time_examples(Timed(0, {}), 8)


@pytest.fixture(scope="module")
def outlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 small images and one of 60 times as many pixels."""
    folder = tmp_path_factory.mktemp("outlier")
    rng = np.random.default_rng(0)
    for number in range(41):
        side = 500 if number == 23 else 64
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    made = tmp_path_factory.mktemp("made") / "outlier.lmdb"
    lmdbloader.convert(folder, made, codec="raw", workers=1)
    return made


def test_the_largest_examples_are_always_timed(outlier: Path) -> None:
    ds = lmdbloader.LMDBDataset(outlier)
    state = torch.random.get_rng_state()
    # There is no time to draw many, but for the largest; a busy machine may make the drawn one slower, not each time.
    found = [time_examples(ds, 8, seconds=1e-9) for _ in range(5)]
    assert {one.num_timed for one in found} == {1}
    assert any(one.slowest_name == "23.png" == ds.reader.source(one.slowest) for one in found)
    assert (torch.random.get_rng_state() == state).all()
    # In a view the numbers are the view's.
    view = ds.select(range(20, 30))
    slow = time_examples(view, 8, transforms=[RandomCrop(32)], seconds=1)
    assert slow.slowest_name == f"{20 + slow.slowest:02d}.png"


def test_tune_and_profile_say_it(outlier: Path) -> None:
    ds = lmdbloader.LMDBDataset(outlier)
    tuning = lab.tune(ds, 8, crop=32, seconds=0.2, step_seconds=0.001)
    assert str(tuning.examples) in str(tuning)
    loader = lmdbloader.Loader(
        ds.transformed([RandomCrop(48)]), 4, shuffle=True, transforms=[RandomCrop(32)], num_threads=1
    )
    found = lab.profile(loader, lambda batch: None, steps=5)
    assert found.examples is not None and found.examples.batch_size == 4
    words = " ".join(str(found).split())
    assert str(found.examples) in words


def test_python_code_of_a_dataset_is_not_called_after_a_profile(outlier: Path) -> None:
    calls: list[int] = []

    def count(sample: Any) -> Any:
        calls.append(1)
        return sample.image[:, :8, :8]

    ds = lmdbloader.LMDBDataset(outlier, transform=count)
    found = lab.profile(torch.utils.data.DataLoader(ds, 4), lambda batch: None, steps=3, warmup=0)
    assert found.examples is None and len(calls) == 12
    assert lab.profile([torch.zeros(2, 3)] * 4, lambda batch: None, steps=2, warmup=0).examples is None


def test_a_path_is_opened(tmp_path: Path) -> None:
    """The letters of a path are not examples."""
    lmdbloader.write(({"image": np.zeros((8, 8, 3), np.uint8)} for _ in range(3)), tmp_path / "db")
    assert time_examples(str(tmp_path / "db"), 2, seconds=0.01).num_timed == 3
