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
from lmdbloader.lab.reporting.page import check_charts_folder, check_report_path, render, write_charts, write_report

__all__ = ["charts", "check_charts_folder", "check_report_path", "render", "write_charts", "write_report"]
