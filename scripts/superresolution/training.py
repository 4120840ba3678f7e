"""The training loop: the losses, one step, one epoch, the learning rate, and weights averaged over the steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.errors import OptionError
from lmdbloader.superres.tensors import model_inputs, to_channels, unit_floats
from superresolution.models import Model

__all__ = ["LOSSES", "average_weights", "cosine_rate", "train_epoch", "train_step"]


def charbonnier(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of sqrt(d**2 + 0.001**2), the absolute difference made smooth at 0 (Lai et al. 2017)."""
    return ((output - target).square() + 1e-6).sqrt().mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": functional.l1_loss,
    "charbonnier": charbonnier,
    "mse": functional.mse_loss,
}


def cosine_rate(peak: float, progress: float) -> float:
    """Return the learning rate after a share of the training: from `peak` at 0 along a half cosine to 1 % of it at 1.

    It depends on nothing else, so resuming a run needs no scheduler state.

    >>> [round(cosine_rate(1.0, progress), 3) for progress in (0, 0.5, 1)]
    [1.0, 0.505, 0.01]
    """
    return peak * (0.01 + 0.99 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2)


class Reports:
    """A line about a run now and then: every 5 seconds at first, and more rarely in a long run.

    Attributes:
        num_steps: Steps of an epoch.
        batch_size: Pairs of a step.
    """

    def __init__(self, num_steps: int, batch_size: int) -> None:
        """Start the clock."""
        self.num_steps, self.batch_size = num_steps, batch_size
        self._began = self._last = time.monotonic()
        self._num_pairs, self._due = 0, self._began + 5

    def start(self) -> None:
        """Start to measure the speed, at the start of an epoch: scoring is not training."""
        self._last, self._num_pairs = time.monotonic(), 0

    def add(self, title: str, steps: int, loss: Tensor) -> str | None:
        """Count a step; return a line if one is due.

        Args:
            title: Of the epoch.
            steps: Done in it.
            loss: Of the last step; it is read only for a line.
        """
        now = time.monotonic()
        self._num_pairs += self.batch_size
        if now < self._due:
            return None
        value = float(loss)
        speed = self._num_pairs / max(now - self._last, 1e-9)
        self._last, self._num_pairs = now, 0
        self._due = now + min(max(5.0, (now - self._began) / 10), 60.0)
        return f"{title}: {steps:,} of {self.num_steps:,} steps, loss {value:.3e}, {speed:,.1f} pairs/s"


@torch.no_grad()
def average_weights(average: Model, model: Model, decay: float) -> None:
    """Update the exponential moving average after a step: `decay` of itself, plus the rest of the model's weights."""
    for mine, current in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(current, 1 - decay)


def train_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    lr: Tensor,
    hr: Tensor,
    *,
    loss: str | None = None,
    timer: StepTimer | None = None,
) -> Tensor:
    """Do one optimization step on a batch; on CUDA in bfloat16 wherever autocast allows it.

    Args:
        model: On the device to train on.
        optimizer: Of the model's parameters.
        lr: (B, 1 or 3, h, w) uint8, uint16 or float in 0..1, on any device.
        hr: (B, 1 or 3, h * scale, w * scale), likewise.
        loss: "l1", "charbonnier" or "mse"; None is "mse" for SRCNN and ESPCN, else "l1", as in the papers.
        timer: Gets the laps copy, forward, backward and update.

    Returns:
        The loss, a detached scalar tensor on the model's device.
    """
    device = next(model.parameters()).device
    timer = timer or StepTimer(device)
    on_cuda = device.type == "cuda"
    # Outside autocast: luma and bicubic keep float32's precision.
    inputs = model_inputs(model, unit_floats(lr.to(device, non_blocking=True)))
    target = to_channels(unit_floats(hr.to(device, non_blocking=True)), model.channels)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    timer.lap("copy")
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_cuda):
        output = model(inputs)
    found = LOSSES[loss or ("mse" if model.channels == 1 else "l1")](output.float(), target)
    timer.lap("forward")
    optimizer.zero_grad(set_to_none=True)
    found.backward()  # type: ignore[no-untyped-call]
    timer.lap("backward")
    optimizer.step()
    timer.lap("update")
    return found.detach()


def train_epoch(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    *,
    loss: str | None = None,
    timer: StepTimer | None = None,
    before_step: Callable[[int], None] | None = None,
    after_step: Callable[[int], None] | None = None,
    report: Callable[[int, Tensor], None] | None = None,
) -> float:
    """Train on every batch once.

    Args:
        model: On the device to train on; it is left in training mode.
        optimizer: Of the model's parameters.
        batches: Yields (lr, hr) batches as `train_step` takes them.
        loss: As for `train_step`.
        timer: Adds up the time of each phase.
        before_step: Called with the step's number from 0 on, for example to set the learning rate or draw progress.
        after_step: Called with the step's number, for example to save a checkpoint.
        report: Called with the step's number and its loss, on the model's device.

    Returns:
        The mean loss of the steps.

    Raises:
        OptionError: There was no batch, or the loss is not finite.
    """
    model.train()
    timer = timer or StepTimer(next(model.parameters()).device)
    losses: list[Tensor] = []
    timer.start()
    for step, (lr, hr) in enumerate(batches):
        timer.lap("data")
        if before_step is not None:
            before_step(step)
        losses.append(train_step(model, optimizer, lr, hr, loss=loss, timer=timer))
        if report is not None:
            report(step, losses[-1])
        if after_step is not None:
            after_step(step)
            timer.start()
    if not losses:
        raise OptionError("the loader gave no batch: the dataset is smaller than one batch, or empty.")
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise OptionError(f"the loss is {mean}; a lower learning rate is the usual cure.")
    return mean
