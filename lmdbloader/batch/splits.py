"""Divides samples among the parts of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import listed
from lmdbloader.base.option_names import option, shown
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import CLIP, holds_clips
from lmdbloader.store import Reader
from lmdbloader.store.rows import Rows, as_array, take

I64 = npt.NDArray[np.int64]


def groups_of(reader: Reader, columns: Sequence[str], rows: Rows, by: str | Sequence[Any] | None) -> npt.NDArray[Any]:
    """Return the group of each sample (n,), as numbers.

    Args:
        reader: Of the dataset.
        columns: Names of its table's columns.
        rows: Of the index, a range or (n,).
        by: The column whose equal values make a group, or such a value for each row. None makes each sample a group,
            and so does "source" if the dataset has no sources. Of frames of clips, "source" means their clip.

    Raises:
        OptionError: The table does not have this column, or there are not as many values as rows.
    """
    index = reader.index
    if by is not None and not isinstance(by, str):
        values = listed("by", by)
        if len(values) != len(rows):
            raise OptionError(f"by: found {len(values)} values for {len(rows)} samples; expected one for each")
        firsts: dict[Any, int] = {}
        try:
            return np.array([firsts.setdefault(_plain(value), len(firsts)) for value in values])
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(f"{option('by', by)}: expected one number or text for each sample ({error})") from error
    by = CLIP if by == "source" and holds_clips(reader.fields) else by
    if by is None or (by == "source" and by not in index.column_names):
        return np.arange(len(rows))
    if by not in columns:
        raise OptionError(f"{reader.place}: by={by!r}; expected one of {', '.join(columns)}, or None")
    codes: npt.NDArray[Any]
    if by in index.names:
        codes = index.names[by].codes
    elif by in reader.long_texts:
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(text, len(numbers)) for text in reader.read_texts(by, as_array(rows))])
    else:
        codes = index.batch.column(by).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return take(codes, rows)


def _plain(value: Any) -> Any:
    """Return a value by which equal groups are equal: tensors are equal only to themselves, and NaN to nothing."""
    if hasattr(value, "item"):
        value = value.item()
    elif hasattr(value, "as_py"):
        value = value.as_py()
    return None if isinstance(value, float) and value != value else value


def share_out(group: npt.NDArray[Any], fractions: Sequence[float], seed: int) -> list[I64]:
    """Return the positions of each part, ascending; equal groups stay together and no part is empty.

    Args:
        group: (n,) of each sample, for example the number of its photograph.
        fractions: Share of each part, adding up to 1; met as closely as whole groups allow.
        seed: Of the order of the groups.

    Raises:
        OptionError: The fractions do not add up to 1, or there are fewer groups than parts.

    >>> [part.tolist() for part in share_out(np.array([7, 7, 8, 8, 9, 9]), [2 / 3, 1 / 3], seed=0)]
    [[0, 1, 4, 5], [2, 3]]
    """
    shares = np.asarray(fractions)
    is_share = shares.ndim == 1 and shares.size and shares.dtype.kind in "iuf"
    if not is_share or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise OptionError(f"fractions={shown(fractions)}: expected positive numbers that add up to 1, as [0.8, 0.2]")
    _, number, counts = np.unique(group, return_inverse=True, return_counts=True)
    if len(counts) < len(shares):
        raise OptionError(
            f"{len(group)} samples in {len(counts)} groups (photographs, unless `by` says otherwise) cannot be split "
            f"into {len(shares)} parts, and groups stay whole. Use fewer parts; by=None splits groups too."
        )
    order = np.random.default_rng(seed).permutation(len(counts))
    in_order = counts[order]
    middles = (np.cumsum(in_order) - in_order / 2) / len(group)
    part_of_group = np.empty(len(counts), np.int64)
    part_of_group[order] = _deal(middles, shares)
    part = part_of_group[number.reshape(-1)]
    return [np.flatnonzero(part == k) for k in range(len(shares))]


def _deal(middles: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]) -> I64:
    """Return the part of each group from the middle of its range in 0..1; no part is empty."""
    cuts = np.searchsorted(middles, np.cumsum(shares)[:-1])
    for k in range(len(cuts)):
        least, most = (cuts[k - 1] + 1 if k else 1), len(middles) - (len(cuts) - k)
        cuts[k] = min(max(cuts[k], least), most)
    return np.searchsorted(cuts, np.arange(len(middles)), side="right")
