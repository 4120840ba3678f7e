"""The bytes of sources: of whole files and of parts of larger ones, on local disks and behind URLs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from lmdbloader.files import open_regular
from lmdbloader.sources.listing import File, Source, Span, is_url
from lmdbloader.sources.remote import read_remote

# What Linux reads in one call.
_MOST_READ_NBYTES = 0x7FFFF000
#: What `fetch` has brought, or why it could not.
Fetched: TypeAlias = Mapping[File, "bytes | Exception"]


def fetch(sources: Iterable[Source]) -> Fetched:
    """Return the content of all files of some sources that lie behind URLs, asked for at once."""
    files = [f for source in sources for f in source.files if is_url(f.path if isinstance(f, Span) else f)]
    return dict(zip(files, read_remote(files), strict=True)) if files else {}


def read(file: File, fetched: Fetched | None = None) -> bytes:
    """Return the content of a file.

    Args:
        file: Which one.
        fetched: What was fetched before.

    Raises:
        OSError: It cannot be read, or the larger file that it is a part of ends too early.
    """
    path = file.path if isinstance(file, Span) else file
    if is_url(path):
        content = fetched[file] if fetched and file in fetched else read_remote([file])[0]
        if isinstance(content, Exception):
            raise OSError(f"{type(content).__name__}: {content}") from content
        return content
    with open(open_regular(path), "rb") as opened:
        if not isinstance(file, Span):
            return opened.read()
        if file.nbytes > _MOST_READ_NBYTES:
            raise OSError(f"a part of {file.nbytes} bytes; at most 2 GiB of {os.fsdecode(path)} can be one")
        content = os.pread(opened.fileno(), file.nbytes, file.start)
    if len(content) != file.nbytes:
        raise OSError(f"{os.fsdecode(path)} ends at byte {file.start + len(content)}, within it")
    return content


def changed_at(source: Source) -> int:
    """Return when the newest of a source's local files was changed, in ns since 1970; 0 where there is none."""
    newest = 0
    for file in source.files:
        path = file.path if isinstance(file, Span) else file
        if not is_url(path):
            with contextlib.suppress(OSError):
                newest = max(newest, os.stat(path).st_mtime_ns)
    return newest
