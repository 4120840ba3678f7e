"""Datasets on a Ray cluster: read and written by `ray.data`, and converted by the cluster's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy

if TYPE_CHECKING:
    from lmdbloader.ray.converting import convert as convert
    from lmdbloader.ray.reading import read_lmdb as read_lmdb
    from lmdbloader.ray.writing import write_lmdb as write_lmdb

# Ray itself is imported by the calls that need it, and by the modules that derive from its classes.
if not TYPE_CHECKING:  # A type checker that saw it would take every name for one that exists.
    __getattr__, __dir__, __all__ = lazy(
        __name__, {"converting": "convert", "reading": "read_lmdb", "writing": "write_lmdb"}
    )
