"""What a process may use and has used, from /proc, /sys and control groups; little of it is known elsewhere."""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from lmdbloader.base.system.files import POPULATE_READ

if sys.platform != "win32":
    import resource

__all__ = [
    "QUEUES_NEED_FILES", "address_limit", "allowed_cores", "boot_id", "cores_of_parent", "free_memory", "group_folders",
    "load_average", "may_stay_open", "memory_limits", "memory_sizes", "process_seconds", "quota_cores", "read_text",
    "sizes_of", "start_of",
]  # fmt: skip

ROOT = Path("/")
# Whether queues between processes take room in /dev/shm.
QUEUES_NEED_FILES = sys.platform == "linux"
_MACOS_OPEN_MAX = 10_240
# Version 1 of the control groups has no word for "no limit", but the largest number of whole pages.
_NO_LIMIT = 2**60


def read_text(path: Path) -> str:
    """Return the text of a system file, empty if it is missing or cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def allowed_cores() -> int:
    """Return how many cores the system lets this process run on, at least 1."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cores_of_parent() -> int:
    """Return how many cores the system lets the process run on that has started this one."""
    if sys.platform == "linux":
        with suppress(OSError):  # it has just ended
            return len(os.sched_getaffinity(os.getppid()))
    return allowed_cores()


def quota_cores(root: Path = ROOT) -> int | None:
    """Return the CPU quota of this process's control groups, of version 1 or 2, in cores, rounded up.

    Args:
        root: The folder with `proc` and `sys`.

    Returns:
        At least 1; None without a limit or control groups.
    """
    quotas = [quota for folder in group_folders("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas) if quotas else None


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of the process's control groups and of their parents: the tightest limit applies.

    Args:
        controller: Of version 1, such as "cpu" or "memory"; version 2 has one hierarchy for all.
        root: The folder with `proc` and `sys`; not each of the folders must exist.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    for line in read_text(root / "proc" / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            hierarchies = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            hierarchies = [mounted / controllers, mounted / controller]
        else:
            continue
        names = [name for name in group.split("/") if name]
        if ".." in names:  # a group that this container cannot see
            names = []
        # In a container the group often has its name on the host, which is not mounted; its parents are.
        for hierarchy in hierarchies:
            for length in range(len(names), -1, -1):
                yield hierarchy.joinpath(*names[:length])


def _quota(folder: Path) -> int | None:
    """Return one group's quota in cores, rounded up; None if it sets no limit."""
    words = read_text(folder / "cpu.max").split() or [
        *read_text(folder / "cpu.cfs_quota_us").split(),
        *read_text(folder / "cpu.cfs_period_us").split(),
    ]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or not a pair of numbers
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def memory_sizes(root: Path = ROOT) -> tuple[int, int]:
    """Return the bytes of the machine's memory, and those that are available without swapping; 0 if unknown.

    The available bytes include page cache that the system would drop.
    """
    found = {}
    for line in read_text(root / "proc" / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found.get("MemTotal", 0), found.get("MemAvailable", found.get("MemFree", 0) + found.get("Cached", 0))


def memory_limits(root: Path = ROOT) -> list[tuple[int, int]]:
    """Return the limits of the process's control groups, and the bytes left below each, with droppable page cache."""
    total, _ = memory_sizes(root)
    found = [limit for folder in group_folders("memory", root) if (limit := _memory_limit(folder)) is not None]
    return [limit for limit in found if not total or limit[0] < total]  # one beyond the machine's memory is none


def free_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that this process may still take, droppable page cache included; None if unknown."""
    sizes = [memory_sizes(root)[1], *(left for _, left in memory_limits(root))]
    return min(sizes) if sizes[0] else None


def _memory_limit(folder: Path) -> tuple[int, int] | None:
    """Return the limit of one control group and the bytes left below it; None if it sets no limit."""
    for limit_file, usage_file, cache_names in (
        ("memory.max", "memory.current", ("file", "shmem")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_cache", "total_shmem")),
    ):
        text = read_text(folder / limit_file).strip()
        if not text.isdecimal() or int(text) >= _NO_LIMIT:
            continue
        limit, used = int(text), read_text(folder / usage_file).strip()
        lines = read_text(folder / "memory.stat").splitlines()
        counts = dict(line.split(None, 1) for line in lines if " " in line)
        # Files in tmpfs count as page cache, and cannot be given up.
        cache, shared = (int(counts[name]) if counts.get(name, "").isdecimal() else 0 for name in cache_names)
        taken = int(used) - max(0, cache - shared) if used.isdecimal() else 0
        return limit, max(0, limit - max(0, taken))
    return None


def address_limit() -> int | None:
    """Return the limit of this process's address space in bytes, as `ulimit -v` sets it; None without one."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def may_stay_open(descriptor: int) -> bool:
    """Return whether a file may stay open, which leaves half of the descriptors to others.

    If needed, `ulimit -n` becomes what `ulimit -Hn` is. Without `POPULATE_READ` all files stay open: the pages of a map
    are then read by its descriptor before they are touched.
    """
    if sys.platform == "win32":
        return True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS states no limit, and refuses more than OPEN_MAX.
    most = _MACOS_OPEN_MAX if sys.platform == "darwin" else hard
    if descriptor >= soft // 2 and soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return soft == resource.RLIM_INFINITY or descriptor < soft // 2 or not _populates()


@cache
def _populates() -> bool:
    with suppress(OSError), mmap.mmap(-1, mmap.PAGESIZE) as page:  # older than Linux 5.14
        page.madvise(POPULATE_READ)
        return True
    return False


def load_average() -> float | None:
    """Return the load average of the last minute: threads that ran or waited to run; None if unknown."""
    return None if sys.platform == "win32" else os.getloadavg()[0]


def sizes_of(folder: str | Path) -> tuple[int, int] | None:
    """Return size and free space of the file system of a folder in bytes; None if there is none, or if unknown."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return found.total, found.free


# -- Processes and threads


def boot_id() -> str:
    """Return an id of this start of the system; "" if unknown: then the host's name tells machines apart."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")).strip()


def start_of(pid: int) -> int:
    """Return when a process started, in ticks of the system; 0 if unknown: then locks tell who is alive."""
    words = _status_words(pid)
    return int(words[19]) if len(words) > 19 else 0


def _status_words(pid: int) -> list[str]:
    """Return the words of /proc/PID/stat after the process's name, which may have spaces and brackets."""
    return read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def process_seconds(pid: int) -> float:
    """Return the processor time of another process; 0 if unknown, or if it has ended."""
    words = _status_words(pid)
    if sys.platform == "win32" or len(words) <= 12:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
