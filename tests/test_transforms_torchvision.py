"""Transforms with torchvision's names: its arguments in its order, and its results on equal draws.

`tests/data/torchvision` holds both as torchvision 0.29 has them. Where torchvision is installed, it is asked again.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision_cases import CASES, EPOCH, NUM_SAMPLES, SEED, Case

import lmdbloader
from lmdbloader import transforms as T

IMAGES = {"image": lmdbloader.fields.Image()}
DATA = Path(__file__).parent / "data" / "torchvision"
STORED = json.loads((DATA / "signatures.json").read_text())
RESULTS = np.load(DATA / "results.npz")
# What torchvision takes by keyword only may be positional here.
MAY_BE_POSITIONAL = {"alpha", "num_classes"}
# What only torchvision can do: Python's own TypeError says so.
NOT_COMPILED = {"inplace", "labels_getter", "max_size", "padding_mode"}


@pytest.mark.parametrize("name", STORED["signatures"])
def test_the_arguments_are_torchvisions_in_its_order_with_its_defaults(name: str) -> None:
    expected = [each for each in STORED["signatures"][name] if each[0] not in NOT_COMPILED]
    ours = list(inspect.signature(getattr(T, name)).parameters.values())
    assert [p.name for p in ours[: len(expected)]] == [argument for argument, _, _ in expected]
    for parameter, (argument, is_positional, default) in zip(ours, expected, strict=False):
        assert (parameter.kind is parameter.POSITIONAL_OR_KEYWORD) >= is_positional, argument
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not is_positional:
            assert argument in MAY_BE_POSITIONAL
        assert (parameter.default is parameter.empty) == (default == []), argument
        if default:
            found = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            assert found == default[0] and isinstance(found, bool) == isinstance(default[0], bool), argument
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(expected) :]), "our own arguments are keyword-only"


def test_the_table_of_signatures_is_whole() -> None:
    assert set(STORED["signatures"]) == set(STORED["names"]) & set(T.__all__) - {"Transform"}
    assert len(STORED["signatures"]) == 33


def found(case: Case, path: Path) -> np.ndarray:
    """Return the results of compiled code."""
    images = case.images().transpose(0, 2, 3, 1)
    lmdbloader.write(({"image": image} for image in images), path, codec="raw", fields=IMAGES)
    view = lmdbloader.LMDBDataset(path).transformed(case.ours(), seed=SEED)
    view.set_epoch(EPOCH)
    return np.stack([view[k].image.numpy() for k in range(NUM_SAMPLES)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_torchvisions_on_equal_draws(case: Case, tmp_path: Path) -> None:
    expected, ours = RESULTS[case.name], found(case, tmp_path / "d")
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    off = np.abs(ours.astype(np.float64) - expected)
    assert off.max() <= case.off
    assert (off > 0).mean() <= case.share


def test_every_transform_with_torchvisions_name_has_a_case() -> None:
    compared = {name for case in CASES for name, _, _ in case.calls}
    assert compared == set(STORED["signatures"]) - {"MixUp", "CutMix", "RandomApply", "RandomChoice", "RandomOrder"}
    assert len(np.unique([RESULTS[case.name].tobytes() for case in CASES])) >= len(CASES) - 1


def installed() -> Any:
    """Return the program that asks torchvision; skip the test if it cannot be imported."""
    try:
        import torchvision
    except Exception as error:  # not installed, or made for another torch
        pytest.skip(f"torchvision cannot be imported ({type(error).__name__}); the stored results were compared")
    spec = importlib.util.spec_from_file_location("make_torchvision", DATA / "make_torchvision.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, torchvision


def test_the_installed_torchvision_still_has_what_is_stored() -> None:
    maker, torchvision = installed()
    for case in CASES:
        off = np.abs(maker.results(case).astype(np.float64) - RESULTS[case.name])
        assert off.max() <= case.off + 1e-6, case.name
    for name, stored in STORED["signatures"].items():
        now = json.loads(json.dumps(maker.signature(getattr(torchvision.transforms.v2, name))))
        assert [argument for argument, _, _ in now] == [argument for argument, _, _ in stored], name
