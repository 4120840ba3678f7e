"""Transforms of torchvision v2, or a stand-in for it, on single samples and on whole batches."""

from __future__ import annotations

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
    plain = lmdbloader.Loader(dataset, 4)
    inverted = lmdbloader.Loader(dataset, 4, transforms=[T.RandomHorizontalFlip(0), invert])
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
