"""Opens a dataset and reads its samples without LMDB: no environment, no B-tree, nothing to lose by fork or pickle."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words
from lmdbloader.base.arguments import is_url, local_path, path_text
from lmdbloader.base.disk_errors import DISK_FAILED
from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.base.text import command, counted
from lmdbloader.errors import CorruptError, FormatError, LmdbloaderError, OptionError
from lmdbloader.fields import kind_named
from lmdbloader.format.codecs import CodecEntry, by_number, checksum, codec_of
from lmdbloader.format.layout import (
    DATA_FILE,
    MANIFEST_FILE,
    PIXEL_DTYPES,
    TILED,
    Field,
    look_text,
    looks_of,
    parse_array_type,
)
from lmdbloader.format.manifest import Manifest
from lmdbloader.kernels import entries
from lmdbloader.kernels.assemble_columns import CHECKSUM, CODEC, INDEX_COLUMNS, OFFSET, STORED_NBYTES
from lmdbloader.kernels.calls.entry import Prepared
from lmdbloader.kernels.codec_numbers import BAD_CHECKSUM, BAD_CODEC, CHANGED, DAMAGES, OUT_OF_BOUNDS
from lmdbloader.store.index import Index
from lmdbloader.store.opening import IO, DataFile, check_io, open_data, read_manifest
from lmdbloader.store.rows import Rows, as_array, extremes, parts_of, take

if TYPE_CHECKING:
    from typing_extensions import Self

    from lmdbloader.store.remote.opening import Place

I64 = npt.NDArray[np.int64]
# Of a dataset at a URL that is cached in part: more rows would have their pieces on the disk all at once.
_ROWS_HELD = 1024
# No windows of images: whole payloads.
_WHOLE = np.empty((0, 4), np.int64)


class _Call:
    """The call that decodes payloads of one field; `read_into` replaces the arguments that change."""

    def __init__(self, prepared: Prepared, failed: I64) -> None:
        self.run, self.failed, self.room = prepared, failed, failed.view(np.uint8)[:0]
        self.set_clock, self.set_verify = prepared.number("file", 4), prepared.number("verify")
        self.set_rows = prepared.copied("rows")
        self.set_start, self.set_nbytes = prepared.copied("out_start"), prepared.copied("out_nbytes")
        self.set_out, self.set_room = prepared.array("out"), prepared.array("room")


class Reader:
    """The open files of one dataset, and random access to its samples.

    It pickles as its path; several threads and forked processes may use it. Arrays that it returns own their memory.

    Attributes:
        path: The dataset's folder, absolute; of a dataset at a URL, the folder of its cache.
        place: The dataset's path or URL, for messages.
        io: "mmap" reads through a memory map; every page is requested before it is first touched. "pread" copies
            through the file's descriptor, so a file that is cut short meanwhile cannot end the process. It is "mmap" if
            this process may not keep all files open.
        manifest: Its description.
        fields: Its fields by name.
        index: Its columns.
        data_file: The open data file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        io: IO = "mmap",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_fraction: float | None = None,
    ) -> None:
        """Open a dataset.

        Args:
            path: The dataset's folder, or its URL.
            io: "mmap" or "pread".
            cache_dir: For datasets at a URL, the folder of their caches; by default in the user's cache folder.
            cache_fraction: The share of such a dataset that is kept there, from 0 to 1; by default all of it.

        Raises:
            NotFoundError: There is nothing at `path`.
            FormatError: Not a finished dataset of this format version.
            CorruptError: A file is cut short or damaged.
            DiskError: The server of a URL does not answer.
            DiskFullError: There is no room for the cache.
            OptionError: `path` is not a path; or `io` is neither "mmap" nor "pread"; or a dataset on a disk has options
                of a cache.
        """
        io = check_io(io)
        text = path_text("path", path)
        if is_url(text):
            from lmdbloader.store.remote.opening import open_place

            self._open_remote(open_place(text, cache_dir, 1.0 if cache_fraction is None else cache_fraction), io)
            return
        if cache_dir is not None or cache_fraction is not None:
            given = f"cache_dir={cache_dir!r}, cache_fraction={cache_fraction!r}"
            raise OptionError(f"{given}: {text} is on a disk, and only a dataset at a URL has a cache")
        self._remote: Place | None = None
        self.path = local_path("path", path).absolute()
        self.manifest = read_manifest(path)
        try:
            data = open_data(self.path, self.manifest, io)
            self._use(data, Index(self.path, self.manifest, io))
        except (FileNotFoundError, IsADirectoryError) as error:
            advice = f"Copy the dataset again; {command('verify', self.path)} suggests other remedies."
            raise CorruptError(f"{error.filename}: is missing. {advice}", path=str(self.path)) from error
        except KeyError as error:
            raise FormatError(f"{self.path / MANIFEST_FILE}: does not state {error}") from error

    def _open_remote(self, place: Place, io: IO) -> None:
        """Open a dataset at a URL whose manifest and index are in the cache."""
        self._remote, self.path = place, place.folder
        self.manifest = place.manifest()
        data = place.data_file(io, self.manifest)
        try:
            index = Index(self.path, self.manifest, io)
            index.check_file()
        except (CorruptError, FileNotFoundError):  # of the copy in the cache
            place.copy_index(self.manifest)
            index = Index(self.path, self.manifest, io)
        self._use(data, index)

    @property
    def place(self) -> str:
        """The dataset's path, absolute, or its URL."""
        return str(self.path) if self._remote is None else self._remote.url

    @property
    def name(self) -> str:
        """The last part of the dataset's path, or of its URL."""
        return self.path.name if self._remote is None else self._remote.url.rpartition("/")[2]

    @property
    def on_disk(self) -> tuple[Path, ...]:
        """The files on a disk with the payloads; of a dataset at a URL, the one with what is cached."""
        return tuple(file.path for file in self.data_file.files)

    def _use(self, file: DataFile, index: Index) -> None:
        self.io = file.io
        self.fields = {f.name: f for f in self.manifest.fields}
        self.index = index
        self.data_file = file
        self._in_python = by_number(lambda entry: entry.decode is not None, False)
        # Prepared calls that no thread is using.
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._gathered = {f.name: self._gather_arguments(f) for f in self.manifest.fields if f.is_payload}

    @classmethod
    def of_files(cls, path: Path, manifest: Manifest, file: DataFile, index: Index) -> Self:
        """Return a reader of files that are open already; reading payloads beyond the data file is a CorruptError."""
        reader = cls.__new__(cls)
        reader.path, reader.manifest, reader._remote = path, manifest, None
        reader._use(file, index)
        return reader

    def with_io(self, io: IO) -> Self:
        """Return a reader of the same open files with another `io`, even if other files have their names since.

        Raises:
            OptionError: `io` is neither "mmap" nor "pread".
        """
        if check_io(io) == self.io:
            return self
        if self._remote is not None:
            other = self.__class__.__new__(self.__class__)
            other._open_remote(self._remote, io)
            return other
        index = Index(self.path, self.manifest, io, file=self.index.file.with_io(io))
        return self.of_files(self.path, self.manifest, self.data_file.with_io(io), index)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.manifest.num_samples

    def __getstate__(self) -> tuple[Path | Place, str, IO]:
        return self._remote or self.path, self.manifest.manifest_digest, self.io

    def __setstate__(self, state: tuple[Path | Place, str, IO]) -> None:
        if isinstance(state[0], Path):
            Reader.__init__(self, state[0], io=state[2])
        else:  # what is cached needs no request
            self._open_remote(state[0], state[2])
        if self.manifest.manifest_digest != state[1]:
            raise CorruptError(f"{self.place}: was replaced by another dataset. Open it again.", path=str(self.path))

    def image_shape(self, name: str, row: int) -> tuple[int, int, int]:
        """Return (C, H, W) of one stored image."""
        value = self.index.value
        return value(f"{name}.channels", row), value(f"{name}.height", row), value(f"{name}.width", row)

    def image_dtype(self, name: str, row: int) -> np.dtype[Any]:
        """Return the type of its pixels; see `PIXEL_DTYPES`."""
        return PIXEL_DTYPES.get(self.index.value(f"{name}.bits", row), PIXEL_DTYPES[8])

    def origin(self, row: int) -> tuple[Reader, int]:
        """Return the reader of the dataset that has a sample, and the sample's number there; both for messages."""
        return self, row

    def source(self, row: int) -> str | None:
        """Return the relative path of the file that a sample was made from, None if the dataset has no sources."""
        reader, row = self.origin(row)
        return reader.index.text("source", row) if reader.manifest.with_source else None

    def where(self, name: str, row: int) -> str:
        """Return dataset, field, sample and source, for messages."""
        source = self._source_if_sound(row)
        reader, row = self.origin(row)
        return f"{reader.place}: field {name!r} of sample {row}" + (f" (from {source})" if source else "")

    def _source_if_sound(self, row: int) -> str | None:
        """Return `source`; None if the index is damaged there, which must not hide what is reported."""
        with suppress(CorruptError):
            return self.source(row)
        return None

    def damaged(self, name: str, row: int, status: int, said: OSError | None = None) -> CorruptError:
        """Return the error for a kernel's status; `said` is the system's error, if known."""
        reader, row = self.origin(row)
        reason = reader._why_unread(name, row, said) if status == OUT_OF_BOUNDS else DAMAGES[status]
        if reader._remote is not None:
            file, _ = reader.data_file.place(reader.index.value(f"{name}.offset", row))
            advice = f"{reader.place}/{file} is damaged, or was replaced. Open the dataset again, or upload it again."
        else:
            path = reader.path
            advice = f"{command('verify', path)} lists all damage, {command('repair', path, 'OUT')} leaves it out."
        return reader.corrupt(name, row, f"{reason}. {advice}")

    def _why_unread(self, name: str, row: int, said: OSError | None) -> str:
        """Return why a payload was not read."""
        at, nbytes = self.index.value(f"{name}.offset", row), self.index.value(f"{name}.stored_nbytes", row)
        is_inside = 0 <= at <= self.data_file.nbytes - nbytes
        try:
            if lost := self.data_file.lost():
                return f"{lost[0].path.name} was cut to {lost[1]} bytes after it was opened"
            if said is None and is_inside:
                self.data_file.read(at, nbytes)
        except OSError as error:
            said = error
        name, at = self.data_file.place(at)
        if said is None or said.errno not in DISK_FAILED:
            return DAMAGES[OUT_OF_BOUNDS].replace(DATA_FILE, name)
        return f"the disk cannot read bytes {at} to {at + nbytes} of {name} ({said.strerror})"

    def corrupt(self, name: str, row: int, reason: str) -> CorruptError:
        """Return the error for one payload; it names dataset, field, sample and source."""
        text, source = f"{self.where(name, row)}: {reason}", self._source_if_sound(row)
        reader, row = self.origin(row)
        return CorruptError(text, sample=row, field=name, source=source, path=reader.place)

    def _gather_arguments(self, f: Field) -> tuple[Any, Any, int, int, bool]:
        """Return index columns, geometry, tile side, bytes of one tile, and whether Python decodes some payloads."""
        a = self.index.columns
        columns = tuple(a[f"{f.name}.{part}"] for part in INDEX_COLUMNS[: CODEC + 1])
        in_python = self.has_in_python(f.name)
        if not f.has_pixels:  # only images and masks have tiles; the kernel ignores the geometry of the others
            unused = columns[STORED_NBYTES], columns[STORED_NBYTES], columns[CODEC], columns[CODEC]
            return columns, unused, 1, 0, in_python
        geometry = tuple(a[f"{f.name}.{part}"] for part in INDEX_COLUMNS[CODEC + 1 :])
        tile = f.tile_size or 1
        facts = self.index.facts[f.name]
        return columns, geometry, tile, tile * tile * facts.pixel_nbytes * facts.has_tiles, in_python

    def extents(self, fields: Sequence[str], rows: Rows) -> tuple[I64, I64]:
        """Return for each sample the offset of its first payload (n,) and the bytes of all its payloads (n,).

        The offsets of a range of rows are a view of the index.
        """
        columns = [self._gathered[name][0] for name in fields if name in self._gathered]
        if not columns:
            return as_array(rows).copy(), np.ones(len(rows), np.int64)
        self.index.check(rows)
        nbytes = np.zeros(len(rows), np.int64)
        for c in columns:
            nbytes += take(c[STORED_NBYTES], rows)
        return take(columns[0][OFFSET], rows), nbytes

    def extremes(self, name: str, part: str, rows: Rows | None = None) -> tuple[int, int]:
        """Return the least and the greatest number of a payload field's column, such as "height"; (0, 0) without rows.

        Args:
            name: The field.
            part: The end of the column's name.
            rows: Rows to consider, a range or (n,); all of them by default.
        """
        low, high = self.index.facts[name].extremes[part]
        # What is equal everywhere is equal in a part.
        if rows is None or (len(rows) and low == high):
            return low, high
        self.index.check(rows)
        return extremes(self.index.columns[f"{name}.{part}"], rows)

    def look(self, name: str) -> str:
        """Return what all images or masks of a field have in common, as text; see `looks_of`."""
        bits, channels = (np.array(self.extremes(name, part)) for part in ("bits", "channels"))
        return " and ".join(map(look_text, np.unique(looks_of(self.fields[name].kind, bits, channels)).tolist()))

    def mean_nbytes(self, name: str, part: str, rows: Rows) -> float:
        """Return the mean of a payload field's "stored_nbytes" or "raw_nbytes" in some rows; 0 of none."""
        if not len(rows):
            return 0.0
        if isinstance(rows, range) and rows == range(len(self)):
            return self.index.facts[name].totals[part] / len(rows)
        column = f"{name}.{part}"
        total = sum(int(self.index.take(column, some).sum(dtype=np.int64)) for some in parts_of(rows))
        return total / len(rows)

    def lengths(self, name: str, part: str, rows: I64) -> I64:
        """Return the "stored_nbytes" or "raw_nbytes" (n,) of a payload field's values, for which there may be memory.

        Raises:
            CorruptError: One is greater than the manifest states of all.
        """
        nbytes: I64 = self.index.take(f"{name}.{part}", rows).astype(np.int64)
        if len(nbytes) and np.maximum.reduce(nbytes) > self.index.facts[name].extremes[part][1]:
            raise self.damaged(name, int(rows[int(nbytes.argmax())]), CHANGED)
        return nbytes

    def raw_nbytes(self, name: str, rows: I64) -> I64:
        """Return the decoded lengths (n,) of a payload field's values; raise as `lengths`."""
        return self.lengths(name, "raw_nbytes", rows)

    def read_into(
        self,
        name: str,
        rows: I64,
        out: npt.NDArray[np.uint8],
        start: I64,
        nbytes: I64,
        *,
        verify: bool = True,
        clock: Clock = NO_CLOCK,
    ) -> None:
        """Decode payloads into a buffer.

        Args:
            name: A payload field.
            rows: (n,) int64 sample numbers, each in range(len(self)).
            out: (m,) uint8.
            start: (n,) int64, offsets in `out` of each payload's raw bytes.
            nbytes: (n,) int64, their lengths, as `raw_nbytes` has returned them.
            verify: Whether to check the checksums.
            clock: This thread's, already started.

        Raises:
            CorruptError: A payload is damaged; the message names the sample and its source.
        """
        remote = self.data_file.remote
        if len(rows) > _ROWS_HELD and remote is not None and remote.streams:
            for first in range(0, len(rows), _ROWS_HELD):
                part = slice(first, first + _ROWS_HELD)
                self.read_into(name, rows[part], out, start[part], nbytes[part], verify=verify, clock=clock)
            return
        columns, _, _, _, has_in_python = self._gathered[name]
        self.index.check(rows)
        if has_in_python:
            in_python = self.decodes_in_python(columns[CODEC][rows])
            for row, at, length in zip(*(each[in_python].tolist() for each in (rows, start, nbytes)), strict=True):
                values = self.read_file(name, row, verify=verify, clock=clock)
                if values.nbytes != length:
                    raise self.damaged(name, row, CHANGED)
                out[at : at + length] = values.reshape(-1).view(np.uint8)
            rows, start, nbytes = (each[~in_python] for each in (rows, start, nbytes))
        waiting, call = self._calls[name], None
        with suppress(IndexError):
            call = waiting.pop()  # from here on no other thread uses it, and no signal handler of this one
        if call is None:
            call = self._prepare(name, rows, out, start, nbytes)
        call.set_rows(rows)
        call.set_start(start)
        call.set_nbytes(nbytes)
        call.set_out(out)
        call.set_verify(verify)
        call.set_clock(clock.address)
        if self.io == "pread":
            call.room = self._room(int(self.lengths(name, "stored_nbytes", rows).max(initial=0)))
            call.set_room(call.room)
        status = call.run() if self.data_file.remote is None else self._run(call, name, rows)
        failed = int(call.failed[0])
        waiting.append(call)
        if status:
            raise self.damaged(name, int(rows[failed]), status)

    def _run(self, call: _Call, name: str, rows: I64) -> int:
        return self.run((name,), rows, call.run, lambda: (name, int(rows[int(call.failed[0])])))

    def run(
        self, names: Sequence[str], rows: I64, run: Callable[[], int], failed: Callable[[], tuple[str, int]]
    ) -> int:
        """Make a call of a kernel; payloads of a dataset at a URL that are damaged are fetched again.

        Args:
            names: The fields whose payloads it reads, which are brought here before and stay while it runs.
            rows: (n,) their samples.
            run: The call, which returns a status.
            failed: Returns field and sample of the payload that a status other than 0 is about.

        Raises:
            LmdbloaderError: They cannot be fetched, or there is no room for them.
        """
        remote, tried = self.data_file.remote, set[tuple[str, int]]()
        while True:
            if remote is None or remote.is_complete:
                status = run()
            else:
                ranges = self.ranges(names, rows)
                release = remote.hold(*ranges)
                try:
                    remote.bring(*ranges)
                    status = run()
                finally:
                    release()
            if remote is None or status not in DAMAGES or (damaged := failed()) in tried:
                return status
            tried.add(damaged)
            self.renew(*damaged)

    def ranges(self, names: Sequence[str], rows: I64) -> tuple[I64, I64]:
        """Return where the payloads of fields begin and end in the file, (n,) each, without empty ones."""
        self.index.check(rows)
        found = [(name, self._gathered[name][0]) for name in names if name in self._gathered]
        starts = np.concatenate([np.empty(0, np.int64), *(c[OFFSET][rows].astype(np.int64) for _, c in found)])
        nbytes = np.concatenate([np.empty(0, np.int64), *(c[STORED_NBYTES][rows].astype(np.int64) for _, c in found)])
        outside = (starts < 0) | (starts > self.data_file.nbytes - nbytes)
        if outside.any():
            number, place = divmod(int(np.flatnonzero(outside)[0]), len(rows))
            raise self.damaged(found[number][0], int(rows[place]), OUT_OF_BOUNDS)
        kept = nbytes > 0
        return starts[kept], (starts + nbytes)[kept]

    def renew(self, name: str, row: int) -> None:
        """Fetch a damaged payload of a dataset at a URL again.

        Raises:
            LmdbloaderError: It cannot be fetched.
        """
        if self.data_file.remote is not None:
            self.data_file.remote.renew(*self.ranges((name,), np.array([row], np.int64)))

    def _prepare(
        self, name: str, rows: I64, out: npt.NDArray[np.uint8], start: I64, nbytes: I64, windows: I64 = _WHOLE
    ) -> _Call:
        """Return the call for one thread; these rows, memory and places are an example, unless there are windows."""
        columns, geometry, tile, scratch_nbytes, _ = self._gathered[name]
        failed, room = np.zeros(1, np.int64), self._room(0)
        scratch, work = np.empty(scratch_nbytes, np.uint8), np.empty(self.jpeg_room(name), np.uint8)
        prepared = entries.gather.prepare(
            (*self.data_file.for_kernels(), 0), rows, columns, True, geometry, tile, windows, out, start, nbytes, room,
            scratch, work, failed,
        )  # fmt: skip
        return _Call(prepared, failed)

    def decodes_in_python(self, codecs: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return for codec numbers (n,) whether `read_file` decodes such payloads, rather than a kernel."""
        found: npt.NDArray[np.bool_] = self._in_python[codecs]
        return found

    def has_in_python(self, name: str) -> bool:
        """Return whether `read_file` decodes some payloads of a field."""
        return bool(self._in_python[list(self.index.facts[name].codecs)].any())

    def _room(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the buffer for stored bytes; empty if kernels read them from the map."""
        return np.empty(nbytes if self.io == "pread" else 0, np.uint8)

    def read_bytes(self, name: str, row: int, *, clock: Clock = NO_CLOCK) -> npt.NDArray[np.uint8]:
        """Return one payload's raw bytes (n,)."""
        rows = np.array([row], np.int64)
        nbytes = self.raw_nbytes(name, rows)
        out = np.empty(int(nbytes[0]), np.uint8)
        self.read_into(name, rows, out, np.zeros(1, np.int64), nbytes, clock=clock)
        return out

    def read_image(self, name: str, row: int) -> npt.NDArray[Any]:
        """Return one image, (C, H, W), of its `image_dtype`."""
        return self.as_image(name, row, self.read_bytes(name, row))

    def as_image(self, name: str, row: int, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return an image's raw bytes (n,) as its pixels (C, H, W), a view.

        Raises:
            CorruptError: The index says now that it has another size.
        """
        shape, dtype = self.image_shape(name, row), self.image_dtype(name, row)
        if data.size != math.prod(shape) * dtype.itemsize:
            raise self.damaged(name, row, CHANGED)
        return data.view(dtype).reshape(shape)

    def read_value(self, name: str, row: int, *, clock: Clock = NO_CLOCK) -> Any:
        """Return one value of a field that is neither of images nor of arrays: text, JSON, boxes and the like.

        Raises:
            CorruptError: Its payload is damaged, or is not a value of the field's kind.
        """
        kind = kind_named(self.fields[name].kind)
        data: Any = self.read_bytes(name, row, clock=clock).tobytes()
        try:
            data = data.decode() if self.fields[name].holds_text else data
            return kind.decode(data) if kind.decode else data
        except (ValueError, RecursionError) as error:
            shown = "JSON" if kind.name == "json" else kind.name
            raise self.corrupt(name, row, f"cannot be read as {shown} ({error})") from error

    def read_texts(self, name: str, rows: I64, *, clock: Clock = NO_CLOCK) -> list[str]:
        """Return the texts of a field of text as they were written, from the index or from data.mdb.

        Raises:
            CorruptError: One is damaged.
        """
        if not self.fields[name].is_payload:
            return [self.index.text(name, row) for row in rows.tolist()]
        ends, nbytes = np.zeros(len(rows) + 1, np.int64), self.raw_nbytes(name, rows)
        if len(rows) == 1:  # as of ds[i]: NumPy takes microseconds for a sum
            ends[1] = nbytes[0]
        else:
            np.cumsum(nbytes, out=ends[1:])
        data = np.empty(int(ends[-1]), np.uint8)
        self.read_into(name, rows, data, ends[:-1], nbytes, clock=clock)
        text = data.tobytes()
        try:
            return [text[a:b].decode() for a, b in pairwise(ends.tolist())]
        except UnicodeDecodeError:
            for row in rows.tolist():
                self.read_value(name, row)  # names the sample
            raise

    @property
    def long_texts(self) -> tuple[str, ...]:
        """The fields of text that have their texts in data.mdb alone."""
        return tuple(f.name for f in self.manifest.fields if f.holds_text and f.is_payload)

    def array_shape(self, name: str, row: int) -> tuple[int, ...]:
        """Return the shape of one n-dimensional array, from the index."""
        _, shape = parse_array_type(self.index.text(f"{name}.type", row))
        return shape

    def read_array(self, name: str, row: int, *, clock: Clock = NO_CLOCK) -> npt.NDArray[Any]:
        """Return one n-dimensional array in its own dtype and shape."""
        dtype, shape = parse_array_type(self.index.text(f"{name}.type", row))
        data = self.read_bytes(name, row, clock=clock)
        kind = np.dtype(dtype).newbyteorder("<")
        if data.size != kind.itemsize * math.prod(shape):
            raise self.damaged(name, row, OUT_OF_BOUNDS)
        try:
            return data.view(kind).reshape(shape)
        except ValueError as error:  # sizes that NumPy refuses, one of them zero
            raise self.corrupt(name, row, f"has a type that no array has ({error})") from error

    def read_crop(self, name: str, row: int, *, top: int, left: int, height: int, width: int) -> npt.NDArray[Any]:
        """Return a window of one image, (C, height, width); of a tiled image, only the tiles that it touches are read.

        Raises:
            OptionError: The window is not inside the image.
            CorruptError: A tile that it touches is damaged.
        """
        channels, full_height, full_width = self.image_shape(name, row)
        if min(top, left) < 0 or min(height, width) < 1 or top + height > full_height or left + width > full_width:
            raise OptionError(
                f"{self.where(name, row)}: a crop of {height}x{width} at row {top}, column {left} is not inside "
                f"the image of {full_height}x{full_width}"
            )
        if not self._codec_of(name, row, self.index.columns[f"{name}.codec"][row]).has_windows:
            whole = self.read_image(name, row)
            return np.ascontiguousarray(whole[:, top : top + height, left : left + width])
        rows, windows = np.array([row], np.int64), np.array([[top, top + height, left, left + width]], np.int64)
        out = np.empty((channels, height, width), self.image_dtype(name, row))
        data = out.reshape(-1).view(np.uint8)
        call = self._prepare(name, rows, data, np.zeros(1, np.int64), np.array([out.nbytes], np.int64), windows)
        call.room = self._room(int(self.lengths(name, "stored_nbytes", rows)[0]))
        call.set_room(call.room)
        if status := self._run(call, name, rows):
            raise self.damaged(name, row, status)
        return out

    def _codec_of(self, name: str, row: int, number: np.uint8) -> CodecEntry:
        try:
            found = codec_of(int(number))
        except KeyError as error:
            raise self.damaged(name, row, BAD_CODEC) from error
        if found.only_kinds and self.fields[name].kind not in found.only_kinds:
            raise self.damaged(name, row, BAD_CODEC)
        return found

    def jpeg_room(self, name: str) -> int:
        """Return the bytes of scratch that decoding any of a field's JPEGs takes; 0 if it has none."""
        nbytes, longest, most_pixels = self.index.facts[name].jpeg
        # An image with the longest of all sides and the most pixels of all takes at least as much as any.
        return int(entries.jpeg_room(nbytes, longest, -(-most_pixels // longest))) if longest else 0

    def read_file(self, name: str, row: int, *, verify: bool = True, clock: Clock = NO_CLOCK) -> npt.NDArray[Any]:
        """Return one payload that Python decodes: an image (C, H, W), else bytes (n,) uint8.

        Raises:
            CorruptError: It is damaged, or its shape or dtype is not the one in the index.
        """
        is_image = self.fields[name].has_pixels
        shape = self.image_shape(name, row) if is_image else (self.index.value(f"{name}.raw_nbytes", row),)
        dtype = self.image_dtype(name, row) if is_image else np.dtype(np.uint8)
        decode = self._codec_of(name, row, self.index.columns[f"{name}.codec"][row]).decode
        data = self.stored_bytes(name, row, verify=verify, clock=clock)
        try:
            values = np.frombuffer(data, np.uint8) if decode is None else decode(data, shape, dtype)
        except ValueError as error:
            reason = getattr(error, "reason", error)
            raise self.corrupt(name, row, f"{reason}. Restore the dataset from a copy, or convert again.") from error
        if values.shape != shape or values.dtype != dtype:
            raise self.damaged(name, row, OUT_OF_BOUNDS)
        clock.tick(clock_words.DECODE)
        return values

    def read_given(self, name: str, row: int, *, verify: bool = True, clock: Clock = NO_CLOCK) -> npt.NDArray[Any]:
        """Return what `read_file` returns, or the payload (n,) uint8 of a JPEG that kernels decode."""
        return self.read_file(name, row, verify=verify, clock=clock)

    def took(self, num_images: int, opening_ns: int, all_ns: int) -> None:
        """Note how long some images took, with some from `read_given`: until these were there, and in the batch."""

    def stored_bytes(
        self, name: str, row: int, *, verify: bool = True, clock: Clock = NO_CLOCK, again: bool = True
    ) -> bytes:
        """Return one payload in stored form.

        Args:
            name: A payload field.
            row: The sample.
            verify: Whether to check the checksum.
            clock: This thread's, already started.
            again: Whether to fetch a damaged payload of a dataset at a URL again.

        Raises:
            CorruptError: Its checksum does not match, or the data file is cut short.
        """
        columns = self._gathered[name][0]
        self.index.check(row)
        at, nbytes = int(columns[OFFSET][row]), int(columns[STORED_NBYTES][row])
        if not 0 <= at <= self.data_file.nbytes - nbytes:
            raise self.damaged(name, row, OUT_OF_BOUNDS)
        try:
            data = self.data_file.read(at, nbytes)
        except LmdbloaderError:  # it cannot be fetched
            raise
        except OSError as error:  # the disk failed
            raise self.damaged(name, row, OUT_OF_BOUNDS, error) from error
        clock.tick(clock_words.READ)
        clock.add(clock_words.NBYTES, len(data))
        if len(data) != nbytes:
            raise self.damaged(name, row, OUT_OF_BOUNDS)
        if verify and columns[CODEC][row] not in TILED:
            is_intact = checksum(data) == int(columns[CHECKSUM][row])
            clock.tick(clock_words.VERIFY)
            if not is_intact:
                if again and self.data_file.remote is not None:
                    self.renew(name, row)
                    return self.stored_bytes(name, row, verify=verify, clock=clock, again=False)
                raise self.damaged(name, row, BAD_CHECKSUM)
        return data


def open_reader(path: str | os.PathLike[str], io: IO = "mmap") -> Reader:
    """Open a dataset for a call that takes no `io`: without a map if this process, or this system, cannot map it.

    Errors are those of `Reader`.
    """
    try:
        return Reader(path, io=io)
    except OptionError:
        if io == "pread":
            raise
        return Reader(path, io="pread")


def check_rows(rows: Sequence[int] | I64, length: int) -> I64:
    """Return sample numbers as int64; negative ones count from the end.

    Raises:
        IndexError: One is out of range.
    """
    found = np.asarray(rows)
    if found.size == 0:
        return np.empty(0, np.int64)
    # Python's own numbers may have more bits than any of NumPy's.
    is_whole = found.dtype.kind in "iu" or (found.ndim == 1 and {*map(type, found.tolist())} == {int})
    if found.ndim != 1 or not is_whole:
        raise TypeError(f"sample numbers of dtype {found.dtype} and shape {found.shape}: expected a list of ints")
    low, high = int(found.min()), int(found.max())  # before they are made int64, which may not hold them
    if low < -length or high >= length:
        raise IndexError(f"sample {low if low < -length else high} of a dataset of {counted(length, 'sample')}")
    found = found.astype(np.int64, copy=False)
    return found if low >= 0 else np.where(found < 0, found + length, found)
