"""Reads and encodes the samples of `write`: in this process, in threads or in worker processes, always in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from threading import Event
from typing import Any

from lmdbloader.base.limits import explain_limit
from lmdbloader.base.option_names import option
from lmdbloader.conversion.pool import Tasks, WorkerPool
from lmdbloader.conversion.samples import SampleRecipe
from lmdbloader.conversion.shipping import pack, pack_sample, unpack_sample
from lmdbloader.conversion.tasks import Part
from lmdbloader.fields import is_tensor

# Smaller tasks cost more than they gain in balance, unless the samples are large.
_LEAST_SAMPLES = 4


def cut_tasks(first: int, start: int, end: int) -> list[range]:
    """Return the tasks of the samples from `start` to `end`.

    No record spans two tasks, so the files do not depend on which worker does which task.

    Args:
        first: Number of samples of the first group, which is a task; the others are of this size too, or of 4 samples.
        start: The first sample.
        end: The one after the last.

    >>> cut_tasks(3, 0, 10), cut_tasks(3, 5, 10)
    ([range(0, 3), range(3, 7), range(7, 10)], [range(5, 7), range(7, 10)])
    """
    step = max(first, _LEAST_SAMPLES)
    bounds = [start, *(stop for stop in range(first, end, step) if stop > start), end]
    return [range(*pair) for pair in pairwise(bounds)] if start < end else []


@dataclass(frozen=True, slots=True)
class Row:
    """A sample of a task for a worker process.

    Attributes:
        index: Its number.
        packed: The sample as `pack_sample` returns it, if the worker does not have the dataset; else empty.
    """

    index: int
    packed: bytes = b""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"sample {self.index}"


@dataclass(frozen=True, slots=True)
class SampleWork:
    """What a worker process does: `convert` makes parts of rows.

    Attributes:
        dataset: Indexable by integers; None if the rows have their samples.
        recipe: The settings.
    """

    dataset: Any
    recipe: SampleRecipe

    def convert(self, rows: Sequence[Row], at: Callable[[int], None]) -> Iterator[Part]:
        """Yield parts; `at` is called with the place of each row before it is read."""

        def read() -> Iterator[Any]:
            for place, row in enumerate(rows):
                at(place)
                yield unpack_sample(row.packed) if self.dataset is None else self.dataset[row.index]

        return self.recipe.encode(read(), rows[0].index)

    def with_parts(self, dataset: Any, prepare: Any) -> SampleWork:
        """Return the work with the caller's dataset and function, which come separately."""
        return SampleWork(dataset, replace(self.recipe, prepare=prepare))


def _rows(samples: Any, task: range) -> list[Row]:
    """Return the rows of a task; those of a list have their samples, so no worker gets the whole list."""
    if isinstance(samples, list | tuple):
        return [Row(index, pack_sample(_alone(samples[index]), index)) for index in task]
    return [Row(index) for index in task]


def encode_all(
    recipe: SampleRecipe, samples: Any, tasks: Sequence[range], num_workers: int, *, threads: bool
) -> Iterator[Part]:
    """Yield the samples of some tasks as parts, in order.

    Args:
        recipe: The settings.
        samples: With integer indices.
        tasks: The numbers of the samples of each, consecutive.
        num_workers: Processes or threads; 1 for neither, only this thread.
        threads: Whether they are threads.

    Raises:
        OptionError: A sample does not fit, or the samples cannot be sent to processes.
        WorkerError: A worker process died, or the dataset raised an exception there.
    """
    if num_workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield from recipe.encode((samples[i] for i in task), task.start)
    elif threads:
        yield from _in_threads(recipe, samples, tasks, num_workers)
    else:
        dataset = None if isinstance(samples, list | tuple) else samples
        example = samples[0] if dataset is None else None
        common = pack(dataset, recipe.prepare, SampleWork(None, replace(recipe, prepare=None)), example)
        with WorkerPool(num_workers, common) as pool:
            yield from pool.convert(None, Tasks(len(tasks), lambda number: _rows(samples, tasks[number])))


def _in_threads(recipe: SampleRecipe, samples: Any, tasks: Sequence[range], num_workers: int) -> Iterator[Part]:
    """Yield the parts of tasks in their order; the next task is begun when there is a thread for it."""
    stopped = Event()

    def encode(task: range) -> list[Part]:
        numbers = takewhile(lambda _: not stopped.is_set(), task)
        return list(recipe.encode((samples[i] for i in numbers), task.start))

    waiting: deque[Future[list[Part]]] = deque()
    executor = ThreadPoolExecutor(num_workers, "lmdbloader-write")
    advice = f"Use fewer, such as {option('workers', max(1, num_workers // 2))}."
    try:
        for task in tasks:
            with explain_limit(f"one of {num_workers} threads that encode", advice):
                waiting.append(executor.submit(encode, task))
            while len(waiting) > num_workers or (waiting and waiting[0].done()):
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        stopped.set()  # after an error or Ctrl-C, a thread would read up to 1,024 samples more
        executor.shutdown(wait=True, cancel_futures=True)


def _alone(value: Any) -> Any:
    """Return a sample whose tensors are copies: a part of a tensor is pickled with the memory of the whole."""
    if is_tensor(value):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _alone(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_alone, value))
    return type(value)(map(_alone, value)) if type(value) in (list, tuple) else value
