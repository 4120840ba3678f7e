"""The content of a disk after a power cut: everything flushed, and any part of the later writes."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path

from .replay import SECTORS
from .steps import Step


class Disk:
    """Follows the flushes below a folder, step by step, and makes the files that a power cut may leave.

    Contents count as flushed by fsync of the file, names by fsync of their folder, LMDB's by its commits.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._new = itertools.count()
        # The file of each inode number; a file system gives the number of a removed file to a new one.
        self._files: dict[int, int] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._look()
        # The first content counts as flushed.
        for path in [folder, *folder.rglob("*")]:
            self._flush(path)

    def see(self, step: Step) -> None:
        """Take notice of a step."""
        self._look()
        if step.is_done and step.call in ("fsync", "fdatasync", "commit"):
            self._flush(self._folder / step.real)

    def cut(self, to: Path, rng: random.Random) -> None:
        """Make the folder `to`: this one after a power cut now; the losses of each file and folder are random."""
        paths = {self._file(path): path for path in [self._folder, *self._folder.rglob("*")]}
        self._cut(self._file(self._folder), to, paths, rng)

    def _look(self) -> None:
        before, self._files = self._files, {}
        for path in [self._folder, *self._folder.rglob("*")]:
            number = os.lstat(path).st_ino
            self._files[number] = file = before[number] if number in before else next(self._new)
            if path.is_dir():
                self._folders.add(file)

    def _file(self, path: Path | str) -> int:
        return self._files[os.lstat(path).st_ino]

    def _flush(self, path: Path) -> None:
        if path.is_dir():
            self._names[self._file(path)] = self._list(path)
        elif path.exists():
            self._contents[self._file(path)] = path.read_bytes()

    def _list(self, folder: Path) -> dict[str, int]:
        return {entry.name: self._file(entry.path) for entry in sorted(os.scandir(folder), key=lambda e: e.name)}

    def _cut(self, file: int, to: Path, paths: dict[int, Path], rng: random.Random) -> None:
        path = paths.get(file)
        if file in self._folders:
            names = rng.choice([self._names.get(file, {}), *([self._list(path)] if path else [])])
            to.mkdir()
            for name, below in names.items():
                self._cut(below, to / name, paths, rng)
            return
        flushed = self._contents.get(file, b"")
        to.write_bytes(_torn(flushed, path.read_bytes(), rng) if path else flushed)


def _torn(flushed: bytes, now: bytes, rng: random.Random) -> bytes:
    """Return a file after a power cut with unflushed writes: any of their sectors, and either length."""
    share = rng.choice((0, rng.random(), 1))
    length = max(len(flushed), rng.choice((0, len(now))))
    sector = rng.choice(SECTORS)
    sectors = []
    for at in range(0, length, sector):
        source = now if rng.random() < share else flushed
        size = min(sector, length - at)
        sectors.append(source[at : at + size].ljust(size, b"\0"))
    return b"".join(sectors)


def put_back(cut: Path, folder: Path) -> None:
    """Replace a folder by its state after a power cut."""
    shutil.rmtree(folder)
    os.rename(cut, folder)
