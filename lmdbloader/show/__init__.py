"""Shows datasets: `info` in numbers, `preview` as a contact sheet, cards in notebooks."""

from __future__ import annotations

from lmdbloader.show.sheet import Sheet, contact_sheet, preview, save_sheet, spread
from lmdbloader.show.summary import FieldSummary, Summary, info

__all__ = ["FieldSummary", "Sheet", "Summary", "contact_sheet", "info", "preview", "save_sheet", "spread"]
