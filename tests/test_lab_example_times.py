"""Single examples: a slow one is distinguished from a slow moment, and what it does to a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import lab
from lmdbloader.errors import OptionError
from lmdbloader.lab import ExampleTimes, time_examples
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

    def clock(self) -> float:
        return self.now


def times(dataset: Timed, batch_size: int = 32, seconds: float = 100.0) -> ExampleTimes:
    return time_examples(dataset, batch_size, seconds=seconds, clock=dataset.clock)


def test_a_slow_example_is_found_and_weighed() -> None:
    found = times(Timed(500, {17: 0.2}))
    assert (found.num_timed, found.slowest, found.slowest_name) == (500, 17, None)
    assert found.p50_seconds == pytest.approx(0.001) and found.longest_seconds == pytest.approx(0.2)
    assert found.slowest_seconds == pytest.approx(0.2)
    assert found.batch_seconds == pytest.approx(0.032)
    assert found.batch_with_slowest_seconds == pytest.approx(0.231)
    assert found.share_with_p99 == pytest.approx(1 - 0.99**32)
    assert "sample 17: 200 ms, 200 times the median" in str(found) and "231 ms" in str(found)


def test_a_slow_moment_is_not_the_examples_fault() -> None:
    found = times(Timed(500, {}, moments={40: 0.3}))
    assert found.longest_seconds == pytest.approx(0.301) and found.slowest_seconds == pytest.approx(0.001)
    both = times(Timed(500, {17: 0.05}, moments={40: 0.3}))
    assert both.slowest == 17 and both.slowest_seconds == pytest.approx(0.05)


def test_the_p99_is_of_those_drawn() -> None:
    found = times(Timed(1000, dict.fromkeys(range(30), 0.01)))
    assert found.p99_seconds == pytest.approx(0.01) and found.p50_seconds == pytest.approx(0.001)


def test_the_time_is_kept() -> None:
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
    # There is no time to draw many, but for the largest.
    ticks = iter(range(10**6))
    found = time_examples(ds, 8, transforms=[RandomCrop(32)], seconds=4, clock=lambda: next(ticks) * 1.0)
    assert found.num_timed < 5
    assert (torch.random.get_rng_state() == state).all()
    names = {lmdbloader.LMDBDataset(outlier).reader.source(found.slowest)}
    assert found.slowest_name in names
    # In a view the numbers are the view's.
    view = ds.select(range(20, 30))
    slow = time_examples(view, 8, seconds=2)
    assert slow.slowest_name == f"{20 + slow.slowest:02d}.png"
    assert ExampleTimes.from_json(json.loads(json.dumps(slow.as_json()))) == slow


def test_tune_and_profile_say_it(outlier: Path) -> None:
    ds = lmdbloader.LMDBDataset(outlier)
    tuning = lab.tune(ds, 8, crop=32, seconds=1, step_seconds=0.001)
    assert "Single examples: p50 " in str(tuning)
    assert " of the step." in str(tuning) or "only batches that are read ahead can hide it" in str(tuning)
    assert tuning.as_json()["examples"]["batch_size"] == 8
    loader = lmdbloader.Loader(
        ds.transformed([RandomCrop(48)]), 4, shuffle=True, transforms=[RandomCrop(32)], num_threads=1
    )
    found = lab.profile(loader, lambda batch: None, steps=5)
    assert found.examples is not None and found.examples.batch_size == 4
    words = " ".join(str(found).split())
    assert "single examples: p50 " in words and "; the slowest by itself, sample " in words
    assert f"and a batch with it {1000 * found.examples.batch_with_slowest_seconds:.2f} ms on one thread" in words
    assert lab.Profile.from_json(json.loads(json.dumps(found.as_json()))) == found
    old = {name: value for name, value in found.as_json().items() if name != "examples"}
    assert lab.Profile.from_json(old).examples is None


def test_python_code_of_a_dataset_is_not_called_after_a_profile(outlier: Path) -> None:
    calls: list[int] = []

    def count(sample: Any) -> Any:
        calls.append(1)
        return sample.image[:, :8, :8]

    ds = lmdbloader.LMDBDataset(outlier, transform=count)
    found = lab.profile(torch.utils.data.DataLoader(ds, 4), lambda batch: None, steps=3, warmup=0)
    assert found.examples is None and len(calls) == 12
    assert lab.profile([torch.zeros(2, 3)] * 4, lambda batch: None, steps=2, warmup=0).examples is None


def test_a_path_is_opened_and_other_things_are_refused(tmp_path: Path) -> None:
    """The letters of a path are not examples."""
    lmdbloader.write(({"image": np.zeros((8, 8, 3), np.uint8)} for _ in range(3)), tmp_path / "db")
    for path in (tmp_path / "db", str(tmp_path / "db")):
        assert time_examples(path, 2, seconds=0.01).num_timed == 3
    loader = lmdbloader.Loader(tmp_path / "db", 2)
    with pytest.raises(OptionError, match=r"of a loader give loader\.dataset"):
        time_examples(loader, 2)
