"""The bytes of sources: of whole files and of parts of larger ones, on local disks and at URLs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from lmdbloader.base import system
from lmdbloader.base.files import open_regular
from lmdbloader.conversion.sources.listing import File, Source, Span, is_url
from lmdbloader.conversion.sources.remote import read_remote
from lmdbloader.conversion.sources.videos import is_video, read_frame
from lmdbloader.format.layout import MAX_PAYLOAD_NBYTES

# The most that Linux reads in one call.
_MOST_READ_NBYTES = 0x7FFFF000
#: The content of files by place, or the error of a file that cannot be read.
Fetched: TypeAlias = Mapping[File, "bytes | Exception"]


def fetch(sources: Iterable[Source]) -> Fetched:
    """Return the content of the remote files of some sources, all requested at once."""
    # A file has at most the bytes of all files of its source.
    most = {f: s.nbytes for s in sources for f in s.files if is_url(f.path if isinstance(f, Span) else f)}
    return dict(zip(most, read_remote([*most], most), strict=True)) if most else {}


def read(file: File, fetched: Fetched = MappingProxyType({})) -> bytes:
    """Return the content of a file, from `fetch` if it is there.

    Raises:
        OSError: It cannot be read, or it is a part of a larger file that ends too early.
    """
    path = file.path if isinstance(file, Span) else file
    if is_url(path):
        content = fetched[file] if file in fetched else read_remote([file], {file: MAX_PAYLOAD_NBYTES})[0]
        if isinstance(content, Exception):
            raise OSError(f"{type(content).__name__}: {content}") from content
        return content
    if isinstance(file, Span) and is_video(path):
        return read_frame(file)
    with open(open_regular(path), "rb") as opened:
        if not isinstance(file, Span):
            return opened.read()
        if file.nbytes > _MOST_READ_NBYTES:
            raise OSError(f"a part of {file.nbytes} bytes; a part of {os.fsdecode(path)} can have at most 2 GiB")
        content = system.read_at(opened.fileno(), file.nbytes, file.start)
    if len(content) != file.nbytes:
        raise OSError(f"{os.fsdecode(path)} ends at byte {file.start + len(content)}, inside this part")
    return content


def read_head(file: File, most: int) -> bytes:
    """Return the first bytes of a local file, or of a part of one; at most `most`, empty if it cannot be read."""
    path, start, nbytes = (file.path, file.start, file.nbytes) if isinstance(file, Span) else (file, 0, most)
    try:
        with open(open_regular(path), "rb", buffering=0) as opened:
            return system.read_at(opened.fileno(), min(nbytes, most, os.fstat(opened.fileno()).st_size), start)
    except OSError:
        return b""


def times_of(source: Source) -> tuple[int, int]:
    """Return the newest mtime and the newest ctime of a source's local files, in ns since 1970; 0 without local files.

    The ctime shows a change whose mtime was set back.
    """
    changed = status_changed = 0
    for file in source.files:
        path = file.path if isinstance(file, Span) else file
        if not is_url(path):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                changed = max(changed, found.st_mtime_ns)
                status_changed = max(status_changed, found.st_ctime_ns)
    return changed, status_changed
