"""What a conversion reads: folders, buckets, LMDBs and tars to ordered lists of sources, and sources to bytes."""

from __future__ import annotations

from lmdbloader.sources.folders import is_image_name
from lmdbloader.sources.layouts import LAYOUTS, list_sources
from lmdbloader.sources.listing import File, Layout, Listing, Names, Source, Sources, Span, Spans
from lmdbloader.sources.reading import Fetched, changed_at, fetch, read
from lmdbloader.sources.remote import Location, locate

__all__ = [
    "LAYOUTS",
    "Fetched",
    "File",
    "Layout",
    "Listing",
    "Location",
    "Names",
    "Source",
    "Sources",
    "Span",
    "Spans",
    "changed_at",
    "fetch",
    "is_image_name",
    "list_sources",
    "locate",
    "read",
]
