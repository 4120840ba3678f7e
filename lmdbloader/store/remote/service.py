"""The server behind a URL: the sizes and versions of a dataset's files, and ranges of their bytes, through fsspec."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lmdbloader.base import system
from lmdbloader.base.arguments import plain_url
from lmdbloader.base.disk_errors import naming
from lmdbloader.base.text import counted
from lmdbloader.errors import CorruptError, DiskError, LmdbloaderError, NotFoundError, OptionError
from lmdbloader.format.layout import MANIFEST_FILE

T = TypeVar("T")
# Keys of fsspec's `info` that change when a file is replaced; the first that the server reports is used. Times are the
# last resort: they may have a resolution of a second.
_VERSIONS = (("ETag", "etag", "e_tag"), ("generation", "version_id", "VersionId"))
_TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")
# Time limits of one attempt: to connect, and between two packets of a response.
_CONNECT_SECONDS, _READ_SECONDS = 8, 14
# A request that fails is retried for this long, and at least this often, so that an unreachable server is an error
# within a minute.
_RETRY_SECONDS, _LEAST_ATTEMPTS = 30.0, 3
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 4.0
# Connections that are kept, twice as many as requests.
_MOST_REQUESTS = 32
# A whole file is copied by so many requests at a time, of so much each.
_DOWNLOADS, _DOWNLOAD_NBYTES = 16, 4 * 2**20
# Not the state of `random`, which a program may have seeded, and which forked processes share.
_jitter = random.SystemRandom()
_S3, _WEB = ("s3", "s3a"), ("http", "https")


@dataclass(frozen=True, slots=True)
class Facts:
    """The size and the version of a file, as the server reports them.

    Attributes:
        nbytes: Its size.
        version: A text that changes when the file is replaced: its ETag, a generation, or a time; "" if the server
            reports none of these.
    """

    nbytes: int
    version: str


class ReplacedError(CorruptError):
    """The file at the URL was replaced after it was opened."""


class UnreachableError(DiskError):
    """The server did not answer, or with temporary errors only."""


class _WrongRangeError(OSError):
    """Other bytes arrived than were requested, or another number of them."""


class Service:
    """The server behind a URL. Thread-safe.

    It pickles without credentials: the process that unpickles it reads its own environment.

    Attributes:
        url: The dataset's.
        endpoint: The server that the environment names; "" for the service's default.
    """

    def __init__(self, url: str) -> None:
        """Read the endpoint from the environment; nothing is requested yet."""
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if url.partition("://")[0].lower() in _S3 else ()
        found = next((os.environ[name] for name in names if os.environ.get(name)), "")
        self.__setstate__((dataset_url(url), found))

    def __getstate__(self) -> tuple[str, str]:
        return self.url, self.endpoint

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.url, self.endpoint = state
        # By process and thread. A forked child leaves its parent's alone: at their end they would close connections.
        self._opened: dict[tuple[int, int], tuple[Any, str]] = {}
        self.restart()

    def restart(self) -> None:
        """Begin in a forked child: a thread of its parent may have had the lock."""
        self._lock = threading.Lock()

    def facts(self, name: str) -> Facts:
        """Return the size and the version of a file of the dataset.

        Raises:
            UnreachableError: The server does not answer.
            NotFoundError: There is no such file.
            DiskError: The server denies access, or does not report the size.
            OptionError: A package for this kind of URL is missing.
        """
        info = self.info(name)
        if info.get("type") == "directory" or info.get("size") is None:
            raise DiskError(
                f"{self.url}/{name}: the server does not report the size of this file. Copy the dataset to a disk with "
                "another program."
            )
        return Facts(int(info["size"]), _version_of(info))

    def info(self, name: str) -> dict[str, Any]:
        """Return fsspec's `info` of a file; the errors are those of `facts`."""

        def ask() -> dict[str, Any]:
            filesystem, root = self._connect()
            filesystem.invalidate_cache()
            found: dict[str, Any] = filesystem.info(f"{root}/{name}")
            return found

        return self._again(name, ask)

    def get(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        """Return the bytes start ... stop - 1 of a file; temporary errors are retried for half a minute.

        Args:
            name: The file's name in the dataset.
            start, stop: The range in bytes, not empty.
            version: The version that was opened; "" accepts any.

        Raises:
            ReplacedError: The file has another version now, as far as the server can tell.
            NotFoundError, DiskError: As `facts`; a server that ignores ranges is a DiskError too.
        """

        def ask() -> bytes:
            filesystem, root = self._connect()
            path, special = f"{root}/{name}", _special(filesystem)
            if special is None:
                data, headers, place = bytes(filesystem.cat_file(path, start=start, end=stop)), {}, ""
            else:
                from fsspec.asyn import sync

                data, headers, place = sync(filesystem.loop, special, filesystem, path, start, stop)
            found = _version_of(headers)
            if found and version.partition(" ")[0] == found.partition(" ")[0] and version != found:
                raise replaced(self.url, name, f"it has {found}, not {version}")
            # These may pass: a cache in between may be broken.
            if place and not place.startswith(f"bytes {start}-{stop - 1}/"):
                raise _WrongRangeError(f"{place} arrived instead of bytes {start}-{stop - 1}")
            if len(data) != stop - start:
                raise _WrongRangeError(f"{len(data)} bytes arrived instead of {stop - start}")
            return data

        return self._again(name, ask) if stop > start else b""

    def download(
        self, name: str, facts: Facts, path: Path, done: Callable[[int], object] = lambda nbytes: None
    ) -> None:
        """Copy a file of the dataset by many requests at a time.

        Args:
            name: The file's name in the dataset.
            facts: About it.
            path: Of the copy; there must be no such file.
            done: Called with the bytes of each piece that was written.

        Raises:
            ReplacedError, NotFoundError, DiskError: As `get`.
            OSError: It cannot be written.
        """
        with naming(path), open(path, "xb", buffering=0) as file:

            def copy(at: int) -> int:
                data = self.get(name, at, min(at + _DOWNLOAD_NBYTES, facts.nbytes), facts.version)
                write_at(file.fileno(), data, at)
                return len(data)

            with ThreadPoolExecutor(_DOWNLOADS) as pool:
                for nbytes in pool.map(copy, range(0, facts.nbytes, _DOWNLOAD_NBYTES)):
                    done(nbytes)

    def _connect(self) -> tuple[Any, str]:
        """Return the file system and the dataset's path in it.

        An asynchronous file system is thread-safe, so a process has one; of any other kind, each thread has one.
        """
        with self._lock:
            shared, own = (os.getpid(), 0), (os.getpid(), threading.get_ident())
            opened = self._opened.get(shared) or self._opened.get(own)
            if opened is None:
                opened = _open(self.url, self.endpoint)
                self._opened[shared if getattr(opened[0], "async_impl", False) else own] = opened
            return opened

    def _again(self, name: str, ask: Callable[[], T]) -> T:
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
                    raise UnreachableError(
                        f"{self.url}/{name}: cannot be read: {_described(error)}. "
                        f"It was tried {counted(attempt, 'time')} in "
                        f"{time.monotonic() - began:.0f} s. Check the network and the server{self._at_endpoint()}."
                    ) from error
            pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
            # At random, so that the threads of all ranks do not come back at the same moment.
            time.sleep(pause * _jitter.uniform(0.5, 1.0))

    def _at_endpoint(self) -> str:
        return f" ({self.endpoint})" if self.endpoint else ""

    def _permanent(self, name: str, error: Exception) -> LmdbloaderError | None:
        """Return the error to raise at once; None if another attempt may succeed."""
        where = f"{self.url}/{name}"
        cause: Any = _cause(error)
        if cause is not error:
            status = getattr(cause, "status", 0)
            if status not in (401, 403, 404, 410):
                return None
            error = PermissionError(f"status {status}") if status in (401, 403) else error
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"{where}: nothing is there{self._at_endpoint()}. Is the URL that of a dataset?")
        if type(error).__name__ == "TooLongError":  # of a module that only URLs of web servers need
            return DiskError(f"{where}: {error}.")
        if isinstance(error, PermissionError):
            return DiskError(f"{where}: access denied ({_described(error)}). Check the keys and the bucket's policy.")
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return DiskError(
                f"{where}: no keys were found ({_described(error)}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or AWS_PROFILE; for a public bucket set FSSPEC_S3_ANON=true."
            )
        return None


def write_at(descriptor: int, data: bytes, at: int) -> None:
    """Write all of some bytes to a place in a file."""
    rest = memoryview(data)
    while rest:
        count = system.write_at(descriptor, rest, at)
        rest, at = rest[count:], at + count


def dataset_url(url: str) -> str:
    """Return the URL of a dataset as it is compared; that of its manifest means the dataset.

    >>> dataset_url("S3://bucket/train.lmdb/manifest.json"), dataset_url("https://host/train.lmdb/")
    ('s3://bucket/train.lmdb', 'https://host/train.lmdb')
    """
    plain = plain_url(url).rstrip("/")
    shorter = plain.removesuffix(f"/{MANIFEST_FILE}").rstrip("/")
    return plain if shorter.endswith(":") else shorter


def replaced(url: str, name: str, what: str) -> ReplacedError:
    """Return the error for a file that was replaced after it was opened."""
    return ReplacedError(f"{url}/{name}: was replaced since it was opened ({what}). Open the dataset again.", path=url)


def wrong_length(url: str, name: str, found: int, expected: int) -> CorruptError:
    """Return the error for a file at a URL whose length is not the one in the manifest."""
    return CorruptError(
        f"{url}/{name}: {found} bytes, expected {expected}: it is cut short, or belongs to another dataset. Upload the "
        "dataset again.",
        path=url,
    )


def _cause(error: BaseException) -> BaseException:
    """Return the failure: fsspec's `info` of a file on a web server raises FileNotFoundError whatever it was."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp")
    return cause if cause is not None and is_hidden else error


def _described(error: Exception) -> str:
    """Return the type and the message of what failed."""
    failure = _cause(error)
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__


def _open(url: str, endpoint: str) -> tuple[Any, str]:
    """Return a new file system that nothing else uses, and the dataset's path in it.

    Raises:
        OptionError: The protocol is unknown, or a package for it is missing.
    """
    protocol = url.partition("://")[0]
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    try:
        from fsspec.core import url_to_fs

        if protocol in _S3:  # botocore reads the keys and the profile
            config = {
                "connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, "retries": {"max_attempts": 0},
                "max_pool_connections": 2 * _MOST_REQUESTS,
            }  # fmt: skip
            arguments |= {"config_kwargs": config, "use_listings_cache": False}
            arguments |= {"endpoint_url": endpoint} if endpoint else {}
            region = os.environ.get("AWS_REGION")
            arguments |= {"client_kwargs": {"region_name": region}} if region else {}
        elif protocol in _WEB:
            import aiohttp

            from lmdbloader.base.web_answers import bounded

            times = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
            arguments |= bounded({"timeout": times})
        filesystem, path = url_to_fs(url, **({} if "::" in url else arguments))
    except ImportError as error:
        raise OptionError(
            f"{url}: needs a package that is not installed ({error}). Install the extra: pip install "
            "'lmdbloader[remote]', in a clone pip install '.[remote]'. It installs fsspec and its support for S3; "
            "other services need packages of their own. Or copy the dataset to a local disk and write "
            f"{url.rstrip('/').rpartition('/')[2]!r}."
        ) from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}") from error
    if protocol in _S3:
        filesystem.retries = 1  # `_again` has a time limit; s3fs has none
    return filesystem, path.rstrip("/")


def _special(filesystem: Any) -> Callable[..., Any] | None:
    """Return the function that asks for a range and reads no more, None if there is none for such a service.

    It returns the bytes, what states their version, and what states their place.
    """
    kinds = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    if not hasattr(filesystem, "loop"):
        return None
    return _get_s3 if set(kinds) & {*_S3} else _get_http if set(kinds) & {*_WEB} else None


async def _get_s3(filesystem: Any, path: str, start: int, stop: int) -> tuple[bytes, Mapping[str, Any], str]:
    """Return a range of an object in S3."""
    bucket, key, number = filesystem.split_path(path)
    given = {"VersionId": number} if number else {}
    answer = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **given)
    try:
        data, left = b"", stop - start + 1  # one more shows an answer that is too long, however long it is
        while left and (part := await answer["Body"].read(left)):
            data, left = data + part, left - len(part)
        return data, {"ETag": answer.get("ETag")}, answer.get("ContentRange") or ""
    finally:
        answer["Body"].close()


async def _get_http(filesystem: Any, path: str, start: int, stop: int) -> tuple[bytes, Mapping[str, Any], str]:
    """Return a range of a file on a web server."""
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    session = await filesystem.set_session()
    async with session.get(filesystem.encode_url(path), headers=headers) as answer:
        if answer.status in (401, 403):
            raise PermissionError(f"status {answer.status}")
        filesystem._raise_not_found_for_status(answer, path)
        if answer.status != 206:
            raise DiskError(
                f"{path}: the server sends the whole file instead of a range of it. Copy the dataset to a disk, or use "
                "a server that answers ranges (nginx, Apache and all object stores do)."
            )
        return await answer.read(), answer.headers, answer.headers.get("Content-Range") or ""


def _version_of(info: Mapping[str, Any]) -> str:
    """Return the text that changes when a file is replaced; "" if the server reports nothing of the kind.

    >>> _version_of({"ETag": '"0a"', "LastModified": "2026"}), _version_of({"mtime": 2.5}), _version_of({})
    ('ETag "0a"', 'mtime 2.5', '')
    """
    for names in (*_VERSIONS, _TIMES):
        for name in names:
            if info.get(name):
                return f"{'ETag' if name in _VERSIONS[0] else name} {info[name]}"
    return ""
