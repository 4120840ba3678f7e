"""Transforms that torch carries out on a device: the bits of a Loader's batches, whatever is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA, assert_same
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transform_lists import WHATS, lists_of_transforms, lists_of_values

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
WHATS_HERE = tuple(what for what in WHATS if what != "warp")


def images_of(kind: tuple[Any, int], layout: dict[str, tuple[int, int]] = LAYOUT) -> dict[str, torch.Tensor]:
    """Return noise, in which a wrong pixel shows."""
    (dtype, channels), rng = kind, np.random.default_rng(0)
    is_float = np.dtype(dtype).kind == "f"

    def noise(*shape: int) -> Any:
        return (
            rng.normal(0, 40, shape).astype(dtype)
            if is_float
            else rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype)
        )

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
        assert_same(found, wanted._asdict(), device=device)


@st.composite
def lists_with_containers(draw: Any, layout: Any, channels: int, dtype: Any) -> list[Any]:
    """Draw a list, of which some transforms are in containers."""
    found = list[Any]()
    size = layout["hr"]
    for _ in range(draw(st.integers(1, 3))):
        kept = [T.RandomHorizontalFlip(), T.RandomVerticalFlip(p=0.8), T.RandomTranslate(4, 7)]
        if np.dtype(dtype).kind != "f":
            kept += [T.ColorJitter(0.5, 0.5, 0.5, 0.1), T.GaussianBlur(3), T.GaussianNoise(), T.RandomSolarize(99)]
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
    makers[0] = lists_of_transforms(LAYOUT, channels, dtype, WHATS_HERE)
    for maker in makers:
        check(datasets[kind], data.draw(maker))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_masks_move_with_their_images(datasets: dict[Any, LMDBDataset], data: Any) -> None:
    layout = dict.fromkeys(("image", "mask"), LAYOUT["hr"])
    drawn = data.draw(lists_of_transforms(layout, 3, np.uint8, WHATS_HERE))
    check(datasets["masks"], [t for t in drawn if getattr(t, "moves", False) or t.fields is None])


def program_of(dataset: LMDBDataset, transforms: Any, views: Any = None, **more: Any) -> DeviceProgram:
    images = [ImageField(name, t.shape[1], t.dtype, False, t.shape[2:]) for name, t in stored(dataset).items()]
    return DeviceProgram(compile_program(transforms, images, views), images, seed=3, **more)


def test_views_are_those_of_a_loader(datasets: dict[Any, LMDBDataset]) -> None:
    views = T.Views([T.RandomCrop(12), T.RandomHorizontalFlip()], [T.RandomResizedCrop(8), T.RandomErasing(p=1.0)])
    both = [T.RandomDihedral(), T.RandomVerticalFlip()][1:]
    (wanted,) = Loader(datasets[KINDS[0]], COUNT, shuffle=False, seed=3, transforms=[*both, views])
    images = list(stored(datasets[KINDS[0]]).values())
    for given_ones in (images, images * 2):
        found = program_of(datasets[KINDS[0]], both, views).run(given_ones, np.arange(COUNT), 0)
        for image, name in zip(found, ("hr", "lr", "hr", "lr"), strict=True):
            assert any(torch.equal(image, view) for view in getattr(wanted, name))


def test_what_is_done_already_is_skipped(datasets: dict[Any, LMDBDataset]) -> None:
    first = [T.RandomApply([T.RandomCrop((20, 24), 4)], p=1.0), T.RandomResizedCrop(16)]
    transforms = [*first, T.RandomDihedral(), T.RandomCrop(8), T.RandomApply([T.RandomVerticalFlip()])]
    dataset = datasets[KINDS[0]]
    ((halfway,), (wanted,)) = (
        Loader(dataset, COUNT, shuffle=False, seed=3, transforms=part) for part in (first, transforms)
    )
    # A container is an operation, too.
    found = program_of(dataset, transforms, done=(3,)).run(list(halfway), np.arange(COUNT), 0)
    assert all(map(torch.equal, found, wanted))


def test_memory_format_and_arithmetic_of_the_caller(datasets: dict[Any, LMDBDataset]) -> None:
    dataset, transforms = datasets[KINDS[0]], [T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True)]
    (wanted,) = Loader(dataset, COUNT, shuffle=False, seed=3, transforms=transforms)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu"):
            program = program_of(dataset, transforms, channels_last=True)
            found = program.run([*stored(dataset).values()], np.arange(COUNT), 0)
    finally:
        torch.set_float32_matmul_precision(before)
    for image, expected in zip(found, wanted, strict=True):
        assert image.is_contiguous(memory_format=torch.channels_last) and torch.equal(image, expected)


def test_a_tensor_that_no_transform_changes(datasets: dict[Any, LMDBDataset]) -> None:
    images = stored(datasets[KINDS[0]])["hr"]
    found = T.on_device([T.RandomHorizontalFlip(0.5)], images, torch.arange(COUNT), seed=0, epoch=2)
    assert found.shape == images.shape and not torch.equal(found, images)
    assert torch.equal(T.on_device([], images, range(COUNT), seed=0, epoch=0), images)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS_CUDA) for kind in KINDS], ids=str)
def test_a_gpu_gives_the_same_bits(datasets: dict[Any, LMDBDataset], kind: Any) -> None:
    erasing = T.RandomErasing(1.0, value=(1, 2, 3)[: kind[1]])
    moves = [T.RandomCrop(24, 4), T.RandomDihedral(), T.RandomResizedCrop((20, 12)), T.RandomVerticalFlip()]
    check(datasets[kind], [*moves, T.ToDtype(torch.bfloat16, scale=True), erasing], DEVICE)
    check(datasets[kind], [T.Resize(20, "bicubic"), T.RandomChoice([T.RandomTranslate(4, 7), []])], DEVICE)


IMAGES = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("transforms", "images", "samples", "named"),
    [
        ([T.RandomRotation(10)], IMAGES, range(4), "RandomRotation"),
        ([T.RandomApply([T.RandAugment()])], IMAGES, range(4), "RandAugment"),
        ([T.MixUp(num_classes=3)], IMAGES, range(4), r"batch = MixUp\(.*\)\(batch\)"),
        ([len], IMAGES, range(4), "len"),
        (T.Views([], []), IMAGES, range(4), "one view"),
        ([T.RandomCrop(9)], IMAGES, range(4), "'image'"),
        ([T.RandomCrop(4, fields=("hr",))], IMAGES, range(4), "'hr'"),
        ([], IMAGES, range(5), "samples"),
        ([], IMAGES, [0.5] * 4, "samples"),
        ([], IMAGES.int(), range(4), "int32"),
        ([], {"hr": IMAGES, "lr": IMAGES[:2]}, range(4), "'lr'"),
        ([], {"hr": IMAGES, "mask": IMAGES[:, 0].float()}, range(4), "'mask'"),
        ([], {}, range(4), "0 samples"),
        ([], IMAGES.numpy(), range(4), "ndarray"),
    ],
)
def test_what_is_refused(transforms: Any, images: Any, samples: Any, named: str) -> None:
    with pytest.raises(OptionError, match=named):
        T.on_device(transforms, images, samples, seed=0, epoch=0)
