"""A record of a conversion's source files as they were read, kept in the dataset's folder."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from lmdbloader.conversion.sources import Listing, Span, is_url, read_ends, times_of
from lmdbloader.errors import FormatError
from lmdbloader.format.layout import SOURCES_FILE
from lmdbloader.store.arrow import read_file
from lmdbloader.store.writing.ownership import open_own_file

_SCHEMA = pa.schema([
    pa.field("nbytes", pa.int64(), False),
    pa.field("mtime_ns", pa.int64(), False),
    pa.field("ctime_ns", pa.int64(), False),
    pa.field("ends", pa.uint64(), False),
])  # fmt: skip
# Of the newest remote file, as metadata: not every service reports the time of each file.
_REMOTE_CHANGED = b"remote_changed_ns"
_ROW_NBYTES = 32
_MOST_OTHER_NBYTES = 2**16


class Seen:
    """The times and ends of sources in order, in 24 bytes each; use `make_note` in the end."""

    def __init__(self) -> None:
        self._times, self._ends = array("q"), array("Q")
        self._is_whole = True

    def add(self, sources: Iterable[Sequence[int]]) -> None:
        """Append (mtime in ns, ctime in ns, digest of the ends) of the next sources; less of one spoils the note."""
        for seen in sources:
            if len(seen) != 3:
                self._is_whole = False
                return
            self._times.extend(seen[:2])
            self._ends.append(seen[2])

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return mtime, ctime (n,) int64 and ends (n,) uint64; None where they are not known of every source."""
        if not self._is_whole:
            return None
        times = np.array(self._times, np.int64).reshape(-1, 2)
        return times[:, 0], times[:, 1], np.array(self._ends, np.uint64)


def make_note(seen: Seen, listing: Listing) -> bytes | None:
    """Return the content of the note; None where it would say nothing."""
    columns = seen.columns()
    if columns is None or listing.changed_ns is None:
        return None
    arrays = [pa.array(np.ascontiguousarray(column)) for column in (listing.sources.nbytes, *columns)]
    schema = _SCHEMA.with_metadata({_REMOTE_CHANGED: str(listing.changed_ns).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def is_as_noted(folder: Path, listing: Listing) -> bool:
    """Return whether every source has the size, the times, the head and the tail that it had when it was converted.

    Args:
        folder: The dataset, whose note may be lost or damaged: then nothing is known of them.
        listing: The sources, with the names that they had then.
    """
    note = _read(folder / SOURCES_FILE, len(listing.sources))
    if note is None or listing.changed_ns is None or not np.array_equal(note["nbytes"], listing.sources.nbytes):
        return False
    if (note.schema.metadata or {}).get(_REMOTE_CHANGED) != str(listing.changed_ns).encode():
        return False
    changed, status_changed, ends = (note[name].to_numpy() for name in ("mtime_ns", "ctime_ns", "ends"))
    for number, source in enumerate(listing.sources):
        if times_of(source) != (changed.item(number), status_changed.item(number)):
            return False
        is_remote = any(is_url(file.path if isinstance(file, Span) else file) for file in source.files)
        if not is_remote and read_ends(source) != ends.item(number):
            return False
    return True


def renew_note(folder: Path, listing: Listing, times: Sequence[tuple[int, int]]) -> None:
    """Note what sources are like now, after their content was found to be the same; a read-only folder is left alone.

    Args:
        folder: The dataset.
        listing: The sources.
        times: What `times_of` returned of each before its content was read: a later change shows.
    """
    paths = (file.path if isinstance(file, Span) else file for source in listing.sources for file in source.files)
    if any(map(is_url, paths)):
        return  # of these the service itself says what has changed
    seen = Seen()
    seen.add((*found, read_ends(source)) for found, source in zip(times, listing.sources, strict=True))
    note = make_note(seen, listing)
    # Next to the dataset: in it a file that is left by a process that dies would be a stranger's.
    partial = folder.with_name(f"{folder.name}.{SOURCES_FILE}-{os.getpid()}")
    try:
        if note is not None:
            partial.write_bytes(note)
            os.replace(partial, folder / SOURCES_FILE)
    except OSError:
        return
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path, num_sources: int) -> pa.RecordBatch | None:
    try:
        with open(open_own_file(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > num_sources * _ROW_NBYTES + _MOST_OTHER_NBYTES:
                return None
            note = read_file(file.read(), _SCHEMA)
    except (OSError, FormatError, pa.ArrowException):
        return None
    return note if note.num_rows == num_sources else None
