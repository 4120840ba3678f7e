"""The data files of a dataset at a URL as one file: which of them holds a range, and which version of it is read.

Nobody asks the service about data files at opening, as there may be thousands. The length and the version of one are
asked for when a process fetches its first bytes.
"""

from __future__ import annotations

import bisect
import threading

from lmdbloader.errors import CorruptError, NotFoundError
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.store.remote.service import Facts, Service, replaced, wrong_length


class Origin:
    """Fetches ranges of the data files, which begin at multiples of 2 MiB of one file; several threads may use it.

    Attributes:
        names: Of the data files.
        begins, ends: Where each is.
        nbytes: Of all together.
    """

    def __init__(self, service: Service, manifest: Manifest) -> None:
        """Ask for nothing yet."""
        lengths = [part.data_nbytes for part in manifest.parts]
        self._service, self.names = service, manifest.data_files
        *self.begins, self.nbytes = part_begins(lengths)
        self.ends = [begin + nbytes for begin, nbytes in zip(self.begins, lengths, strict=True)]
        self.restart()

    def restart(self) -> None:
        """Begin in a forked child."""
        self._service.restart()
        self._versions: dict[int, str] = {}
        self._locks: dict[int, threading.Lock] = {}

    def find(self, at: int) -> int:
        """Return the number of the data file that holds a byte, or is before it."""
        return max(bisect.bisect_right(self.begins, at) - 1, 0)

    def end_of(self, at: int) -> int:
        """Return the end of the data file that holds a byte, or is before it."""
        return self.ends[self.find(at)]

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1, fewer at the end of a data file.

        Raises:
            CorruptError: The data file is missing, or has another length.
            ReplacedError: It has another version than when its first bytes were fetched.
            DiskError: The service does not answer.
        """
        number = self.find(start)
        name, begin, stop = self.names[number], self.begins[number], min(stop, self.ends[number])
        if start >= stop:
            return b""
        try:
            return self._service.get(name, start - begin, stop - begin, self._version(number))
        except NotFoundError as error:
            raise self._missing(number) from error

    def check(self, at: int) -> None:
        """Ask whether the file with a byte is what it was, after a checksum was wrong; errors as `get`."""
        number = self.find(at)
        known, found = self._version(number), self._facts(number).version
        if known != found:
            raise replaced(self._service.url, self.names[number], f"it has {found}, not {known}")

    def _version(self, number: int) -> str:
        """Return the version of a data file that is read; it is looked for once in a process."""
        with self._locks.setdefault(number, threading.Lock()):
            if number not in self._versions:
                self._versions[number] = self._facts(number).version
            return self._versions[number]

    def _facts(self, number: int) -> Facts:
        """Return what the service says about a data file that has the right length."""
        try:
            facts = self._service.facts(self.names[number])
        except NotFoundError as error:
            raise self._missing(number) from error
        expected = self.ends[number] - self.begins[number]
        if facts.nbytes != expected:
            raise wrong_length(self._service.url, self.names[number], facts.nbytes, expected)
        return facts

    def _missing(self, number: int) -> CorruptError:
        where = f"{self._service.url}/{self.names[number]}"
        return CorruptError(f"{where}: is missing. Upload the dataset again.", path=self._service.url)
