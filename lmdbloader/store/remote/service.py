"""The server behind a URL: the sizes of a dataset's files, ranges of their bytes, and uploads, through fsspec."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lmdbloader.base.arguments import plain_url
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError, DestinationError, DiskError, LmdbloaderError, NotFoundError, OptionError
from lmdbloader.format.layout import MANIFEST_FILE

T = TypeVar("T")
# Time limits of one attempt: to connect, and between two packets of a response.
_CONNECT_SECONDS, _READ_SECONDS = 8, 14
# A request that fails is retried for this long, and at least this often, so that an unreachable server is an error
# within a minute.
_RETRY_SECONDS, _LEAST_ATTEMPTS = 30.0, 3
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 4.0
# Connections that are kept, twice as many as requests.
_MOST_REQUESTS = 32
# A whole file is copied by so many requests at a time, of so much each.
_COPYING, _PIECE_NBYTES = 16, 4 * 2**20
# How often s3fs sends a piece of a large file: the whole file is much to send again.
_UPLOAD_ATTEMPTS = 10
# Not the state of `random`, which a program may have seeded, and which forked processes share.
_jitter = random.SystemRandom()
_S3, _WEB = ("s3", "s3a"), ("http", "https")


class Service:
    """The server behind a URL. Thread-safe.

    It pickles without credentials: the process that unpickles it reads its own environment.

    Attributes:
        url: The dataset's.
    """

    def __init__(self, url: str) -> None:
        """Request nothing yet."""
        self.__setstate__(dataset_url(url))

    def __getstate__(self) -> str:
        return self.url

    def __setstate__(self, url: str) -> None:
        self.url = url
        # By process and thread. A forked child leaves its parent's alone: at their end they would close connections.
        self._opened: dict[tuple[int, int], tuple[Any, str]] = {}
        self.restart()

    def restart(self) -> None:
        """Begin in a forked child: a thread of its parent may have had the lock."""
        self._lock = threading.Lock()

    def size(self, name: str) -> int:
        """Return the bytes of a file of the dataset.

        Raises:
            NotFoundError: There is no such file.
            DiskError: The server does not answer, denies access, or does not report the size.
            OptionError: A package for this kind of URL is missing.
        """

        def ask() -> dict[str, Any]:
            filesystem, root = self._connect()
            filesystem.invalidate_cache()
            found: dict[str, Any] = filesystem.info(f"{root}/{name}")
            return found

        info = self._again(name, ask)
        if info.get("type") == "directory" or info.get("size") is None:
            raise DiskError(f"{self.url}/{name}: the server does not report the size of this file")
        return int(info["size"])

    def get(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1 of a file; temporary errors are retried for half a minute.

        Args:
            name: The file's name in the dataset.
            start, stop: The range in bytes.

        Raises:
            CorruptError: The file ends before `stop`.
            NotFoundError, DiskError, OptionError: As `size`.
        """

        def ask() -> bytes:
            filesystem, root = self._connect()
            data = bytes(filesystem.cat_file(f"{root}/{name}", start=start, end=stop))
            if len(data) != stop - start:
                filesystem.invalidate_cache()
                if (nbytes := filesystem.info(f"{root}/{name}").get("size")) is not None and nbytes < stop:
                    raise wrong_length(self.url, name, nbytes, stop)
                raise OSError(f"{len(data)} bytes arrived instead of {stop - start}")
            return data

        return self._again(name, ask) if stop > start else b""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in order, by many requests at a time; errors as `get`."""
        nbytes = self.size(name)
        starts = range(0, nbytes, _PIECE_NBYTES)
        with ThreadPoolExecutor(_COPYING) as pool:
            for first in range(0, len(starts), _COPYING):  # so many pieces in memory at a time
                some = starts[first : first + _COPYING]
                yield from pool.map(lambda start: self.get(name, start, min(start + _PIECE_NBYTES, nbytes)), some)

    def sizes(self) -> dict[str, int | None]:
        """Return the names of everything that is at the URL, with the bytes of files. Empty if nothing is there.

        Raises:
            OptionError: It is a web server's, which has no lists of files and takes none.
            DiskError: As `size`.
        """
        if self.url.partition("://")[0] in _WEB:
            raise OptionError(f"{self.url}: a web server takes no files. Copy the dataset to the server's disk.")

        def ask() -> dict[str, int | None]:
            filesystem, root = self._connect()
            filesystem.invalidate_cache()
            try:
                found = {info["name"].rstrip("/"): info.get("size") for info in filesystem.ls(root, detail=True)}
            except FileNotFoundError:
                return {}
            return {path.rpartition("/")[2]: size for path, size in found.items() if path != root}  # S3 may list itself

        return self._again("", ask)

    def put(self, name: str, source: Path | bytes, done: Callable[[int], object] = lambda nbytes: None) -> None:
        """Upload a file of the dataset.

        Args:
            name: The file's name in the dataset.
            source: A file on a disk, or its content.
            done: Called with the bytes of each piece that was sent, less than 0 before they are sent again.

        Raises:
            DestinationError: The bucket, or the folder that the dataset's is in, does not exist.
            DiskError, OptionError: As `size`.
        """
        sent = 0

        def show(nbytes: int) -> None:
            nonlocal sent
            done(nbytes - sent)
            sent = nbytes

        def ask() -> None:
            from fsspec.callbacks import Callback

            filesystem, root = self._connect()
            filesystem.retries = _UPLOAD_ATTEMPTS
            if not getattr(filesystem, "async_impl", False):  # of such a kind are services without folders
                with contextlib.suppress(FileExistsError):
                    filesystem.mkdir(root, create_parents=False)
            if isinstance(source, bytes):
                filesystem.pipe_file(f"{root}/{name}", source)
                return
            callback = Callback(hooks={"sent": lambda size, value, **_: show(value)})
            filesystem.put_file(os.fspath(source), f"{root}/{name}", callback=callback)
            show(source.stat().st_size)  # local file systems call nothing

        try:
            self._again(name, ask, "written")
        except NotFoundError as error:
            raise DestinationError(f"{self.url}: its bucket or folder does not exist. Create it first.") from error

    def remove(self, name: str) -> None:
        """Remove a file of the dataset, which another process may have removed; errors as `size`."""

        def ask() -> None:
            filesystem, root = self._connect()
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(f"{root}/{name}")

        self._again(name, ask, "removed")

    def _connect(self) -> tuple[Any, str]:
        """Return the file system and the dataset's path in it.

        An asynchronous file system is thread-safe, so a process has one; of any other kind, each thread has one.
        """
        with self._lock:
            shared, own = (os.getpid(), 0), (os.getpid(), threading.get_ident())
            opened = self._opened.get(shared) or self._opened.get(own)
            if opened is None:
                opened = _open(self.url)
                self._opened[shared if getattr(opened[0], "async_impl", False) else own] = opened
            return opened

    def _again(self, name: str, ask: Callable[[], T], done: str = "read") -> T:
        """Return the result of `ask`, which is called again after temporary errors, with growing pauses."""
        began, attempt = time.monotonic(), 0
        while True:
            try:
                return ask()
            except LmdbloaderError:
                raise
            except Exception as error:  # each package of fsspec has errors of its own
                attempt += 1
                permanent = self._permanent(name, error)
                if permanent is not None:
                    raise permanent from error
                if attempt >= _LEAST_ATTEMPTS and time.monotonic() - began > _RETRY_SECONDS:
                    raise DiskError(
                        f"{self.url}/{name}: cannot be {done}: {_described(error)}. "
                        f"It was tried {counted(attempt, 'time')}."
                    ) from error
            pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
            # At random, so that the threads of all ranks do not come back at the same moment.
            time.sleep(pause * _jitter.uniform(0.5, 1.0))

    def _permanent(self, name: str, error: Exception) -> LmdbloaderError | None:
        """Return the error to raise at once; None if another attempt may succeed."""
        where = f"{self.url}/{name}".rstrip("/")
        cause = _cause(error)
        status = getattr(cause, "status", 0)  # of a web server's answer
        if status in (404, 410) or isinstance(cause, FileNotFoundError):
            return NotFoundError(f"{where}: nothing is there. Is the URL that of a dataset?")
        if type(error).__name__ == "TooLongError":  # of a module that only URLs of web servers need
            return DiskError(f"{where}: {error}.")
        if status in (401, 403) or isinstance(error, PermissionError):
            return DiskError(f"{where}: access denied ({_described(error)}). Check the keys and the bucket's policy.")
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return DiskError(
                f"{where}: no keys were found ({_described(error)}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or AWS_PROFILE; for a public bucket set FSSPEC_S3_ANON=true."
            )
        return None


def dataset_url(url: str) -> str:
    """Return the URL of a dataset as it is compared; that of its manifest means the dataset.

    Raises:
        OptionError: It names nothing: without its slashes, it would be the path of a folder here.

    >>> dataset_url("S3://bucket/train.lmdb/manifest.json"), dataset_url("https://host/train.lmdb/")
    ('s3://bucket/train.lmdb', 'https://host/train.lmdb')
    """
    plain = plain_url(url).rstrip("/")
    if "://" not in plain:
        raise OptionError(f"{url}: names nothing; expected a URL such as s3://bucket/train.lmdb")
    shorter = plain.removesuffix(f"/{MANIFEST_FILE}").rstrip("/")
    return plain if shorter.endswith(":") else shorter


def wrong_length(url: str, name: str, found: int, expected: int) -> CorruptError:
    """Return the error for a file at a URL whose length is not the one in the manifest."""
    reason = f"{found} bytes, expected {expected}: it is cut short, or belongs to another dataset. Upload it again."
    return CorruptError(f"{url}/{name}: {reason}", path=url)


def _cause(error: BaseException) -> BaseException:
    """Return the failure: fsspec's `info` of a file on a web server raises FileNotFoundError whatever it was."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp")
    return cause if cause is not None and is_hidden else error


def _described(error: Exception) -> str:
    """Return the type and the message of what failed."""
    failure = _cause(error)
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__


def _open(url: str) -> tuple[Any, str]:
    """Return a new file system that nothing else uses, and the dataset's path in it.

    Raises:
        OptionError: The protocol is unknown, or a package for it is missing.
    """
    protocol = url.partition("://")[0]
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    try:
        from fsspec.core import url_to_fs

        if protocol in _S3:  # botocore reads the endpoint, the keys and the profile
            config = {
                "connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, "retries": {"max_attempts": 0},
                "max_pool_connections": 2 * _MOST_REQUESTS,
            }  # fmt: skip
            arguments |= {"config_kwargs": config, "use_listings_cache": False}
            region = os.environ.get("AWS_REGION")
            arguments |= {"client_kwargs": {"region_name": region}} if region else {}
        elif protocol in _WEB:
            import aiohttp

            from lmdbloader.base.web_answers import bounded

            times = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
            # A compressed answer would have another length.
            arguments |= bounded({"timeout": times, "headers": {"Accept-Encoding": "identity"}})
        filesystem, path = url_to_fs(url, **({} if "::" in url else arguments))
    except ImportError as error:
        raise OptionError(
            f"{url}: needs a package that is not installed ({error}). Install it: pip install 'lmdbloader[remote]' is "
            "enough for S3 and web servers."
        ) from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}") from error
    if protocol in _S3:
        filesystem.retries = 1  # `_again` has a time limit; s3fs has none
    return filesystem, path.rstrip("/")
