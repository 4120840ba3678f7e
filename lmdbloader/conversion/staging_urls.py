"""A dataset at a URL that is staged: its manifest, and the bytes of its files in order, by several requests at once."""

from __future__ import annotations

from collections.abc import Iterator

from lmdbloader.errors import NotFoundError, OptionError
from lmdbloader.format.layout import LEFT_OUT_FILE, SKIPPED_FILE
from lmdbloader.store.remote.opening import describe
from lmdbloader.store.remote.service import Service, dataset_url


class RemoteOrigin:
    """A dataset at a URL.

    Attributes:
        place: The URL.
        name: Its last part, which the copy gets.
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
        self.place = self._service.url
        self.manifest, _ = describe(self._service)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file; nothing for notes that the dataset does not have.

        Raises:
            NotFoundError, CorruptError, DiskError: It is missing, or there is no answer.
        """
        try:
            yield from self._service.pieces(name)
        except NotFoundError:
            if name not in (SKIPPED_FILE, LEFT_OUT_FILE):
                raise
