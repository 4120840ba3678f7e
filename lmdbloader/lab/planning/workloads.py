"""Plans several workloads on one storage: reads their files, finds the hardest one, and the union of their data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted, plain
from lmdbloader.base.units import parse_nbytes, show_decimal_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.formatting import align
from lmdbloader.lab.planning.planner import plan
from lmdbloader.lab.planning.results import Plan, show_number, show_seconds, show_size, span

# The keys of a file: those of `plan`, and the data.
_KEYS = (
    "batch_size", "step_seconds", "example_flops", "device_flops", "utilization", "preset", "example_size", "gpus",
    "experiments", "gpu_memory", "example_memory", "model_memory", "data",
)  # fmt: skip
_EXAMPLE = '{"batch_size": 128, "step_seconds": 0.087, "experiments": [5, 10], "data": {"imagenet": "150GB"}}'


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The plan of a storage that several workloads share.

    Attributes:
        plans: The plan of each workload by name, as if all experiments were of its kind.
        hardest_reads, hardest_bandwidth: The workloads with the most reads and the most bytes per second.
        data: Bytes of each dataset, by name; one that several workloads read counts once.
    """

    plans: dict[str, Plan]
    hardest_reads: str
    hardest_bandwidth: str
    data: dict[str, int]

    @property
    def dataset_nbytes(self) -> int:
        """Bytes of all datasets together; 0 if no workload names any."""
        return sum(self.data.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {
            "workloads": {name: each.as_json() for name, each in self.plans.items()},
            "hardest_reads": self.hardest_reads,
            "hardest_bandwidth": self.hardest_bandwidth,
            "data": self.data,
            "dataset_nbytes": self.dataset_nbytes,
        }

    def __str__(self) -> str:
        """Return the workloads, the hardest of them, the data, and what serves them."""
        return "\n".join(_lines(self))


def plan_shared(
    workloads: Sequence[str | os.PathLike[str]], *, experiments: int | tuple[int, int] | None = None
) -> SharedPlan:
    """Return what storage must deliver and hold for several workloads.

    The rule is that of "Feeding the beast": store the union of all datasets, and take a challenging combination of t, n
    and the size of a sample from one of the workloads, with n for all experiments at the same time. Each workload is
    computed as if all experiments were of its kind. The one with the most reads per second determines the reads, and
    the one with the most bytes per second the bandwidth; these may be two workloads.

    Args:
        workloads: JSON files, each with the arguments of `plan` and "data", the size of each dataset by name. A
            workload is named after its file.
        experiments: How many run at the same time, of any workload; (fewest, most) for a range. By default the sum of
            the numbers in the files; a file without a number counts as one.

    Raises:
        OptionError: A file cannot be read, or is not valid.
    """
    if not workloads:
        raise OptionError(f"{option('workload')}: expected at least one file")
    files = [(os.fspath(path), _read(os.fspath(path))) for path in workloads]
    names = [Path(path).stem for path, _ in files]
    if twice := {name for name in names if names.count(name) > 1}:
        raise OptionError(f"{option('workload')}: several files are named {', '.join(twice)}. Rename one of them.")
    data: dict[str, int] = {}
    alone = [_plan(path, body, data) for path, body in files]
    if experiments is None:
        experiments = sum(each.fewest.experiments for each in alone), sum(each.most.experiments for each in alone)
    plans = {
        name: _plan(path, {**body, "experiments": experiments}, data)
        for name, (path, body) in zip(names, files, strict=True)
    }
    return SharedPlan(
        plans,
        max(plans, key=lambda name: plans[name].most.reads[0].reads_per_s),
        max(plans, key=lambda name: plans[name].most.nbytes_per_s),
        data,
    )


def _plan(path: str, body: Mapping[str, Any], data: dict[str, int]) -> Plan:
    """Return the plan of one workload; its datasets are added to `data`."""
    try:
        for name, size in body.get("data", {}).items():
            nbytes = parse_nbytes(size, name=f"data {name!r}")
            if data.setdefault(name, nbytes) != nbytes:
                raise OptionError(f"the dataset {name!r} has another size here than in another file")
        return plan(**{key: value for key, value in body.items() if key != "data"})
    except OptionError as error:
        raise OptionError(f"{plain(path)}: {error}") from error


def _read(path: str) -> Mapping[str, Any]:
    """Return the content of a file."""
    try:
        body = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"{plain(path)}: cannot be read as JSON ({why}); expected such as {_EXAMPLE}") from error
    if not isinstance(body, Mapping) or not isinstance(body.get("data", {}), Mapping):
        raise OptionError(f"{plain(path)}: expected an object such as {_EXAMPLE}")
    for key in body:
        if key not in _KEYS:
            raise OptionError(f"{plain(path)}: {key!r:.60} is not a key; expected {', '.join(_KEYS)}")
    return body


def _lines(found: SharedPlan) -> Iterator[str]:
    hardest = found.plans[found.hardest_reads]
    count = span(hardest.fewest.experiments, hardest.most.experiments)
    yield f"{counted(len(found.plans), 'workload')} on one storage, {count} experiments at the same time."
    yield ""
    rows = [("if all of them are", "a batch", "GPUs", "a step", "a sample", "reads a second", "bandwidth")]
    for name, each in found.plans.items():
        is_hardest = name in (found.hardest_reads, found.hardest_bandwidth)
        rows.append(
            (
                f"{plain(name)[:30]}{' (*)' if is_hardest else ''}",
                f"{each.batch_size:,}",
                f"{each.gpus}",
                show_seconds(each.step_seconds),
                show_size(each.example_nbytes),
                show_number(each.most.reads[0].reads_per_s),
                f"{show_decimal_nbytes(each.most.nbytes_per_s)}/s",
            )
        )
    yield from align(rows)
    yield ""
    yield f"  (*) needs the most. Storage that serves {count} of it serves any mix."
    if found.data:
        sets = counted(len(found.data), "dataset")
        yield f"  Storage must hold {show_decimal_nbytes(found.dataset_nbytes)}: {sets}, each stored once."
    for name in dict.fromkeys((found.hardest_reads, found.hardest_bandwidth)):
        yield ""
        yield f"{plain(name)}:"
        yield str(found.plans[name])
