"""The key `index` of manifests whose index nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

from lmdbloader.format.index import NAMES, TEXT, ColumnAt, Facts, IndexLayout, TextsAt, extremes_of, num_blocks
from lmdbloader.format.layout import Field, index_columns


def layout_of(fields: Sequence[Field], *, with_source: bool, num_rows: int) -> IndexLayout:
    """Return a layout with all columns at the beginning of a file that is as short as possible, and raw payloads."""
    digests = "0123456789abcdef" * num_blocks(num_rows)
    columns = []
    for name, kind in index_columns(fields, with_source=with_source).items():
        count = num_rows if kind == TEXT else 0
        texts = TextsAt(count, 0, 0, 0) if kind in (TEXT, NAMES) else None
        columns.append(ColumnAt(name, kind, 0, texts))
    one = {"stored_nbytes": 3, "raw_nbytes": 3, "codec": 0, "height": 1, "width": 3, "channels": 1, "bits": 8}
    facts = {}
    for f in fields:
        if f.is_payload:
            extremes = {name: (one[name], one[name]) if num_rows else (0, 0) for name in extremes_of(f)}
            totals = {"stored_nbytes": 3 * num_rows, "raw_nbytes": 3 * num_rows}
            facts[f.name] = Facts((0,) if num_rows else (), extremes, totals, 0, (0, 0, 0))
    return IndexLayout(8 * (num_rows + 1), tuple(columns), digests, facts)
