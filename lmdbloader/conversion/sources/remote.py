"""Remote files, through fsspec: the files below a URL, and their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lmdbloader.base.arguments import is_url, path_text, plain_url
from lmdbloader.base.option_names import option
from lmdbloader.conversion.sources.listing import (
    File,
    Listing,
    Location,
    Others,
    Span,
    as_text,
    is_image_name,
    walk,
)
from lmdbloader.errors import OptionError, SourceError, SourceNotFoundError

_LOCAL = ("file", "local")
# Names of the time of the last change in file systems, or of the creation if files are never changed in place.
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
# Parts of one file this close together come by one request, which costs more than the bytes between them.
_GAP_NBYTES = 64 * 1024


def locate(path: str | os.PathLike[str], name: str = "source") -> Location:
    """Return a path, an option called `name`, as a `Path`, and a URL as a str; file:// is a path.

    Raises:
        OptionError: It is neither.

    >>> locate("photos"), locate("s3://bucket/photos"), locate("file:///data/photos")
    (PosixPath('photos'), 's3://bucket/photos', PosixPath('/data/photos'))
    """
    text = path_text(name, path)
    if not is_url(text):
        return Path(text)
    text = plain_url(text)
    protocol, _, rest = text.partition("://")
    return Path(rest) if protocol in _LOCAL else text


def locate_all(paths: Any, name: str) -> Any:
    """Return what `locate` returns; for a list of paths, a list; for None, None."""
    if paths is None:
        return None
    return [locate(path, name) for path in paths] if isinstance(paths, list) else locate(paths, name)


def only_here(url: str) -> bool:
    """Return whether only this process sees the files of a URL.

    These are memory:// and file systems that the running program has registered.
    """
    from fsspec.registry import known_implementations

    links = [link.partition("://")[0] for link in url.split("::")]
    return any(protocol == "memory" or protocol not in known_implementations for protocol in links)


def open_place(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        OptionError: The protocol is unknown, or a package for it is missing.
    """
    try:
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(url, **_web_options(url))
    except ImportError as error:
        raise OptionError(
            f"{url}: needs a package that is not installed ({error}). Install the extra: pip install "
            "'lmdbloader[remote]', in a clone pip install '.[remote]'. It installs fsspec and its support for S3; "
            "other services need packages of their own."
        ) from error
    except ValueError as error:
        raise OptionError(f"{url}: {error}") from error
    return filesystem, path.rstrip("/")


def _web_options(url: str) -> dict[str, Any]:
    """Return options, by protocol, of the web servers in a URL: their answers are read no further than asked for."""
    protocols = {link.partition("://")[0] for link in url.split("::")} & {"http", "https"}
    if not protocols:
        return {}
    from fsspec.config import conf

    try:
        from lmdbloader.base.web_answers import bounded
    except ImportError:  # aiohttp is missing, which fsspec names
        return {}
    return {protocol: bounded(conf.get(protocol, {}).get("client_kwargs")) for protocol in protocols}


def takes_many(filesystem: Any) -> bool:
    """Return whether a file system answers several threads at once: those of fsspec that work asynchronously do."""
    from fsspec.asyn import AsyncFileSystem

    return isinstance(filesystem, AsyncFileSystem) and filesystem.async_impl


@contextmanager
def explain(url: str) -> Iterator[None]:
    """Turn every error of listing a URL into SourceError: each service has its own errors."""
    try:
        yield
    except (SourceError, OptionError):
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{url}: nothing is there ({error})") from error
    except Exception as error:
        raise SourceError(f"{url}: cannot be listed ({type(error).__name__}: {error})") from error


def find_remote_images(url: str) -> Listing:
    """Return the image files below a URL, in byte order of their relative paths.

    Raises:
        SourceError: It does not exist, is a file, or cannot be listed.
        OptionError: The protocol is unknown, or its package is missing.
    """
    filesystem, root = open_place(url)
    sizes: dict[bytes, int | str] = {}
    times: list[int | None] = [0]
    others = Others()

    def entries(folder: bytes) -> Iterator[bytes]:
        for name, info in list_folder(filesystem, root, folder, url):
            if info["type"] == "directory":
                yield name + b"/"
            elif not is_image_name(name):
                others.add(name)
            else:
                sizes[name] = info["size"] if info["type"] == "file" else "not a regular file"
                times.append(changed_ns(info))
                yield name

    with explain(url):
        filesystem.invalidate_cache()
        found = walk(os.fsencode(url), entries, lambda name: sizes.pop(name), others)
        filesystem.invalidate_cache()  # which may hold a dict for every file
    return replace(found, changed_ns=newest(times))


def list_folder(filesystem: Any, root: str, folder: bytes, url: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the relative paths in a folder, and the facts that the service has about each, with sizes.

    Args:
        filesystem: The service.
        root: The folder that relative paths start from.
        folder: A relative path with a final "/", or "".
        url: Of the root, for messages.

    Raises:
        SourceError: It is not a folder, or the service does not know a size.
    """
    path = f"{root}/{os.fsdecode(folder)}".rstrip("/")
    infos = filesystem.ls(path, detail=True)
    if not folder and len(infos) == 1 and infos[0]["name"].rstrip("/") == root and infos[0]["type"] == "file":
        raise SourceError(f"{url}: is a file. Expected a folder (or, with {option('layout', 'tar')}, a tar).")
    start = root + "/" if root else ""
    found = []
    for info in infos:
        name = os.fsencode(info["name"].removeprefix(start).rstrip("/"))
        # The list may contain the folder itself, and a page of links may lead anywhere.
        if info["name"].startswith(start) and name.startswith(folder) and len(name) > len(folder):
            found.append((name, info))
    without_size = [i for i, (name, info) in enumerate(found) if info["size"] is None and is_wanted(name)]
    if without_size:
        sizes = filesystem.sizes([found[i][1]["name"] for i in without_size])
        for i, size in zip(without_size, sizes, strict=True):
            if size is None:
                raise SourceError(
                    f"{url}: the server gives no size for {as_text(found[i][0])}. Copy it to a disk first."
                )
            found[i][1]["size"] = size
    return found


def is_wanted(name: bytes) -> bool:
    """Return whether a file may be an image or a tar, so that its size matters."""
    return is_image_name(name) or name.lower().endswith(b".tar")


def changed_ns(info: dict[str, Any]) -> int | None:
    """Return when a file was last changed (ns since 1970), None if its service does not know.

    >>> changed_ns({"mtime": 2.5}), changed_ns({"created": "1970-01-01T00:00:01Z"}), changed_ns({})
    (2500000000, 1000000000, None)
    """
    value = next((info[key] for key in _TIMES if info.get(key) is not None), None)
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        return None if value is None else int(value * 10**9)
    except (TypeError, ValueError):
        return None


def newest(times: Iterable[int | None]) -> int | None:
    """Return the latest of some times, None if one is unknown.

    >>> newest([3, 5]), newest([3, None])
    (5, None)
    """
    latest = 0
    for time in times:
        if time is None:
            return None
        latest = max(latest, time)
    return latest


def read_remote(files: Sequence[File], most: Mapping[File, int]) -> list[bytes | Exception]:
    """Return the content of remote files, or their errors; each service is asked once for all of its files.

    Parts of a file that are close together come by one request.

    Args:
        files: The files.
        most: The most bytes that whole files have; others are errors. A server may send without end.
    """
    homes = _merge(files)
    ranges = list(dict.fromkeys(homes.values()))
    answers: dict[File, bytes | Exception] = {}
    groups: dict[int, tuple[Any, list[tuple[File, str]]]] = {}
    for wanted in ranges:
        try:
            filesystem, path = open_place(os.fsdecode(wanted.path if isinstance(wanted, Span) else wanted))
            groups.setdefault(id(filesystem), (filesystem, []))[1].append((wanted, path))
        except (OptionError, OSError) as error:
            answers[wanted] = error
    for filesystem, group in groups.values():
        # One byte more than a file has shows that it has become longer.
        spans = [wanted if isinstance(wanted, Span) else Span(wanted, 0, most[wanted] + 1) for wanted, _ in group]
        try:
            found = filesystem.cat_ranges(
                [path for _, path in group],
                [span.start for span in spans],
                [span.start + span.nbytes for span in spans],
                on_error="return",
            )
        except Exception as error:  # each service has its own errors
            found = [error] * len(group)
        answers.update(zip([wanted for wanted, _ in group], found, strict=True))
    return [_cut(file, homes[file], answers[homes[file]], most) for file in files]


def _merge(files: Sequence[File]) -> dict[File, File]:
    """Return the request for each file: a whole file itself, and a part together with the parts close to it."""
    homes: dict[File, File] = {file: file for file in files if not isinstance(file, Span)}
    group: list[Span] = []
    end = 0
    for span in sorted({f for f in files if isinstance(f, Span)}, key=lambda s: (s.path, s.start)):
        if group and (group[0].path != span.path or span.start > end + _GAP_NBYTES):
            homes.update(dict.fromkeys(group, replace(group[0], nbytes=end - group[0].start)))
            group = []
        end = max(end, span.start + span.nbytes) if group else span.start + span.nbytes
        group.append(span)
    if group:
        homes.update(dict.fromkeys(group, replace(group[0], nbytes=end - group[0].start)))
    return homes


def _cut(file: File, whole: File, answer: bytes | Exception, most: Mapping[File, int]) -> bytes | Exception:
    if isinstance(answer, Exception):
        return answer
    if not isinstance(file, Span) or not isinstance(whole, Span):
        if len(answer) <= most[file]:
            return answer
        return OSError(f"more than its {most[file]} bytes arrived: the file was changed while it was read. Try again")
    if len(answer) != whole.nbytes:
        return OSError(
            f"{len(answer)} bytes arrived instead of {whole.nbytes}: the file was changed, or its server does not send "
            "parts of files; copy it to a disk first"
        )
    return answer[file.start - whole.start :][: file.nbytes]
