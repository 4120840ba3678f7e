"""Datasets back to files: the same pixels as PNG, the other values beside them."""

from __future__ import annotations

from lmdbloader.conversion.extraction.folder import Extracted, extract
from lmdbloader.images.png import encode_png

__all__ = ["Extracted", "encode_png", "extract"]
