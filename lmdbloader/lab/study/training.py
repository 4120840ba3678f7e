"""Trains a network on the batches of a feed, and says where each step's time went."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.base.stopwatch import StepTimer, take_steps
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.machine.gpu import GpuSampler, nvml_name
from lmdbloader.lab.stored import image_sizes
from lmdbloader.lab.study.arms import Feed
from lmdbloader.superres.tensors import to_channels, unit_floats, upscale

PHASES = ("data", "copy", "forward", "backward", "update")
# What NVML reports, and how several turns make one figure.
_GPU_FIGURES: dict[str, Callable[[list[float]], float]] = {
    "utilization_percent": statistics.fmean, "power_watts": statistics.fmean, "memory_mib": max,
    "temperature_celsius": max, "fan_percent": statistics.fmean, "performance_state": statistics.mode,
}  # fmt: skip
ModelName = Literal["srcnn915", "srcnn955"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
# Least steps of a turn, and its least seconds on a GPU: NVML reports the use of about the last second.
_LEAST_STEPS, _LEAST_GPU_SECONDS = 2, 1.0


@dataclass(frozen=True, slots=True)
class TrainingTurn:
    """One turn of training.

    Attributes:
        num_samples: Samples trained on.
        steps: (steps, phases) seconds of each step.
        gpu: The use of the device meanwhile by figure; empty if it is unknown.
    """

    num_samples: int
    steps: npt.NDArray[np.float64]
    gpu: dict[str, float]

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return float(self.num_samples / self.steps.sum())


class Trainer:
    """A network that learns to restore the larger image of each sample from the smaller one.

    Where samples have one image, it learns to restore that from its copy of half the size, made on the device.
    """

    def __init__(self, name: ModelName, dataset: LMDBDataset, device: torch.device) -> None:
        """Build the network for a dataset's images.

        Raises:
            OptionError: The network does not take these images.
        """
        names = list(dataset.fields)
        sizes = [image_sizes(dataset, field) for field in names]
        order = sorted(range(len(sizes)), key=lambda place: int(sizes[place][0].prod()))
        # A sample's only image is the large one.
        self._small, self._large = (order[0] if len(order) > 1 else None), order[-1]
        low, high = sizes[order[0]], sizes[self._large]
        scale = 2 if self._small is None else int(high[0][0] // max(low[0][0], 1))
        if self._small is not None and (low * scale != high).any():
            raise OptionError(
                f"{dataset.path}: the sizes of fields {names[order[0]]!r} and {names[self._large]!r} are not in a "
                "whole ratio, so no model can be trained from one to the other. Give model=None (--model none)."
            )
        self.model = _srcnn(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device, self._scale = device, scale
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.model.train()
        self._warm: set[tuple[int, ...]] = set()

    def take_turn(self, feed: Feed, seconds: float) -> TrainingTurn:
        """Train for some seconds; starting does not count.

        Args:
            feed: Gives batches.
            seconds: How long.
        """
        timer = StepTimer(self.device)
        least = _LEAST_GPU_SECONDS if self.device.type == "cuda" else 0.0
        with feed.stream() as batches:
            for _ in range(feed.num_first):
                batch = next(batches)
            # Libraries choose their ways at the first step of a shape.
            if batch[0].shape not in self._warm:
                self._warm.add(batch[0].shape)
                self.step(batch, StepTimer(self.device))
            del batch
            # NVML's first answer would be about the second before, when nothing was trained.
            take_steps(batches, self.step, least, StepTimer(self.device), least=0)
            with GpuSampler(nvml_name(self.device), seconds=0.1) as sampler:
                count = take_steps(batches, self.step, max(seconds, least), timer, least=_LEAST_STEPS)
                steps = timer.rows()[:, : len(PHASES)]
        use = {name: getattr(sampler.use, name, None) for name in _GPU_FIGURES}
        gpu = {name: value for name, value in use.items() if value is not None}
        return TrainingTurn(count * feed.arm.batch_size, steps, gpu)

    def step(self, batch: Sequence[Tensor], timer: StepTimer) -> None:
        """Do one step on a batch of the fields that are read."""
        large = batch[self._large]
        if self._small is not None:
            self._restore(batch[self._small], large, timer)
            return
        # An odd row or column has no partner to be halved with.
        height, width = (side // 2 * 2 for side in large.shape[-2:])
        large = unit_floats(large.to(self.device, non_blocking=True))[..., :height, :width]
        self._restore(functional.avg_pool2d(large, 2), large, timer)

    def _restore(self, small: Tensor, large: Tensor, timer: StepTimer) -> None:
        small, large = (
            to_channels(unit_floats(images.to(self.device, non_blocking=True)), 1) for images in (small, large)
        )
        inputs = upscale(small, self._scale).contiguous(memory_format=torch.channels_last)
        timer.lap("copy")
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            output = self.model(inputs)
        loss = functional.mse_loss(output.float(), large)
        timer.lap("forward")
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        timer.lap("backward")
        self._optimizer.step()
        timer.lap("update")


def _srcnn(name: ModelName) -> nn.Sequential:
    """Return the three layers of Dong et al. (2014), which take luma that was enlarged."""
    middle = 5 if name == "srcnn955" else 1
    return nn.Sequential(
        nn.Conv2d(1, 64, 9, padding=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 32, middle, padding=middle // 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 1, 5, padding=2),
    )


def figures_of(turns: Sequence[TrainingTurn]) -> dict[str, float]:
    """Return the mean seconds of a step by phase, the 99th percentile of its wait, and the use of the device."""
    steps = np.concatenate([turn.steps for turn in turns])
    found = {f"{phase}_seconds": float(mean) for phase, mean in zip(PHASES, steps.mean(axis=0), strict=True)}
    found["wait_p99_seconds"] = float(np.percentile(steps[:, 0], 99))
    for name, combine in _GPU_FIGURES.items():
        known = [turn.gpu[name] for turn in turns if name in turn.gpu]
        if known:
            found[f"gpu_{name}"] = float(combine(known))
    return found
