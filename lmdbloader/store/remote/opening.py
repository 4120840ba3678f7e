"""Opens a dataset at a URL: copies its manifest and index into the cache; its data file follows in pieces."""

from __future__ import annotations

import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.units import parse_nbytes, show_nbytes
from lmdbloader.errors import CorruptError, DiskFullError, FormatError, LmdbloaderError, NotFoundError, OptionError
from lmdbloader.format.digests import digest_of
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.store.opening import IO, DataFile
from lmdbloader.store.remote.cache import SPARE_NBYTES, Cache, Held
from lmdbloader.store.remote.folders import MANIFEST_NAME, Copy, last_copy, make_folder, put, root_of, write_facts
from lmdbloader.store.remote.parts import Layout, OneFile, Parts, data_nbytes, wrong_length
from lmdbloader.store.remote.pieces import PIECE_NBYTES, Pieces
from lmdbloader.store.remote.service import Facts, Service, UnreachableError

Fraction = float | int | str
# A share that was written as text: as a size it would be a byte, or none.
_SHARE = re.compile(r"\s*(0|1|[01]?\.[0-9]+)\s*")
_PERCENT = re.compile(r"\s*([0-9]{1,2}|100|[0-9]{0,2}\.[0-9]+)\s*%\s*")
# For the file system's own records.
_RECORDS_NBYTES = 2**20
# What is read and not kept takes SPARE_NBYTES at least, and less than this in any order: windows of 384 MiB, and others
# that are read ahead or over.
_STREAMED_NBYTES = 600 * 2**20
# Of an index, by one request.
_INDEX_NBYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset at a URL is cached. It pickles, and opens what is cached without a request.

    Attributes:
        url: The dataset's.
        service: That has it.
        folder: Of its manifest, its index and its pieces.
        version: Of the data file, as the service says; of a set, that of the manifest.
        limit_nbytes: Of the pieces that are kept.
    """

    url: str
    service: Service
    folder: Path
    version: str
    limit_nbytes: int

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            CorruptError: The folder was removed or damaged.
        """
        try:
            return parse_manifest((self.folder / MANIFEST_NAME).read_bytes(), self.url)
        except (OSError, FormatError) as error:
            raise CorruptError(
                f"{self.folder}: the cache of {self.url} was removed or damaged ({error}). Open the dataset again.",
                path=self.url,
            ) from error

    def renew_index(self, manifest: Manifest) -> None:
        """Fetch the index again, because its copy in the cache is damaged.

        Raises:
            CorruptError: The index at the URL is damaged too, or belongs to another dataset.
            NotFoundError, DiskError: As `open_place`.
        """
        content = _read_index(self.service, manifest, self.service.facts(manifest.index_file))
        with explain_full_disk(self.folder):
            put(self.folder / manifest.index_file, content)

    def data_file(self, io: IO, manifest: Manifest) -> RemoteData:
        """Return the data file; of a set, those of its parts as one.

        Raises:
            CorruptError: The cache holds pieces of another file.
            DiskFullError: The disk has no room for the pieces that are still missing.
            OptionError: This user may not write to the folder, or its file system has no locks.
        """
        with _usable(self.folder.parent, self.url):
            cache = self._cache(manifest)
        return RemoteData(cache, io, Layout(manifest))

    def _cache(self, manifest: Manifest) -> Cache:
        """Return the cache, which all users in a process share."""
        key = (str(self.folder), self.limit_nbytes)
        with _lock:
            found = _caches.get(key)
            if found is None:
                pieces = Pieces(self.folder, data_nbytes(manifest))
                gaps = _gaps(Layout(manifest))
                _check_room(self, pieces, gaps)
                pieces.skip(gaps)
                found = _caches[key] = Cache(pieces, partial(self._open, manifest), self.limit_nbytes)
            return found

    def _open(self, manifest: Manifest) -> OneFile | Parts:
        """Return what fetches bytes, for one process."""
        if manifest.parts:
            return Parts(self.service, self.folder, manifest)
        return OneFile(self.service, DATA_FILE, self.version)


_caches: weakref.WeakValueDictionary[tuple[str, int], Cache] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _restart_in_child() -> None:
    global _lock
    _lock = threading.Lock()


system.after_fork(_restart_in_child)


class RemoteData(DataFile):
    """The data file of a dataset at a URL; pieces that are not on the disk yet are fetched when they are read.

    Attributes:
        remote: The cache, which fetches them.
    """

    def __init__(self, cache: Cache, io: IO, layout: Layout) -> None:
        self.remote: Cache = cache
        self._layout = layout
        super().__init__(cache.pieces.path, io, descriptor=cache.pieces.descriptor)

    def with_io(self, path: Path, io: IO) -> RemoteData:
        """Return the same file with another `io`; `path` is not needed."""
        return RemoteData(self.remote, io, self._layout)

    def place(self, at: int) -> tuple[str, int]:
        """As `DataFile.place`."""
        number = self._layout.find(at)
        return self._layout.names[number], at - self._layout.begins[number]

    def read_into(self, buffer: Any, at: int) -> int:
        """Fetch bytes, and read them into a writable buffer; return their number, 0 at the end of the file.

        Raises:
            OSError: The disk cannot read them.
            LmdbloaderError: They cannot be fetched.
        """
        held = self._hold(at, at + memoryview(buffer).nbytes)
        try:
            return super().read_into(buffer, at)
        finally:
            if held is not None:
                held.release()

    def _hold(self, at: int, stop: int) -> Held | None:
        stop = min(stop, self.nbytes)
        return self.remote.hold(np.array([at], np.int64), np.array([stop], np.int64)) if at < stop else None

    def read(self, at: int, nbytes: int) -> bytes:
        """Fetch some bytes, and return a copy of them.

        Raises:
            OSError: The disk cannot read them.
            LmdbloaderError: They cannot be fetched.
        """
        held = self._hold(at, at + nbytes)
        try:
            return super().read(at, nbytes)
        finally:
            if held is not None:
                held.release()


def check_fraction(value: Fraction) -> Fraction:
    """Return `cache_fraction` if it is a share of the dataset or a size.

    Raises:
        OptionError: It is neither.
    """
    given = option("cache_fraction", value)
    if isinstance(value, str) and (percent := _PERCENT.fullmatch(value)):
        share = float(percent[1]) / 100
        raise OptionError(f"{given}: expected a share of the dataset from 0 to 1. Write cache_fraction={share:g}.")
    if isinstance(value, str) and not _SHARE.fullmatch(value):
        parse_nbytes(value, name="cache_fraction")
        return value
    if isinstance(value, str | bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        line = f". Write cache_fraction={float(value)}." if isinstance(value, str) and float(value) <= 1 else ""
        raise OptionError(f'{given}: expected a share of the dataset from 0 to 1, or a size such as "20GiB"{line}')
    return float(value)


def _limit(value: Fraction, nbytes: int) -> int:
    """Return the bytes that a share of a file, or a size, stands for.

    >>> _limit(0.5, 1000), _limit("20GiB", 1000), _limit(1, 1000)
    (500, 1000, 1000)
    """
    return min(parse_nbytes(value), nbytes) if isinstance(value, str) else int(value * nbytes)


def _limit_of(value: Fraction, manifest: Manifest) -> int:
    """Return the bytes of the virtual file that may be kept, of which a set has some without data."""
    nbytes = data_nbytes(manifest)
    if not manifest.parts:
        return _limit(value, nbytes)
    on_disk = sum(-(-part.data_nbytes // PIECE_NBYTES) * PIECE_NBYTES for part in manifest.parts)
    return _limit(value, on_disk) * nbytes // on_disk


def open_place(url: str, cache_dir: str | os.PathLike[str] | None, fraction: Fraction) -> Place:
    """Look up a dataset at a URL, and copy its manifest and index into the cache unless they are there already.

    Args:
        url: The dataset's URL.
        cache_dir: The folder of all cached datasets; None for the one in the user's cache folder.
        fraction: The part to keep, from `check_fraction`.

    Raises:
        NotFoundError: There is no dataset at the URL.
        FormatError: It is not a dataset of this format version.
        CorruptError: One of its files is damaged.
        DiskError: The server denies access; or it does not answer, and not all of the version that it stated last is
            cached. If all of it is, there is a warning, and the cached one is used.
        DiskFullError: There is no room for the cache.
        OptionError: A package is missing, this system cannot do it, or the cache folder cannot be written to.
    """
    if not system.CAN_LOCK_PARTS:
        raise OptionError(
            f"{url}: a dataset at a URL is cached on Linux and macOS only. Copy it first: `lmdbloader stage {url} DIR`."
        )
    service = Service(url)
    root = root_of(cache_dir, service.url)
    copy = last_copy(root, service)
    try:
        manifest, data_facts, index_facts, content = describe(service, is_brief=copy is not None)
    except UnreachableError as error:
        assert copy is not None
        _warn(service.url, copy, error)
        limit = _limit_of(fraction, copy.manifest)
        _check_limit(fraction, limit, copy.manifest)
        return Place(service.url, service, copy.folder, copy.version, limit)
    limit = _limit_of(fraction, manifest)
    _check_limit(fraction, limit, manifest)
    with _usable(cache_dir, service.url):
        folder = make_folder(root, service, data_facts.version, manifest)
    with _usable(cache_dir, service.url), explain_full_disk(folder):
        write_facts(folder, service, data_facts.version)
        put(folder / MANIFEST_NAME, content)
        index = folder / manifest.index_file
        if not index.is_file() or index.stat().st_size != index_facts.nbytes:
            put(index, _read_index(service, manifest, index_facts))
    return Place(service.url, service, folder, data_facts.version, limit)


def _check_limit(fraction: Fraction, limit: int, manifest: Manifest) -> None:
    """Raise OptionError if less than all is to be kept, and this system cannot free the rest."""
    if limit < data_nbytes(manifest) and not system.CAN_FREE_PARTS:
        raise OptionError(
            f"{option('cache_fraction', fraction)}: this system cannot free a part of a file, so it keeps all that it "
            "fetches; a fraction of a dataset can be cached on Linux only. Write cache_fraction=1.0."
        )


def _warn(url: str, copy: Copy, error: UnreachableError) -> None:
    """Warn that a dataset is read from the cache alone."""
    version = copy.version or "of an unknown version"
    warnings.warn(
        f"{url}: the server was not reached, so the dataset may have been replaced there since. The complete "
        f"copy in {copy.folder} is used: {version}, digest {copy.manifest.manifest_digest}. ({error})",
        stacklevel=5,
    )


def describe(service: Service, *, is_brief: bool = False) -> tuple[Manifest, Facts, Facts, bytes]:
    """Return the manifest of a dataset, sizes and versions of its data file and its index, and the manifest's bytes.

    Of a set, the data file is the virtual one, and its version the manifest's: nothing is asked about the parts.

    Args:
        service: That has the dataset.
        is_brief: Whether to give up after a few seconds if the server does not answer at all.

    Raises:
        UnreachableError: It does not, and `is_brief` is set.
        NotFoundError, FormatError, CorruptError, DiskError: As `open_place`.
    """
    url = service.url
    try:
        facts = service.facts(MANIFEST_FILE, is_brief=is_brief)
    except NotFoundError as error:
        raise NotFoundError(
            f"{url}: there is no dataset: it has no {MANIFEST_FILE}. Expected the URL of a folder with "
            f"{MANIFEST_FILE}, {INDEX_FILE} and {DATA_FILE}, which `lmdbloader convert` makes."
        ) from error
    if facts.nbytes > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{url}/{MANIFEST_FILE}: {facts.nbytes} bytes, expected at most {MAX_MANIFEST_NBYTES}")
    content = service.read(MANIFEST_FILE, facts.nbytes, facts.version)
    manifest = parse_manifest(content, url)
    if manifest.parts:
        data = Facts(data_nbytes(manifest), facts.version)
    else:
        data = _facts(service, DATA_FILE, manifest.sizes["data_nbytes"])
    return manifest, data, _facts(service, manifest.index_file, manifest.sizes["index_nbytes"]), content


def _facts(service: Service, name: str, expected: int) -> Facts:
    """Return the facts about a file that has the length that the manifest states."""
    found = service.facts(name)
    if found.nbytes != expected:
        raise wrong_length(service.url, name, found.nbytes, expected)
    return found


@contextmanager
def _usable(cache_dir: str | os.PathLike[str] | None, url: str) -> Iterator[None]:
    """Turn the error of a cache folder that cannot be made or written to into OptionError."""
    try:
        yield
    except LmdbloaderError:
        raise
    except OSError as error:
        given = "" if cache_dir is None else f"{option('cache_dir', str(cache_dir))}: "
        raise OptionError(
            f"{given}{url} cannot be cached there: {error.filename}: {error.strerror}. Expected a folder on a local "
            "disk to which this user may write. Choose another one, cache_dir=FOLDER."
        ) from error


def _read_index(service: Service, manifest: Manifest, facts: Facts) -> bytes:
    """Return the bytes of the index, fetched in requests of at most 8 MiB.

    Raises:
        CorruptError: Their digest is not that of the manifest.
    """
    name = manifest.index_file
    parts = [
        service.get(name, at, min(at + _INDEX_NBYTES, facts.nbytes), facts.version)
        for at in range(0, facts.nbytes, _INDEX_NBYTES)
    ]
    data = b"".join(parts)
    if (found := digest_of(data)) != manifest.index_digest:
        raise CorruptError(
            f"{service.url}/{name}: its digest is {found}, expected {manifest.index_digest}: it was changed, or "
            "belongs to another dataset. Upload the dataset again.",
            path=service.url,
        )
    return data


def _gaps(layout: Layout) -> npt.NDArray[np.int64]:
    """Return (n,) the pieces between the parts of a set, which hold no bytes of any."""
    firsts, ends = (-(-end // PIECE_NBYTES) for end in layout.ends), (at // PIECE_NBYTES for at in layout.begins[1:])
    runs = [np.arange(first, end, dtype=np.int64) for first, end in zip(firsts, ends, strict=False)]
    return np.concatenate([np.empty(0, np.int64), *runs])


def _check_room(place: Place, pieces: Pieces, gaps: npt.NDArray[np.int64]) -> None:
    """Raise DiskFullError if the disk cannot take what is still to be cached; `gaps` are the pieces without bytes.

    What is read and not kept counts with the least that it takes. The advice counts with the most.
    """
    on_disk = (pieces.count - len(gaps)) * PIECE_NBYTES
    kept = min(place.limit_nbytes, pieces.nbytes) * on_disk // max(pieces.nbytes, 1)
    present = int(np.count_nonzero(pieces.states) - np.count_nonzero(pieces.states[gaps])) * PIECE_NBYTES
    missing = min(kept + SPARE_NBYTES, on_disk) - present
    needed, free = missing + _RECORDS_NBYTES, free_nbytes(place.folder)
    if free is None or missing <= 0 or needed <= free:
        return
    streamed = min(SPARE_NBYTES, on_disk - kept, missing)
    what = f", {show_nbytes(streamed)} of them for what is read and not kept" if streamed else ""
    share = int(100 * (free - _RECORDS_NBYTES + present - _STREAMED_NBYTES) / on_disk) / 100
    most = min(_STREAMED_NBYTES, on_disk - present) + _RECORDS_NBYTES
    if share >= 0.01:
        advice = f"Keep a fraction of it, cache_fraction={share:.2f}; or choose another disk, cache_dir=FOLDER."
    else:
        advice = (
            "Free some space, or choose another disk, cache_dir=FOLDER. Reading with cache_fraction=0 may need "
            f"{show_nbytes(most)}."
        )
    raise DiskFullError(
        f"{place.folder}: the cache of {place.url} still needs {show_nbytes(needed)}{what}, and {show_nbytes(free)} "
        f"are free: {show_nbytes(needed - free)} are missing. {advice}"
    )
