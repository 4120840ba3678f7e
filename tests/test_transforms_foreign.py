"""Transforms of torchvision in our lists: what would be silently different is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError


class _OfTorchvision(torch.nn.Module):
    __module__ = "torchvision.transforms.v2._transform"

    def __init__(self, *transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms


def of_torchvision(name: str, *transforms: Any) -> Any:
    """Return a stand-in for a transform of torchvision v2."""
    return type(name, (_OfTorchvision,), {"__module__": _OfTorchvision.__module__})(*transforms)


SCALED, NORMALIZED = [T.ToDtype(torch.float32, scale=True)], [T.ToDtype(torch.float32, scale=True), T.Normalize(0.5, 2)]


def of_pixels(name: str = "RandomInvert") -> Any:
    """Return a stand-in for a transform of torchvision that takes bytes, or floats from 0 to 1."""
    made = of_torchvision(name)
    made.forward = lambda values: values
    return made


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("colors") / "d"
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8), "label": 0}] * 8, path)
    return path


REFUSED = r"RandomInvert gets the pixels of 'image' from -0.25 to 0.25; .*v2\.Compose\(\[v2\.RandomInvert\(\.\.\.\), "


def test_torchvisions_transforms_of_pixels_do_not_follow_a_compiled_normalize(colors: Any) -> None:
    after = of_torchvision("Compose", of_torchvision("RandomHorizontalFlip"), of_pixels())
    own = lmdbloader.LMDBDataset(colors, transform=after)
    with pytest.raises(OptionError, match=REFUSED):
        lmdbloader.Loader(own, 4, transforms=NORMALIZED)
    with pytest.raises(OptionError, match=REFUSED):
        own.transformed(NORMALIZED)[0]
    for functions in ([after], [of_torchvision("RandomHorizontalFlip"), of_pixels()]):
        with pytest.raises(OptionError, match=REFUSED):
            lmdbloader.Loader(colors, 4, transforms=[*NORMALIZED, *functions])
    assigned = lmdbloader.LMDBDataset(colors)
    loader = lmdbloader.Loader(assigned, 4, transforms=NORMALIZED)
    assigned.transform = after
    with pytest.raises(OptionError, match=REFUSED):
        next(iter(loader))
    with pytest.raises(OptionError, match=r"ColorJitter gets the pixels of 'image' from 0 to 255"):
        lmdbloader.Loader(
            lmdbloader.LMDBDataset(colors, transform=of_pixels("ColorJitter")),
            4,
            transforms=[T.ToDtype(torch.float32)],
        )


def test_torchvisions_transforms_of_pixels_follow_what_gives_them_pixels(colors: Any) -> None:
    scaled = [T.ToDtype(torch.float32), T.Normalize(0, 255)]
    for compiled in ([], SCALED, scaled):
        own = lmdbloader.LMDBDataset(colors, transform=of_pixels())
        assert len(next(iter(lmdbloader.Loader(own, 4, transforms=compiled))).label) == 4
    # What comes between may have turned them into pixels.
    for between in (of_pixels("Normalize"), of_pixels("Lambda"), lambda batch: batch):
        functions = [*NORMALIZED, between, of_pixels()]
        assert len(next(iter(lmdbloader.Loader(colors, 4, transforms=functions))).label) == 4
    unclipped = of_pixels("GaussianNoise")
    unclipped.clip = False
    own = lmdbloader.LMDBDataset(colors, transform=unclipped)
    assert len(next(iter(lmdbloader.Loader(own, 4, transforms=NORMALIZED))).label) == 4
