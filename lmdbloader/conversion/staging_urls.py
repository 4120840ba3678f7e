"""Copies a dataset at a URL into a folder, for `lmdbloader.stage`: by many requests, and checked by its digests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.text import plain
from lmdbloader.conversion.sources.remote import changed_ns
from lmdbloader.errors import CorruptError, DiskFullError, NotFoundError, OptionError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.store.remote.opening import describe
from lmdbloader.store.remote.service import Facts, Service
from lmdbloader.store.writing.publish import flush

_PIECE_NBYTES = 4 * 2**20
_REQUESTS = 16
_SPARE_NBYTES = 2**20


class RemoteSource:
    """A dataset at a URL that is staged.

    Attributes:
        url: The dataset's.
        name: The last part of the URL, which the copy gets.
        manifest: The dataset's.
        time_ns: When its data file was changed, as the service says; None if it does not.
    """

    def __init__(self, url: str) -> None:
        """Ask for the manifest.

        Raises:
            NotFoundError: There is no dataset.
            FormatError: It is not one of this format version.
            DiskError: The service does not answer.
            OptionError: The URL has no last part, or a package is missing.
        """
        self.name = url.partition("://")[2].rstrip("/").rpartition("/")[2]
        if self.name in ("", ".", ".."):
            raise OptionError(
                f"{url}: has no name for the copy; expected the URL of a folder, such as s3://bucket/train.lmdb"
            )
        self._service = Service(url)
        self.url = self._service.url
        self.manifest, data, index, content = describe(self._service)
        self._files = {MANIFEST_FILE: Facts(len(content), ""), INDEX_FILE: index, DATA_FILE: data}
        self.time_ns = changed_ns(self._service.info(DATA_FILE))

    def fill(self, partial: Path, target: Path, bar: Callable[[int], Any], log: Callable[[str], None]) -> None:
        """Copy every file of the dataset, and check the copy.

        Args:
            partial: The folder to fill.
            target: The copy's later name, for messages.
            bar: Returns a progress bar for so many bytes.
            log: Called with each message.

        Raises:
            CorruptError: The copy does not have the manifest's digests.
            DiskFullError: There is too little space; this is checked before.
            DiskError: The service does not answer.
        """
        files = dict(self._files)
        for name in (SKIPPED_FILE, LEFT_OUT_FILE):
            with suppress(NotFoundError):
                files[name] = self._service.facts(name)
        nbytes = sum(facts.nbytes for facts in files.values())
        free = shutil.disk_usage(partial).free
        if free < nbytes + _SPARE_NBYTES:
            raise DiskFullError(
                f"{target.parent}: {self.url} takes {nbytes / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free. "
                f"Free some space, stage into another folder, or read it from its URL with LMDBDataset({self.url!r}, "
                "cache_fraction=...)."
            )
        log(plain(f"{target}: copying {nbytes / 2**20:,.1f} MiB from {self.url}"))
        began = time.monotonic()
        with closing(bar(nbytes)) as progress, explain_full_disk(partial):
            for name, facts in files.items():
                self._download(name, facts, partial / name, progress)
            self._check(partial)
        log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))

    def _download(self, name: str, facts: Facts, out: Path, progress: Any) -> None:
        """Copy one file by many requests at once."""

        def copy(at: int) -> int:
            data = self._service.get(name, at, min(at + _PIECE_NBYTES, facts.nbytes), facts.version)
            rest, place = data, at
            while rest:
                count = system.write_at(file.fileno(), rest, place)
                rest, place = rest[count:], place + count
            return len(data)

        with naming(out), open(out, "xb", buffering=0) as file, ThreadPoolExecutor(_REQUESTS) as pool:
            try:
                for count in pool.map(copy, range(0, facts.nbytes, _PIECE_NBYTES)):
                    progress.update(count)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _check(self, partial: Path) -> None:
        """Read the copy back, from the disk if the system drops its pages, and compare its digests."""
        for name, expected in ((INDEX_FILE, self.manifest.index_digest), (DATA_FILE, self.manifest.data_digest)):
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
