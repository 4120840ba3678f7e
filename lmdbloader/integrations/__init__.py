"""Adapters for training frameworks, one module for each; a module imports its framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from lmdbloader.integrations import accelerate as accelerate
    from lmdbloader.integrations import basicsr as basicsr
    from lmdbloader.integrations import fastai as fastai
    from lmdbloader.integrations import keras as keras
    from lmdbloader.integrations import lightning as lightning
    from lmdbloader.integrations import timm as timm
    from lmdbloader.integrations import transformers as transformers

__all__ = ["accelerate", "basicsr", "fastai", "keras", "lightning", "timm", "transformers"]


if not TYPE_CHECKING:  # A type checker that saw it would take every name for one that exists.

    def __getattr__(name: str) -> ModuleType:
        if name in __all__:
            return importlib.import_module(f"lmdbloader.integrations.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
