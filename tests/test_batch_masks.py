"""Masks move with the images of their sample, and their labels are never mixed: in samples, batches and windows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_lists import lists_of_transforms
from transform_reference import COLORS, apply_all

import lmdbloader
from lmdbloader import fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.format import codecs, layout

COUNT, IGNORED = 3, 200
# Names of fields and the (height, width) of their images and masks.
LAYOUTS = {
    "alike": {"image": (37, 23), "mask": (37, 23)},
    "square": {"mask": (24, 24), "image": (24, 24)},
    "smaller": {"image": (40, 36), "mask": (20, 18)},
    "larger": {"mask": (45, 30), "image": (15, 10)},
    "alone": {"mask": (21, 34)},
}
LABELS = {np.uint8: (0, 1, 7, 255), np.uint16: (0, 1, 300, 65535)}


def labels(height: int, width: int, dtype: Any, seed: Any) -> np.ndarray:
    """Return a mask (H, W): noise above, one label below."""
    mask = np.random.default_rng(seed).choice(LABELS[dtype], (height, width)).astype(dtype)
    mask[height // 2 :] = 7
    return mask


def sample_of(sizes: dict[str, tuple[int, int]], dtype: Any, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    image = {"image": rng.integers(0, 256, (*sizes.get("image", (1, 1)), 3), np.uint8)}
    return {name: labels(*size, dtype, seed) if name == "mask" else image[name] for name, size in sizes.items()}


def write(path: Path, samples: Any, kind: str = "lz4", **more: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        if kind == "tiled":
            patch.setattr(codecs, "TILED_ABOVE_NBYTES", 0)
            patch.setattr(layout, "TILE_SIZE", 16)
        declared = {"mask": fields.Mask(ignore_index=IGNORED)}
        lmdbloader.write(samples, path, codec="raw" if kind == "raw" else "lz4", fields=declared, **more)
    return path


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives the path of a dataset, and its images and masks (C, H, W)."""
    folder = tmp_path_factory.mktemp("masks")
    made: dict[Any, Any] = {}

    def get(name: str, dtype: Any, kind: str) -> tuple[Path, list[dict[str, np.ndarray]]]:
        key = (name, np.dtype(dtype).name, kind)
        if key not in made:
            samples = [sample_of(LAYOUTS[name], dtype, i) for i in range(COUNT)]
            planes = [{n: np.moveaxis(np.atleast_3d(a), 2, 0) for n, a in s.items()} for s in samples]
            made[key] = write(folder / "-".join(key), samples, kind), planes
        return made[key]

    return get


def suits_masks(t: Any) -> bool:
    return t.fields is None or not isinstance(t, COLORS | T.RandomErasing | T.Cutout) or "mask" not in t.fields


@settings(max_examples=80)
@given(st.data())
def test_any_list_of_transforms_moves_masks_as_the_plain_definition_does(datasets: Any, data: st.DataObject) -> None:
    name, dtype = data.draw(st.sampled_from(sorted(LAYOUTS))), data.draw(st.sampled_from([np.uint8, np.uint16]))
    path, images = datasets(name, dtype, data.draw(st.sampled_from(["raw", "lz4", "tiled"])))
    drawn = data.draw(lists_of_transforms(LAYOUTS[name], 3, np.uint8))
    of_images = (*COLORS.__args__, T.RandomErasing, T.Cutout, T.ToDtype, T.Normalize)
    transforms = [t for t in drawn if suits_masks(t) and not (name == "alone" and isinstance(t, of_images))]
    dataset = lmdbloader.LMDBDataset(path, io=data.draw(st.sampled_from(["mmap", "pread"])))
    formats = st.sampled_from([torch.contiguous_format, torch.channels_last])
    seed, memory_format = data.draw(st.integers(0, 3)), data.draw(formats)
    loader = lmdbloader.Loader(
        dataset, 2, order="sequential", transforms=transforms, seed=seed, num_threads=1, memory_format=memory_format
    )
    found = torch.cat([batch.mask for batch in loader])
    assert found.dtype == (torch.uint8 if dtype == np.uint8 else torch.uint16) and found.ndim == 3
    for i in range(COUNT):
        expected = apply_all(images[i], transforms, seed, 0, i, columns_first=False, masks={"mask": IGNORED})["mask"]
        np.testing.assert_array_equal(found[i].numpy(), expected.values[0])


def test_an_image_and_its_mask_show_the_same_place(tmp_path: Path) -> None:
    # The image is its own mask, so what a crop, flip or turn does to one shows in the other.
    rng = np.random.default_rng(0)
    pairs = [{"image": (m := rng.integers(0, 9, (30, 30), np.uint8)), "mask": m} for _ in range(4)]
    declared = {"image": fields.Image(), "mask": fields.Mask()}
    lmdbloader.write(pairs, tmp_path / "d", fields=declared)
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    transforms = [T.RandomCrop(24, padding=4, fill=255), T.RandomHorizontalFlip(), T.RandomDihedral(), T.CenterCrop(20)]
    for batch in lmdbloader.Loader(dataset, 4, order="random", transforms=transforms):
        assert torch.equal(batch.image[:, 0], batch.mask)
    for sample in dataset.transformed(transforms):
        assert torch.equal(sample.image[0], sample.mask)


def test_masks_do_not_change_what_is_drawn_for_the_images(datasets: Any) -> None:
    path, _ = datasets("alike", np.uint8, "lz4")
    transforms = [T.RandomResizedCrop(16), T.ColorJitter(0.4), T.RandomErasing(1.0)]
    both, alone = (
        lmdbloader.LMDBDataset(path, fields=names).transformed(transforms, seed=0)
        for names in (["image", "mask"], ["image"])
    )
    assert all(torch.equal(a.image, b.image) for a, b in zip(both, alone, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_samples_have_masks_as_they_were_written(datasets: Any, dtype: Any) -> None:
    path, images = datasets("alike", dtype, "raw")
    dataset = lmdbloader.LMDBDataset(path)
    for sample, expected in zip(dataset, images, strict=True):
        assert sample.mask.dtype == (torch.uint8 if dtype == np.uint8 else torch.uint16)
        np.testing.assert_array_equal(sample.mask.numpy(), expected["mask"][0])
    window = dataset.crop(1, top=3, left=5, height=9, width=11, field="mask")
    np.testing.assert_array_equal(window.numpy(), images[1]["mask"][0, 3:12, 5:16])
    found = pickle.loads(pickle.dumps(dataset))[2].mask
    np.testing.assert_array_equal(found.numpy(), images[2]["mask"][0])


def test_masks_of_different_sizes_are_a_list_of_planes(tmp_path: Path) -> None:
    sizes = [(9, 4), (5, 8), (9, 4)]
    path = write(tmp_path / "d", [sample_of({"image": size, "mask": size}, np.uint8, 0) for size in sizes])
    dataset = lmdbloader.LMDBDataset(path)
    assert [tuple(s.mask.shape) for s in dataset] == sizes
    (batch,) = lmdbloader.Loader(dataset, 3, order="random", transforms=[T.CenterCrop(4)])
    assert batch.mask.shape == (3, 4, 4)
    cut = dataset.where("mask.width == 8")
    assert [tuple(s.mask.shape) for s in cut] == [(5, 8)]


@pytest.mark.parametrize(
    ("transform", "advice"),
    [
        (T.ToDtype(torch.float32, True, fields=("image", "mask")), r"Write fields=\('image',\)\."),
        (T.ColorJitter(0.4, fields=("mask",)), "Leave ColorJitter out"),
        (T.Cutout(3, fields=("mask", "image")), r"Write fields=\('image',\)\."),
    ],
)
def test_a_transform_that_would_change_labels_is_refused(datasets: Any, transform: Any, advice: str) -> None:
    path, _ = datasets("alike", np.uint8, "raw")
    with pytest.raises(OptionError, match=f"mask holds masks, which only transforms that move pixels.* {advice}"):
        lmdbloader.LMDBDataset(path).transformed([transform])


@pytest.mark.parametrize("size", [(5, 5), (13, 40), (50, 9), 11])
def test_a_resize_takes_the_labels_that_torchvision_takes(datasets: Any, size: Any) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    tensors = pytest.importorskip("torchvision.tv_tensors")
    path, _ = datasets("alike", np.uint8, "raw")
    dataset = lmdbloader.LMDBDataset(path)
    for sample, resized in zip(dataset, dataset.transformed([T.Resize(size)]), strict=True):
        expected = v2.Resize(size)(tensors.Mask(sample.mask))
        assert torch.equal(resized.mask, expected.as_subclass(torch.Tensor))
