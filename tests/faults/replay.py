"""The possible contents of a disk after a power cut at any of a process's recorded calls."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .shim import Call

# Bytes that a disk writes as a whole: persistent memory, old disks, new ones.
SECTORS = (64, 512, 4096)


@dataclass(slots=True)
class File:
    """A file: its flushed content, and the writes since the last flush.

    Attributes:
        flushed: Its content then.
        writes: (offset, bytes) since, in order.
        lengths: Those that it had since, the first when it was flushed.
    """

    flushed: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=lambda: [0])

    def now(self) -> bytes:
        """Return its content as the process sees it."""
        return _content(self.flushed, self.writes, self.lengths[-1])

    def flush(self) -> None:
        """Bring it to the disk."""
        self.flushed = self.now()
        self.writes, self.lengths = [], [len(self.flushed)]

    def write(self, at: int, data: bytes) -> None:
        """Take notice of bytes that were written."""
        self.writes.append((at, data))
        if at + len(data) > self.lengths[-1]:
            self.lengths.append(at + len(data))

    def write_through(self, at: int, data: bytes) -> None:
        """Take notice of bytes that are on the disk, whatever becomes of the others."""
        self.write(at, data)
        length = max(len(self.flushed), at + len(data))
        self.flushed = _content(self.flushed, [(at, data)], length)
        self.lengths = [max(known, length) for known in self.lengths]

    def truncate(self, length: int) -> None:
        """Take notice of another length."""
        if length < self.lengths[-1]:  # bytes beyond it read as zeros if it grows again
            self.writes.append((length, bytes(self.lengths[-1] - length)))
        self.lengths.append(length)

    def torn(self, rng: random.Random) -> bytes:
        """Return a possible content after a power cut: one of its lengths, and any sectors of every write."""
        sector = rng.choice(SECTORS)
        share = rng.choice((0.0, rng.random(), rng.random(), 1.0))
        length = rng.choice((self.lengths[0], self.lengths[-1], rng.choice(self.lengths)))
        content = np.zeros(max(length, len(self.flushed), *_ends(self.writes)), np.uint8)
        content[: len(self.flushed)] = np.frombuffer(self.flushed, np.uint8)
        numpy = np.random.default_rng(rng.randrange(2**32))
        for at, data in self.writes:
            first, last = at // sector, -(-(at + len(data)) // sector)
            lands = np.repeat(numpy.random(last - first) < share, sector)[at - first * sector :][: len(data)]
            content[at : at + len(data)][lands] = np.frombuffer(data, np.uint8)[lands]
        return content[:length].tobytes()


def _ends(writes: Sequence[tuple[int, bytes]]) -> list[int]:
    return [0, *(at + len(data) for at, data in writes)]


def _content(flushed: bytes, writes: Sequence[tuple[int, bytes]], length: int) -> bytes:
    content = bytearray(max(length, len(flushed), *_ends(writes)))
    content[: len(flushed)] = flushed
    for at, data in writes:
        content[at : at + len(data)] = data
    return bytes(content[:length])


@dataclass(slots=True)
class Folder:
    """A folder: the names in it, as they were when it was last flushed and after each change since."""

    names: list[dict[str, File | Folder]] = field(default_factory=lambda: [{}])

    def change(self) -> dict[str, File | Folder]:
        """Return the names, to be changed."""
        self.names.append(dict(self.names[-1]))
        return self.names[-1]


class Disk:
    """A folder on a disk, while a process changes it."""

    def __init__(self, folder: Path) -> None:
        """Begin with the existing files, all of them flushed."""
        self._root = _load(folder)

    def copy(self) -> Disk:
        """Return a disk of its own with the same state."""
        return copy.deepcopy(self)

    def apply(self, call: Call, *, is_done: bool = True) -> None:
        """Take notice of a call; of one that was cut off nothing is flushed."""
        if call.kind in "WDT":
            file = self._find(call.path)
            assert isinstance(file, File), call
            if call.kind == "T":
                file.truncate(call.at)
            elif call.kind == "D" and is_done:
                file.write_through(call.at, call.data)
            else:
                file.write(call.at, call.data)
        elif call.kind == "S":
            if is_done:
                self._flush(self._find(call.path))
        else:
            self._rename(call)

    def _flush(self, found: File | Folder) -> None:
        if isinstance(found, File):
            found.flush()
        else:
            del found.names[:-1]

    def _rename(self, call: Call) -> None:
        folder, _, name = call.path.rpartition("/")
        names = self._folder(folder).change()
        if call.kind in "CM":
            names[name] = File() if call.kind == "C" else Folder()
        elif call.kind == "U":
            del names[name]
        elif call.kind == "L":
            to, _, new = call.other.rpartition("/")
            self._folder(to).change()[new] = names[name]
        else:
            to, _, new = call.other.rpartition("/")
            # In one folder both names change at once; of two, each may be as it was.
            others = names if to == folder else self._folder(to).change()
            old = names.pop(name)
            if call.kind == "X":
                names[name] = others[new]
            others[new] = old

    def _folder(self, path: str) -> Folder:
        found = self._find(path)
        assert isinstance(found, Folder), path
        return found

    def _find(self, path: str) -> File | Folder:
        found: File | Folder = self._root
        for part in path.split("/") if path not in ("", ".") else ():
            assert isinstance(found, Folder), path
            found = found.names[-1][part]
        return found

    def write(self, to: Path) -> None:
        """Make the folder `to` as the process sees it."""
        _write(self._root, to, None)

    def cut(self, to: Path, rng: random.Random) -> None:
        """Make the folder `to` as a power cut may leave it."""
        _write(self._root, to, rng)


def _load(path: Path) -> Folder:
    names: dict[str, File | Folder] = {}
    for entry in path.iterdir():
        if entry.is_dir():
            names[entry.name] = _load(entry)
        else:
            content = entry.read_bytes()
            names[entry.name] = File(content, [], [len(content)])
    return Folder([names])


def _write(folder: Folder, to: Path, rng: random.Random | None) -> None:
    to.mkdir()
    versions = folder.names
    names = versions[-1] if rng is None else rng.choice((versions[0], versions[-1], rng.choice(versions)))
    for name, found in names.items():
        if isinstance(found, Folder):
            _write(found, to / name, rng)
        else:
            (to / name).write_bytes(found.now() if rng is None else found.torn(rng))


def moments(disk: Disk, calls: Sequence[Call]) -> Iterator[tuple[Call, Disk]]:
    """Yield each call, and the disk in the middle of it; a disk is good until the next one is taken."""
    for call in calls:
        during = disk.copy()
        during.apply(call, is_done=False)
        yield call, during
        disk.apply(call)
