"""Everything about the machine that matters for loading, in one value."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdbloader.base.units import show_nbytes
from lmdbloader.lab.machine.devices import Device, describe_devices
from lmdbloader.lab.machine.libraries import Libraries, ThreadPools, describe_libraries, describe_thread_pools
from lmdbloader.lab.machine.memory import Memory, describe_memory
from lmdbloader.lab.machine.processor import Processor, describe_processor

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process finds around it; facts, no opinion.

    Attributes:
        processor, memory: With the limits of the process.
        libraries, thread_pools: Of this Python environment.
        devices: GPUs, also those that torch cannot use.
        system: Kernel and its release.
        python: Version of Python.
    """

    processor: Processor
    memory: Memory
    libraries: Libraries
    thread_pools: ThreadPools
    devices: tuple[Device, ...]
    system: str
    python: str

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        return {
            **dataclasses.asdict(self),
            "devices": [dataclasses.asdict(device) for device in self.devices],
            "num_usable_cores": self.processor.num_usable,
            "free_nbytes": self.memory.free_nbytes,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return it as a table of names and values, for people."""
        return [
            ("processor", self.processor.model),
            ("cores", _cores(self.processor)),
            ("memory", _memory(self.memory)),
            ("/dev/shm", _shared(self.memory)),
            ("GPU", _devices(self.devices)),
            ("torch", _torch(self.libraries)),
            ("threads", _threads(self.thread_pools)),
            ("images", _images(self.libraries)),
            ("Python", f"{self.python}, {self.system}"),
        ]

    def __str__(self) -> str:
        """Return the table as lines."""
        return "\n".join(f"{name:<10} {value}" for name, value in self.rows())


def describe(root: Path = _ROOT) -> Machine:
    """Return what this process finds around it; this imports torch and Pillow.

    Args:
        root: Where `proc`, `sys` and `dev` lie, which tests plant.

    >>> describe().processor.num_usable >= 1
    True
    """
    return Machine(
        describe_processor(root),
        describe_memory(root),
        describe_libraries(),
        describe_thread_pools(),
        describe_devices(root),
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
    )


def _cores(found: Processor) -> str:
    text = f"{found.num_usable} usable"
    limits = [f"{found.num_online} in the machine"] * (found.num_online != found.num_usable)
    limits += [f"affinity {found.num_allowed}"] * (found.num_allowed < found.num_online)
    limits += [f"control group {found.quota}"] * (found.quota is not None)
    return text + (f" ({', '.join(limits)})" if limits else "")


def _memory(found: Memory) -> str:
    text = f"{show_nbytes(found.free_nbytes)} free of {show_nbytes(found.usable_nbytes)}"
    if found.limit_nbytes is not None:
        text += f" (control group; the machine has {show_nbytes(found.total_nbytes)})"
    return text


def _shared(found: Memory) -> str:
    if found.shm_nbytes is None or found.shm_free_nbytes is None:
        return "none"
    return f"{show_nbytes(found.shm_free_nbytes)} free of {show_nbytes(found.shm_nbytes)}"


def _devices(devices: tuple[Device, ...]) -> str:
    names = [d.name if d.memory_nbytes is None else f"{d.name} ({show_nbytes(d.memory_nbytes)})" for d in devices]
    counted = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return ", ".join(counted) or "none"


def _torch(found: Libraries) -> str:
    build = f"CUDA {found.torch_cuda}" if found.torch_cuda and "ROCm" not in found.torch_cuda else found.torch_cuda
    if build is None:
        return f"{found.torch}, without GPU support"
    return f"{found.torch}, {build}" + ("" if found.sees_accelerator else ", finds no GPU")


def _threads(found: ThreadPools) -> str:
    parts = [f"torch {found.torch}", f"between operations {found.torch_interop}"]
    parts += [f"OpenCV {found.opencv}"] * (found.opencv is not None)
    return ", ".join(parts + [f"{name}={value}" for name, value in found.environment.items()])


def _images(found: Libraries) -> str:
    turbo = f"libjpeg-turbo {found.libjpeg_turbo}" if found.libjpeg_turbo else "no libjpeg-turbo"
    simple = f", simplejpeg {found.simplejpeg}" if found.simplejpeg else ""
    return f"{found.pillow} {found.pillow_version} with {turbo}{simple}"
