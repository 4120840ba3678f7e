"""The Loader's read-ahead is bounded in bytes, and threads that share a batch read it as one thread would."""

from __future__ import annotations

import io
import shutil
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import CorruptError
from lmdbloader.loader import epoch as epoch_module
from lmdbloader.loader import loader as loader_module
from lmdbloader.loader.epoch import plan_groups
from lmdbloader.transforms import RandomDihedral, ToDtype

MIB = 2**20
COUNT = 120


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 1 MiB each, which take next to nothing on disk."""
    path = tmp_path_factory.mktemp("large") / "d.lmdb"
    shades = (np.full((512, 683, 3), i, np.uint8) for i in range(COUNT))
    lmdbloader.write(({"image": shade, "number": i} for i, shade in enumerate(shades)), path, codec="lz4")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "d.lmdb"
    rng = np.random.default_rng(0)
    lmdbloader.write(
        (
            {
                "lr": rng.integers(0, 256, (8, 8, 3)).astype(np.uint8),
                "hr": rng.integers(0, 256, (16, 16, 3)).astype(np.uint8),
                "values": rng.random(3),
                "number": i,
                "name": str(i),
            }
            for i in range(COUNT)
        ),
        path,
    )
    return path


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "count_cores", lambda: 16)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, many_cores: None) -> None:
    """Let the threads share every batch of more than one sample: two batches at once are the least."""
    monkeypatch.setattr(epoch_module, "_GROUPS_NBYTES", 1)


def read_ahead_nbytes(loader: Loader, least: int) -> int:
    """Return the bytes that a Loader has allocated, `least` at least, when its threads have stopped reading ahead."""
    tracemalloc.start()
    try:
        iterator, last, still, deadline = iter(loader), -1, 0, time.monotonic() + 60
        held = next(iterator)  # else a thread may or may not find its memory free
        # Without a change for 0.3 s, every thread waits. On a busy machine one may be about to go on.
        while still < 30 or (last < least and time.monotonic() < deadline):
            time.sleep(0.01)
            found, _ = tracemalloc.get_traced_memory()
            still, last = (still + 1 if found == last else 0), found
    finally:
        tracemalloc.stop()
    del held
    loader.close()
    return last


def test_batches_of_one_large_image_are_read_ahead_by_bytes_not_by_number(large: Path) -> None:
    found = read_ahead_nbytes(Loader(LMDBDataset(large), 1, order="random", num_threads=2, prefetch=2), 40 * MIB)
    # Four groups of 16 MiB, and the working memory of two threads; 64 samples a group would be 250 MiB.
    assert 40 * MIB < found < (4 * 16 + 16) * MIB


@pytest.mark.parametrize("batch_size", [16, 40])
def test_many_threads_share_the_batches_that_the_bound_leaves(
    large: Path, batch_size: int, many_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_module, "_GROUPS_NBYTES", 48 * MIB)
    loader = Loader(LMDBDataset(large), batch_size, order="random", num_threads=16, prefetch=2)
    # 48 MiB hold fewer than three batches of 16 images of a little more than 1 MiB.
    assert loader.groups_ahead == 2
    # The batch that the loop holds, one ahead, and the threads' working memory. Without a bound it would be 18 batches.
    least = 2 * batch_size * MIB
    assert least < read_ahead_nbytes(loader, least) < (3 * batch_size + 16 * 5) * MIB


SIZES = st.integers(1, 10**10)


@given(batch_size=st.integers(1, 5000), nbytes=SIZES, num_threads=st.integers(1, 256), prefetch=st.integers(0, 5000))
def test_a_plan_keeps_the_bound_and_every_thread_busy(
    batch_size: int, nbytes: int, num_threads: int, prefetch: int
) -> None:
    plan = plan_groups(batch_size, nbytes, num_threads, prefetch)
    group_nbytes = plan.batches_at_once * batch_size * nbytes
    assert 1 <= plan.ahead <= num_threads + prefetch or plan.ahead == 2
    assert plan.ahead * group_nbytes <= 1024 * MIB or plan.ahead <= 2
    assert plan.batches_at_once == 1 or group_nbytes <= 16 * MIB
    assert (plan.batches_at_once - 1) * batch_size < (64 if num_threads <= 4 else 256)
    assert plan.num_parts == 1 or plan.batches_at_once == 1
    if plan.ahead < num_threads + prefetch:
        assert (plan.ahead - 1) * plan.num_parts >= min(num_threads, batch_size)


def test_ordinary_sizes_are_read_as_far_ahead_as_ever() -> None:
    for batch_size, nbytes, num_threads, num_samples in (
        (16, 34_560, 2, 64), (64, 602_112, 2, 64), (256, 150_528, 16, 256), (8, 34_560, 8, 128), (8, 34_560, 16, 256),
    ):  # fmt: skip
        plan = plan_groups(batch_size, nbytes, num_threads, 2)
        assert (plan.num_parts, plan.ahead) == (1, num_threads + 2)
        assert plan.batches_at_once == num_samples // batch_size
    assert plan_groups(8, 138_240, 16, 2).batches_at_once == 15  # 16 MiB


def test_only_batches_that_outgrow_the_caches_are_written_past_them(small: Path) -> None:
    assert not plan_groups(8, 34_560, num_threads=1, prefetch=2).outgrows_caches
    assert plan_groups(8, 138_240, num_threads=1, prefetch=2).outgrows_caches
    assert plan_groups(128, 34_560, num_threads=1, prefetch=2).outgrows_caches
    assert plan_groups(8, 34_560, num_threads=16, prefetch=2).outgrows_caches
    loaders = Loader(LMDBDataset(small), 8), Loader(LMDBDataset(small), 8, prefetch=10**5)
    assert [loader._plan.outgrows_caches for loader in loaders] == [False, True]
    for few, many in zip(*loaders, strict=True):
        assert torch.equal(few.hr, many.hr)


def saved_nbytes(tensor: torch.Tensor) -> int:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.tell()


@pytest.mark.parametrize("ahead", [2**30, 2**10], ids=["alone", "shared"])
def test_a_short_last_batch_is_saved_without_the_rest_of_a_long_one(
    small: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_module, "_GROUPS_NBYTES", ahead)
    for options in ({}, {"transforms": [ToDtype(torch.bfloat16, scale=True)]}, {"on_corrupt": "skip"}):
        loader = Loader(small, 50, shuffle=True, **options)  # type: ignore[arg-type]
        for _ in range(2):
            *_, last = loader
            for images in (last.lr, last.hr):
                assert len(images) == COUNT % 50
                assert saved_nbytes(images) == saved_nbytes(images.clone())
    for num_workers in (0, 1):
        *_, last = lmdbloader.dataloader(LMDBDataset(small), 50, num_workers=num_workers)
        assert saved_nbytes(last.hr) == saved_nbytes(last.hr.clone())


def assert_same(found: Iterator[Any], expected: Iterator[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


OPTIONS: dict[str, dict[str, Any]] = {
    "random": {},
    "one sample": {"batch_size": 1},
    "more parts than samples in the last batch": {"batch_size": 17},
    "all in one": {"batch_size": COUNT},
    "sequential, ranks, padded": {"order": "sequential", "shard": (1, 3), "pad": True},
    "quasi-random, pread": {"order": "quasi_random", "io": "pread"},
    "floats": {"transforms": [RandomDihedral(), ToDtype(torch.float32, scale=True)]},
    "channels last": {"memory_format": torch.channels_last, "transforms": [RandomDihedral()]},
    "a function": {"transforms": [lambda batch: batch._replace(number=-batch.number)]},
    "skips": {"on_corrupt": "skip"},
    "one thread": {"num_threads": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_threads_that_share_a_batch_read_the_same(
    small: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, many_cores: None
) -> None:
    options = {"batch_size": 32, "num_threads": 5, "seed": 3, **options}
    expected = list(Loader(LMDBDataset(small), **{"order": "random", **options}))
    monkeypatch.setattr(epoch_module, "_GROUPS_NBYTES", 1)
    loader = Loader(LMDBDataset(small), **{"order": "random", **options})
    is_shared = options["batch_size"] > 1 and options["num_threads"] > 1
    assert (loader._plan.num_parts > 1) == is_shared
    assert_same(iter(loader), iter(expected))
    loader.set_epoch(0)
    held = list(loader)  # memory is used again only once nothing refers to it
    assert_same(iter(held), iter(expected))


@pytest.mark.usefixtures("shared")
def test_an_own_transform_gets_samples_of_shared_batches(small: Path) -> None:
    ds = LMDBDataset(small, transform=lambda sample: {"hr": sample.hr.float(), "number": sample.number})
    found = list(Loader(ds, 50, order="sequential", num_threads=4))
    assert [len(batch["hr"]) for batch in found] == [50, 50, 20]
    plain = LMDBDataset(small)
    assert torch.equal(torch.cat([batch["hr"] for batch in found]), torch.stack([s.hr for s in plain]).float())  # type: ignore[attr-defined]
    assert torch.cat([batch["number"] for batch in found]).tolist() == list(range(COUNT))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("field", ["hr", "values"])
def test_damage_in_a_shared_batch_is_named_or_left_out(small: Path, tmp_path: Path, field: str) -> None:
    ds = LMDBDataset(Path(shutil.copytree(small, tmp_path / "d")))
    offset = int(ds.reader.index.arrays[f"{field}.offset"][70])
    with open(tmp_path / "d" / "data.mdb", "r+b") as file:
        file.seek(offset + 1)
        (byte,) = file.read(1)
        file.seek(offset + 1)
        file.write(bytes([byte ^ 1]))
    ds = LMDBDataset(tmp_path / "d")
    loader = Loader(ds, 40, order="sequential", num_threads=4)
    iterator = iter(loader)
    assert next(iterator).number.tolist() == list(range(40))
    with pytest.raises(CorruptError, match=f"field '{field}' of sample 70"):
        list(iterator)
    loader = Loader(ds, 40, order="sequential", num_threads=4, on_corrupt="skip")
    assert [len(batch.number) for batch in loader] == [40, 39, 40]
    assert [damage.sample for damage in loader.corrupt] == [70]
