"""Opens a dataset at a URL: its manifest and index go into a cache folder; its data follow when they are read."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base.arguments import number, path_text
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.units import show_nbytes
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.errors import CorruptError, DiskFullError, FormatError, LmdbloaderError, NotFoundError, OptionError
from lmdbloader.format.digests import Digest
from lmdbloader.format.layout import INDEX_FILE, MANIFEST_FILE, REMOTE_FILE
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.store.opening import IO, DataFile
from lmdbloader.store.remote.cache import BLOCK_NBYTES, Cache, CachedFile, Origin
from lmdbloader.store.remote.service import Service, wrong_length
from lmdbloader.store.remote.window import WindowFile

# For the file system's own records.
_RECORDS_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset at a URL is cached. It pickles, and opens what is cached without a request.

    Attributes:
        service: That has it.
        folder: Of its manifest, its index and its data.
        share: How much of the data is kept, from 0 to 1.
    """

    service: Service
    folder: Path
    share: float

    @property
    def url(self) -> str:
        """The dataset's."""
        return self.service.url

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            CorruptError: The folder was removed or damaged.
        """
        try:
            return parse_manifest((self.folder / REMOTE_FILE).read_bytes(), self.url)
        except (OSError, FormatError) as error:
            reason = f"the cache of {self.url} was removed or damaged ({error}). Open the dataset again."
            raise CorruptError(f"{self.folder}: {reason}", path=self.url) from error

    def copy_index(self, manifest: Manifest) -> None:
        """Fetch the index into the folder.

        Raises:
            CorruptError: Its length or its digest is not the one in the manifest.
            NotFoundError, DiskError, DiskFullError: As `open_place`.
        """
        url, name, digest, nbytes, expected = self.url, INDEX_FILE, Digest(), 0, manifest.sizes["index_nbytes"]
        with _writing(self.folder / name) as path, open(path, "xb") as file:
            for piece in self.service.pieces(name):
                file.write(piece)
                digest.update(piece)
                nbytes += len(piece)
                if nbytes > expected:
                    break
            if nbytes != expected:
                raise wrong_length(url, name, nbytes, expected)
            if str(digest) != manifest.index_digest:
                reason = f"its digest is {digest}, expected {manifest.index_digest}. Upload the dataset again."
                raise CorruptError(f"{url}/{name}: {reason}", path=url)

    def data_file(self, io: IO, manifest: Manifest) -> DataFile:
        """Return the data files as one.

        Raises:
            DiskFullError: The disk has no room for what is kept and still missing.
            OptionError: This user may not write to the folder; or this system cannot keep a part.
        """
        with _usable(self.folder, self.url):
            cache = Cache(self.folder, Origin(self.service, manifest), self.share)
            needed, free = cache.num_missing * BLOCK_NBYTES + _RECORDS_NBYTES, free_nbytes(self.folder)
            if cache.num_missing and free is not None and needed > free:
                raise DiskFullError(
                    f"{self.folder}: the cache still needs {show_nbytes(needed)}, and {show_nbytes(free)} are free. "
                    "Choose another disk, cache_dir=FOLDER, or keep less, cache_fraction=0.5."
                )
            if cache.kept.all():
                return DataFile([CachedFile(cache)], io, self.folder)
            return WindowFile(DataFile([CachedFile(cache)], "pread", self.folder), self.folder)


def open_place(url: str, cache_dir: str | os.PathLike[str] | None, fraction: float) -> Place:
    """Look up a dataset at a URL, and copy its manifest and index into the cache unless they are there already.

    A cache belongs to a manifest, whose digest covers all files: another version of the dataset has another cache.

    Args:
        url: The dataset's URL.
        cache_dir: The folder of all cached datasets; None for the one in the user's cache folder.
        fraction: The share of the data to keep, from 0 to 1.

    Raises:
        NotFoundError: There is no dataset at the URL.
        FormatError: It is not a dataset of this format version.
        CorruptError: One of its files is damaged.
        DiskError: The server denies access, or does not answer.
        DiskFullError: There is no room for the cache.
        OptionError: A package is missing, this system cannot do it, the cache folder cannot be written to, or the
            fraction is not one.
    """
    share = number("cache_fraction", fraction)
    if not 0 <= share <= 1:
        raise OptionError(f"{option('cache_fraction', fraction)}: expected a share of the dataset from 0 to 1")
    service = Service(url)
    root = _root_of(cache_dir, service.url)
    with _usable(root, service.url), explain_full_disk(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        manifest, content = describe(service)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", service.url.rpartition("/")[2])[:60] or "dataset"
        place = Place(service, root / f"{name}-{manifest.manifest_digest.rpartition(':')[2][:32]}", share)
        place.folder.mkdir(mode=0o700, exist_ok=True)
        with _writing(place.folder / REMOTE_FILE) as path:
            path.write_bytes(content)
    index = place.folder / INDEX_FILE
    if not index.is_file() or index.stat().st_size != manifest.sizes["index_nbytes"]:
        place.copy_index(manifest)
    return place


def describe(service: Service, name: str = MANIFEST_FILE) -> tuple[Manifest, bytes]:
    """Return the manifest of a dataset, and its bytes; `name` is its file's.

    Raises:
        NotFoundError, FormatError, DiskError: As `open_place`.
    """
    url = service.url
    try:
        nbytes = service.size(name)
    except NotFoundError as error:
        raise NotFoundError(f"{url}: there is no dataset: it has no {name}, which is uploaded last") from error
    if nbytes > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{url}/{name}: {nbytes} bytes, expected at most {MAX_MANIFEST_NBYTES}")
    content = service.get(name, 0, nbytes)
    return parse_manifest(content, url), content


def _root_of(cache_dir: str | os.PathLike[str] | None, url: str) -> Path:
    """Return the folder of all cached datasets, which may be missing.

    Raises:
        OptionError: The user has no home, and no folder is given.
    """
    if cache_dir is not None:
        return Path(path_text("cache_dir", cache_dir)).absolute()
    own = cache_folder()
    if own is None:
        raise OptionError(f"{url}: there is no home folder to cache it in. Write cache_dir=FOLDER.")
    return own / "remote"


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Yield a path of this process alone; the file that is written to it gets its name when the block ends."""
    with explain_full_disk(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as own:
        yield Path(own, path.name)
        os.replace(Path(own, path.name), path)


@contextmanager
def _usable(folder: Path, url: str) -> Iterator[None]:
    """Turn the error of a cache folder that cannot be made or written to into OptionError."""
    try:
        yield
    except LmdbloaderError:
        raise
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}. Choose another folder, cache_dir=FOLDER."
        raise OptionError(f"{url} cannot be cached in {folder}: {reason}") from error
