"""The storage of a path: its file system, its disk, and the share of a file in the page cache."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmdbloader.base import system

FileSystemKind = Literal["network", "memory", "overlay", "local", "unknown"]
DiskKind = Literal["nvme", "ssd", "spinning disk"]

_ROOT = Path("/")
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
    "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.JuiceFS", "fuse.blobfuse2", "fuse.dfs_fuse",
}  # fmt: skip
_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_OVERLAY = {"overlay", "aufs", "fuse.fuse-overlayfs", "unionfs"}
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "exfat", "f2fs", "jfs", "msdos", "ntfs", "ntfs3", "reiserfs",
          "squashfs", "udf", "vfat", "xfs", "zfs", "erofs", "iso9660"}  # fmt: skip
# Disks of virtual machines report that they spin, whatever the real disk is.
_VIRTUAL = re.compile(r"(vd|xvd|ubd|nbd|rbd|loop)")
# LVM, encryption, RAID: devices on top of others.
_STACKED = re.compile(r"(dm-|md)\d")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system of a path.

    Attributes:
        mount_point: The folder where the file system is mounted; empty if unknown.
        type: As the system names it: "ext4", "nfs4", "overlay" ...
        kind: Its category: "network", "memory" (its files take memory), "overlay" (of a container's image), "local",
            or "unknown".
        source: The device or server that it is mounted from.
        device: The disk of a local one; None if unknown, as in a virtual machine.
    """

    mount_point: str
    type: str
    kind: FileSystemKind
    source: str
    device: DiskKind | None

    def __str__(self) -> str:
        """Return it in a few words."""
        words = [self.type or "unknown", {"network": "over the network", "memory": "in memory"}.get(self.kind, "")]
        if self.device:
            words.append("on NVMe" if self.device == "nvme" else f"on a {self.device}".replace("a ssd", "an SSD"))
        return " ".join(word for word in words if word) + (f", mounted at {self.mount_point}" * bool(self.mount_point))


def filesystem_of(path: str | os.PathLike[str], root: Path = _ROOT) -> FileSystem:
    """Return the file system of a path, which need not exist.

    Args:
        path: Of a file or folder; links are followed.
        root: The folder of `proc` and `sys`.
    """
    real = Path(os.path.realpath(path))
    found: tuple[str, list[str], list[str]] | None = None
    for line in system.read_text(root / "proc" / "self" / "mountinfo").splitlines():
        # proc(5): id, parent, major:minor, root, mount point, options, any number of tags, "-", type, source, options.
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        point = _unescape(fields[4])
        # The deepest mount that holds the path; of several at one place the last one hides the others.
        if real.is_relative_to(point) and (found is None or len(point) >= len(found[0])):
            found = point, fields, rest
    if found is None:
        return FileSystem("", "", "unknown", "", None)
    point, fields, rest = found
    kind, source = _kind(rest[0]), _unescape(rest[1])
    device = _device(fields[2], source, root) if kind == "local" else None
    return FileSystem(point, rest[0], kind, source, device)


def _kind(name: str) -> FileSystemKind:
    if name in _NETWORK:
        return "network"
    if name in _MEMORY:
        return "memory"
    if name in _OVERLAY:
        return "overlay"
    return "local" if name in _LOCAL else "unknown"


def _device(number: str, source: str, root: Path) -> DiskKind | None:
    """Return the kind of a block device, found by its number, or by its name if the file system has its own number."""
    sys = root / "sys"
    folder = sys / "dev" / "block" / number
    if not folder.exists() and source.startswith("/dev/"):
        folder = sys / "class" / "block" / os.path.basename(source)
    try:
        folder = folder.resolve(strict=True)
    except OSError:
        return None
    return _kind_of_disk(folder)


def _kind_of_disk(folder: Path) -> DiskKind | None:
    """Return the kind of a block device by its folder in /sys; that of the disks below an encrypted or combined one."""
    if not (folder / "queue").is_dir():  # a partition: its disk has the queue
        folder = folder.parent
    if _STACKED.match(folder.name):
        kinds = {_kind_of_disk(below.resolve()) for below in (folder / "slaves").glob("*")}
        return kinds.pop() if len(kinds) == 1 else None
    if _VIRTUAL.match(folder.name):
        return None
    if folder.name.startswith("nvme"):
        return "nvme"
    rotational = system.read_text(folder / "queue" / "rotational").strip()
    return {"0": "ssd", "1": "spinning disk"}.get(rotational)  # type: ignore[return-value]


def _unescape(text: str) -> str:
    r"""Return a name in which spaces and the like were written in octal digits.

    >>> _unescape(r"/mnt/my\040data")
    '/mnt/my data'
    """
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


_PIECE_NBYTES = 4 * 2**20
# Of a file larger than this, pieces at equal distances are looked at: 16 GiB in all, which takes about 30 ms.
_MAX_PIECES = 4096
# Where only the first pages of places can be tried: the share is then right to within 6 %, 19 times of 20.
_MAX_PLACES = 256


def residency(path: str | os.PathLike[str]) -> float | None:
    """Return the share of a file's pages that are in memory, 0 to 1; nothing is read for it.

    Of a file beyond 16 GiB, pieces at equal distances are looked at. Linux reports it for files that this user owns or
    may write (`mincore`); of others 256 single bytes are read, at equal distances and only if that does not wait
    (RWF_NOWAIT).

    Returns:
        None if unknown, as on some network file systems, or if the file is empty.

    Raises:
        OSError: The file does not open.
    """
    descriptor = system.open_to_read(path)
    try:
        nbytes = os.fstat(descriptor).st_size
        if nbytes == 0:
            return None
        found = _mapped_share(descriptor, nbytes) if system.tells_residency(descriptor) else None
        return _tried_share(descriptor, nbytes) if found is None else found
    except (OSError, ValueError):  # a file that cannot be mapped
        return None
    finally:
        os.close(descriptor)


def residency_of_all(paths: Sequence[str | os.PathLike[str]]) -> float | None:
    """Return the share of several files' pages that are in memory; None if it is unknown of one.

    Raises:
        OSError: A file does not open.
    """
    held, total = 0.0, 0
    for path in paths:
        if (share := residency(path)) is None:
            return None
        nbytes = os.stat(path).st_size
        held, total = held + share * nbytes, total + nbytes
    return held / total if total else None


def _mapped_share(descriptor: int, nbytes: int) -> float | None:
    import numpy as np

    resident = looked_at = 0
    with mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ) as mapped:
        base = np.frombuffer(mapped, np.uint8).ctypes.data
        found = np.empty(_PIECE_NBYTES // mmap.PAGESIZE, np.uint8)
        num_pieces = -(-nbytes // _PIECE_NBYTES)
        for number in range(min(num_pieces, _MAX_PIECES)):
            start = number * max(num_pieces, _MAX_PIECES) // _MAX_PIECES * _PIECE_NBYTES
            length = min(_PIECE_NBYTES, nbytes - start)
            num_pages = -(-length // mmap.PAGESIZE)
            if not system.resident_pages(base + start, length, found):
                return None
            resident += int(np.count_nonzero(found[:num_pages] & 1))
            looked_at += num_pages
    return resident / looked_at


def _tried_share(descriptor: int, nbytes: int) -> float | None:
    num_pages = -(-nbytes // mmap.PAGESIZE)
    places = range(0, num_pages, -(-num_pages // _MAX_PLACES))
    resident = 0
    for page in places:
        found = system.is_cached(descriptor, page * mmap.PAGESIZE)
        if found is None:
            return None
        resident += found
    return resident / len(places)
