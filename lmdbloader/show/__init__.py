"""Shows datasets: `info` in numbers, `preview` as a contact sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy

if TYPE_CHECKING:
    from lmdbloader.show.sheet import Sheet as Sheet
    from lmdbloader.show.sheet import contact_sheet as contact_sheet
    from lmdbloader.show.sheet import preview as preview
    from lmdbloader.show.sheet import spread as spread
    from lmdbloader.show.summary import FieldSummary as FieldSummary
    from lmdbloader.show.summary import Summary as Summary
    from lmdbloader.show.summary import info as info

# Each loads when it is first used: `info` needs no Pillow.
__getattr__, __dir__, __all__ = lazy(
    __name__,
    {"sheet": "Sheet contact_sheet preview spread", "summary": "FieldSummary Summary info"},
)
