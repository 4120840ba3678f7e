"""`lmdbloader.stage`: a checked copy of a dataset in another folder, made once for all jobs there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from lmdbloader.base import system
from lmdbloader.base.arguments import flag, is_url, new_path, path_text
from lmdbloader.base.disk_errors import explain_full_disk, naming
from lmdbloader.base.free_space import free_nbytes
from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.conversion.destination import named_folder, refuse_inside
from lmdbloader.errors import CorruptError, DestinationError, DiskFullError, FormatError, LockedError, OptionError
from lmdbloader.format.digests import Digest, read_digest
from lmdbloader.format.layout import INDEX_FILE, LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import check_destination, open_reader, read_manifest
from lmdbloader.store.writing.work import Work, link, own_tag, partial_of, put_in_place, remove_work, write_file

_PIECE_NBYTES = 8 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.5


class Origin(Protocol):
    """What is staged: a dataset on a disk or at a URL."""

    place: str
    name: str
    manifest: Manifest

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file; nothing for notes that the dataset does not have."""
        ...


class _Local:
    """A dataset on a disk."""

    def __init__(self, folder: Path) -> None:
        reader = open_reader(folder)
        self.place, self.name, self.manifest, self._folder = reader.place, reader.path.name, reader.manifest, folder

    def pieces(self, name: str) -> Iterator[bytes]:
        if name in (SKIPPED_FILE, LEFT_OUT_FILE) and not (self._folder / name).is_file():
            return
        descriptor = system.open_to_read(self._folder / name)
        try:
            at = 0
            with naming(self._folder / name):
                while piece := system.read_at(descriptor, _PIECE_NBYTES, at):
                    yield piece
                    at += len(piece)
        finally:
            os.close(descriptor)


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

    The digest of every file is compared while it is read, and again of the copy as read back. The copy gets its name
    when it is complete. Of several processes that stage at once, one copies, and the others wait and use its copy. A
    copy that was interrupted continues with the next file. Of a dataset that has grown since it was staged, only the
    new parts are copied.

    A copy that is there is used if it has the manifest of the source, and files of its lengths.

    Args:
        db: The dataset, or its URL.
        directory: The folder for the copy, which keeps the dataset's name; made if only its last part is missing.
        overwrite: Replace another dataset that has its name there.
        check: Read an existing copy, compare its digests, and copy again what differs.
        timeout: Seconds to wait for a process that is copying; without limit by default.
        progress: Show a progress bar on a terminal, in a log a line every 30 seconds.
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
    overwrite, check, progress = flag("overwrite", overwrite), flag("check", check), flag("progress", progress)
    if timeout is not None and not timeout >= 0:
        raise OptionError(f"{option('timeout', timeout)}: expected seconds, 0 or more")
    if not os.fspath(directory):
        raise OptionError("the folder to stage into is an empty string. Is its environment variable set?")
    origin = _open(db)
    folder = new_path("directory", directory).absolute()
    target = folder / origin.name
    if isinstance(origin, _Local):
        if target.exists() and os.path.samefile(target, origin.place):
            return target
        refuse_inside(target, Path(origin.place))
    _make_folder(folder)
    with _alone(target, timeout, log):
        if _is_staged(origin, target, check, log):
            log(plain(f"{target}: staged already"))
            return target
        has_grown = _is_same_at_start(origin.manifest, target)
        check_destination(target, overwrite=overwrite or has_grown)
        _fill(origin, target, progress, log, overwrite=True)
    return target


def _open(db: str | os.PathLike[str]) -> Origin:
    text = path_text("db", db)
    if is_url(text):
        from lmdbloader.conversion.staging_urls import RemoteOrigin

        origin: Origin = RemoteOrigin(text)
        return origin
    return _Local(named_folder(db))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        why = "its parent does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        raise DestinationError(f"{folder}: cannot be made ({why}). Create it first, or name another folder.") from error


@contextmanager
def _alone(target: Path, timeout: float | None, log: Callable[[str], None]) -> Iterator[None]:
    """Wait for other processes that stage the same dataset; where there are no locks, each makes its own copy."""
    until = None if timeout is None else time.monotonic() + timeout
    place = target.with_name(f".{target.name}.lock")
    with open(place, "ab") as file:
        is_waiting = False
        while True:
            try:
                system.lock(file.fileno())
                break
            except BlockingIOError:
                if until is not None and time.monotonic() >= until:
                    raise LockedError(
                        f"{target}: another process is copying it. Waited {timeout:g} s for it."
                    ) from None
                if not is_waiting:
                    log(plain(f"{target}: waiting; another process is copying it"))
                is_waiting = True
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            except OSError:
                break
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def _is_staged(origin: Origin, target: Path, check: bool, log: Callable[[str], None]) -> bool:
    """Return whether there is a copy, by manifest and sizes, and if need be by its digests."""
    try:
        if read_manifest(target).manifest_digest != origin.manifest.manifest_digest:
            return False
        open_reader(target)
        if check:
            log(plain(f"{target}: reading the copy that is there"))
            for name, expected in _digests(origin.manifest).items():
                _compare(target / name, expected)
    except (CorruptError, FormatError, OSError) as error:
        if target.exists():
            log(plain(f"{target}: a copy is there, but damaged; it is copied again. {error}"))
        return False
    return True


def _is_same_at_start(manifest: Manifest, target: Path) -> bool:
    """Return whether a dataset is the one that has the manifest, damaged or before it has grown."""
    try:
        there = read_manifest(target)
    except (FormatError, CorruptError, OSError):
        return False
    return there.parts == manifest.parts[: len(there.parts)]


def _digests(manifest: Manifest) -> dict[str, str]:
    """Return the digests of the large files of a dataset, by their names."""
    parts = zip(manifest.data_files, manifest.parts, strict=True)
    return {INDEX_FILE: manifest.index_digest, **{name: part.data_digest for name, part in parts}}


def _fill(origin: Origin, target: Path, progress: bool, log: Callable[[str], None], *, overwrite: bool) -> None:
    """Copy every file that is not there yet, and put the copy in place."""
    began, partial, manifest = time.monotonic(), partial_of(target), origin.manifest
    partial.mkdir(exist_ok=True)
    if not _belongs(partial, manifest):
        Work(target)  # refuses files that are of no dataset
        for path in partial.iterdir():
            if path.is_dir():
                raise DestinationError(f"{partial}: holds {path.name!r}, which is not of a copy. Move it away.")
        for path in partial.iterdir():  # of an earlier version of the dataset
            path.unlink()
    write_file(partial / MANIFEST_FILE, manifest.to_json())
    digests, sizes = _digests(manifest), {INDEX_FILE: manifest.sizes["index_nbytes"]}
    sizes |= {name: part.data_nbytes for name, part in zip(manifest.data_files, manifest.parts, strict=True)}
    _keep_parts(manifest, target, partial, log)
    names = [name for name in digests if not _has_size(partial / name, sizes[name])]
    nbytes = sum(sizes[name] for name in names)
    free = free_nbytes(partial)
    if free is not None and nbytes > free:
        raise DiskFullError(
            f"{target}: {show_nbytes(nbytes)} are to be copied, and {show_nbytes(free)} are free: "
            f"{show_nbytes(nbytes - free)} are missing. Free some space, or stage into another folder."
        )
    log(plain(f"{target}: copying {show_nbytes(nbytes)} from {origin.place}"))
    with ProgressLine("copying", nbytes, "B", shown=progress) as bar, explain_full_disk(partial, lambda: nbytes):
        for name in names:
            fresh = partial / f"{name}.new-{own_tag()}"
            try:
                _copy(origin, name, fresh, digests[name], bar)
                os.replace(fresh, partial / name)
            finally:
                fresh.unlink(missing_ok=True)
        for name in (SKIPPED_FILE, LEFT_OUT_FILE):
            if content := b"".join(origin.pieces(name)):
                (partial / name).write_bytes(content)
        put_in_place(partial, target, overwrite=overwrite)
    remove_work(target)
    log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))


def _belongs(partial: Path, manifest: Manifest) -> bool:
    """Return whether an interrupted copy is of the same dataset."""
    try:
        return (partial / MANIFEST_FILE).read_bytes() == manifest.to_json()
    except OSError:
        return False


def _has_size(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except OSError:
        return False


def _keep_parts(manifest: Manifest, target: Path, partial: Path, log: Callable[[str], None]) -> None:
    """Take the parts of an earlier copy that the dataset still has."""
    try:
        there = read_manifest(target)
    except (FormatError, CorruptError, OSError):
        return
    has = {part.data_digest: name for name, part in zip(there.data_files, there.parts, strict=True)}
    kept = 0
    for name, part in zip(manifest.data_files, manifest.parts, strict=True):
        if part.data_digest in has and not (partial / name).exists():
            try:
                _compare(target / has[part.data_digest], part.data_digest)
            except (CorruptError, OSError):
                continue
            link(target / has[part.data_digest], partial / name)
            kept += 1
    if kept:
        log(plain(f"{target}: keeps {kept} of {len(manifest.parts)} parts of the copy that is there"))


def _copy(origin: Origin, name: str, out: Path, expected: str, bar: Any) -> None:
    """Copy a file; compare its digest while it is read, and that of the copy as read back."""
    digest = Digest()
    with open(out, "xb", buffering=0) as file:
        for piece in origin.pieces(name):
            digest.update(piece)
            view = memoryview(piece)
            with naming(out):
                while view:
                    view = view[file.write(view) or 0 :]
            bar.update(len(piece))
    if str(digest) != expected:
        raise CorruptError(
            f"{origin.place}/{name}: its digest is {digest}, expected {expected}: it was changed after it was written, "
            "and is not copied.",
            path=origin.place,
        )
    system.flush_path(out)
    _compare(out, expected)


def _compare(path: Path, expected: str) -> None:
    """Compare the digest of a file, read from the disk if the system drops its pages.

    Raises:
        CorruptError: It is another one.
    """
    descriptor = system.open_to_read(path)
    try:
        with naming(path):
            system.drop_cache(descriptor)
            found = read_digest(descriptor)
    finally:
        os.close(descriptor)
    if found != expected:
        raise CorruptError(
            f"{path}: the copy's digest is {found}, expected {expected}: the disk or the memory damaged it, or it was "
            "changed. Look at the system log before trying again.",
            path=str(path.parent),
        )
