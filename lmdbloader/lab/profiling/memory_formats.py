"""The memory formats of a model's weights and of the images that reach it, as a step's first convolution has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.graph import saved_tensors_hooks

from lmdbloader.lab.profiling.loader_facts import loader_in

Format = Literal["contiguous", "channels_last"]
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class FirstConvolution:
    """What the first convolution of a step works on.

    Attributes:
        images, weights: Their memory formats; None if their strides fit both, as with one channel or 1x1 kernels.
        is_half: Whether it computes in half precision.
    """

    images: Format | None
    weights: Format | None
    is_half: bool


def run_watched(step: Callable[[Any], Any], batch: Any) -> FirstConvolution | None:
    """Do a step, and return what its first convolution of images worked on.

    A convolution keeps its images and then its weights for the backward pass, and torch tells of it. So it is seen what
    really reaches the model, also if the step converts its batch. Compiled models keep other tensors: they have formats
    of their own.

    Args:
        step: Does a step.
        batch: Its argument.

    Returns:
        None if there is no such convolution, or if torch does not let it be watched.
    """
    found: list[FirstConvolution] = []
    before: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not found and before and _are_convolved(before[0], tensor):
            images, weights = before[0], tensor
            is_half = images.dtype in _HALF and weights.dtype in _HALF
            found.append(FirstConvolution(format_of(images), format_of(weights), is_half))
        before[:] = [] if found or tensor.requires_grad else [tensor]
        return tensor.detach()  # torch asks for another tensor: one that kept itself would never be freed

    has_begun = False
    try:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            has_begun = True
            step(batch)
    except RuntimeError as error:
        # Some parts of torch refuse to be watched, such as torch.func: then the step is done again without it.
        if has_begun and "saved tensor hooks" not in str(error):
            raise
        step(batch)
        return None
    return found[0] if found else None


def _are_convolved(images: torch.Tensor, weights: torch.Tensor) -> bool:
    return (
        images.ndim == weights.ndim == 4
        and not images.requires_grad
        and weights.requires_grad
        and images.shape[1] == weights.shape[1]
    )


def format_of(tensor: torch.Tensor) -> Format | None:
    """Return the memory format of a tensor (N, C, H, W); None if its strides fit both, or neither.

    >>> format_of(torch.zeros(2, 3, 8, 8)), format_of(torch.zeros(2, 1, 8, 8))
    ('contiguous', None)
    """
    is_last, is_contiguous = tensor.is_contiguous(memory_format=torch.channels_last), tensor.is_contiguous()
    if is_last == is_contiguous:
        return None
    return "channels_last" if is_last else "contiguous"


def warn_of_formats(found: FirstConvolution | None, batches: Any) -> str | None:
    """Return a warning with the line to paste if half precision meets two memory formats; else None.

    Args:
        found: Of a step.
        batches: The loader.
    """
    if found is None or not found.is_half or None in (found.images, found.weights) or found.images == found.weights:
        return None
    start = (
        f"Mixed precision with two memory formats: the model's weights are {found.weights}, the images that reach it "
        f"are {found.images}, so every step converts one of them."
    )
    # Half precision is fastest with channels_last, whichever of them has it already.
    if found.weights == "contiguous":
        return f"{start} Write model = model.to(memory_format=torch.channels_last)."
    loader = loader_in(batches)
    if loader is not None and loader.memory_format != torch.channels_last:
        return f"{start} Write Loader(..., memory_format=torch.channels_last)."
    return f"{start} Before the model, write images = images.contiguous(memory_format=torch.channels_last)."
