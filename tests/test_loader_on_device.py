"""Loader(on="device") and Loader(keep="device"): the batches of the CPU, made by torch from pixels as stored."""

from __future__ import annotations

import logging
import pickle
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from cuda_device import assert_same
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from transform_lists import WHATS, lists_of_transforms

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.superres import degradations
from tests.faults.late_cuda import late_cuda

COUNT = 30
LAYOUT = {"hr": (24, 32), "lr": (12, 16)}
WHATS_HERE = tuple(what for what in WHATS if what != "warp")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """Return pairs with labels, boxes and names."""
    rng = np.random.default_rng(0)
    samples = (
        {
            **{name: rng.integers(0, 256, (*size, 3), np.uint8) for name, size in LAYOUT.items()},
            "label": k % 5, "box": np.array([[2, 3, 20, 21]], np.float32), "name": f"n{k}",
        }
        for k in range(COUNT)
    )  # fmt: skip
    path = tmp_path_factory.mktemp("on_device") / "d"
    lmdbloader.write(samples, path, fields={"box": fields.Boxes(image="hr")})
    return LMDBDataset(path)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """Return JPEGs of several sizes."""
    folder = tmp_path_factory.mktemp("jpegs")
    rng = np.random.default_rng(0)
    for k in range(COUNT):
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        small.resize((60 + 3 * k, 50 + 2 * k), Image.Resampling.BICUBIC).save(folder / f"{k:02}.jpg", quality=90)
    lmdbloader.convert(folder, folder.with_suffix(".lmdb"), progress=False)
    return LMDBDataset(folder.with_suffix(".lmdb"))


def check(dataset: Any, transforms: Any, *, epochs: int = 2, keeps: bool = True, **options: Any) -> None:
    """Compare Loaders that transform on the CPU, on the device, and images that live there."""
    options = {"shuffle": True, "seed": 3, "transforms": transforms, **options}
    try:
        plain = Loader(dataset, 8, **options)
    except OptionError as error:
        assume("Put ToDtype" not in str(error))  # a drawn mean that is of other pixels
        raise
    there = Loader(dataset, 8, device="cpu", on="device", **options)
    kept = Loader(dataset, 8, device="cpu", keep="device", **options) if keeps else there
    for epoch in range(epochs):
        wanted = list(plain)
        assert_same(list(there), wanted, device="cpu")
        if keeps:
            assert_same(list(kept), wanted, device="cpu")
            if epoch == 0:
                wait_for(kept)
    for loader in (plain, there, kept):
        loader.close()


def wait_for(loader: Loader) -> None:
    """Wait until a Loader's images are on the device."""
    until = time.monotonic() + 60
    while not loader._device_images.is_complete and time.monotonic() < until:  # type: ignore[union-attr]
        time.sleep(0.01)
    assert loader._device_images.is_complete  # type: ignore[union-attr]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_are_those_of_the_cpu(pairs: LMDBDataset, data: Any) -> None:
    layout = data.draw(st.sampled_from([torch.contiguous_format, torch.channels_last]))
    transforms = data.draw(lists_of_transforms(LAYOUT, 3, np.uint8, WHATS_HERE))
    check(pairs, transforms, memory_format=layout, return_params=data.draw(st.booleans()))


ON: dict[str, Any] = {"on": "device", "device": "cpu"}
KEEP: dict[str, Any] = {"keep": "device", "device": "cpu"}
SIZED = [T.RandomHorizontalFlip(), T.RandomResizedCrop((20, 28))]


@pytest.mark.parametrize(
    "transforms",
    [
        [*SIZED, T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomVerticalFlip(), T.ToDtype(torch.float32, scale=True)],
        [T.Resize(40), T.CenterCrop(32), T.RandomErasing(p=0.7)],
        [*SIZED, T.RandAugment(), T.GaussianBlur(3)],  # on the CPU, as it is at the beginning
        [T.RandomRotation(20), T.RandomApply([T.RandomAffine(8)]), T.RandomCrop(30, pad_if_needed=True)],
        [T.ColorJitter(0.2), T.RandomCrop(48)],
        [*SIZED, T.Views([T.ColorJitter(0.4)], [T.GaussianBlur(3), T.RandomVerticalFlip()])],
        [T.Views(large=2 * [[T.RandomResizedCrop(24), T.ColorJitter(0.3)]], small=[[T.RandomResizedCrop(12)]])],
    ],
    ids=lambda transforms: "-".join(type(t).__name__ for t in transforms),
)  # fmt: skip
def test_the_cpu_gives_images_one_size(photographs: LMDBDataset, transforms: Any) -> None:
    check(photographs, transforms, keeps=False)


def test_what_does_not_change_from_epoch_to_epoch_is_kept(photographs: LMDBDataset) -> None:
    # What is kept was resized as the CPU does it.
    check(photographs, [T.Resize((40, 44)), T.RandomCrop(32, 4), T.ToDtype(torch.float32, scale=True)])
    views = T.Views([T.RandomCrop(24)], [T.RandomVerticalFlip(), T.RandomGrayscale()])
    check(photographs, [T.Resize(40), T.CenterCrop(36), views], as_="dict")
    with pytest.raises(OptionError, match=r"one size before the first random.*Resize\(\(height, width\)\)"):
        Loader(photographs, 8, shuffle=True, device="cpu", keep="device", transforms=SIZED)


def test_functions_get_batches_on_the_device(pairs: LMDBDataset) -> None:
    names = ["hr", "label", "name"]
    dataset = LMDBDataset(pairs.path, fields=names)
    move = [T.RandomCrop(16), T.ToDtype(torch.float32, scale=True)]
    for mix in (T.MixUp(image="hr", num_classes=5), T.CutMix(image="hr", num_classes=5)):
        check(dataset, [*move, mix, lambda batch: batch._replace(hr=-batch.hr)])
    check(dataset, move, as_={"pixels": "hr", "labels": "label"})


def test_other_orders_and_ranks(pairs: LMDBDataset) -> None:
    move = [T.RandomDihedral(), T.RandomCrop(8)][1:]
    check(pairs, move, shuffle=None, weights=np.arange(COUNT) % 3, num_samples=50)
    check(pairs, move, repeat=2, shard=(1, 3))
    check(pairs.select([3, 9, 4, 3]), move, epochs=3)
    check(pairs.where("label > 2"), move, on_corrupt="skip")


def test_masks_and_floats(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = (
        {"image": rng.normal(0, 1, (16, 16, 2)).astype(np.float16), "mask": rng.integers(0, 9, (16, 16), np.uint8)}
        for _ in range(COUNT)
    )
    lmdbloader.write(samples, tmp_path / "d", fields={"image": fields.Image(), "mask": fields.Mask()})
    check(tmp_path / "d", [T.RandomDihedral(), T.RandomResizedCrop(12), T.RandomCrop(14, 2)])
    samples = ({"image": rng.integers(0, 65536, (16, 16, 3), np.uint16)} for _ in range(COUNT))
    lmdbloader.write(samples, tmp_path / "e")
    check(tmp_path / "e", [T.RandomDihedral(), T.ColorJitter(0.2), T.ToDtype(torch.bfloat16, scale=True)])


def test_clips(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for clip in range(3):
        (tmp_path / "clips" / f"{clip}").mkdir(parents=True)
        for k in range(6):
            frame = Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8))
            frame.save(tmp_path / "clips" / f"{clip}" / f"{k}.png")
    lmdbloader.convert(tmp_path / "clips", tmp_path / "d", layout="clips", progress=False)
    clips = lmdbloader.Clips(LMDBDataset(tmp_path / "d"), frames=3)
    check(
        clips, [T.RandomCrop(16), T.RandomDihedral(), T.GaussianNoise(sigma=0.1), T.ToDtype(torch.float32, scale=True)]
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on": "device"}, r"on='device': which one\? Write Loader\(..., device='cuda'"),
        ({"keep": "device"}, r"which one\? Write Loader\(..., device='cuda', keep='device'\)"),
        ({"on": "gpu"}, "on='gpu': expected 'cpu', or 'device'"),
        ({"on": "cuda", "device": "cpu"}, "on='cuda'"),
        ({"keep": "cuda"}, "expected 'memory', 'device' or None"),
        ({**ON, "transforms": [T.ColorJitter(0.2), T.RandomRotation(9)]}, "RandomRotation.*Put it first"),
        ({**ON, "transforms": [T.ColorJitter(0.2), T.RandAugment()]}, "RandAugment"),
        ({**KEEP, "transforms": [T.RandAugment()]}, "RandAugment"),
        ({**ON, "transforms": [degradations.real_esrgan(2)]}, r"on_device\(hr, samples"),
        ({**KEEP, "buckets": "size"}, "buckets"),
        ({**KEEP, "keep_fraction": 0.0}, "keep_fraction=0.0"),
    ],
)  # fmt: skip
def test_what_is_refused(pairs: LMDBDataset, options: Any, named: str) -> None:
    dataset = LMDBDataset(pairs.path, fields=["hr"])
    with pytest.raises(OptionError, match=named):
        Loader(dataset, 8, shuffle=True, **options)


def test_samples_without_compiled_images_are_refused(pairs: LMDBDataset, photographs: LMDBDataset) -> None:
    for dataset, named in ((LMDBDataset(pairs.path, fields=["label"]), "no image"), (photographs, "different")):
        with pytest.raises(OptionError, match=named):
            Loader(dataset, 1, shuffle=False, device="cpu", on="device")
    own = LMDBDataset(pairs.path, fields=["hr"], transform=lambda sample: sample)
    with pytest.raises(OptionError, match=r"own transform.*function of the batch"):
        Loader(own, 8, shuffle=False, device="cpu", on="device")


def test_too_little_memory_is_an_error_with_the_sizes(pairs: LMDBDataset) -> None:
    loader = Loader(pairs, 8, shuffle=True, device="cpu", keep="device", keep_fraction=0.25)
    nbytes = COUNT * 3 * (24 * 32 + 12 * 16)
    with (
        mock.patch("lmdbloader.base.system.free_memory", return_value=4 * nbytes - 1),
        pytest.raises(OptionError, match=r"the images take 84.4 KiB, and of the 337 KiB .*keep_fraction=0.25"),
    ):
        next(iter(loader))
    with mock.patch("lmdbloader.base.system.free_memory", return_value=4 * nbytes):
        assert len(list(loader)) == 4
    loader.close()


def test_damage_is_found_as_without_keeping(pairs: LMDBDataset, tmp_path: Path, caplog: Any) -> None:
    shutil.copytree(pairs.path, tmp_path / "d")
    pixels = LMDBDataset(pairs.path)[7].hr.numpy().tobytes()
    content = (tmp_path / "d" / "data.mdb").read_bytes()
    at = content.find(pixels[:200]) if pixels[:200] in content else -1
    assert at > 0
    (tmp_path / "d" / "data.mdb").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    dataset = LMDBDataset(tmp_path / "d")
    options: Any = {"shuffle": False, "device": "cpu", "keep": "device", "transforms": [T.RandomCrop(8)], "seed": 0}
    with pytest.raises(CorruptError, match="sample 7"):
        list(Loader(dataset, 8, **options))
    loader = Loader(dataset, 8, on_corrupt="skip", **options)
    with caplog.at_level(logging.WARNING, "lmdbloader"):
        for _ in range(2):
            assert sum(len(batch.hr) for batch in loader) == COUNT - 1
    assert any("read from the dataset in every epoch" in text for text in caplog.messages)
    loader.close()


def test_a_loader_continues_with_images_that_live_there(pairs: LMDBDataset) -> None:
    options: Any = {"shuffle": True, "seed": 3, "device": "cpu", "keep": "device", "transforms": [T.RandomCrop(8)]}
    loader = Loader(pairs, 8, **options)
    wanted = [batch for _ in range(2) for batch in loader]
    other = Loader(pairs, 8, **options)
    loop = iter(other)
    found = [next(loop), next(loop)]
    other.close()  # also while images are copied
    for again in (pickle.loads(pickle.dumps(other)), other):
        again.load_state_dict(other.state_dict())
        rest = list(again)
        wait_for(again)
        assert_same(found + rest + list(again), wanted, device="cpu")
        again.close()
    loader.set_resolution(4)
    assert [batch.hr.shape[2:] for batch in loader] == 4 * [(4, 4)]
    loader.close()


def test_on_a_device(pairs: LMDBDataset) -> None:
    options: Any = {"shuffle": True, "seed": 3, "transforms": [T.RandomCrop(8), T.ToDtype(torch.float32, scale=True)]}
    plain = Loader(pairs, 8, **options)
    wanted = [batch for _ in range(3) for batch in plain]
    with late_cuda(most_lag=0):  # the stand-in's copies are late, and its computations are not
        for more in ({"on": "device"}, {"keep": "device"}):
            loader = Loader(pairs, 8, device="cuda", **more, **options)
            found = list(loader)
            if "keep" in more:
                wait_for(loader)
            found += list(loader)
            found += list(loader)
            loader.close()
            assert_same(found, wanted, device=None)
        loader = Loader(pairs, 8, device="cuda", keep="device", keep_fraction=0.01, **options)
        with (
            mock.patch.object(torch.cuda, "mem_get_info", lambda device=None: (100_000, 2**30)),
            pytest.raises(OptionError, match=r"in the memory of cuda:0 keep_fraction=0.01 allows 1000 bytes"),
        ):
            next(iter(loader))
        loader.close()


def test_without_cuda_the_cpu_does_all(pairs: LMDBDataset, caplog: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = Loader(pairs, 8, shuffle=True, seed=3, device="cuda", on="device", transforms=[T.RandomCrop(8)])
    assert loader.device.type == "cpu" and "no CUDA device" in caplog.text
    assert_same(list(loader), list(Loader(pairs, 8, shuffle=True, seed=3, transforms=[T.RandomCrop(8)])), device="cpu")
    loader.close()


def test_the_device_resizes_no_jpegs(tmp_path: Path) -> None:
    """The CPU resizes a JPEG while it is decoded: decoded pixels would become others."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for k in range(12):
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        small.resize((64, 48), Image.Resampling.BICUBIC).save(tmp_path / "photos" / f"{k}.jpg", quality=90)
    lmdbloader.convert(tmp_path / "photos", tmp_path / "d", progress=False)
    resize, jitter = T.RandomResizedCrop(20), T.ColorJitter(0.2)
    for source in (tmp_path / "d", tmp_path / "photos"):
        check(source, [T.RandomCrop(32), T.RandomHorizontalFlip()])
        check(source, [resize, jitter], keeps=False)
        for transforms, more in (([resize], KEEP), ([jitter, resize], ON), ([T.Views([jitter, resize], [])], ON)):
            with pytest.raises(
                OptionError, match=r"RandomResizedCrop.*resize the decoded pixels of 'image'.*--codec lz4"
            ):
                Loader(source, 8, shuffle=True, transforms=transforms, **more)
