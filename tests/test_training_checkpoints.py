"""Checkpoints: a saved one is loaded, a damaged or foreign one is an error, and a save that fails replaces nothing."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training.checkpoints import load_checkpoint, save_checkpoint

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError, FormatError, OptionError

SETTINGS = {"model": "linear", "scale": 2}


def trained(*sizes: int) -> dict[str, Any]:
    """Return a model and its optimizer after a step."""
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(sizes[-1]))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, sizes[0])).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def states(run: dict[str, Any]) -> Any:
    return copy.deepcopy([run["model"].state_dict(), run["optimizer"].state_dict(), torch.get_rng_state()])


def assert_equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "run.pt", epoch=1, settings=SETTINGS, **trained(3, 4, 2))
    return tmp_path / "run.pt"


def test_a_saved_checkpoint_is_loaded_and_torch_reads_it_too(path: Path) -> None:
    run, other = trained(3, 4, 2), trained(3, 4, 2)
    save_checkpoint(path, epoch=5, settings=SETTINGS, **run)
    saved = states(run)
    torch.rand(3)
    assert load_checkpoint(path, settings=SETTINGS, **other) == 5
    assert_equal(states(other), saved)
    assert_equal(torch.load(path, weights_only=True)["model"], saved[0])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.floats(0, 1, exclude_max=True), damage=st.sampled_from(["bit", "page", "cut"]), bit=st.integers(0, 7)
)  # fmt: skip
def test_damage_is_an_error_or_changes_nothing(path: Path, place: float, damage: str, bit: int) -> None:
    content = bytearray(path.read_bytes())
    where = int(place * len(content))
    if damage == "bit":
        content[where] ^= 1 << bit
    elif damage == "page":
        content[where : where + 512] = bytes(byte ^ 0xFF for byte in content[where : where + 512])
    else:
        del content[where:]
    sound, run = trained(3, 4, 2), trained(3, 4, 2)
    load_checkpoint(path, settings=SETTINGS, **sound)
    other = path.with_name("damaged.pt")
    other.write_bytes(content)
    try:
        load_checkpoint(other, settings=SETTINGS, **run)
    except CorruptError:
        return
    assert_equal(states(run), states(sound))  # a bit between the parts of the archive


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_path_that_is_not_a_file_is_neither_read_nor_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run.pt")
    with pytest.raises(CorruptError, match=r"run\.pt"):
        load_checkpoint(tmp_path / "run.pt", settings=SETTINGS, **trained(3, 2))
    with pytest.raises(DestinationError, match=r"run\.pt"):
        save_checkpoint(tmp_path / "run.pt", epoch=1, settings=SETTINGS, **trained(3, 2))
    assert os.listdir(tmp_path) == ["run.pt"] and not (tmp_path / "run.pt").is_file()


def test_another_optimizer_and_other_settings_are_refused(path: Path) -> None:
    run = trained(3, 4, 2)
    with pytest.raises(FormatError, match=r"made with scale=2; this run has scale=3"):
        load_checkpoint(path, settings={**SETTINGS, "scale": 3}, **run)
    run["optimizer"] = torch.optim.Adam([{"params": list(layer.parameters())} for layer in run["model"]])
    with pytest.raises(FormatError, match="another model or optimizer"):
        load_checkpoint(path, settings=SETTINGS, **run)


def test_the_place_of_a_loader_comes_with_it(path: Path, tmp_path: Path) -> None:
    lmdbloader.write(({"x": np.full(3, i)} for i in range(10)), tmp_path / "d")
    first, second, third = (lmdbloader.Loader(tmp_path / "d", 2, shuffle=True, seed=seed) for seed in (0, 0, 1))
    rest = iter(first)
    next(rest)
    run = trained(3, 4, 2)
    save_checkpoint(path, epoch=0, settings=SETTINGS, loader=first, **run)
    load_checkpoint(path, settings=SETTINGS, loader=second, **run)
    assert [batch.x.tolist() for batch in second] == [batch.x.tolist() for batch in rest]
    with pytest.raises(OptionError, match="another seed"):
        load_checkpoint(path, settings=SETTINGS, loader=third, **run)


@pytest.mark.parametrize("value", [Path("a/b"), np.int64(3), np.zeros(3), float("nan"), len, {"deep": [Path("a")]}])
def test_settings_that_could_not_be_loaded_are_not_saved(path: Path, value: Any) -> None:
    before = path.read_bytes()
    with pytest.raises(OptionError, match=r"settings\['src'\]"):
        save_checkpoint(path, epoch=2, settings={"scale": 2, "src": value}, **trained(3, 2))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["run.pt"]
