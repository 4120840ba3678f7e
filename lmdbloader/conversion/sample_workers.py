"""Reads and encodes the samples of `write`: in this process, in threads or in worker processes, always in order."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from threading import Event
from typing import Any, overload

import numpy as np

from lmdbloader.base.limits import explain_limit
from lmdbloader.base.option_names import option
from lmdbloader.conversion.image_file import ImageFile
from lmdbloader.conversion.pool import WorkerPool
from lmdbloader.conversion.samples import SampleRecipe
from lmdbloader.conversion.shipping import pack, pack_sample, unpack_sample
from lmdbloader.conversion.tasks import Part
from lmdbloader.errors import OptionError
from lmdbloader.fields import is_pil, is_tensor

# Smaller tasks cost more than they gain in balance, unless the samples are large.
_LEAST_SAMPLES = 4
_AS_THEY_ARE = (int, float, complex, str, bytes, bool, type(None), np.generic, ImageFile)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where tasks end: no record spans two tasks, so the files do not depend on which worker does which task.

    Attributes:
        first: Number of samples of the first group, which is a task.
        num_samples: Number of samples of every other task except the last.
    """

    first: int
    num_samples: int

    @classmethod
    def after(cls, first: int) -> Bounds:
        """Return the bounds for a first group of some samples."""
        return cls(first, max(first, _LEAST_SAMPLES))

    def cut(self, start: int, end: int) -> list[range]:
        """Return the tasks of the samples from `start` to `end`.

        >>> Bounds(3, 4).cut(0, 10), Bounds(3, 4).cut(5, 10)
        ([range(0, 3), range(3, 7), range(7, 10)], [range(5, 7), range(7, 10)])
        """
        tasks = []
        while start < end:
            stop = min(self.end_of(start), end)
            tasks.append(range(start, stop))
            start = stop
        return tasks

    def end_of(self, number: int) -> int:
        """Return the end of the task that has a sample."""
        if number < self.first:
            return self.first
        return self.first + ((number - self.first) // self.num_samples + 1) * self.num_samples


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
        return SampleWork(dataset, replace(self.recipe, reading=replace(self.recipe.reading, prepare=prepare)))


@dataclass(frozen=True, slots=True, eq=False)
class _Tasks(Sequence[list[Row]]):
    """The rows of each task; those of a list have their samples, so no worker gets the whole list."""

    samples: Any
    ranges: Sequence[range]

    def __len__(self) -> int:
        return len(self.ranges)

    @overload
    def __getitem__(self, which: int) -> list[Row]: ...
    @overload
    def __getitem__(self, which: slice) -> list[list[Row]]: ...
    def __getitem__(self, which: int | slice) -> list[Row] | list[list[Row]]:
        if isinstance(which, slice):
            return [self[number] for number in range(len(self))[which]]
        if isinstance(self.samples, list | tuple):
            return [Row(index, pack_sample(_alone(self.samples[index]), index)) for index in self.ranges[which]]
        return [Row(index) for index in self.ranges[which]]


@dataclass(frozen=True, slots=True)
class Crew:
    """Who reads and encodes samples.

    Attributes:
        num_workers: Processes or threads; 1 for neither, only this thread.
        threads: Whether samples with indices are read in threads.
    """

    num_workers: int = 1
    threads: bool = False

    @property
    def uses_processes(self) -> bool:
        """Whether samples with indices are read in processes."""
        return self.num_workers > 1 and not self.threads

    def encode_indexed(self, recipe: SampleRecipe, samples: Any, tasks: Sequence[range]) -> Iterator[Part]:
        """Yield the samples of some tasks as parts, in order.

        Args:
            recipe: The settings.
            samples: With integer indices.
            tasks: The numbers of the samples of each, consecutive.

        Raises:
            OptionError: A sample does not fit, or the samples cannot be sent to processes.
            WorkerError: A worker process died, or the dataset raised an exception there.
        """
        if self.num_workers <= 1 or len(tasks) <= 1:
            for task in tasks:
                yield from recipe.encode((samples[i] for i in task), task.start)
        elif self.threads:
            jobs = (_encode_range(recipe, samples, task) for task in tasks)
            yield from self._in_threads(jobs)
        else:
            yield from self._in_processes(recipe, samples, tasks)

    def encode_streamed(
        self, recipe: SampleRecipe, samples: Iterator[Any], first: int, bounds: Bounds
    ) -> Iterator[Part]:
        """Yield the samples of an iterator as parts, in order; it is read in this thread, and encoded in others.

        Args:
            recipe: The settings.
            samples: Those from number `first` on.
            first: The end of a task.
            bounds: Where tasks end.
        """
        if self.num_workers <= 1:
            while True:
                task = islice(samples, bounds.end_of(first) - first)
                if (head := next(task, _NOTHING)) is _NOTHING:
                    return
                whole = _Released(head, task)
                del head
                yield from recipe.encode(whole, first)
                first = bounds.end_of(first)
        yield from self._in_threads(_stream(recipe, samples, first, bounds))

    def _in_threads(self, jobs: Iterable[Callable[[Event], list[Part]]]) -> Iterator[Part]:
        """Yield the parts of jobs in their order; the next job is requested when there is a thread for it."""
        stopped = Event()
        waiting: deque[Future[list[Part]]] = deque()
        executor = ThreadPoolExecutor(self.num_workers, "lmdbloader-write")
        advice = f"Use fewer, such as {option('workers', max(1, self.num_workers // 2))}."
        try:
            for job in jobs:
                with explain_limit(f"one of {self.num_workers} threads that encode", advice):
                    waiting.append(executor.submit(job, stopped))
                while len(waiting) > self.num_workers or (waiting and waiting[0].done()):
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            stopped.set()  # after an error or Ctrl-C, a thread would read up to 1,024 samples more
            executor.shutdown(wait=True, cancel_futures=True)

    def _in_processes(self, recipe: SampleRecipe, samples: Any, tasks: Sequence[range]) -> Iterator[Part]:
        reading = recipe.reading
        bare = replace(recipe, reading=replace(reading, prepare=None))
        dataset = None if isinstance(samples, list | tuple) else samples
        example = samples[0] if dataset is None else None
        common = pack(dataset, reading.prepare, SampleWork(None, bare), example)
        with WorkerPool(self.num_workers, common) as pool:
            yield from pool.convert(None, _Tasks(samples, tasks))


def _alone(value: Any) -> Any:
    """Return a sample whose tensors are copies: a part of a tensor is pickled with the memory of the whole."""
    if is_tensor(value):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _alone(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_alone, value))
    return type(value)(map(_alone, value)) if type(value) in (list, tuple) else value


_NOTHING = object()


class _Released:
    """An item and those after it; the item is let go when it is taken, as it may hold much memory."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._first, self._rest = [first], rest

    def __iter__(self) -> Iterator[Any]:
        yield self._first.pop()
        yield from self._rest


def _encode_range(recipe: SampleRecipe, samples: Any, task: range) -> Callable[[Event], list[Part]]:
    return lambda stopped: list(recipe.encode(_until(stopped, (samples[i] for i in task)), task.start))


def _stream(
    recipe: SampleRecipe, samples: Iterator[Any], first: int, bounds: Bounds
) -> Iterator[Callable[[Event], list[Part]]]:
    """Yield jobs for the tasks of an iterator, whose samples are copied, as the next one may come in their memory."""
    reading = recipe.reading
    while True:
        end = bounds.end_of(first)
        task: list[Any] = []
        for number, sample in zip(range(first, end), samples, strict=False):
            # Encoded images are read from their files here: a file may be written again for the next sample.
            known = sample if reading.prepare is not None else reading.values(sample, number)
            task.append(own(known, number))
            del sample, known
        if not task:
            return
        yield _encode_list(recipe, task, first)
        first = end


def _encode_list(recipe: SampleRecipe, task: list[Any], first: int) -> Callable[[Event], list[Part]]:
    encode = recipe.encode_values if recipe.reading.prepare is None else recipe.encode
    return lambda stopped: list(encode(_until(stopped, task), first))


def _until(stopped: Event, samples: Iterable[Any]) -> Iterator[Any]:
    return takewhile(lambda _: not stopped.is_set(), samples)


def own(value: Any, number: int) -> Any:
    """Return a copy of a sample that shares none of the memory that the caller may fill again.

    Raises:
        OptionError: It holds an object that cannot be copied.
    """
    if isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: own(inner, number) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(own(inner, number) for inner in value))
    if type(value) in (list, tuple):
        return type(value)(own(inner, number) for inner in value)
    try:
        return value.copy() if is_pil(value) else copy.deepcopy(value)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise OptionError(
            f"sample {number}: a value of type {type(value).__name__} cannot be copied ({error}), which "
            f"{option('workers')} needs to read an iterator ahead. Leave workers out."
        ) from error
