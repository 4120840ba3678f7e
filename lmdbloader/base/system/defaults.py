"""Safe answers for a system that cannot do or report something."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = [
    "CAN_CACHE_URLS", "CAN_DROP_CACHE", "CAN_STREAM_URLS", "MAPPED_FILES_SHRINK", "MAPS_LENGTHEN_FILES", "NORMAL",
    "POPULATE_READ", "QUEUES_NEED_FILES", "RANDOM", "WILL_NEED", "Clock", "Layout", "address_limit", "advise_order",
    "after_fork", "allowed_cores", "boot_id", "c_library", "connection_pair", "container_name", "cores_of_parent",
    "descriptor_of", "distribution", "drop_cache", "exchange", "folded", "group_folders", "handle_of",
    "huge_pages", "hypervisor_name", "is_cached", "link_file", "load_average", "machine_id",
    "map_in_a_row", "memory_file", "memory_sizes", "own_memory", "path_of", "populate", "process_limit",
    "process_seconds",
    "processor_clock", "processor_layout", "processor_name", "quota_cores", "read_text", "resident_pages",
    "settling_seconds", "sizes_of", "start_of", "tells_residency", "thread_times", "umask",
    "usable_name", "will_read",
]  # fmt: skip

ROOT = Path("/")
# Whether queues between processes take room in /dev/shm.
QUEUES_NEED_FILES = False
# Whether a file can get shorter while it is mapped: touching a page beyond its end ends the process.
MAPPED_FILES_SHRINK = True
# Whether a map for writing makes its file as long as itself.
MAPS_LENGTHEN_FILES = False
# The advice for madvise about the order of reads, and about pages that are needed soon.
NORMAL, RANDOM, WILL_NEED = 0, 1, 3
# The advice that maps pages for reading, and fails if one cannot be read; negative on a system without it.
POPULATE_READ = -1

# Whether `drop_cache` drops anything, and whether datasets at URLs can be cached, or cached in part.
CAN_DROP_CACHE = CAN_CACHE_URLS = CAN_STREAM_URLS = False

# -- Files


def drop_cache(descriptor: int) -> None:
    """Drop a file's pages from the system's memory, so that later reads see only data that reached the device.

    After a failed write, Linux keeps pages in memory that are on no device, and reports them as written. Here nothing
    is dropped.

    Raises:
        OSError: Data that is still to be written cannot be.
    """


def handle_of(descriptor: int) -> int:
    """Return the number by which other processes know an open file."""
    return descriptor


def descriptor_of(handle: int) -> int:
    """Return a descriptor of the open file of `handle_of`."""
    return handle


def usable_name(part: str) -> str:
    """Return a file's name in which characters and words that the system does not allow are replaced."""
    return part


def folded(name: str) -> str:
    """Return a key that is equal for all names that may lead to the same file; here that is the name itself."""
    return name


def read_text(path: Path) -> str:
    """Return the text of a system file, empty if it is missing or cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# -- Folders that are held open


def path_of(folder: int) -> Path | None:
    """Return a path that leads to an open folder even if another one has its name; None if the system has none."""
    return None


def exchange(a: Path, b: Path) -> bool:
    """Exchange the names of two folders in one step; return False, and do nothing, if the system cannot."""
    return False


def umask() -> int:
    """Return the permissions that new files do not get; all of them if unknown."""
    return 0o777


# -- What is in memory


def tells_residency(descriptor: int) -> bool:
    """Return whether the system says truthfully which pages of a map of this file are in memory."""
    return False


def resident_pages(address: int, nbytes: int, found: Any) -> bool:
    """Ask which pages of a map are in memory; return False if the system does not report it.

    Args:
        address: Of the first page.
        nbytes: Length of the part.
        found: (pages,) uint8, gets an odd number for each page that is in memory.
    """
    return False


def is_cached(descriptor: int, at: int) -> bool | None:
    """Return whether a byte of a file, if there is one, is in memory; None if the system does not report it."""
    return None


def populate(mapped: mmap.mmap) -> bool:
    """Read and map all pages of a map; return False if the system cannot, or if a page cannot be read."""
    return False


def link_file(source: str | Path, target: str | Path) -> None:
    """Make a hard link to a file.

    Raises:
        FileExistsError: There is a file of that name.
        OSError: The file system has no hard links.
    """
    os.link(source, target)


def map_in_a_row(files: Sequence[tuple[int, int, int]], nbytes: int) -> Any:
    """Return a read-only map of several files in one range of addresses; its memory is freed with the last view of it.

    Args:
        files: (descriptor, bytes, where it begins in the map), in order; no file is empty, and each begins at a
            multiple of the system's pages. Bytes between the files must not be touched.
        nbytes: Of the map.

    Returns:
        A buffer of that many bytes, aligned to a page.

    Raises:
        OSError: The system cannot do this (ENOTSUP), or refuses it (ENOMEM).
    """
    raise OSError(errno.ENOTSUP, "this system maps one file at a time")


def settling_seconds(descriptor: int) -> float | None:
    """Return how old the last change of an open file must be, so that any later change shows in the file's status.

    The status is size, modification and change time (`st_ctime_ns`), for a file that is opened again. None if it proves
    nothing there: on an unknown file system, or if the system has no change time.
    """
    return None


def advise_order(descriptor: int, *, random: bool) -> None:
    """Say whether a file will be read in random order; here nothing is done with it."""


def will_read(descriptor: int, at: int, nbytes: int) -> None:
    """Say that a part of a file will be read soon; here nothing is done with it."""


# -- The machine


def allowed_cores() -> int:
    """Return how many cores the system lets this process run on, at least 1; here all that the machine has."""
    return os.cpu_count() or 1


def cores_of_parent() -> int:
    """Return how many cores the system lets the process run on that has started this one; 1 if unknown."""
    return 1


def quota_cores(root: Path = ROOT) -> int | None:
    """Return the CPU quota of this process's control groups in cores, rounded up.

    Args:
        root: The folder with `proc` and `sys`.

    Returns:
        At least 1; None without a limit or control groups.
    """
    return None


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of the process's control groups and of their parents: the tightest limit applies.

    Args:
        controller: Of version 1, such as "cpu" or "memory"; version 2 has one hierarchy for all.
        root: The folder with `proc` and `sys`.
    """
    yield from ()


def address_limit() -> int | None:
    """Return the limit of this process's address space in bytes; None without one."""
    return None


def process_limit() -> int | None:
    """Return how many processes and threads this user may have; None without a limit."""
    return None


def load_average() -> float | None:
    """Return the load average of the last minute: threads that ran or waited to run; None if unknown."""
    return None


def memory_sizes(root: Path = ROOT) -> tuple[int, int]:
    """Return the bytes of the machine's memory, and those that are available without swapping; 0 if unknown."""
    return 0, 0


def sizes_of(folder: str | Path) -> tuple[int, int] | None:
    """Return size and free space of the file system of a folder in bytes; None if there is none, or if unknown."""
    return None


def processor_name(root: Path = ROOT) -> str:
    """Return the processor's name; "" if unknown."""
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
    """Return how the processor's cores lie.

    Args:
        root: The folder with `proc` and `sys`.
    """
    return Layout()


def processor_clock(root: Path = ROOT) -> Clock:
    """Return the processor's clock.

    Args:
        root: The folder with `proc` and `sys`.
    """
    return Clock()


def distribution(root: Path = ROOT) -> str | None:
    """Return the name and version of the operating system as it is installed; None if unknown.

    Args:
        root: The folder with `etc`.
    """
    return None


def c_library(root: Path = ROOT) -> str | None:
    """Return the name of the C library, with its version if it states one; None if unknown.

    Args:
        root: The folder with `lib`.
    """
    return None


def container_name(root: Path = ROOT) -> str | None:
    """Return the kind of container that this process runs in, "docker" or so; None if it is in none that is known.

    Args:
        root: The folder with `proc` and the files by which containers are known.
    """
    return None


def hypervisor_name(root: Path = ROOT) -> str | None:
    """Return the maker of this virtual machine, or "unknown"; None if it is no virtual machine that is known.

    Args:
        root: The folder with `proc` and `sys`.
    """
    return None


def huge_pages(root: Path = ROOT) -> str | None:
    """Return when Linux gives transparent huge pages: "always", "madvise" or "never"; None if it does not say.

    Args:
        root: The folder with `sys`.
    """
    return None


def memory_file() -> int | None:
    """Return a descriptor of an empty, unnamed file in memory; None if the system does not have or allow this."""
    return None


# -- Processes and threads


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in every forked child, from now on; here no process forks."""


def connection_pair() -> tuple[Connection[Any, Any], Connection[Any, Any]]:
    """Return both ends of a connection between two processes."""
    from multiprocessing import Pipe

    ends: Any = Pipe()  # on Windows they are of another type
    ours, theirs = ends
    return ours, theirs


def boot_id() -> str:
    """Return an id of this start of the system; "" if unknown: then the host's name tells machines apart."""
    return ""


def machine_id() -> str:
    """Return an id that tells this machine from others of the same name; "" if unknown."""
    return ""


def start_of(pid: int) -> int:
    """Return when a process started, in ticks of the system; 0 if unknown: then locks tell who is alive."""
    return 0


def thread_times(process: int, thread: int) -> tuple[float, float] | None:
    """Return a thread's seconds on a core, and of waiting for one; None if unknown, or if it has ended."""
    return None


def process_seconds(pid: int) -> float:
    """Return the processor time of another process; 0 if unknown, or if it has ended."""
    return 0.0


def own_memory() -> int:
    """Return this process's memory in bytes, without pages shared with the page cache; 0 if unknown."""
    return 0
