"""A file system with bad sectors: FUSE, spoken without a library, that serves the files of one folder.

`python bad_disk.py FOLDER MOUNTPOINT BAD` mounts it, prints a line, and serves until it is unmounted. Reads of the
bytes that the file BAD names (`name start stop` in each line) end in EIO. Lengths are those of FOLDER at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _BATCH_FORGET, _LSEEK = 27, 28, 29, 34, 42, 46
_ROOT = 1
_KEEP_CACHE = 2
_MAX_READ_NBYTES = 128 * 1024
NOT_HERE = "no FUSE, or not root: no disk with bad sectors can be mounted"


class Disk:
    """Serves a folder."""

    def __init__(self, folder: Path, bad: Path) -> None:
        self._folder, self._bad = folder, bad
        self._names = sorted(entry.name for entry in folder.iterdir())

    def serve(self, device: int) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                request = os.read(device, _MAX_READ_NBYTES + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # unmounted
            _, call, unique, node, *_ = _IN.unpack_from(request)
            if call in (_FORGET, _BATCH_FORGET):
                continue
            try:
                status, body = 0, self._answer(call, node, request[_IN.size :])
            except OSError as error:
                status, body = -(error.errno or errno.EIO), b""
            with contextlib.suppress(OSError):  # of a request that was given up
                os.write(device, _OUT.pack(_OUT.size + len(body), status, unique) + body)

    def _answer(self, call: int, node: int, body: bytes) -> bytes:
        if call == _INIT:
            major, minor, ahead, _ = struct.unpack_from("<IIII", body)
            del major, minor
            # 7.31, as little of it as there is.
            return struct.pack("<IIIIHHIIHH", 7, 31, ahead, 0, 12, 9, 4096, 1, 32, 0).ljust(64, b"\0")
        if call == _LOOKUP:
            name = os.fsdecode(body.rstrip(b"\0"))
            if name not in self._names:
                raise OSError(errno.ENOENT, name)
            number = self._names.index(name) + 2
            return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number)
        if call == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if call in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _KEEP_CACHE, 0)
        if call == _READ:
            _, at, nbytes = struct.unpack_from("<QQI", body)
            return self._read(self._names[node - 2], at, nbytes)
        if call == _READDIR:
            _, at, nbytes = struct.unpack_from("<QQI", body)
            return self._list(at, nbytes)
        if call == _STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if call in (_RELEASE, _RELEASEDIR, _FLUSH, _ACCESS):
            return b""
        raise OSError(errno.ENOSYS, str(call))

    def _attributes(self, node: int) -> bytes:
        found = os.stat(self._folder if node == _ROOT else self._folder / self._names[node - 2])
        kind = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
        size, now = found.st_size, int(found.st_mtime)
        return _ATTRIBUTES.pack(
            node, size, -(-size // 512), now, now, now, 0, 0, 0, kind, 1, os.geteuid(), os.getegid(), 0, 4096, 0
        )

    def _read(self, name: str, at: int, nbytes: int) -> bytes:
        for line in self._bad.read_text("utf-8").splitlines():
            bad, start, stop = line.rsplit(" ", 2)
            if bad == name and at < int(stop) and at + nbytes > int(start):
                raise OSError(errno.EIO, name)
        with open(self._folder / name, "rb") as file:
            return os.pread(file.fileno(), nbytes, at)

    def _list(self, at: int, nbytes: int) -> bytes:
        entries = b""
        for number, name in list(enumerate(self._names, 1))[at:]:
            data = os.fsencode(name)
            entry = struct.pack("<QQII", number + 1, number, len(data), stat.S_IFREG >> 12) + data
            entry = entry.ljust(-(-len(entry) // 8) * 8, b"\0")
            if len(entries) + len(entry) > nbytes:
                break
            entries += entry
        return entries


@contextmanager
def bad_disk(folder: Path, at: Path) -> Iterator[Path | None]:
    """Mount a folder at a new one; yield the file that lists the bad sectors, None if mounting is not possible."""
    umount = shutil.which("umount")
    at.mkdir()
    bad = at.with_name(f"{at.name}.bad")
    bad.write_text("")
    if umount is None or not os.path.exists("/dev/fuse") or os.geteuid() != 0 or sys.byteorder != "little":
        yield None
        return
    words = [sys.executable, __file__, str(folder), str(at), str(bad)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    try:
        yield bad if server.stdout.readline() else None
    finally:
        subprocess.run([umount, "-l", str(at)], capture_output=True)
        server.kill()
        server.wait()
        server.stdout.close()


def forget(path: Path) -> None:
    """Have the system let go of a file's pages that nobody has mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> int:
    """Mount and serve."""
    folder, at, bad = map(Path, sys.argv[1:])
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={_MAX_READ_NBYTES}"
    nosuid_nodev = 2 | 4
    if libc.mount(b"bad-disk", os.fsencode(at), b"fuse", nosuid_nodev, options.encode()) != 0:
        return 1
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    Disk(folder, bad).serve(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
