"""Makes datasets: from folders of images, and from any samples that Python can produce."""

from __future__ import annotations

from lmdbloader.conversion.folder import Report, convert
from lmdbloader.conversion.samples import write

__all__ = ["Report", "convert", "write"]
