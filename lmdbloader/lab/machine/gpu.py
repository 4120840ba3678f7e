"""NVIDIA GPUs: a list of them, and their utilization, power, memory and temperature over time, through NVML."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, mode
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmdbloader.base import system

if TYPE_CHECKING:
    import torch

_ROOT = Path("/")
_MIB = 2**20
_DRIVER_VERSION = re.compile(r"(?<= )\d+\.\d+(\.\d+)?(?= )")


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
        temperature_celsius: The highest; None if unknown.
        fan_percent: Of the fan's full speed, mean; None if unknown, as without a fan.
        performance_state: That it was in most often: 0 is the fastest, 15 the slowest; None if unknown.
    """

    name: str
    utilization_percent: float | None
    power_watts: float | None
    memory_mib: float | None
    num_samples: int
    temperature_celsius: float | None = None
    fan_percent: float | None = None
    performance_state: int | None = None


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

    def __init__(self, gpu: int | str | None = 0, *, seconds: float = 0.2) -> None:
        """Prepare.

        Args:
            gpu: Number of the GPU as NVML counts them, without regard to CUDA_VISIBLE_DEVICES, or its UUID; see
                `nvml_name`. With None nothing is sampled.
            seconds: Between two samples.
        """
        self.use: GpuUse | None = None
        self._gpu, self._seconds = gpu, seconds
        self._done = threading.Event()
        self._seen: list[tuple[float | None, ...]] = []
        self._name = ""
        self._open = ExitStack()
        self._nvml: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuSampler:
        """Begin to look."""
        if self._gpu is None:
            return self
        self._nvml = nvml = self._open.enter_context(_opened_nvml())
        if nvml is None:
            return self
        try:
            of = nvml.nvmlDeviceGetHandleByUUID if isinstance(self._gpu, str) else nvml.nvmlDeviceGetHandleByIndex
            handle = of(self._gpu)
            self._name = _text(nvml.nvmlDeviceGetName(handle))
            self._look(handle)
        except nvml.NVMLError:  # no such GPU, or one that this process may not ask
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
        self._open.close()
        # The first look is from before anything was done.
        seen = self._seen[1:] or self._seen
        if seen:
            shares, powers, memories, temperatures, fans, states = (
                [value for value in column if value is not None] for column in zip(*seen, strict=True)
            )
            self.use = GpuUse(
                self._name,
                fmean(shares) if shares else None,
                fmean(powers) if powers else None,
                max(memories, default=None),
                len(seen),
                max(temperatures, default=None),
                fmean(fans) if fans else None,
                int(mode(states)) if states else None,
            )

    def _watch(self, handle: Any) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._look(handle)
            except self._nvml.NVMLError:  # the GPU is lost: keep the readings so far
                return

    def _look(self, handle: Any) -> None:
        nvml = self._nvml
        looks: tuple[Callable[[], float | None], ...] = (
            lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB,
            lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            lambda: float(nvml.nvmlDeviceGetFanSpeed(handle)),
            lambda: _known_state(nvml.nvmlDeviceGetPerformanceState(handle)),
        )
        seen: list[float | None] = []
        for number, look in enumerate(looks):
            try:
                seen.append(look())
            except nvml.NVMLError:
                if self._seen and self._seen[0][number] is not None:  # it reported before: the GPU is lost
                    raise
                seen.append(None)  # not every model reports everything
        self._seen.append(tuple(seen))


def _known_state(state: int) -> int | None:
    """Return a performance state; NVML's 32 stands for an unknown one."""
    return state if 0 <= state < 16 else None


def nvml_name(device: torch.device) -> int | str | None:
    """Return the UUID or number of a CUDA device in NVML; None if unknown, and for other devices."""
    import torch

    if device.type != "cuda":
        return None
    uuid: Any = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return f"GPU-{uuid}"
    if os.environ.get("CUDA_VISIBLE_DEVICES"):  # CUDA counts those that it lists, NVML all
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def _text(name: Any) -> str:
    """Return a name that older releases of NVML give as bytes."""
    return name.decode() if isinstance(name, bytes) else str(name)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU.

    Attributes:
        name: Of its model.
        memory_nbytes: Its memory; None if only its name is known.
    """

    name: str
    memory_nbytes: int | None


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of NVIDIA's GPUs.

    Attributes:
        version: Of the driver.
        cuda: The newest version of CUDA that it can serve; None if only the driver's files were there to read.
    """

    version: str
    cuda: str | None


def describe_gpus(root: Path = _ROOT) -> tuple[tuple[Device, ...], Driver | None]:
    """Return NVIDIA's GPUs and their driver: from NVML if nvidia-ml-py is installed, else from its files in `proc`.

    Args:
        root: The folder of `proc`; NVML is asked only on the machine itself.
    """
    if root == _ROOT:
        with _opened_nvml() as nvml:
            if nvml is not None:
                with suppress(nvml.NVMLError):  # one that this process may not ask
                    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
                    devices = tuple(
                        Device(_text(nvml.nvmlDeviceGetName(h)), int(nvml.nvmlDeviceGetMemoryInfo(h).total))
                        for h in handles
                    )
                    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
                    version = _text(nvml.nvmlSystemGetDriverVersion())
                    return devices, Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}")
    folder = root / "proc" / "driver" / "nvidia"
    models = [
        value.strip()
        for path in sorted((folder / "gpus").glob("*/information"))
        for key, _, value in (line.partition(":") for line in system.read_text(path).splitlines())
        if key.strip() == "Model"
    ]
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ..."
    first = system.read_text(folder / "version").partition("\n")[0]
    found = _DRIVER_VERSION.search(first) if first.startswith("NVRM version:") else None
    return tuple(Device(model, None) for model in models), found and Driver(found[0], None)


@contextmanager
def _opened_nvml() -> Iterator[Any]:
    """Yield NVML's module, ready to be asked; None without it or without a driver."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
