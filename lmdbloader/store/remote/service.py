"""The server behind a URL: the sizes and versions of a dataset's files, and ranges of their bytes, through fsspec."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lmdbloader.base.arguments import plain_url
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
# A brief request, where there is a complete copy to use instead: for one attempt, and for all of them.
_BRIEF_SECONDS, _BRIEF_RETRY_SECONDS = 5, 3.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 4.0
# Requests in flight at the same time, of all threads of a process.
MOST_REQUESTS = 32
# Not the state of `random`, which a program may have seeded, and which forked processes share.
_jitter = random.SystemRandom()
_S3 = ("s3", "s3a")


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
    """The server did not answer a brief request, or with temporary errors only."""


class _WrongLengthError(OSError):
    """Other bytes arrived than were requested, or another number of them."""


class Service:
    """The server behind a URL. Thread-safe.

    It pickles without credentials: the process that unpickles it reads its own environment.
    """

    def __init__(self, url: str) -> None:
        """Read endpoint, region and credentials from the environment; nothing is requested yet."""
        self.url = dataset_url(url)
        self._options = _options_of(self.url)
        self._restart()

    def _restart(self) -> None:
        self._lock = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None
        self._own = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        public = {name: value for name, value in self._options.items() if name not in _SECRETS}
        return {"url": self.url, "_options": public}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]
        self._options = {**self._options, **state["_options"]}

    @property
    def endpoint(self) -> str:
        """The endpoint that the environment names; "" for the service's default."""
        return str(self._options.get("endpoint_url", ""))

    def facts(self, name: str, *, is_brief: bool = False) -> Facts:
        """Return the size and the version of a file of the dataset.

        Args:
            name: The file's.
            is_brief: Whether to give up after a few seconds instead of half a minute.

        Raises:
            UnreachableError: The server does not answer a brief request.
            NotFoundError: There is no such file.
            DiskError: The server does not answer, denies access, or does not report the size.
            OptionError: A package for this kind of URL is missing.
        """
        info = self.info(name, is_brief=is_brief)
        if info.get("type") == "directory" or info.get("size") is None:
            raise DiskError(
                f"{self.url}/{name}: the server does not report the size of this file. Copy the dataset to a disk with "
                "another program."
            )
        return Facts(int(info["size"]), _version_of(info))

    def info(self, name: str, *, is_brief: bool = False) -> dict[str, Any]:
        """Return fsspec's `info` of a file; arguments and errors are those of `facts`."""
        return self._again(name, lambda: self._info(name, is_brief=is_brief), is_brief=is_brief)

    def read(self, name: str, nbytes: int, version: str = "") -> bytes:
        """Return the bytes of a whole file.

        Raises:
            ReplacedError, NotFoundError, DiskError: As `get`.
        """
        return self.get(name, 0, nbytes, version) if nbytes else b""

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
            data = self._get(name, start, stop, version)
            if len(data) != stop - start:
                raise _WrongLengthError(f"{len(data)} bytes arrived instead of {stop - start}")
            return data

        return self._again(name, ask)

    def compares(self, version: str) -> bool:
        """Return whether `get` itself finds out that a file has another version."""
        return version.startswith("ETag ") and _special(self._connect()[0]) is not None

    # -- How each kind of service is asked

    def _connect(self) -> tuple[Any, str]:
        """Return the file system and the dataset's path in it.

        An asynchronous file system is thread-safe, so each process makes one; of any other kind, each thread makes one.
        """
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1:]
        kept: Any = getattr(self._own, "opened", None)
        if kept is not None and kept[0] == os.getpid():
            return kept[1:]  # type: ignore[no-any-return]
        found = _open(self.url, self._options)
        from fsspec.asyn import AsyncFileSystem

        if isinstance(found[0], AsyncFileSystem) and found[0].async_impl:
            with self._lock:
                if self._opened is None or self._opened[0] != os.getpid():
                    self._opened = (os.getpid(), *found)
                return self._opened[1:]
        self._own.opened = (os.getpid(), *found)
        return found

    def _info(self, name: str, *, is_brief: bool) -> dict[str, Any]:
        filesystem, root = self._connect()
        filesystem.invalidate_cache()
        found: dict[str, Any]
        if is_brief and hasattr(filesystem, "loop"):
            from fsspec.asyn import sync

            found = sync(filesystem.loop, filesystem._info, f"{root}/{name}", timeout=_BRIEF_SECONDS)
        else:
            found = filesystem.info(f"{root}/{name}")
        return found

    def _get(self, name: str, start: int, stop: int, version: str) -> bytes:
        filesystem, root = self._connect()
        path, special = f"{root}/{name}", _special(filesystem)
        if special is None:
            return bytes(filesystem.cat_file(path, start=start, end=stop))
        from fsspec.asyn import sync

        data: bytes = sync(filesystem.loop, special, filesystem, path, start, stop, version)
        return data

    def check_version(self, name: str, version: str) -> None:
        """Raise ReplacedError if a file has another version now, as far as the service states versions."""
        found = self.facts(name).version
        if found and version and found != version:
            raise replaced(self.url, name, f"it has {found}, not {version}")

    def _again(self, name: str, ask: Callable[[], T], *, is_brief: bool = False) -> T:
        """Return the result of `ask`, which is called again after temporary errors, with growing pauses."""
        began, attempt = time.monotonic(), 0
        limit, least = (_BRIEF_RETRY_SECONDS, 1) if is_brief else (_RETRY_SECONDS, _LEAST_ATTEMPTS)
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
                if attempt >= least and time.monotonic() - began > limit:
                    raise (UnreachableError if is_brief else DiskError)(
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
        if isinstance(error, _ReplacedAnswer):
            return replaced(self.url, name, str(error))
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"{where}: nothing is there{self._at_endpoint()}. Is the URL that of a dataset?")
        if type(error).__name__ == "TooLongError":  # of a module that only URLs of web servers need
            return DiskError(f"{where}: {error}.")
        if isinstance(error, _WholeAnswer):
            return DiskError(
                f"{where}: the server sends the whole file instead of a range of it. Copy the dataset to a disk, or "
                "use a server that answers ranges (nginx, Apache and all object stores do)."
            )
        if isinstance(error, PermissionError):
            return DiskError(f"{where}: access denied ({_described(error)}). Check the keys and the bucket's policy.")
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
            return DiskError(
                f"{where}: no keys were found ({_described(error)}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or AWS_PROFILE; for a public bucket set FSSPEC_S3_ANON=true."
            )

        return None


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
    return ReplacedError(
        f"{url}/{name}: was replaced since it was opened ({what}). Open the dataset again; the new one gets a cache of "
        "its own.",
        path=url,
    )


class _ReplacedAnswer(Exception):
    """The server reports that the file has another version."""


class _WholeAnswer(Exception):
    """The server sends the whole file instead of a range."""


def _cause(error: BaseException) -> BaseException:
    """Return the failure: fsspec's `info` of a file on a web server raises FileNotFoundError whatever it was."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp")
    return cause if cause is not None and is_hidden else error


def _described(error: Exception) -> str:
    """Return the type and the message of what failed."""
    failure = _cause(error)
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__


_SECRETS = ("key", "secret", "token")


def _options_of(url: str) -> dict[str, Any]:
    """Return fsspec's options for a URL, from the environment; empty for anything but S3."""
    protocol = url.partition("://")[0].lower()
    if protocol not in _S3:
        return {}
    known: Mapping[str, Any] = {}
    try:
        from fsspec.config import conf

        known = conf.get("s3", {})
    except ImportError:
        pass  # `_open` raises, and names the missing package
    variables = {
        "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "key": ("AWS_ACCESS_KEY_ID",),
        "secret": ("AWS_SECRET_ACCESS_KEY",),
        "token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    found: dict[str, Any] = {}
    for option, names in variables.items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None and option not in known:
            found[option] = value
    # Without both, botocore looks for a profile or the machine's role; half a pair would keep it from doing so.
    if "key" not in found or "secret" not in found:
        found = {option: value for option, value in found.items() if option not in _SECRETS}
    return found


def _open(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a new file system that nothing else uses, and the dataset's path in it.

    Raises:
        OptionError: The protocol is unknown, or a package for it is missing.
    """
    protocol = url.partition("://")[0].lower()
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    try:
        from fsspec.core import url_to_fs

        if protocol in _S3:
            given = dict(options)
            region = given.pop("region", None)
            config = {
                "connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, "retries": {"max_attempts": 0},
                "max_pool_connections": 2 * MOST_REQUESTS,
            }  # fmt: skip
            arguments |= given | {"config_kwargs": config, "use_listings_cache": False}
            arguments |= {"client_kwargs": {"region_name": region}} if region else {}
        elif protocol in ("http", "https"):
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
    """Return the function that asks for a range on a condition, None if there is none for such a service."""
    kinds = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    if not hasattr(filesystem, "loop"):
        return None
    return _get_s3 if set(kinds) & {*_S3} else _get_http if set(kinds) & {"http", "https"} else None


async def _get_s3(filesystem: Any, path: str, start: int, stop: int, version: str) -> bytes:
    """Return a range of an object in S3, on the condition that its ETag is unchanged."""
    bucket, key, number = filesystem.split_path(path)
    given = {"VersionId": number} if number else {}
    etag = version.removeprefix("ETag ") if version.startswith("ETag ") else ""
    if etag:
        given["IfMatch"] = etag
    try:
        answer = await filesystem._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **given
        )
    except OSError as error:
        if etag and "precondition" in str(error).lower():
            raise _ReplacedAnswer(f"it no longer has the ETag {etag}") from error
        raise
    try:
        _compare(etag, answer.get("ETag") or "")
        _compare_range(start, stop, answer.get("ContentRange") or "")
        data, left = b"", stop - start + 1  # one more shows an answer that is too long, however long it is
        while left and (part := await answer["Body"].read(left)):
            data, left = data + part, left - len(part)
        return data
    finally:
        answer["Body"].close()


async def _get_http(filesystem: Any, path: str, start: int, stop: int, version: str) -> bytes:
    """Return a range of a file on a web server, on the condition that its ETag is unchanged."""
    etag = version.removeprefix("ETag ") if version.startswith("ETag ") else ""
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    if etag and not etag.startswith("W/"):  # If-Match compares strongly, so a weak ETag would never match
        headers["If-Match"] = etag
    session = await filesystem.set_session()
    async with session.get(filesystem.encode_url(path), headers=headers) as answer:
        if answer.status == 412:
            raise _ReplacedAnswer(f"it no longer has the ETag {etag}")
        if answer.status in (401, 403):
            raise PermissionError(f"status {answer.status}")
        filesystem._raise_not_found_for_status(answer, path)
        _compare(etag, answer.headers.get("ETag") or "")
        if version.startswith("Last-Modified "):  # of a server without ETags
            _compare(version, f"Last-Modified {answer.headers.get('Last-Modified') or version[14:]}")
        if answer.status != 206:
            raise _WholeAnswer
        _compare_range(start, stop, answer.headers.get("Content-Range") or "")
        data: bytes = await answer.read()
        return data


def _compare(expected: str, found: str) -> None:
    """Raise _ReplacedAnswer if a response has another ETag than expected; some servers send none."""
    if expected and found and expected != found:
        what = "" if expected.startswith("Last-Modified") else "ETag is "
        raise _ReplacedAnswer(f"its {what}{found}, not {expected}")


def _compare_range(start: int, stop: int, found: str) -> None:
    """Raise an error that may pass if an answer says that it has other bytes: a cache in between may be broken."""
    if found and not found.startswith(f"bytes {start}-{stop - 1}/"):
        raise _WrongLengthError(f"{found} arrived instead of bytes {start}-{stop - 1}")


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
