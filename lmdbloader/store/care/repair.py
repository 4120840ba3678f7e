"""Mends a dataset: a lost index or manifest in its place, damaged samples by a new dataset without them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdbloader.base.text import plain, table
from lmdbloader.errors import CorruptError, DestinationError, FormatError
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.pages import find_description, find_num_samples
from lmdbloader.store.care.rebuild import rebuild
from lmdbloader.store.care.salvage import RecordSalvage, sound_samples
from lmdbloader.store.care.verify import Damage, Verification, verify
from lmdbloader.store.index import Index
from lmdbloader.store.opening import DataFile, open_index, read_manifest
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import Chunk, encode_blocks
from lmdbloader.store.writing.ownership import is_own_file, open_own_file
from lmdbloader.store.writing.writer import estimate_map_nbytes, open_writer

_NOT_KNOWN = "how many are missing is not known, because what is left does not say for certain how many there were"
_LOST = "their record is damaged, and there is no index"


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` did.

    Attributes:
        found: What was wrong.
        replaced: Names of the files of the dataset that were made anew in their place.
        out: The new dataset, None where none was needed.
        num_samples: Samples in the dataset that is sound now.
        left_out: What the new dataset lacks: the damaged values, one for each field of a sample that is damaged.
        may_lack_more: Whether the new dataset may lack other samples too, because nothing says how many there were.
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
    """Mend a dataset.

    A lost or damaged index or manifest is made anew from data.mdb and put in its place in one step. Where data.mdb
    itself is damaged, it stays as it is, and the samples that are sound are written to a new dataset, as they are
    stored. A dataset that is sound is left alone.

    Args:
        path: Of the dataset.
        out: Of the new dataset, for one whose data.mdb is damaged; nothing is written there otherwise.
        progress: Called with the number of samples checked since the last call.
        log: Called with lines of text for people: everything that is wrong, and what was done.

    Returns:
        What was mended, and the samples that had to be left out.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version.
        CorruptError: It cannot be mended, or not without `out`; the message says why.
        DestinationError: `out` exists already, or cannot be written.
        DiskFullError: No room left.
    """
    folder = Path(path).absolute()
    target = None if out is None else _check_out(Path(out), folder)
    found = verify(path, progress=progress)
    for line in (*(f"{folder}: {problem}" for problem in found.problems), *map(str, found.damaged)):
        log(line)
    if found.is_sound:
        log(plain(f"{folder}: is sound, nothing was done"))
        return Repair(found, (), None, found.num_samples, ())
    description, manifest = _what_is_known(folder, found)
    if DATA_FILE not in found.files and {INDEX_FILE, MANIFEST_FILE} & set(found.files):
        replaced = rebuild(folder, description, manifest, found.files)
        log(plain(f"{folder}: {' and '.join(replaced)} made anew from {DATA_FILE}"))
        return Repair(found, replaced, None, read_manifest(folder).num_samples, ())
    if DATA_FILE not in found.files or not (folder / DATA_FILE).is_file():
        raise CorruptError(f"{folder}: cannot be mended. {found.advice}", path=str(folder))
    if target is None:
        raise CorruptError(f"{folder}: {DATA_FILE} is damaged, and is never changed. {found.advice}", path=str(folder))
    if manifest and INDEX_FILE not in found.files:
        return _write_sound(folder, manifest, found, target, log)
    return _write_salvaged(folder, description, manifest, found, target, log)


def _check_out(out: Path, folder: Path) -> Path:
    if out.exists() or out.is_symlink():
        raise DestinationError(f"{out}: is there already. Choose another name for the new dataset.")
    if Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents:
        raise DestinationError(f"{out}: lies inside {folder}. Choose a place outside of it.")
    return out


def _what_is_known(folder: Path, found: Verification) -> tuple[Description, Manifest | None]:
    """Return what a dataset is, and its manifest; where that is lost, data.mdb tells the rest."""
    manifest = None
    with suppress(FormatError, CorruptError):
        manifest = read_manifest(folder)
    if manifest is not None and MANIFEST_FILE not in found.files:
        return manifest.description, manifest
    description = None
    if (folder / DATA_FILE).is_file():
        data = DataFile(folder / DATA_FILE, "pread")
        description = find_description(data.descriptor, str(folder))
    if manifest is not None and description in (None, manifest.description):
        return description or manifest.description, manifest  # only its text is not as it was written
    if manifest is not None or description is None:
        raise CorruptError(f"{folder}: cannot be mended. {found.advice}", path=str(folder))
    return description, None


def _write_sound(
    folder: Path, manifest: Manifest, found: Verification, out: Path, log: Callable[[str], None]
) -> Repair:
    """Write the samples that the index finds and that read."""
    content = open_index(folder / INDEX_FILE, "pread", manifest.sizes["index_nbytes"])
    index = Index(folder, manifest, manifest.sizes["data_nbytes"], content)
    reader = Reader.of_files(folder, manifest, DataFile(folder / DATA_FILE, "pread"), index)
    chunks = sound_samples(reader, {damage.sample for damage in found.damaged})
    hint = (
        f" If {INDEX_FILE} and {MANIFEST_FILE} came from another dataset than {DATA_FILE}: remove {MANIFEST_FILE} and "
        f"{INDEX_FILE}, and repair it again to save what {DATA_FILE} holds."
    )
    num_samples = _write(folder, manifest.description, chunks, lambda: found.damaged, out, hint=hint)
    return _report(folder, Repair(found, (), out, num_samples, found.damaged), log)


def _write_salvaged(
    folder: Path,
    description: Description,
    manifest: Manifest | None,
    found: Verification,
    out: Path,
    log: Callable[[str], None],
) -> Repair:
    """Write the samples of all records that are found on the pages of data.mdb."""
    salvage = RecordSalvage(folder, description, _num_samples(folder, description, manifest))

    def left_out() -> tuple[Damage, ...]:
        return tuple(Damage(sample, "all", None, _LOST) for lost in salvage.lost for sample in lost)

    num_samples = _write(folder, description, salvage.chunks(), left_out, out, lambda: salvage.may_lack_more)
    if manifest and not left_out() and read_manifest(out).content_digest != manifest.content_digest:
        shutil.rmtree(out)
        raise CorruptError(
            f"{folder}: cannot be mended: the records in {DATA_FILE} are whole, but not those of the dataset in "
            f"{MANIFEST_FILE}. Put the right {DATA_FILE} back; or remove {MANIFEST_FILE}, to mend what is there.",
            path=str(folder),
        )
    for lost in salvage.lost:
        log(f"samples {lost.start} to {lost.stop - 1}: {_LOST}")
    return _report(folder, Repair(found, (), out, num_samples, left_out(), salvage.may_lack_more), log)


def _num_samples(folder: Path, description: Description, manifest: Manifest | None) -> int | None:
    """Return how many samples there were, None where that is not known: nothing says it, or not everything the same."""
    stated = {manifest.num_samples} if manifest else set()
    data = DataFile(folder / DATA_FILE, "pread")
    if (found := find_num_samples(data.descriptor, description)) is not None:
        stated.add(found)
    return stated.pop() if len(stated) == 1 else None


def _write(
    folder: Path,
    description: Description,
    chunks: Iterator[Chunk],
    left_out: Callable[[], Sequence[Damage]],
    out: Path,
    may_lack_more: Callable[[], bool] = lambda: False,
    *,
    hint: str = "",
) -> int:
    """Write samples as a new dataset; return how many they were.

    Args:
        folder: The damaged dataset.
        description: What it is.
        chunks: The samples.
        left_out: Returns what they lack, once all of them were taken.
        out: The new dataset.
        may_lack_more: Returns whether they lack others too, once all of them were taken.
        hint: What to do, in addition, if not one of them is sound.
    """
    nbytes = (folder / DATA_FILE).stat().st_size
    fields, with_source = description.fields, description.with_source
    map_nbytes = estimate_map_nbytes(nbytes, nbytes / 4096)
    with open_writer(out, fields, with_source=with_source, map_nbytes=map_nbytes) as writer:
        for chunk in chunks:
            writer.add(chunk, encode_blocks(chunk, fields, with_source=with_source))
        if not writer.num_samples and (left_out() or may_lack_more()):
            raise CorruptError(
                f"{folder}: not one sample of it is sound. Restore it from a copy, or convert again.{hint}"
            )
        made_by: dict[str, Any] = dict(description.made_by)
        # Whoever compares what a dataset was made from must see that it is not all of it.
        lacks: dict[str, Any] = {}
        if damaged := left_out():
            writer.add_file(LEFT_OUT_FILE, _table(damaged))
            lacks["left_out"] = len({d.sample for d in damaged})
        if may_lack_more():
            lacks["may_lack_more"] = True
        if lacks:
            inputs = made_by.get("inputs")
            made_by["inputs"] = {**(inputs if isinstance(inputs, dict) else {}), **lacks}
        if is_own_file(folder / SKIPPED_FILE):
            with open(open_own_file(folder / SKIPPED_FILE), "rb") as skipped:
                writer.add_file(SKIPPED_FILE, skipped.read())
        return writer.finish(classes=description.classes, made_by=made_by, digest=description.digest).num_samples


def _table(damaged: Sequence[Damage]) -> bytes:
    rows = [("sample", "field", "source", "reason")]
    rows += [(str(d.sample), d.field, d.source or "", d.reason) for d in damaged]
    return table(rows)


def _report(folder: Path, done: Repair, log: Callable[[str], None]) -> Repair:
    lost = len({damage.sample for damage in done.left_out})
    listed = f"; {lost} left out, listed in {done.out}/{LEFT_OUT_FILE}" if lost else ""
    unknown = f"; {_NOT_KNOWN}" if done.may_lack_more else ""
    log(plain(f"{done.out}: written, {done.num_samples} samples of {folder}{listed}{unknown}"))
    return done
