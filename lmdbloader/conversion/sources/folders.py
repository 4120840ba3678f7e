"""The image files below a local folder, in byte order; and the walk that remote folders share."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lmdbloader.conversion.sources.listing import Found, Names, as_text
from lmdbloader.errors import SourceError
from lmdbloader.images.decode import IMAGE_SUFFIXES

_SUFFIXES = frozenset(suffix.encode() for suffix in IMAGE_SUFFIXES)


def is_image_name(name: bytes) -> bool:
    """Return whether a file counts as an image by its suffix."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def stem_of(name: bytes) -> bytes:
    """Return a name without its image suffix.

    >>> stem_of(b"a/b.png"), stem_of(b"0.25")
    (b'a/b', b'0.25')
    """
    return os.path.splitext(name)[0] if is_image_name(name) else name


def find_images(root: Path) -> Found:
    """Return the image files in a local folder and the folders below it, in byte order.

    Links to files are followed, links to folders are not. What is no regular file is named and left out.

    Raises:
        SourceError: There is no such folder, or one of them cannot be listed.
    """
    if not root.is_dir():
        raise SourceError(f"{root}: there is no such folder" if not root.exists() else f"{root}: is no folder")
    top = os.fsencode(root)
    return walk(top, partial(_list_folder, top), lambda name: _size(os.path.join(top, name)))


def walk(top: bytes, entries: Callable[[bytes], Iterable[bytes]], size: Callable[[bytes], int | str]) -> Found:
    """Return the image files below a folder in byte order.

    Args:
        top: The folder.
        entries: Given a folder's relative path ("" or with "/" behind it), yields the relative paths of what may be
            images in it, and those of its folders with "/" behind them.
        size: Of such an image, or why it is left out; "" leaves it out without a word.
    """
    nbytes = array("q")
    ignored: list[tuple[str, str]] = []

    def files() -> Iterator[bytes]:
        # A folder with "/" behind it has the place of everything in it, so no more than what is in the folders on the
        # way is held and sorted at once.
        waiting = [b""]
        while waiting:
            name = waiting.pop()
            if not name or name.endswith(b"/"):
                waiting += sorted(entries(name), reverse=True)
                continue
            found = size(name)
            if isinstance(found, int):
                nbytes.append(found)
                yield name
            elif found:
                ignored.append((as_text(name), found))

    names = Names.join(top, files())
    return Found(names, np.array(nbytes, np.int64), ignored=tuple(sorted(ignored)))


def _list_folder(top: bytes, folder: bytes) -> Iterator[bytes]:
    path = os.path.join(top, folder[:-1])
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield folder + entry.name + b"/"
                elif is_image_name(entry.name):
                    yield folder + entry.name
    except OSError as error:
        raise SourceError(f"{as_text(path)}: cannot be listed ({error.strerror})") from error


def _size(path: bytes) -> int | str:
    """Return a file's size, or why it is left out; "" for a link to a folder.

    Such a link could lead in a circle, or list the same image twice.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        return "a broken link" if os.path.islink(path) else str(error.strerror)
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    return "" if stat.S_ISDIR(found.st_mode) and os.path.islink(path) else "not a regular file"
