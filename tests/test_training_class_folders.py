"""Class folders as a source of batches: the same samples, order and pixels as a dataset converted from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from classification import RECIPES
from demos.class_folders import make_class_folders
from PIL import Image
from torch import Tensor
from training import class_folders
from training.class_folders import FolderLoader, list_classes, with_pillow

import lmdbloader
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.transforms import (
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Transform,
)

FLOAT = ToDtype(torch.float32, scale=True)
LEVEL = 1 / 255


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders `train` of PNG files of many sizes, and the dataset train.lmdb that is converted from them."""
    place = tmp_path_factory.mktemp("folders")
    make_class_folders(place, num_train=7, num_val=1, sides=(40, 90), num_classes=3)
    for path in (place / "train").rglob("*.jpg"):
        Image.open(path).save(path.with_suffix(".png"))
        path.unlink()
    lmdbloader.convert(place / "train", place / "train.lmdb", layout="classes", write_mode="raw", workers=1)
    return place


def make_loader(folder: Path, transforms: Sequence[Transform], **options: object) -> FolderLoader:
    return FolderLoader(list_classes(folder / "train"), 4, transforms=transforms, **options)  # type: ignore[arg-type]


def tagged(batches: FolderLoader) -> list[Tensor]:
    """Return the epoch's images, which tell samples and draws apart."""
    return [images.clone() for images, _ in batches]


_resize = Image.Image.resize


def resize_columns_first(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """Resize as every Pillow before 13 and pillow-simd do: the columns, then the rows."""
    return _resize(_resize(image, (size[0], image.height), resample), size, resample)


# --- Equal to a dataset ---


@pytest.mark.parametrize("size", [24, 37])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_that_are_scored_have_the_same_pixels(
    folder: Path, size: int, memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pillow 13 now and then begins with the rows, and then rounds one value in eight differently.
    monkeypatch.setattr(Image.Image, "resize", resize_columns_first)
    transforms = RECIPES["imagenet"].evaluation_transforms(size, torch.float32)
    files = make_loader(folder, transforms, order="sequential", memory_format=memory_format)
    dataset = lmdbloader.LMDBDataset(folder / "train.lmdb")
    loader = lmdbloader.Loader(dataset, 4, transforms=transforms, memory_format=memory_format)
    std = torch.tensor(RECIPES["imagenet"].std).view(3, 1, 1)
    changed = 0
    for (images, labels), (expected, expected_labels) in zip(files, loader, strict=True):
        assert torch.equal(labels, expected_labels)
        assert images.is_contiguous(memory_format=memory_format)
        difference = (images - expected).abs() * std
        assert float(difference.max()) < 1.01 * LEVEL, "rounding once more may cost a level"
        changed += int((difference > LEVEL / 2).sum())
    assert changed < 0.01 * 21 * 3 * size * size


def test_files_labels_and_scored_pixels_are_those_of_torchvisions_image_folder(folder: Path) -> None:
    try:
        from torchvision import transforms as theirs
        from torchvision.datasets import ImageFolder
    except (ImportError, RuntimeError) as error:  # the latter: it is of another build of torch
        pytest.skip(f"torchvision: {error}")
    recipe, found = RECIPES["imagenet"], list_classes(folder / "train")
    units = [theirs.ToTensor(), theirs.Normalize(recipe.mean, recipe.std)]
    expected = ImageFolder(folder / "train", theirs.Compose([theirs.Resize(32), theirs.CenterCrop(28), *units]))
    assert [Path(path) for path, _ in expected.samples] == list(found.files)
    assert (tuple(expected.classes), tuple(expected.targets)) == (found.classes, found.labels)
    files = make_loader(folder, recipe.evaluation_transforms(28, torch.float32), order="sequential")
    torch.testing.assert_close(torch.cat(tagged(files)), torch.stack([image for image, _ in expected]))


def test_processes_share_an_epoch_as_they_share_a_loaders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lmdbloader.LMDBDataset(folder / "train.lmdb")
    for rank in (0, 1):
        monkeypatch.setattr(class_folders, "resolve_shard", lambda shard, rank=rank: (rank, 2))
        for drop_last in (False, True):
            files = make_loader(folder, [CenterCrop(8)], drop_last=drop_last)
            loader = lmdbloader.Loader(
                dataset, 4, shuffle=True, seed=0, drop_last=drop_last, transforms=[CenterCrop(8)], shard=(rank, 2)
            )
            assert len(files) == len(loader)
            for (images, labels), expected in zip(files, loader, strict=True):
                assert torch.equal(images, expected[0])
                assert torch.equal(labels, expected[1])


# --- The draws ---


def test_draws_depend_on_seed_epoch_and_sample_not_on_workers(folder: Path) -> None:
    transforms = RECIPES["imagenet"].training_transforms(16, torch.float32)
    before = torch.get_rng_state()
    found = {}
    for name, options in {"here": {}, "workers": {"num_workers": 2}, "seed": {"seed": 1}}.items():
        files = make_loader(folder, transforms, **options)
        found[name] = [tagged(files), tagged(files)]
        files.close()
    assert torch.equal(torch.get_rng_state(), before), "the model's random numbers are its own"
    for epoch in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(found["here"][epoch], found["workers"][epoch], strict=True))
    for other in (found["here"][1], found["seed"][0]):
        assert not torch.equal(found["here"][0][0], other[0])


def test_small_images_are_padded_cropped_mirrored_and_erased() -> None:
    columns = np.arange(32, dtype=np.uint8)[None, :, None].repeat(32, 0).repeat(3, 2)
    rows = columns.transpose(1, 0, 2)
    pixels = np.concatenate([columns[..., :1], rows[..., :1], np.full((32, 32, 1), 200, np.uint8)], axis=2)
    image = Image.fromarray(pixels)
    torch.manual_seed(0)
    seen: set[tuple[int, int]] = set()
    flips = 0
    for _ in range(60):
        window = with_pillow(image, [RandomCrop(32, padding=4, fill=(9, 9, 9)), RandomHorizontalFlip()]).int()
        inside = window[..., 2] == 200
        assert set(window[~inside].flatten().tolist()) <= {9}
        down, across = (int(inside.any(axis).sum()) for axis in (1, 0))
        assert min(down, across) >= 28 and max(down, across) <= 32
        line = window[..., 0][inside].reshape(down, across)[0]
        flips += bool(line[0] > line[-1])
        seen.add((down, across))
    assert len(seen) > 10
    assert 15 <= flips <= 45
    erasing = RandomErasing(1.0, (1 / 16, 1 / 16), (1.0, 1.0))
    normalize = Normalize((0.0, 0.0, 0.0), (0.5, 0.5, 0.5))
    erased = with_pillow(Image.fromarray(np.full((32, 32, 3), 255, np.uint8)), [FLOAT, normalize, erasing])
    assert float(erased.max()) == 2.0
    assert int((erased == 0).all(dim=2).sum()) == 8 * 8


# --- Places ---


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_rest_of_an_epoch_follows_from_its_state(folder: Path, num_workers: int) -> None:
    transforms = [RandomResizedCrop(8)]
    files = make_loader(folder, transforms, num_workers=num_workers)
    files.set_epoch(3)
    whole = tagged(files)
    assert files.state_dict() == {"epoch": 4, "position": 0, "length": 21, "seed": 0}

    files.set_epoch(3)
    batches = iter(files)
    first = [next(batches)[0].clone(), next(batches)[0].clone()]
    state = files.state_dict()
    del batches
    assert state == {"epoch": 3, "position": 8, "length": 21, "seed": 0}
    other = make_loader(folder, transforms, num_workers=num_workers)
    other.load_state_dict(state)
    other.set_epoch(3)
    for found, expected in zip([*first, *other], whole, strict=True):
        assert torch.equal(found if isinstance(found, Tensor) else found[0], expected)
    # An epoch that was left is begun again.
    files.set_epoch(0)
    again = tagged(files)
    assert len(again) == len(whole) == 6
    files.close()
    other.close()
    with pytest.raises(FormatError, match="in other samples than this run"):
        files.load_state_dict({**state, "length": 20})


# --- Bad input ---


@pytest.mark.parametrize(
    "transform",
    [
        RandomResizedCrop(8, scale=(0.5, 1.0)),
        Resize(8, interpolation="bicubic"),
        Resize((8, 9)),
        RandomErasing(),
        ColorJitter(0.5),
    ],
)
def test_what_pillow_would_do_otherwise_is_refused(folder: Path, transform: Transform) -> None:
    with pytest.raises(OptionError, match="--folder does not support"):
        make_loader(folder, [CenterCrop(8), transform])
