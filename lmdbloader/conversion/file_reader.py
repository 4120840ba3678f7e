"""Reads image files as they are, in the place of a dataset's reader: payloads are made when they are read."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base import clock_words
from lmdbloader.base.disk_errors import DISK_FAILED
from lmdbloader.base.option_names import option
from lmdbloader.base.stage_times import NO_CLOCK, Clock
from lmdbloader.base.text import command, plain
from lmdbloader.conversion.file_index import POLICY, FileIndex
from lmdbloader.conversion.sources import listing
from lmdbloader.conversion.sources.listing import as_text
from lmdbloader.errors import CorruptError, ImageError
from lmdbloader.format.codecs import planes
from lmdbloader.format.index import Facts, IndexLayout, extremes_of
from lmdbloader.format.jpeg_payload import is_recoded, pack
from lmdbloader.format.layout import CODEC_FILE, index_columns, make_field
from lmdbloader.format.manifest import Manifest
from lmdbloader.images.decode import decode_image, is_jpeg
from lmdbloader.kernels.codec_numbers import DAMAGES, SEEK_ENTRY_NBYTES
from lmdbloader.store.index import VERIFIED, Index, Names, Texts
from lmdbloader.store.opening import IO, DataFile
from lmdbloader.store.reader import Reader

if TYPE_CHECKING:
    from typing_extensions import Self

U8 = npt.NDArray[np.uint8]
_logger = logging.getLogger("lmdbloader")

# Seek tables of so many bytes are kept, those of about 150,000 photographs, and recoded progressive files among them:
# without its table a JPEG is decoded twice.
_TABLES_NBYTES = 256 * 2**20
# Rows and columns from one entry of a seek table to the next, at least.
_STEP_DOWN, _STEP_ACROSS = 8, 32
# The very first images are not typical; the times of so many after them are reported.
_FIRST, _TIMED = 64, 512


class _NoFile(DataFile):
    """The data file of a reader whose payloads are not in one."""

    def is_cached(self, at: int) -> bool:
        """Return True: there is nothing to read ahead."""
        return True


class _Index(Index):
    """The index of files, in memory."""

    def __init__(self, files: FileIndex, manifest: Manifest) -> None:
        expected = index_columns(manifest.fields, with_source=True)
        self.column_names, self._blocks = tuple(expected), VERIFIED
        self._manifest, self._path, count = manifest, Path(os.fsdecode(files.names.folder)), len(files.names)
        columns: dict[str, Any] = {f"image.{part}": column for part, column in files.columns.items()}
        ends = np.cumsum(files.columns["stored_nbytes"])
        columns |= {"image.offset": ends - files.columns["stored_nbytes"], "image.checksum": 0}
        columns |= {"image.codec": CODEC_FILE, "top": 0, "left": 0, "label": files.labels}
        self.columns, self.texts = {}, {}
        for name, kind in expected.items():
            if kind != "names":
                self.columns[name] = np.ascontiguousarray(np.broadcast_to(columns[name], (count,)), kind)
        names = files.names
        if (text := as_text(names.text).encode()) != names.text:
            names = listing.Names.join(b"", (as_text(name).encode() for name in names))
            text = names.text
        sources = Texts(names.bounds, np.frombuffer(text, np.uint8), VERIFIED, str(self._path))
        self.names = {"source": Names(np.arange(count, dtype=np.int32), sources, VERIFIED)}
        self.facts = manifest.index.facts


class FileReader(Reader):
    """Reads the images of files; used like the reader of the dataset that a conversion would make of them.

    A JPEG gets its seek table when it is read, and kernels decode the window that a transform keeps of it. Other files
    are decoded as a whole.

    Attributes:
        files: The files.
    """

    def __init__(self, files: FileIndex) -> None:
        """Take files whose headers are known."""
        self.files, self._remote = files, None
        self.path, self.manifest = Path(os.fsdecode(files.names.folder)), _manifest(files)
        self._use(_NoFile((), "pread", self.path), _Index(files, self.manifest))
        self.io = "mmap"
        # Of a JPEG its table, the whole payload if it is recoded, or None if kernels do not decode it.
        self._tables: dict[int, U8 | None] = {}
        self._tables_nbytes = 0
        self._times = [0, 0, 0, 0]  # images, those of them that were timed, and their times (ns) as in `took`

    def __getstate__(self) -> Any:
        return self.files

    def __setstate__(self, state: Any) -> None:
        FileReader.__init__(self, state)

    def with_io(self, io: IO) -> Self:
        """Return this reader: files are read by their descriptors."""
        return self

    def corrupt(self, name: str, row: int, reason: str) -> CorruptError:
        """See `Reader.corrupt`; the path is that of the file."""
        path = self.files.path(row)
        return CorruptError(f"{path}: {reason}", sample=row, field=name, source=self.source(row), path=path)

    def damaged(self, name: str, row: int, status: int, said: OSError | None = None) -> CorruptError:
        """See `Reader.damaged`."""
        return self.corrupt(name, row, f"{DAMAGES[status]}. Replace the file, or leave it out: on_corrupt='skip'")

    def read_file(self, name: str, row: int, *, verify: bool = True, clock: Clock = NO_CLOCK) -> npt.NDArray[Any]:
        """Return the pixels (C, H, W) of a file; see `Reader.read_file`."""
        return self._pixels(name, row, self._content(name, row, clock), clock)

    def read_given(self, name: str, row: int, *, verify: bool = True, clock: Clock = NO_CLOCK) -> npt.NDArray[Any]:
        """Return a JPEG's payload (n,) uint8, which kernels decode, or the pixels (C, H, W) of another file."""
        data = self._content(name, row, clock)
        payload = self._payload(name, row, data) if is_jpeg(data) else None
        if payload is None:
            return self._pixels(name, row, data, clock)
        clock.tick(clock_words.DECODE)
        return payload

    def _content(self, name: str, row: int, clock: Clock) -> bytes:
        """Return the content of a file, which must be the one that was found first.

        Raises:
            CorruptError: It cannot be used, was removed, or has changed.
        """
        if row in self.files.problems:
            reason = self.files.problems[row]
            if option("alpha", "drop") in reason:
                line = command("convert", self.path, f"{self.path.name}.lmdb", "--alpha", "drop")
                reason += f". A Loader of files has no such option: {line}"
            raise self.corrupt(name, row, reason)
        path, known = self.files.path(row), self.files.columns
        try:
            with open(path, "rb", 0) as file:
                status = os.fstat(file.fileno())
                data = file.read(status.st_size + 1) or b""
                data = data if len(data) >= status.st_size else data + file.readall()
        except OSError as error:
            advice = " Put a copy in its place." if error.errno in DISK_FAILED else ""
            raise self.corrupt(name, row, f"cannot be read ({error.strerror}).{advice}") from error
        if (len(data), status.st_mtime_ns) != (known["stored_nbytes"][row], known["changed_ns"][row]):
            raise self.corrupt(name, row, "has changed since the Loader was made. Make another Loader.")
        clock.tick(clock_words.READ)
        clock.add(clock_words.NBYTES, len(data))
        return data

    def _pixels(self, name: str, row: int, data: bytes, clock: Clock) -> npt.NDArray[Any]:
        try:
            image = decode_image(data, POLICY, name=self.files.path(row))
        except ImageError as error:
            raise self.corrupt(name, row, error.reason) from error
        shape = self.image_shape(name, row)
        if (image.shape[2], *image.shape[:2]) != shape or image.dtype != self.image_dtype(name, row):
            raise self.corrupt(name, row, "has changed since the Loader was made. Make another Loader.")
        pixels = planes(image).view(image.dtype).reshape(shape)
        clock.tick(clock_words.DECODE)
        return pixels

    def _payload(self, name: str, row: int, data: bytes) -> U8 | None:
        """Return the payload of a JPEG; None if kernels do not decode it."""
        if row in self._tables:
            table = self._tables[row]
            if table is None or is_recoded(table.data):
                return table
            return np.concatenate([np.frombuffer(data, np.uint8), table])
        orientation = int(self.files.columns["orientation"][row])
        # Recoded it would be decoded faster, but only a progressive file has to be.
        packed = pack(data, orientation, fast=False) or pack(data, orientation, fast=True)
        if packed is None:
            self._tables[row] = None
            return None
        payload, nbytes = packed
        if nbytes != self.index.value(f"{name}.raw_nbytes", row):
            raise self.corrupt(name, row, "has another size than its header says")
        if self._tables_nbytes < _TABLES_NBYTES:
            self._tables[row] = table = payload if is_recoded(payload.data) else payload[len(data) :].copy()
            self._tables_nbytes += table.nbytes
        return payload

    def took(self, num_images: int, opening_ns: int, all_ns: int) -> None:
        """Note the time of some images: until their payloads or pixels were there, and until they were in the batch."""
        times = self._times
        times[0] += num_images
        if times[0] - num_images < _FIRST or times[1] >= _TIMED:
            return
        times[1:] = times[1] + num_images, times[2] + opening_ns, times[3] + all_ns
        if times[1] >= _TIMED:
            share, each = times[2] / max(times[3], 1), times[2] / 1e6 / times[1]
            _logger.warning(
                "lmdbloader: %s is read as it is: opening and decoding files took %.0f %% of the time of its first "
                "batches (%.2f ms an image), which a conversion does once: %s",
                plain(str(self.path)), 100 * share, each, command("convert", self.path, f"{self.path.name}.lmdb"),
            )  # fmt: skip


def _manifest(files: FileIndex) -> Manifest:
    """Return the manifest of files; its digests are of their names, labels and sizes, and of their times too."""
    image, names, columns = make_field("image", "image"), files.names, files.columns
    digest = hashlib.blake2b(names.text, digest_size=16)
    for column in (names.bounds, columns["stored_nbytes"], files.labels):
        digest.update(b"" if column is None else column.astype("<i8").tobytes())
    content = f"files:{digest.hexdigest()}"
    digest.update(columns["changed_ns"].astype("<i8").tobytes())
    found = {**columns, "codec": np.array([CODEC_FILE])}
    extremes = {part: (int(found[part].min()), int(found[part].max())) for part in extremes_of(image)}
    totals = {part: int(found[part].sum()) for part in ("stored_nbytes", "raw_nbytes")}
    side, pixels = max(extremes["height"][1], extremes["width"][1]), int((found["height"] * found["width"]).max())
    # Of a payload: the file and its table, or the file recoded, which is at most twice as long.
    entries = (side // _STEP_DOWN + 1) * (side // _STEP_ACROSS + 1)
    most = 2 * extremes["stored_nbytes"][1] + entries * SEEK_ENTRY_NBYTES + 4096
    facts = Facts((CODEC_FILE,), extremes, totals, extremes["raw_nbytes"][1], (most, side, pixels))
    has_labels = files.labels is not None
    return Manifest(
        fields=(image, make_field("label", "int")) if has_labels else (image,), with_source=True,
        classes={"label": files.classes} if has_labels else {}, made_by={}, num_samples=len(names),
        content_digest=content, index_digest="", index=IndexLayout(0, facts={"image": facts}), parts=(),
        manifest_digest=f"files:{digest.hexdigest()}",
    )  # fmt: skip
