"""Decoded copies of images in memory: those that fit are decoded whole at their first read, and used from then on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words, system
from lmdbloader.base.arguments import shown
from lmdbloader.base.stage_times import Clock
from lmdbloader.base.text import counted, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.format.layout import CODEC_JPEG
from lmdbloader.kernels import assemble_columns as at
from lmdbloader.kernels import entries
from lmdbloader.store import Reader
from lmdbloader.store.rows import Rows

I64 = npt.NDArray[np.int64]
_logger = logging.getLogger("lmdbloader")
# Of the address of an image in a table: not read yet, and never kept.
_NEW, _NEVER = 0, -1
# Images are put into pieces of memory of so many bytes, which take pages only as they are filled.
_PIECE_NBYTES = 64 * 2**20
_ALIGNMENT = 64
_MOST_FRACTION = 0.95


def check_keep(keep: Any, fraction: Any) -> None:
    """Raise OptionError unless a Loader's `keep` and `keep_fraction` can have these values."""
    if keep is not None and not (isinstance(keep, str) and keep in ("memory", "device")):
        raise OptionError(f"keep={shown(keep)}: expected 'memory', 'device' or None")
    is_number = isinstance(fraction, float | int) and not isinstance(fraction, bool)
    if not is_number or not 0 < fraction <= _MOST_FRACTION:
        raise OptionError(f"keep_fraction={shown(fraction)}: expected a number above 0 and at most {_MOST_FRACTION}")
    if keep == "memory" and system.free_memory() is None:
        raise OptionError(f"keep={keep!r}: this system does not say how much memory is free. Leave keep out.")


class Kept:
    """The decoded images of one Loader; safe from several threads and across forks.

    Images are kept as pixels; JPEGs for transforms that resize as their planes at all scales, of which kernels make a
    resized window: from pixels it would differ by a level. What is kept stays to the end.
    """

    def __init__(self, reader: Reader, rows: Rows, fraction: float, *, verify: bool) -> None:
        """Start without images.

        Args:
            reader: Of the dataset.
            rows: Those that will be read, for the report.
            fraction: The share of the free memory to use, of all processes on this machine.
            verify: Whether to verify checksums.
        """
        self._reader, self._fraction, self._verify = reader, fraction, verify
        self._num_rows = len(rows if isinstance(rows, range) else np.unique(rows))
        self._locks: dict[int, threading.Lock] = {}  # of each process: one may be held during a fork
        # By field, and whether JPEGs are planes: the address of each row's image, or one of the numbers above.
        self._tables: dict[tuple[str, bool], I64] = {}
        self._busy: set[tuple[int, str, bool, int]] = set()
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._budget, self._used, self._at = -1, 0, 0
        self._num_kept = self._num_seen = 0
        self._is_full = False

    def given(self, fields: Sequence[str], rows: I64, jpeg_room: I64, resizes: bool, clock: Clock) -> I64:
        """Return `given` of `assemble` for what is kept, (n, fields, 2) int64, after images that are new.

        Args:
            fields: Of images.
            rows: (n,) of the index, which are verified.
            jpeg_room: Address and bytes of scratch memory.
            resizes: Whether transforms do.
            clock: This thread's, started.
        """
        given = np.zeros((len(rows), len(fields), 2), np.int64)
        for f, (name, table) in enumerate([(name, self._table(name, resizes)) for name in fields]):
            places = table[rows]
            if not self._is_full and len(new := rows[places == _NEW]):
                for row in new.tolist():
                    self._keep(name, row, jpeg_room, resizes, clock)
                places = table[rows]
            np.maximum(places, 0, out=given[:, f, 0])
            given[places > 0, f, 1] = at.KEPT
        return given

    def not_kept(self, fields: Sequence[str], rows: I64, resizes: bool) -> I64:
        """Return those of rows (n,) of which an image of a field is read from the file."""
        found = np.zeros(len(rows), np.bool_)
        for name in fields:
            found |= self._table(name, resizes)[rows] <= 0
        return rows[found]

    @property
    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _table(self, name: str, resizes: bool) -> I64:
        if (key := (name, resizes)) not in self._tables:
            self._tables.setdefault(key, np.zeros(len(self._reader), np.int64))
        return self._tables[key]

    def _keep(self, name: str, row: int, jpeg_room: I64, resizes: bool, clock: Clock) -> None:
        """Decode an image and keep it if there is room; a damaged one is left to who reads it."""
        key, table = (os.getpid(), name, resizes, row), self._tables[name, resizes]
        with self._lock:
            if self._is_full or key in self._busy or table[row] != _NEW:
                return
            self._busy.add(key)
        try:
            place = self._decode(name, row, jpeg_room, resizes, clock)
        except CorruptError:
            place = _NEVER
        finally:
            with self._lock:
                self._busy.discard(key)
        clock.tick(clock_words.DECODE)
        if place == _NEW:
            return
        table[row] = place  # the last step: other threads use it from now on
        with self._lock:
            self._num_seen += 1
            self._num_kept += place != _NEVER
            if self._num_seen == self._num_rows * len(self._tables) and not self._is_full:
                _logger.info("lmdbloader: %s", self._report())

    def _decode(self, name: str, row: int, jpeg_room: I64, resizes: bool, clock: Clock) -> int:
        """Return the address of an image that was decoded into the memory, or one of the other numbers."""
        reader, rows, is_planes = self._reader, np.array([row], np.int64), False
        found: Any
        codec, nbytes = reader.index.columns[f"{name}.codec"][row], reader.raw_nbytes(name, rows)
        in_python = bool(reader.decodes_in_python(codec))
        if in_python and resizes:
            found = reader.read_given(name, row, verify=self._verify, clock=clock)
            is_planes = found.ndim == 1
        elif codec == CODEC_JPEG and resizes:
            found, is_planes = reader.stored_bytes(name, row, verify=self._verify, clock=clock), True
        elif not in_python and reader.lengths(name, "stored_nbytes", rows) >= nbytes:
            return _NEVER  # it is raw, in tiles perhaps
        else:
            found = np.empty(int(nbytes[0]), np.uint8)
            reader.read_into(name, rows, found, np.zeros(1, np.int64), nbytes, verify=self._verify, clock=clock)
        data = np.frombuffer(found, np.uint8) if isinstance(found, bytes) else found.reshape(-1).view(np.uint8)
        return self._planes(name, row, data, *jpeg_room.tolist()) if is_planes else self._pixels(data)

    def _pixels(self, data: npt.NDArray[np.uint8]) -> int:
        if (block := self._room(at.KEPT_AT + data.nbytes)) is None:
            return _NEW
        block[:8].view(np.int64)[0] = data.nbytes
        block[at.KEPT_AT :] = data
        return int(block.ctypes.data)

    def _planes(self, name: str, row: int, data: npt.NDArray[np.uint8], work: int, work_nbytes: int) -> int:
        channels, height, width = self._reader.image_shape(name, row)
        if entries.jpeg_room(data.nbytes, height, width) > work_nbytes:
            return _NEVER
        room = int(entries.decode_whole(data.ctypes.data, data.nbytes, (height, width, channels), work))
        if not room:
            return _NEVER
        if (block := self._room(room)) is None:
            return _NEW
        entries.keep_planes(data.ctypes.data, data.nbytes, work, block.ctypes.data)
        return int(block.ctypes.data)

    def _room(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Return memory for an image; None if there is none left, from then on."""
        room = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if self._budget < 0:
                ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
                self._budget = int((system.free_memory() or 0) * self._fraction) // max(_whole(ranks), 1)
            if self._is_full or self._used + room > self._budget or not self._has_piece(room):
                if not self._is_full:
                    self._is_full = True
                    _logger.warning("lmdbloader: %s", self._report())
                return None
            block = self._pieces[-1][self._at : self._at + nbytes]
            self._at += room
            self._used += room
            return block

    def _has_piece(self, room: int) -> bool:
        """Return whether the last piece has room, after making another one if need be."""
        if self._pieces and self._at + room <= len(self._pieces[-1]):
            return True
        try:
            piece = np.empty(max(min(_PIECE_NBYTES, self._budget - self._used), room) + _ALIGNMENT, np.uint8)
        except MemoryError:
            return False
        self._pieces.append(piece[-piece.ctypes.data % _ALIGNMENT :])
        self._at = 0
        return True

    def _report(self) -> str:
        of_all = self._num_rows * len(self._tables)
        text = f"keep='memory': {plain(self._reader.place)}: {self._num_kept:,} of {counted(of_all, 'image')}"
        text += f" are kept decoded, in {show_nbytes(self._used)} of {show_nbytes(self._budget)}"
        return f"{text}; the others are decoded in every epoch" if self._is_full else text


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 1
