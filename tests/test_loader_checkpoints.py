"""Checkpoints: a saved one can be loaded, and a refused one changes nothing."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LmdbloaderError, OptionError
from lmdbloader.loader import checkpoints
from lmdbloader.loader.checkpoints import load_checkpoint, save_checkpoint

SETTINGS = {"model": "linear", "scale": 2}


def trained(*sizes: int) -> dict[str, Any]:
    """Return a model and its optimiser after a step."""
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


def assert_refused(path: Path, run: dict[str, Any], kind: type[LmdbloaderError], message: str, **more: Any) -> None:
    """Check that a checkpoint is refused, and that nothing of a run has changed."""
    before = states(run)
    with pytest.raises(kind, match=message):
        load_checkpoint(path, settings=SETTINGS, **run, **more)
    assert_equal(states(run), before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "run.pt", epoch=1, settings=SETTINGS, **trained(3, 4, 2))
    return tmp_path / "run.pt"


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the content of a checkpoint, and sign it as `save_checkpoint` does."""
    content = torch.load(path, weights_only=True)
    change(content)
    with open(path, "wb") as file:
        archive = checkpoints._Digested(file)
        torch.save(content, archive)  # type: ignore[arg-type]
        archive.finish()


def test_a_saved_checkpoint_is_loaded(path: Path) -> None:
    run, other = trained(3, 4, 2), trained(3, 4, 2)
    save_checkpoint(path, epoch=5, settings=SETTINGS, **run)
    saved = states(run)
    torch.rand(3)
    assert load_checkpoint(path, settings=SETTINGS, **other) == 5
    assert_equal(states(other), saved)


def test_a_rewritten_checkpoint_is_one(path: Path) -> None:
    rewrite(path, lambda content: content.update(epoch=7))
    assert load_checkpoint(path, settings=SETTINGS, **trained(3, 4, 2)) == 7


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run.pt")
    reader = threading.Thread(
        target=assert_refused,
        args=(tmp_path / "run.pt", trained(3, 2), CorruptError, r"run\.pt: is .*; expected the file of a checkpoint"),
        daemon=True,
    )
    reader.start()
    reader.join(60)
    assert not reader.is_alive()


@pytest.mark.parametrize("sizes", [(3, 5, 2), (3, 4, 4, 2), (3, 2)])
def test_another_model_of_equal_settings(path: Path, sizes: tuple[int, ...]) -> None:
    assert_refused(path, trained(*sizes), FormatError, r"run\.pt: made with another model: the checkpoint has .* for '")


def test_another_optimizer(path: Path) -> None:
    run = trained(3, 4, 2)
    groups = [{"params": list(layer.parameters())} for layer in run["model"]]
    run["optimizer"] = torch.optim.Adam(groups)
    assert_refused(path, run, FormatError, r"has groups of \[6\] weights, and this one has \[2, 2, 2\]")


@pytest.mark.parametrize("part", ["settings", "epoch", "model", "optimizer", "scaler", "loader", "rng", "cuda_rng"])
@pytest.mark.parametrize("value", [None, 3.5, "text", [torch.zeros(3)]])
def test_parts_that_are_missing_or_something_else(path: Path, part: str, value: Any) -> None:
    if part == "cuda_rng" and isinstance(value, list):
        value = (3,)
    run = trained(3, 4, 2)
    rewrite(path, lambda content: content.update({part: value}))
    assert_refused(path, run, CorruptError, rf"run\.pt: its part '{part}' is missing or invalid")
    rewrite(path, lambda content: content.pop(part))
    assert_refused(path, run, CorruptError, rf"run\.pt: its part '{part}' is missing or invalid")


@pytest.mark.parametrize(
    "optimizer",
    [
        {}, {"state": {}}, {"param_groups": []}, {"state": [], "param_groups": []}, {"state": {}, "param_groups": {}},
        {"state": {}, "param_groups": [{}]}, {"state": {}, "param_groups": [3]}, {"state": {0: 5}, "param_groups": []},
        {"state": {}, "param_groups": [{"params": 3}]},
    ],
)  # fmt: skip
def test_states_that_no_optimizer_has(path: Path, optimizer: Any) -> None:
    rewrite(path, lambda content: content.update(optimizer=optimizer))
    assert_refused(path, trained(3, 4, 2), CorruptError, "its part 'optimizer'")


@pytest.mark.parametrize("rng", [torch.zeros(3), torch.zeros(16, dtype=torch.uint8)])
def test_random_states_of_another_size(path: Path, rng: torch.Tensor) -> None:
    rewrite(path, lambda content: content.update(rng=rng))
    assert_refused(path, trained(3, 4, 2), CorruptError, "its part 'rng'")


def test_a_scaler_without_its_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaler:
        def state_dict(self) -> dict[str, float]:
            return {"scale": 2.0, "growth": 1.0}

    rewrite(path, lambda content: content.update(scaler={"scale": 4.0}))
    assert_refused(path, trained(3, 4, 2), CorruptError, "its part 'scaler'", scaler=Scaler())


def test_a_loader_is_not_moved_by_a_checkpoint_that_is_refused(path: Path, tmp_path: Path) -> None:
    lmdbloader.write(({"x": np.full(3, i)} for i in range(10)), tmp_path / "d")
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(tmp_path / "d"), 2, shuffle=True, seed=0, num_threads=1)
    loader.set_epoch(3)
    before = loader.state_dict()
    assert_refused(path, trained(3, 5, 2), FormatError, "another model", loader=loader)
    for place in ({"epoch": 1}, {"version": 1, "position": "4"}, {**before, "seed": 9, "position": 4}):
        rewrite(path, lambda content, place=place: content.update(loader=place))  # type: ignore[misc]
        assert_refused(path, trained(3, 4, 2), OptionError, "load_state_dict", loader=loader)
    assert loader.state_dict() == before
    loader.close()


@pytest.mark.parametrize(
    "value", [Path("a/b"), np.int64(3), np.zeros(3), float("nan"), len, object(), {"deep": [Path("a")]}]
)
def test_settings_that_could_not_be_loaded_are_not_saved(path: Path, value: Any) -> None:
    before = path.read_bytes()
    with pytest.raises(OptionError, match=r"settings\['src'\] is .* of type .*, which a checkpoint cannot hold"):
        save_checkpoint(path, epoch=2, settings={"scale": 2, "src": value}, **trained(3, 2))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["run.pt"]


@pytest.mark.parametrize("value", [3, 2.5, "text", None, True, [1, ("a", 2)], {"deep": {1: []}}, b"x", torch.float16])
def test_settings_that_are_saved_are_loaded(path: Path, value: Any) -> None:
    run = trained(3, 2)
    save_checkpoint(path, epoch=2, settings={"given": value}, **run)
    assert load_checkpoint(path, settings={"given": value}, **run) == 2


def test_a_path_that_is_not_a_file_is_not_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("folder", "fifo"):
        with pytest.raises(DestinationError, match=f"{name}: is not a file"):
            save_checkpoint(tmp_path / name, epoch=1, settings=SETTINGS, **trained(3, 2))
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder"]
    assert (tmp_path / "fifo").is_fifo()
