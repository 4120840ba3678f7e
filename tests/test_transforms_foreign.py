"""Names of other libraries: each is an error with a line, and what the lines name exists here."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms import foreign

LINES = foreign.INSTEAD


@pytest.mark.parametrize("name", LINES)
def test_a_name_has_its_line_as_an_attribute_and_when_it_is_imported(name: str) -> None:
    message = rf"^lmdbloader.transforms has no {name}\. (Write|Leave it out|Use torchvision's own, in Python)\b.*\.$"
    with pytest.raises(AttributeError, match=message):
        getattr(T, name)
    with pytest.raises(ImportError, match=message) as caught:
        exec(f"from lmdbloader.transforms import {name}", {})
    assert caught.value.name == name
    assert not hasattr(T, name)


EVERYTHING: dict[str, Any] = {
    **vars(T), "torch": torch, "p": 0.5, "size": 8, "scale": (0.5, 1), "ratio": (1, 2), "padding": 2, "fill": 0,
    "threshold": 128, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "magnitude": 0.4, "value": 0,
    "mean": [0.5], "std": [0.2], "gt_size": 8, "smoothing": 0.1,
    "alpha": 0.2, "num_classes": 10, "dtype": torch.float32,
}  # fmt: skip


def test_the_transforms_that_lines_name_can_be_pasted() -> None:
    lines = re.sub(r"v2\.\w+\(", "", "\n".join(LINES.values()))
    calls = set(re.findall(r"\b[A-Z]\w+\([^()]*\)", lines))
    calls -= {call for call in calls if call.startswith(("Loader(", "LMDBDataset("))}
    assert len(calls) > 20
    for call in calls:
        made = eval(call, dict(EVERYTHING))
        assert isinstance(made, T.Transform | T.BatchFunction | T.SanitizeBoxes), call


def test_a_name_of_no_library_is_an_attribute_error_like_any_other() -> None:
    with pytest.raises(AttributeError, match=r"^module 'lmdbloader.transforms' has no attribute 'RandomNonsense'$"):
        T.RandomNonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'RandomNonsense'"):
        exec("from lmdbloader.transforms import RandomNonsense", {})


def test_a_mistyped_name_is_found() -> None:
    message = r"has no attribute 'RandomHorisontalFlip'\. Did you mean RandomHorizontalFlip\?$"
    with pytest.raises(AttributeError, match=message):
        T.RandomHorisontalFlip  # noqa: B018
    with pytest.raises(ImportError, match=message):
        exec("from lmdbloader.transforms import RandomHorisontalFlip", {})
    assert not hasattr(T, "__randomcrop__")


def test_names_that_exist_here_have_no_line() -> None:
    assert not LINES.keys() & {*T.__all__, *vars(T)}
    assert importlib.import_module("lmdbloader.transforms.foreign") is foreign  # the module itself, not a foreign name


def test_a_function_among_compiled_transforms_is_named(tmp_path: Any) -> None:
    lmdbloader.write([{"image": torch.zeros(3, 8, 8, dtype=torch.uint8)}] * 3, tmp_path / "d")
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    with pytest.raises(OptionError, match=r"the function len is not compiled; .*LMDBDataset\(path, transform=...\)"):
        dataset.transformed([len])  # type: ignore[list-item]


class _OfTorchvision(torch.nn.Module):
    __module__ = "torchvision.transforms.v2._transform"

    def __init__(self, *transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms


def of_torchvision(name: str, *transforms: Any) -> Any:
    """Return a stand-in for a transform of torchvision v2."""
    return type(name, (_OfTorchvision,), {"__module__": _OfTorchvision.__module__})(*transforms)


def test_a_compose_has_the_list_to_write() -> None:
    names = "ToImage", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"
    made = of_torchvision("Compose", *map(of_torchvision, names))
    line = (
        "Write transforms=[RandomResizedCrop(...), RandomHorizontalFlip(...), ToDtype(torch.float32, scale=True), "
        "Normalize(...)] with those of lmdbloader.transforms, which take the same arguments."
    )
    assert foreign.ported(made) == foreign.ported([made]) == line
    with pytest.raises(OptionError) as caught:
        foreign.listed_transforms(made)
    assert str(caught.value) == f"transforms=Compose(...): expected a list. {line}"


def test_a_compose_of_what_is_not_compiled_names_it() -> None:
    line = foreign.ported(of_torchvision("Compose", of_torchvision("Resize"), of_torchvision("RandAugment")))
    assert line.startswith("Write transforms=[Resize(...)] with those of lmdbloader.transforms")
    assert line.endswith(
        "Use torchvision's own, in Python, for every sample: LMDBDataset(path, transform=v2.RandAugment(...))."
    )


def test_torchvisions_crops_in_a_loader_of_different_sizes_have_the_list_to_write(tmp_path: Any) -> None:
    images = [np.zeros((8 + i, 9, 3), np.uint8) for i in range(3)]
    lmdbloader.write([{"image": image, "label": 0} for image in images], tmp_path / "d")
    steps = [of_torchvision("RandomResizedCrop"), of_torchvision("ToTensor")]
    expected = (
        r"come out in different shapes, .*torchvision's RandomResizedCrop is called with the whole batch, .*"
        r"Write transforms=\[RandomResizedCrop\(\.\.\.\), ToDtype\(torch\.float32, scale=True\)\]"
    )
    for given in (steps, [of_torchvision("Compose", *steps)]):
        with pytest.raises(OptionError, match=expected):
            lmdbloader.Loader(tmp_path / "d", 2, shuffle=True, transforms=given)
    with pytest.raises(OptionError, match="would come out in different shapes") as caught:
        lmdbloader.Loader(tmp_path / "d", 2, transforms=[print])
    assert str(caught.value).endswith("any sizes.")


SCALED, NORMALISED = [T.ToDtype(torch.float32, scale=True)], [T.ToDtype(torch.float32, scale=True), T.Normalize(0.5, 2)]


def of_pixels(name: str = "RandomInvert") -> Any:
    """Return a stand-in for a transform of torchvision that takes bytes, or floats from 0 to 1."""
    made = of_torchvision(name)
    made.forward = lambda values: values
    return made


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("colours") / "d"
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8), "label": 0}] * 8, path)
    return path


REFUSED = r"RandomInvert gets the pixels of 'image' from -0.25 to 0.25; .*v2\.Compose\(\[v2\.RandomInvert\(\.\.\.\), "


def test_torchvisions_transforms_of_pixels_do_not_follow_a_compiled_normalize(colours: Any) -> None:
    after = of_torchvision("Compose", of_torchvision("RandomHorizontalFlip"), of_pixels())
    own = lmdbloader.LMDBDataset(colours, transform=after)
    with pytest.raises(OptionError, match=REFUSED):
        lmdbloader.Loader(own, 4, transforms=NORMALISED)
    with pytest.raises(OptionError, match=REFUSED):
        own.transformed(NORMALISED)[0]
    for functions in ([after], [of_torchvision("RandomHorizontalFlip"), of_pixels()]):
        with pytest.raises(OptionError, match=REFUSED):
            lmdbloader.Loader(colours, 4, transforms=[*NORMALISED, *functions])
    assigned = lmdbloader.LMDBDataset(colours)
    loader = lmdbloader.Loader(assigned, 4, transforms=NORMALISED)
    assigned.transform = after
    with pytest.raises(OptionError, match=REFUSED):
        next(iter(loader))
    with pytest.raises(OptionError, match=r"ColorJitter gets the pixels of 'image' from 0 to 255"):
        lmdbloader.Loader(
            lmdbloader.LMDBDataset(colours, transform=of_pixels("ColorJitter")),
            4,
            transforms=[T.ToDtype(torch.float32)],
        )


def test_torchvisions_transforms_of_pixels_follow_what_gives_them_pixels(colours: Any) -> None:
    scaled = [T.ToDtype(torch.float32), T.Normalize(0, 255)]
    for compiled in ([], SCALED, scaled):
        own = lmdbloader.LMDBDataset(colours, transform=of_pixels())
        assert len(next(iter(lmdbloader.Loader(own, 4, transforms=compiled))).label) == 4
    # What comes between may have turned them into pixels.
    for between in (of_pixels("Normalize"), of_pixels("Lambda"), lambda batch: batch):
        functions = [*NORMALISED, between, of_pixels()]
        assert len(next(iter(lmdbloader.Loader(colours, 4, transforms=functions))).label) == 4
    unclipped = of_pixels("GaussianNoise")
    unclipped.clip = False
    own = lmdbloader.LMDBDataset(colours, transform=unclipped)
    assert len(next(iter(lmdbloader.Loader(own, 4, transforms=NORMALISED))).label) == 4
