"""Numbers as people read them."""

from __future__ import annotations

from lmdbloader.words import mebibytes as mebibytes
