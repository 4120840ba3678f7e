"""The Loader: every sample once, in seeded order, in memory that nothing else writes to; nothing is left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import flip_payload

import lmdbloader
from lmdbloader import LMDBDataset, Loader, QuasiRandom, fields
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.transforms import CenterCrop, Normalize, RandomCrop, RandomDihedral, RandomHorizontalFlip, ToDtype

COUNT = 83


def picture(number: int, side: int) -> np.ndarray:
    rng = np.random.default_rng([number, side])
    return rng.integers(0, 256, (side, side, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "d.lmdb"
    samples = (
        {"lr": picture(i, 8), "hr": picture(i, 16), "number": i, "weight": i / 7, "name": f"n{i}", "raw": bytes([i])}
        for i in range(COUNT)
    )
    lmdbloader.write(samples, path)
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.number.tolist()]


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("lmdbloader")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    wait_for_no_thread()  # of tests in other files, which may wait for the garbage collector
    yield
    wait_for_no_thread()


def wait_for_no_thread() -> None:
    gc.collect()
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == []


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 200])
def test_batches_are_the_dataset_in_another_order(ds: LMDBDataset, batch_size: int, num_threads: int, io: Any) -> None:
    loader = Loader(ds, batch_size, order="random", seed=0, num_threads=num_threads, io=io)
    batches = list(loader)
    assert len(batches) == len(loader) == -(-COUNT // batch_size)
    assert all(len(batch.number) == batch_size for batch in batches[:-1])
    seen = []
    for batch in batches:
        assert batch.lr.shape[1:] == (3, 8, 8)
        assert batch.number.dtype == torch.int64
        assert batch.weight.dtype == torch.float64
        for k, number in enumerate(batch.number.tolist()):
            sample = ds[number]
            seen.append(number)
            assert torch.equal(batch.lr[k], sample.lr)
            assert torch.equal(batch.hr[k], sample.hr)
            assert (batch.weight[k].item(), batch.name[k], batch.raw[k]) == (sample.weight, sample.name, sample.raw)
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(COUNT))


def test_every_iteration_is_the_next_epoch_and_set_epoch_goes_back(ds: LMDBDataset) -> None:
    loader = Loader(ds, 10, order="random", seed=0, transforms=[RandomCrop(8), RandomDihedral()])
    first, second = list(loader), list(loader)
    assert [b.number.tolist() for b in first] != [b.number.tolist() for b in second]
    loader.set_epoch(0)
    again, then = list(loader), list(loader)
    for expected, found in ((first, again), (second, then)):
        assert [b.number.tolist() for b in expected] == [b.number.tolist() for b in found]
        assert all(torch.equal(a.hr, b.hr) for a, b in zip(expected, found, strict=True))
    for wrong in (-1, "1", 2**63):
        with pytest.raises(OptionError, match="epoch="):
            loader.set_epoch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["random", "quasi_random", "sequential", QuasiRandom(2000, 9000)])
def test_samples_and_augmentations_do_not_depend_on_batches_threads_or_ranks(ds: LMDBDataset, order: Any) -> None:
    def seen(batch_size: int, num_threads: int, shard: tuple[int, int]) -> dict[int, torch.Tensor]:
        loader = Loader(
            ds, batch_size, order=order, seed=3, transforms=[RandomCrop(8), RandomDihedral()], num_threads=num_threads,
            shard=shard,
        )  # fmt: skip
        return {n: hr for batch in loader for n, hr in zip(batch.number.tolist(), batch.hr, strict=True)}

    whole = seen(9, 1, (0, 1))
    assert len(whole) == COUNT
    halves = [seen(5, 2, (0, 2)), seen(5, 1, (1, 2))]
    assert len(halves[0]) + len(halves[1]) == COUNT
    for n, hr in (halves[0] | halves[1]).items():
        assert torch.equal(hr, whole[n])


def test_two_iterators_of_one_loader_do_not_disturb_each_other(ds: LMDBDataset) -> None:
    loader = Loader(ds, 8, order="random", seed=1)
    expected = [[b.number.tolist() for b in Loader(ds, 8, order="random", seed=1)]]
    other = Loader(ds, 8, order="random", seed=1)
    other.set_epoch(1)
    expected.append([b.number.tolist() for b in other])
    found: list[list[Any]] = [[], []]
    for a, b in zip(loader, loader, strict=True):
        found[0].append(a.number.tolist())
        found[1].append(b.number.tolist())
    assert found == expected


@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_batch_that_is_held_never_changes(ds: LMDBDataset, batch_size: int) -> None:
    loader = Loader(
        ds, batch_size, order="random", transforms=[RandomDihedral(), ToDtype(torch.float32, scale=True)], num_threads=2
    )
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    views: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(12):
        for number, batch in enumerate(loader):
            if number % 10 == 0:
                held.append((batch.hr, batch.hr.clone()))
                views.append((batch.lr[0, 1].numpy(), batch.lr[0, 1].numpy().copy()))
            del batch
    assert all(torch.equal(a, b) for a, b in held)
    assert all((a == b).all() for a, b in views)


def test_memory_is_used_again(ds: LMDBDataset) -> None:
    loader = Loader(ds, 8, order="random", seed=0, num_threads=2, prefetch=1)
    places = {batch.hr.data_ptr() for _ in range(30) for batch in loader}
    assert len(places) <= (2 + 1 + 2) * 8


def damaged(path: Path, into: Path, sample: int) -> LMDBDataset:
    """Return a copy of a dataset in which one byte of a sample's `hr` was changed."""
    into.mkdir()
    for file in path.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    flip_payload(into, "hr", sample)
    return LMDBDataset(into)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_damage_reaches_the_loop_with_its_sample_after_the_batches_before_it(
    path: Path, tmp_path: Path, io: Any
) -> None:
    ds = damaged(path, tmp_path / "x", 42)
    loader = Loader(ds, 5, order="sequential", num_threads=2, io=io)
    seen: list[int] = []
    with pytest.raises(CorruptError, match=r"field 'hr' of sample 42.*checksum"):
        for batch in loader:
            seen += batch.number.tolist()
    assert seen == list(range(40))
    assert sorted(numbers(Loader(ds, 5, order="random", seed=0, verify=False, io=io))) == list(range(COUNT))


def test_an_error_of_a_function_reaches_the_loop_and_the_next_epoch_works(ds: LMDBDataset) -> None:
    fail = [True]

    def function(batch: Any) -> Any:
        if fail[0] and 17 in batch.number.tolist():
            raise ZeroDivisionError("mine")
        return batch

    loader = Loader(ds, 4, order="random", seed=0, transforms=[function], num_threads=2)
    with pytest.raises(ZeroDivisionError, match="mine"):
        numbers(loader)
    fail[0] = False
    assert sorted(numbers(loader)) == list(range(COUNT))


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_functions_are_called_once_for_each_batch_also_where_they_fail(ds: LMDBDataset, batch_size: int) -> None:
    seen: list[int] = []

    def function(batch: Any) -> Any:
        seen.append(int(batch.number[0]))
        if len(seen) == 3:
            raise KeyError("third")  # and would not, were it called for that batch again
        return batch

    loader, given = Loader(ds, batch_size, transforms=[function], num_threads=1, order="sequential", prefetch=1), []
    with pytest.raises(KeyError, match="third"):
        for batch in loader:
            given.append(int(batch.number[0]))
    assert given == [0, batch_size]
    assert len(seen) == len(set(seen)) >= 3
    loader.close()


def test_functions_that_return_no_batch_are_named(ds: LMDBDataset) -> None:
    def through(batch: Any) -> Any:
        return next(iter(()))

    loader = Loader(ds, 4, order="random", seed=0, transforms=[through], num_threads=1)
    with pytest.raises(OptionError, match=r"through .*StopIteration"):
        list(loader)
    loader.close()


def test_a_datasets_own_transform_is_called_sample_by_sample(path: Path) -> None:
    class Mine(LMDBDataset):
        def transform(self, sample: Any) -> Any:
            return {"n": sample.number, "hr": sample.hr.float() / 255}

    loader = Loader(Mine(path), 10, order="random", seed=0, transforms=[CenterCrop(8)], num_threads=2)
    plain = Loader(
        LMDBDataset(path), 10, order="random", transforms=[CenterCrop(8), ToDtype(torch.float32, scale=True)], seed=0
    )
    for mine, expected in zip(loader, plain, strict=True):
        assert mine["n"].tolist() == expected.number.tolist()
        assert torch.allclose(mine["hr"], expected.hr)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_channels_last_batches_hold_the_same_values(ds: LMDBDataset, dtype: torch.dtype) -> None:
    scale = dtype != torch.uint8
    transforms = [ToDtype(dtype, scale=scale), *([Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])] if scale else [])]
    plain = next(iter(Loader(ds, 12, order="random", seed=0, transforms=transforms)))
    last = next(iter(Loader(ds, 12, order="random", seed=0, transforms=transforms, memory_format=torch.channels_last)))
    assert last.hr.is_contiguous(memory_format=torch.channels_last)
    assert plain.hr.is_contiguous()
    assert torch.equal(plain.hr, last.hr)


def test_breaking_out_of_the_loop_and_exceptions_in_it_leave_a_usable_loader(ds: LMDBDataset) -> None:
    loader = Loader(ds, 4, order="random", seed=0, num_threads=2)
    for _ in loader:
        break
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    assert sorted(numbers(loader)) == list(range(COUNT))
    loader.close()
    assert loader_threads() == []
    assert sorted(numbers(loader)) == list(range(COUNT))


def test_deleting_the_loader_in_the_middle_ends_its_threads(ds: LMDBDataset) -> None:
    loader = Loader(ds, 4, order="random", seed=0, num_threads=2)
    batches = iter(loader)
    next(batches)
    assert len(loader_threads()) == loader.num_threads
    del loader
    next(batches)  # the iterator lives on
    del batches


def test_threads_and_buffers_survive_from_epoch_to_epoch(ds: LMDBDataset) -> None:
    loader = Loader(ds, 4, order="random", seed=0, num_threads=2)
    numbers(loader)
    before = {t.ident for t in threading.enumerate() if t.name.startswith("lmdbloader")}
    numbers(loader)
    assert {t.ident for t in threading.enumerate() if t.name.startswith("lmdbloader")} == before


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_an_epoch_keeps_a_dataset_that_is_replaced_while_it_is_read(path: Path, tmp_path: Path, io: Any) -> None:
    for name, fill in (("a", 1), ("b", 2)):
        samples = ({"image": np.full((16, 16, 3), fill, np.uint8)} for _ in range(30))
        lmdbloader.write(samples, tmp_path / name)
    loader = Loader(LMDBDataset(tmp_path / "a"), 4, order="random", seed=0, io=io)
    (tmp_path / "a").rename(tmp_path / "old")
    (tmp_path / "b").rename(tmp_path / "a")
    assert all((batch.image == 1).all() for batch in loader)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batches_of_one_hold_images_of_any_size(tmp_path: Path, memory_format: torch.memory_format) -> None:
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": rng.integers(0, 256, (4 + i, 9 - i, 1 if i == 2 else 3), np.uint8),
            "mask": rng.integers(0, 9, (4 + i, 9 - i), np.uint8),
            "boxes": np.ones((i, 4)),
            "same": rng.integers(0, 256, (5, 5, 3), np.uint8),
        }
        for i in range(5)
    ]
    lmdbloader.write(samples, tmp_path / "d", fields={"mask": fields.Mask(), "boxes": fields.Boxes(image="image")})
    ds = LMDBDataset(tmp_path / "d")
    options: dict[str, Any] = {"memory_format": memory_format, "num_threads": 2}
    for dataset in (ds, ds[1:], LMDBDataset(tmp_path / "d", io="pread")):
        loader = Loader(dataset, 1, order="random", seed=3, **options)
        assert len(loader) == len(dataset)
        batches = sorted(loader, key=lambda batch: len(batch.boxes[0]))
        for batch, sample in zip(batches, dataset, strict=True):
            assert batch.image.shape == (1, 3, *sample.image.shape[1:])  # gray as in a batch with colors
            assert torch.equal(batch.image[0], sample.image.expand(3, -1, -1))
            assert batch.image.is_contiguous(memory_format=memory_format)
            assert torch.equal(batch.mask, sample.mask[None]) and torch.equal(batch.same, sample.same[None])
            assert torch.equal(batch.boxes[0], sample.boxes)
    (batch,) = Loader(ds[[2]], 1, as_="dict", **options)
    assert batch["image"].shape == (1, 1, 6, 7)
    for refused in (lambda: Loader(ds, 2), lambda: Loader(ds, 1, transforms=[RandomHorizontalFlip()], seed=0)):
        with pytest.raises(
            OptionError, match=r"different shapes, .*Loader\(..., buckets='size'\), with batches of one"
        ):
            refused()
