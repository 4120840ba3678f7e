"""LMDBs whose values are image files: the keys that are images, their names and their order."""

from __future__ import annotations

import os
import re
from array import array
from pathlib import Path

import numpy as np

from lmdbloader.conversion.sources.listing import I64, Listing, Location, Names, Sources, Span, Spans, as_text
from lmdbloader.conversion.sources.reading import read
from lmdbloader.errors import CorruptError, OptionError, SourceError, SourceNotFoundError
from lmdbloader.images.decode import describe_start, is_image_start
from lmdbloader.store import is_dataset
from lmdbloader.store.lmdb_file import list_values, lmdb_file

_BOOKKEEPING = re.compile(rb"__.*__|num[-_]samples|length|len|keys|meta|meta_info|metadata", re.DOTALL)
_PROBED = 16
_START_NBYTES = 16


def holds(place: Location) -> bool:
    """Return whether a place is an LMDB."""
    if not isinstance(place, Path):
        return False
    return lmdb_file(place) is not None


def list_samples(src: Location, layout: str, prefer_images: bool) -> Listing:
    """Return the image files that are the values of an LMDB, see `layouts.Source`.

    They are in the order of their keys: by number if every key is a decimal number, by bytes otherwise. Keys are
    names. Entries that count the others (`__len__`, `num-samples` ...) are left out and named.

    Raises:
        SourceError: It is not an LMDB, is a dataset of lmdbloader, is damaged, or its values are not images.
    """
    if isinstance(src, str):
        raise OptionError(f"{src}: an LMDB is read from a disk only. Copy it to one first.")
    if is_dataset(src):
        raise SourceError(
            f"{src}: is a dataset of lmdbloader already. Read it with lmdbloader.LMDBDataset, or convert its own "
            "sources again."
        )
    file = lmdb_file(src)
    if file is None and not src.exists():
        raise SourceNotFoundError(f"{src}: there is no such LMDB")
    if file is None:
        raise SourceError(f"{src}: is not an LMDB")
    path = os.fsencode(file)
    text, ends, start, nbytes = bytearray(), array("q", [0]), array("q"), array("q")
    ignored = []
    try:
        for key, at, length in list_values(file):
            if _BOOKKEEPING.fullmatch(key) and not is_image_start(_start(path, at, length)):
                ignored.append((as_text(key), f"an entry of {length} bytes that counts or describes the others"))
                continue
            text += key
            ends.append(len(text))
            start.append(at)
            nbytes.append(length)
    except CorruptError as error:
        advice = "Copy it again. If the original has the same error, save its values with the lmdb package."
        raise SourceError(f"{error}. {advice}") from error
    except OSError as error:
        raise SourceError(f"{src}: cannot be read ({error})") from error
    keys = Names(b"", bytes(text), np.array(ends, np.int64))
    if not len(keys):
        raise SourceError(f"{src}: holds no values")
    lengths = np.array(nbytes, np.int64)
    spans = Spans((path,), np.zeros(len(keys), np.int32), np.array(start, np.int64), lengths)
    _refuse_others(src, keys, spans)
    order = _order(keys)
    if order is not None:
        keys, lengths, spans = keys.take(order), lengths[order], spans.take(order)
    return Listing("lmdb", Sources(keys, lengths, spans=spans), ignored=tuple(ignored))


def _start(path: bytes, at: int, length: int) -> bytes:
    return read(Span(path, at, min(length, _START_NBYTES)))


def _refuse_others(src: Path, keys: Names, spans: Spans) -> None:
    """Raise SourceError if the first of some values are not images; a single bad one is named when it is converted."""
    starts = []
    for number in np.unique(np.linspace(0, len(keys) - 1, _PROBED).astype(int)).tolist():
        span = spans[number]
        starts.append(_start(span.path, span.start, span.nbytes))
        if is_image_start(starts[-1]):
            return
    raise SourceError(
        f"{src}: its values are not image files. That of key {as_text(keys[0])!r}: {describe_start(starts[0])}. "
        "Nothing is unpickled or guessed here: read it with its own code, and pass the samples to lmdbloader.write."
    )


def _order(keys: Names) -> I64 | None:
    """Return the order of keys by number, None unless all are decimal numbers."""
    if not all(key.isdigit() for key in keys):
        return None
    order = sorted(range(len(keys)), key=lambda number: (int(keys[number]), keys[number]))
    return np.array(order, np.int64)
