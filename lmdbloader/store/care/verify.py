"""`lmdbloader.verify`: checks every byte of a dataset that a reader uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import local_path
from lmdbloader.base.files import read_regular
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import INDEX_FILE, MANIFEST_FILE, PARTIAL_SUFFIX, data_file
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, Part, is_signed, part_begins
from lmdbloader.store.damage import Damage
from lmdbloader.store.index import Index
from lmdbloader.store.lmdb_file import page_problems
from lmdbloader.store.opening import DataFile, OpenFile, read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.spool import content_digest
from lmdbloader.store.writing.join import facts_of

_ROWS_AT_ONCE = 256
_READ_AT_ONCE_NBYTES = 64 * 2**20
# The most findings shown of one file: a damaged tree has a hundred.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of `verify`.

    Attributes:
        num_samples: Samples checked; 0 if the dataset does not open.
        problems: Faults of the dataset as a whole, one sentence each.
        damaged: Values that cannot be read.
        files: Names of the files that are missing or were changed.
        advice: The remedy; empty if nothing is wrong.
    """

    num_samples: int
    problems: tuple[str, ...]
    damaged: tuple[Damage, ...]
    files: tuple[str, ...] = ()
    advice: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.damaged


@dataclass(slots=True)
class _Findings:
    """The findings so far, in order."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    files: dict[str, None] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)
    num_samples: int = 0

    def add(self, file: str, *texts: str) -> None:
        """Add faults of a file, one sentence each."""
        if texts:
            self.files.setdefault(file)
        more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
        self.problems += [f"{file}: {text}" for text in [*texts[:_SHOWN], *more]]

    def result(self) -> Verification:
        """Return all findings with the remedy."""
        advice = ""
        if not data_files_of(self.folder):
            advice = "Without data files nothing can be repaired. Restore them from a copy, or convert again."
        elif any(name.endswith(".mdb") for name in self.files):
            advice = (
                f"{command('repair', self.folder, 'OUT')} writes the samples that are sound into a new dataset, OUT, "
                "and lists the others."
            )
        elif self.problems or self.damaged:
            advice = f"{command('repair', self.folder)} rebuilds {' and '.join(self.files)} from the data files."
        return Verification(self.num_samples, tuple(self.problems), tuple(self.damaged), tuple(self.files), advice)


def verify(path: str | os.PathLike[str], *, progress: Callable[[int], None] = lambda done: None) -> Verification:
    """Check all of a dataset, in any state; nothing is changed.

    The manifest is compared with its digest, index and data files with the digests in the manifest; every payload is
    read, and its checksum compared, so that each damaged sample is named.

    Args:
        path: The dataset's.
        progress: Called with the number of samples checked since the last call.

    Returns:
        All faults, and the remedy.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version.
    """
    folder = local_path("path", path).absolute()
    found = _Findings(folder)
    try:
        manifest = read_manifest(path)
    except (FormatError, CorruptError) as error:
        if _is_foreign(folder) or not data_files_of(folder):
            raise
        _check_without_manifest(found, error)
        return found.result()
    index = _check_index(found, manifest)
    file = open_parts(folder, manifest, found.add)
    reader = None if index is None else Reader.of_files(folder, manifest, file, index)
    if reader is not None:
        found.num_samples = len(reader)
        if (content := content_digest(reader.index.batch)) != manifest.content_digest:
            found.add(MANIFEST_FILE, f"its content digest is {manifest.content_digest}, of the samples it is {content}")
    first = 0
    for name, part, opened in zip(manifest.data_files, manifest.parts, file.files, strict=True):
        # Just before its samples are read: a cold file is read from the disk once.
        if name not in found.files and (fault := _fault_of(opened, part)):
            found.add(name, fault)
        stop = first + part.num_samples
        found.damaged += () if reader is None else _unreadable(reader, first, stop, progress)
        first = stop
    return found.result()


def _fault_of(file: OpenFile, part: Part) -> str:
    """Return how a data file differs from what the manifest states; empty if it does not."""
    try:
        with file.opened() as descriptor:
            found = read_digest(descriptor)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if found == part.data_digest else f"its digest is {found}, expected {part.data_digest}: it was changed"


def data_files_of(folder: Path) -> list[str]:
    """Return the names of the data files in a folder, by the number of their part."""
    names = [path.name for path in folder.glob("data*.mdb") if path.is_file() and _number_of(path.name) >= 0]
    return sorted(names, key=_number_of)


def _number_of(name: str) -> int:
    digits = name.removeprefix("data-").removesuffix(".mdb")
    number = int(digits) if digits.isdecimal() else 0
    return number if data_file(number) == name else -1


def _is_foreign(folder: Path) -> bool:
    """Return whether a folder without a readable manifest is not a damaged dataset.

    It is no folder, an unfinished dataset, or one whose manifest has a valid digest of its own: of another release.
    """
    return not folder.is_dir() or folder.name.endswith(PARTIAL_SUFFIX) or is_signed(_manifest_text(folder))


def _manifest_text(folder: Path) -> bytes:
    try:
        return read_regular(folder / MANIFEST_FILE, MAX_MANIFEST_NBYTES + 1)
    except OSError:
        return b""


def _check_without_manifest(found: _Findings, error: Exception) -> None:
    folder = found.folder
    is_there = (folder / MANIFEST_FILE).exists()
    found.add(MANIFEST_FILE, first_sentence(error, folder / MANIFEST_FILE) if is_there else "is missing")
    found.add(INDEX_FILE, "its digest is not known without the manifest")
    names = data_files_of(folder)
    for name in sorted({data_file(number) for number in range(_number_of(names[-1]) + 1)} - set(names)):
        found.add(name, "is missing")
    for name in names:
        try:
            found.add(name, *page_problems(folder / name))
        except OSError as failed:
            found.add(name, f"its pages cannot be read ({failed.strerror})")


def _check_index(found: _Findings, manifest: Manifest) -> Index | None:
    """Return the index if all of it is sound."""
    try:
        index = Index(found.folder, manifest, "pread")
        index.check_file()
        index.check()
        for names in index.names.values():
            names.texts.columns()
        for f in manifest.fields:
            if f.is_payload and facts_of(f, index.columns) != index.facts[f.name]:
                found.add(MANIFEST_FILE, f"its facts about the field {f.name!r} are not those of the samples")
        return index
    except FileNotFoundError:
        found.add(INDEX_FILE, "is missing")
    except (OSError, FormatError) as error:
        found.add(INDEX_FILE, first_sentence(error, found.folder / INDEX_FILE))
    return None


def open_parts(
    folder: Path, manifest: Manifest, add: Callable[[str, str], None] = lambda name, fault: None
) -> DataFile:
    """Return the data files as one, each where the manifest says that it begins; a missing one is empty.

    Args:
        folder: The dataset's.
        manifest: The dataset's.
        add: Called with the name of each file that is not as the manifest says, and the fault.
    """
    files = []
    for name, part in zip(manifest.data_files, manifest.parts, strict=True):
        file = None
        try:
            file = OpenFile(folder / name)
            if file.nbytes != part.data_nbytes:
                add(name, f"{file.nbytes} bytes, expected {part.data_nbytes}: it is cut short or was changed")
                file.nbytes = min(file.nbytes, part.data_nbytes)
        except FileNotFoundError:
            add(name, "is missing")
        except (IsADirectoryError, FormatError):
            add(name, "is not a regular file")
        files.append(file or OpenFile(folder / name, descriptor=os.open(os.devnull, os.O_RDONLY)))
    return DataFile(files, "pread", folder, begins=part_begins([part.data_nbytes for part in manifest.parts]))


def first_sentence(error: Exception, where: object) -> str:
    """Return the fault in an error's message, without the place and the remedy."""
    return str(error).removeprefix(f"{where}: ").partition(". ")[0]


def _unreadable(reader: Reader, begin: int, end: int, progress: Callable[[int], None]) -> Iterator[Damage]:
    """Read every payload, many at once; if that fails, one by one to name each damaged one."""
    names = [f.name for f in reader.manifest.fields if f.is_payload]
    for first in range(begin, end, _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, end), dtype=np.int64)
        for name in names:
            for part in _divided(rows, reader.raw_nbytes(name, rows)):
                try:
                    _read(reader, name, part)
                except (CorruptError, FormatError):
                    yield from _each(reader, name, part)
        progress(len(rows))


def _divided(rows: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    group = np.cumsum(nbytes) // _READ_AT_ONCE_NBYTES
    yield from np.split(rows, np.flatnonzero(np.diff(group)) + 1)


def _read(reader: Reader, name: str, rows: npt.NDArray[np.int64]) -> None:
    if reader.fields[name].holds_text:
        reader.read_texts(name, rows)
        return
    nbytes = reader.raw_nbytes(name, rows)
    out = np.empty(int(nbytes.sum()), np.uint8)
    reader.read_into(name, rows, out, np.cumsum(nbytes) - nbytes, nbytes)
    if reader.fields[name].kind == "array":
        for row in rows.tolist():
            reader.read_array(name, row)


def _each(reader: Reader, name: str, rows: npt.NDArray[np.int64]) -> Iterator[Damage]:
    for row in rows.tolist():
        try:
            _read(reader, name, np.array([row], np.int64))
        except (CorruptError, FormatError) as error:
            yield Damage(row, name, reader.source(row), first_sentence(error, reader.where(name, row)))
