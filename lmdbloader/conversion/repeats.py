"""Finds what repeats in the samples of several datasets: equal images, and equal names of sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lmdbloader.conversion.combining import Part
from lmdbloader.conversion.selection import mixed
from lmdbloader.format.layout import Field
from lmdbloader.kernels import entries

_U64 = npt.NDArray[np.uint64]
# Checksums that are sorted at once, which bounds memory.
_SORTED_AT_ONCE = 1 << 24
_ROWS_AT_ONCE = 1 << 20


def count_repeats(parts: Sequence[Part], fields: Sequence[Field]) -> int:
    """Return how many samples have the stored images of an earlier one; without images, all stored values count.

    Args:
        parts: The samples.
        fields: The fields that are copied.
    """
    names = [f.name for f in fields if f.has_pixels] or [f.name for f in fields if f.is_payload]
    total = sum(map(len, parts))
    if not names or not total:
        return 0
    num_groups = 1 << max(0, (-(-total // _SORTED_AT_ONCE) - 1).bit_length())
    repeats = 0
    for group in range(num_groups):
        found = np.concatenate([words[words % num_groups == group] for words in _fingerprints(parts, names)])
        found.sort()
        repeats += int((found[1:] == found[:-1]).sum())
    return repeats


def _fingerprints(parts: Sequence[Part], names: Sequence[str]) -> Iterator[_U64]:
    """Yield a number for each sample, which depends on the checksums and lengths of its payloads."""
    for part in parts:
        arrays = part.reader.index.arrays
        for first in range(0, len(part), _ROWS_AT_ONCE):
            rows = (
                slice(first, first + _ROWS_AT_ONCE) if part.rows is None else part.rows[first : first + _ROWS_AT_ONCE]
            )
            words = np.zeros(len(arrays[f"{names[0]}.checksum"][rows]), np.uint64)
            for name in names:
                for column in ("checksum", "raw_nbytes"):
                    words = mixed(words ^ arrays[f"{name}.{column}"][rows].astype(np.uint64))
            yield words


def count_shared_sources(parts: Sequence[Part]) -> int:
    """Return how many names of sources are in more than one part, counted once for each further part.

    Args:
        parts: The samples; those without sources have no names.
    """
    seen, shared = np.empty(0, np.uint64), 0
    for part in parts:
        if not part.reader.manifest.with_source:
            continue
        names = part.reader.index.names["source"]
        used = np.unique(names.codes if part.rows is None else names.codes[part.rows]).astype(np.int64)
        ends, data = names.texts.columns()
        hashes = np.empty(len(used), np.uint64)
        entries.hash_many(data, ends[used], ends[used + 1] - ends[used], hashes)
        if part.prefix:
            prefix = np.frombuffer(part.prefix.encode("utf-8", "surrogatepass"), np.uint8)
            salt = np.empty(1, np.uint64)
            entries.hash_many(prefix, np.zeros(1, np.int64), np.array([prefix.size]), salt)
            hashes = mixed(hashes ^ salt)
        hashes = np.unique(hashes)
        shared += int(np.isin(hashes, seen, assume_unique=True).sum())
        seen = np.union1d(seen, hashes)
    return shared
