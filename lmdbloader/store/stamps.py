"""Stamps: notes in the user's cache that an index was checked here, so that opening it again looks at no row.

A stamp is about one file as it was: its place, length, times and digests, since the start of the system. It is written
only where any later change would show in these. Whoever is not sure checks again: stamps change the speed only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.base.files import open_regular
from lmdbloader.base.user_cache import cache_folder, replace_text
from lmdbloader.format.digests import read_digest
from lmdbloader.format.manifest import Manifest
from lmdbloader.store.facts import Facts

# Of the stamps, and of the checks that they stand for: a new number makes every file be checked again.
_VERSION = 1
_SUFFIX = ".stamp"
# More than this, and the oldest are forgotten.
_MOST_STAMPS = 500
_MOST_NBYTES = 2**18
# Others may not write a file that decides what is trusted.
_WRITABLE_BY_OTHERS = 0o022


def stamps_folder() -> Path | None:
    """Return the folder of the stamps; delete it to check all datasets again. None if the user has no home."""
    folder = cache_folder()
    return None if folder is None else folder / "checked"


class Stamp:
    """The stamp of an open index."""

    def __init__(self, descriptor: int, manifest: Manifest) -> None:
        """Look at the file's status, before anything is read from it.

        Args:
            descriptor: The file's, open until the last call.
            manifest: The dataset's.
        """
        self._descriptor, self._manifest = descriptor, manifest
        self._boot, self._folder = system.boot_id(), stamps_folder()
        self._settling = system.settling_seconds(descriptor) if self._boot and self._folder else None
        self._status = _status_of(descriptor)

    def recall(self) -> dict[str, Facts] | None:
        """Return the facts about the fields if this very file was checked before; None if it must be checked."""
        if self._settling is None:
            return None
        try:
            digest, _, text = _read_own(self._path).decode().partition("\n")
            if digest != _digest(text):
                return None
            found = json.loads(text)
            if found.pop("facts_of") != list(self._fields):
                return None
            plain = found.pop("facts")
            if found != self._described() or len(plain) != len(self._fields):
                return None
            return {
                name: Facts.from_plain(f, each) for (name, f), each in zip(self._fields.items(), plain, strict=True)
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def remember(self, facts: Mapping[str, Facts]) -> bool:
        """Write the stamp of a file that was checked, if any change since then would show; return whether.

        Args:
            facts: About its fields.
        """
        if self._settling is None:
            return False
        try:
            return self._write(facts)
        except OSError:
            return False

    def _write(self, facts: Mapping[str, Facts]) -> bool:
        """Write the stamp if the last change of the file is so long ago that another one would have another time."""
        assert self._settling is not None
        if time.time_ns() - self._status[-1] < self._settling * 1e9:
            return False
        # Whoever has changed a page through a map may change it again without a new time, until it is written.
        system.flush(self._descriptor)
        manifest = self._manifest
        # What was checked may have been changed before this; what is read now may not, without a new time.
        if read_digest(self._descriptor) != manifest.index_digest:
            return False
        if _status_of(self._descriptor) != self._status:
            return False
        facts_of = list(self._fields)
        found = {**self._described(), "facts_of": facts_of, "facts": [facts[name].to_plain() for name in facts_of]}
        text = json.dumps(found)
        content = f"{_digest(text)}\n{text}"
        if len(content) > _MOST_NBYTES:
            return False
        path = self._path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(path, content)
        _prune(path.parent)
        return True

    @property
    def _fields(self) -> dict[str, Any]:
        return {f.name: f for f in self._manifest.fields if f.is_payload}

    @property
    def _path(self) -> Path:
        """The stamp's: one for each file and start of the system, as machines may share the folder."""
        assert self._folder is not None
        place = f"{self._boot} {self._status[0]} {self._status[1]}"
        return self._folder / (hashlib.blake2b(place.encode(), digest_size=16).hexdigest() + _SUFFIX)

    def _described(self) -> dict[str, Any]:
        manifest = self._manifest
        return {
            "version": _VERSION, "release": __version__, "boot": self._boot, "status": self._status,
            "digests": [manifest.manifest_digest, manifest.index_digest, manifest.content_digest],
        }  # fmt: skip


def _status_of(descriptor: int) -> list[int]:
    """Return a file's place, length and times; the last one is that of any change, which no program can set."""
    found = os.fstat(descriptor)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _digest(text: str) -> str:
    """Return a digest of a stamp, which shows damage."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read_own(path: Path) -> bytes:
    """Return the content of a file of this user, which nobody else can write.

    Raises:
        OSError: It cannot be read, belongs to somebody else, or is too large.
    """
    with open(open_regular(path), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != system.user() or system.permissions(found) & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path}: others may write it")
        if found.st_size > _MOST_NBYTES:
            raise OSError(f"{path}: {found.st_size} bytes")
        return file.read(_MOST_NBYTES)


def _prune(folder: Path) -> None:
    """Remove the oldest stamps if there are too many, and what a killed process has left."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    if len(names) <= _MOST_STAMPS:
        return
    ages = []
    for name in names:
        with contextlib.suppress(OSError):  # another process has just removed it
            ages.append((os.stat(folder / name, follow_symlinks=False).st_mtime_ns, name))
    for _, name in sorted(ages)[: len(ages) - _MOST_STAMPS]:
        with contextlib.suppress(OSError):
            os.unlink(folder / name)
