"""What a GPU does while a model trains on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from lmdbloader.lab.machine.gpu import GpuSampler, nvml_name
from lmdbloader.lab.study.results import GpuUse

_LOOK_SECONDS = 0.1


@contextmanager
def sampled(device: torch.device) -> Iterator[list[GpuUse]]:
    """Watch a device; the list holds what was seen afterwards, and is empty where nothing can be asked."""
    found: list[GpuUse] = []
    if device.type != "cuda":
        yield found
        return
    name = nvml_name(device)
    if name is None:
        yield found
        return
    with GpuSampler(name, seconds=_LOOK_SECONDS) as sampler:
        yield found
    use = sampler.use
    # A part of a GPU (MIG) does not tell how busy it is.
    if use is not None and use.utilization_percent is not None and use.memory_mib is not None:
        found.append(GpuUse(use.utilization_percent, use.power_watts, use.memory_mib))


def why_unknown() -> str:
    """Return why nothing could be asked, as the end of a sentence."""
    if find_spec("pynvml") is None:
        return "NVML needs nvidia-ml-py; install lmdbloader[gpu]"
    return "nvidia-ml-py is installed, but NVML, the driver's part, did not answer for this device"
