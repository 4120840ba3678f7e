"""The type of numbers that a training step computes in, and what that type needs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from lmdbloader.errors import OptionError

__all__ = ["Precision", "choose_precision"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Precision:
    """What a step computes in.

    Attributes:
        device: Where.
        dtype: torch.bfloat16, float16 or float32: of the images in a batch, and of what autocast converts.
    """

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context in which a model's forward pass belongs."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def scaler(self) -> torch.amp.GradScaler:
        """Return what keeps float16's small gradients from becoming 0; for the other types it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)


def choose_precision(name: Literal["auto", "bf16", "fp16", "fp32"], device: torch.device) -> Precision:
    """Return the precision of a name; "auto": bf16 on GPUs that have it in hardware, fp16 on older ones, fp32 on CPUs.

    Before Ampere (Turing: T4, RTX 20; Volta: V100) bfloat16 is emulated or missing; float16 is what their matrix units
    compute in.

    Raises:
        OptionError: fp16 on a CPU, where nothing gains from it.
    """
    if name == "auto":
        if device.type != "cuda":
            name = "fp32"
        else:
            name = "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    if name == "fp16" and device.type == "cpu":
        raise OptionError("--amp fp16: float16 is for CUDA devices; on a CPU use bf16 or fp32.")
    return Precision(device, _TYPES[name])
