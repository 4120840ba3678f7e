"""The training loop of a classifier: one epoch, the learning rate, and the time that the device waited for data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classification.precision import Precision
from classification.recipes import Schedule
from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.errors import OptionError

__all__ = ["EpochResult", "learning_rate", "parameter_groups", "train_epoch"]


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One process's results of an epoch.

    Attributes:
        loss: Mean over the steps.
        num_images: Images trained on.
        seconds: From asking for the first batch to the end of the last step.
        data_seconds: The part of them that the device waited for batches.
    """

    loss: float
    num_images: int
    seconds: float
    data_seconds: float


def learning_rate(peak: float, epoch: float, *, num_epochs: int, warmup: float, schedule: Schedule) -> float:
    """Return the learning rate at a moment: from 0 to the peak along a straight line, then down to 0.

    It depends on nothing else, so resuming a run needs no scheduler state.

    Args:
        peak: The highest rate.
        epoch: Epochs done, with fractions.
        num_epochs: Of the whole run.
        warmup: Epochs until the peak.
        schedule: "cosine" or "triangle".

    >>> [learning_rate(1.0, epoch, num_epochs=6, warmup=2, schedule="triangle") for epoch in (0, 1, 2, 4, 6)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if epoch < warmup:
        return peak * epoch / warmup
    rest = num_epochs - warmup
    progress = min((epoch - warmup) / rest, 1.0) if rest > 0 else float(epoch > warmup)
    if schedule == "triangle":
        return peak * (1 - progress)
    return peak * (1 + math.cos(math.pi * progress)) / 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups for an optimizer: weights, which decay, and biases and normalizations, which do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    *,
    precision: Precision,
    scaler: torch.amp.GradScaler | None = None,
    label_smoothing: float = 0.0,
    before_step: Callable[[int], None] | None = None,
    after_step: Callable[[int], None] | None = None,
) -> EpochResult:
    """Train on every batch once.

    Args:
        model: On the precision's device; it is left in training mode.
        optimizer: Of the model's parameters.
        batches: Yields (images, labels): images (B, 3, H, W) floating point and normalized, labels (B,) int64 or, if
            classes are mixed, (B, num_classes) shares; on any device.
        precision: Of the forward pass.
        scaler: For float16; the same one for the whole run.
        label_smoothing: Share of the target that is spread over all classes.
        before_step: Called with the step's number from 0 on, for example to set the learning rate.
        after_step: Called with the step's number, for example to save a checkpoint.

    Returns:
        Loss, images and times of this process.

    Raises:
        OptionError: There was no batch, or the loss is not finite.
    """
    model.train()
    scaler = scaler or precision.scaler()
    losses: list[Tensor] = []
    num_images = 0
    timer = StepTimer(precision.device)
    for images, labels in batches:
        timer.lap("data")
        if before_step is not None:
            before_step(len(losses))
        images = images.to(precision.device, non_blocking=True)
        labels = labels.to(precision.device, non_blocking=True)
        timer.lap("copy")
        # With gradients of None nothing is cleared, and the backward pass writes instead of adding.
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast():
            logits = model(images)
            loss = functional.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
        timer.lap("forward")
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        timer.lap("backward")
        scaler.step(optimizer)
        scaler.update()
        timer.lap("update")
        losses.append(loss.detach())
        num_images += len(images)
        if after_step is not None:
            after_step(len(losses) - 1)
            timer.lap("compute")
    if not losses:
        raise OptionError("the loader gave no batch: the dataset is smaller than one batch of all processes, or empty.")
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise OptionError(f"the loss is {mean}; a lower learning rate is the usual cure.")
    seconds = timer.seconds
    return EpochResult(mean, num_images, sum(seconds.values()), seconds["data"])
