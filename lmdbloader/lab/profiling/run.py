"""Profiles of a loader with a step function, and with a step that is only waited out."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer

from lmdbloader.base.step_timer import StepTimer
from lmdbloader.errors import OptionError
from lmdbloader.lab.profiling.recorder import Recorder
from lmdbloader.lab.profiling.results import Profile

__all__ = ["profile", "rehearse"]


def profile(
    loader: Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    steps: int = 100,
    warmup: int | None = None,
    device: torch.device | str | None = None,
) -> Profile:
    """Do training steps, and say where their time goes, what holds them up, and what would help.

    The loader's epochs go on: what was read here does not come again.

    Args:
        loader: A Loader, torch's DataLoader, or any other iterable of batches; it is iterated over again where an epoch
            is too short.
        step_fn: Does a step: `step_fn(batch)`, or `step_fn(batch, lap)`, which calls `lap("copy")`, `lap("forward")`,
            `lap("backward")` and `lap("update")` at the end of each. Of one that does not tell, the work of torch's
            optimisers is "update", and the rest "compute".
        steps: To measure.
        warmup: Steps before that, which are not measured; None is as many as what is read ahead at the beginning lasts.
        device: That trains; None is the current CUDA device where CUDA is in use, else the CPU.

    Returns:
        The profile: print it.

    Raises:
        OptionError: A number is out of its range, or the loader gives no batch.

    >>> report = profile([torch.zeros(4, 3, 8, 8)] * 8, lambda batch: time.sleep(0.001), steps=20)
    >>> report.bottleneck, report.num_steps
    ('model', 20)
    """
    with Recorder(loader, warmup=warmup, device=device) as recorder:
        if _takes_lap(step_fn):
            for batch in recorder.take(steps):
                step_fn(batch, recorder.timer.lap)
        else:
            with _updates_told(recorder.timer):
                for batch in recorder.take(steps):
                    step_fn(batch)
    return recorder.profile()


def rehearse(
    loader: Iterable[Any],
    step_seconds: float,
    *,
    steps: int = 100,
    warmup: int | None = None,
) -> Profile:
    """Say whether a loader would feed steps of a given length: each is waited out, as for a device that computes.

    Args:
        loader: As for `profile`.
        step_seconds: How long a step takes without waiting for data.
        steps: To measure.
        warmup: As for `profile`.

    Returns:
        The profile; its steps are "compute".

    Raises:
        OptionError: A number is out of its range, or the loader gives no batch.
    """
    if not 0 <= step_seconds < float("inf"):
        raise OptionError(f"step_seconds={step_seconds}: expected seconds, at least 0")

    def wait(batch: Any) -> None:
        time.sleep(step_seconds)

    return profile(loader, wait, steps=steps, warmup=warmup, device="cpu")


def _takes_lap(step_fn: Callable[..., Any]) -> bool:
    """Return whether a step function must be given two things."""
    try:
        parameters = inspect.signature(step_fn).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 2


@contextmanager
def _updates_told(timer: StepTimer) -> Iterator[None]:
    """Count the work of torch's optimisers as "update"."""
    before = optimizer.register_optimizer_step_pre_hook(lambda *_: timer.lap("compute"))
    after = optimizer.register_optimizer_step_post_hook(lambda *_: timer.lap("update"))
    try:
        yield
    finally:
        before.remove()
        after.remove()
