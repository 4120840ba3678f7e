"""The machine in one value: all that matters for loading, and that somebody needs to repeat a result on a like one."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.lab.formatting import WIDTH, define
from lmdbloader.lab.machine.gpu import Device, Driver, describe_gpus
from lmdbloader.lab.machine.storage import filesystem_of

_ROOT = Path("/")


# What this package requires, what builds its kernels and reads its images, other loaders and stores that it is compared
# with, and frameworks that train.
_PACKAGES = (
    "accelerate", "basicsr", "composer", "datasets", "fastai", "ffcv", "fsspec", "h5py", "jax", "keras",
    "lightning", "litdata", "llvmlite", "lmdb", "lz4", "matplotlib", "mosaicml-streaming", "numba", "numpy",
    "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-ml-py", "opencv-python", "opencv-python-headless",
    "pillow", "pillow-simd", "pyarrow", "pytorch-lightning", "scikit-image", "scipy", "simplejpeg",
    "tensorflow", "timm", "torch", "torchdata", "torchvision", "transformers", "webdataset", "zarr", "ziglang",
)  # fmt: skip
# Each is read when the library is first loaded; OMP_NUM_THREADS counts for torch and for OpenCV built with OpenMP, too.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# The only environment variables whose values are kept.
_VARIABLES = (
    *_THREAD_VARIABLES, "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
    "LMDBLOADER_KERNELS", "MALLOC_ARENA_MAX", "NVIDIA_TF32_OVERRIDE", "OMP_PROC_BIND", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as one process sees it: facts without a verdict. None stands for what is unknown here.

    It has no name of a user or host, no path, and no value of an environment variable other than a few that change the
    speed.

    Attributes:
        processor, memory: With the limits of the process.
        libraries, thread_pools: Of this Python environment.
        devices: GPUs, also those that torch cannot use.
        system: Kernel and its release.
        python: Version of Python.
        lmdbloader: Version of this package.
        architecture, distribution: Of the system.
        packages: Versions of the packages that matter, by name.
        driver: Of NVIDIA's GPUs, and the newest CUDA that it serves.
        cudnn: The version that torch finds.
        storage: Type and kind of the file system of the data that was read or written, the kind of its disk, and all of
            it as text.
        variables: Environment variables that change the speed.
    """

    processor: Processor
    memory: Memory
    libraries: Libraries
    thread_pools: ThreadPools
    devices: tuple[Device, ...]
    system: str
    python: str
    lmdbloader: str = __version__
    architecture: str | None = None
    distribution: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    driver: Driver | None = None
    cudnn: int | None = None
    storage: Mapping[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {
            **dataclasses.asdict(self),
            "devices": [dataclasses.asdict(device) for device in self.devices],
            "num_usable_cores": self.processor.num_usable,
            "free_nbytes": self.memory.free_nbytes,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return it as a table of names and values."""
        cpu, memory, found, pools = self.processor, self.memory, self.libraries, self.thread_pools
        limits = [f"{cpu.num_online} in the machine"] * (cpu.num_online != cpu.num_usable)
        limits += [f"affinity {cpu.num_allowed}"] * (cpu.num_allowed < cpu.num_online)
        limits += [f"control group {cpu.quota}"] * (cpu.quota is not None)
        free = f"{show_nbytes(memory.free_nbytes)} free of {show_nbytes(memory.usable_nbytes)}"
        if memory.limit_nbytes is not None:
            free += f" (control group; the machine has {show_nbytes(memory.total_nbytes)})"
        shared = "none"
        if memory.shm_nbytes is not None and memory.shm_free_nbytes is not None:
            shared = f"{show_nbytes(memory.shm_free_nbytes)} free of {show_nbytes(memory.shm_nbytes)}"
        names = [d.name if d.memory_nbytes is None else f"{d.name} ({show_nbytes(d.memory_nbytes)})"
                 for d in self.devices]  # fmt: skip
        gpus = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
        threads = [f"torch {pools.torch}", f"between operations {pools.torch_interop}"]
        threads += [f"OpenCV {pools.opencv}"] * (pools.opencv is not None)
        turbo = f"libjpeg-turbo {found.libjpeg_turbo}" if found.libjpeg_turbo else "no libjpeg-turbo"
        simple = f", simplejpeg {found.simplejpeg}" if found.simplejpeg else ""
        return [
            ("processor", cpu.model),
            ("cores", f"{cpu.num_usable} usable" + (f" ({', '.join(limits)})" if limits else "")),
            ("memory", free),
            ("/dev/shm", shared),
            ("GPU", ", ".join(gpus) or "none"),
            ("torch", _torch(found)),
            ("threads", ", ".join([*threads, *(f"{name}={value}" for name, value in pools.environment.items())])),
            ("images", f"{found.pillow} {found.pillow_version} with {turbo}{simple}"),
            ("Python", f"{self.python}, {self.system}"),
            *((name, ", ".join(str(part) for part in parts if part)) for name, parts in self._more() if any(parts)),
        ]

    def _more(self) -> list[tuple[str, list[Any]]]:
        """Return names and what is known of each: rows that may be empty."""
        cpu, driver = self.processor, self.driver
        parts = (cpu.sockets, "socket"), (cpu.cores, "physical core"), (cpu.numa_nodes, "NUMA node")
        layout = [count and counted(count, what) for count, what in parts]
        layout.insert(2, {True: "SMT on", False: "SMT off", None: "SMT unknown"}[cpu.has_smt])
        return [
            ("layout", layout),
            ("system", [self.distribution, self.architecture]),
            ("driver", [] if driver is None else [driver.version, driver.cuda and f"CUDA up to {driver.cuda}"]),
            ("cuDNN", [self.cudnn]),
            ("storage", [] if self.storage is None else [self.storage["text"]]),
            ("variables", [f"{name}={value}" for name, value in self.variables.items()]),
            ("packages", [f"{name} {release}" for name, release in self.packages.items()]),
        ]

    def __str__(self) -> str:
        """Return the table as lines."""
        return "\n".join(define(self.rows(), width=WIDTH))


def describe(data: str | os.PathLike[str] | None = None, *, root: Path = _ROOT) -> Machine:
    """Return the facts about this machine; this imports torch and Pillow.

    Args:
        data: A dataset or folder that was read or written, for its storage; None if there was none.
        root: The folder of `proc`, `sys`, `dev` and `etc`; tests plant one.

    >>> describe().processor.num_usable >= 1
    True
    """
    devices, driver = describe_gpus(root)
    return Machine(
        describe_processor(root),
        describe_memory(root),
        describe_libraries(),
        describe_thread_pools(),
        devices,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        architecture=platform.machine() or None,
        distribution=_distribution(root),
        packages={name: release for name in _PACKAGES if (release := _version(name)) is not None},
        driver=driver,
        cudnn=_cudnn(),
        storage=None if data is None else _storage(data, root),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )


def _storage(data: str | os.PathLike[str], root: Path) -> dict[str, Any]:
    found = filesystem_of(data, root)
    text = str(found).partition(", mounted at")[0]
    return {"type": found.type or None, "kind": found.kind, "device": found.device, "text": text}


def _cudnn() -> int | None:
    """Return the version of cuDNN that torch finds; None without it."""
    import torch

    try:
        return int(torch.backends.cudnn.version()) if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError, TypeError):  # none, or it does not fit the one that torch was built for
        return None


def _torch(found: Libraries) -> str:
    build = f"CUDA {found.torch_cuda}" if found.torch_cuda and "ROCm" not in found.torch_cuda else found.torch_cuda
    if build is None:
        return f"{found.torch}, without GPU support"
    return f"{found.torch}, {build}" + ("" if found.sees_accelerator else ", finds no GPU")


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor.

    Attributes:
        model: As the system names it; else the architecture.
        num_online: Logical cores of the machine.
        num_allowed: Cores of the process's CPU affinity.
        quota: Cores' worth of time that control groups grant, rounded up; None if nothing limits it.
        sockets, cores, has_smt, numa_nodes: Of the machine; None if unknown.
    """

    model: str
    num_online: int
    num_allowed: int
    quota: int | None
    sockets: int | None = None
    cores: int | None = None
    has_smt: bool | None = None
    numa_nodes: int | None = None

    @property
    def num_usable(self) -> int:
        """Cores that this process may use: the least of all limits, at least 1."""
        return max(1, min(self.num_allowed, self.num_online, self.quota or self.num_online))


def describe_processor(root: Path = _ROOT) -> Processor:
    """Return the facts about the processor."""
    online = os.cpu_count() or 1
    name = _processor_name(root) or platform.machine() or "unknown"
    layout = _processor_layout(root)._asdict()
    return Processor(name, online, system.allowed_cores(), system.quota_cores(root), **layout)


def _processor_name(root: Path) -> str:
    """Return the processor's name; "" if unknown."""
    for line in system.read_text(root / "proc" / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():  # x86, some ARM boards, MIPS
            return " ".join(value.split())
    return ""


class _Layout(NamedTuple):
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


def _processor_layout(root: Path) -> _Layout:
    """Return how the processor's cores lie, as far as they are online."""
    cpus = root / "sys" / "devices" / "system" / "cpu"
    folders = [found.parent for found in sorted(cpus.glob("cpu[0-9]*/topology"))]
    sockets = {system.read_text(folder / "topology" / "physical_package_id").strip() for folder in folders}
    siblings = {
        system.read_text(folder / "topology" / "core_cpus_list").strip()
        or system.read_text(folder / "topology" / "thread_siblings_list").strip()
        for folder in folders
    }
    nodes = list((root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"))
    active = system.read_text(cpus / "smt" / "active").strip()
    # Some boards name no package (-1); a kernel without SMT's switch may still say which threads share a core.
    shared = {"0": False, "1": True}.get(active)
    if shared is None and siblings - {""}:
        shared = len(folders) > len(siblings)
    return _Layout(
        len(sockets) if sockets and not sockets & {"", "-1"} else None,
        len(siblings) if siblings and "" not in siblings else None,
        shared,
        len(nodes) or None,
    )


def _distribution(root: Path) -> str | None:
    """Return the name and version of the operating system as it is installed; None if unknown."""
    text = system.read_text(root / "etc" / "os-release") or system.read_text(root / "usr" / "lib" / "os-release")
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def _huge_pages(root: Path) -> str | None:
    """Return when Linux gives transparent huge pages: "always", "madvise" or "never"; None if it does not say."""
    text = system.read_text(root / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled")
    return text.partition("[")[2].partition("]")[0] or None


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in bytes; 0 if unknown.

    Attributes:
        total_nbytes: Of the machine.
        available_nbytes: Available without swapping; includes page cache that the system would drop.
        limit_nbytes: The tightest limit of the process's control groups; None without one.
        limit_left_nbytes: Left below that limit; includes page cache that the system would drop. None without one.
        shm_nbytes, shm_free_nbytes: Size of /dev/shm and free space in it; None if it does not exist.
        huge_pages: When the system gives them; None if unknown.
    """

    total_nbytes: int
    available_nbytes: int
    limit_nbytes: int | None
    limit_left_nbytes: int | None
    shm_nbytes: int | None
    shm_free_nbytes: int | None
    huge_pages: str | None = None

    @property
    def usable_nbytes(self) -> int:
        """Bytes that this process may have at all, its page cache included."""
        return self.total_nbytes if self.limit_nbytes is None else min(self.total_nbytes, self.limit_nbytes)

    @property
    def free_nbytes(self) -> int:
        """Bytes that this process may still take under all limits, droppable page cache included."""
        left = self.limit_left_nbytes
        return self.available_nbytes if left is None else min(self.available_nbytes, left)


def describe_memory(root: Path = _ROOT) -> Memory:
    """Return sizes of the memory."""
    total, available = system.memory_sizes(root)
    limits = system.memory_limits(root)
    shm, shm_free = system.sizes_of(root / "dev" / "shm") or (None, None)
    return Memory(
        total,
        available,
        min(limit for limit, _ in limits) if limits else None,
        min(left for _, left in limits) if limits else None,
        shm,
        shm_free,
        _huge_pages(root),
    )


@dataclass(frozen=True, slots=True)
class Libraries:
    """The installed libraries.

    Attributes:
        pillow: Which package is PIL: "Pillow" or "pillow-simd".
        pillow_version: Its version.
        libjpeg_turbo: Version of libjpeg-turbo in it; None if it has another libjpeg, which is slower.
        simplejpeg: Version of simplejpeg, which has a libjpeg-turbo of its own.
        torch: Version of torch.
        torch_cuda: Version of CUDA (or "ROCm ...") that torch was built for; None for a build without accelerator.
        sees_accelerator: Whether torch finds a GPU that it can use.
        visible_devices: CUDA_VISIBLE_DEVICES, which hides GPUs from torch; None if it is not set.
    """

    pillow: Literal["Pillow", "pillow-simd"]
    pillow_version: str
    libjpeg_turbo: str | None
    simplejpeg: str | None
    torch: str
    torch_cuda: str | None
    sees_accelerator: bool
    visible_devices: str | None = None


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """Threads that libraries start in this process, in addition to those of a Loader.

    Attributes:
        torch: Threads of one torch operation on the CPU.
        torch_interop: Torch operations at the same time.
        opencv: Threads of OpenCV; None if nobody has imported it.
        environment: Those of OMP_NUM_THREADS, MKL_NUM_THREADS ... that are set, as they are.
    """

    torch: int
    torch_interop: int
    opencv: int | None
    environment: dict[str, str] = field(default_factory=dict)


def describe_libraries() -> Libraries:
    """Return the installed libraries; this imports torch and Pillow."""
    import PIL
    import torch
    from PIL import features

    hip = getattr(torch.version, "hip", None)
    # pillow-simd's versions are those of Pillow with a ".post".
    is_simd = ".post" in PIL.__version__ or (not _version("pillow") and _version("pillow-simd") is not None)
    return Libraries(
        "pillow-simd" if is_simd else "Pillow",
        PIL.__version__,
        features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None,
        _version("simplejpeg"),
        torch.__version__,
        f"ROCm {hip}" if hip else torch.version.cuda,
        torch.cuda.is_available(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def describe_thread_pools() -> ThreadPools:
    """Return how many threads libraries start in this process; this imports torch."""
    import torch

    cv2 = sys.modules.get("cv2")
    return ThreadPools(
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        None if cv2 is None else int(cv2.getNumThreads()),
        {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError):  # not installed, or damaged
        return None
