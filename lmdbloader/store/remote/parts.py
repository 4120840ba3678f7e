"""The data files of a set at a URL as one virtual file: which part holds a range, and which version of it is read.

Nobody asks the service about parts at opening, as there may be thousands. The version and the length of a part are
asked for when its first bytes are. The version is noted in the cache folder, so that a part which is replaced later is
an error in every process that uses this cache: bytes of two versions are never mixed.
"""

from __future__ import annotations

import bisect
import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.errors import CorruptError, NotFoundError
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.store.remote.service import Facts, ReplacedError, Service

# In the cache folder of a set.
VERSIONS_NAME = "versions"


def data_nbytes(manifest: Manifest) -> int:
    """Return the length of the data file of a dataset, or of the virtual file of a set."""
    lengths = [part.data_nbytes for part in manifest.parts] or [manifest.sizes["data_nbytes"]]
    return part_begins(lengths)[-1]


class Layout:
    """Where the parts of a set are in its virtual file.

    Attributes:
        names: Of the data files.
        begins, ends: Of each.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Compute it; of a dataset in one file, that is the only part."""
        lengths = [part.data_nbytes for part in manifest.parts] or [manifest.sizes["data_nbytes"]]
        self.names = manifest.data_files
        self.begins = part_begins(lengths)[:-1]
        self.ends = [begin + nbytes for begin, nbytes in zip(self.begins, lengths, strict=True)]

    def find(self, at: int) -> int:
        """Return the number of the part that holds a byte, or is before it."""
        return max(bisect.bisect_right(self.begins, at) - 1, 0)


class Versions:
    """The versions of parts that a cache holds bytes of: a file of lines, which all processes of the machine share.

    The first line about a part counts. Nobody waits for anybody: lines are appended as a whole, and then read.
    """

    def __init__(self, path: Path) -> None:
        """Read nothing yet; the file may be missing."""
        self._path, self._at = path, 0
        self._known: dict[int, str] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> str | None:
        """Return the noted version of a part, None if there is none."""
        with self._lock:
            if number not in self._known:
                self._read()
            return self._known.get(number)

    def put(self, number: int, version: str) -> str:
        """Note the version of a part; return the one that counts, which another process may have noted before.

        Raises:
            DiskFullError: There is no room for the line.
        """
        # What a power cut left of a line ends before this one.
        line = f"\n{json.dumps([number, version])}\n".encode()
        with self._lock, explain_full_disk(self._path):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
                system.flush(descriptor)  # before any byte of that version is in the cache
            finally:
                os.close(descriptor)
            self._read()
            return self._known.setdefault(number, version)

    def _read(self) -> None:
        """Read the lines that were added since the last time."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                added = file.read()
        except FileNotFoundError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.split(b"\n"):
            try:
                number, version = json.loads(line)
            except (ValueError, TypeError):  # an empty line, or what is left of one
                continue
            self._known.setdefault(int(number), str(version))


class OneFile:
    """Fetches ranges of the data file of a dataset; several threads may use it."""

    def __init__(self, service: Service, name: str, version: str) -> None:
        """Ask for nothing yet."""
        self._service, self._name, self._version = service, name, version

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1; the errors are those of `Service.get`."""
        return self._service.get(self._name, start, stop, self._version)

    def check(self, start: int, stop: int) -> None:
        """Ask whether the file is what it was, after a checksum of these bytes was wrong.

        Raises:
            ReplacedError: It is another one.
            DiskError: The service does not answer.
        """
        self._service.check_version(self._name, self._version)


class Parts:
    """Fetches ranges of the virtual file of a set, for one process; several threads may use it."""

    def __init__(self, service: Service, folder: Path, manifest: Manifest) -> None:
        """Ask for nothing yet.

        Args:
            service: That has the set.
            folder: Of its cache.
            manifest: The set's.
        """
        self._service, self._folder, self._layout = service, folder, Layout(manifest)
        self._noted = Versions(folder / VERSIONS_NAME)
        self._versions: dict[int, str] = {}
        self._locks: dict[int, threading.Lock] = {}

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1; those behind a part are zeros.

        Raises:
            CorruptError: A part is missing, was replaced, or has another length than the set states.
            DiskError: The service does not answer.
        """
        first = self._layout.find(start)
        if stop <= self._layout.ends[first]:
            return self._get(first, start, stop)
        data = bytearray(stop - start)
        for number, low, high in self._shares(start, stop):
            data[low - start : high - start] = self._get(number, low, high)
        return bytes(data)

    def check(self, start: int, stop: int) -> None:
        """Ask whether the parts that have these bytes are what they were, after a checksum was wrong.

        Raises:
            CorruptError, DiskError: As `get`.
        """
        for number, _, _ in self._shares(start, stop):
            known, found = self._version(number), self._facts(number).version
            if known and found and known != found:
                raise self._replaced(number, f"its version is {found}, not {known}")

    def _shares(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts that have bytes of a range, each with the first and the end of them."""
        layout = self._layout
        for number in range(layout.find(start), bisect.bisect_left(layout.begins, stop)):
            low, high = max(start, layout.begins[number]), min(stop, layout.ends[number])
            if low < high:
                yield number, low, high

    def _get(self, number: int, start: int, stop: int) -> bytes:
        """Return bytes of one part, counted in the virtual file."""
        name, begin, version = self._layout.names[number], self._layout.begins[number], self._version(number)
        try:
            return self._service.get(name, start - begin, stop - begin, version)
        except ReplacedError as error:
            raise self._replaced(number, str(error.__cause__ or error)) from error
        except NotFoundError as error:
            raise self._missing(number) from error

    def _facts(self, number: int) -> Facts:
        """Return what the service says about a part."""
        try:
            return self._service.facts(self._layout.names[number])
        except NotFoundError as error:
            raise self._missing(number) from error

    def _version(self, number: int) -> str:
        """Return the version of a part that is read; it is looked for once in a process."""
        known = self._versions.get(number)
        if known is None:
            with self._locks.setdefault(number, threading.Lock()):
                known = self._versions.get(number)
                if known is None:
                    known = self._versions[number] = self._look(number)
        return known

    def _look(self, number: int) -> str:
        noted = self._noted.get(number)
        if noted is not None and self._service.compares(noted):
            return noted
        facts, expected = self._facts(number), self._layout.ends[number] - self._layout.begins[number]
        if facts.nbytes != expected:
            raise wrong_length(self._service.url, self._layout.names[number], facts.nbytes, expected)
        if noted is None:
            noted = self._noted.put(number, facts.version)
        if noted != facts.version:
            raise self._replaced(number, f"its version is {facts.version}, not {noted}")
        return noted

    def _missing(self, number: int) -> CorruptError:
        where = f"{self._service.url}/{self._layout.names[number]}"
        return CorruptError(f"{where}: is missing, and the set has this part. Upload it again.", path=self._service.url)

    def _replaced(self, number: int, what: str) -> ReplacedError:
        return ReplacedError(
            f"{self._service.url}/{self._layout.names[number]}: was replaced since it was first read here ({what}). If "
            "the whole set was replaced, open it again. If only this part was uploaded again, delete "
            f"{self._folder}, and open the set again.",
            path=self._service.url,
        )


def wrong_length(url: str, name: str, found: int, expected: int) -> CorruptError:
    """Return the error for a file at a URL whose length is not the one in the manifest."""
    return CorruptError(
        f"{url}/{name}: {found} bytes, expected {expected}: it is cut short, or belongs to another dataset. Upload the "
        "dataset again.",
        path=url,
    )
