"""Linux: /proc, control groups, files in memory, and what the page cache holds."""

from __future__ import annotations

import errno
import mmap
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lmdbloader.base.system.defaults import ROOT, Clock, Layout, read_text

assert sys.platform != "win32" and sys.platform != "darwin"  # for mypy

__all__ = [
    "CAN_DROP_CACHE", "CAN_STREAM_URLS", "POPULATE_READ", "QUEUES_NEED_FILES", "advise_order", "allowed_cores",
    "boot_id", "c_library", "container_name", "cores_of_parent", "distribution", "drop_cache", "exchange",
    "group_folders", "huge_pages", "hypervisor_name", "is_cached", "machine_id", "memory_file",
    "memory_sizes", "own_memory", "path_of", "populate", "process_seconds", "processor_clock", "processor_layout",
    "processor_name", "quota_cores", "reserve", "resident_pages", "settling_seconds", "start_of", "tells_residency",
    "thread_times", "umask", "will_read",
]  # fmt: skip

CAN_DROP_CACHE = CAN_STREAM_URLS = True
QUEUES_NEED_FILES = True
# MADV_POPULATE_READ of Linux 5.14, which Python lacks.
POPULATE_READ = 22
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
# By the number of the file system in statfs(2). Times are rounded, at worst to a second; those of a server may differ
# from ours by the error of either clock.
_SETTLING_SECONDS = {
    0xEF53: 3.0,  # ext2, ext3, ext4
    0x58465342: 3.0,  # xfs
    0x9123683E: 3.0,  # btrfs
    0xF2F52010: 3.0,  # f2fs
    0x794C7630: 3.0,  # overlayfs
    0x6969: 3600.0,  # nfs, which asks the server when a file is opened
}
# Errors of a kernel without files in memory, or of a container that forbids them.
_NO_MEMORY_FILE = (errno.ENOSYS, errno.EPERM, errno.EACCES)

# -- Files and folders


def drop_cache(descriptor: int) -> None:
    """Write its pages, because unwritten ones would stay, and drop them from the page cache."""
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def reserve(descriptor: int, at: int, nbytes: int) -> None:
    """Take space on the device for a part of a file, which gets that long; an error says that there is none."""
    os.posix_fallocate(descriptor, at, nbytes)


def path_of(folder: int) -> Path | None:
    """Return the folder's link in /proc, which means something to this process only."""
    path = Path(f"/proc/self/fd/{folder}")
    with suppress(OSError):
        if os.path.samestat(os.fstat(folder), os.stat(path)):
            return path
    return None


def exchange(a: Path, b: Path) -> bool:
    """Use renameat2, which some file systems lack."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


def umask() -> int:
    """Return it from /proc; os.umask would change it for other threads for a moment."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("Umask:"):
            with suppress(ValueError):
                return int(line.split()[1], 8)
    return 0o777


def memory_file() -> int | None:
    """Return a memfd."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return os.memfd_create("lmdbloader")
    except OSError as error:
        if error.errno in _NO_MEMORY_FILE:
            return None
        raise


# -- What is in memory


def tells_residency(descriptor: int) -> bool:
    """Return whether the file is this user's: for others' files, Linux reports that all pages are in memory."""
    try:
        return os.geteuid() == os.fstat(descriptor).st_uid or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    except OSError:
        return False


def resident_pages(address: int, nbytes: int, found: Any) -> bool:
    """Ask mincore."""
    mincore = _mincore()
    return mincore is not None and mincore(address, nbytes, found.ctypes.data) == 0


@cache
def _mincore() -> Any:
    """Return the C library's function, None if it has none."""
    import ctypes

    function = getattr(ctypes.CDLL(None), "mincore", None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), ctypes.c_int
    return function


def is_cached(descriptor: int, at: int) -> bool | None:
    """Read the byte if that does not wait (RWF_NOWAIT); some file systems always wait."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def populate(mapped: mmap.mmap) -> bool:
    """Use madvise, which can do this since Linux 5.14."""
    try:
        mapped.madvise(POPULATE_READ)
    except OSError:
        return False
    return True


def settling_seconds(descriptor: int) -> float | None:
    """Ask for the file system's kind; those of memory keep no times of maps, and others may repeat inodes and times."""
    import ctypes

    function = _fstatfs()
    found = ctypes.create_string_buffer(512)
    if function is None or function(descriptor, found) != 0:
        return None
    return _SETTLING_SECONDS.get(ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF)


@cache
def _fstatfs() -> Any:
    """Return the C library's function, None if it has none."""
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "fstatfs", None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_int
    return function


def advise_order(descriptor: int, *, random: bool) -> None:
    """Switch the system's readahead for this descriptor off or on."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM if random else os.POSIX_FADV_NORMAL)


def will_read(descriptor: int, at: int, nbytes: int) -> None:
    """Start to read it."""
    os.posix_fadvise(descriptor, at, nbytes, os.POSIX_FADV_WILLNEED)


# -- The machine


def allowed_cores() -> int:
    """Return the size of the process's CPU affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_parent() -> int:
    """Return the size of the parent's CPU affinity."""
    with suppress(OSError):  # it has just ended
        return len(os.sched_getaffinity(os.getppid())) if hasattr(os, "sched_getaffinity") else allowed_cores()
    return allowed_cores()


def quota_cores(root: Path = ROOT) -> int | None:
    """Return the least quota of the groups, of version 1 or 2, that hold this process."""
    quotas = [quota for folder in group_folders("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas) if quotas else None


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield folders below /sys/fs/cgroup; not each of them must exist."""
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
    """Return them from /proc/meminfo; the available bytes include page cache that the system would drop."""
    found = {}
    for line in read_text(root / "proc" / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found.get("MemTotal", 0), found.get("MemAvailable", found.get("MemFree", 0) + found.get("Cached", 0))


def processor_name(root: Path = ROOT) -> str:
    """Return it from /proc/cpuinfo."""
    for line in read_text(root / "proc" / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():  # x86, some ARM boards, MIPS
            return " ".join(value.split())
    return ""


def processor_layout(root: Path = ROOT) -> Layout:
    """Return it from /sys, which counts the cores that are online."""
    cpus = root / "sys" / "devices" / "system" / "cpu"
    folders = [found.parent for found in sorted(cpus.glob("cpu[0-9]*/topology"))]
    sockets = {read_text(folder / "topology" / "physical_package_id").strip() for folder in folders}
    siblings = {
        read_text(folder / "topology" / "core_cpus_list").strip()
        or read_text(folder / "topology" / "thread_siblings_list").strip()
        for folder in folders
    }
    nodes = list((root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"))
    active = read_text(cpus / "smt" / "active").strip()
    # Some boards name no package (-1); a kernel without SMT's switch may still say which threads share a core.
    shared = {"0": False, "1": True}.get(active)
    if shared is None and siblings - {""}:
        shared = len(folders) > len(siblings)
    return Layout(
        len(sockets) if sockets and not sockets & {"", "-1"} else None,
        len(siblings) if siblings and "" not in siblings else None,
        shared,
        len(nodes) or None,
    )


def processor_clock(root: Path = ROOT) -> Clock:
    """Return it from /sys/devices/system/cpu/cpufreq, of the first core; virtual machines have /proc/cpuinfo alone."""
    cpus = root / "sys" / "devices" / "system" / "cpu"
    first = cpus / "cpu0" / "cpufreq"
    now = []
    for line in read_text(root / "proc" / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "cpu MHz":
            with suppress(ValueError):
                now.append(float(value))
    if not now:
        now = [found for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq") if (found := _mhz(path)) is not None]
    boost, no_turbo = (
        read_text(cpus / name).strip() for name in (Path("cpufreq", "boost"), Path("intel_pstate", "no_turbo"))
    )
    return Clock(
        statistics.median(now) if now else None,
        _mhz(first / "base_frequency"),
        _mhz(first / "scaling_min_freq"),
        _mhz(first / "scaling_max_freq"),
        read_text(first / "scaling_governor").strip() or None,
        {"0": False, "1": True}.get(boost, {"0": True, "1": False}.get(no_turbo)),
    )


def _mhz(path: Path) -> float | None:
    """Return a file's number of kHz in MHz; None if it has none."""
    text = read_text(path).strip()
    return int(text) / 1000 if text.isdecimal() else None


def distribution(root: Path = ROOT) -> str | None:
    """Return PRETTY_NAME of os-release."""
    text = read_text(root / "etc" / "os-release") or read_text(root / "usr" / "lib" / "os-release")
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def c_library(root: Path = ROOT) -> str | None:
    """Ask glibc; musl is known by its loader alone."""
    with suppress(ValueError, OSError):
        if found := os.confstr("CS_GNU_LIBC_VERSION"):
            return found
    return "musl" if any((root / "lib").glob("ld-musl-*.so.*")) else None


# Files that containers have, and the words of control groups whose names have not been hidden.
_CONTAINER_FILES = {"podman": "run/.containerenv", "apptainer": ".singularity.d", "docker": ".dockerenv"}
_CONTAINER_GROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc",
                     "containerd": "containerd"}  # fmt: skip


def container_name(root: Path = ROOT) -> str | None:
    """Look for the files by which containers are known, and at the names of the control groups."""
    stated = read_text(root / "run" / "systemd" / "container").strip()
    if stated:
        return stated
    groups = read_text(root / "proc" / "self" / "cgroup")
    if "kubepods" in groups or (root / "var" / "run" / "secrets" / "kubernetes.io").exists():
        return "kubernetes"
    for name, file in _CONTAINER_FILES.items():
        if (root / file).exists():
            return name
    return next((name for word, name in _CONTAINER_GROUPS.items() if word in groups), None)


def hypervisor_name(root: Path = ROOT) -> str | None:
    """Look for the processor's flag, and at the names that the firmware gives."""
    if "microsoft" in read_text(root / "proc" / "sys" / "kernel" / "osrelease").lower():
        return "Windows Subsystem for Linux"
    kind = read_text(root / "sys" / "hypervisor" / "type").strip()
    vendor = read_text(root / "sys" / "class" / "dmi" / "id" / "sys_vendor").strip()
    flagged = any(
        line.startswith("flags") and "hypervisor" in line.split()
        for line in read_text(root / "proc" / "cpuinfo").splitlines()
    )
    # Processors other than x86 have no such flag.
    if flagged or kind or vendor in ("QEMU", "Amazon EC2", "Google"):
        return vendor or kind or "unknown"
    return None


def huge_pages(root: Path = ROOT) -> str | None:
    """Return the word in brackets."""
    text = read_text(root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled")
    return text.partition("[")[2].partition("]")[0] or None


# -- Processes and threads


def boot_id() -> str:
    """Return the kernel's own."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")).strip()


def machine_id() -> str:
    """Return the installation's, which is private: it must not be written anywhere as it is."""
    return read_text(Path("/etc/machine-id")).strip()


def start_of(pid: int) -> int:
    """Return it from /proc."""
    words = _status_words(pid)
    return int(words[19]) if len(words) > 19 else 0


def _status_words(pid: int) -> list[str]:
    """Return the words of /proc/PID/stat after the process's name, which may have spaces and brackets."""
    return read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def process_seconds(pid: int) -> float:
    """Return its ticks in user and system mode."""
    words = _status_words(pid)
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if len(words) > 12 else 0.0


def thread_times(process: int, thread: int) -> tuple[float, float] | None:
    """Return them from the thread's schedstat.

    Its three numbers are nanoseconds on a core, nanoseconds of waiting for one, and how often it had one
    (Documentation/scheduler/sched-stats.rst of Linux).
    """
    try:
        # A file object costs three times as much.
        descriptor = os.open(f"/proc/{process}/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            running, delayed = map(int, os.read(descriptor, 100).split()[:2])
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return running / 1e9, delayed / 1e9


def own_memory() -> int:
    """Return the anonymous part of the resident memory."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
