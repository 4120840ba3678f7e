"""Ways to look at a dataset: a summary of what it holds, and a contact sheet of its images."""

from __future__ import annotations

from lmdbloader.looking.sheet import Sheet, contact_sheet, save_sheet, spread
from lmdbloader.looking.summary import FieldSummary, Summary, summarize

__all__ = ["FieldSummary", "Sheet", "Summary", "contact_sheet", "save_sheet", "spread", "summarize"]
