"""Copies a dataset at a URL into a folder, for `lmdbloader.stage`: by many requests, and checked by its digests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

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
from lmdbloader.store.remote.service import Facts, Service, dataset_url, wrong_length
from lmdbloader.store.writing.publish import flush


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
        self.manifest, self._content, _ = describe(self._service)
        # The time that the data files of the copy get; None if the service states none.
        self._time = changed_ns(self._service.info(MANIFEST_FILE))

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
        files = zip(copy.manifest.data_files, copy.data_file.files, strict=True)
        is_known = self._time is not None and not check
        if changed := [row for row in files if not (is_known and has_time(row[1].descriptor, self._time or 0))]:
            log(f"{copy.path}: reading and comparing the copy that is already there")
            for name, file in changed:
                compare_digest(copy.path / name, file.descriptor, copy.manifest, digests[name])
                self._set_time(copy.path / name)

    def fill(
        self, partial: Path, target: Path, bar: Callable[[int], Any], log: Callable[[str], None], *, check: bool
    ) -> None:
        """Copy every file of the dataset, and check the copy.

        Args:
            partial: The folder to fill.
            target: The copy's later name; there may be one of before the dataset has grown.
            bar: Returns a progress bar for so many bytes.
            log: Called with each message.
            check: Whether to read the parts of an earlier copy.

        Raises:
            CorruptError: The copy does not have the manifest's digests, or a part is not the one of the set.
            DiskFullError: There is too little space; this is checked before.
            DiskError: The service does not answer.
        """
        files, digests = self._described()
        times = [self._time] * len(self.manifest.data_files)
        kept = keep_parts(self.manifest, times, target, partial, digests, check=check)
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
        with closing(bar(nbytes)) as progress, explain_full_disk(partial):
            progress.update((partial / MANIFEST_FILE).write_bytes(self._content))
            for name, facts in files.items():
                (partial / name).parent.mkdir(exist_ok=True)
                self._service.download(name, facts, partial / name, progress.update)
                self._check(partial / name, name, digests.get(name, ""))
            for name in self.manifest.data_files:
                self._set_time(partial / name)
        log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))

    def _described(self) -> tuple[dict[str, Facts], dict[str, str]]:
        """Return the files to copy, besides the manifest, and the digests that they must have, by name."""
        manifest = self.manifest
        lengths = {manifest.index_file: manifest.sizes["index_nbytes"]}
        digests = {manifest.index_file: manifest.index_digest}
        if not manifest.parts:
            lengths[DATA_FILE], digests[DATA_FILE] = manifest.sizes["data_nbytes"], manifest.data_digest
        files = {name: self._facts(name, nbytes) for name, nbytes in lengths.items()}
        for part in manifest.parts:
            found, theirs = self._describe(part)
            files |= found
            digests |= theirs
        for folder in ("", *(f"{part.name}/" for part in manifest.parts)):
            for name in (SKIPPED_FILE, LEFT_OUT_FILE):
                with suppress(NotFoundError):
                    files[folder + name] = self._service.facts(folder + name)
        return files, digests

    def _describe(self, part: Part) -> tuple[dict[str, Facts], dict[str, str]]:
        """Return the files and digests of a part, by their names in the set."""
        manifest, index, data = (f"{part.name}/{name}" for name in (MANIFEST_FILE, INDEX_FILE, DATA_FILE))
        try:
            files = {manifest: self._service.facts(manifest), index: self._service.facts(index)}
            files[data] = self._facts(data, part.data_nbytes)
        except NotFoundError as error:
            raise CorruptError(
                f"{self.url}/{part.name}: a file of this part of the set is missing ({error}) Upload it again.",
                path=self.url,
            ) from error
        content = self._service.get(manifest, 0, files[manifest].nbytes, files[manifest].version)
        theirs = parse_manifest(content, f"{self.url}/{part.name}")
        if theirs.manifest_digest != part.manifest_digest:
            raise CorruptError(
                f"{self.url}/{part.name}: is not the part that the set states. Upload the set again.", path=self.url
            )
        return files, {index: theirs.index_digest, data: theirs.data_digest}

    def _facts(self, name: str, expected: int) -> Facts:
        """Return the facts about a file that has the length that the manifest states."""
        facts = self._service.facts(name)
        if facts.nbytes != expected:
            raise wrong_length(self.url, name, facts.nbytes, expected)
        return facts

    def _set_time(self, path: Path) -> None:
        """Give a data file of the copy the time by which it is known; that of another user is read each time."""
        if self._time is not None:
            with suppress(OSError):
                set_time(path, self._time)

    def _check(self, path: Path, name: str, expected: str) -> None:
        """Read a file of the copy back, from the disk if the system drops its pages, and compare its digest."""
        flush(path)
        descriptor = system.open_to_read(path)
        try:
            with naming(path):
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
