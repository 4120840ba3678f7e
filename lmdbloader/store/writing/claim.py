"""The claim of one process on OUT.partial: its note, its lock, its signs of life, and taking over from a dead one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.disk_errors import DISK_FULL
from lmdbloader.base.limits import start_threads
from lmdbloader.errors import DestinationError, LockedError
from lmdbloader.store.writing.ownership import exchange, inside, is_at, open_folder, take_possession

OWNER_FILE = "owner.json"
# How often an owner gives a sign of life, and how long another host, which may not see its lock, waits for one.
BEAT_SECONDS = 2.0
PATIENCE_SECONDS = 15.0
_LOOKS = 30
_MAX_NOTE_NBYTES = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, distinguishable from every other process on any host.

    Attributes:
        pid: Its number.
        host: The name of its machine.
        boot: An id that differs after each start of the system; empty if unknown, as in older releases.
        started: When the process was started, in the system's ticks.
        machine: An id that distinguishes machines of the same name, in most cases.
    """

    pid: int
    host: str
    boot: str = ""
    started: int = 0
    machine: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @property
    def is_elsewhere(self) -> bool:
        """Whether it ran on another system, so locks and process numbers do not show whether it is alive."""
        return self.boot != system.boot_id() if self.boot else self.host != socket.gethostname()

    @property
    def is_alive_here(self) -> bool:
        """Whether it is another process running on this system."""
        return bool(self.started) and self.pid != os.getpid() and system.start_of(self.pid) == self.started

    @property
    def was_here(self) -> bool:
        """Whether it ran on this machine before the last restart."""
        mine = this_process()
        return bool(mine.machine) and (self.host, self.machine) == (mine.host, mine.machine)


def this_process() -> Owner:
    """Return this process as an owner."""
    return Owner(os.getpid(), socket.gethostname(), system.boot_id(), system.start_of(os.getpid()), _machine())


def _machine() -> str:
    # The machine's id itself is private.
    number = system.machine_id()
    return hashlib.sha256(b"lmdbloader " + number.encode()).hexdigest()[:16] if number else ""


def read_owner(folder: int) -> Owner | None:
    """Return the owner in a folder's note; None if the note is missing, or cannot be read or parsed."""
    try:
        return _read(folder)
    except OSError:
        return None


def is_mine(folder: int, path: Path) -> bool:
    """Return whether the note in an open folder is this process's.

    Args:
        folder: Its descriptor.
        path: Its name, for the errors of a disk that cannot read it.
    """
    try:
        with _naming_note(path):
            return _read(folder) == this_process()
    except FileNotFoundError:
        return False


def _read(folder: int) -> Owner | None:
    note = system.open_in(folder, OWNER_FILE)
    try:
        return _parse(os.read(note, _MAX_NOTE_NBYTES))
    finally:
        os.close(note)


@contextmanager
def _naming_note(partial: Path) -> Iterator[None]:
    """Put the note's full path into system errors, which have its descriptor or its name only."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, OWNER_FILE) and error.errno is not None:
            error.filename = str(partial / OWNER_FILE)
        raise


def _parse(data: bytes) -> Owner | None:
    try:
        body = json.loads(data)
        # Older releases wrote the first two only.
        more = {name: body[name] for name in ("boot", "started", "machine") if name in body}
        owner = Owner(int(body["pid"]), body["host"], **more)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = (owner.host, owner.boot, owner.machine)
    return owner if all(isinstance(text, str) for text in texts) and type(owner.started) is int else None


@dataclass(frozen=True, slots=True)
class Claim:
    """A folder that this process alone writes to.

    Attributes:
        folder: Its descriptor.
        note: The descriptor of the note in it, which is locked too.
        permissions: The permissions that the folder gets once others may write to it.
    """

    folder: int
    note: int
    permissions: int

    def is_mine(self) -> bool:
        """Return whether the note in the folder is still this process's; False if it cannot be read."""
        return read_owner(self.folder) == this_process()

    def release(self) -> None:
        """Leave the folder to the next process, which then need not wait for signs of life."""
        with suppress(OSError):
            if self.is_mine():
                system.remove_in(self.folder, OWNER_FILE)

    def close(self) -> None:
        """Close the folder and release the locks."""
        _close(self.note, self.folder)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Give signs of life in the folder until the block ends."""
        stop = threading.Event()

        def beat() -> None:
            # The note's time, by the file system's clock: readers compare it only with its earlier value.
            while not stop.wait(BEAT_SECONDS):
                with suppress(OSError):
                    system.touch_in(self.folder, OWNER_FILE)

        thread = threading.Thread(target=beat, name="lmdbloader-owner", daemon=True)
        start_threads([thread], "writing a dataset", "Writing always needs this thread: close other programs.")
        try:
            yield
        finally:
            stop.set()
            thread.join()


def claim(
    partial: Path,
    check: Callable[[Path], None],
    *,
    keep: Callable[[Path], tuple[str, ...]],
    advice: str = "",
    take_over: bool = False,
    wait: bool = True,
    log: Callable[[str], None] = lambda line: None,
) -> Claim:
    """Claim a folder for this process; it is made if there is none.

    The lock of a process on this host shows whether it is alive. One on another host counts as dead if it gives no sign
    of life for a while; its work is then copied, so if it wakes up, it does not write to this process's files.

    Args:
        partial: The folder.
        check: Called with a path to it before anything is changed in it; raises an error if it must not be used.
        keep: Returns the names of the files in it to copy, and of the folders to move.
        advice: Appended to the error that an owner on another host is alive.
        take_over: Do not wait for signs of life.
        wait: Wait for them; otherwise an owner on another host counts as alive.
        log: Called with each message, a line of text.

    Raises:
        LockedError: Another process writes to it.
        DestinationError: It cannot be made, or belongs to others.
    """
    while True:
        folder = _open(partial)
        note, is_new = -1, False
        try:
            _flock(folder, folder, partial)
            if is_at(folder, partial):
                permissions = take_possession(folder, partial)
                check(inside(folder, partial))
                with _naming_note(partial):
                    note, is_new = _open_note(folder)
            if note >= 0:
                _flock(note, folder, partial)
                is_free = is_new or _is_free(folder, note, partial, advice, take_over, wait, log)
                if is_free is None:
                    _replace(folder, partial, keep)
                elif is_free:
                    with _naming_note(partial):
                        _write(note)
                    if is_at(folder, partial):
                        return Claim(folder, note, permissions)
        except BaseException:
            if is_new:  # it could not be written, for example on a full disk
                with suppress(OSError):
                    system.remove_in(folder, OWNER_FILE)
                    os.rmdir(partial)  # fails if anything else is in it
            _close(note, folder)
            raise
        # It was renamed or removed between two of the calls, or has just been taken over.
        _close(note, folder)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def _open(partial: Path) -> int:
    tries_left = _LOOKS
    while True:
        try:
            return open_folder(partial, make=True)
        except OSError as error:
            tries_left -= 1
            # Its owner finished between the two calls; or folders cannot be made there, as in /proc.
            if error.errno == errno.ENOENT and partial.absolute().parent.is_dir() and tries_left:
                continue
            if error.errno in DISK_FULL:
                raise
            may_not = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
            how = f"Make {partial.absolute().parent} writable for this user" if may_not else "Free that name"
            raise DestinationError(
                f"{partial}: cannot be made ({error.strerror}); a dataset is written there until it is complete. "
                f"{how}, or choose another destination."
            ) from error


def _flock(descriptor: int, folder: int, partial: Path) -> None:
    try:
        system.lock(descriptor)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise DestinationError(
                f"{partial}: cannot be locked ({error.strerror}); its file system has no flock"
            ) from error
        raise _locked(partial, read_owner(folder), "Wait for it, or stop it.") from error


def _locked(partial: Path, owner: Owner | None, advice: str) -> LockedError:
    return LockedError(f"{partial}: {owner or 'another process'} is writing there. {advice}")


def _open_note(folder: int) -> tuple[int, bool]:
    """Return the note's descriptor and whether it was made just now; -1 if the folder is gone."""
    # Opened for writing: on NFS, other hosts do not see the lock of a folder, or of a file opened for reading only.
    with suppress(FileNotFoundError):
        try:
            return system.open_in(folder, OWNER_FILE, write=True, make=True), True
        except FileExistsError:
            return system.open_in(folder, OWNER_FILE, write=True), False
    return -1, False


def _write(note: int) -> None:
    data = json.dumps(asdict(this_process())).encode()
    system.write_at(note, data, 0)
    os.ftruncate(note, len(data))
    system.flush(note)


def _is_free(
    folder: int,
    note: int,
    partial: Path,
    advice: str,
    take_over: bool,
    wait: bool,
    log: Callable[[str], None],
) -> bool | None:
    """Return whether a folder with another owner's note can be used: None if only a copy of it can.

    Raises:
        LockedError: Its owner is alive.
    """
    try:
        with _naming_note(partial):
            owner = _read(folder)
    except FileNotFoundError:
        return False  # it was released just now
    if not _is_note(note, folder):
        return False  # and claimed again
    if owner and not owner.is_elsewhere:
        if owner.is_alive_here:
            raise _locked(partial, owner, "Wait for it, or stop it.")
        return True  # the lock shows that it is dead
    who = str(owner or "an unknown process")
    if take_over:
        log(
            f"{partial}: taken over from {who}. Its committed data is kept; the rest is lost, and that process ends "
            "with an error if it is still running"
        )
    elif not wait:
        raise _locked(partial, owner, "Wait for it, or stop it.")
    else:
        log(f"{partial}: {who} began to write there; waiting {PATIENCE_SECONDS:g} s for a sign of life")
        if _shows_life(folder):
            raise _locked(partial, owner, f"Wait for it, or stop it{advice}.")
    return True if owner and owner.was_here and not take_over else None


def _is_note(note: int, folder: int) -> bool:
    """Return whether an open note is still the one in its folder."""
    try:
        return os.path.samestat(os.fstat(note), system.status_in(folder, OWNER_FILE))
    except FileNotFoundError:
        return False


def _shows_life(folder: int) -> bool:
    """Return whether anything in a folder changes within a while."""
    before = _state(folder)
    for _ in range(_LOOKS):
        time.sleep(PATIENCE_SECONDS / _LOOKS)
        if _state(folder) != before:
            return True
    return False


def _state(folder: int) -> dict[str, tuple[int, int, int]]:
    state = {}
    with suppress(OSError):
        # Opened again because NFS then asks the server; cached attributes may be some seconds old.
        note = system.open_in(folder, OWNER_FILE)
        try:
            found = os.fstat(note)
            state[""] = (found.st_ino, found.st_size, found.st_mtime_ns)
        finally:
            os.close(note)
    with suppress(OSError), system.entries(folder) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            state[entry.name] = (found.st_ino, found.st_size, found.st_mtime_ns)
    return state


def _replace(folder: int, partial: Path, keep: Callable[[Path], tuple[str, ...]]) -> None:
    """Replace a folder by a copy and remove it, so a process that has it open cannot change the copy.

    Folders in it are moved.
    """
    old = inside(folder, partial)
    copy = partial.with_name(f"{partial.name}.{socket.gethostname()}-{os.getpid()}")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    try:
        names = keep(old)
        for name in names:
            if not (old / name).is_dir():
                shutil.copyfile(old / name, copy / name, follow_symlinks=False)
                system.flush_path(copy / name)
        exchange(copy, partial)
        if not is_at(folder, copy):
            exchange(copy, partial)  # another process was faster: give its folder back
        else:
            # The parts of a set have owners of their own, and are too large to copy.
            for name in names:
                if (copy / name).is_dir():
                    os.rename(copy / name, partial / name)
    finally:
        # If its owner is still running, it may create files meanwhile.
        for _ in range(_LOOKS):
            shutil.rmtree(copy, ignore_errors=True)
            if not copy.exists():
                break
            time.sleep(0.1)
