"""Opens a dataset at a URL: its manifest and index go into a cache folder; its data follow when they are read."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.arguments import path_text
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.units import parse_nbytes, show_nbytes
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.errors import CorruptError, DiskFullError, FormatError, LmdbloaderError, NotFoundError, OptionError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE, REMOTE_FILE
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.store.opening import IO, DataFile
from lmdbloader.store.remote.cache import BLOCK_NBYTES, DATA_NAME, Cache, CachedFile
from lmdbloader.store.remote.origin import Origin
from lmdbloader.store.remote.service import Service, UnreachableError, wrong_length
from lmdbloader.store.remote.window import WindowFile

Fraction = float | int | str
# A share that was written as text: as a size it would be a byte, or none.
_SHARE = re.compile(r"\s*(0|1|[01]?\.[0-9]+)\s*")
# The name of the manifest's copy in the cache, where it must not make the folder look like a complete dataset.
MANIFEST_NAME = "manifest.remote.json"
# Of what the folders hold; it changes with that.
_LAYOUT = "lmdbloader cache 1"
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

    @property
    def data_path(self) -> Path:
        """The file with what is kept of the data."""
        return self.folder / DATA_NAME

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

    def copy_index(self, manifest: Manifest) -> None:
        """Fetch the index into the folder.

        Raises:
            CorruptError: Its length or its digest is not the one in the manifest.
            NotFoundError, DiskError, DiskFullError: As `open_place`.
        """
        name = manifest.index_file
        facts, expected = self.service.facts(name), manifest.sizes["index_nbytes"]
        if facts.nbytes != expected:
            raise wrong_length(self.url, name, facts.nbytes, expected)
        with _writing(self.folder / name) as path:
            self.service.download(name, facts, path)
            with open(path, "rb") as file:
                found = read_digest(file.fileno(), manifest.digest)
            if found != manifest.index_digest:
                raise CorruptError(
                    f"{self.url}/{name}: its digest is {found}, expected {manifest.index_digest}: it was changed, or "
                    "belongs to another dataset. Upload the dataset again.",
                    path=self.url,
                )

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
                    f"{self.folder}: the cache of {self.url} still needs {show_nbytes(needed)}, and "
                    f"{show_nbytes(free)} are free. Free some space; or keep a fraction of the dataset, "
                    "cache_fraction=0.5; or choose another disk, cache_dir=FOLDER."
                )
            if cache.kept.all():
                return CachedFile(cache, io)
            return WindowFile(CachedFile(cache, "pread"), self.folder)


def check_fraction(value: Fraction) -> Fraction:
    """Return `cache_fraction` if it is a share of the dataset or a size.

    Raises:
        OptionError: It is neither.
    """
    if isinstance(value, str) and not _SHARE.fullmatch(value):
        parse_nbytes(value, name="cache_fraction")
        return value
    if isinstance(value, str | bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        given = option("cache_fraction", value)
        raise OptionError(f'{given}: expected a share of the dataset from 0 to 1, or a size such as "20GiB"')
    return float(value)


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
    if not system.CAN_CACHE_URLS:
        raise OptionError(
            f"{url}: a dataset at a URL is cached on Linux and macOS only. Copy it first: `lmdbloader stage {url} DIR`."
        )
    service = Service(url)
    root = _root_of(cache_dir, service.url)
    with _usable(root, service.url), explain_full_disk(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = _stem(service)
        try:
            manifest, content, version = describe(service)
        except UnreachableError as error:
            return _complete_copy(root, stem, service, fraction, error)
        folder = root / f"{stem}-{_digest(version, manifest.manifest_digest)}"
        folder.mkdir(mode=0o700, exist_ok=True)
        with _writing(folder / MANIFEST_NAME) as path:
            path.write_bytes(content)
        # Last: its time says that the server has just stated this version.
        with _writing(folder / REMOTE_FILE) as path:
            path.write_text(json.dumps({"url": _public(service.url)}))
    place = Place(service, folder, _share(fraction, manifest))
    if not _has(folder / manifest.index_file, manifest.sizes["index_nbytes"]):
        place.copy_index(manifest)
    return place


def describe(service: Service) -> tuple[Manifest, bytes, str]:
    """Return the manifest of a dataset, its bytes, and its version.

    Raises:
        NotFoundError, FormatError, DiskError: As `open_place`.
    """
    url = service.url
    try:
        facts = service.facts(MANIFEST_FILE)
    except NotFoundError as error:
        raise NotFoundError(
            f"{url}: there is no dataset: it has no {MANIFEST_FILE}. Expected the URL of a folder with "
            f"{MANIFEST_FILE}, {INDEX_FILE} and {DATA_FILE}, which `lmdbloader convert` makes."
        ) from error
    if facts.nbytes > MAX_MANIFEST_NBYTES:
        raise FormatError(f"{url}/{MANIFEST_FILE}: {facts.nbytes} bytes, expected at most {MAX_MANIFEST_NBYTES}")
    content = service.get(MANIFEST_FILE, 0, facts.nbytes, facts.version)
    return parse_manifest(content, url), content, facts.version


def _complete_copy(root: Path, stem: str, service: Service, fraction: Fraction, error: UnreachableError) -> Place:
    """Return the cached version of a dataset that its server stated last, with a warning, if every byte is cached.

    Raises:
        UnreachableError: It is not: the given error.
    """
    dated = [(os.stat(path).st_mtime_ns, path.parent) for path in root.glob(f"{glob.escape(stem)}-*/{REMOTE_FILE}")]
    if not dated:
        raise error
    folder = max(dated)[1]
    place = Place(service, folder, 1.0)
    try:
        manifest = place.manifest()
        is_complete = (
            _has(folder / manifest.index_file, manifest.sizes["index_nbytes"])
            and Cache(folder, Origin(service, manifest), 1.0).is_complete
        )
    except (CorruptError, OSError):
        is_complete = False
    if not is_complete:
        raise error
    warnings.warn(
        f"{service.url}: the server was not reached, so the dataset may have been replaced there since. The complete "
        f"copy in {folder} is used, digest {manifest.manifest_digest}. ({error})",
        stacklevel=5,
    )
    return Place(service, folder, _share(fraction, manifest))


def _share(fraction: Fraction, manifest: Manifest) -> float:
    """Return the share of the data files that a size, or a share, stands for."""
    if not isinstance(fraction, str):
        return float(fraction)
    nbytes = sum(part.data_nbytes for part in manifest.parts) or manifest.sizes["data_nbytes"]
    return min(parse_nbytes(fraction) / max(nbytes, 1), 1.0)


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


def _stem(service: Service) -> str:
    """Return how the names of the folders of all versions of a dataset begin."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", service.url.rpartition("/")[2])[:60] or "dataset"
    return f"{name}-{_digest(_public(service.url), service.endpoint, _LAYOUT)}"


def _digest(*words: str) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=8).hexdigest()


def _public(url: str) -> str:
    """Return a URL without a user's name and password, which do not belong on a disk.

    >>> _public("https://me:secret@host/a/train.lmdb"), _public("s3://bucket/a@b")
    ('https://host/a/train.lmdb', 's3://bucket/a@b')
    """
    scheme, separator, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    return f"{scheme}{separator}{server.rpartition('@')[2]}{slash}{path}"


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Yield a path of this process alone; the file that is written to it gets its name when the block ends."""
    with explain_full_disk(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as own:
        yield Path(own, path.name)
        system.replace_file(Path(own, path.name), path)


def _has(path: Path, nbytes: int) -> bool:
    """Return whether there is a file of this length."""
    try:
        return os.stat(path).st_size == nbytes
    except OSError:
        return False


@contextmanager
def _usable(folder: Path, url: str) -> Iterator[None]:
    """Turn the error of a cache folder that cannot be made or written to into OptionError."""
    try:
        yield
    except LmdbloaderError:
        raise
    except OSError as error:
        raise OptionError(
            f"{url} cannot be cached in {folder}: {error.filename}: {error.strerror}. Expected a folder on a local "
            "disk to which this user may write. Choose another one, cache_dir=FOLDER."
        ) from error
