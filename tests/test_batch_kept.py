"""`Loader(keep="memory")`: the same batches bit for bit, of images that are decoded once."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batch_pipeline_files import COUNT, SOURCES, write_folder
from transform_lists import lists_of_transforms

import lmdbloader
from lmdbloader import Buckets, Clips, LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.base import system
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.kernels import entries
from lmdbloader.store import Readahead

CROPPED = (40, 36)
NAMES = ("files", "original", "recoded", "png")
CROPS = [T.RandomCrop(40), T.RandomDihedral()]
RESIZES = [T.RandomResizedCrop(CROPPED, (0.05, 1)), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
VIEWS = T.Views([T.RandomResizedCrop(32)], [T.RandomCrop(24), T.GaussianBlur(3)], [T.RandomResizedCrop(12)])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same photographs as they are, as files in a dataset, as recoded JPEGs, and as compressed pixels."""
    folder = tmp_path_factory.mktemp("kept")
    found = {name: folder / name for name in NAMES}
    found["files"].mkdir()
    write_folder(found["files"])
    lmdbloader.convert(found["files"], found["original"], workers=1, write_mode="original", jpeg_code="file")
    lmdbloader.convert(found["files"], found["recoded"], workers=1, write_mode="jpg")
    lmdbloader.convert(found["files"], found["png"], workers=1, codec="delta")
    return found


def tensors(batches: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of batches, of views and of what was drawn too."""
    if isinstance(batches, torch.Tensor):
        yield batches
    elif isinstance(batches, list | tuple | dict | Loader):
        for each in batches.values() if isinstance(batches, dict) else batches:
            yield from tensors(each)


def assert_equal(source: Any, batch_size: int, *, epochs: int = 3, **options: Any) -> None:
    """Assert that the batches of some epochs are equal with and without keep."""
    options = {"shuffle": True, "seed": 1, "num_threads": 2, **options}
    plain, kept = (Loader(source, batch_size, keep=keep, **options) for keep in (None, "memory"))
    for epoch in range(epochs):
        expected, found = (list(tensors(loader)) for loader in (plain, kept))
        assert len(expected) == len(found) > 0
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride()
            assert torch.equal(a, b), epoch


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.sampled_from([2**30, 2_000_000]), st.data())
def test_batches_are_equal_bit_for_bit(paths: dict[str, Path], name: str, free: int, data: st.DataObject) -> None:
    first = data.draw(
        st.sampled_from([
            T.RandomCrop(CROPPED), T.RandomResizedCrop(CROPPED, scale=(0.01, 1)), T.Resize(CROPPED, "bicubic"),
            T.RandomChoice([T.RandomCrop(CROPPED), T.RandomResizedCrop(CROPPED)]),
        ])
    )  # fmt: skip
    rest = data.draw(lists_of_transforms({"image": CROPPED}, 3, np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "free_memory", lambda: free)
        assert_equal(paths[name], 5, epochs=2, transforms=[first, *rest], seed=data.draw(st.integers(0, 9)))


@pytest.mark.parametrize(
    "options",
    [
        {"transforms": [*CROPS, T.ToDtype(torch.float16, scale=True)], "verify": False},
        {"transforms": RESIZES, "io": "pread", "memory_format": torch.channels_last},
        {"transforms": VIEWS, "return_params": True},
        {"transforms": RESIZES, "repeat": 3, "pad": True, "shard": (1, 2)},
        {"transforms": CROPS, "shuffle": None, "order": [3, 3, -1, 0, 3, 7]},
        {"transforms": [], "buckets": "size"},
        {"transforms": [T.ColorJitter(0.3)], "buckets": Buckets(64 * 64, 16)},
        {"transforms": RESIZES, "resolution": lmdbloader.ProgressiveResize(3, 0.5, 0.3, 0.3)},
    ],
)
def test_with_other_options(paths: dict[str, Path], options: dict[str, Any]) -> None:
    assert_equal(paths["original"], 7, **options)
    view = LMDBDataset(paths["recoded"]).select([5, 1, 1, 20, -2, 6])
    assert_equal(view, 2, **options | {"shuffle": True, "order": None})


def test_pairs_masks_tiles_and_clips(tmp_path: Path) -> None:
    photo = np.ascontiguousarray(SOURCES[0][:480, :480])
    large = [
        {"hr": np.roll(photo, 9 * k, 0), "lr": np.roll(photo, 9 * k, 0)[::2, ::2], "clip": "a", "frame": k}
        for k in range(6)
    ]
    for codec in ("lz4", "delta"):
        samples = ({**s, "mask": s["hr"][:, :, 0] // 32, "deep": s["lr"].astype(np.uint16) * 200} for s in large)
        fields = {"mask": lmdbloader.fields.Mask(ignore_index=7)}
        lmdbloader.write(samples, tmp_path / codec, codec=codec, fields=fields)
        assert_equal(tmp_path / codec, 4, transforms=[T.RandomResizedCrop(64), T.RandomHorizontalFlip()])
        assert_equal(Clips(LMDBDataset(tmp_path / codec, fields=["hr", "lr", "clip", "frame"]), 3), 2, transforms=CROPS)


def test_raw_pixels_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(system, "free_memory", lambda: 10)
    lmdbloader.write(({"image": SOURCES[k][:300, :300, :3]} for k in range(3)), tmp_path / "d", codec="raw")
    assert_equal(tmp_path / "d", 2)
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


@pytest.mark.parametrize("transforms", [CROPS, RESIZES])
@pytest.mark.parametrize("name", NAMES)
def test_later_epochs_do_not_read_what_is_kept(
    paths: dict[str, Path], name: str, transforms: Any, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "lmdbloader")
    copy = shutil.copytree(paths[name], tmp_path / "copy")
    loader, plain = (Loader(copy, 5, shuffle=True, seed=0, transforms=transforms, keep=k) for k in ("memory", None))
    expected = [list(tensors(plain)) for _ in range(2)]
    first = list(tensors(loader))
    for file in copy.glob("data*.mdb" if name != "files" else "*"):
        with open(file, "r+b") as data:
            data.write(bytes(file.stat().st_size))
    for epoch, found in zip(expected, [first, list(tensors(loader))], strict=True):
        assert all(map(torch.equal, epoch, found))
    (said,) = [r.getMessage() for r in caplog.records if "keep=" in r.getMessage()]
    assert f"{COUNT} of {COUNT} images are kept decoded" in said
    for lost in (plain, pickle.loads(pickle.dumps(loader))):  # copies are not pickled
        with pytest.raises(CorruptError):
            list(lost)


def test_what_does_not_fit_is_decoded_in_every_epoch(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(system, "free_memory", lambda: 4_000_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    calls: list[int] = []
    entry = entries.keep_jpeg
    monkeypatch.setattr(entries, "keep_jpeg", lambda *given: calls.append(given[-1]) or entry(*given))
    loader = Loader(paths["recoded"], 5, shuffle=True, transforms=RESIZES, keep="memory", num_threads=1)
    for _ in range(3):
        list(loader)
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    said = warning.getMessage()
    num_kept = sum(map(bool, calls))
    assert 0 < num_kept < COUNT
    assert f" {num_kept} of {COUNT} images" in said and "of 488 KiB; the others are decoded in every epoch" in said


@pytest.mark.parametrize("transforms", [CROPS, RESIZES])
@pytest.mark.parametrize("name", ["original", "recoded", "png"])
def test_damaged_images_are_the_same_errors(paths: dict[str, Path], name: str, transforms: Any, tmp_path: Path) -> None:
    shutil.copytree(paths[name], tmp_path / "d")
    offsets = LMDBDataset(tmp_path / "d").reader.index.arrays["image.offset"]
    with open(tmp_path / "d" / "data.mdb", "r+b") as data:
        for sample in (2, 13, 20):
            data.seek(int(offsets[sample]) + 200)
            data.write(bytes(4))
    errors, lost = [], []
    for keep in (None, "memory"):
        with pytest.raises(CorruptError) as caught:
            list(Loader(tmp_path / "d", 6, shuffle=False, transforms=transforms, keep=keep, seed=0))
        errors.append(str(caught.value))
        skipping = Loader(tmp_path / "d", 6, shuffle=True, transforms=transforms, keep=keep, seed=0, on_corrupt="skip")
        lost.append(([list(tensors(skipping)) for _ in range(2)], skipping.corrupt))
    assert errors[0] == errors[1]
    assert lost[0][1] == lost[1][1] and len(lost[0][1]) == 3
    for expected, found in zip(lost[0][0], lost[1][0], strict=True):
        assert all(map(torch.equal, expected, found))
    for verify in (False, True):
        assert_equal(LMDBDataset(tmp_path / "d"), 6, transforms=transforms, verify=verify, on_corrupt="skip")


def test_readahead_leaves_out_what_is_kept(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(Readahead, "is_resident", lambda self, rows: looked_at.append(len(rows)) or True)
    loader = Loader(paths["recoded"], 5, shuffle=True, transforms=CROPS, keep="memory")
    for is_first in (True, False):
        looked_at.clear()
        list(loader)
        assert (sum(looked_at) > 0) is is_first


def _epoch(loader: Loader, queue: Any) -> None:
    queue.put([tensor.numpy() for tensor in tensors(loader)])


def test_across_a_fork(paths: dict[str, Path]) -> None:
    plain, loader = (
        Loader(paths["recoded"], 5, shuffle=True, seed=0, transforms=RESIZES, keep=keep) for keep in (None, "memory")
    )
    batches = iter(loader)
    next(batches)  # some images are kept, and threads are at work
    expected = [list(tensors(plain)) for _ in range(2)][1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_epoch, args=(loader, queue))
    child.start()
    theirs = queue.get()
    child.join()
    list(batches)
    for a, b, c in zip(expected, theirs, list(tensors(loader)), strict=True):
        assert torch.equal(a, torch.from_numpy(b)) and torch.equal(a, c)


def test_options_that_are_out_of_range(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"keep": "disk"}, {"keep": True}, *({"keep_fraction": f} for f in (0, 1, -0.5, "a", True, None))):
        with pytest.raises(OptionError, match=next(iter(options))):
            Loader(paths["recoded"], 5, transforms=CROPS, shuffle=False, **options)
    with pytest.raises(OptionError, match="of one size"):
        Loader(paths["recoded"], 1, keep="memory")
    monkeypatch.setattr(system, "free_memory", lambda: None)
    with pytest.raises(OptionError, match="how much memory"):
        Loader(paths["recoded"], 5, transforms=CROPS, shuffle=False, keep="memory")
