"""Checks a set: each part as a dataset, and the set's own index and manifest against the parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmdbloader.base.text import command, counted
from lmdbloader.errors import CorruptError, FormatError, NotFoundError
from lmdbloader.format.layout import CODEC_RAW, DATA_FILE, INDEX_FILE, MANIFEST_FILE, Field, part_name
from lmdbloader.format.manifest import Manifest, Part, part_begins
from lmdbloader.kernels import entries
from lmdbloader.store.care.dataset_check import (
    check_dataset,
    check_index_file,
    check_text,
    compare_contents,
    first_sentence,
)
from lmdbloader.store.care.findings import Findings, Verification
from lmdbloader.store.index import Index
from lmdbloader.store.opening import read_manifest
from lmdbloader.store.reader import Reader

_ROWS_AT_ONCE = 2**16
_SET_INDEX = re.compile(r"index-([0-9]{5,})\.arrow")
_LOST_PART = "is missing"


def check_set(folder: Path, manifest: Manifest, progress: Callable[[int], None]) -> Verification:
    """Check all of a set; nothing is changed.

    Args:
        folder: The set.
        manifest: The set's manifest.
        progress: Called with the number of samples checked since the last call.

    Raises:
        FormatError: A newer release made it, and this one cannot check all of it.
    """
    found = Findings(folder)
    check_text(found, manifest)
    # Mapped, because the index of all samples may not fit in memory.
    index = check_index_file(found, manifest, "mmap")
    begins = part_begins([part.data_nbytes for part in manifest.parts])
    first = 0
    exchanged: list[str] = []
    for part, begin in zip(manifest.parts, begins[:-1], strict=True):
        checked = _check_part(folder / part.name, progress)
        if checked.problems == [("", _LOST_PART)]:
            last = first + part.num_samples - 1
            samples = f"sample {first}" if last == first else f"samples {first} to {last}"
            checked.problems = [("", f"{_LOST_PART}, with {samples}")]
        found.add_part(part.name, checked, first)
        if checked.reader is not None and MANIFEST_FILE not in checked.files:
            theirs = checked.reader.manifest
            if (place := _place_of(theirs, part, manifest)) != part.name:
                exchanged.append(part.name)
                found.add(part.name, f"holds {place}: the folders were exchanged")
            else:
                differences = list(_compare(index, manifest, checked.reader, first, begin)) if index else None
                _judge(found, manifest, part, theirs, differences)
        first += part.num_samples
    if index is not None and not exchanged:
        compare_contents(found, manifest, index)
    return found.result(_advice(found, exchanged, manifest))


def check_set_without_manifest(folder: Path, progress: Callable[[int], None]) -> Verification:
    """Check the parts of a set whose manifest is lost or damaged."""
    found = Findings(folder)
    try:
        read_manifest(folder)
    except (FormatError, CorruptError) as error:
        is_there = (folder / MANIFEST_FILE).exists()
        text = str(error).removeprefix(f"{folder / MANIFEST_FILE}: ") if is_there else "is missing"
        found.add(MANIFEST_FILE, text)
    for name in parts_there(folder):
        found.add_part(name, _check_part(folder / name, progress), found.num_samples)
    return found.result(_advice(found, [], None))


def parts_there(folder: Path) -> list[str]:
    """Return the names of the parts of a set whose manifest is lost; an empty list if a folder does not hold a set.

    The name of the set's index states the number of parts. If some of them are missing, the list ends with the first
    that is. Parts beyond that number were appended by a call that did not finish, and are not listed.
    """
    if not (folder / part_name(0)).is_dir():
        return []
    stated = [int(match[1]) for path in folder.iterdir() if (match := _SET_INDEX.fullmatch(path.name))]
    # While a dataset with one file becomes a set, its old files are still there.
    if not stated and any((folder / name).exists() for name in (DATA_FILE, INDEX_FILE)):
        return []
    num_there = sum(1 for _ in takewhile(lambda number: (folder / part_name(number)).is_dir(), count()))
    return [part_name(number) for number in range(min(max(stated), num_there + 1) if stated else num_there)]


def _check_part(folder: Path, progress: Callable[[int], None]) -> Findings:
    """Check a part; a part that is missing or not a dataset is a fault of the set."""
    try:
        return check_dataset(folder, progress)
    except NotFoundError:
        found = Findings(folder)
        found.add("", _LOST_PART)
    except (FormatError, CorruptError) as error:
        found = Findings(folder)
        found.add("", first_sentence(error, folder))
    found.files.setdefault(DATA_FILE)
    return found


def _place_of(theirs: Manifest, part: Part, manifest: Manifest) -> str:
    """Return the name under which the set knows the dataset in a part's folder; that of the folder if it knows none."""
    names = [other.name for other in manifest.parts if other.manifest_digest == theirs.manifest_digest]
    return part.name if part.name in names else next(iter(names), part.name)


def _judge(
    found: Findings, manifest: Manifest, part: Part, theirs: Manifest, differences: Sequence[str] | None
) -> None:
    """Add the contradictions between a set and a part that opens.

    Args:
        found: The findings of the set.
        manifest: The set's manifest.
        part: What this manifest states of the part.
        theirs: The part's manifest.
        differences: How the indices differ; None if the set's index is damaged.
    """
    facts = (theirs.num_samples, theirs.sizes.get("data_nbytes"))
    if facts != (part.num_samples, part.data_nbytes):
        found.add(
            part.name,
            f"has {counted(facts[0], 'sample')} and {facts[1]} bytes of data, expected "
            f"{part.num_samples} and {part.data_nbytes}",
        )
        found.is_mixed = True
    elif theirs.manifest_digest == part.manifest_digest:
        found.add(manifest.index_file, *(f"{text} from {part.name}'s" for text in differences or ()))
    elif differences is not None and not differences:
        found.add(MANIFEST_FILE, f"states another manifest of {part.name}, which has the same samples")
    else:
        found.add(
            part.name,
            f"is not the dataset that belongs to the set: the digest of its manifest is {theirs.manifest_digest}, "
            f"expected {part.manifest_digest}",
        )
        found.is_mixed = True


def _compare(index: Index, manifest: Manifest, part: Reader, first: int, begin: int) -> Iterator[str]:
    """Yield the differences between the index of a set and that of a part, a sentence for each column.

    Args:
        index, manifest: Those of the set.
        part: The part.
        first: The number of its first sample in the set.
        begin: What the set adds to the offsets of the part.
    """
    theirs = part.manifest
    if theirs.with_source != manifest.with_source or list(map(_kind, theirs.fields)) != list(
        map(_kind, manifest.fields)
    ):
        yield "its fields differ"
        return
    if first + len(part) > manifest.num_samples:
        yield "its rows end too early, and differ"
        return
    moved = {f.name for f in manifest.fields if f.holds_text and f.is_payload and not part.fields[f.name].is_payload}
    for name in index.column_names:
        field, _, _ = name.rpartition(".")
        if field not in moved and not all(_same(index, part.index, name, first, at, begin) for at in _starts(part)):
            yield f"its column {name!r} differs"
    for name in sorted(moved):
        if not all(_same_texts(index, part, name, first, at, begin) for at in _starts(part)):
            yield f"its columns of {name!r} differ"


def _kind(f: Field) -> tuple[Any, ...]:
    return f.name, f.kind, f.layout, f.tile_size, f.ignore_index, f.image


def _starts(part: Reader) -> range:
    return range(0, len(part), _ROWS_AT_ONCE)


def _same(index: Index, part: Index, name: str, first: int, at: int, begin: int) -> bool:
    """Return whether rows of a column equal those of the part, whose offsets grow by `begin`."""
    if name not in part.column_names:
        return False
    num_rows = min(_ROWS_AT_ONCE, part.batch.num_rows - at)
    if name not in index.columns:
        ours, theirs = (_texts(batch.column(name).slice(row, num_rows)) for batch, row in _at(index, part, first, at))
        return bool(ours.equals(theirs))
    ours = index.arrays[name][first + at : first + at + num_rows]
    theirs = part.arrays[name][at : at + num_rows] + (begin if name.endswith(".offset") else 0)
    return bool(np.array_equal(ours.view(np.uint8), theirs.astype(ours.dtype, copy=False).view(np.uint8)))


def _at(index: Index, part: Index, first: int, at: int) -> tuple[tuple[pa.RecordBatch, int], ...]:
    return (index.batch, first + at), (part.batch, at)


def _texts(column: pa.Array) -> pa.Array:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return plain.cast(pa.large_string())


def _same_texts(index: Index, part: Reader, name: str, first: int, at: int, begin: int) -> bool:
    """Return whether texts that the part has in its index are stored where the set's index says."""
    rows = np.arange(at, min(at + _ROWS_AT_ONCE, len(part)), dtype=np.int64)
    texts = [text.encode() for text in part.read_texts(name, rows)]
    nbytes, sums = np.array(list(map(len, texts)), np.int64), np.empty(len(texts), np.uint64)
    entries.hash_many(np.frombuffer(b"".join(texts), np.uint8), np.cumsum(nbytes) - nbytes, nbytes, sums)
    expected: dict[str, Any] = {"stored_nbytes": nbytes, "raw_nbytes": nbytes, "checksum": sums, "codec": CODEC_RAW}
    stated = {key: index.arrays[f"{name}.{key}"][first + at : first + at + len(rows)] for key in ("offset", *expected)}
    if not all(np.array_equal(stated[key], np.broadcast_to(values, len(rows))) for key, values in expected.items()):
        return False
    places = (stated["offset"] - begin).tolist()
    return all(part.data_file.read(place, len(text)) == text for place, text in zip(places, texts, strict=True))


def _advice(found: Findings, exchanged: list[str], manifest: Manifest | None) -> str:
    """Return the remedy for a set; empty if nothing is wrong."""
    if found.is_sound:
        return ""
    folder = found.folder
    missing = [file for file, text in found.problems if text.startswith(_LOST_PART) and not (folder / file).suffix]
    save = f"{command('repair', folder, 'OUT')} writes the samples that are sound into a new dataset, OUT, and lists"
    if exchanged:
        return f"Exchange the names of {' and '.join(exchanged[:2])}, and verify it again."
    if found.is_mixed:
        return (
            f"Put back the part that was replaced; or, if the parts are right, remove {MANIFEST_FILE}: "
            f"{command('repair', folder)} then makes a new one from them."
        )
    if missing:
        return f"Restore {missing[0]} from a copy, or convert again. {save} those that are missing."
    damaged = [file for file in found.files if file.endswith(f"/{DATA_FILE}")]
    if damaged:
        return f"{save} the others."
    if found.files:
        names = " and ".join(found.files)
        made = "" if manifest else ", and the index of the set,"
        return f"{command('repair', folder)} rebuilds {names}{made} from the data files."
    return "Its files contradict each other. Restore all of them from one copy, or convert again."
