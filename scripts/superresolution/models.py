"""The networks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch

from lmdbloader.errors import OptionError
from superresolution.luma_models import ESPCN, SRCNN
from superresolution.residual_models import EDSR, RCAN, SRVGG
from superresolution.swinir import SwinIR

__all__ = ["LUMA_MODELS", "MODEL_NAMES", "Model", "ModelName", "build_model"]

Model = SRCNN | ESPCN | EDSR | RCAN | SwinIR | SRVGG
ModelName = Literal[
    "srcnn915", "srcnn955", "espcn", "edsr-small", "edsr-baseline", "rcan-small", "swinir-light", "srvgg16", "srvgg32"
]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
LUMA_MODELS = ("srcnn915", "srcnn955", "espcn")

_MODELS: dict[ModelName, Callable[[int], Model]] = {
    "srcnn915": partial(SRCNN, kernel_sizes=(9, 1, 5)),
    "srcnn955": partial(SRCNN, kernel_sizes=(9, 5, 5)),
    "espcn": ESPCN,
    "edsr-small": partial(EDSR, num_blocks=8),
    "edsr-baseline": EDSR,
    "rcan-small": RCAN,
    "swinir-light": SwinIR,
    "srvgg16": partial(SRVGG, num_convs=16),
    "srvgg32": SRVGG,
}


def build_model(name: ModelName, scale: int) -> Model:
    """Return a fresh model by its name, on the CPU.

    Its weights are channels_last, which tensor cores need and which makes SRCNN twice as fast on the CPU.

    Args:
        name: "srcnn915" or "srcnn955" (SRCNN with these kernel sizes), "espcn", "edsr-small" (8 blocks),
            "edsr-baseline", "rcan-small" (3 groups of 6 blocks), "swinir-light", "srvgg16" or "srvgg32".
        scale: Upscaling factor: 2, 3 or 4; SRCNN takes any.

    Raises:
        OptionError: The name is unknown, or the model does not have this scale.

    >>> sum(weights.numel() for weights in build_model("srcnn915", 2).parameters())
    8129
    """
    if name not in _MODELS:
        raise OptionError(f"unknown model {name!r}; there are {', '.join(MODEL_NAMES)}.")
    model = _MODELS[name](scale)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
