"""Presents a study: as charts, and as a report that is one HTML file."""

from __future__ import annotations

from lmdbloader.errors import OptionError

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise OptionError(
        "a report's charts are drawn with matplotlib, which is not installed. Install the extra: "
        'pip install "lmdbloader[report]", in a clone pip install ".[report]"'
    ) from error

from lmdbloader.lab.reporting import charts
from lmdbloader.lab.reporting.page import (
    Page,
    PageSection,
    check_charts_folder,
    check_report_path,
    render,
    render_comparison,
    render_page,
    write_charts,
    write_comparison,
    write_page,
    write_report,
)

__all__ = [
    "Page",
    "PageSection",
    "charts",
    "check_charts_folder",
    "check_report_path",
    "render",
    "render_comparison",
    "render_page",
    "write_charts",
    "write_comparison",
    "write_page",
    "write_report",
]
