"""Datasets back to files: the same pixels as PNG, the other values beside them."""

from __future__ import annotations

from lmdbloader.extraction.folder import Extracted, extract
from lmdbloader.extraction.png import encode_png

__all__ = ["Extracted", "encode_png", "extract"]
