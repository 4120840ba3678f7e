"""`lab.plan`: checks the options, and computes the figures of a plan."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.units import FLOPS, KIB, parse_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.planning.demand import STORAGE, Demand, GpuFit, demand, fit_gpu
from lmdbloader.lab.planning.presets import PRESETS
from lmdbloader.lab.planning.results import Plan, Serving

# Of a sample, if it is not given: a photograph of ImageNet's size.
_EXAMPLE_NBYTES = 64 * KIB


def plan(
    *,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    example_flops: float | str | None = None,
    device_flops: float | str | None = None,
    example_size: int | str | None = None,
    preset: str | None = None,
    gpus: int | None = None,
    experiments: int | tuple[int, int] | None = None,
    dataset_size: int | str | None = None,
    gpu_memory: int | str | None = None,
    example_memory: int | str | None = None,
    model_memory: int | str | None = None,
    cache_fraction: float = 0.0,
) -> Plan:
    """Return the samples, reads and bytes per second that a training run needs, and the storage that serves them.

    The arithmetic is that of "Feeding the beast": a batch of n samples must be ready when the GPU has finished the
    previous one, every t seconds, so storage reads n / t samples per second. Sizes are bytes, or text such as "64KiB",
    "500K" (thousands) and "150GB"; FLOPS are numbers, or text such as "4G" and "7 TFLOPS".

    Args:
        batch_size: Samples of a step on one GPU.
        step_seconds: Time of a step on the GPU, forward, backward and update.
        example_flops: Instead of that: floating-point operations to train on one sample. Tables of models usually count
            the multiply-adds of a forward pass: two operations each, and training does about three times as much.
        device_flops: Floating-point operations per second of the GPU, at the precision of the training. A model reaches
            a share of them: with all of them the demand is an upper bound.
        example_size: A sample on storage, 64KiB by default.
        preset: The name of a published workload, whose options stand for what is not given here; see `PRESETS` in
            `lmdbloader.lab.planning`.
        gpus: GPUs of one experiment, each with a batch of its own.
        experiments: How many run at the same time on the same storage; (fewest, most) for a range.
        dataset_size: The size of all data in use.
        gpu_memory: The memory of one GPU. With the next two, the plan says whether the batch fits, and which is the
            largest that does.
        example_memory: GPU memory of the activations of one sample in training.
        model_memory: GPU memory of the parameters; best with their gradients and the optimizer's state.
        cache_fraction: The share of the dataset, drawn at random, that each machine keeps on its own disk: from the
            second epoch on, the shared storage delivers that much less.

    Raises:
        OptionError: An option is missing or out of its range.

    >>> found = plan(batch_size=128, step_seconds=0.087, example_size="64KiB", gpus=4)
    >>> round(found.most.samples_per_s), round(found.most.nbytes_per_s / 1e6, 1)
    (5885, 385.7)
    >>> round(plan(batch_size=128, example_flops="4G", device_flops="7T").most.samples_per_s)
    1750
    """
    if preset not in (None, *PRESETS):
        raise OptionError(f"{option('preset', preset)}: no such preset; expected one of {', '.join(PRESETS)}")
    found = None if preset is None else PRESETS[preset]
    own = {} if found is None else found.options

    def either(name: str, given: Any) -> Any:
        return own.get(name) if given is None else given

    given = either("batch_size", batch_size)
    count = None if given is None else _count("batch_size", given)
    has_flops = example_flops is not None or device_flops is not None
    by_flops = _by_flops(either("example_flops", example_flops), either("device_flops", device_flops), needed=has_flops)
    if has_flops and step_seconds is not None:
        raise OptionError(
            f"{option('step_seconds', step_seconds)} together with {option('example_flops')} and "
            f"{option('device_flops')}: give one or the other."
        )
    if count is not None and step_seconds is None:
        published = None if found is None else found.images_per_s
        if rate := by_flops if has_flops else published:
            step_seconds = count / rate
        elif count == own.get("batch_size"):
            step_seconds = own["step_seconds"]
    if count is None or step_seconds is None:
        values = {"batch_size": count, "step_seconds": step_seconds}
        missing = " and ".join(option(name) for name, value in values.items() if value is None)
        raise OptionError(
            f"{missing}: not given. Everything follows from the batch size and the time of a step: give both, or a "
            f"preset. Instead of the time you can give {option('example_flops')} and {option('device_flops')}."
        )
    step_seconds = _positive("step_seconds", step_seconds, "seconds, more than 0")
    example_nbytes = _nbytes("example_size", either("example_size", example_size)) or _EXAMPLE_NBYTES
    dataset_nbytes = _nbytes("dataset_size", either("dataset_size", dataset_size))
    if dataset_nbytes is not None and dataset_nbytes < example_nbytes:
        raise OptionError(
            f"{option('dataset_size', dataset_size)}: is smaller than one sample of {example_nbytes} bytes"
        )
    if cache_fraction != 0:
        _positive("cache_fraction", cache_fraction, "a share from 0 to 1", 1.0)
    gpus = _count("gpus", own.get("gpus", 1) if gpus is None else gpus)
    ends = _range(own.get("experiments", 1) if experiments is None else experiments)
    fewest, most = (demand(count, step_seconds, example_nbytes, gpus, each) for each in ends)
    memory = {"gpu_memory": gpu_memory, "example_memory": example_memory, "model_memory": model_memory}
    sizes = [_nbytes(name, either(name, given)) for name, given in memory.items()]
    fit = _gpu_fit(count, *sizes)
    if fit is None and any(given is not None for given in memory.values()):
        raise OptionError(
            f"the largest batch follows from {option('gpu_memory')} and {option('example_memory')}, the memory of the "
            "activations of one sample in training. Give both, or a preset that has them."
        )
    return Plan(
        count, step_seconds, example_nbytes, gpus, fewest, most, _serving(fewest, most), fit, by_flops, dataset_nbytes,
        float(cache_fraction), found,
    )  # fmt: skip


def _by_flops(example_flops: float | str | None, device_flops: float | str | None, *, needed: bool) -> float | None:
    """Return how many samples a GPU trains a second by its FLOPS; None if they are not known.

    Raises:
        OptionError: One is missing although they are needed, or out of its range.
    """
    if example_flops is not None and device_flops is not None:
        return _flops("device_flops", device_flops) / _flops("example_flops", example_flops)
    if needed:
        missing = option("example_flops" if example_flops is None else "device_flops")
        raise OptionError(
            f"{missing}: not given. The time of a step follows from {option('example_flops')} and "
            f"{option('device_flops')}: give both."
        )
    return None


def _flops(name: str, given: float | str) -> float:
    value = FLOPS.parse(given) if isinstance(given, str) else given
    return _positive(name, given if value is None else value, f"{FLOPS.forms}, more than 0")


def _positive(name: str, value: Any, expected: str, most: float = sys.float_info.max) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value <= most:  # type: ignore[operator]
        raise OptionError(f"{option(name, value)}: expected {expected}")
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise OptionError(f"{option(name, value)}: expected a whole number of at least 1")
    return int(value)


def _range(experiments: int | tuple[int, int]) -> tuple[int, int]:
    ends = experiments if isinstance(experiments, tuple | list) else (experiments, experiments)
    counts = [_count("experiments", end) for end in ends]
    if len(counts) != 2 or counts[0] > counts[1]:
        raise OptionError(f"{option('experiments', experiments)}: expected a number, or (fewest, most)")
    return counts[0], counts[1]


def _nbytes(name: str, given: int | str | None) -> int | None:
    return None if given is None else parse_nbytes(given, name=name)


def _gpu_fit(batch_size: int, gpu: int | None, example: int | None, model: int | None) -> GpuFit | None:
    return None if gpu is None or example is None else fit_gpu(batch_size, example, model or 0, gpu)


def _serving(fewest: Demand, most: Demand) -> Serving:
    return {
        kind.name: {
            low.name: (kind.needed(low.reads_per_s, low.read_nbytes), kind.needed(high.reads_per_s, high.read_nbytes))
            for low, high in zip(fewest.reads, most.reads, strict=True)
        }
        for kind in STORAGE
    }
