"""NVIDIA GPUs: a list of them, and their utilisation, power and memory over time, through NVML."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmdbloader.base import system

if TYPE_CHECKING:
    import torch

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of a GPU over some time.

    Attributes:
        name: Of the model.
        utilization_percent: Share of the time in which a kernel ran, mean; None if unknown, as
            parts of a GPU (MIG) do not.
        power_watts: Mean; None if unknown.
        memory_mib: The most that was in use, by all programs on it; None if unknown.
        num_samples: How often it was looked at.
    """

    name: str
    utilization_percent: float | None
    power_watts: float | None
    memory_mib: float | None
    num_samples: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class GpuSampler:
    """Looks at a GPU while it is entered; without NVML, or a GPU, it does nothing.

    NVML is Python's nvidia-ml-py (`pip install lmdbloader[gpu]`) and NVIDIA's driver.

    >>> with GpuSampler() as sampler:
    ...     pass  # train
    >>> sampler.use is None or sampler.use.num_samples > 0
    True

    Attributes:
        use: The result, after the context; None if the GPU could not be read.
    """

    def __init__(self, gpu: int | str = 0, *, seconds: float = 0.2) -> None:
        """Prepare.

        Args:
            gpu: Number of the GPU as NVML counts them, which knows nothing of CUDA_VISIBLE_DEVICES, or its UUID.
            seconds: Between two looks.
        """
        self.use: GpuUse | None = None
        self._gpu, self._seconds = gpu, seconds
        self._done = threading.Event()
        self._seen: list[tuple[float | None, float | None, float | None]] = []
        self._name = ""
        self._nvml: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuSampler:
        """Begin to look."""
        try:
            import pynvml
        except ImportError:
            return self
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # no driver
            return self
        self._nvml = pynvml
        try:
            handle = (
                pynvml.nvmlDeviceGetHandleByUUID(self._gpu)
                if isinstance(self._gpu, str)
                else pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
            )
            self._name = text_of(pynvml.nvmlDeviceGetName(handle))
            self._look(handle)
        except pynvml.NVMLError:  # no such GPU, or one that this process may not ask
            return self
        self._thread = threading.Thread(target=self._watch, args=(handle,), name="gpu-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking, and set `use`."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        # The first look is from before anything was done.
        seen = self._seen[1:] or self._seen
        if seen:
            shares, powers, memories = (
                [value for value in column if value is not None] for column in zip(*seen, strict=True)
            )
            self.use = GpuUse(
                self._name,
                sum(shares) / len(shares) if shares else None,
                sum(powers) / len(powers) if powers else None,
                max(memories, default=None),
                len(seen),
            )

    def _watch(self, handle: Any) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._look(handle)
            except self._nvml.NVMLError:  # the GPU is lost: keep the readings so far
                return

    def _look(self, handle: Any) -> None:
        nvml = self._nvml
        looks: tuple[Callable[[], float], ...] = (
            lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB,
        )
        seen: list[float | None] = []
        for number, look in enumerate(looks):
            try:
                seen.append(look())
            except nvml.NVMLError:
                if self._seen and self._seen[0][number] is not None:  # it reported before: the GPU is lost
                    raise
                seen.append(None)  # not every model reports everything
        self._seen.append((seen[0], seen[1], seen[2]))


def nvml_name(device: torch.device) -> int | str | None:
    """Return the UUID or number of a CUDA device in NVML; None if unknown."""
    import torch

    uuid: Any = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return f"GPU-{uuid}"
    if os.environ.get("CUDA_VISIBLE_DEVICES"):  # CUDA counts those that it lists, NVML all
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def text_of(name: Any) -> str:
    """Return a name that older releases of NVML give as bytes."""
    return name.decode() if isinstance(name, bytes) else str(name)


_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU.

    Attributes:
        name: Of its model.
        memory_nbytes: Its memory; None if only its name is known.
    """

    name: str
    memory_nbytes: int | None


def describe_devices(root: Path = _ROOT) -> tuple[Device, ...]:
    """Return NVIDIA's GPUs: from NVML if nvidia-ml-py is installed, else from the driver's files in `proc`.

    Args:
        root: The folder of `proc`; NVML is asked only on the machine itself.
    """
    found = _from_nvml() if root == _ROOT else None
    if found is not None:
        return found
    devices = []
    for path in sorted((root / "proc" / "driver" / "nvidia" / "gpus").glob("*/information")):
        for line in system.read_text(path).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                devices.append(Device(value.strip(), None))
    return tuple(devices)


def _from_nvml() -> tuple[Device, ...] | None:
    """Return the GPUs that NVML reports; None if it cannot be asked."""
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
