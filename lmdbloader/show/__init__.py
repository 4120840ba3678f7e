"""Shows datasets: `info` in numbers, `preview` as a contact sheet, cards in notebooks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmdbloader.show.sheet import Sheet as Sheet
    from lmdbloader.show.sheet import contact_sheet as contact_sheet
    from lmdbloader.show.sheet import preview as preview
    from lmdbloader.show.sheet import save_sheet as save_sheet
    from lmdbloader.show.sheet import spread as spread
    from lmdbloader.show.summary import FieldSummary as FieldSummary
    from lmdbloader.show.summary import Summary as Summary
    from lmdbloader.show.summary import info as info

# Each loads when it is first used: `info` needs no Pillow.
_NAMES = {"sheet": "Sheet contact_sheet preview save_sheet spread", "summary": "FieldSummary Summary info"}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'lmdbloader.show' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lmdbloader.show.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
