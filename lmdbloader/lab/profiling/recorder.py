"""The recorder, which times the steps of a training loop, and `profile` and `rehearse`, which use it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch.optim import optimizer

from lmdbloader.base.stage_times import STAGES, StageTimes
from lmdbloader.base.stopwatch import PHASES, StepTimer
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.example_times import ExampleTimes, time_examples
from lmdbloader.lab.machine.description import describe
from lmdbloader.lab.machine.gpu import GpuSampler, nvml_name
from lmdbloader.lab.profiling.bottleneck import TypicalStep, advise, loading_cost, name_bottleneck
from lmdbloader.lab.profiling.loader_facts import facts_of, loader_in
from lmdbloader.lab.profiling.results import Profile, measure_phase
from lmdbloader.lab.profiling.threads import ThreadTimes, ThreadWatch

# Worker processes are looked at this often: the time of those that have ended since is unknown.
_SECONDS_BETWEEN_LOOKS = 0.02
# To spend on single examples, after the steps.
_EXAMPLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters at the beginning of a step: of the Loader's threads, of those that load, and of the loop's."""

    stages: StageTimes | None
    loading: ThreadTimes | None
    loop: ThreadTimes | None
    waiting: float


class Recorder:
    """Records where the time of a training loop's steps goes.

    Iterate over it instead of over the loader. Mark the phases of a step with `lap`; the rest is "compute".

    >>> with Recorder([torch.zeros(4, 3, 8, 8)] * 20, warmup=2) as recorder:
    ...     for batch in recorder:
    ...         loss = batch.mean()
    ...         recorder.lap("forward")
    >>> recorder.profile().bottleneck
    'model'
    """

    def __init__(
        self, batches: Iterable[Any], *, warmup: int | None = None, device: torch.device | str | None = None
    ) -> None:
        """Prepare; recording begins when it is entered.

        Args:
            batches: A Loader, torch's DataLoader, or anything else that gives batches. An object whose attribute
                `loader` is a Loader counts as that Loader.
            warmup: Steps at the beginning that are not measured; None leaves out those for which batches were read
                ahead at the beginning.
            device: The device that trains; None means the current CUDA device if CUDA is in use, else the CPU.

        Raises:
            OptionError: `warmup` is negative.
        """
        if warmup is not None and warmup < 0:
            raise OptionError(f"warmup={warmup}: expected at least 0")
        self._batches, self._loader = batches, loader_in(batches)
        self._facts = facts_of(batches)
        self.warmup = self._facts.warmup if warmup is None else warmup
        if device is None:
            in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = "cuda" if in_use else "cpu"
        self.device = torch.device(device)
        self._gpu = GpuSampler(nvml_name(self.device))
        self.timer = StepTimer(self.device)
        self._watch, self._loop = ThreadWatch(self._facts.kind), ThreadWatch("main")
        self._follow(getattr(batches, "_iterator", None))  # where DataLoader keeps that of persistent workers
        self._first: _Counters | None = None
        self._last: _Counters | None = None
        self._next_look = 0.0
        self._step, self._looked_at = 0, -1
        self._is_recording = self._is_working = self._has_recorded = self._was_timed = False
        self._waiting = self._began_waiting = 0.0
        self._batch_size: int | None = None
        self._side: int | None = None

    def __enter__(self) -> Recorder:
        """Begin to record.

        Raises:
            OptionError: It was entered before.
        """
        if self._has_recorded:
            raise OptionError("the recorder was used already: make a new one, lmdbloader.lab.Recorder(loader)")
        self._has_recorded = True
        if self._loader is not None:
            self._was_timed = self._loader.time_stages()
        self._gpu.__enter__()
        self._is_recording = True
        self.timer.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record no more; a step that was under way counts as it is."""
        self._finish()
        self._is_recording = False
        self._gpu.__exit__(kind, error, trace)
        if self._loader is not None:
            self._loader.time_stages(self._was_timed)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch.

        Raises:
            OptionError: It was not entered.
        """
        if not self._is_recording:
            raise OptionError("the recorder is not recording: write `with lab.Recorder(loader) as recorder:`")
        batches = iter(self._batches)
        self._follow(batches)
        try:
            while True:
                self.ask()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                self.got(batch)
                yield batch
                del batch  # its memory is free for another as soon as the loop lets it go
        finally:
            self._finish()  # before those who load are gone

    def take(self, steps: int) -> Iterator[Any]:
        """Yield the batches of the warm-up and of `steps` steps, from as many epochs as that takes.

        An iterable that cannot be iterated over again, such as a generator, may end sooner.

        Raises:
            OptionError: The recorder was not entered, `steps` is less than 1, or the loader gives no batch.
        """
        if steps < 1:
            raise OptionError(f"steps={steps}: expected at least 1")
        left = self.warmup + steps
        while left:
            before = left
            for batch in self:
                yield batch
                del batch
                left -= 1
                if not left:
                    return
            if left == before:
                if self._step:
                    return
                raise OptionError(
                    f"{self._facts.name}: it gives no batch; the dataset is empty, or smaller than one batch."
                )

    def lap(self, phase: str) -> None:
        """Count the step's time since the last lap, or since its batch came, as a phase.

        Args:
            phase: "copy", "forward", "backward" or "update"; "compute" if it is none of these.

        Raises:
            OptionError: `phase` is not one of these.
        """
        self.timer.lap(phase)

    def leave_out(self) -> None:
        """Leave out the time since the last lap, such as that of validation or a checkpoint."""
        self.timer.start()
        if self._facts.kind == "main":
            self._began_waiting = time.thread_time()

    def ask(self) -> None:
        """Record that the loop asks for a batch now; iterating does it by itself."""
        self._end_step()
        if self._step == self.warmup and self._first is None:
            self.timer.clear()
            self._first = self._look()
        elif self._facts.kind == "workers" and time.perf_counter() >= self._next_look:
            self._watch.look()
            self._next_look = time.perf_counter() + _SECONDS_BETWEEN_LOOKS
        if self._facts.kind == "main":
            self._began_waiting = time.thread_time()

    def got(self, batch: Any) -> None:
        """Record that a batch has come; iterating does it by itself."""
        if self._facts.kind == "main":
            self._waiting += time.thread_time() - self._began_waiting
        self.timer.lap("data")
        if self._batch_size is None:  # asking a tensor every time costs as much as all the rest
            self._batch_size, self._side = _num_samples(batch), _side(batch)
        self._is_working = True

    def profile(self) -> Profile:
        """Return the profile of the recorded steps; waits for the device.

        Raises:
            OptionError: No step came after the warm-up.
        """
        rows = self.timer.rows()
        if self._step <= self.warmup or not len(rows):
            raise OptionError(
                f"{self._step} steps were recorded, and the first {self.warmup} are left out: "
                f"{self._facts.name} reads ahead at the beginning. Record more, or give warmup=0."
            )
        first, last = self._first, self._last
        if first is None or last is None or self._is_recording:
            first, last = first or self._look(), self._look()
        facts, total = self._facts, float(rows.sum())
        stages = None if first.stages is None or last.stages is None else last.stages - first.stages
        loading, loop = (
            None if before is None or after is None else after - before
            for before, after in ((first.loading, last.loading), (first.loop, last.loop))
        )
        figures = _typical(rows, stages, loading, loop, last.waiting - first.waiting)
        feed = loading_cost(figures, facts.kind, facts.num_threads)
        is_copied = self.device.type != "cpu" and not facts.has_copied_to(self.device)
        name = name_bottleneck(figures, feed, is_copied=is_copied)
        if loading is not None and facts.kind == "main":
            loading = loading.part(last.waiting - first.waiting)
        return Profile(
            bottleneck=name,
            advice=advise(name, figures, feed, facts, side=self._side, device=str(self.device)),
            step_seconds=figures.step,
            stall=figures.stall,
            phases={
                phase: measure_phase(rows[:, number], total)
                for number, phase in enumerate(PHASES)
                if rows[:, number].any() or phase == "data"
            },
            step=measure_phase(rows.sum(axis=1), total),
            stages=stages,
            loading=loading,
            gpu=self._gpu.use,
            num_steps=len(rows),
            num_samples=len(rows) * (self._batch_size or 0),
            seconds=total,
            num_threads=facts.num_threads,
            loader=facts.name,
            environment=describe(facts.path).as_json(),
        )

    def _follow(self, iterator: Any) -> None:
        """Watch the worker processes of an iterator of DataLoader's, if it shows them."""
        workers = getattr(iterator, "_workers", None)
        if self._facts.kind == "workers" and workers:
            self._watch.follow([worker.pid for worker in workers])

    def _end_step(self) -> None:
        if self._is_working:
            self.timer.lap("compute")
            self._step += 1
            self._is_working = False

    def _finish(self) -> None:
        """End the step that is under way, and look once more."""
        self._end_step()
        if self._first is not None and self._looked_at != self._step:
            self._last, self._looked_at = self._look(), self._step

    def _look(self) -> _Counters:
        loading, loop = self._watch.look(), self._loop.look()
        return _Counters(
            None if self._loader is None else self._loader.stage_times(),
            loading if self._watch.is_there else None,
            loop if self._loop.is_there else None,
            self._waiting,
        )


def _typical(
    rows: Any, stages: StageTimes | None, loading: ThreadTimes | None, loop: ThreadTimes | None, waiting: float
) -> TypicalStep:
    """Return the means over all steps.

    Args:
        rows: (steps, phases) seconds.
        stages, loading, loop, waiting: Of all steps together.
    """
    number = len(rows)
    means = dict(zip(PHASES, rows.mean(axis=0).tolist(), strict=True))
    if stages is not None:
        each = {name: getattr(stages, name) / number for name in STAGES}
        stages = replace(stages, **each) if stages.total else None
    loading, loop = (times and ThreadTimes(times.running / number, times.delayed / number) for times in (loading, loop))
    step = sum(means.values())
    return TypicalStep(step, means["data"], means["copy"], stages, loading, loop, waiting / number, number)


def _num_samples(batch: Any) -> int:
    """Return how many samples a batch has: of its first tensor or list."""
    while True:
        if isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, tuple | list) and batch and isinstance(batch[0], torch.Tensor | tuple | list | dict):
            batch = batch[0]
        else:
            return len(batch) if hasattr(batch, "__len__") and getattr(batch, "shape", None) != () else 1


def _side(batch: Any) -> int | None:
    """Return the longest side of the images (B, C, H, W) in a batch, None if there are none."""
    if isinstance(batch, torch.Tensor):
        return max(batch.shape[-2:]) if batch.ndim == 4 else None
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return max((side for item in items if (side := _side(item)) is not None), default=None)


def profile(
    loader: Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    steps: int = 100,
    warmup: int | None = None,
    device: torch.device | str | None = None,
) -> Profile:
    """Run training steps; report where their time goes, the bottleneck, and the change that would help most.

    The loader's epochs go on: the batches that were read here do not come again.

    Args:
        loader: A Loader, torch's DataLoader, or any other iterable of batches; it is iterated over again if an epoch is
            too short.
        step_fn: Does a step: `step_fn(batch)`, or `step_fn(batch, lap)`, which calls `lap("copy")`, `lap("forward")`,
            `lap("backward")` and `lap("update")` at the end of each. Without laps, the work of torch's
            optimizers is "update", and the rest "compute".
        steps: To measure.
        warmup: Steps before that, which are not measured; None means until the batches read ahead are used up.
        device: The device that trains; None means the current CUDA device if CUDA is in use, else the CPU.

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
            _run(recorder, steps, lambda batch: step_fn(batch, recorder.timer.lap))
        else:
            with _updates_told(recorder.timer):
                _run(recorder, steps, step_fn)
    return replace(recorder.profile(), examples=_examples(loader))


def _run(recorder: Recorder, steps: int, step: Callable[[Any], Any]) -> None:
    for batch in recorder.take(steps):
        step(batch)
        del batch


def _examples(batches: Any) -> ExampleTimes | None:
    """Return the times of single examples; None if reading them might have effects."""
    loader = loader_in(batches)
    source = batches if loader is None else loader
    dataset, batch_size = getattr(source, "dataset", None), getattr(source, "batch_size", None)
    if not isinstance(dataset, LMDBDataset) or dataset.has_own_transform or not batch_size:
        return None
    if loader is not None and loader.views is not None:  # a sample of the dataset has none
        return None
    compiled = () if loader is None else loader.transforms[len(dataset.all_transforms) :]  # those of its own
    return time_examples(dataset, batch_size, transforms=compiled, seconds=_EXAMPLE_SECONDS)


def rehearse(
    loader: Iterable[Any],
    step_seconds: float,
    *,
    steps: int = 100,
    warmup: int | None = None,
) -> Profile:
    """Measure whether a loader keeps up with steps of a given length; a step only waits, as for a device that computes.

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
    """Count the work of torch's optimizers as "update"."""
    before = optimizer.register_optimizer_step_pre_hook(lambda *_: timer.lap("compute"))
    after = optimizer.register_optimizer_step_post_hook(lambda *_: timer.lap("update"))
    try:
        yield
    finally:
        before.remove()
        after.remove()
