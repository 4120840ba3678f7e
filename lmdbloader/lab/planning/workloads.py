"""Plans several workloads on one storage: reads their files, finds the hardest one, and the union of their data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.text import plain
from lmdbloader.base.units import parse_nbytes, parse_whole, show_decimal_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import align, wrap
from lmdbloader.lab.planning.planner import plan
from lmdbloader.lab.planning.results import (
    Plan,
    Serving,
    reading_table,
    sentences,
)
from lmdbloader.lab.planning.showing import show_number, show_seconds, show_size

_MOST_NBYTES = 2**20
_WIDTH = 88
# The keys of a file, with a value to paste: those of `plan`, a name, and the data.
_KEYS = {
    "name": '"ResNet-50"',
    "batch_size": "128",
    "step_seconds": "0.087",
    "example_flops": '"4G"',
    "device_flops": '"7T"',
    "utilization": "0.5",
    "preset": '"resnet50-v100"',
    "example_size": '"64KiB"',
    "gpus": "4",
    "experiments": "[5, 10]",
    "gpu_memory": '"16GiB"',
    "example_memory": '"103MiB"',
    "model_memory": '"98MiB"',
    "data": '{"imagenet": "150GB"}',
}
_OF_PLAN = frozenset(_KEYS) - {"name", "experiments", "data"}


@dataclass(frozen=True, slots=True)
class Workload:
    """A training run to plan.

    Attributes:
        name: Its name.
        place: Its file, for messages.
        options: Its keyword arguments of `plan`.
        experiments: The fewest and the most that run at the same time; None if the file does not state them.
        data: Bytes of each dataset that it reads, by name.
    """

    name: str
    place: str
    options: Mapping[str, Any]
    experiments: tuple[int, int] | None
    data: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The plan of a storage that several workloads share.

    Attributes:
        names: The names of the workloads.
        plans: The plan of each workload, as if all experiments were of its kind.
        hardest_reads, hardest_bandwidth: Indices of the workloads with the most reads and the most bytes per second.
        serving: How many devices of each storage class serve the workload that needs the most, and thus any mix.
        data: Bytes of each dataset, by name; one that several workloads read counts once.
        readers: The workloads that read each dataset.
        dataset_nbytes: Bytes of all datasets together; 0 if no workload names any.
    """

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    hardest_reads: int
    hardest_bandwidth: int
    serving: tuple[Serving, ...]
    data: dict[str, int]
    readers: dict[str, tuple[str, ...]]
    dataset_nbytes: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {
            "workloads": {name: each.as_json() for name, each in zip(self.names, self.plans, strict=True)},
            "hardest_reads": self.names[self.hardest_reads],
            "hardest_bandwidth": self.names[self.hardest_bandwidth],
            "serving": {each.storage: each.needed for each in self.serving},
            "data": self.data,
            "readers": self.readers,
            "dataset_nbytes": self.dataset_nbytes,
        }

    def __str__(self) -> str:
        """Return the workloads, the hardest of them, the data, and what serves them."""
        return "\n".join(_as_text(self))


def plan_shared(
    workloads: str | os.PathLike[str] | Mapping[str, Any] | Sequence[str | os.PathLike[str] | Mapping[str, Any]],
    *,
    experiments: int | tuple[int, int] | None = None,
    cache_fraction: float = 0.0,
) -> SharedPlan:
    """Return what storage must deliver and hold for several workloads.

    The rule is that of "Feeding the beast": store the union of all datasets, and take a challenging combination of t, n
    and the size of a sample from one of the workloads, with n for all experiments at the same time. Each workload is
    computed as if all experiments were of its kind. The one with the most reads per second determines the reads, and
    the one with the most bytes per second the bandwidth; these may be two workloads.

    Args:
        workloads: JSON files, or mappings with the same keys; or a single one.
        experiments: How many run at the same time, of any workload; (fewest, most) for a range. By default the sum of
            the numbers in the files; a file without a number counts as one.
        cache_fraction: As in `plan`.

    Raises:
        OptionError: A file cannot be read, or is not valid; the message has the line to write.

    >>> shared = plan_shared([
    ...     {"name": "photos", "batch_size": 128, "step_seconds": 0.1, "data": {"a": "1GB", "b": "2GB"}},
    ...     {"name": "scans", "batch_size": 8, "step_seconds": 1, "example_size": "30MB", "data": {"b": "2GB"}},
    ... ])
    >>> shared.names[shared.hardest_reads], shared.names[shared.hardest_bandwidth], shared.dataset_nbytes
    ('photos', 'scans', 3000000000)
    """
    if isinstance(workloads, str | os.PathLike | Mapping):
        workloads = [workloads]
    if not workloads:
        raise OptionError(f"{option('workload')}: expected at least one file")
    found = [_read(workload, number) for number, workload in enumerate(workloads)]
    names = [each.name for each in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            places = f"{found[names.index(name)].place} and {found[number].place}"
            raise OptionError(
                f'{places}: both are named {name!r}. Write another name into one of them: "name": "{name}-2"'
            )
    given = [each.experiments or (1, 1) for each in found]
    if experiments is None:
        experiments = sum(low for low, _ in given), sum(high for _, high in given)
    plans = [_plan(each, experiments, cache_fraction) for each in found]
    by_reads = max(range(len(plans)), key=lambda i: plans[i].most.reads[0].reads_per_s)
    by_bandwidth = max(range(len(plans)), key=lambda i: plans[i].most.nbytes_per_s)
    serving = _most(plans)
    data = _union(found)
    readers = {name: tuple(each.name for each in found if name in each.data) for name in data}
    return SharedPlan(tuple(names), tuple(plans), by_reads, by_bandwidth, serving, data, readers, sum(data.values()))


def _most(plans: Sequence[Plan]) -> tuple[Serving, ...]:
    """Return how many devices of each storage class serve the plan that needs the most.

    A mix of experiments needs a weighted mean of what its workloads need, and so never more than this.
    """
    found = []
    for several in zip(*(each.serving for each in plans), strict=True):
        ways = several[0].needed
        needed = {
            way: (max(each.needed[way][0] for each in several), max(each.needed[way][1] for each in several))
            for way in ways
        }
        found.append(Serving(several[0].storage, needed, any(each.limits_machine for each in several)))
    return tuple(found)


def _plan(workload: Workload, experiments: int | tuple[int, int], cache_fraction: float) -> Plan:
    size = sum(workload.data.values()) or None
    try:
        return plan(**workload.options, experiments=experiments, dataset_size=size, cache_fraction=cache_fraction)
    except OptionError as error:
        text = str(error)
        wrong = [key for key in workload.options if text.startswith((key, option(key)))]
        if "not given" in text:
            has_flops = "example_flops" in workload.options or "device_flops" in workload.options
            needed = ("batch_size", "example_flops", "device_flops") if has_flops else ("batch_size", "step_seconds")
            wrong = [key for key in needed if key not in workload.options]
        paste = f" Write {', '.join(map(_line, wrong))}" if wrong else ""
        raise OptionError(f"{plain(workload.place)}: {text.removesuffix('.')}.{paste}") from error


def _union(workloads: Sequence[Workload]) -> dict[str, int]:
    """Return the bytes of each dataset, by name.

    Raises:
        OptionError: Two workloads give different sizes for one name.
    """
    data: dict[str, int] = {}
    for each in workloads:
        for name, nbytes in each.data.items():
            if data.setdefault(name, nbytes) != nbytes:
                first = next(other for other in workloads if name in other.data)
                raise OptionError(
                    f"{plain(each.place)}: the dataset {name!r} has {show_decimal_nbytes(nbytes)} here, and "
                    f"{show_decimal_nbytes(data[name])} in {plain(first.place)}. If it is the same data, write the "
                    f'same size: "data": {{{json.dumps(name)}: {data[name]}}}; if not, another name.'
                )
    return data


def _read(workload: Any, number: int) -> Workload:
    """Return a workload from a file, or from a mapping with the keys of one."""
    if isinstance(workload, Mapping):
        return _parse(workload, f"workload {number + 1}", f"workload {number + 1}")
    if not isinstance(workload, str | os.PathLike):
        raise OptionError(f"{option('workload', workload)}: expected a file, or a mapping")
    place = os.fspath(workload)
    try:
        with open(place, "rb") as file:
            content = file.read(_MOST_NBYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"{plain(place)}: cannot be read ({why})") from error
    if len(content) > _MOST_NBYTES:
        raise OptionError(f"{plain(place)}: has more than {_MOST_NBYTES} bytes; expected a workload in JSON")
    return _parse(_decode(content, place), place, Path(place).stem)


def _decode(content: bytes, place: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise OptionError(f"{plain(place)}: is not UTF-8 text; expected a workload in JSON") from error
    except json.JSONDecodeError as error:
        lines = error.doc.splitlines()
        line = lines[error.lineno - 1].strip() if error.lineno <= len(lines) else ""
        raise OptionError(
            f"{plain(place)}, line {error.lineno}, column {error.colno}: is not JSON ({error.msg.lower()}): "
            f"{plain(line[:80])!r}. A whole file is: "
            '{"batch_size": 128, "step_seconds": 0.087, "data": {"imagenet": "150GB"}}'
        ) from error
    except RecursionError as error:
        raise OptionError(f"{plain(place)}: is nested too deeply; expected a workload in JSON") from error


def _parse(body: Any, place: str, default_name: str) -> Workload:
    where = plain(place)
    if not isinstance(body, Mapping):
        raise OptionError(
            f'{where}: has a {type(body).__name__}; expected an object: {{"batch_size": 128, "step_seconds": 0.087}}'
        )
    for key in body:
        if key not in _KEYS:
            raise OptionError(f"{where}: {str(key)!r:.60} is not a key. The keys are {', '.join(_KEYS)}.")
    name = body.get("name", default_name)
    if not isinstance(name, str) or not name.strip():
        raise OptionError(f"{where}: name is {name!r:.60}; expected text: {_line('name')}")
    data = body.get("data", {})
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise OptionError(f"{where}: data is {data!r:.60}; expected sizes by name: {_line('data')}")
    sizes = {}
    for key, size in data.items():
        try:
            sizes[key] = parse_nbytes(size, name=f"data {key!r}")
        except OptionError as error:
            raise OptionError(f'{where}: {error}. Write "data": {{{json.dumps(key)}: "150GB"}}') from error
    options = {key: value for key, value in body.items() if key in _OF_PLAN}
    return Workload(name.strip(), place, options, _experiments(body.get("experiments"), where), sizes)


def _experiments(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    ends = value.split("-") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    found = [parse_whole(end) if isinstance(end, str) else end for end in ends]
    numbers = [n for n in found if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    if len(numbers) != len(found) or len(numbers) not in (1, 2) or numbers != sorted(numbers):
        raise OptionError(
            f"{where}: experiments is {value!r:.60}; expected a number, or a range: {_line('experiments')}"
        )
    return numbers[0], numbers[-1]


def _line(key: str) -> str:
    return f'"{key}": {_KEYS[key]}'


def _as_text(found: SharedPlan) -> Iterator[str]:
    first = found.plans[0]
    low, high = first.fewest.experiments, first.most.experiments
    count = f"{low}" if low == high else f"{low} to {high}"
    each = "experiment" if high == 1 else "experiments at the same time"
    yield f"{len(found.plans)} workload{'s' * (len(found.plans) > 1)} on one storage, {count} {each}."
    yield ""
    rows = [("if all of them are", "a batch", "GPUs", "a step", "a sample", "reads a second", "bandwidth")]
    for number, (name, each_plan) in enumerate(zip(found.names, found.plans, strict=True)):
        is_hardest = number in (found.hardest_reads, found.hardest_bandwidth)
        rows.append(
            (
                f"{plain(name)[:30]}{' (*)' if is_hardest else ''}",
                f"{each_plan.batch_size:,}",
                f"{each_plan.gpus}",
                show_seconds(each_plan.step_seconds),
                show_size(each_plan.example_nbytes),
                show_number(each_plan.most.reads[0].reads_per_s),
                f"{show_decimal_nbytes(each_plan.most.nbytes_per_s)}/s",
            )
        )
    yield from align(rows)
    yield ""
    reads, bandwidth = found.plans[found.hardest_reads], found.plans[found.hardest_bandwidth]
    if reads is bandwidth:
        yield from _wrapped(
            f"(*) {plain(found.names[found.hardest_reads])} is the hardest, and decides. Storage that serves {count} "
            "of it serves any mix."
        )
    else:
        yield from _wrapped(
            f"(*) {plain(found.names[found.hardest_reads])} needs the most reads a second, and "
            f"{plain(found.names[found.hardest_bandwidth])} the most bandwidth. The numbers of devices below are those "
            "of the workload that needs the most of each kind, so they serve any mix."
        )
    yield ""
    yield from _data(found)
    yield from reading_table(replace(reads, serving=found.serving))
    yield ""
    yield "What it means"
    for name, each_plan in zip(found.names, found.plans, strict=True):
        if each_plan.fit is not None and not each_plan.fit.fits:
            yield from _wrapped(
                f"A batch of {each_plan.batch_size:,} of {plain(name)} does not fit its GPU; "
                f"{each_plan.fit.largest:,} do."
            )
    for sentence in sentences(replace(reads, serving=found.serving, fit=None)):
        yield from _wrapped(sentence)
    if reads is not bandwidth:
        yield from _wrapped(
            f"For {plain(found.names[found.hardest_bandwidth])} it must also deliver "
            f"{show_decimal_nbytes(bandwidth.most.nbytes_per_s)}/s in reads of "
            f"{show_size(bandwidth.most.reads[0].read_nbytes)}."
        )


def _data(found: SharedPlan) -> Iterator[str]:
    if not found.data:
        yield from _wrapped(f"The files name no datasets. To add up their sizes: {_line('data')}")
        yield ""
        return
    shared = sum(len(names) > 1 for names in found.readers.values())
    once = f"; {shared} of them {'is' if shared == 1 else 'are'} read by several and stored once" if shared else ""
    sets = f"{len(found.data)} dataset{'s' * (len(found.data) > 1)}"
    yield from _wrapped(f"Storage must hold {show_decimal_nbytes(found.dataset_nbytes)}: {sets}{once}.")
    rows = [
        (f"  {plain(name)[:30]}", show_decimal_nbytes(nbytes), plain(", ".join(found.readers[name]))[:44])
        for name, nbytes in found.data.items()
    ]
    yield from align(rows, (0, 2))
    yield ""


def _wrapped(text: str) -> list[str]:
    return wrap(text, "  ", "    ", width=_WIDTH)
