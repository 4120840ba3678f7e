"""Makes datasets from image folders, samples made in Python and other datasets, and extracts them to files again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy

if TYPE_CHECKING:
    from lmdbloader.conversion.combining import Combined as Combined
    from lmdbloader.conversion.estimation import Estimate as Estimate
    from lmdbloader.conversion.estimation import estimate as estimate
    from lmdbloader.conversion.from_files import convert as convert
    from lmdbloader.conversion.from_python import write as write
    from lmdbloader.conversion.parts import ConvertedPart as ConvertedPart
    from lmdbloader.conversion.parts import PartsPlan as PartsPlan
    from lmdbloader.conversion.parts import convert_part as convert_part
    from lmdbloader.conversion.parts import join as join
    from lmdbloader.conversion.parts import plan_parts as plan_parts
    from lmdbloader.conversion.report import Report as Report
    from lmdbloader.conversion.selection import Split as Split
    from lmdbloader.conversion.selection import find_splits as find_splits

# The command line reads the table of options in here, and must not load NumPy or pyarrow for its help.
__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "combining": "Combined",
        "estimation": "Estimate estimate",
        "from_files": "convert",
        "from_python": "write",
        "parts": "ConvertedPart PartsPlan convert_part join plan_parts",
        "report": "Report",
        "selection": "Split find_splits",
    },
)
