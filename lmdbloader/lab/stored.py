"""Columns of a dataset's index: sizes, codecs and bytes of the stored fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.format.codecs import name_counts


def column(dataset: LMDBDataset, field: str, part: str) -> npt.NDArray[Any]:
    """Return a column (samples,) of the index for the dataset's samples: "height", "codec", "raw_nbytes" ..."""
    return dataset.reader.index.take(f"{field}.{part}", dataset.stored_rows)


def image_sizes(dataset: LMDBDataset, field: str) -> npt.NDArray[np.int64]:
    """Return the heights and widths (samples, 2) of an image field."""
    return np.stack([column(dataset, field, side) for side in ("height", "width")], axis=1).astype(np.int64)


def codec_shares(columns: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> tuple[dict[str, float], float]:
    """Return the share of the stored bytes by codec, the largest first, and all stored bytes.

    Args:
        columns: The codecs (samples,) and the stored bytes (samples,) of each field.
    """
    nbytes = np.zeros(256)
    for codecs, sizes in columns:
        nbytes += np.bincount(codecs, weights=sizes, minlength=256)
    total = float(nbytes.sum())
    ranked = sorted(name_counts(nbytes).items(), key=lambda pair: -pair[1])
    return {name: size / total for name, size in ranked}, total
