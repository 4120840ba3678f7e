"""Decoded copies of images in memory: those that fit are decoded whole at their first read, and used from then on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words, system
from lmdbloader.base.arguments import shown
from lmdbloader.base.stage_times import Clock
from lmdbloader.base.text import plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format.layout import CODEC_JPEG
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries

if TYPE_CHECKING:
    from lmdbloader.batch.dataset import LMDBDataset
    from lmdbloader.batch.pipeline import Pipeline, Scratch

I64 = npt.NDArray[np.int64]
_logger = logging.getLogger("lmdbloader")
# In place of the address of an image: it was not read yet; it is not kept, or not yet complete.
_NEW, _NOT_KEPT = 0, -1
_ALIGNMENT, _MOST_FRACTION = 64, 0.95


def kept_in(keep: Any, dataset: LMDBDataset, fraction: Any, *, verify: bool) -> Kept | None:
    """Return what keeps a Loader's images; raise OptionError if its `keep` or `keep_fraction` has another value."""
    if keep is not None and not (isinstance(keep, str) and keep in ("memory", "device")):
        raise OptionError(f"keep={shown(keep)}: expected 'memory', 'device' or None")
    if isinstance(fraction, bool) or not isinstance(fraction, float | int) or not 0 < fraction <= _MOST_FRACTION:
        raise OptionError(f"keep_fraction={shown(fraction)}: expected a number above 0 and at most {_MOST_FRACTION}")
    if keep == "memory" and system.free_memory() is None:
        raise OptionError(f"keep={keep!r}: this system does not say how much memory is free. Leave keep out.")
    return None if keep != "memory" else Kept(dataset, fraction, verify=verify)


class Kept:
    """The decoded images of one Loader; safe from several threads and across forks.

    Images are kept as pixels; JPEGs for transforms that resize as their planes at all scales, of which kernels make a
    resized window: from pixels it would differ by a level. What is kept stays to the end.
    """

    def __init__(self, dataset: LMDBDataset, fraction: float, *, verify: bool) -> None:
        """Start without images; the processes of this machine share a fraction of the free memory for them."""
        self._reader, self._fraction, self._verify = dataset.reader, fraction, verify
        rows = dataset.stored_rows
        self._num_rows = len(rows if isinstance(rows, range) else np.unique(rows))
        # Of a field, with JPEGs as pixels or as planes: the address of each row's image, or a number from above.
        self._tables: dict[tuple[str, bool], I64] = {}
        self._locks: dict[int, threading.Lock] = {}  # of each process: one may be held during a fork
        self._memory: npt.NDArray[np.uint8] | None = None  # takes pages only as it is filled
        self._used = self._num_kept = self._num_seen = 0
        self._is_full = False

    def given(self, pipeline: Pipeline, rows: I64, scratch: Scratch, clock: Clock) -> I64:
        """Return `given` of `assemble` for what is kept of rows (n,), new images too, and set it for the call."""
        given = np.zeros((len(rows), len(pipeline.fields), 2), np.int64)
        for f, (name, table) in enumerate([*self._tables_of(pipeline)]):
            for row in dict.fromkeys(rows[table[rows] == _NEW].tolist()):
                if self._is_full:
                    break
                self._keep(name, row, table, scratch if pipeline.program.resizes else None, clock)
            np.maximum(table[rows], 0, out=given[:, f, 0])
        given[..., 1] = np.where(given[..., 0], at.KEPT, 0)
        scratch.set_given(given)
        return given

    def not_kept(self, pipeline: Pipeline, rows: I64) -> I64:
        """Return those of rows (n,) of which an image is read from the file."""
        found = np.zeros(len(rows), np.bool_)
        for _, table in self._tables_of(pipeline):
            found |= table[rows] <= 0
        return rows[found]

    def _tables_of(self, pipeline: Pipeline) -> Iterator[tuple[str, I64]]:
        for name in pipeline.fields:
            if (key := (name, pipeline.program.resizes)) not in self._tables:
                self._tables.setdefault(key, np.zeros(len(self._reader), np.int64))
            yield name, self._tables[key]

    def _keep(self, name: str, row: int, table: I64, scratch: Scratch | None, clock: Clock) -> None:
        """Decode an image and keep it if there is room; a damaged one is left to who reads it."""
        jpeg: tuple[Any, ...] | None = None
        pixels: Any = None
        try:
            found = self._read(name, row, clock, as_planes=scratch is not None)
            if found is None or found.ndim > 1:
                pixels, nbytes = found, 0 if found is None else at.KEPT_AT + found.nbytes
            elif scratch is not None:
                channels, height, width = self._reader.image_shape(name, row)
                work, room = scratch.rooms[[at.ROOM_JPEG, at.ROOM_NBYTES + at.ROOM_JPEG]].tolist()
                jpeg = found.ctypes.data, found.nbytes, (height, width, channels), work
                fits = entries.jpeg_room(found.nbytes, height, width) <= room
                nbytes = entries.keep_jpeg(*jpeg, 0) if fits else 0
        except CorruptError:
            nbytes = 0
        clock.tick(clock_words.DECODE)
        if (block := self._room(table, row, nbytes)) is None:
            return
        if jpeg is not None:
            entries.keep_jpeg(*jpeg, block.ctypes.data)
        else:
            block[:8].view(np.int64)[0] = pixels.nbytes
            block[at.KEPT_AT :] = pixels.reshape(-1).view(np.uint8)
        table[row] = block.ctypes.data  # the last step: from now on other threads use it

    def _read(self, name: str, row: int, clock: Clock, *, as_planes: bool) -> npt.NDArray[Any] | None:
        """Return the payload (n,) of a JPEG, pixels with more axes, or None if it is stored raw, in tiles perhaps."""
        reader, rows = self._reader, np.array([row], np.int64)
        codec, nbytes = reader.index.columns[f"{name}.codec"][row], reader.raw_nbytes(name, rows)
        in_python = bool(reader.decodes_in_python(codec))
        if as_planes and in_python:
            return reader.read_given(name, row, verify=self._verify, clock=clock)
        if as_planes and codec == CODEC_JPEG:
            return np.frombuffer(reader.stored_bytes(name, row, verify=self._verify, clock=clock), np.uint8)
        if not in_python and reader.lengths(name, "stored_nbytes", rows) >= nbytes:
            return None
        pixels = np.empty((1, int(nbytes[0])), np.uint8)
        reader.read_into(name, rows, pixels[0], np.zeros(1, np.int64), nbytes, verify=self._verify, clock=clock)
        return pixels

    def _room(self, table: I64, row: int, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Return memory for a row's image; None if there is none left, none is needed, or another thread has it."""
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            if self._memory is None:
                ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
                free = min(system.free_memory() or 0, system.address_limit() or 2**62)
                budget = int(free * self._fraction) // max(int(ranks) if ranks.isdecimal() else 1, 1)
                try:
                    self._memory = np.empty(budget, np.uint8)
                except MemoryError:  # the system promises no more than it has
                    self._memory = np.empty(0, np.uint8)
            start = self._used + -(self._memory.ctypes.data + self._used) % _ALIGNMENT
            if self._is_full or table[row] != _NEW:
                return None
            self._is_full = nbytes > 0 and start + nbytes > len(self._memory)
            if not self._is_full:
                table[row], self._num_seen = _NOT_KEPT, self._num_seen + 1
            if nbytes and not self._is_full:
                self._used, self._num_kept = start + nbytes, self._num_kept + 1
            if self._is_full or self._num_seen == self._num_rows * len(self._tables):
                self._report()
            return None if self._is_full or not nbytes else self._memory[start : start + nbytes]

    def _report(self) -> None:
        budget = 0 if self._memory is None else self._memory.nbytes
        _logger.log(
            logging.WARNING if self._is_full else logging.INFO,
            "lmdbloader: keep='memory': %s: %s of %s images are kept decoded, in %s of %s%s",
            plain(self._reader.place), f"{self._num_kept:,}", f"{self._num_rows * len(self._tables):,}",
            show_nbytes(self._used), show_nbytes(budget),
            "; the others are decoded in every epoch" * self._is_full,
        )  # fmt: skip
