"""The data files of a dataset at a URL as one file: which of them holds a range of it.

Nobody asks the service about data files at opening, as there may be thousands. The length of one is asked for when a
process fetches its first bytes.
"""

from __future__ import annotations

import bisect

from lmdbloader.errors import CorruptError, NotFoundError
from lmdbloader.format.manifest import Manifest, part_begins
from lmdbloader.store.remote.service import Service, wrong_length


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
        self.service, self.names = service, manifest.data_files
        *self.begins, self.nbytes = part_begins(lengths)
        self.ends = [begin + nbytes for begin, nbytes in zip(self.begins, lengths, strict=True)]
        self._checked: set[int] = set()

    def find(self, at: int) -> int:
        """Return the number of the data file that holds a byte, or is before it."""
        return max(bisect.bisect_right(self.begins, at) - 1, 0)

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1, fewer at the end of a data file.

        Raises:
            CorruptError: The data file is missing, or has another length.
            DiskError: The service does not answer.
        """
        number = self.find(start)
        name, begin, end = self.names[number], self.begins[number], self.ends[number]
        try:
            if number not in self._checked and (found := self.service.size(name)) != end - begin:
                raise wrong_length(self.service.url, name, found, end - begin)
            self._checked.add(number)
            return self.service.get(name, start - begin, min(stop, end) - begin)
        except NotFoundError as error:
            url = self.service.url
            raise CorruptError(f"{url}/{name}: is missing. Upload the dataset again.", path=url) from error
