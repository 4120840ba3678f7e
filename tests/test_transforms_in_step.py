"""torchvision v2 on samples and batches with several images: all of them change together, or there is an error.

A stand-in for torchvision has its rule: without `tv_tensors.Image` among the values, the first tensor alone is changed.
`test_torchvision.py` has the same with the real one, where it can be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.of_torchvision import in_step


class Image(torch.Tensor):
    __module__ = "torchvision.tv_tensors._image"


class Mask(torch.Tensor):
    __module__ = "torchvision.tv_tensors._mask"


class Transform(torch.nn.Module):
    __module__ = "torchvision.transforms.v2._transform"

    def forward(self, *inputs: Any) -> Any:
        values, structure = tree_flatten(inputs if len(inputs) > 1 else inputs[0])
        if any(isinstance(value, Image) for value in values):
            chosen = [isinstance(value, Image | Mask) for value in values]
        else:
            first = next((k for k, value in enumerate(values) if isinstance(value, torch.Tensor)), -1)
            chosen = [k == first for k in range(len(values))]
        new = [self.transform(v) if is_chosen else v for v, is_chosen in zip(values, chosen, strict=True)]
        return tree_unflatten(new, structure)

    def transform(self, value: Any) -> Any:
        raise NotImplementedError


class Mirror(Transform):
    __module__ = "torchvision.transforms.v2._geometry"

    def transform(self, value: Any) -> Any:
        return value.as_subclass(torch.Tensor).flip(-1).as_subclass(type(value))


class RandomMirror(Mirror):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p


class ColorJitter(Mirror):
    def make_params(self, flat_inputs: Any) -> dict[str, Any]:
        return {}


class Compose(Transform):
    def __init__(self, transforms: list[Any]) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, *inputs: Any) -> Any:
        found = inputs[0]
        for transform in self.transforms:
            found = transform(found)
        return found


class RandomChoice(Compose):
    pass


class MixUp(ColorJitter):
    pass


class OldCompose:
    __module__ = "torchvision.transforms.transforms"

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


OldCompose.__name__ = "Compose"


class ToTensor(Mirror):
    pass


for named in (ColorJitter, RandomMirror, Compose, RandomChoice, MixUp, ToTensor):
    named.__module__ = Mirror.__module__


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the stand-in among the imported modules."""
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.tv_tensors"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for cls in (Image, Mask):
        setattr(sys.modules["torchvision.tv_tensors"], cls.__name__, cls)
    yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of pairs, and arrays with the size of one of the images, or without."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("in_step") / "d"

    def samples() -> Iterator[dict[str, Any]]:
        for k in range(12):
            hr = rng.integers(0, 256, (16, 20, 3)).astype(np.uint8)
            yield {
                "matrix": np.arange(6.0).reshape(2, 3) + k, "lr": hr[::2, ::2].copy(), "label": k, "hr": hr,
                "depth": hr[..., 0].astype(np.float32), "planes": hr.transpose(2, 0, 1).astype(np.int32),
                "name": f"n{k}",
            }  # fmt: skip

    lmdbloader.write(samples(), path, codec="raw")
    return path


# The axis of the columns, counted from the end.
COLUMNS = {"lr": -1, "hr": -1, "depth": -1, "planes": -1}


def assert_mirrored(found: Any, plain: Any, names: Any = COLUMNS) -> None:
    """Check that these fields are mirrored, the others are unchanged, and tensors are plain ones."""
    assert found._fields == plain._fields
    for name, before, after in zip(plain._fields, plain, found, strict=True):
        expected = before.flip(COLUMNS[name]) if name in names else before
        if isinstance(before, torch.Tensor):
            assert type(after) is torch.Tensor and torch.equal(after, expected), name
        elif isinstance(before, list):  # torch collates text to tuples
            assert list(after) == before, name
        else:
            assert after == before, name


def mirrors() -> list[Any]:
    return [Mirror(), Compose([Mirror(), Mirror(), Mirror()]), torch.nn.Sequential(Mirror()), OldCompose([Mirror()])]


@pytest.mark.parametrize("mirror", mirrors(), ids=lambda m: type(m).__name__)
@pytest.mark.usefixtures("torchvision")
def test_a_transform_of_samples_changes_everything_of_an_images_size(path: Path, mirror: Any) -> None:
    plain, own = lmdbloader.LMDBDataset(path), lmdbloader.LMDBDataset(path, transform=mirror)
    assert_mirrored(own[3], plain[3])
    assigned = lmdbloader.LMDBDataset(path)
    assigned.transform = mirror  # type: ignore[method-assign]
    assert_mirrored(assigned[3], plain[3])
    for found, expected in zip(*(lmdbloader.Loader(d, 5, order="sequential") for d in (own, plain)), strict=True):
        assert_mirrored(found, expected)
    batch = next(iter(lmdbloader.dataloader(own, 5, num_workers=0)))
    assert_mirrored(batch, next(iter(lmdbloader.Loader(plain, 5, order="sequential"))))


@pytest.mark.parametrize("mirror", mirrors(), ids=lambda m: type(m).__name__)
@pytest.mark.usefixtures("torchvision")
def test_a_transform_of_batches_changes_everything_of_an_images_size(path: Path, mirror: Any) -> None:
    plain = lmdbloader.LMDBDataset(path)
    mirrored = lmdbloader.Loader(plain, 5, order="random", transforms=[T.ColorJitter(0), mirror], seed=0)
    for found, expected in zip(mirrored, lmdbloader.Loader(plain, 5, order="random", seed=0), strict=True):
        assert_mirrored(found, expected)


@pytest.mark.usefixtures("torchvision")
def test_an_array_whose_channels_are_last_is_refused(tmp_path: Path) -> None:
    sample = {"image": np.zeros((16, 20, 3), np.uint8), "flow": np.zeros((16, 20, 2), np.float32)}
    lmdbloader.write([sample], tmp_path / "d")
    with pytest.raises(OptionError, match="field 'flow'"):
        lmdbloader.LMDBDataset(tmp_path / "d", transform=Mirror())[0]


def mirror_inside(sample: Any) -> Any:
    return Mirror()(sample)


class Own:
    def __call__(self, sample: Any) -> Any:
        return Mirror()(sample)


class Overriding(lmdbloader.LMDBDataset):
    def transform(self, sample: Any) -> Any:
        return Mirror()(sample)


NAMES = ["lr", "label", "hr", "depth", "planes"]


@pytest.mark.parametrize("own", [mirror_inside, partial(mirror_inside), Own()], ids=["function", "partial", "object"])
@pytest.mark.usefixtures("torchvision")
def test_a_function_of_yours_that_calls_one_changes_them_all(path: Path, own: Any) -> None:
    plain = lmdbloader.LMDBDataset(path, fields=NAMES)
    assert_mirrored(lmdbloader.LMDBDataset(path, fields=NAMES, transform=own)[3], plain[3])
    assert_mirrored(Overriding(path, fields=NAMES)[3], plain[3])
    for found, expected in zip(
        lmdbloader.Loader(plain, 4, order="random", transforms=[own], seed=0),
        lmdbloader.Loader(plain, 4, order="random", seed=0),
        strict=True,
    ):
        assert_mirrored(found, expected)


def test_without_torchvision_functions_get_plain_tensors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision.transforms.v2", raising=False)
    types = set()

    def note(sample: Any) -> Any:
        types.update(map(type, sample))
        return sample

    lmdbloader.LMDBDataset(path, fields=["lr", "hr"], transform=note)[0]
    assert types == {torch.Tensor}


@pytest.mark.parametrize("wrong", [ToTensor(), Compose([ToTensor(), Mirror()])], ids=["alone", "in Compose"])
@pytest.mark.usefixtures("torchvision")
def test_to_tensor_which_scales_no_tensors_is_refused(path: Path, wrong: Any) -> None:
    dataset = lmdbloader.LMDBDataset(path, fields=["hr", "label"])
    for use in (
        lambda: lmdbloader.LMDBDataset(path, transform=wrong)[0],
        lambda: lmdbloader.Loader(dataset, 2, order="random", transforms=[wrong]),
    ):
        with pytest.raises(
            OptionError, match=r"^torchvision's ToTensor .* Write v2.ToDtype\(torch.float32, scale=True\)"
        ):
            use()


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (RandomMirror(), "RandomMirror"),
        (ColorJitter(), "ColorJitter"),
        (Compose([Mirror(), ColorJitter()]), "ColorJitter"),
        (RandomChoice([Mirror(), MixUp()]), "RandomChoice"),
    ],
    ids=["p", "params", "inside", "choice"],
)
@pytest.mark.usefixtures("torchvision")
def test_one_draw_for_a_whole_batch_is_warned_of(path: Path, transform: Any, name: str) -> None:
    dataset = lmdbloader.LMDBDataset(path)
    with pytest.warns(UserWarning, match=rf"{name}.* draws once for a whole batch.*transform=v2.{name}") as caught:
        lmdbloader.Loader(dataset, 2, order="random", transforms=[transform])
    assert caught[0].filename == __file__
    assert ("lmdbloader.transforms.ColorJitter is compiled" in str(caught[0].message)) == (name == "ColorJitter")


class Lambda(Transform):
    __module__ = "torchvision.transforms.v2._misc"

    def __init__(self, *types: type) -> None:
        super().__init__()
        self.types = types or (object,)


def test_a_lambda_of_v2_that_would_change_labels_is_refused() -> None:
    message = (
        r"^v2\.Lambda\(function\) is called with each of image, label, .*Write v2\.Lambda\(function, torch\.Tensor\)\.$"
    )
    kinds = {"image": "image", "label": "int"}
    for given in (Lambda(), torch.nn.Sequential(Mirror(), Lambda())):
        with pytest.raises(OptionError, match=message):
            in_step(given, kinds)
    for accepted, fields in ((Lambda(torch.Tensor), kinds), (Lambda(), {"image": "image"})):
        assert in_step(accepted, fields).__wrapped__ is accepted
