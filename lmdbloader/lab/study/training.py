"""Trains a network on the batches of a feed, and says where each step's time went."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.base.stopwatch import StepTimer, take_steps
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.machine.gpu import watched
from lmdbloader.lab.stored import image_sizes
from lmdbloader.lab.study.endless_loader import EndlessLoader, latency_of
from lmdbloader.lab.study.results import from_plain
from lmdbloader.lab.study.rows import GpuLoad, Phases, Training
from lmdbloader.superres.tensors import to_channels, unit_floats, upscale

# Least steps of a turn, and its least seconds on a GPU: NVML reports the use of about the last second.
_LEAST_STEPS, _LEAST_GPU_SECONDS = 2, 1.0
_PHASES = [f.name for f in fields(Phases)]

ModelName = Literal["srcnn915", "srcnn955"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)


@dataclass(frozen=True, slots=True)
class TrainingTurn:
    """One turn of training.

    Attributes:
        num_samples: Samples trained on.
        steps: (steps, phases) seconds of each step, see `Phases`.
        gpu: The use of the device meanwhile.
    """

    num_samples: int
    steps: npt.NDArray[np.float64]
    gpu: GpuLoad | None


class Trainer:
    """A network that learns to restore the larger image of each sample from the smaller one.

    Where samples have one image, it learns to restore that from its copy of half the size, made on the device.
    """

    def __init__(self, name: ModelName, dataset: LMDBDataset, device: torch.device) -> None:
        """Build the network for a dataset's images.

        Raises:
            OptionError: Their sizes are not in a whole ratio.
        """
        places = _smallest_and_largest(dataset)
        # A sample's only image is the large one.
        self._small = None if places is None else places[0]
        self._large = 0 if places is None else places[1]
        self._scale = 2 if places is None else _scale(dataset, *places)
        self.model = _srcnn(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.model.train()

    def step(self, batch: Sequence[Tensor], timer: StepTimer) -> None:
        """Do one step on a batch of the fields that are read."""
        large = batch[self._large]
        if self._small is not None:
            self._restore(batch[self._small], large, timer)
            return
        # An odd row or column has no partner to be halved with.
        height, width = (side // 2 * 2 for side in large.shape[-2:])
        if not height or not width:
            raise OptionError(
                "images of 1 pixel have no half to be restored from. Take larger crops, or model=None (--model none)."
            )
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


def take_training_turn(feed: EndlessLoader, trainer: Trainer, seconds: float, *, warm_up: bool) -> TrainingTurn:
    """Train for some seconds; starting does not count.

    Args:
        feed: Gives batches.
        trainer: Takes them.
        seconds: How long.
        warm_up: Whether to do a step that does not count first: libraries choose their ways at the first of a shape.
    """
    timer = StepTimer(trainer.device)
    least = _LEAST_GPU_SECONDS if trainer.device.type == "cuda" else 0.0
    with feed.stream() as batches:
        for _ in range(feed.num_first):
            batch = next(batches)
        if warm_up:
            trainer.step(batch, StepTimer(trainer.device))
        del batch
        # NVML's first answer would be about the second before, when nothing was trained.
        take_steps(batches, trainer.step, least, StepTimer(trainer.device), least=0)
        with sampled(trainer.device) as gpu:
            count = take_steps(batches, trainer.step, max(seconds, least), timer, least=_LEAST_STEPS)
            rows = timer.rows()[:, : len(_PHASES)]
    return TrainingTurn(count * feed.setting.batch_size, rows, gpu[0] if gpu else None)


def read_training(value: Any) -> TrainingTurn:
    """Return a turn of training from the JSON of its fields.

    Raises:
        FormatError, KeyError, TypeError, ValueError: It is something else.
    """
    gpu = None if value["gpu"] is None else from_plain(GpuLoad, value["gpu"], "turn")
    steps = np.array(value["steps"], np.float64).reshape(-1, len(_PHASES))
    return TrainingTurn(int(value["num_samples"]), steps, gpu)


def training_of(turns: Sequence[TrainingTurn], num_samples: int) -> Training:
    """Return one figure of several turns.

    Args:
        turns: Of one setting.
        num_samples: Of the dataset, for the time of an epoch.
    """
    speeds = [float(turn.num_samples / turn.steps.sum()) for turn in turns]
    speed = statistics.median(speeds)
    steps = np.concatenate([turn.steps for turn in turns])
    used = [turn.gpu for turn in turns if turn.gpu is not None]
    return Training(
        samples_per_s=speed,
        epoch_seconds=num_samples / speed,
        phases=Phases(*steps.mean(axis=0).tolist()),
        wait=latency_of(steps[:, 0].tolist()),
        gpu=_mean_use(used) if used else None,
        num_steps=len(steps),
        turns=tuple(speeds),
    )


def _mean_use(used: Sequence[GpuLoad]) -> GpuLoad:
    watts, temperatures, fans, states = (
        [value for use in used if (value := getattr(use, name)) is not None]
        for name in ("power_watts", "temperature_celsius", "fan_percent", "performance_state")
    )
    return GpuLoad(
        statistics.fmean(use.utilisation_percent for use in used),
        statistics.fmean(watts) if watts else None,
        max(use.memory_mib for use in used),
        max(temperatures, default=None),
        statistics.fmean(fans) if fans else None,
        statistics.mode(states) if states else None,
    )


def _smallest_and_largest(dataset: LMDBDataset) -> tuple[int, int] | None:
    """Return the places of two image fields among those that are read; None if there is only one."""
    areas = [image_sizes(dataset, name)[0].prod() for name in dataset.fields]
    if len(areas) < 2:
        return None
    small, large = int(np.argmin(areas)), int(np.argmax(areas))
    return (small, large) if small != large else (0, 1)


def _scale(dataset: LMDBDataset, small: int, large: int) -> int:
    names = list(dataset.fields)
    low, high = image_sizes(dataset, names[small]), image_sizes(dataset, names[large])
    scale = int(high[0][0] // max(low[0][0], 1))
    if (low * scale != high).any():
        raise OptionError(
            f"{dataset.path}: the sizes of fields {names[small]!r} and {names[large]!r} are not in a whole ratio, so "
            "no model can be trained from one to the other. Give model=None (--model none) to load only."
        )
    return scale


@contextmanager
def sampled(device: torch.device) -> Iterator[list[GpuLoad]]:
    """Watch a device; afterwards the list holds its use, or is empty if it could not be read."""
    found: list[GpuLoad] = []
    with watched(device) as uses:
        yield found
    for use in uses:
        # A part of a GPU (MIG) does not report how busy it is.
        if use.utilization_percent is not None and use.memory_mib is not None:
            found.append(
                GpuLoad(
                    use.utilization_percent, use.power_watts, use.memory_mib, use.temperature_celsius, use.fan_percent,
                    use.performance_state,
                )
            )  # fmt: skip


def why_unknown() -> str:
    """Return why nothing could be asked, as the end of a sentence."""
    if find_spec("pynvml") is None:
        return "NVML needs nvidia-ml-py; install lmdbloader[gpu]"
    return "nvidia-ml-py is installed, but NVML, the driver's part, did not answer for this device"
