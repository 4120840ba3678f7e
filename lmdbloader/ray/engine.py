"""The engine of a conversion in parts on Ray: one task for each part, a few at a time, retried if its worker died."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.text import plain
from lmdbloader.conversion.parts import ConvertedPart, convert_part
from lmdbloader.errors import LmdbloaderError, LockedError, WorkerError
from lmdbloader.format.layout import part_name

# How often a task sends its messages, and how often the driver reads them.
_LOOK_SECONDS = 1.0
# Tasks that are queued in Ray for each CPU: the next one starts at once, and an autoscaler sees the demand.
_WAITING_PER_CPU = 1
# The attempts at a part whose workers die: as many as Ray's default, which retries a task three times.
_MOST_DEATHS = 4
# A part that another process is making is retried after a pause, while the conversion has progressed this lately.
_PAUSE_SECONDS, _PATIENCE_SECONDS = 2.0, 120.0

Advance = Callable[[int, int], None]
Log = Callable[[str], None]


@dataclass(slots=True)
class _Part:
    """A part that is not complete yet.

    Attributes:
        number: Its number.
        attempt: The number of its present task, from 1.
        done: Inputs and bytes that this task has converted.
        shown: The most inputs and bytes that any of its tasks has converted, which is what the progress bar counts.
        deaths: Workers that died while making it.
        waits_until: The time before which no task is started for it.
        is_held: Whether another process was making it when it was last tried.
    """

    number: int
    attempt: int = 0
    done: list[int] = field(default_factory=lambda: [0, 0])
    shown: list[int] = field(default_factory=lambda: [0, 0])
    deaths: int = 0
    waits_until: float = 0.0
    is_held: bool = False

    def advance(self, num_sources: int, nbytes: int, show: Advance) -> None:
        """Count what its task has converted, and show what no earlier task had converted."""
        self.done = [self.done[0] + num_sources, self.done[1] + nbytes]
        more = [max(0, now - before) for now, before in zip(self.done, self.shown, strict=True)]
        if any(more):
            self.shown = [before + new for before, new in zip(self.shown, more, strict=True)]
            show(*more)


def make_parts(
    ray: Any,
    target: Path,
    numbers: Sequence[int],
    keywords: Mapping[str, Any],
    advance: Advance,
    log: Log,
    *,
    at_once: int | None,
    is_local: bool,
) -> Iterator[ConvertedPart]:
    """Make parts of a planned set with tasks of Ray, and yield facts about each.

    Args:
        ray: The package, connected to a cluster.
        target: The set.
        numbers: The numbers of the parts.
        keywords: Keyword arguments of `convert_part`.
        advance: Called with the numbers of inputs and bytes that were just converted.
        log: Called with each message, a line of text.
        at_once: The most parts that are made at the same time; None for as many as the cluster has CPUs.
        is_local: Whether the cluster was started for this conversion, on this machine.

    Raises:
        LmdbloaderError: The first error of a part, as by `convert_part`.
        WorkerError: Several workers died while making the same part, or a node cannot run the task.
        LockedError: Another process is making a part, and nothing else has progressed for two minutes.
    """
    log(plain(f"Ray: {_described(ray, is_local)}"))
    run = _Run(ray, os.path.abspath(target), dict(keywords), advance, log, at_once)
    run.waiting.extend(_Part(number) for number in numbers)
    try:
        while run.waiting or run.busy:
            run.start_tasks()
            yield from run.look()
    finally:
        run.stop()


def _described(ray: Any, is_local: bool) -> str:
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    cpus = f"{ray.cluster_resources().get('CPU', 0):.0f} CPUs"
    return f"{cpus} of this machine" if is_local else f"a cluster of {nodes} nodes with {cpus}"


class _Run:
    """The tasks of a conversion.

    Attributes:
        waiting: Parts without a task.
        busy: Parts with one, by the reference to its result.
    """

    def __init__(
        self, ray: Any, target: str, keywords: Mapping[str, Any], show: Advance, log: Log, at_once: int | None
    ) -> None:
        self._ray, self._target, self._keywords = ray, target, keywords
        self._show, self._log, self._at_once = show, log, at_once
        self.waiting: deque[_Part] = deque()
        self.busy: dict[Any, _Part] = {}
        # Ray retries nothing: the driver does, so that it knows which attempt a message is about.
        options = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": "SPREAD", "name": "lmdbloader part"}
        self._task = ray.remote(**options)(make_part)
        self._messages = self._make_messages()
        self._moved = self._read_at = time.monotonic()

    def _make_messages(self) -> Any:
        """Return the actor that tasks send their messages to, preferably on the driver's node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, "name": None}
        return self._ray.remote(**options)(Messages).remote()

    def start_tasks(self) -> None:
        """Start tasks for waiting parts, up to the number that may run or be queued in Ray."""
        most = self._at_once and max(1, self._at_once)
        if most is None:
            most = (1 + _WAITING_PER_CPU) * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        now = time.monotonic()
        for _ in range(len(self.waiting)):
            if len(self.busy) >= most:
                return
            part = self.waiting.popleft()
            if part.waits_until > now:
                self.waiting.append(part)
                continue
            part.attempt, part.done = part.attempt + 1, [0, 0]
            about = (self._target, part.number, self._keywords, part.attempt)
            self.busy[self._task.remote(*about, self._messages)] = part

    def look(self) -> Iterator[ConvertedPart]:
        """Wait up to a second for a task to end; yield its part if it is complete."""
        if self.busy:
            ready, _ = self._ray.wait(list(self.busy), num_returns=1, timeout=_LOOK_SECONDS)
        else:
            ready = []
            time.sleep(_LOOK_SECONDS)
        if time.monotonic() - self._read_at >= _LOOK_SECONDS:
            self._read_messages()
        for reference in ready:
            part = self.busy.pop(reference)
            if (done := self._finish(part, reference)) is not None:
                self._moved = time.monotonic()
                if not done.was_finished:
                    self._show(max(0, done.num_sources - part.shown[0]), 0)
                yield done

    def _finish(self, part: _Part, reference: Any) -> ConvertedPart | None:
        """Return the result of a task; None if the part waits for another task.

        Raises:
            LmdbloaderError: The part cannot be made.
        """
        errors = self._ray.exceptions
        try:
            found, lines = self._ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
            raise WorkerError(
                f"a task of Ray cannot make {part_name(part.number)}. All nodes need the same release of lmdbloader: "
                f"{plain(' '.join(str(error).split()))}"
            ) from error
        except errors.RayError as error:
            self._bury(part, error)
            return None
        for line in lines:
            self._log(line)
        if isinstance(found, LockedError):
            self._put_off(part, found)
            return None
        if isinstance(found, BaseException):
            raise found
        done: ConvertedPart = found
        return done

    def _bury(self, part: _Part, error: Exception) -> None:
        """Put a part whose worker died first among those that wait.

        Raises:
            WorkerError: Too many of its workers died.
        """
        part.deaths += 1
        reason = plain(str(error).strip().partition("\n")[0])
        if part.deaths >= _MOST_DEATHS:
            raise WorkerError(
                f"{part.deaths} workers of Ray died while making {part_name(part.number)}; the last one: {reason} "
                f"Out of memory? Make fewer parts at a time ({option('workers')}), or smaller ones "
                f"({option('parts')}). The same conversion resumes: parts that are complete are kept."
            ) from error
        self._log(f"{part_name(part.number)}: its worker died ({reason}); another worker makes it again")
        self.waiting.appendleft(part)

    def _put_off(self, part: _Part, error: LockedError) -> None:
        """Retry a part later, because another process is making it.

        Raises:
            LockedError: The conversion has made no other progress for a long time.
        """
        now = time.monotonic()
        if now - self._moved > _PATIENCE_SECONDS:
            raise error
        if not part.is_held:
            self._log(f"{part_name(part.number)}: another process is making it; retrying until that ends ({error})")
        part.is_held, part.waits_until = True, now + _PAUSE_SECONDS
        self.waiting.append(part)

    def _read_messages(self) -> None:
        """Show the progress and log the lines that tasks have sent; the conversion does not depend on them."""
        try:
            sent = self._ray.get(self._messages.take.remote(), timeout=10)
        except self._ray.exceptions.RayError:
            return
        finally:
            self._read_at = time.monotonic()
        by_number = {part.number: part for part in self.busy.values()}
        for number, attempt, num_sources, nbytes, lines in sent:
            part = by_number.get(number)
            if part is not None and part.attempt == attempt:
                self._moved = self._read_at
                part.advance(num_sources, nbytes, self._show)
            for line in lines:
                self._log(line)

    def stop(self) -> None:
        """Cancel the tasks that still run, as after an error, and end the actor."""
        # Errors of Ray would hide the one that ends the conversion: the node of the actor, or the cluster, may be gone.
        lost = (self._ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError)
        with contextlib.suppress(*lost):
            for reference in self.busy:
                self._ray.cancel(reference, force=True)
            if self.busy:
                self._ray.wait(list(self.busy), num_returns=len(self.busy), timeout=5)
        with contextlib.suppress(*lost):
            self._ray.kill(self._messages)


class Messages:
    """An actor that keeps the messages of tasks until they are read."""

    def __init__(self) -> None:
        """Begin with no messages."""
        self._sent: list[Any] = []

    def put(self, *message: Any) -> None:
        """Add a message: part, attempt, inputs and bytes converted since the last one, lines for the log."""
        self._sent.append(message)

    def take(self) -> list[Any]:
        """Return the messages since the last call."""
        sent, self._sent = self._sent, []
        return sent


def make_part(
    target: str, number: int, keywords: Mapping[str, Any], attempt: int, messages: Any
) -> tuple[ConvertedPart | LmdbloaderError, list[str]]:
    """Make a part: the function that tasks run.

    Args:
        target: The absolute path of the set.
        number: The number of the part.
        keywords: Keyword arguments of `convert_part`.
        attempt: The number of this task among those for the part, from 1.
        messages: The actor that collects progress and messages.

    Returns:
        Facts about the part, or the error; and the lines for the log that were not sent to the actor, which may end
        before it is read again.
    """
    sent_at, num_sources, nbytes = 0.0, 0, 0
    lines: list[str] = []

    def send() -> None:
        nonlocal sent_at, num_sources, nbytes
        messages.put.remote(number, attempt, num_sources, nbytes, list(lines))
        sent_at, num_sources, nbytes = time.monotonic(), 0, 0
        lines.clear()

    def advance(more_sources: int, more_nbytes: int) -> None:
        nonlocal num_sources, nbytes
        num_sources, nbytes = num_sources + more_sources, nbytes + more_nbytes
        if time.monotonic() - sent_at > _LOOK_SECONDS:
            send()

    found: ConvertedPart | LmdbloaderError
    try:
        found = convert_part(target, number, **keywords, advance=advance, log=lines.append)
    except LmdbloaderError as error:
        found = error
    except Exception:
        found = WorkerError(f"making {part_name(number)} failed:\n{traceback.format_exc()}")
    return found, lines
