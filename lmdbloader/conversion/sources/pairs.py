"""Which low-resolution image belongs to which high-resolution one: the two halves of pairs, matched by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmdbloader.conversion.sources.folders import stem_of
from lmdbloader.conversion.sources.listing import I64, Found, Listing, Names, Sources, as_text
from lmdbloader.errors import SourceError

_SCALE_SUFFIX = re.compile(rb"x[2-9]$")
_NAMES_SHOWN = 5


def find_halves(src: Path) -> tuple[Path, Path] | None:
    """Return the HR and LR folders below `src`, None unless there is one of each.

    Raises:
        SourceError: There are several of a kind.
    """
    folders = [p for p in sorted(src.iterdir()) if p.is_dir() and not p.is_symlink()]
    high = [p for p in folders if re.search(r"(^|[_-])hr$", p.name, re.IGNORECASE)]
    low = [p for p in folders if re.search(r"(^|[_-])lr([_-]|$)", p.name, re.IGNORECASE)]
    if not high or not low:
        return None
    if len(high) > 1 or len(low) > 1:
        names = ", ".join(p.name for p in (*high, *low))
        raise SourceError(f"{src}: holds {names}. Say which two make the pairs with --hr and --lr.")
    inner = [p for p in sorted(low[0].iterdir()) if p.is_dir() and re.fullmatch(r"[xX][2-9]", p.name)]
    if len(inner) > 1:
        raise SourceError(f"{low[0]}: holds {', '.join(p.name for p in inner)}. Say which one with --hr and --lr.")
    return high[0], inner[0] if inner else low[0]


def match(hr: object, high: Found, lr: object, low: Found) -> Listing:
    """Return the pairs that two places hold.

    Args:
        hr: What messages call the place of the high-resolution images.
        high: Its images.
        lr: What messages call the place of the low-resolution images.
        low: Its images.

    Raises:
        SourceError: One is empty, an image has no partner, or its partner is not clear.
    """
    for place, names in ((hr, high.names), (lr, low.names)):
        if not len(names):
            raise SourceError(f"{place}: no images in it")
    partners = _partners(hr, high.names, lr, low.names)
    sources = Sources(
        high.names,
        high.nbytes + low.nbytes[partners],
        low.names.take(partners.tolist()),
        spans=high.spans,
        lr_spans=low.spans and low.spans.take(partners),
    )
    newest = None if high.changed_ns is None or low.changed_ns is None else max(high.changed_ns, low.changed_ns)
    return Listing("pairs", sources, ignored=high.ignored + low.ignored, changed_ns=newest)


def _partners(hr: object, high: Names, lr: object, low: Names) -> I64:
    """Return which LR image is the partner of each HR image."""
    by_stem: dict[bytes, int] = {}
    for i, name in enumerate(high):
        first = high[by_stem.setdefault(stem_of(name), i)]
        if first != name:
            raise _same_stem(hr, first, name)
    partners = np.full(len(high), -1, np.int64)
    alone: dict[bytes, bytes] = {}
    for i, name in enumerate(low):
        stem = stem_of(name)
        if stem not in by_stem:
            stem = _SCALE_SUFFIX.sub(b"", stem)
        number = by_stem.get(stem)
        if number is None:
            first = alone.setdefault(stem, name)
        else:
            partners[number] = i if partners[number] < 0 else partners[number]
            first = low[partners.item(number)]
        if first != name:
            raise _same_stem(lr, first, name)
    _refuse_alone(hr, [high[i] for i in np.flatnonzero(partners < 0).tolist()], lr)
    _refuse_alone(lr, list(alone.values()), hr)
    return partners


def _same_stem(place: object, one: bytes, other: bytes) -> SourceError:
    return SourceError(
        f"{place}: {as_text(one)} and {as_text(other)} have the same stem, so their partner is not clear"
    )


def _refuse_alone(place: object, names: Sequence[bytes], other: object) -> None:
    if not names:
        return
    shown = ", ".join(map(as_text, names[:_NAMES_SHOWN]))
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    raise SourceError(
        f"{place}: no partner in {other} for {shown}{more}. "
        "Pairs are matched by name: 0001.png with 0001.png or 0001x2.png."
    )
