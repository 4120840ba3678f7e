"""`lmdbloader.ray.convert`: a conversion in parts, each a task on a Ray cluster, retried if its worker died."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import flags_in_use, naming_flags, option
from lmdbloader.base.text import plain
from lmdbloader.conversion.destination import new_folder
from lmdbloader.conversion.doubts import refuse_swapped
from lmdbloader.conversion.options import RUN, RunOptions, opt, with_options
from lmdbloader.conversion.part_writers import convert_parts, try_part
from lmdbloader.conversion.parts import ConvertedPart
from lmdbloader.conversion.report import Report
from lmdbloader.errors import LmdbloaderError, WorkerError
from lmdbloader.ray.cluster import connected, need_ray


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(RunOptions):
    """The options of `lmdbloader.ray.convert`."""

    address: str | None = opt(
        None,
        RUN,
        "address of the Ray cluster that makes the parts, such as 10.0.0.1:6379 (default: the cluster that this "
        "program is connected to, that of the variable RAY_ADDRESS, or else a new one on this machine)",
        metavar="HOST:PORT",
    )


@with_options(RayOptions)
def convert(src: str | os.PathLike[str] | None, out: str | os.PathLike[str], options: RayOptions) -> Report:
    """Convert a folder of images in parts, like `lmdbloader.convert`, with tasks on a Ray cluster.

    The dataset is, byte for byte, the one that `lmdbloader.convert` makes with the same options. A part whose
    worker died is made again, on any node. The same call, with any engine, continues a conversion that was
    interrupted: parts that are complete are kept.

    Every node must have lmdbloader installed, and see the inputs and `out` under the same absolute paths.

    Args:
        src: As in `lmdbloader.convert`.
        out: The dataset to make. Choose several parts for each CPU (`parts` or `part_size`), because a part is made on
            one CPU. `workers` is the most parts that are made at the same time, by default as many as the cluster has
            CPUs.

    Returns:
        A report of the conversion.

    Raises:
        SourceError, ImageError, DestinationError, DiskError, DiskFullError, CorruptError: As by `lmdbloader.convert`.
        OptionError: Ray is not installed, no cluster answers at `address`; or an option is out of its range, or
            contradicts another.
        WorkerError: Several workers died while making the same part, or a node cannot run the tasks.
    """
    target = new_folder(out)
    refuse_swapped(src, target)
    ray = need_ray("converting with Ray")
    with connected(ray, options.address, options.workers) as is_local:
        # A new cluster has as many CPUs as workers were asked for, so Ray itself limits the tasks that run.
        engine = partial(make_parts, ray, at_once=None if is_local else options.workers, is_local=is_local)
        # The trial that estimates sizes runs on this machine, with as many processes as it has cores.
        return convert_parts(src, target, replace(options, workers=None), engine)


# Tasks for each CPU, of which one runs: the next one starts at once, and an autoscaler sees the demand.
_TASKS_PER_CPU = 2
# The attempts at a part whose workers die: as many as Ray's default, which retries a task three times.
_MOST_DEATHS = 4

Advance = Callable[[int, int], None]
Log = Callable[[str], None]


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
    """Make parts of a planned conversion with tasks of Ray, and yield facts about each.

    Args:
        ray: The package, connected to a cluster.
        target: The dataset.
        numbers: The numbers of the parts.
        keywords: Keyword arguments of `convert_part`.
        advance: Called with the numbers of inputs and bytes of each part that is complete; bytes are not known.
        log: Called with each message, a line of text.
        at_once: The most parts that are made at the same time; None for as many as the cluster has CPUs.
        is_local: Whether the cluster was started for this conversion, on this machine.

    Raises:
        LmdbloaderError: The first error of a part, as by `convert_part`.
        WorkerError: Several workers died while making the same part, or a node cannot run the task.
    """
    log(plain(f"Ray: {_described(ray, is_local)}"))
    # Ray retries nothing: the driver does, so that it says so.
    task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD", name="lmdbloader part")(make_part)
    path, waiting, deaths = os.path.abspath(target), deque(numbers), Counter[int]()
    busy: dict[Any, int] = {}
    try:
        while waiting or busy:
            most = at_once or _TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(busy) < most:
                number = waiting.popleft()
                busy[task.remote(path, number, dict(keywords), flags_in_use())] = number
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=1.0)  # the cluster may grow
            if not ready:
                continue
            number = busy.pop(ready[0])
            try:
                found, lines = _result(ray, ready[0], number)
            except ray.exceptions.RayError as error:
                deaths[number] += 1
                log(_died(number, deaths[number], error))
                waiting.appendleft(number)
                continue
            for line in lines:
                log(line)
            if isinstance(found, BaseException):
                raise found
            if not found.was_finished:
                advance(found.num_sources, 0)
            yield found
    finally:
        _stop(ray, list(busy))


def _described(ray: Any, is_local: bool) -> str:
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    cpus = f"{ray.cluster_resources().get('CPU', 0):.0f} CPUs"
    return f"{cpus} of this machine" if is_local else f"a cluster of {nodes} nodes with {cpus}"


def _result(ray: Any, reference: Any, number: int) -> tuple[ConvertedPart | LmdbloaderError, list[str]]:
    """Return what a task returned.

    Raises:
        WorkerError: A node cannot run the task.
        RayError: Its worker died.
    """
    errors = ray.exceptions
    try:
        found: tuple[ConvertedPart | LmdbloaderError, list[str]] = ray.get(reference)
    except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
        raise WorkerError(
            f"a task of Ray cannot make part {number}. All nodes need the same release of lmdbloader: "
            f"{plain(' '.join(str(error).split()))}"
        ) from error
    return found


def _died(number: int, deaths: int, error: Exception) -> str:
    """Return a line about a worker that died.

    Raises:
        WorkerError: Too many workers died of this part.
    """
    reason = plain(str(error).strip().partition("\n")[0])
    if deaths >= _MOST_DEATHS:
        raise WorkerError(
            f"{deaths} workers of Ray died while making part {number}; the last one: {reason} Out of memory? Make "
            f"fewer parts at a time ({option('workers')}), or smaller ones ({option('parts')}). The same conversion "
            "resumes: parts that are complete are kept."
        ) from error
    return f"part {number}: its worker died ({reason}); another worker makes it again"


def _stop(ray: Any, references: Sequence[Any]) -> None:
    """Cancel the tasks that still run, as after an error."""
    # Errors of Ray would hide the one that ends the conversion: the cluster may be gone.
    with contextlib.suppress(ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError):
        for reference in references:
            ray.cancel(reference, force=True)
        if references:
            ray.wait(references, num_returns=len(references), timeout=5)


def make_part(
    target: str, number: int, keywords: Mapping[str, Any], flags: Mapping[str, str]
) -> tuple[ConvertedPart | LmdbloaderError, list[str]]:
    """Make a part: the function that tasks run.

    Args:
        target: The absolute path of the dataset.
        number: The number of the part.
        keywords: Keyword arguments of `convert_part`.
        flags: The flags by which messages name options.

    Returns:
        Facts about the part, or the error; and the lines for the log.
    """
    lines: list[str] = []
    with naming_flags(flags):
        return try_part(target, number, {**keywords, "log": lines.append}), lines
