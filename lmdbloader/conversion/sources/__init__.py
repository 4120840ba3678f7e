"""What a conversion reads: folders, buckets, LMDBs and tars to ordered lists of sources, and sources to bytes."""

from __future__ import annotations

from lmdbloader.conversion.sources.folders import is_image_name
from lmdbloader.conversion.sources.layouts import LAYOUTS, list_sources
from lmdbloader.conversion.sources.listing import File, Layout, Listing, Names, Source, Sources, Span, Spans, is_url
from lmdbloader.conversion.sources.reading import Fetched, changed_at, digest_ends, fetch, read, read_ends, times_of
from lmdbloader.conversion.sources.remote import Location, locate

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
    "digest_ends",
    "fetch",
    "is_image_name",
    "is_url",
    "list_sources",
    "locate",
    "read",
    "read_ends",
    "times_of",
]
