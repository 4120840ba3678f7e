"""Batches straight from the data file: threads that run compiled code, recycled memory, seeded orders."""

from __future__ import annotations

from lmdbloader.loader.loader import Loader

__all__ = ["Loader"]
