"""Stage times: each stage's seconds where they belong, every second once, and what was counted exactly."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.stages import STAGES, StageTimes
from lmdbloader.transforms import RandomCrop, ToDtype

COUNT = 45
SIDE = 48


def picture(number: int) -> np.ndarray:
    """Return an image that lz4 makes smaller, but not much."""
    return (np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3)) & 0x70).astype(np.uint8)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return _written(tmp_path_factory.mktemp("raw") / "d", "raw")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    return _written(tmp_path_factory.mktemp("lz4") / "d", "lz4")


def _written(path: Path, codec: Any) -> LMDBDataset:
    lmdbloader.write(({"image": picture(i), "label": i} for i in range(COUNT)), path, codec=codec)
    return LMDBDataset(path)


def timed(loader: Loader, epochs: int = 1) -> StageTimes:
    """Return what some epochs take."""
    loader.time_stages()
    before = loader.stage_times()
    for _ in range(epochs):
        assert sum(len(batch.label) for batch in loader)
    return loader.stage_times() - before


def stored_nbytes(ds: LMDBDataset) -> int:
    return int(ds.reader.index.arrays["image.stored_nbytes"].sum())


def test_nothing_is_counted_unless_it_is_asked_for(raw: LMDBDataset) -> None:
    loader = Loader(raw, 4)
    list(loader)
    assert loader.stage_times() == StageTimes()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_samples_batches_and_bytes_are_counted_exactly(packed: LMDBDataset, batch_size: int, num_threads: int) -> None:
    times = timed(Loader(packed, batch_size, num_threads=num_threads), epochs=2)
    assert times.num_samples == 2 * COUNT
    assert times.num_batches == 2 * -(-COUNT // batch_size)
    assert times.nbytes == 2 * stored_nbytes(packed)


def test_what_is_counted_when_it_is_switched_on_again_begins_at_nothing(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8)
    timed(loader)
    loader.time_stages(False)
    stopped = loader.stage_times()
    list(loader)
    assert loader.stage_times() == stopped
    assert stopped.num_samples == COUNT
    loader.time_stages()
    assert loader.stage_times() == StageTimes()
    loader.time_stages()  # it is on already
    list(loader)
    assert loader.stage_times().num_samples == COUNT


def test_a_slow_function_of_batches_shows_in_function(raw: LMDBDataset) -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return batch

    times = timed(Loader(raw, 9, transforms=[slow]))
    assert times.function >= 0.05
    assert times.function > times.total - times.function


def test_a_slow_transform_of_samples_shows_in_function(raw: LMDBDataset) -> None:
    def slow(sample: Any) -> Any:
        time.sleep(0.002)
        return sample

    times = timed(Loader(LMDBDataset(raw.path, transform=slow), 9))
    assert times.function >= 0.002 * COUNT


def test_stages_add_up_to_the_time_that_a_thread_is_busy(packed: LMDBDataset) -> None:
    """One batch that one thread reads while nobody does anything else: no more than the wait, and most of it."""
    shares = []
    for _ in range(5):
        loader = Loader(packed, COUNT, num_threads=1, transforms=[RandomCrop(40), ToDtype(torch.float32, scale=True)])
        list(loader)
        loader.time_stages()
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        passed = time.perf_counter() - began
        shares.append(loader.stage_times().total / passed)
    assert max(shares) < 1.0
    assert max(shares) > 0.3


def test_a_closed_loader_that_is_used_again_counts_on(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8)
    first = timed(loader)
    loader.close()
    list(loader)
    assert loader.stage_times().num_samples == first.num_samples + COUNT


def test_another_resolution_counts_on(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8, transforms=[RandomCrop(16)])
    timed(loader)
    loader.set_resolution(32)
    list(loader)
    assert loader.stage_times().num_samples == 2 * COUNT


def test_a_pickled_copy_is_off_and_begins_at_nothing(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8)
    timed(loader)
    copy = pickle.loads(pickle.dumps(loader))
    list(copy)
    assert copy.stage_times() == StageTimes()


def test_a_forked_child_counts_on_and_its_parent_does_not_see_it(raw: LMDBDataset) -> None:
    loader = Loader(raw, 8)
    timed(loader)
    child = os.fork()
    if not child:
        code = 1
        try:
            list(loader)
            code = 0 if loader.stage_times().num_samples == 2 * COUNT else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.stage_times().num_samples == COUNT


def test_an_unfinished_epoch_counts_what_was_read(raw: LMDBDataset) -> None:
    loader = Loader(raw, 64, num_threads=1, prefetch=0)
    loader.time_stages()
    next(iter(loader))
    loader.close()
    assert loader.stage_times().num_samples == COUNT


def test_a_dataset_has_stage_times_of_its_own(packed: LMDBDataset) -> None:
    ds = packed.select(range(20))
    ds.time_stages()
    before = ds.stage_times()
    ds.__getitems__([3, 1, 2])
    assert len(ds[4].image) == 3
    times = ds.stage_times() - before
    assert (times.num_samples, times.num_batches) == (4, 2)
    assert times.nbytes == sum(int(ds.reader.index.arrays["image.stored_nbytes"][i]) for i in (1, 2, 3, 4))
    assert times.total > 0
    ds.time_stages(False)
    copy = pickle.loads(pickle.dumps(ds))
    copy.__getitems__([0])
    assert copy.stage_times() == StageTimes()


def test_a_read_that_fails_is_counted_as_time_only(packed: LMDBDataset) -> None:
    packed.time_stages()
    with pytest.raises(IndexError):
        packed.__getitems__([COUNT])
    times = packed.stage_times()
    packed.time_stages(False)
    assert times.num_samples == 0
    assert times.total > 0


numbers = st.builds(
    StageTimes, *(st.integers(0, 2**30).map(float) for _ in STAGES), *(st.integers(0, 2**40) for _ in range(3))
)


@given(numbers, numbers)
def test_adding_and_subtracting_undo_each_other(a: StageTimes, b: StageTimes) -> None:
    assert a + b - b == a
    assert (a + b).total == a.total + b.total


@given(numbers)
def test_json_gives_the_same_again(times: StageTimes) -> None:
    assert StageTimes(**json.loads(json.dumps(times.as_json()))) == times
