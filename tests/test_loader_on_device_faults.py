"""What went wrong for users of on="device", keep="device" and on_device."""

from __future__ import annotations

import logging
import shutil
import time
from collections import UserDict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from tests.faults.late_cuda import late_cuda

ON: dict[str, Any] = {"device": "cpu", "on": "device"}
KEEP: dict[str, Any] = {"device": "cpu", "keep": "device"}
HERE: dict[str, Any] = {"shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """Return 64 images with labels."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("attacks") / "d"
    lmdbloader.write(({"image": rng.integers(0, 256, (24, 32, 3), np.uint8), "label": k % 5} for k in range(64)), path)
    return LMDBDataset(path)


def is_kept(loader: Loader, seconds: float = 5) -> bool:
    """Return whether a Loader's images come onto the device in time."""
    until = time.monotonic() + seconds
    while not loader._device_images.is_complete and time.monotonic() < until:
        time.sleep(0.01)
    return bool(loader._device_images.is_complete)


def test_images_are_kept_if_the_first_epoch_is_in_inference_mode(ds: LMDBDataset) -> None:
    loader = Loader(ds, 8, shuffle=False, **KEEP)
    with torch.inference_mode():
        list(loader)
    assert is_kept(loader, 1)


@pytest.mark.parametrize("way", ["on_device", "keep"])
@pytest.mark.parametrize(("channels", "dtype"), [(4, np.uint8), (13, np.uint16), (5, np.float32)])
def test_padding_of_more_than_three_channels(tmp_path: Path, way: str, channels: int, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (12, 12, channels)).astype(dtype) for _ in range(8)]
    lmdbloader.write(({"image": image} for image in images), tmp_path / "d", fields={"image": fields.Image()})
    transforms = [T.RandomCrop(12, padding=4, fill=7)]
    options: Any = {"shuffle": False, "seed": 3, "transforms": transforms}
    (wanted,) = Loader(tmp_path / "d", 8, **options)
    if way == "keep":
        (found,) = Loader(tmp_path / "d", 8, **options, **KEEP)
        assert torch.equal(found.image.double(), wanted.image.double())
        return
    stored = torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())
    moved = T.on_device(transforms, stored, range(8), seed=3, epoch=0)
    assert torch.equal(moved.double(), wanted.image.double())


def given_before_failure(ds: LMDBDataset, **more: Any) -> int:
    """Return how many batches a loop gets before the fourth call of a function, which fails."""
    calls: list[int] = []

    def function(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("mine")
        return batch

    loader, count = Loader(ds, 8, transforms=[T.RandomCrop(8), function], num_threads=1, **HERE, **more), 0
    with pytest.raises(ValueError, match="mine"):
        for _ in loader:
            count += 1
    loader.close()
    return count


@pytest.mark.parametrize("more", [ON, KEEP], ids=["on", "keep"])
def test_an_error_of_a_function_comes_after_the_batches_before_it(ds: LMDBDataset, more: Any) -> None:
    assert given_before_failure(ds) == 3
    assert given_before_failure(ds, **more) == 3


def test_what_functions_return_in_the_computers_memory_is_copied(ds: LMDBDataset) -> None:
    given, recorded = set[int](), set[int]()

    def function(batch: Any, indices: torch.Tensor) -> Any:
        given.add(indices.data_ptr())
        return {"image": batch.image, "samples": indices}

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        recorded.add(tensor.data_ptr())

    with late_cuda(most_lag=0), mock.patch.object(torch.Tensor, "record_stream", record_stream):
        options: Any = {"device": "cuda", "on": "device", "transforms": [T.RandomCrop(8), T.WithIndices(function)]}
        loader = Loader(ds, 8, **HERE, **options)
        batches = list(loader)
        loader.close()
    assert not given & recorded and not given & {batch["samples"].data_ptr() for batch in batches}


class _Pair:
    def __init__(self, image: torch.Tensor) -> None:
        self.image = image


@pytest.mark.parametrize("made", [_Pair, UserDict, lambda image: {"found": [image, _Pair(image)]}])
def test_objects_with_tensors_that_nobody_knows_of_are_refused(ds: LMDBDataset, made: Any) -> None:
    function = lambda batch: made({"image": batch.image} if made is UserDict else batch.image)  # noqa: E731
    with late_cuda(most_lag=0):
        loader = Loader(ds, 8, device="cuda", on="device", transforms=[T.RandomCrop(8), function], **HERE)
        with pytest.raises(OptionError, match=r"returned a (_Pair|UserDict).*Return dict"):
            list(loader)
        loader.close()


def test_images_are_kept_after_a_schedule_was_ended(ds: LMDBDataset) -> None:
    options: Any = {**KEEP, "resolution": lmdbloader.ProgressiveResize(4)}
    loader = Loader(ds, 8, transforms=[T.Resize((20, 24)), T.RandomHorizontalFlip()], **HERE, **options)
    loader.set_resolution(None)
    list(loader)
    assert is_kept(loader, 1)


def damaged(ds: LMDBDataset, folder: Path, sample: int) -> LMDBDataset:
    """Return a copy with a damaged image."""
    shutil.copytree(ds.path, folder)
    pixels = ds[sample].image.numpy()
    content = bytearray((folder / "data.mdb").read_bytes())
    places = [content.find(p.tobytes()[:200]) for p in (pixels, pixels.transpose(1, 2, 0))]
    content[max(places) + 100] ^= 1
    (folder / "data.mdb").write_bytes(content)
    return LMDBDataset(folder)


def test_a_damaged_image_leaves_no_memory_on_the_device(ds: LMDBDataset, tmp_path: Path, caplog: Any) -> None:
    loader = Loader(damaged(ds, tmp_path / "d", 7), 8, on_corrupt="skip", **HERE, **KEEP)
    with caplog.at_level(logging.WARNING, "lmdbloader"):
        for _ in range(3):
            list(loader)
            time.sleep(0.1)
    assert sum("in every epoch" in text for text in caplog.messages) == 1
    assert loader._device_images is not None and not sum(t.nbytes for t in loader._device_images._images)


def test_views_do_not_share_memory(ds: LMDBDataset) -> None:
    loader = Loader(ds, 8, transforms=T.Views([], [T.RandomErasing(p=0)]), **HERE, **ON)
    first, second = next(iter(loader)).image
    assert first.data_ptr() != second.data_ptr()


def test_a_transform_that_the_dataset_gets_later_is_refused(ds: LMDBDataset) -> None:
    dataset = LMDBDataset(ds.path)
    loader = Loader(dataset, 8, **HERE, **ON)
    dataset.transform = lambda sample: sample
    with pytest.raises(OptionError, match="transform"):
        list(loader)


def test_a_crop_behind_a_warp_and_colors_gives_one_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lmdbloader.write(({"image": rng.integers(0, 256, (24 + k, 32, 3), np.uint8)} for k in range(8)), tmp_path / "d")
    transforms = [T.RandomRotation(20), T.ColorJitter(0.1), T.RandomCrop(12)]
    (wanted,) = Loader(tmp_path / "d", 8, transforms=transforms, **HERE)
    (found,) = Loader(tmp_path / "d", 8, transforms=transforms, **HERE, **ON)
    assert torch.equal(found.image, wanted.image)


def test_the_error_of_a_warp_fits_keep(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError) as raised:
        Loader(ds, 8, transforms=[T.RandomRotation(20), T.RandomCrop(12)], **HERE, **KEEP)
    assert "keep='device'" in str(raised.value) and "in front" not in str(raised.value)


def test_sample_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OptionError, match="samples"):
        T.on_device([T.RandomCrop(8)], torch.zeros(2, 3, 9, 9, dtype=torch.uint8), [2**63, 2**63 + 1], seed=0, epoch=0)


class _Waits(TorchDispatchMode):
    """Counts the reads of single values, for each of which a GPU is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [T.MixUp(num_classes=5), T.CutMix(num_classes=5), T.LabelSmoothing(0.1, 5)])
def test_functions_of_batches_do_not_wait_for_the_device(ds: LMDBDataset, function: Any) -> None:
    batch = next(iter(Loader(ds, 8, shuffle=False)))
    with _Waits() as waits:
        function.apply(batch, np.random.default_rng(0))
    assert waits.count <= 2  # two numbers of one copy


@pytest.mark.parametrize(
    ("more", "random"), [(ON, T.RandomResizedCrop(9)), (ON, T.Resize((30, 40))), (KEEP, T.Resize((30, 40)))]
)
def test_float16_is_resized_as_on_the_cpu(tmp_path: Path, more: Any, random: Any) -> None:
    rng = np.random.default_rng(0)
    samples = ({"image": rng.normal(0, 3, (24, 32, 3)).astype(np.float16)} for _ in range(8))
    lmdbloader.write(samples, tmp_path / "d", fields={"image": fields.Image()})
    transforms = [random, T.RandomHorizontalFlip(), T.ToDtype(torch.float32)]
    (wanted,) = Loader(tmp_path / "d", 8, transforms=transforms, **HERE)
    (found,) = Loader(tmp_path / "d", 8, transforms=transforms, **HERE, **more)
    assert torch.equal(found.image, wanted.image)
