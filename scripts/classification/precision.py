"""The dtype that a training step computes in: autocast, loss scaling, and the choice by device."""

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
    """Device and dtype of a training step.

    Attributes:
        device: Of the model.
        dtype: torch.bfloat16, float16 or float32: of a batch's images and of autocast.
    """

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context for a model's forward pass."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def scaler(self) -> torch.amp.GradScaler:
        """Return the loss scaler that keeps small float16 gradients from becoming 0; it is disabled for other types."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)


def choose_precision(name: Literal["auto", "bf16", "fp16", "fp32"], device: torch.device) -> Precision:
    """Return the precision of a name; "auto": bf16 on GPUs that have it in hardware, fp16 on older ones, fp32 on CPUs.

    Before Ampere (Turing: T4, RTX 20; Volta: V100) bfloat16 is emulated or missing, and tensor cores compute in
    float16.

    Raises:
        OptionError: fp16 on a CPU, which is not faster with it.
    """
    if name == "auto":
        if device.type != "cuda":
            name = "fp32"
        else:
            name = "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    if name == "fp16" and device.type == "cpu":
        raise OptionError("--amp fp16: float16 is for CUDA devices; on a CPU use bf16 or fp32.")
    return Precision(device, _TYPES[name])
