"""The names in a manifest's "requires": what a reader has to know beyond the first releases."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lmdbloader.fields import kind_names, required_features
from lmdbloader.format.layout import Field

# Texts that repeat in the index (sources, types of arrays) have 64-bit offsets.
LARGE_NAMES = "large_names"
# Large images have tables of tiles that are verified in groups.
TILE_GROUPS = "tile_groups"
# A field of text has its texts in data.mdb alone.
LONG_TEXT = "long_text"
# Boxes or points name their image, which need not be the largest.
NAMED_IMAGES = "named_images"
# The dataset is a set of parts: folders, each a complete dataset.
PARTS = "parts"
# Features of a dataset's files that do not follow from its fields.
OF_FILES = frozenset({LARGE_NAMES, TILE_GROUPS, PARTS})


def is_known(name: str) -> bool:
    """Return whether this release knows a feature.

    >>> is_known("mask"), is_known("large_names"), is_known("telepathy")
    (True, True, False)
    """
    return name in OF_FILES or name in (LONG_TEXT, NAMED_IMAGES) or name in kind_names()


def required(fields: Sequence[Field], features: Collection[str]) -> list[str]:
    """Return the features that a dataset lists in its manifest, sorted.

    Args:
        fields: The dataset's.
        features: Those of `OF_FILES` that its files have.
    """
    long_text = [LONG_TEXT] if any(f.holds_text and f.is_payload for f in fields) else []
    named_images = [NAMED_IMAGES] if any(f.image is not None for f in fields) else []
    return sorted({*required_features(f.kind for f in fields), *long_text, *named_images, *features})
