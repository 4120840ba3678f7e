"""Transforms of torchvision v2, or a stand-in for it, on single samples and on whole batches."""

from __future__ import annotations

from contextlib import nullcontext as nothing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import lmdbloader
from lmdbloader import transforms as T


class Invert:
    """As torchvision.transforms.v2.Transform: takes any structure, and changes the first tensor in it only."""

    def __call__(self, *inputs: Any) -> Any:
        values, structure = tree_flatten(inputs if len(inputs) > 1 else inputs[0])
        first = next(k for k, value in enumerate(values) if isinstance(value, torch.Tensor))
        values[first] = 255 - values[first]
        return tree_unflatten(values, structure)


def inverts() -> list[Any]:
    """Return the stand-in, and the real one if it can be imported."""
    try:
        from torchvision.transforms import v2
    except Exception:  # not installed, or made for another torch
        return [Invert()]
    return [Invert(), v2.RandomInvert(p=1.0)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("torchvision") / "d"
    samples = (
        {"image": rng.integers(0, 256, (8, 9, 3)).astype(np.uint8), "label": i, "name": f"n{i}"} for i in range(10)
    )
    lmdbloader.write(samples, path, codec="raw")
    return path


@pytest.mark.parametrize("invert", inverts(), ids=lambda t: type(t).__name__)
def test_on_whole_batches(path: Path, invert: Any) -> None:
    dataset = lmdbloader.LMDBDataset(path)
    plain = lmdbloader.Loader(dataset, 4, order="random", seed=0)
    inverted = lmdbloader.Loader(dataset, 4, order="random", seed=0, transforms=[T.RandomHorizontalFlip(0), invert])
    for a, b in zip(plain, inverted, strict=True):
        assert torch.equal(255 - a.image, b.image)
        assert torch.equal(a.label, b.label) and a.name == b.name
    images, labels = lmdbloader.LMDBDataset(path, fields=["image", "label"])[0]
    assert torch.equal(invert(images), 255 - images) and labels == 0


@pytest.mark.parametrize("invert", inverts(), ids=lambda t: type(t).__name__)
def test_on_single_samples(path: Path, invert: Any) -> None:
    class Inverted(lmdbloader.LMDBDataset):
        def transform(self, sample: Any) -> Any:
            return invert(sample)

    plain, inverted = lmdbloader.LMDBDataset(path), Inverted(path)
    assert torch.equal(255 - plain[3].image, inverted[3].image) and inverted[3].name == "n3"
    for loader in (
        lmdbloader.Loader(inverted, 5, order="sequential"),
        torch.utils.data.DataLoader(inverted, batch_size=5),
    ):
        batch = next(iter(loader))
        assert torch.equal(batch[0][3], 255 - plain[3].image)
        assert torch.as_tensor(batch[1]).tolist() == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose samples hold two images and arrays of one's size."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("torchvision") / "pairs"
    images = [rng.integers(0, 256, (24, 20, 3)).astype(np.uint8) for _ in range(12)]
    samples = ({"label": k, "a": a, "b": 255 - a, "depth": a[..., 0].astype(np.float32)} for k, a in enumerate(images))
    lmdbloader.write(samples, path, codec="raw")
    return path


def assert_in_step(sample: Any) -> None:
    """Check that all fields still show the same place of the same image."""
    assert all(type(value) is torch.Tensor for value in (sample.a, sample.b, sample.depth))
    assert torch.equal(sample.b, 255 - sample.a)
    assert torch.equal(sample.depth, sample.a[..., 0, :, :].float())


def test_images_and_arrays_of_their_size_are_changed_together(pairs: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not among what the tests need")
    steps = [
        v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.RandomCrop(9), v2.RandomRotation(45),
        v2.RandomResizedCrop(9, interpolation=v2.InterpolationMode.NEAREST), v2.Resize((8, 8), interpolation=0),
        v2.Compose([v2.RandomCrop(20), v2.RandomHorizontalFlip()]),
    ]  # fmt: skip
    plain = lmdbloader.LMDBDataset(pairs)
    torch.manual_seed(0)
    num_changed = 0
    for step in steps[:3] + steps[4:]:
        own = lmdbloader.LMDBDataset(pairs, transform=step)
        for k in range(12):
            assert_in_step(own[k])
            num_changed += not torch.equal(own[k].a, plain[k].a)
        with pytest.warns(UserWarning, match="once for a whole batch") if "Random" in repr(step) else nothing():
            loader = lmdbloader.Loader(plain, 5, order="random", transforms=[step])
        for batch in loader:
            assert_in_step(batch)
    assert num_changed > 50
    turned = lmdbloader.LMDBDataset(pairs, fields=["a", "b"], transform=steps[3])[0]
    inside = turned.a.sum(0) > 0
    assert torch.equal(turned.b[:, inside], 255 - turned.a[:, inside])


def test_what_cannot_be_changed_together_is_an_error(tmp_path: Path) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not among what the tests need")
    rng = np.random.default_rng(0)
    hr = rng.integers(0, 256, (16, 20, 3)).astype(np.uint8)
    lmdbloader.write([{"lr": hr[::2, ::2].copy(), "hr": hr}] * 3, tmp_path / "pairs")
    own = lmdbloader.LMDBDataset(tmp_path / "pairs", transform=v2.RandomCrop(4))
    with pytest.raises(ValueError, match="multiple HxW dimensions"):
        own[0]
    flipped = lmdbloader.LMDBDataset(tmp_path / "pairs", transform=v2.RandomHorizontalFlip(1.0))[0]
    assert torch.equal(flipped.lr, flipped.hr[:, ::2, 1::2])
