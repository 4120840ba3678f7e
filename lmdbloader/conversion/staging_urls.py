"""Copies a dataset at a URL into a folder, for `lmdbloader.stage`: by many requests, and checked by its digests."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.text import plain
from lmdbloader.conversion.sources.remote import changed_ns
from lmdbloader.conversion.staging_parts import check_room, compare_digest, digests_of, has_time, keep_parts, set_time
from lmdbloader.errors import CorruptError, NotFoundError, OptionError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Part, parse_manifest
from lmdbloader.store import Reader
from lmdbloader.store.remote.opening import describe
from lmdbloader.store.remote.parts import wrong_length
from lmdbloader.store.remote.service import Facts, Service, dataset_url
from lmdbloader.store.writing.publish import flush

_PIECE_NBYTES = 4 * 2**20
_REQUESTS = 16
# Requests that wait for a thread: as many for any number of files.
_WAITING = 4 * _REQUESTS
T = TypeVar("T")
U = TypeVar("U")


class RemoteSource:
    """A dataset at a URL that is staged.

    Attributes:
        url: The dataset's.
        name: The last part of the URL, which the copy gets.
        manifest: The dataset's.
    """

    def __init__(self, url: str) -> None:
        """Ask for the manifest.

        Raises:
            NotFoundError: There is no dataset.
            FormatError: It is not one of this format version.
            DiskError: The service does not answer.
            OptionError: The URL has no last part, or a package is missing.
        """
        url = dataset_url(url)
        self.name = url.partition("://")[2].rpartition("/")[2]
        if self.name in ("", ".", ".."):
            raise OptionError(
                f"{url}: has no name for the copy; expected the URL of a folder, such as s3://bucket/train.lmdb"
            )
        self._service = Service(url)
        self.url = self._service.url
        self.manifest, data, index, self._content = describe(self._service)
        self._files = {self.manifest.index_file: index} | ({} if self.manifest.parts else {DATA_FILE: data})

    @cached_property
    def times(self) -> tuple[int | None, ...]:
        """When each data file was changed, as the service says; None if it does not."""
        with _Requests() as requests:
            return tuple(requests.map(lambda name: changed_ns(self._service.info(name)), self.manifest.data_files))

    def compare(self, copy: Reader, *, check: bool, log: Callable[[str], None]) -> None:
        """Compare the data files of a copy that is there, by their times, or by their digests.

        Args:
            copy: With the same manifest.
            check: Whether to read all of them.
            log: Called with each message.

        Raises:
            CorruptError: A file of the copy is another one.
        """
        digests = digests_of(copy)
        rows = list(zip(copy.manifest.data_files, copy.data_file.files, self.times, strict=True))
        if changed := [row for row in rows if check or row[2] is None or not has_time(row[1].descriptor, row[2])]:
            log(f"{copy.path}: reading and comparing the copy that is already there")
            for name, file, time_ns in changed:
                compare_digest(copy.path / name, file.descriptor, copy.manifest, digests[name])
                if time_ns is not None:
                    with suppress(OSError):  # the copy of another user is read each time
                        set_time(copy.path / name, time_ns)

    def fill(
        self, partial: Path, target: Path, bar: Callable[[int], Any], log: Callable[[str], None], *, check: bool
    ) -> None:
        """Copy every file of the dataset, and check the copy.

        Args:
            partial: The folder to fill.
            target: The copy's later name; there may be one of before the dataset has grown.
            bar: Returns a line of progress for so many bytes.
            log: Called with each message.
            check: Whether to read the parts of an earlier copy.

        Raises:
            CorruptError: The copy does not have the manifest's digests, or a part is not the one of the set.
            DiskFullError: There is too little space; this is checked before.
            DiskError: The service does not answer.
        """
        files, digests = self._described()
        kept = keep_parts(self.manifest, self.times, target, partial, digests, check=check)
        if kept:
            log(
                plain(f"{target}: keeps {len(kept) // 3} of {len(self.manifest.parts)} parts of the copy that is there")
            )
        files = {name: facts for name, facts in files.items() if name not in kept}
        nbytes = len(self._content) + sum(facts.nbytes for facts in files.values())
        others = f"stage into another folder, or read it from its URL: LMDBDataset({self.url!r}, cache_fraction=...)."
        check_room(partial, target.parent, self.url, nbytes, others)
        log(plain(f"{target}: copying {nbytes / 2**20:,.1f} MiB from {self.url}"))
        began = time.monotonic()
        with bar(nbytes) as progress, explain_full_disk(partial):
            progress.update((partial / MANIFEST_FILE).write_bytes(self._content))
            for part in self.manifest.parts:
                (partial / part.name).mkdir(exist_ok=True)
            self._download(files, partial, progress)
            self._check(partial, {name: digest for name, digest in digests.items() if name in files})
            for name, time_ns in zip(self.manifest.data_files, self.times, strict=True):
                if time_ns is not None:
                    set_time(partial / name, time_ns)
        log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))

    def _described(self) -> tuple[dict[str, Facts], dict[str, str]]:
        """Return the files to copy, besides the manifest, and the digests that they must have, by name."""
        files, digests = dict(self._files), {self.manifest.index_file: self.manifest.index_digest}
        if not self.manifest.parts:
            digests[DATA_FILE] = self.manifest.data_digest
        with _Requests() as requests:
            for found, theirs in requests.map(self._describe, self.manifest.parts):
                files |= found
                digests |= theirs
            folders = ("", *(f"{part.name}/" for part in self.manifest.parts))
            notes = [f"{folder}{name}" for folder in folders for name in (SKIPPED_FILE, LEFT_OUT_FILE)]
            for found in requests.map(self._note, notes):
                files |= found
        return files, digests

    def _note(self, name: str) -> dict[str, Facts]:
        """Return the facts about a file that may be missing."""
        with suppress(NotFoundError):
            return {name: self._service.facts(name)}
        return {}

    def _describe(self, part: Part) -> tuple[dict[str, Facts], dict[str, str]]:
        """Return the files and digests of a part, by their names in the set."""
        manifest, index, data = (f"{part.name}/{name}" for name in (MANIFEST_FILE, INDEX_FILE, DATA_FILE))
        try:
            files = {name: self._service.facts(name) for name in (manifest, index, data)}
        except NotFoundError as error:
            raise CorruptError(
                f"{self.url}/{part.name}: a file of this part of the set is missing ({error}) Upload it again.",
                path=self.url,
            ) from error
        if files[data].nbytes != part.data_nbytes:
            raise wrong_length(self.url, data, files[data].nbytes, part.data_nbytes)
        content = self._service.read(manifest, files[manifest].nbytes, files[manifest].version)
        theirs = parse_manifest(content, f"{self.url}/{part.name}")
        if theirs.manifest_digest != part.manifest_digest:
            raise CorruptError(
                f"{self.url}/{part.name}: is not the part that the set states. Upload the set again.", path=self.url
            )
        return files, {index: theirs.index_digest, data: theirs.data_digest}

    def _download(self, files: dict[str, Facts], partial: Path, progress: Any) -> None:
        """Copy files by many requests at once."""

        def copy(job: tuple[str, int]) -> int:
            name, at = job
            data = self._service.get(name, at, min(at + _PIECE_NBYTES, files[name].nbytes), files[name].version)
            with naming(partial / name), open(partial / name, "r+b", buffering=0) as file:
                rest, place = data, at
                while rest:
                    count = system.write_at(file.fileno(), rest, place)
                    rest, place = rest[count:], place + count
            return len(data)

        for name in files:
            with naming(partial / name):
                open(partial / name, "xb").close()
        jobs = ((name, at) for name, facts in files.items() for at in range(0, facts.nbytes, _PIECE_NBYTES))
        with _Requests() as requests:
            for count in requests.map(copy, jobs):
                progress.update(count)

    def _check(self, partial: Path, digests: dict[str, str]) -> None:
        """Read the copy back, from the disk if the system drops its pages, and compare its digests."""
        for name, expected in digests.items():
            flush(partial / name)
            descriptor = system.open_to_read(partial / name)
            try:
                with naming(partial / name):
                    system.drop_cache(descriptor)
                    found = read_digest(descriptor, self.manifest.digest)
            finally:
                os.close(descriptor)
            if expected not in ("", found):
                raise CorruptError(
                    f"{self.url}/{name}: the digest of the copy is {found}, expected {expected}: the file is damaged, "
                    "or belongs to another dataset. Stage it again; if that does not help, upload it again.",
                    path=self.url,
                )


class _Requests:
    """Threads that make calls for requests; those that have not begun are dropped after an error."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_REQUESTS)

    def __enter__(self) -> _Requests:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)

    def map(self, call: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """Yield the results of a call for each item, in order; only so many calls wait at a time."""
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(self._pool.submit(call, item))
            if len(waiting) >= _WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
