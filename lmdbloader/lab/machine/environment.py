"""The environment of a result: all that somebody needs to repeat it on a like machine, and nothing about its user."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lmdbloader import __version__
from lmdbloader.base import system
from lmdbloader.lab.machine.description import THREAD_VARIABLES, describe
from lmdbloader.lab.machine.gpu import describe_driver
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
# The only environment variables whose values are kept.
_VARIABLES = (
    *THREAD_VARIABLES, "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
    "LMDBLOADER_KERNELS", "MALLOC_ARENA_MAX", "NVIDIA_TF32_OVERRIDE", "OMP_PROC_BIND", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip


def describe_environment(data: str | os.PathLike[str] | None = None, *, root: Path = _ROOT) -> dict[str, Any]:
    """Return what reproduces a result, as plain values for `json.dumps`; None stands for what is unknown here.

    It has the facts of `describe`, and those below. It has no name of a user or host, no path, and no value of an
    environment variable other than a few that change the speed.

    - lmdbloader, packages: versions.
    - architecture, distribution: of the system.
    - processor: also its sockets, physical cores, SMT and NUMA nodes.
    - memory: also when the system gives huge pages.
    - driver: of NVIDIA's GPUs, and the newest CUDA that it serves; cudnn: of torch.
    - storage: the file system of `data`, and the kind of its disk.

    Args:
        data: A dataset or folder that was read or written; None if there was none.
        root: The folder of `proc`, `sys`, `dev` and `etc`; tests plant one.

    >>> found = describe_environment()
    >>> "torch" in found["packages"]
    True
    """
    machine = describe(root).as_json()
    return {
        "lmdbloader": __version__,
        **machine,
        "architecture": platform.machine() or None,
        "distribution": _distribution(root),
        "packages": package_versions(),
        "processor": {**machine["processor"], **_processor_layout(root)._asdict()},
        "memory": {**machine["memory"], "huge_pages": _huge_pages(root)},
        "driver": None if (driver := describe_driver(root)) is None else asdict(driver),
        "cudnn": _cudnn(),
        "storage": None if data is None else _storage(data, root),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def environment_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `describe_environment` adds to the rows of `describe`, as names and values.

    Args:
        found: Its result.

    >>> dict(environment_rows(describe_environment()))["layout"].count("cores")
    1
    """
    processor, driver, storage = found["processor"], found["driver"], found["storage"]
    layout = [
        _counted(processor["sockets"], "socket"),
        _counted(processor["cores"], "physical core"),
        {True: "SMT on", False: "SMT off", None: "SMT unknown"}[processor["has_smt"]],
        _counted(processor["numa_nodes"], "NUMA node"),
    ]
    rows: dict[str, list[Any]] = {
        "layout": layout,
        "system": [found["distribution"], found["architecture"]],
        "driver": [] if driver is None else [driver["version"], driver["cuda"] and f"CUDA up to {driver['cuda']}"],
        "cuDNN": [found["cudnn"]],
        "storage": [] if storage is None else [storage["text"]],
        "variables": [f"{name}={value}" for name, value in found["variables"].items()],
        "packages": [f"{name} {release}" for name, release in found["packages"].items()],
    }
    return [(name, ", ".join(str(part) for part in parts if part)) for name, parts in rows.items() if any(parts)]


def package_versions(names: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of packages; those that are not installed are left out."""
    found = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError):  # not installed, or damaged
            continue
    return found


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


def _counted(number: int | None, what: str) -> str | None:
    return None if number is None else f"{number} {what}{'' if number == 1 else 's'}"
