"""`lmdbloader.stage`: a checked copy of a dataset in another folder, made once for all jobs there, or at a URL."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from lmdbloader.format.digests import digest_from_disk
from lmdbloader.format.layout import LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import check_destination, open_reader, read_manifest
from lmdbloader.store.writing.work import Work, link, own_tag, partial_of, put_in_place, remove_work, write_file

_PIECE_NBYTES = 8 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.5


class _Local:
    """A dataset on a disk."""

    def __init__(self, folder: Path) -> None:
        reader = open_reader(folder)
        self.place, self.name, self.manifest, self._folder = reader.place, reader.path.name, reader.manifest, folder

    def copy(self, name: str, out: Path, done: Callable[[int], object]) -> None:
        """Copy a file of the dataset; `done` is called with the bytes of each piece.

        Raises:
            FileNotFoundError: The dataset does not have it.
        """
        source = self._folder / name
        with open(source, "rb", buffering=0) as file, open(out, "xb") as copy, naming(source):
            while piece := file.read(_PIECE_NBYTES):
                with naming(out):
                    copy.write(piece)
                    copy.flush()
                done(len(piece))


class _Remote:
    """A dataset at a URL."""

    def __init__(self, url: str) -> None:
        from lmdbloader.store.remote.opening import describe
        from lmdbloader.store.remote.service import Service

        self._service = Service(url)
        self.place = self._service.url
        self.name = self.place.partition("://")[2].rpartition("/")[2]
        if self.name in ("", ".", ".."):
            raise OptionError(
                f"{url}: has no name for the copy; expected the URL of a folder, such as s3://bucket/train.lmdb"
            )
        self.manifest, _ = describe(self._service)

    def copy(self, name: str, out: Path, done: Callable[[int], object]) -> None:
        """Copy a file of the dataset, see `_Local.copy`."""
        self._service.size(name)  # nothing is left of a file that the dataset does not have
        with open(out, "xb") as copy, naming(out):
            for piece in self._service.pieces(name):
                copy.write(piece)
                done(len(piece))


def stage(
    db: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    check: bool = False,
    timeout: float | None = None,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Path | str:
    """Copy a finished dataset into a folder, or upload it to a URL, unless it is there already.

    The digest of every file of the copy is compared, as read back from the disk. The copy gets its name when it is
    complete. Of several processes that stage at once, one copies, and the others wait and use its copy. A copy that was
    interrupted continues with the next file. Of a dataset that has grown since it was staged, only the new parts are
    copied.

    A copy that is there is used if it has the manifest of the source, and files of its lengths.

    At a URL, the manifest is the last file that arrives, so nobody opens an incomplete dataset. The digest of each file
    is compared before it is uploaded; afterwards its length is. Readers compare digests and checksums, as everywhere.

    Args:
        db: The dataset, or its URL.
        directory: The folder for the copy, which keeps the dataset's name; made if only its last part is missing. Or
            the URL of the copy, "s3://bucket/train.lmdb", or of its folder, "s3://bucket/", in anything that fsspec can
            write.
        overwrite: Replace another dataset that is there.
        check: Read an existing copy, compare its digests, and copy again what differs.
        timeout: Seconds to wait for a process that is copying into a folder; without limit by default.
        progress: Show a progress bar on a terminal, in a log a line every 30 seconds.
        log: Called with each message, a line of text.

    Returns:
        The path of the copy, or its URL.

    Raises:
        NotFoundError: `db` does not exist.
        FormatError: `db` is not a finished dataset of this format version.
        CorruptError: A file of `db` is damaged or cut short, or the copy differs from it.
        DestinationError: Another dataset, or something else, has the name there, or `directory` cannot be made, or
            another process uploads there.
        LockedError: Another process was still copying after `timeout`.
        DiskFullError: There is too little free space; this is checked before copying.
        DiskError: The service at a URL does not answer, or denies access.
        OptionError: `timeout` is negative, `directory` is empty text or the URL of a web server, or both are URLs.
    """
    overwrite, check, progress = flag("overwrite", overwrite), flag("check", check), flag("progress", progress)
    if timeout is not None and not timeout >= 0:
        raise OptionError(f"{option('timeout', timeout)}: expected seconds, 0 or more")
    if not os.fspath(directory):
        raise OptionError("the folder to stage into is an empty string. Is its environment variable set?")
    text = path_text("db", db)
    if is_url(to := path_text("directory", directory)):
        if is_url(text):
            raise OptionError(f"{to}: a dataset is uploaded from a disk. Stage {text} into a folder first.")
        from lmdbloader.conversion.uploading import upload

        source = named_folder(db)
        if to.endswith("/") and to.partition("://")[2].strip("/"):  # a folder there
            to += source.name
        manifest = open_reader(source).manifest
        return upload(source, manifest, to, overwrite=overwrite, check=check, progress=progress, log=log)
    origin = _Remote(text) if is_url(text) else _Local(named_folder(db))
    folder = new_path("directory", directory).absolute()
    target = folder / origin.name
    if isinstance(origin, _Local):
        if target.exists() and os.path.samefile(target, origin.place):
            return target
        refuse_inside(target, Path(origin.place))
    _make_folder(folder)
    with _alone(target, timeout, log):
        there = _manifest_of(target)
        if there is not None and _is_staged(origin.manifest, there, target, check, log):
            log(plain(f"{target}: staged already"))
            return target
        has_grown = there is not None and there.parts == origin.manifest.parts[: len(there.parts)]
        check_destination(target, overwrite=overwrite or has_grown)
        _fill(origin, target, there, progress, log)
    return target


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


def _manifest_of(folder: Path) -> Manifest | None:
    """Return the manifest of a dataset, None if there is none that can be read."""
    try:
        return read_manifest(folder)
    except (FormatError, CorruptError, OSError):
        return None


def _is_staged(manifest: Manifest, there: Manifest, target: Path, check: bool, log: Callable[[str], None]) -> bool:
    """Return whether a copy is one of the dataset, by manifest and sizes, and if need be by its digests."""
    if there.manifest_digest != manifest.manifest_digest:
        return False
    try:
        open_reader(target)
        if check:
            log(plain(f"{target}: reading the copy that is there"))
            for name, (expected, _) in manifest.files.items():
                _compare(target / name, expected)
    except (CorruptError, FormatError, OSError) as error:
        log(plain(f"{target}: a copy is there, but damaged; it is copied again. {error}"))
        return False
    return True


def _fill(
    origin: _Local | _Remote, target: Path, there: Manifest | None, progress: bool, log: Callable[[str], None]
) -> None:
    """Copy every file that is not there yet, and put the copy in place."""
    began, partial, manifest = time.monotonic(), partial_of(target), origin.manifest
    if partial.exists() and _content(partial / MANIFEST_FILE) != manifest.to_json():
        Work(target).discard()  # of another dataset, or of an earlier version; other files are refused
    partial.mkdir(exist_ok=True)
    write_file(partial / MANIFEST_FILE, manifest.to_json())
    if there is not None:
        _keep_parts(manifest, there, target, partial, log)
    missing = {name: file for name, file in manifest.files.items() if not _has_size(partial / name, file[1])}
    nbytes = sum(size for _, size in missing.values())
    free = free_nbytes(partial)
    if free is not None and nbytes > free:
        raise DiskFullError(
            f"{target}: {show_nbytes(nbytes)} are to be copied, and {show_nbytes(free)} are free: "
            f"{show_nbytes(nbytes - free)} are missing. Free some space, or stage into another folder."
        )
    log(plain(f"{target}: copying {show_nbytes(nbytes)} from {origin.place}"))
    with ProgressLine("copying", nbytes, "B", shown=progress) as bar, explain_full_disk(partial, lambda: nbytes):
        for name, (digest, _) in missing.items():
            _copy(origin, name, partial / name, digest, bar.update)
        for name in (SKIPPED_FILE, LEFT_OUT_FILE):
            (partial / name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # the dataset has no such notes
                origin.copy(name, partial / name, lambda nbytes: None)
        put_in_place(partial, target, overwrite=True)
    Work(target).discard()
    remove_work(target)
    log(plain(f"{target}: copied and checked in {time.monotonic() - began:.1f} s"))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _has_size(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except OSError:
        return False


def _keep_parts(manifest: Manifest, there: Manifest, target: Path, partial: Path, log: Callable[[str], None]) -> None:
    """Take the parts of an earlier copy that the dataset still has."""
    has = {part.data_digest: name for name, part in zip(there.data_files, there.parts, strict=True)}
    kept = 0
    for name, part in zip(manifest.data_files, manifest.parts, strict=True):
        if part.data_digest in has and not (partial / name).exists():
            with contextlib.suppress(CorruptError, OSError):
                _compare(target / has[part.data_digest], part.data_digest)
                link(target / has[part.data_digest], partial / name)
                kept += 1
    if kept:
        log(plain(f"{target}: keeps {kept} of {len(manifest.parts)} parts of the copy that is there"))


def _copy(origin: _Local | _Remote, name: str, out: Path, expected: str, done: Callable[[int], object]) -> None:
    """Copy a file, and compare the digest of the copy as read back."""
    fresh = out.with_name(f"{name}.new-{own_tag()}")
    try:
        origin.copy(name, fresh, done)
        system.flush_path(fresh)
        _compare(fresh, expected)
        os.replace(fresh, out)
    finally:
        fresh.unlink(missing_ok=True)


def _compare(path: Path, expected: str) -> None:
    """Compare the digest of a file, read from the disk if the system drops its pages.

    Raises:
        CorruptError: It is another one.
    """
    found = digest_from_disk(path)
    if found != expected:
        raise CorruptError(
            f"{path}: the copy's digest is {found}, expected {expected}: the original or the copy is damaged, or was "
            "changed. `lmdbloader verify` of the original says which.",
            path=str(path.parent),
        )
