"""Loads scripts as modules, makes their datasets, and interrupts them, for the tests of scripts/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from demos.class_folders import make_class_folders

import lmdbloader

ROOT = Path(__file__).resolve().parent.parent


def make_class_datasets(folder: Path) -> Path:
    """Make train.lmdb and val.lmdb of crops of four real photographs; return the folder."""
    make_class_folders(folder, num_train=12, num_val=6, sides=(64, 96), num_classes=4)
    for split in ("train", "val"):
        lmdbloader.convert(folder / split, folder / f"{split}.lmdb", layout="classes", workers=1)
    return folder


def load_script(name: str) -> ModuleType:
    """Return scripts/NAME.py as the module NAME, loaded again."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def interrupt_at_save(patch: pytest.MonkeyPatch, script: ModuleType, number: int) -> None:
    """Have Ctrl-C come to a training script right after it has written its checkpoint for the number-th time."""
    save, saves = script.save_checkpoint, 0

    def save_and_stop(path: Path, **content: object) -> None:
        nonlocal saves
        save(path, **content)
        saves += 1
        if saves == number:
            raise KeyboardInterrupt

    patch.setattr(script, "save_checkpoint", save_and_stop)
