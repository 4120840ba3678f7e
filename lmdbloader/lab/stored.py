"""How a dataset is stored: sizes, codecs and bytes of its fields, and the line that stores it in another way."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import LmdbloaderError
from lmdbloader.format.codecs import name_counts
from lmdbloader.format.jpeg_payload import is_recoded, pack, unpack
from lmdbloader.format.layout import CODEC_JPEG
from lmdbloader.store import Reader

# Codecs of pixels: delta, and those whose payloads it makes smaller.
DELTA, LARGER = ("delta", "delta tiles"), ("raw", "lz4", "tiles")
# Of free memory for the pages of a dataset: batches and the model take a part.
FOR_THE_CACHE = 0.9
# JPEGs that are looked at, of each field.
_FEW = 3


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


def share_of(codecs: Mapping[str, float], names: Iterable[str]) -> float:
    """Return the share of the stored bytes that some codecs have together."""
    return sum(codecs.get(name, 0.0) for name in names)


def recode_line(path: str, choice: str) -> str:
    """Return the command that stores a dataset in another way, to paste."""
    return f"`lmdbloader recode {shlex.quote(path)} OUT {choice}`"


def in_fewer_bytes(path: str, codecs: Mapping[str, float]) -> str:
    """Return the sentence about pixels that delta would make smaller; empty if most bytes are not such pixels."""
    if share_of(codecs, LARGER) <= 0.5:
        return ""
    return f"{recode_line(path, '--codec delta')} loses nothing, and about halves the bytes of photographs."


def has_slow_jpegs(dataset: LMDBDataset, field: str) -> bool:
    """Return whether the JPEGs of an image field are files that can be recoded; a few of them are read."""
    rows = np.asarray(dataset.stored_rows)[column(dataset, field, "codec") == CODEC_JPEG]
    few = rows[np.linspace(0, len(rows) - 1, min(_FEW, len(rows))).astype(np.int64)].tolist()
    try:
        return bool(few) and all(_can_be_recoded(dataset.reader, field, row) for row in few)
    except LmdbloaderError:  # the loader meets the damaged one, too, and names it
        return False


def _can_be_recoded(reader: Reader, field: str, row: int) -> bool:
    stored = reader.stored_bytes(field, row)
    found = None if is_recoded(stored) else pack(unpack(stored), 1, fast=True)
    return found is not None and is_recoded(found[0].data)
