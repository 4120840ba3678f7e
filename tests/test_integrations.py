"""`lmdbloader.integrations` without the frameworks: modules load lazily, and stand-ins take BasicSR's dataset type."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import lmdbloader
from lmdbloader.errors import OptionError

COUNT = 20


def test_no_framework_is_imported_with_the_package() -> None:
    code = "import sys, lmdbloader; lmdbloader.integrations; dir(lmdbloader.integrations); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lmdbloader.integrations" in child.stdout.split()
    assert {name.partition(".")[0] for name in child.stdout.split()}.isdisjoint(lmdbloader.integrations.__all__)


class Registry(dict[str, Any]):
    """What those programs' registries are, as far as a dataset type needs them."""

    def register(self, kind: Any) -> None:
        assert kind.__name__ not in self
        self[kind.__name__] = kind


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    registry = Registry()
    for name in ("basicsr", "basicsr.utils", "basicsr.utils.registry"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["basicsr.utils.registry"].DATASET_REGISTRY = registry  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "lmdbloader.integrations.basicsr", raising=False)
    importlib.import_module("lmdbloader.integrations.basicsr")
    yield registry
    del sys.modules["lmdbloader.integrations.basicsr"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("basicsr") / "d.lmdb"
    rng = np.random.default_rng(0)
    sizes = ({"lr": (12, 12, 3), "hr": (24, 24, 3)} for _ in range(COUNT))
    lmdbloader.write(
        ({name: rng.integers(0, 256, size, np.uint8) for name, size in pair.items()} for pair in sizes), path
    )
    return path


def options(path: Path, **others: Any) -> dict[str, Any]:
    train = {"phase": "train", "gt_size": 8, "use_hflip": True, "use_rot": True}
    return {"name": "D", "type": "LmdbloaderDataset", "dataroot_gt": str(path), "scale": 2, **train, **others}


class Enlarged(Sampler[int]):
    """BasicSR's sampler, which gives every index several times an epoch."""

    def __init__(self, length: int, ratio: int) -> None:
        self.length, self.ratio = length, ratio

    def __iter__(self) -> Iterator[int]:
        return (int(i) % self.length for i in torch.randperm(self.length * self.ratio))

    def __len__(self) -> int:
        return self.length * self.ratio


@pytest.mark.parametrize("num_workers", [0, 2])
def test_basicsr_gets_new_crops_for_repeated_indices_and_in_every_epoch(
    registry: Registry, path: Path, num_workers: int
) -> None:
    torch.manual_seed(0)
    dataset = registry["LmdbloaderDataset"](options(path))
    loader = DataLoader(dataset, 4, sampler=Enlarged(len(dataset), 3), num_workers=num_workers, drop_last=True)
    seen = set()
    for _ in range(5):
        for batch in loader:
            assert batch["lq"].shape == (4, 3, 4, 4) and batch["gt"].shape == (4, 3, 8, 8)
            assert batch["gt"].dtype == torch.float32 and float(batch["gt"].max()) <= 1
            seen |= {image.numpy().tobytes() for image in batch["gt"]}
    # 9 * 9 places in 8 ways for each of 20 images, of which each is drawn 15 times.
    assert len(seen) >= 0.96 * 5 * COUNT * 3


def test_basicsr_normalizes_and_flips_as_asked(registry: Registry, path: Path) -> None:
    plain = registry["LmdbloaderDataset"](options(path, phase="val"))[3]["lq"]
    normalized = registry["LmdbloaderDataset"](options(path, phase="val", mean=[0.5] * 3, std=[0.5] * 3))[3]["lq"]
    assert torch.allclose(normalized, (plain - 0.5) / 0.5, atol=1e-6)
    whole = options(path, gt_size=24, use_rot=False)
    ways = {registry["LmdbloaderDataset"](whole)[3]["lq"].numpy().tobytes() for _ in range(40)}
    assert ways == {plain.numpy().tobytes(), plain.flip(2).numpy().tobytes()}


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"dataroot_lq": "lq"}, "dataroot_lq: lq"),
        ({"meta_info_file": "m.txt"}, "meta_info_file: m.txt"),
        ({"color": "y"}, "color: y"),
        ({"use_hflip": False}, "needs use_hflip: true"),
        ({"scale": 4}, "has pairs of 12x12 and 24x24, but the configuration has scale: 4"),
    ],
)
def test_options_of_basicsr_that_are_not_here_are_errors(
    registry: Registry, path: Path, others: dict[str, Any], line: str
) -> None:
    with pytest.raises(OptionError, match=line):
        registry["LmdbloaderDataset"](options(path, **others))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that imports an integration with stand-ins of its framework's modules."""
    names: list[str] = []

    def imported(name: str, **modules: Any) -> Any:
        for module, attributes in modules.items():
            stand_in = types.ModuleType(module)
            vars(stand_in).update(attributes)
            monkeypatch.setitem(sys.modules, module, stand_in)
        names.append(f"lmdbloader.integrations.{name}")
        monkeypatch.delitem(sys.modules, names[-1], raising=False)
        return importlib.import_module(names[-1])

    yield imported
    for name in names:
        del sys.modules[name]


def test_epochs_of_keras_begin_where_they_are_said_to(path: Path, imported: Callable[..., Any]) -> None:
    module = imported("keras", keras={"callbacks": types.SimpleNamespace(Callback=object)})
    loader = lmdbloader.Loader(path, 4, shuffle=True)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "position": 8})
    callback = module.Epochs(loader)
    for epoch, position in ((2, 8), (3, 0), (2, 0)):
        next(iter(loader))  # an iteration that is not finished
        callback.on_epoch_begin(epoch)
        assert {**loader.state_dict(), "epoch": epoch, "position": position} == loader.state_dict()
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    with pytest.raises(OptionError, match=r"middle of epoch 2, but this is epoch 0.*initial_epoch=2"):
        module.Epochs(loader).on_epoch_begin(0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "process 1 of 2, and the loader reads share 0 of 1"),
        ({"shard": (1, 2)}, "different numbers of batches"),
        ({"shard": (1, 2), "pad": True}, None),
        ({"shard": (1, 2), "drop_last": True}, None),
    ],
)
def test_fastai_keeps_the_share_of_a_loader_or_says_what_to_write(
    path: Path, imported: Callable[..., Any], options: dict[str, Any], line: str | None
) -> None:
    distributed = types.SimpleNamespace(
        DistributedTrainer=type("DistributedTrainer", (), {"_wrap_dl": lambda self, dl: [dl]}),
        rank_distrib=lambda: 1,
        num_distrib=lambda: 2,
    )
    trainer = imported("fastai", fastai={"distributed": distributed}).DistributedTrainer()
    loader = lmdbloader.Loader(path, 4, shuffle=True, **options)
    if line is None:
        assert trainer._wrap_dl(loader) is loader
    else:
        with pytest.raises(OptionError, match=rf'{line}.*Write Loader\(..., shard="auto", pad=True\)'):
            trainer._wrap_dl(loader)
    assert trainer._wrap_dl("another") == ["another"]
