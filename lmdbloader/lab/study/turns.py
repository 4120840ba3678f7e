"""The turns of a study: how many are to come, and those that an interrupted study of the same had measured already."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch

from lmdbloader import __version__
from lmdbloader.base.cores import count_cores
from lmdbloader.base.text import counted, rough_time
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import FormatError
from lmdbloader.format.manifest import Manifest
from lmdbloader.lab.study.results import to_plain
from lmdbloader.store import read_manifest

T = TypeVar("T")
# Turns are compared with each other: later, the machine may be another one in all but name.
KEPT_SECONDS = 24 * 3600.0


class Turns:
    """Measures the turns of one study, and keeps each in a file, from which the same study goes on."""

    def __init__(self, file: Path | None = None) -> None:
        """Read what is kept.

        Args:
            file: Where turns are kept, one JSON object a line; None keeps nothing.
        """
        self.path = file
        self._kept = {} if file is None else _read(file)
        self._output: IO[str] | None = None
        self._began = time.monotonic()
        self._expected = self._measured = self.num_reused = 0

    def expect(self, number: int) -> None:
        """Say how many turns there are in all, for `left`."""
        self._expected, self._began = number, time.monotonic()

    def describe_found(self) -> str:
        """Return a sentence on what an interrupted study has left; empty if there is nothing."""
        if not self._kept:
            return ""
        return (
            f"going on from {counted(len(self._kept), 'turn')} of an interrupted study of the same; to measure again, "
            f"use --restart or delete {self.path}"
        )

    def take(self, name: str, measure: Callable[[], T], read: Callable[[Any], T]) -> T:
        """Return a turn that is kept, else measure it and keep it.

        Args:
            name: Of the section, the setting and the number of the turn.
            measure: Measures it.
            read: Makes a turn of its JSON.
        """
        if name in self._kept:
            # A file that is damaged, or was written by hand, is measured again.
            with contextlib.suppress(FormatError, KeyError, TypeError, ValueError):
                found = read(self._kept[name])
                self.num_reused += 1
                return found
        found = measure()
        self._measured += 1
        self._keep(name, found)
        return found

    def left(self) -> str:
        """Return how long the rest takes, in words; empty before the first turn has been measured."""
        rest = self._expected - self._measured - self.num_reused
        if not self._measured or rest <= 0:
            return ""
        return f"about {rough_time(rest * (time.monotonic() - self._began) / self._measured)} left"

    def describe_kept(self) -> str:
        """Return a sentence on what is kept after an interruption; empty if nothing is."""
        number = self._measured + self.num_reused
        if not number or self.path is None or not self.path.exists():
            return ""
        return f"{counted(number, 'turn')} kept: within a day, the same command goes on from here ({self.path})"

    def close(self, *, is_done: bool) -> None:
        """Close the file, and delete it if the study is done."""
        if self._output is not None:
            self._output.close()
            self._output = None
        if is_done and self.path is not None:
            _delete([self.path])

    def _keep(self, name: str, turn: Any) -> None:
        if self.path is None:
            return
        try:
            if self._output is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _delete(file for file in self.path.parent.glob("*.jsonl") if _age(file) > KEPT_SECONDS)
                self._output = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
            line = json.dumps([name, to_plain(turn)], default=np.ndarray.tolist, allow_nan=False)
            # The line before may have been cut short.
            self._output.write(f"\n{line}\n")
            self._output.flush()
        except (OSError, FormatError):  # no room, no right to write: the study itself goes on
            self.path = None


def forget_turns(path: str | os.PathLike[str]) -> None:
    """Delete what interrupted studies of a dataset have kept."""
    folder = cache_folder()
    if folder is not None:
        _delete((folder / "bench").glob(f"{_prefix(read_manifest(path))}-*.jsonl"))


def _prefix(manifest: Manifest) -> str:
    return hashlib.sha256(manifest.manifest_digest.encode()).hexdigest()[:12]


def _delete(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _age(file: Path) -> float:
    """Return the seconds since a file was written."""
    return time.time() - file.stat().st_mtime


def file_of(dataset: LMDBDataset, command: str) -> Path | None:
    """Return the file for the turns of a study: of these samples, this command, machine and release.

    Args:
        dataset: That is read.
        command: The command line of the study, with all options.
    """
    folder = cache_folder()
    if folder is None:
        return None
    manifest = dataset.reader.manifest
    parts = (
        __version__, torch.__version__, platform.node(), count_cores(), str(Path.cwd()), command,
        hashlib.sha256(np.asarray(dataset.stored_rows).tobytes()).hexdigest(),
    )  # fmt: skip
    name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return folder / "bench" / f"{_prefix(manifest)}-{name}.jsonl"


def _read(file: Path) -> dict[str, Any]:
    """Return the turns in a file by name: none if it is missing or too old; a line that was cut short is left out."""
    found: dict[str, Any] = {}
    try:
        if _age(file) > KEPT_SECONDS:
            return {}
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            name, turn = json.loads(line)
            found[str(name)] = turn
    return found
