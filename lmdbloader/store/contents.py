"""The content digest of an index's columns, under each scheme that this release knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmdbloader.errors import FormatError
from lmdbloader.format.content import TEXT, ColumnDigest, digest_of_columns
from lmdbloader.format.digests import CONTENT_SCHEMES, JOINABLE, name_of
from lmdbloader.store.spool import content_digest, digest_columns


def check_scheme(scheme: str, where: Path | str) -> None:
    """Raise FormatError, which begins with `where`, unless this release computes content digests of a scheme."""
    if scheme not in CONTENT_SCHEMES:
        raise FormatError(
            f"{where}: its content digest is of the scheme {scheme!r:.80}; this release knows "
            f"{', '.join(CONTENT_SCHEMES[:-1])} and {CONTENT_SCHEMES[-1]}. The dataset can be read. To verify or "
            "repair it, upgrade lmdbloader."
        )


def digest_contents(batch: pa.RecordBatch, scheme: str) -> tuple[str, dict[str, str]]:
    """Return the content digest of an index's rows, and the digests of its columns if the scheme has them.

    Args:
        batch: The index.
        scheme: One of CONTENT_SCHEMES.

    Raises:
        FormatError: A column has nulls, or is not of numbers or texts.
    """
    if scheme == JOINABLE:
        columns = {name: str(digest_column(values, name)) for name, values in digest_columns(batch)}
        return digest_of_columns(columns), columns
    algorithm = name_of(f"{scheme}:")
    if algorithm is None:
        raise FormatError(f"content digest scheme {scheme!r:.80}: expected one of {', '.join(CONTENT_SCHEMES)}")
    return content_digest(digest_columns(batch), algorithm), {}


def digest_column(values: npt.NDArray[Any] | pa.Array, name: str = "") -> ColumnDigest:
    """Return the digest of a column, an array of numbers (n,) or an Arrow array of texts or of a dictionary of texts.

    Args:
        values: Its values.
        name: Of the column, for messages.

    Raises:
        FormatError: There are nulls, or other values than numbers and texts.
    """
    from lmdbloader.kernels import entries

    sums = np.zeros(2, np.uint64)
    if isinstance(values, np.ndarray):
        kind = values.dtype.name
        unsigned = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
        entries.hash_numbers(unsigned, sums)
    else:
        kind, texts = TEXT, values.dictionary if pa.types.is_dictionary(values.type) else values
        if values.null_count or texts.null_count:
            raise FormatError(f"column {name!r}: has nulls, expected a value in every row")
        data, ends = _texts(texts, name)
        if texts is values:
            num_done = entries.hash_texts(data, ends, sums)
        else:
            codes = np.ascontiguousarray(values.indices.to_numpy(zero_copy_only=True), np.int32)
            num_done = entries.hash_names(data, ends, codes, sums)
        if num_done != len(values):
            raise FormatError(f"column {name!r}: the text of row {num_done} is outside of the column's bytes")
    return ColumnDigest(kind, len(values), (int(sums[0]), int(sums[1])))


def _texts(texts: pa.Array, name: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return the bytes of all texts, and the end of each with a first zero or start; views."""
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    if not large and not (pa.types.is_string(texts.type) or pa.types.is_binary(texts.type)):
        raise FormatError(f"column {name!r}: is of {texts.type}, expected numbers or texts")
    kind = np.dtype(np.int64 if large else np.int32)
    _, ends, data = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, kind)
    bytes_of = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return bytes_of, np.frombuffer(ends, kind, len(texts) + 1, texts.offset * kind.itemsize)
