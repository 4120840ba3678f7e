"""Samples and batches are the same however they are read; collate gives the batches of torch's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from payloads import write_columns
from torch.utils.data import default_collate

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.collate import collate
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip, ToDtype

COUNT = 20
TRANSFORMS = (RandomCrop(3, fields=("image",)), RandomHorizontalFlip())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_columns(tmp_path_factory.mktemp("datasets") / "d", COUNT)


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def check_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        else:
            assert list(a) == list(b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_samples_lists_workers_and_the_loader_give_the_same_batches(
    ds: LMDBDataset, batch_size: int, dtype: Any
) -> None:
    transforms = [*TRANSFORMS, *([] if dtype is None else [ToDtype(dtype, scale=True)])]
    view = ds.transformed(transforms, seed=4)
    groups = [range(i, min(i + batch_size, COUNT)) for i in range(0, COUNT, batch_size)]
    ways = {
        "Loader": Loader(ds, batch_size, order="sequential", transforms=transforms, seed=4),
        "samples": [default_collate([view[i] for i in group]) for group in groups],
        "lists": [collate(view._many(group)) for group in groups],
        "worker": lmdbloader.dataloader(view, batch_size, num_workers=1),
    }
    expected = list(ways.pop("Loader"))
    for way in ways.values():
        for found, wanted in zip(way, expected, strict=True):
            check_same(found, wanted)


def test_own_transform_functions_and_reading_agree(path: Path) -> None:
    """The same transform of samples, called by the dataset and by the Loader, which calls functions after it."""

    def halve(sample: Any) -> Any:
        return sample._replace(image=sample.image[:, ::2] / 2)

    own = LMDBDataset(path, transform=halve)
    calls: list[int] = []

    def count(batch: Any) -> Any:
        calls.append(len(batch.number))
        return batch._replace(number=-batch.number)

    batches = list(Loader(own, 8, order="sequential", transforms=[count], num_threads=1))
    assert calls == [8, 8, 4]
    for batch, start in zip(batches, range(0, COUNT, 8), strict=True):
        samples = own._many(range(start, min(start + 8, COUNT)))
        assert torch.equal(batch.image, torch.stack([sample.image for sample in samples]))
        assert batch.number.tolist() == [-sample.number for sample in samples]


@given(numbers=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=12))
def test_collate_gives_the_batch_of_torchs_own(path: Path, numbers: list[int]) -> None:
    ds = LMDBDataset(path)
    expected = default_collate([ds[i] for i in numbers])

    check_same(collate(ds._many(numbers)), expected)
    check_same(collate([ds[i] for i in numbers]), expected)
    check_same(collate(list(ds._many(numbers))), expected)


def test_collate_takes_results_of_a_transform(path: Path) -> None:
    ds = LMDBDataset(path, transform=lambda sample: {"n": sample.number, "mean": sample.image.float().mean()})

    batch = collate(ds._many([4, 2]))
    assert batch["n"].tolist() == [4, 2]
    assert batch["mean"].shape == (2,)


def test_images_of_different_shapes_are_refused_with_advice(tmp_path: Path) -> None:
    lmdbloader.write([{"image": np.zeros((4, 5 + i), np.uint8)} for i in range(3)], tmp_path / "d")
    ds = LMDBDataset(tmp_path / "d")

    with pytest.raises(OptionError, match=r"field 'image'.*\(1, 4, 5\) and \(1, 4, 7\).*--patch-size"):
        collate(ds._many([0, 1, 2]))
    assert collate(ds._many([1])).image.shape == (1, 1, 4, 6)


def test_reading_goes_on_after_an_exception_at_any_place(path: Path) -> None:
    """A signal's handler, such as that of Ctrl-C, may raise one between any two steps that prepare a call."""
    files = ("pipeline.py", "reader.py", "entry.py")
    expected = collate(LMDBDataset(path)._many(range(COUNT)))

    def interrupted_at(step: int) -> bool:
        ds, steps = LMDBDataset(path), 0
        ds._many([0])

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal steps
            if not frame.f_code.co_filename.endswith(files):
                return trace
            if event == "line":
                steps += 1
                if steps == step:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            ds._many(range(COUNT // 2))  # more than before: calls get new memory
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            # What was freed gets other values, which are no sample's numbers.
            others = [np.full(n, 10**15, np.int64) for n in range(1, COUNT + 1) for _ in range(9)]
            check_same(collate(ds._many(range(COUNT))), expected)
            del others

    step = 1
    while interrupted_at(step):
        step += 3
    assert step > 50
