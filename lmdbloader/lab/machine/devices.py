"""The GPUs of the machine, whether or not torch can use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base.cores import read_text
from lmdbloader.lab.machine.gpu import text_of

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU.

    Attributes:
        name: Of its model.
        memory_nbytes: Its memory; None where only its name is known.
    """

    name: str
    memory_nbytes: int | None


def describe_devices(root: Path = _ROOT) -> tuple[Device, ...]:
    """Return NVIDIA's GPUs: from NVML where nvidia-ml-py is installed, else from what the driver says in `proc`.

    Args:
        root: Where `proc` lies; NVML is asked only on the machine itself.
    """
    found = _from_nvml() if root == _ROOT else None
    if found is not None:
        return found
    devices = []
    for path in sorted((root / "proc" / "driver" / "nvidia" / "gpus").glob("*/information")):
        for line in read_text(path).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                devices.append(Device(value.strip(), None))
    return tuple(devices)


def _from_nvml() -> tuple[Device, ...] | None:
    """Return what NVML knows, None where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Device(text_of(pynvml.nvmlDeviceGetName(handle)), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
            for handle in handles
        )
    except pynvml.NVMLError:  # one that this process may not ask
        return None
    finally:
        pynvml.nvmlShutdown()
