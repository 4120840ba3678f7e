"""Draws a study: its charts with matplotlib, and a report that is one HTML file."""

from __future__ import annotations

from lmdbloader.errors import OptionError

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise OptionError(
        "a report's charts are drawn with matplotlib, which is not installed. Install the extra: "
        'pip install "lmdbloader[report]", in a clone pip install ".[report]"'
    ) from error

from lmdbloader.lab.reporting.charts import Curve, draw, draw_bars, draw_lines
from lmdbloader.lab.reporting.page import Page, PageSection, check_report_path, write_page, write_report

__all__ = [
    "Curve", "Page", "PageSection", "check_report_path", "draw", "draw_bars", "draw_lines", "write_page",
    "write_report",
]  # fmt: skip
