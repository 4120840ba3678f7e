"""Makes datasets: from folders of images, and from any samples that Python can produce."""

from __future__ import annotations

from lmdbloader.conversion.folder import Report, convert
from lmdbloader.conversion.prediction import Estimate, estimate
from lmdbloader.conversion.samples import write
from lmdbloader.conversion.splits import Split, find_splits

__all__ = ["Estimate", "Report", "Split", "convert", "estimate", "find_splits", "write"]
