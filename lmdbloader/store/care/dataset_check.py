"""Checks a dataset with one data.mdb: digests of files, LMDB's pages, every record and payload, and the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.files import read_regular
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.digests import DigestName, new_file_digest
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, is_signed, parse_description, unknown_keys
from lmdbloader.store.care.findings import Findings
from lmdbloader.store.care.pages import find_description, needed_nbytes
from lmdbloader.store.contents import check_scheme, digest_contents
from lmdbloader.store.damage import Damage
from lmdbloader.store.index import Index, open_index
from lmdbloader.store.lmdb_file import page_problems
from lmdbloader.store.lmdb_records import compare_records, damaged_records, stored_description
from lmdbloader.store.opening import IO, DataFile, read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.writing.index_layout import facts_of

_ROWS_AT_ONCE = 256
_READ_AT_ONCE_NBYTES = 64 * 2**20
_PIECE_NBYTES = 4 * 2**20
_OTHER_TEXT = (
    "has its original content, but other bytes: white space, the spelling of a number or the order of keys was changed"
)
_COLUMNS_SHOWN = 5


def check_dataset(
    folder: Path, progress: Callable[[int], None], *, given: str | os.PathLike[str] | None = None
) -> Findings:
    """Check all of a dataset with one data.mdb, in any state; nothing is changed.

    Args:
        folder: The dataset's.
        progress: Called with the number of samples checked since the last call.
        given: The folder as the caller wrote it, for messages.

    Raises:
        NotFoundError, FormatError: As of `verify`.
    """
    found = Findings(folder)
    try:
        manifest = read_manifest(folder if given is None else given)
    except (FormatError, CorruptError) as error:
        if is_foreign(folder):
            raise
        _check_without_manifest(found, error)
        return found
    if manifest.parts:
        raise FormatError(f"{folder}: is a set of parts itself, expected a dataset with one {DATA_FILE}")
    check_scheme(manifest.content_scheme, found.folder / MANIFEST_FILE)
    check_text(found, manifest)
    data, index = _open_data(found, manifest), check_index_file(found, manifest)
    if not data:
        return found
    digest = _RunningDigest(data, manifest.digest)
    reader = found.reader = Reader.of_files(found.folder, manifest, data, index) if index else None
    if reader:
        found.damaged += _unreadable(reader, progress, digest)
        compare_contents(found, manifest, reader.index)
    if DATA_FILE not in found.files:
        found.add(DATA_FILE, *digest.differences(manifest.data_digest))
    description = (
        None if reader or DATA_FILE not in found.files else find_description(data.descriptor, str(found.folder))
    )
    if description not in (None, manifest.description):
        found.add(MANIFEST_FILE, f"belongs to another dataset than {DATA_FILE}")
        found.is_mixed = True
        found.reader = None
        return found
    found.add(DATA_FILE, *_page_problems(found.folder / DATA_FILE))
    # LMDB aborts the process on some damaged pages, so it opens the file only if no damage was found.
    if DATA_FILE not in found.files and reader:
        found.add(DATA_FILE, *compare_records(reader))
    elif DATA_FILE not in found.files and not manifest.data_digest:
        found.add(DATA_FILE, *damaged_records(found.folder / DATA_FILE, manifest.description))
    if DATA_FILE not in found.files:
        _compare_descriptions(found, manifest)
    if found.damaged:
        found.files.setdefault(DATA_FILE)
    found.num_samples = len(reader) if reader else 0
    return found


def is_foreign(folder: Path) -> bool:
    """Return whether a folder without a readable manifest is not a damaged dataset.

    It is no folder, an unfinished dataset, or one whose manifest has a valid digest of its own: of a newer release.
    """
    is_unfinished = folder.name.endswith(PARTIAL_SUFFIX)
    return not folder.is_dir() or is_unfinished or is_signed(manifest_text(folder))


def manifest_text(folder: Path) -> bytes:
    """Return the bytes of a dataset's manifest; none if they cannot be read."""
    try:
        return read_regular(folder / MANIFEST_FILE, MAX_MANIFEST_NBYTES + 1)
    except OSError:
        return b""


def check_text(found: Findings, manifest: Manifest) -> None:
    """Compare the manifest's text with that of a writer; raise FormatError if it has keys of a newer release."""
    text = manifest_text(found.folder)
    if manifest.is_text(text):
        return
    if not text:  # it was read a moment ago
        found.add(MANIFEST_FILE, "cannot be read any more")
        return
    if unknown := unknown_keys(text, manifest):
        names = ", ".join(f"{key!r:.80}" for key in unknown)
        raise FormatError(
            f"{found.folder / MANIFEST_FILE}: has {names}, which this release does not know; a newer one made it. The "
            "dataset can be read. To verify or repair it, upgrade lmdbloader."
        )
    found.add(MANIFEST_FILE, _OTHER_TEXT)


def compare_contents(found: Findings, manifest: Manifest, index: Index) -> None:
    """Compare the digests of the samples with the manifest's."""
    content, columns = digest_contents(index.batch, manifest.content_scheme)
    if content != manifest.content_digest:
        found.add("", f"the content digest is {content}, expected {manifest.content_digest}")
    elif list(columns.items()) != list(manifest.column_digests.items()):
        stated = manifest.column_digests
        wrong = [name for name in {**columns, **stated} if columns.get(name) != stated.get(name)]
        names = ", ".join(map(repr, wrong[:_COLUMNS_SHOWN]))
        text = f"of {len(wrong)} columns ({names}) are not those" if wrong else "of the columns are not in the order"
        found.add(MANIFEST_FILE, f"the digests {text} of the samples")


def _compare_descriptions(found: Findings, manifest: Manifest) -> None:
    """Compare the manifest with the description in data.mdb, which is intact."""
    stored = stored_description(found.folder / DATA_FILE)
    if not stored or stored == manifest.description.to_json():
        return
    try:
        is_same = parse_description(stored, str(found.folder)) == manifest.description
    except FormatError as error:
        found.add(DATA_FILE, str(error).removeprefix(f"{found.folder / DATA_FILE}: "))
        return
    if not is_same:
        found.add(MANIFEST_FILE, f"describes another dataset than {DATA_FILE}")
        found.is_mixed = True
    elif MANIFEST_FILE not in found.files:
        found.add(MANIFEST_FILE, _OTHER_TEXT)


def _check_without_manifest(found: Findings, error: FormatError | CorruptError) -> None:
    """Check a dataset whose manifest is lost; raise `error` if it is not a dataset of lmdbloader."""
    folder = found.folder
    is_there = (folder / MANIFEST_FILE).exists()
    found.add(MANIFEST_FILE, str(error).removeprefix(f"{folder / MANIFEST_FILE}: ") if is_there else "is missing")
    data = _open_data(found, None)
    description = find_description(data.descriptor, str(folder)) if data else None
    if not description and not (folder / INDEX_FILE).exists():
        raise error
    if not (folder / INDEX_FILE).is_file():
        found.add(INDEX_FILE, "is missing")
    if data:
        if data.nbytes < (needed := needed_nbytes(data.descriptor)):
            found.add(DATA_FILE, f"{data.nbytes} bytes, its pages take {needed}: it is cut short")
        found.add(DATA_FILE, *_page_problems(folder / DATA_FILE))
        if DATA_FILE not in found.files:
            found.add(DATA_FILE, *damaged_records(folder / DATA_FILE, description))
    found.has_description = description is not None


def _open_data(found: Findings, manifest: Manifest | None) -> DataFile | None:
    try:
        data = DataFile(found.folder / DATA_FILE, "pread")
    except FileNotFoundError:
        found.add(DATA_FILE, "is missing")
        return None
    except (IsADirectoryError, FormatError):
        found.add(DATA_FILE, "is not a regular file")
        return None
    expected = manifest.sizes.get("data_nbytes") if manifest else data.nbytes
    if data.nbytes != expected:
        found.add(DATA_FILE, f"{data.nbytes} bytes, expected {expected}: it is cut short or was changed")
    return data


def check_index_file(found: Findings, manifest: Manifest, io: IO = "pread") -> Index | None:
    """Return the checked index of a dataset; None if it is missing or damaged, which is added to the findings."""
    name = manifest.index_file
    path = found.folder / name
    try:
        index = open_index(found.folder, manifest, io)
        index.check_file()
        index.check()
        for names in index.names.values():
            names.texts.columns()
        for f in manifest.fields:
            if f.is_payload and facts_of(f, index.columns) != index.facts[f.name]:
                found.add(MANIFEST_FILE, f"its facts about the field {f.name!r} are not those of the samples")
        for key, part in (("payload_nbytes", "stored_nbytes"), ("raw_nbytes", "raw_nbytes")):
            total = sum(facts.totals[part] for facts in index.facts.values())
            if total != manifest.sizes.get(key):
                found.add(MANIFEST_FILE, f"states {key} {manifest.sizes.get(key)}, the payloads have {total}")
        return index
    except FileNotFoundError:
        found.add(name, "is missing")
    except (OSError, FormatError) as error:
        found.add(name, first_sentence(error, path))
    return None


def first_sentence(error: Exception, where: object) -> str:
    """Return the fault in an error's message, without the place and the remedy."""
    return str(error).removeprefix(f"{where}: ").partition(". ")[0]


class _RunningDigest:
    """The digest of data.mdb; it reads bytes just before they are checked, so a cold file is read from disk once."""

    def __init__(self, data: DataFile, name: DigestName) -> None:
        self._data = data
        self._running = new_file_digest(name)
        self._at = 0
        self._error: OSError | None = None

    def advance(self, to: int) -> None:
        """Read up to an offset."""
        try:
            while self._at < to and (piece := self._data.read(self._at, _PIECE_NBYTES)):
                self._running.update(piece)
                self._at += len(piece)
        except OSError as error:
            self._error = error

    def differences(self, expected: str) -> list[str]:
        """Read the rest; return the fault of the file, if any.

        Args:
            expected: The digest, empty if unknown.
        """
        self.advance(self._data.nbytes)
        if self._error:
            return [f"cannot be read from byte {self._at} on ({self._error.strerror})"]
        if expected and (digest := str(self._running)) != expected:
            return [f"its digest is {digest}, expected {expected}: it was changed after it was written"]
        return []


def _unreadable(reader: Reader, progress: Callable[[int], None], digest: _RunningDigest) -> Iterator[Damage]:
    """Read every payload, many at once; if that fails, one by one to name each damaged one."""
    names = [f.name for f in reader.manifest.fields if f.is_payload]
    for first in range(0, len(reader), _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(reader)), dtype=np.int64)
        for name in names:
            starts, nbytes = reader.extents([name], rows)
            digest.advance(int((starts + nbytes).max()))
            for part in _parts(rows, reader.raw_nbytes(name, rows)):
                try:
                    _read(reader, name, part)
                except (CorruptError, FormatError):
                    yield from _each(reader, name, part)
        progress(len(rows))


def _parts(rows: np.ndarray[Any, Any], nbytes: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    group = np.cumsum(nbytes) // _READ_AT_ONCE_NBYTES
    yield from np.split(rows, np.flatnonzero(np.diff(group)) + 1)


def _read(reader: Reader, name: str, rows: np.ndarray[Any, Any]) -> None:
    if reader.fields[name].holds_text:
        reader.read_texts(name, rows)
        return
    nbytes = reader.raw_nbytes(name, rows)
    out = np.empty(int(nbytes.sum()), np.uint8)
    reader.read_into(name, rows, out, np.cumsum(nbytes) - nbytes, nbytes)
    if reader.fields[name].kind == "array":
        for row in rows.tolist():
            reader.read_array(name, row)


def _each(reader: Reader, name: str, rows: np.ndarray[Any, Any]) -> Iterator[Damage]:
    for row in rows.tolist():
        try:
            _read(reader, name, np.array([row], np.int64))
        except (CorruptError, FormatError) as error:
            yield Damage(row, name, reader.source(row), first_sentence(error, reader.where(name, row)))


def _page_problems(path: Path) -> list[str]:
    try:
        return page_problems(path)
    except OSError as error:  # the disk failed
        return [f"its pages cannot be read ({error.strerror})"]
