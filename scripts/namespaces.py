"""Runs a command of chroots.py in a root folder and in namespaces of its own: its mounts and processes end with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NEW_USER, _NEW_MOUNTS, _NEW_PROCESSES = 0x10000000, 0x00020000, 0x20000000  # flags of unshare(2)
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18  # flags of mount(2)
_PARENT_DIES = 1  # prctl(2): a signal when the parent ends
_ALL_IDS = f"0 0 {2**32 - 1}"
# The longest time that a command has to end after Ctrl-C, which it receives as well.
_SECONDS_TO_END = 20.0


class NamespaceError(Exception):
    """The command could not be started; the message says what failed and what to do."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A program that runs programs of another processor.

    Attributes:
        program: A static executable of this machine.
        magic: The first bytes of the other processor's programs.
        mask: Which of these bits must agree.
    """

    program: Path
    magic: bytes
    mask: bytes


def find_emulator(processor: str) -> Emulator | None:
    """Return QEMU's emulator of aarch64, the only processor known here; None if it is not installed."""
    assert processor == "aarch64"
    found = shutil.which("qemu-aarch64-static")
    if found is None:
        return None
    # An ELF file of 64 bits, little-endian, executable or shared, for the machine with the number 183.
    magic = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
    mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    return Emulator(Path(found).resolve(), magic, mask)


def run_in(
    root: Path,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    emulator: Emulator | None = None,
    folder: Path = Path("/"),
    log: Path | None = None,
) -> int:
    """Run a command in `folder` of a root folder and return its exit status, 128 + N for signal N.

    The machine's /dev and /sys, and a /proc of the new processes, are mounted in `root`; no other process sees them.
    Whatever the command leaves running is ended when it ends, and when this process ends. With an emulator the command
    runs in a user namespace, and the kernel uses the emulator only there. Its output goes to `log` if there is one.

    Raises:
        NamespaceError: This process may not make namespaces, the kernel cannot keep an emulator for one of them, or
            there is no such command.
    """
    said_read, said = os.pipe()
    ready_read, ready = os.pipe()
    mapped_read, mapped = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for descriptor in (said_read, ready_read, mapped):
            os.close(descriptor)
        try:
            _end_with_parent()
            if emulator:
                _call("unshare", _NEW_USER, what="a user namespace cannot be made")
                os.write(ready, b"1")
                os.read(mapped_read, 1)
            os.close(ready)
            if log:
                with log.open("wb") as output:
                    os.dup2(output.fileno(), 1)
                    os.dup2(1, 2)
            _call("unshare", _NEW_MOUNTS | _NEW_PROCESSES, what="namespaces cannot be made")
            os._exit(_first_process(root, folder, command, environment, emulator, said))
        except (NamespaceError, OSError) as error:
            os.write(said, str(error).encode())
        os._exit(255)
    for descriptor in (said, ready, mapped_read):
        os.close(descriptor)
    try:
        if os.read(ready_read, 1):
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{child}/{name}").write_text(_ALL_IDS)
        os.close(mapped)
        with os.fdopen(said_read, "rb") as messages:
            message = messages.read().decode()
        code = _status(os.waitpid(child, 0)[1])
    except BaseException as error:
        _end(child, _SECONDS_TO_END if isinstance(error, KeyboardInterrupt) else 0.0)
        raise
    finally:
        os.close(ready_read)
    if message:
        raise NamespaceError(message)
    return code


def _first_process(
    root: Path,
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    emulator: Emulator | None,
    said: int,
) -> int:
    """Start the first process of the namespaces, wait for it, and return its status."""
    first = os.fork()
    if first:
        os.close(said)
        return _status(os.waitpid(first, 0)[1])
    try:
        _end_with_parent()
        _mount("none", "/", "", _RECURSIVE | _PRIVATE)
        _mount("proc", root / "proc", "proc")
        if root != Path("/"):
            for name in ("dev", "sys"):
                _mount(f"/{name}", root / name, "", _BIND | _RECURSIVE)
        if emulator:
            _register(emulator, root / "proc/sys/fs/binfmt_misc")
        os.chroot(root)
        os.chdir(folder)
        worker = os.fork()
        if worker == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execvpe(command[0], list(command), dict(environment))
        os.close(said)
        while True:  # it inherits processes whose parents have ended, and must collect their status
            ended, status = os.wait()
            if ended == worker:
                os._exit(_status(status))
    except (NamespaceError, OSError) as error:
        os.write(said, f"{command[0]}: {error}".encode())
    os._exit(255)


def _register(emulator: Emulator, table: Path) -> None:
    """Register the emulator in this user namespace; the machine's own table does not change."""
    try:
        _mount("binfmt_misc", table, "binfmt_misc")
    except NamespaceError as error:
        raise NamespaceError(
            f"{error}. A table of emulators for one namespace needs Linux 6.7 or newer with binfmt_misc"
        ) from error
    escaped = (b"".join(b"\\x%02x" % byte for byte in part) for part in (emulator.magic, emulator.mask))
    # F: the kernel opens the emulator now, so it need not exist in the new root. P: programs see their own argv[0].
    line = b":lmdbloader:M::" + b":".join(escaped) + b":" + bytes(emulator.program) + b":PF"
    descriptor = os.open(table / "register", os.O_WRONLY)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _mount(source: str, target: str | Path, kind: str, flags: int = 0) -> None:
    _call("mount", source.encode(), bytes(Path(target)), kind.encode(), flags, None, what=f"{target} cannot be mounted")


def _end_with_parent() -> None:
    _call("prctl", _PARENT_DIES, int(signal.SIGKILL), 0, 0, 0, what="the parent cannot be watched")


def _call(name: str, *arguments: bytes | int | None, what: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    typed = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    if getattr(libc, name)(*typed) != 0:
        raise NamespaceError(f"{what} ({os.strerror(ctypes.get_errno())})")


def _status(waited: int) -> int:
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


def _end(child: int, seconds: float) -> None:
    """Wait some seconds for a child to end, then end it and with it all that it started."""
    until = time.monotonic() + seconds
    while True:
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            if time.monotonic() >= until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
            time.sleep(0.05)
        except KeyboardInterrupt:
            until = 0.0
        except (ChildProcessError, ProcessLookupError):
            return
