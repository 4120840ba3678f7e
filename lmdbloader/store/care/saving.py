"""Writes the sound samples of a damaged dataset, or of a damaged set, to a new one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.base.text import counted, plain, table
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import DATA_FILE, LEFT_OUT_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.care.findings import Verification
from lmdbloader.store.care.pages import find_num_samples
from lmdbloader.store.copying import copied_samples
from lmdbloader.store.damage import ALL_FIELDS, Damage
from lmdbloader.store.index import open_index
from lmdbloader.store.opening import DataFile
from lmdbloader.store.reader import Reader
from lmdbloader.store.records import Chunk, encode_blocks
from lmdbloader.store.writing.ownership import is_own_file, open_own_file
from lmdbloader.store.writing.writer import estimate_map_nbytes, open_writer

_NOT_KNOWN = "the number of missing samples is unknown, because the remaining data does not state how many there were"


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of `repair`.

    Attributes:
        found: The faults of the dataset.
        replaced: Names of the files of the dataset that were rebuilt in place.
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


def sound_samples(folder: Path, manifest: Manifest, damaged: Collection[int]) -> Iterator[Chunk]:
    """Yield the samples of an intact index that can be read.

    Args:
        folder: A dataset, whose data.mdb may be damaged or cut short.
        manifest: Its own.
        damaged: Numbers of the samples to leave out.
    """
    index = open_index(folder, manifest, "pread")
    reader = Reader.of_files(folder, manifest, DataFile(folder / DATA_FILE, "pread"), index)
    yield from copied_samples(reader, np.delete(np.arange(len(reader)), sorted(damaged)))


def num_samples_of(folder: Path, description: Description, manifest: Manifest | None) -> int | None:
    """Return how many samples there were, None if unknown: nothing states it, or the statements differ."""
    stated = {manifest.num_samples} if manifest else set()
    data = DataFile(folder / DATA_FILE, "pread")
    if (found := find_num_samples(data.descriptor, description)) is not None:
        stated.add(found)
    return stated.pop() if len(stated) == 1 else None


def write_samples(
    folder: Path,
    description: Description,
    chunks: Iterator[Chunk],
    left_out: Callable[[], Sequence[Damage]],
    out: Path,
    may_lack_more: Callable[[], bool] = lambda: False,
    *,
    hint: str = "",
    data_files: Sequence[str] = (DATA_FILE,),
) -> int:
    """Write samples as a new dataset; return their number.

    Args:
        folder: The damaged dataset.
        description: The dataset's.
        chunks: The samples.
        left_out: Returns the damaged values that they lack, once all of them were taken.
        out: The new dataset.
        may_lack_more: Returns whether they lack others too, once all of them were taken.
        hint: Appended to the error that there is not one intact sample.
        data_files: Names of the data files that are there.
    """
    nbytes = sum((folder / name).stat().st_size for name in data_files)
    fields, with_source = description.fields, description.with_source
    map_nbytes = estimate_map_nbytes(nbytes, nbytes / 4096)
    with open_writer(out, fields, with_source=with_source, map_nbytes=map_nbytes) as writer:
        for chunk in chunks:
            writer.add(chunk, encode_blocks(chunk, fields, with_source=with_source))
        if not writer.num_samples and (left_out() or may_lack_more()):
            raise CorruptError(
                f"{folder}: not one of its samples is sound. Restore it from a copy, or convert again.{hint}"
            )
        made_by: dict[str, Any] = dict(description.made_by)
        # The inputs in the manifest must show that the dataset does not hold all of them.
        lacks: dict[str, Any] = {}
        if damaged := left_out():
            writer.add_file(LEFT_OUT_FILE, table([("sample", "field", "source", "reason"), *_rows(damaged)]))
            lacks["left_out"] = len({d.sample for d in damaged})
        if may_lack_more():
            lacks["may_lack_more"] = True
        if lacks:
            inputs = made_by.get("inputs")
            made_by["inputs"] = {**(inputs if isinstance(inputs, dict) else {}), **lacks}
        if is_own_file(folder / SKIPPED_FILE):
            with open(open_own_file(folder / SKIPPED_FILE), "rb") as skipped:
                writer.add_file(SKIPPED_FILE, skipped.read())
        return writer.finish(classes=description.classes, made_by=made_by).num_samples


def _rows(damaged: Sequence[Damage]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the list of damaged values; samples in a row that were lost together have one: 100-199."""
    # The difference stays the same as long as the samples follow each other.
    for _, found in groupby(
        enumerate(damaged), lambda item: (item[1].sample - item[0], item[1].field, item[1].source, item[1].reason)
    ):
        together = [d for _, d in found]
        first, last = together[0], together[-1]
        if first.field == ALL_FIELDS and last is not first:
            yield f"{first.sample}-{last.sample}", first.field, first.source or "", first.reason
        else:
            yield from ((str(d.sample), d.field, d.source or "", d.reason) for d in together)


def report(folder: Path, done: Repair, log: Callable[[str], None]) -> Repair:
    """Log what a repair has written, and return it.

    Args:
        folder: The damaged dataset.
        done: The repair.
        log: Called with a line of text.
    """
    lost = len({damage.sample for damage in done.left_out})
    listed = f"; {lost:,} left out, listed in {done.out}/{LEFT_OUT_FILE}" if lost else ""
    unknown = f"; {_NOT_KNOWN}" if done.may_lack_more else ""
    log(plain(f"{done.out}: written, {counted(done.num_samples, 'sample')} of {folder}{listed}{unknown}"))
    return done
