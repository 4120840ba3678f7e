"""The file system that a path lies on, and what carries it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmdbloader.base.cores import read_text

Kind = Literal["network", "memory", "overlay", "local", "unknown"]
Device = Literal["nvme", "ssd", "spinning disk"]

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
# Disks of virtual machines call themselves spinning whatever they lie on.
_VIRTUAL = re.compile(r"(vd|xvd|ubd|nbd|rbd|loop|dm-|md)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Where a path lies.

    Attributes:
        mount_point: Where the file system is mounted; empty where the system does not tell.
        type: As the system names it: "ext4", "nfs4", "overlay" ...
        kind: What that means: "network", "memory" (its files take memory), "overlay" (of a container's image), "local",
            or "unknown".
        source: The device or server that it is mounted from.
        options: Of the mount, comma-separated.
        device: What carries a local one, as far as the system knows: a virtual machine's does not say.
    """

    mount_point: str
    type: str
    kind: Kind
    source: str
    options: str
    device: Device | None

    def __str__(self) -> str:
        """Return it in a few words."""
        words = [self.type or "unknown", {"network": "over the network", "memory": "in memory"}.get(self.kind, "")]
        if self.device:
            words.append("on NVMe" if self.device == "nvme" else f"on a {self.device}".replace("a ssd", "an SSD"))
        return " ".join(word for word in words if word) + (f", mounted at {self.mount_point}" * bool(self.mount_point))


def filesystem_of(path: str | os.PathLike[str], root: Path = _ROOT) -> FileSystem:
    """Return the file system that a path lies on, or would lie on: it need not exist.

    Args:
        path: Of a file or folder; links are followed.
        root: Where `proc` and `sys` lie.
    """
    real = Path(os.path.realpath(path))
    found: tuple[str, list[str], list[str]] | None = None
    for line in read_text(root / "proc" / "self" / "mountinfo").splitlines():
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
        return FileSystem("", "", "unknown", "", "", None)
    point, fields, rest = found
    kind, source = _kind(rest[0]), _unescape(rest[1])
    options = ",".join(dict.fromkeys(f"{fields[5]},{rest[2] if len(rest) > 2 else ''}".strip(",").split(",")))
    device = _device(fields[2], source, root) if kind == "local" else None
    return FileSystem(point, rest[0], kind, source, options, device)


def _kind(name: str) -> Kind:
    if name in _NETWORK:
        return "network"
    if name in _MEMORY:
        return "memory"
    if name in _OVERLAY:
        return "overlay"
    return "local" if name in _LOCAL else "unknown"


def _device(number: str, source: str, root: Path) -> Device | None:
    """Return what a block device is, by its number, or by its name where the file system has a number of its own."""
    sys = root / "sys"
    folder = sys / "dev" / "block" / number
    if not folder.exists() and source.startswith("/dev/"):
        folder = sys / "class" / "block" / os.path.basename(source)
    try:
        folder = folder.resolve(strict=True)
    except OSError:
        return None
    if not (folder / "queue").is_dir():  # a partition: its disk has the queue
        folder = folder.parent
    if _VIRTUAL.match(folder.name):
        return None
    if folder.name.startswith("nvme"):
        return "nvme"
    rotational = read_text(folder / "queue" / "rotational").strip()
    return {"0": "ssd", "1": "spinning disk"}.get(rotational)  # type: ignore[return-value]


def _unescape(text: str) -> str:
    r"""Return a name in which spaces and the like were written in octal digits.

    >>> _unescape(r"/mnt/my\040data")
    '/mnt/my data'
    """
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
