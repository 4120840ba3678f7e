"""Finds the files of a dataset, or of a set, that `stage` copies, and those that an earlier copy already has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lmdbloader.base.disk_errors import naming
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.text import command
from lmdbloader.errors import CorruptError, DiskFullError, FormatError
from lmdbloader.format.digests import read_digest
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Manifest, Part
from lmdbloader.store import Reader, read_manifest
from lmdbloader.store.writing.ownership import is_own_file, open_own_file

# In nanoseconds: ext4's, NTFS's, and those of network and USB file systems.
_UNITS_OF_TIMES = (1, 100, 1000, 10**9, 2 * 10**9)

# For the file system's own records of a copy.
_SPARE_NBYTES = 2**20
# Without the notes, which may differ.
_OF_PART = (MANIFEST_FILE, INDEX_FILE, DATA_FILE)


def files_of(source: Reader, log: Callable[[str], None]) -> list[str]:
    """Return the names of the files of a dataset and of its parts, those with the data last.

    Raises:
        FormatError: A part is a link.
    """
    manifest = source.manifest
    for part in manifest.parts:
        if (source.path / part.name).is_symlink():
            raise FormatError(
                f"{source.path / part.name}: is a link, and links are not followed in a dataset that is copied. Put "
                f"the folder itself there, or make a dataset in one file: {command('merge', source.path, '-o', 'OUT')}."
            )
    folders = [f"{part.name}/" for part in manifest.parts]
    notes = []
    for name in [f"{folder}{name}" for folder in ("", *folders) for name in (LEFT_OUT_FILE, SKIPPED_FILE)]:
        if is_own_file(source.path / name):
            notes.append(name)
        elif os.path.lexists(source.path / name):
            log(f"{source.path / name}: is a link or not a regular file, and is not copied")
    of_parts = [f"{folder}{name}" for folder in folders for name in (MANIFEST_FILE, INDEX_FILE)]
    return [*notes, MANIFEST_FILE, manifest.index_file, *of_parts, *manifest.data_files]


def digests_of(source: Reader) -> dict[str, str]:
    """Return the digests that files must have, by name.

    Raises:
        CorruptError: A part is not the one that the set states.
    """
    manifest = source.manifest
    if not manifest.parts:
        return {DATA_FILE: manifest.data_digest}
    found: dict[str, str] = {}
    for part, theirs in zip(manifest.parts, _manifests(source.path, manifest), strict=True):
        found |= {f"{part.name}/{INDEX_FILE}": theirs.index_digest, f"{part.name}/{DATA_FILE}": theirs.data_digest}
    return found


def _manifests(folder: Path, manifest: Manifest) -> Iterator[Manifest]:
    """Yield the manifests of the parts of a set."""
    for part in manifest.parts:
        theirs = read_manifest(folder / part.name)
        if theirs.manifest_digest != part.manifest_digest:
            raise CorruptError(
                f"{folder / part.name}: is not the part that the set states. {command('verify', folder)} suggests "
                "remedies.",
                path=str(folder),
            )
        yield theirs


def open_file(source: Reader, name: str) -> int:
    """Return a descriptor of a file; of data, the one that was opened and checked, even if it was replaced since."""
    names = source.manifest.data_files
    if name in names:
        return os.dup(source.data_file.files[names.index(name)].descriptor)
    return open_own_file(source.path / name)


def compare(source: Reader, copy: Reader, *, check: bool, log: Callable[[str], None]) -> None:
    """Compare the data files of a copy that is there, by their times, or with `check` by their digests.

    Args:
        source: What is staged.
        copy: With the same manifest.
        check: Whether to read all of them.
        log: Called with each message.

    Raises:
        CorruptError: A file of the copy is another one.
    """
    names = copy.manifest.data_files
    pairs = list(zip(names, source.data_file.files, copy.data_file.files, strict=True))
    if changed := [each for each in pairs if check or not has_time(each[2].descriptor, time_of(each[1].descriptor))]:
        log(f"{copy.path}: reading and comparing the copy that is already there")
        digests = digests_of(source)
        for name, theirs, ours in changed:
            compare_digest(copy.path / name, ours.descriptor, digests[name])
            with suppress(OSError):  # the copy of another user is read each time
                set_time(copy.path / name, time_of(theirs.descriptor))
    for _ in _manifests(copy.path, copy.manifest):
        pass


def compare_digest(path: Path, descriptor: int, expected: str) -> None:
    """Raise CorruptError unless a file has a digest."""
    with naming(path):
        found = read_digest(descriptor)
    if found != expected:
        raise CorruptError(f"{path}: its digest is {found}, expected {expected}.", path=str(path.parent))


def has_data(source: Reader, partial: Path) -> bool:
    """Return whether the data files of a copy, and its parts, are those that the manifest of the source states."""
    manifest = source.manifest
    lengths = [(partial / name).stat().st_size for name in manifest.data_files]
    try:
        list(_manifests(partial, manifest))
    except (CorruptError, FormatError):
        return False
    return lengths == ([part.data_nbytes for part in manifest.parts] or [manifest.sizes["data_nbytes"]])


def is_earlier(manifest: Manifest, target: Path) -> bool:
    """Return whether a folder has a copy of a dataset, sound or damaged, or of the one that it was before it grew.

    A dataset that has one data.mdb becomes the first part of a set when it grows.
    """
    try:
        there = read_manifest(target)
    except (FormatError, OSError):
        return False
    if there.manifest_digest == manifest.manifest_digest:
        return True
    parts = manifest.parts
    if not there.parts:
        return bool(parts) and parts[0].manifest_digest == there.manifest_digest
    return len(there.parts) < len(parts) and there.parts == parts[: len(there.parts)]


def keep_parts(
    manifest: Manifest,
    times: Sequence[int | None],
    target: Path,
    partial: Path,
    digests: Mapping[str, str],
    *,
    check: bool,
) -> list[str]:
    """Give the parts of an earlier copy that are sound and still needed a second name in a new one.

    Args:
        manifest: Of what is staged.
        times: Of its data files, in nanoseconds; None if they are unknown.
        target: Where the earlier copy may be.
        partial: Where the new one is made.
        digests: Of `digests_of`.
        check: Whether to read their data, besides looking at its time.

    Returns:
        The names of the files that need not be copied.
    """
    kept: list[str] = []
    parts = manifest.parts
    if not parts or not is_earlier(manifest, target):
        return kept
    folders = [target / part.name for part in parts]
    if not read_manifest(target).parts:
        folders[0] = target
    for part, time_ns, folder in zip(parts, times, folders, strict=True):
        with suppress(OSError, FormatError, CorruptError):
            if _is_sound(folder, part, time_ns, manifest, digests, check):
                _link(folder, partial / part.name)
                kept += [f"{part.name}/{name}" for name in _OF_PART]
    return kept


def _is_sound(
    folder: Path, part: Part, time_ns: int | None, manifest: Manifest, digests: Mapping[str, str], check: bool
) -> bool:
    """Return whether a folder of an earlier copy holds a part; raise CorruptError or OSError if it is damaged."""
    if read_manifest(folder).manifest_digest != part.manifest_digest:
        return False
    for name in (INDEX_FILE, DATA_FILE):
        descriptor = open_own_file(folder / name)
        try:
            if name == DATA_FILE and os.fstat(descriptor).st_size != part.data_nbytes:
                return False
            if name == INDEX_FILE or check or time_ns is None or not has_time(descriptor, time_ns):
                compare_digest(folder / name, descriptor, digests[f"{part.name}/{name}"])
        finally:
            os.close(descriptor)
    return True


def _link(folder: Path, part: Path) -> None:
    """Hard-link the files of a part, all of them or none."""
    part.mkdir(exist_ok=True)
    try:
        for name in _OF_PART:
            os.link(folder / name, part / name)
    except OSError:  # a file system without hard links
        for name in _OF_PART:
            (part / name).unlink(missing_ok=True)
        raise


def check_room(partial: Path, folder: Path, source: Path | str, nbytes: int, others: str) -> None:
    """Raise DiskFullError if a disk has no room for a copy.

    Args:
        partial: Where the files go.
        folder: Its name in messages.
        source: What is copied.
        nbytes: Of all files.
        others: What to do if no space can be freed.
    """
    needed, free = nbytes + _SPARE_NBYTES, free_nbytes(partial)
    if free is not None and free < needed:
        raise DiskFullError(
            f"{folder}: {source} takes {needed / 2**20:,.1f} MiB, {_SPARE_NBYTES / 2**20:.1f} of them to spare for the "
            f"file system, and {free / 2**20:,.1f} MiB are free: {(needed - free) / 2**20:,.1f} MiB are missing. Free "
            f"some space, {others}"
        )


def time_of(descriptor: int) -> int:
    """Return the time of a file's last change in nanoseconds."""
    return os.fstat(descriptor).st_mtime_ns


def times_of(source: Reader) -> list[int | None]:
    """Return the times of the data files of a dataset."""
    return [time_of(file.descriptor) for file in source.data_file.files]


def set_time(path: Path, time_ns: int) -> None:
    """Set the time of a file's last change."""
    os.utime(path, ns=(time_ns, time_ns))


def has_time(descriptor: int, time_ns: int) -> bool:
    """Return whether a file has a timestamp, with the precision of its file system."""
    found = time_of(descriptor)
    return any(found % unit == 0 and found == time_ns - time_ns % unit for unit in _UNITS_OF_TIMES)


def set_times(source: Reader, partial: Path) -> None:
    """Give the data files of a copy the times of the source's, by which they are known."""
    for name, file in zip(source.manifest.data_files, source.data_file.files, strict=True):
        set_time(partial / name, time_of(file.descriptor))
