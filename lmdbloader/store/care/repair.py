"""`lmdbloader.repair`: makes a lost index or manifest again, or saves the sound samples of a damaged dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from lmdbloader.base.arguments import local_path, new_path
from lmdbloader.base.text import counted, plain, table
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.layout import (
    DESCRIPTION_KEY,
    INDEX_FILE,
    LEFT_OUT_FILE,
    MANIFEST_FILE,
    SKIPPED_FILE,
    SOURCES_FILE,
)
from lmdbloader.format.manifest import Description, Manifest, parse_description
from lmdbloader.store.care.verify import Verification, data_files_of, open_parts, verify
from lmdbloader.store.copying import copied_samples
from lmdbloader.store.damage import ALL_FIELDS, Damage
from lmdbloader.store.index import Index
from lmdbloader.store.lmdb_file import reading
from lmdbloader.store.opening import read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import encode_blocks
from lmdbloader.store.writing.join import Written, join
from lmdbloader.store.writing.part import estimate_map_nbytes
from lmdbloader.store.writing.work import PartFacts, Work, check_destination

_LOST = "its data file is damaged, and the index that would find the sound samples in it is lost too"


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of `repair`.

    Attributes:
        found: The faults of the dataset.
        replaced: Names of the files of the dataset that were made again.
        out: The new dataset, None if none was needed.
        num_samples: Samples in the repaired or new dataset.
        left_out: The damaged values that the new dataset lacks, one for each damaged field of a sample.
        may_lack_more: Whether the new dataset may lack other samples too, because their number is unknown.
    """

    found: Verification
    replaced: tuple[str, ...]
    out: Path | None
    num_samples: int
    left_out: tuple[Damage, ...]
    may_lack_more: bool = False


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = lambda line: None,
) -> Repair:
    """Repair a dataset.

    A lost or damaged index or manifest is made again from the records in the data files, and the dataset is replaced in
    one step; its data files stay. If data files are damaged, they stay unchanged, and the sound samples of all parts
    are copied to a new dataset without being encoded again. A sound dataset is left alone.

    Args:
        path: The dataset's.
        out: The new dataset's, needed if a data file is damaged; nothing is written there otherwise.
        progress: Called with the number of samples checked since the last call.
        log: Called with each message, a line of text: all faults, and the repairs.

    Returns:
        The files that were made again, and the samples that had to be left out.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: It cannot be repaired, or not without `out`; the message gives the reason.
        DestinationError: `out` exists already, or cannot be written.
        DiskFullError: No room left.
    """
    folder = local_path("path", path).absolute()
    target = None if out is None else _check_out(new_path("out", out), folder)
    found = verify(path, progress=progress)
    for line in (*(f"{folder}: {problem}" for problem in found.problems), *map(str, found.damaged)):
        log(plain(line))
    if found.is_sound:
        log(plain(f"{folder}: is sound, nothing was done"))
        return Repair(found, (), None, found.num_samples, ())
    manifest = None
    with suppress(FormatError, CorruptError):
        manifest = read_manifest(folder)
    broken = [name for name in found.files if name.endswith(".mdb")]
    if not broken and not found.damaged:
        written = _make_again(folder, folder, manifest, data_files_of(folder), found)
        replaced = (INDEX_FILE, MANIFEST_FILE)
        log(plain(f"{folder}: {' and '.join(replaced)} were made again from the data files"))
        return Repair(found, replaced, None, written.num_samples, ())
    if target is None:
        raise CorruptError(
            f"{folder}: {', '.join(broken) or 'a sample'} is damaged, and data files are never changed. {found.advice}",
            path=str(folder),
        )
    if manifest is not None and INDEX_FILE not in found.files:
        return _report(folder, _save(folder, target, manifest, found), log)
    sound = [name for name in data_files_of(folder) if name not in broken]
    if not sound:
        raise CorruptError(f"{folder}: cannot be repaired: {_LOST}. Restore it from a copy.", path=str(folder))
    left_out = () if manifest is None else tuple(_lost_parts(manifest, sound))
    written = _make_again(folder, target, manifest, sound, found, left_out)
    done = Repair(found, (), target, written.num_samples, left_out, may_lack_more=manifest is None)
    return _report(folder, done, log)


def _check_out(out: Path, folder: Path) -> Path:
    check_destination(out, overwrite=False)
    if os.path.realpath(out) == os.path.realpath(folder):
        raise DestinationError(f"{out}: is the dataset itself. Choose another destination.")
    return out


def _make_again(
    folder: Path,
    out: Path,
    manifest: Manifest | None,
    names: Sequence[str],
    found: Verification,
    left_out: Sequence[Damage] = (),
) -> Written:
    """Make a dataset of sound data files, whose records hold all that its index and manifest state.

    Args:
        folder: The dataset.
        out: The dataset to make; `folder` itself is replaced.
        manifest: Its manifest, if it can be read.
        names: Of the data files.
        found: Its faults, for messages.
        left_out: What the new dataset lacks.

    Raises:
        CorruptError: The records are damaged, or not those of the dataset.
    """
    description = _with_left_out(manifest.description if manifest else _description_of(folder, names), left_out)
    work = Work(out)
    work.discard()
    work.begin({"made_by": {"layout": "repair"}})
    try:
        facts = [work.take_over(number, folder / name, description) for number, name in enumerate(names)]
        expected = None if manifest is None or left_out else manifest.content_digest
        replaces, notes = out == folder, dict(_notes(folder, left_out))
        if replaces and manifest is not None:  # of the same inputs
            with suppress(OSError):
                notes[SOURCES_FILE] = (folder / SOURCES_FILE).read_bytes()
        return join(
            work, facts, description, overwrite=replaces, notes=notes, expected=expected, is_damaged=replaces,
            is_settled=manifest is not None,
        )  # fmt: skip
    except (CorruptError, lmdb.Error) as error:
        raise CorruptError(f"{folder}: cannot be repaired: {error} {found.advice}", path=str(folder)) from error
    finally:
        work.leave(discard=True)


def _description_of(folder: Path, names: Sequence[str]) -> Description:
    """Return the description that data files have; the last one knows all classes."""
    for name in reversed(names):
        with suppress(FormatError, lmdb.Error), reading(folder / name, readahead=False) as transaction:
            return parse_description(bytes(transaction.get(DESCRIPTION_KEY, b"")), str(folder))
    raise CorruptError(
        f"{folder}: cannot be repaired: its data files do not describe the dataset. Restore {MANIFEST_FILE} from a "
        "copy, or convert again.",
        path=str(folder),
    )


def _lost_parts(manifest: Manifest, sound: Sequence[str]) -> Iterator[Damage]:
    first = 0
    for name, part in zip(manifest.data_files, manifest.parts, strict=True):
        if name not in sound:
            yield from (Damage(row, ALL_FIELDS, None, _LOST) for row in range(first, first + part.num_samples))
        first += part.num_samples


def _save(folder: Path, out: Path, manifest: Manifest, found: Verification) -> Repair:
    """Write the samples that can be read to a new dataset; the index is sound."""
    reader = Reader.of_files(folder, manifest, open_parts(folder, manifest), Index(folder, manifest, "pread"))
    rows = np.delete(np.arange(len(reader)), sorted({damage.sample for damage in found.damaged}))
    if not len(rows):
        raise CorruptError(
            f"{folder}: not one of its samples is sound. Restore it from a copy, or convert again.", path=str(folder)
        )
    description = _with_left_out(manifest.description, found.damaged)
    fields, with_source = description.fields, description.with_source
    nbytes = manifest.sizes["payload_nbytes"]
    work = Work(out)
    work.discard()
    work.begin({"made_by": {"layout": "repair"}})
    try:
        facts: list[PartFacts] = []
        bounds = np.searchsorted(rows, np.cumsum([part.num_samples for part in manifest.parts])).tolist()
        for number, (first, stop) in enumerate(zip([0, *bounds], bounds, strict=False)):
            with work.part(number, description, map_nbytes=estimate_map_nbytes(nbytes, len(rows))) as writer:
                for chunk in copied_samples(reader, rows[first:stop]):
                    writer.add(chunk, encode_blocks(chunk, fields, with_source=with_source))
                facts.append(work.complete(number, writer, {}))
        written = join(work, facts, description, notes=_notes(folder, found.damaged))
    finally:
        work.leave(discard=True)
    return Repair(found, (), out, written.num_samples, found.damaged)


def _with_left_out(description: Description, left_out: Sequence[Damage]) -> Description:
    """Return a description that shows that the dataset does not hold all inputs."""
    if not left_out:
        return description
    made_by: dict[str, Any] = dict(description.made_by)
    inputs = made_by.get("inputs")
    lacks = {"left_out": len({damage.sample for damage in left_out})}
    return replace(
        description, made_by={**made_by, "inputs": {**(inputs if isinstance(inputs, dict) else {}), **lacks}}
    )


def _notes(folder: Path, left_out: Sequence[Damage]) -> Mapping[str, bytes]:
    """Return the small files of the new dataset."""
    notes = {}
    for name in (SKIPPED_FILE, LEFT_OUT_FILE):
        with suppress(OSError):
            notes[name] = (folder / name).read_bytes()
    if left_out:
        rows = ((str(damage.sample), damage.field, damage.source or "", damage.reason) for damage in left_out)
        notes[LEFT_OUT_FILE] = table([("sample", "field", "source", "reason"), *rows])
    return notes


def _report(folder: Path, done: Repair, log: Callable[[str], None]) -> Repair:
    """Log what a repair has written, and return it."""
    lost = len({damage.sample for damage in done.left_out})
    listed = f"; {lost:,} left out, listed in {done.out}/{LEFT_OUT_FILE}" if lost else ""
    unknown = "; how many samples are lost is not known without the manifest" if done.may_lack_more else ""
    log(plain(f"{done.out}: written, {counted(done.num_samples, 'sample')} of {folder}{listed}{unknown}"))
    return done
