"""Facts about the machine and its processes, from /proc, /sys and control groups; few of them are known elsewhere."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

if sys.platform != "win32":
    import resource

__all__ = [
    "QUEUES_NEED_FILES", "Clock", "Layout", "address_limit", "allowed_cores", "boot_id", "c_library", "container_name",
    "cores_of_parent", "distribution", "group_folders", "huge_pages", "hypervisor_name", "load_average",
    "memory_sizes", "own_memory", "process_seconds", "processor_clock", "processor_layout",
    "processor_name", "quota_cores", "raise_file_limit", "read_text", "sizes_of", "start_of", "thread_times",
]  # fmt: skip

ROOT = Path("/")
# Whether queues between processes take room in /dev/shm.
QUEUES_NEED_FILES = sys.platform == "linux"
_MACOS_OPEN_MAX = 10_240


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


def address_limit() -> int | None:
    """Return the limit of this process's address space in bytes, as `ulimit -v` sets it; None without one."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Let this process open as many files as it may allow itself: `ulimit -n` becomes what `ulimit -Hn` is."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS states no limit, and refuses more than OPEN_MAX.
        most = _MACOS_OPEN_MAX if sys.platform == "darwin" else hard
        if soft != resource.RLIM_INFINITY and soft < most:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def load_average() -> float | None:
    """Return the load average of the last minute: threads that ran or waited to run; None if unknown."""
    return None if sys.platform == "win32" else os.getloadavg()[0]


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


def sizes_of(folder: str | Path) -> tuple[int, int] | None:
    """Return size and free space of the file system of a folder in bytes; None if there is none, or if unknown."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return found.total, found.free


def processor_name(root: Path = ROOT) -> str:
    """Return the processor's name; "" if unknown."""
    for line in read_text(root / "proc" / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():  # x86, some ARM boards, MIPS
            return " ".join(value.split())
    return ""


class Layout(NamedTuple):
    """How the processor's logical cores lie; None where it is unknown.

    Attributes:
        sockets: Processors in the machine.
        cores: Physical cores, of all of them.
        has_smt: Whether a physical core runs several threads at once now (SMT, Hyper-Threading).
        numa_nodes: Parts of the memory, each of which is near to some of the cores.
    """

    sockets: int | None = None
    cores: int | None = None
    has_smt: bool | None = None
    numa_nodes: int | None = None


class Clock(NamedTuple):
    """The processor's clock; None where it is unknown.

    Attributes:
        mhz: Now, the median of the cores.
        base_mhz: That the maker states.
        least_mhz, most_mhz: The range within which the system sets it.
        governor: The rule by which Linux sets it: "performance", "powersave" ...
        has_boost: Whether it may run faster than stated for a while (turbo).
    """

    mhz: float | None = None
    base_mhz: float | None = None
    least_mhz: float | None = None
    most_mhz: float | None = None
    governor: str | None = None
    has_boost: bool | None = None


def processor_layout(root: Path = ROOT) -> Layout:
    """Return how the processor's cores lie, as far as they are online."""
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
    """Return the processor's clock, the range of its first core; virtual machines have /proc/cpuinfo alone."""
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
    """Return the name and version of the operating system as it is installed; None if unknown."""
    text = read_text(root / "etc" / "os-release") or read_text(root / "usr" / "lib" / "os-release")
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def c_library(root: Path = ROOT) -> str | None:
    """Return the name of the C library, with its version if it states one; None if unknown."""
    if sys.platform == "linux":
        with suppress(ValueError, OSError):
            if found := os.confstr("CS_GNU_LIBC_VERSION"):
                return found
    return "musl" if any((root / "lib").glob("ld-musl-*.so.*")) else None


# Files that containers have, and the words of control groups whose names have not been hidden.
_CONTAINER_FILES = {"podman": "run/.containerenv", "apptainer": ".singularity.d", "docker": ".dockerenv"}
_CONTAINER_GROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc",
                     "containerd": "containerd"}  # fmt: skip


def container_name(root: Path = ROOT) -> str | None:
    """Return the kind of container that this process runs in, "docker" or so; None if it is in none that is known."""
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
    """Return the maker of this virtual machine, or "unknown"; None if it is not one that is known."""
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
    """Return when Linux gives transparent huge pages: "always", "madvise" or "never"; None if it does not say."""
    text = read_text(root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled")
    return text.partition("[")[2].partition("]")[0] or None


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


def thread_times(process: int, thread: int) -> tuple[float, float] | None:
    """Return a thread's seconds on a core, and of waiting for one; None if unknown, or if it has ended.

    The three numbers of its schedstat are nanoseconds on a core, nanoseconds of waiting for one, and how often it had
    one (Documentation/scheduler/sched-stats.rst of Linux).
    """
    try:
        # A file object costs three times as much.
        descriptor = os.open(f"/proc/{process}/task/{thread}/schedstat", os.O_RDONLY)
        try:
            running, delayed = map(int, os.read(descriptor, 100).split()[:2])
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return running / 1e9, delayed / 1e9


def own_memory() -> int:
    """Return this process's memory in bytes, without pages shared with the page cache; 0 if unknown."""
    for line in read_text(Path("/proc/self/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
