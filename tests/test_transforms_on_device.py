"""Transforms that torch carries out on a device: the bits of a Loader's batches, whatever is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transform_lists import lists_of_transforms, lists_of_values

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.compilation import compile_program
from lmdbloader.transforms.device_program import DeviceProgram
from lmdbloader.transforms.values import ImageField

COUNT = 7
LAYOUT = {"hr": (24, 32), "lr": (12, 16)}
KINDS = [(np.uint8, 3), (np.uint8, 1), (np.uint16, 3), (np.float32, 3), (np.float16, 1)]
# What lists are made of; colours are added to the second.
MOVES = ("crop", "square", "pad", "center", "move", "rrc", "resize", "flip", "turn", "flip", "turn")
COLORS: tuple[str, ...] = ()


def images_of(kind: tuple[Any, int], layout: dict[str, tuple[int, int]] = LAYOUT) -> dict[str, torch.Tensor]:
    """Return noise, in which a wrong pixel shows."""
    (dtype, channels), rng = kind, np.random.default_rng(0)
    is_float = np.dtype(dtype).kind == "f"

    def noise(*shape: int) -> Any:
        return rng.normal(0, 40, shape).astype(dtype) if is_float else rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype)

    return {name: torch.from_numpy(noise(COUNT, channels, *size)) for name, size in layout.items()}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, LMDBDataset]:
    """Return datasets of pairs of each kind, and one of images and masks."""
    folder, found = tmp_path_factory.mktemp("on_device"), dict[Any, LMDBDataset]()
    sets: dict[Any, dict[str, torch.Tensor]] = {kind: images_of(kind) for kind in KINDS}
    labels = images_of((np.uint8, 1), {"mask": LAYOUT["hr"]})["mask"][:, 0]
    sets["masks"] = {"image": sets[KINDS[0]]["hr"], "mask": labels}
    for number, (kind, images) in enumerate(sets.items()):
        samples = [{name: image[k] for name, image in images.items()} for k in range(COUNT)]
        declared = {name: fields.Mask() if name == "mask" else fields.Image() for name in images}
        lmdbloader.write(samples, folder / str(number), fields=declared)
        found[kind] = LMDBDataset(folder / str(number))
    return found


def stored(dataset: LMDBDataset) -> dict[str, torch.Tensor]:
    return next(iter(Loader(dataset, COUNT, shuffle=False)))._asdict()


def check(dataset: LMDBDataset, transforms: Any, device: str = "cpu") -> None:
    """Compare the batches of two epochs."""
    given_ones, seed = {name: images.to(device) for name, images in stored(dataset).items()}, 3
    try:
        loader = Loader(dataset, COUNT, shuffle=False, seed=seed, transforms=transforms)
    except OptionError as error:
        assume("Put ToDtype" not in str(error))  # a drawn mean that is of other pixels
        raise
    for epoch in range(2):
        loader.set_epoch(epoch)
        (wanted,) = loader
        found = T.on_device(transforms, given_ones, range(COUNT), seed=seed, epoch=epoch)
        for name, images in wanted._asdict().items():
            assert found[name].dtype == images.dtype and found[name].device.type == device
            np.testing.assert_array_equal(bits(found[name]), bits(images), name)


def bits(images: torch.Tensor) -> Any:
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[images.itemsize]
    return images.cpu().contiguous().view(words).numpy()


@st.composite
def lists_with_containers(draw: Any, layout: Any, channels: int, dtype: Any) -> list[Any]:
    """Draw a list, of which some transforms are in containers."""
    found = list[Any]()
    size = layout["hr"]
    for _ in range(draw(st.integers(1, 3))):
        kept = T.RandomHorizontalFlip(), T.RandomVerticalFlip(p=0.8), T.RandomTranslate(4, 7)
        some = draw(st.lists(st.sampled_from(kept), min_size=1, max_size=3))
        container = draw(st.sampled_from([T.RandomApply, T.RandomChoice, T.RandomOrder]))
        size = tuple(2 * draw(st.integers(1, 14)) for _ in size)
        cubic = draw(st.sampled_from(["bilinear", "bicubic"]))
        sizing = st.sampled_from([
            T.Resize(size, cubic), T.RandomResizedCrop(size, interpolation=cubic),
            T.RandomCrop(size, 2, pad_if_needed=True, fill=3),
            T.RandomChoice([[T.Resize((20, 30)), T.RandomCrop(size, pad_if_needed=True)], T.RandomResizedCrop(size)]),
        ])  # fmt: skip
        turned = [[T.RandomDihedral()], []][size[0] != size[1]]
        found += [container(some), draw(sizing), *turned][draw(st.integers(0, 1)) :]
    return found + draw(lists_of_values([None], channels, np.dtype(dtype).kind == "f"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_batches_are_those_of_a_loader(datasets: dict[Any, LMDBDataset], kind: Any, data: Any) -> None:
    dtype, channels = kind
    makers = [lists_with_containers(LAYOUT, channels, dtype)] * 2
    makers[0] = lists_of_transforms(LAYOUT, channels, dtype, MOVES + COLORS)
    for maker in makers:
        check(datasets[kind], data.draw(maker))
