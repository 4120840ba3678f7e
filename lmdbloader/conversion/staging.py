"""`lmdbloader.stage`: a checked copy of a dataset in another folder, made once for all jobs there."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url, new_path, path_text
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import command, counted, plain
from lmdbloader.conversion.destination import named_folder, refuse_inside
from lmdbloader.conversion.staging_parts import (
    check_room,
    compare,
    digests_of,
    files_of,
    has_data,
    is_earlier,
    keep_parts,
    open_file,
    set_times,
    times_of,
)
from lmdbloader.errors import CorruptError, DestinationError, FormatError, LockedError, OptionError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import DigestName, new_file_digest
from lmdbloader.format.layout import MANIFEST_FILE
from lmdbloader.store import Reader, check_destination, open_reader, partial_folder, put_in_place, read_manifest
from lmdbloader.store.writing.ownership import open_own_file
from lmdbloader.store.writing.publish import flush

if TYPE_CHECKING:
    from lmdbloader.conversion.staging_urls import RemoteSource

_PIECE_NBYTES = 8 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.5


def stage(
    db: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    check: bool = False,
    timeout: float | None = None,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Copy a finished dataset into a folder, unless it is there already.

    Every byte of the copy is read back and compared with the source. The copy gets its name when it is complete. Of
    several processes that stage at once, one copies, and the others wait and use its copy.

    A copy that is there must have the manifest, the index and the size of the source. If the time of its data file is
    not the one that `stage` gave it, the source's, something has changed it since: it is read, and compared with the
    manifest's digest. A copy that is damaged is replaced.

    Of a set that has grown since it was staged, only the new parts are copied: the parts of the earlier copy get their
    names in the new one.

    Args:
        db: The dataset, or its URL.
        directory: The folder for the copy, which keeps the dataset's name; made if only its last part is missing.
        overwrite: Replace another dataset that has its name there.
        check: Read and compare an existing copy, even if its timestamp is the source's.
        timeout: Seconds to wait for a process that is copying; without limit by default.
        progress: Show the progress: a line on a terminal, in a log one every 30 seconds.
        log: Called with each message, a line of text.

    Returns:
        The path of the copy.

    Raises:
        NotFoundError: `db` does not exist.
        FormatError: `db` is not a finished dataset of this format version.
        CorruptError: A file of `db` is damaged or cut short, or the copy differs from it.
        DestinationError: Another dataset, or something else, has the name there, or `directory` cannot be made.
        LockedError: Another process was still copying after `timeout`.
        DiskFullError: There is too little free space; this is checked before copying.
        DiskError: The service at a URL does not answer.
        OptionError: `timeout` is negative, or `directory` is empty text.
    """
    if timeout is not None and not timeout >= 0:
        raise OptionError(f"{option('timeout', timeout)}: expected seconds, 0 or more")
    if not os.fspath(directory):
        raise OptionError("the folder to stage into is an empty string. Is its environment variable set?")
    source = _open(db)
    folder = new_path("directory", directory).absolute()
    target = folder / (source.path.name if isinstance(source, Reader) else source.name)
    if isinstance(source, Reader):
        if target.exists() and os.path.samefile(target, source.path):
            return target
        refuse_inside(target, source.path)
    _make_folder(folder)
    until = None if timeout is None else time.monotonic() + timeout
    is_waiting = False
    while True:
        if _is_staged(source, target, check, log):
            log(plain(f"{target}: staged already"))
            return target
        try:
            with explain_full_disk(target), partial_folder(target, log=log) as partial:
                # The process that held the lock a moment ago may have put the copy in place.
                if not _is_staged(source, target, check, log):
                    check_destination(target, overwrite=overwrite or is_earlier(source.manifest, target))
                    if isinstance(source, Reader):
                        _fill(source, partial, target, progress, log, check)
                    else:
                        source.fill(partial, target, functools.partial(_progress, progress), log, check=check)
                        put_in_place(partial, target)
            return target
        except LockedError as error:
            if until is not None and time.monotonic() >= until:
                raise LockedError(f"{error} Waited {timeout:g} s for it.") from error
            if not is_waiting:
                log(plain(f"{target}: waiting; {error}"))
            is_waiting = True
            left = _SECONDS_BETWEEN_LOOKS if until is None else until - time.monotonic()
            time.sleep(max(0.0, min(_SECONDS_BETWEEN_LOOKS, left)))


def _open(db: str | os.PathLike[str]) -> Reader | RemoteSource:
    """Return what is staged: a dataset on a disk, or at a URL."""
    text = path_text("db", db)
    if is_url(text):
        from lmdbloader.conversion.staging_urls import RemoteSource

        return RemoteSource(text)
    return open_reader(named_folder(db))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        why = "its parent does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        raise DestinationError(f"{folder}: cannot be made ({why}). Create it first, or name another folder.") from error


def _is_same_dataset(source: Reader | RemoteSource, target: Path) -> bool:
    """Return whether a dataset, sound or damaged, has the manifest of the source."""
    try:
        return read_manifest(target).manifest_digest == source.manifest.manifest_digest
    except (FormatError, OSError):
        return False


def _is_staged(source: Reader | RemoteSource, target: Path, check: bool, log: Callable[[str], None]) -> bool:
    """Return whether there is a sound copy, by manifest, sizes, the index's digest, and the data's time or digest."""
    if not _is_same_dataset(source, target):
        return False
    try:
        copy = open_reader(target)
        if isinstance(source, Reader):
            compare(source, copy, check=check, log=lambda line: log(plain(line)))
        else:
            source.compare(copy, check=check, log=lambda line: log(plain(line)))
    except (CorruptError, FormatError, OSError) as error:
        log(plain(f"{target}: a copy is there, but damaged; it is copied again. {error}"))
        return False
    return True


def _fill(source: Reader, partial: Path, target: Path, progress: bool, log: Callable[[str], None], check: bool) -> None:
    """Copy every file of a dataset, check the copy and put it in place."""
    digests = digests_of(source)
    kept = keep_parts(source.manifest, times_of(source), target, partial, digests, check=check)
    if kept:
        of = f"{len(kept) // 3} of {counted(len(source.manifest.parts), 'part')}"
        log(plain(f"{target}: keeps {of} of the copy that is there"))
    names = [name for name in files_of(source, log) if name not in kept]
    nbytes = sum(_size(source.path / name) for name in names)
    check_room(partial, target.parent, source.path, nbytes, "or stage into another folder.")
    log(plain(f"{target}: copying {nbytes / 2**20:,.1f} MiB from {source.path}"))
    began = time.monotonic()
    with (
        ProgressLine("copying and reading back", 2 * nbytes, "B", shown=progress) as bar,
        explain_full_disk(partial, lambda: nbytes - sum(map(_made, (partial / name for name in names)))),
    ):
        for name in names:
            (partial / name).parent.mkdir(exist_ok=True)
            descriptor = open_file(source, name)
            try:
                sums, digest = _copy(descriptor, source.path / name, partial / name, source.manifest.digest, bar)
            finally:
                os.close(descriptor)
            if (expected := digests.get(name, "")) not in ("", digest):
                raise CorruptError(
                    f"{source.path / name}: its digest is {digest}, expected {expected}: it was changed after it was "
                    f"written, and is not copied. {command('verify', source.path)} says what is damaged.",
                    path=str(source.path),
                )
            _compare(partial / name, sums, source.path / name, bar)
        _check_copy(source, partial)
        set_times(source, partial)
        put_in_place(partial, target)
    log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))


def _made(path: Path) -> int:
    """Return how much of a file is copied."""
    return path.stat().st_size if path.exists() else 0


def _size(path: Path) -> int:
    """Return the size of a dataset's own file, which must not be a link."""
    descriptor = open_own_file(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _copy(descriptor: int, source: Path, out: Path, digest: DigestName, bar: Any) -> tuple[list[int], str]:
    """Copy a file, `source` in messages; return the checksum of each piece, and the digest of the whole."""
    room = memoryview(bytearray(_PIECE_NBYTES))
    sums, at = [], 0
    running = new_file_digest(digest)
    with open(out, "xb", buffering=0) as file:
        while nbytes := _read(descriptor, source, room, at):
            piece = room[:nbytes]
            sums.append(checksum(piece))
            running.update(piece)
            with naming(out):
                while piece:
                    piece = piece[file.write(piece) or 0 :]
            at += nbytes
            bar.update(nbytes)
    return sums, str(running)


def _read(descriptor: int, path: Path, room: memoryview, at: int) -> int:
    """Fill a buffer from a place in a file; return the number of bytes."""
    filled = 0
    with naming(path):
        while filled < len(room) and (count := system.read_into(descriptor, room[filled:], at + filled)):
            filled += count
    return filled


def _compare(copy: Path, sums: list[int], source: Path, bar: Any) -> None:
    """Read a copy back, from the disk if the system drops its pages, and compare it piece by piece."""
    flush(copy)
    room = memoryview(bytearray(_PIECE_NBYTES))
    descriptor = system.open_to_read(copy)
    try:
        with naming(copy):
            system.drop_cache(descriptor)
        for number in range(len(sums) + 1):
            nbytes = _read(descriptor, copy, room, number * _PIECE_NBYTES)
            found = [checksum(room[:nbytes])] if nbytes else []
            if found != sums[number : number + 1]:
                raise CorruptError(
                    f"{copy}: the copy as read back differs from {source} after byte {number * _PIECE_NBYTES}: the "
                    "disk or the memory damaged it. The copy was removed; look at the system log before trying again."
                )
            bar.update(nbytes)
    finally:
        os.close(descriptor)


def _check_copy(source: Reader, partial: Path) -> None:
    """Raise CorruptError unless the files belong together: the source may have been replaced while copying."""
    from lmdbloader.format.manifest import parse_manifest
    from lmdbloader.store.index import Index
    from lmdbloader.store.opening import map_file

    with naming(partial / MANIFEST_FILE):
        manifest = parse_manifest((partial / MANIFEST_FILE).read_bytes(), str(partial / MANIFEST_FILE))
    changed = manifest.manifest_digest != source.manifest.manifest_digest or not has_data(source, partial)
    if not changed:
        try:
            Index(partial, manifest, manifest.sizes["data_nbytes"], map_file(partial / manifest.index_file))
        except CorruptError:
            changed = True
    if changed:
        raise CorruptError(f"{source.path}: was changed while it was copied. Stage it again.")


def _progress(shown: bool, nbytes: int) -> ProgressLine:
    """Return the progress of a download."""
    return ProgressLine("copying", nbytes, "B", shown=shown)
