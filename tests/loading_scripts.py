"""Scripts as modules: what the tests of scripts/ load, and interrupt, them with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_script(name: str) -> ModuleType:
    """Return scripts/NAME.py as the module NAME, loaded anew."""
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
