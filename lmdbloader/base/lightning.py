"""Finds Lightning under the name that a program uses."""

from __future__ import annotations

import importlib
import sys
from typing import Any

# The package has two names; a program uses one of them.
_HOMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def import_lightning(module: str, of: str) -> Any:
    """Return a module of Lightning, from the package that is already imported, else from one that is installed.

    Args:
        module: Its name below `lightning.pytorch`.
        of: What needs it.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
    """
    for name in sorted(_HOMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(f"{_HOMES[name]}.{module}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name:
                raise
    raise ModuleNotFoundError(f"{of} needs Lightning: pip install lightning", name="lightning")
