"""Trains a comparison's models: whole runs, which are scored after every epoch, and turns of some seconds."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from classification import build_model as build_classifier
from classification import parameter_groups
from classification.precision import choose_precision
from superresolution import build_model as build_sr_model
from superresolution import cosine_rate, train_step
from torch import Tensor, nn
from torch.nn import functional

import lmdbloader
from comparison.arms import Batch, opened, scored_photos
from comparison.material import Pairs, Photos
from comparison.settings import SCALE, Arm, Setting
from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.lab.machine.gpu import GpuSampler, nvml_name
from lmdbloader.superres.evaluation import evaluate
from lmdbloader.transforms import CenterCrop

PHASES = StepTimer.PHASES
EMA_DECAY = 0.999
# Photographs that are held out are scored on windows of this side at most, so that scoring takes little of a run.
_SCORED_SIDE = 256
# Peak learning rates: of Adam for pairs, of SGD with momentum for 256 labeled images.
_RATES = {"srcnn": 1e-3, "edsr": 2e-4}
_CLASSIFIER_RATE = 0.1
_LEAST_STEPS = 3
_GPU_SECONDS = 1.0
# What is kept of `GpuUse`.
GPU_FIGURES = ("utilization_percent", "power_watts", "memory_mib", "temperature_celsius", "fan_percent",
               "performance_state")  # fmt: skip
# An epoch of a turn has at least so many batches and samples, so that its start is not timed again and again.
_TURN_BATCHES, _TURN_SAMPLES = 400, 20_000


class Learner:
    """A fresh model on a device, its optimizer, and one step of training."""

    def __init__(self, material: Pairs | Photos, setting: Setting, device: torch.device, seed: int) -> None:
        torch.manual_seed(seed)
        self.setting, self.device = setting, device
        self.model: Any
        self.optimizer: torch.optim.Optimizer
        if isinstance(material, Photos):
            self.rate = _CLASSIFIER_RATE * setting.batch_size / 256
            model = build_classifier(setting.model, len(material.classes))  # type: ignore[arg-type]
            kept = torch.channels_last if setting.is_channels_last else torch.contiguous_format
            self.model = model.to(device, memory_format=kept)  # type: ignore[call-overload]
            groups = parameter_groups(self.model, 1e-4)
            self.optimizer = torch.optim.SGD(groups, lr=self.rate, momentum=0.9, nesterov=True)
        else:
            self.rate = _RATES[setting.model]
            self.model = _super_resolution(setting.model).to(device)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rate)
        self.precision = choose_precision(setting.precision, device)
        self.scaler = self.precision.scaler()
        self.average = copy.deepcopy(self.model) if setting.has_ema else None
        self.model.train()

    def step(self, batch: Batch, timer: StepTimer, *, progress: float = 0.0) -> Tensor:
        """Do one step, at a share of the training; returns the loss, a tensor on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = cosine_rate(self.rate, progress)
        loss = self._classify(batch, timer) if self.setting.is_classifier else self._enlarge(batch, timer)
        if self.average is not None:
            with torch.no_grad():
                kept, new = self.average.parameters(), self.model.parameters()
                torch._foreach_lerp_(list(kept), list(new), 1 - EMA_DECAY)
            timer.lap("update")
        return loss

    def _enlarge(self, batch: Batch, timer: StepTimer) -> Tensor:
        return train_step(self.model, self.optimizer, batch[0], batch[1], timer=timer)

    def _classify(self, batch: Batch, timer: StepTimer) -> Tensor:
        setting = self.setting
        images, labels = (part.to(self.device, non_blocking=True) for part in batch[:2])
        if setting.stored_size is not None:
            images = functional.interpolate(images, size=(setting.size,) * 2, mode="bilinear", antialias=True)
        is_last = setting.is_channels_last != setting.is_mixed_format
        images = images.contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)
        timer.lap("copy")
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.autocast():
            logits = self.model(images)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=setting.label_smoothing)
        timer.lap("forward")
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        timer.lap("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        timer.lap("update")
        return loss.detach()


def _super_resolution(name: str) -> nn.Module:
    """Return SRCNN 9-1-5, or EDSR's baseline."""
    return build_sr_model("srcnn915" if name == "srcnn" else "edsr-baseline", SCALE)


class Judge:
    """Scores models on what is held out: PSNR of luma in dB, or the share of images whose first guess is right."""

    def __init__(self, material: Pairs | Photos, setting: Setting, device: torch.device) -> None:
        self._device = device
        self._bicubic = None
        if isinstance(material, Photos):
            self._images, self._labels = (part.to(device) for part in scored_photos(material, setting.size))
            return
        whole = lmdbloader.LMDBDataset(material.validation)
        side = min(_SCORED_SIDE, *(min(pair.hr.shape[-2:]) for pair in whole)) // SCALE * SCALE
        self._pairs = whole.transformed([CenterCrop(side)])

    def score(self, model: Any) -> float:
        """Return the score of a model; it stays in training mode."""
        if hasattr(self, "_pairs"):
            found = evaluate(model, self._pairs, SCALE, baseline=self._bicubic)
            self._bicubic = found.bicubic
            return found.psnrs[0]
        model.eval()
        with torch.no_grad():
            guesses = torch.cat([model(images).argmax(1) for images in self._images.split(64)])
        model.train()
        return float((guesses == self._labels).double().mean())

    @property
    def without_training(self) -> float | None:
        """The score that needs no model: bicubic's PSNR; None for classes, or before the first model was scored."""
        return None if self._bicubic is None else self._bicubic.psnr


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a run.

    Attributes:
        seconds: From asking for the first batch to the end of the last step; scoring is not in it.
        num_samples: Trained on.
        loss: Mean over the steps.
        score: Afterwards, on what is held out.
        phases: Seconds of each of PHASES.
    """

    seconds: float
    num_samples: int
    loss: float
    score: float
    phases: dict[str, float]


def train_run(
    material: Pairs | Photos,
    arm: Arm,
    setting: Setting,
    judge: Judge,
    *,
    device: torch.device,
    seed: int,
    epochs: int,
) -> list[Epoch]:
    """Train a fresh model for some epochs, the learning rate falling along a cosine, and score it after each.

    Args:
        material: The data.
        arm: Where batches come from.
        setting: Of the training.
        judge: Scores the model.
        device: That trains.
        seed: Of the weights, the order and the random transforms.
        epochs: How many.
    """
    learner = Learner(material, setting, device, seed)
    found = []
    with opened(material, arm, setting, device=device, seed=seed) as next_epoch:
        for number in range(epochs):
            timer = StepTimer(device)
            losses: list[Tensor] = []
            count = 0
            num_steps = max(len(material.files) // setting.batch_size, 1)
            began = time.perf_counter()
            timer.start()
            for batch in next_epoch():
                timer.lap("data")
                progress = (number + len(losses) / num_steps) / epochs
                losses.append(learner.step(batch, timer, progress=progress))
                count += len(batch[0])
                del batch  # its memory can be used again
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
            loss = float(torch.stack(losses).mean())
            score = judge.score(learner.average or learner.model)
            found.append(Epoch(seconds, count, loss, score, dict(timer.seconds)))
    return found


@dataclass(frozen=True, slots=True)
class Turn:
    """Some seconds of training.

    Attributes:
        samples_per_s: Of the whole loop.
        steps: How many.
        phases: Seconds of a step by phase, the mean.
        longest_wait: Longest wait for a batch, in seconds.
        gpu: GPU_FIGURES of the GPU, each None if it does not report it; None where NVML has not answered.
    """

    samples_per_s: float
    steps: int
    phases: dict[str, float]
    longest_wait: float
    gpu: dict[str, float | None] | None = None

    @property
    def stall(self) -> float:
        """The share of the time that was spent waiting for data."""
        return self.phases["data"] / sum(self.phases.values())


def take_turn(
    material: Pairs | Photos, arm: Arm, setting: Setting, *, device: torch.device, seconds: float, seed: int = 0
) -> Turn:
    """Train a fresh model for some seconds; starting and the first steps do not count."""
    learner = Learner(material, setting, device, seed)
    samples = max(_TURN_BATCHES * setting.batch_size, _TURN_SAMPLES)
    with opened(material, arm, setting, device=device, seed=seed, samples=samples) as next_epoch:
        batches = _endless(next_epoch)
        # As many as may have been ready before the loop began to take them.
        first = 2 * setting.workers + 2
        # NVML's first answer is about the second before.
        before = _GPU_SECONDS if device.type == "cuda" else 0.0
        take_steps(batches, learner.step, before, StepTimer(device), least=first)
        timer = StepTimer(device)
        with GpuSampler(nvml_name(device), seconds=0.1) as sampler:
            count = take_steps(batches, learner.step, seconds, timer, least=_LEAST_STEPS)
            rows = timer.rows()
        batches.close()
    means = dict(zip(PHASES, rows.mean(axis=0).tolist(), strict=True))
    speed = count * setting.batch_size / float(rows.sum())
    use = None if sampler.use is None else {name: getattr(sampler.use, name) for name in GPU_FIGURES}
    return Turn(speed, count, means, float(rows[:, 0].max()), use)


def take_steps(
    batches: Iterator[Any], step: Callable[[Any, StepTimer], object], seconds: float, timer: StepTimer, *, least: int
) -> int:
    """Do steps for some seconds, the wait for each batch included, and return how many.

    Args:
        batches: An endless iterator.
        step: Does one step on a batch, with laps of the timer.
        seconds: How long.
        timer: Gets the phases of every step.
        least: Steps to do at least.
    """
    count = 0
    timer.start()
    began = time.perf_counter()
    while count < least or time.perf_counter() - began < seconds:
        batch = next(batches)
        timer.lap("data")
        step(batch, timer)
        del batch
        count += 1
    return count


def _endless(next_epoch: Callable[[], Iterator[Batch]]) -> Any:
    while True:
        batches = next_epoch()
        try:
            yield from batches
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
