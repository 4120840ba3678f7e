"""`lab.plan`: checks the options, and computes the figures of a plan."""

from __future__ import annotations

import math
from numbers import Integral, Real

from lmdbloader.base.option_names import option
from lmdbloader.base.units import FLOPS, KIB, parse_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.planning.demand import STORAGE, Demand, GpuFit, demand, fit_gpu
from lmdbloader.lab.planning.presets import Preset, find_preset
from lmdbloader.lab.planning.results import Plan, Serving

# Of a sample, if it is not given: a photograph of ImageNet's size.
_EXAMPLE_NBYTES = 64 * KIB


def plan(
    *,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    example_flops: float | str | None = None,
    device_flops: float | str | None = None,
    utilization: float = 1.0,
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
        device_flops: Floating-point operations per second of the GPU, at the precision of the training.
        utilization: The share of these that the model reaches. With 1, a step takes the least possible time, so the
            demand is an upper bound.
        example_size: A sample on storage, 64KiB by default.
        preset: The name of a published workload, which sets whatever is not given here; see `PRESETS` in
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
    found = None if preset is None else find_preset(preset)
    by_flops = _by_flops(step_seconds, example_flops, device_flops, utilization, found)
    count, seconds = _step(batch_size, step_seconds, by_flops, found)
    gpus = _count("gpus", gpus if gpus is not None else found.gpus if found else 1)
    fewest, most = _range(experiments if experiments is not None else found.experiments if found else 1)
    example_nbytes = _nbytes("example_size", example_size, found.example_nbytes if found else None) or _EXAMPLE_NBYTES
    dataset_nbytes = _nbytes("dataset_size", dataset_size, found.dataset_nbytes if found else None)
    if isinstance(cache_fraction, bool) or not isinstance(cache_fraction, Real) or not 0 <= cache_fraction <= 1:
        raise OptionError(f"{option('cache_fraction', cache_fraction)}: expected a share from 0 to 1")
    if dataset_nbytes is not None and dataset_nbytes < example_nbytes:
        raise OptionError(
            f"{option('dataset_size', dataset_size)}: is smaller than one sample of {example_nbytes} bytes"
        )
    low, high = (demand(count, seconds, example_nbytes, gpus, each) for each in (fewest, most))
    theory = found.theoretical_images_per_s if by_flops is None and found else by_flops
    return Plan(
        count,
        seconds,
        example_nbytes,
        gpus,
        low,
        high,
        _serving(low, high),
        _gpu_fit(count, gpu_memory, example_memory, model_memory, found),
        theory,
        dataset_nbytes,
        float(cache_fraction),
        found,
    )


def _by_flops(
    step_seconds: float | None,
    example_flops: float | str | None,
    device_flops: float | str | None,
    utilization: float,
    preset: Preset | None,
) -> float | None:
    """Return how many samples a GPU trains a second by its FLOPS; None if none are given."""
    if isinstance(utilization, bool) or not isinstance(utilization, Real) or not 0 < utilization <= 1:
        raise OptionError(f"{option('utilization', utilization)}: expected a share of more than 0, up to 1")
    both = f"{option('example_flops')} and {option('device_flops')}"
    if example_flops is None and device_flops is None:
        if utilization != 1:
            raise OptionError(f"{option('utilization', utilization)} has no effect without {both}")
        return None
    if step_seconds is not None:
        raise OptionError(f"{option('step_seconds', step_seconds)} together with {both}: give one or the other.")
    of_example = _flops("example_flops", example_flops, preset.example_flops if preset else None)
    of_device = _flops("device_flops", device_flops, preset.gpu_flops if preset else None)
    if of_example is None or of_device is None:
        missing = option("example_flops" if of_example is None else "device_flops")
        raise OptionError(f"{missing}: not given. The time of a step follows from {both}: give both.")
    return of_device * float(utilization) / of_example


def _flops(name: str, given: float | str | None, preset: float | None) -> float | None:
    if given is None:
        return preset
    value = FLOPS.parse(given) if isinstance(given, str) else given
    if value is None or isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise OptionError(f"{option(name, given)}: expected {FLOPS.forms}, more than 0")
    return float(value)


def _step(
    batch_size: int | None, step_seconds: float | None, by_flops: float | None, preset: Preset | None
) -> tuple[int, float]:
    """Return n and t."""
    given = batch_size if batch_size is not None or preset is None else preset.batch_size
    count = None if given is None else _count("batch_size", given)
    if count is not None and step_seconds is None:
        if by_flops is not None:
            step_seconds = count / by_flops
        elif preset is not None and preset.images_per_s is not None:
            step_seconds = count / preset.images_per_s
        elif preset is not None and count == preset.batch_size:
            step_seconds = preset.step_seconds
    values = {"batch_size": count, "step_seconds": step_seconds}
    if count is None or step_seconds is None:
        missing = " and ".join(option(name) for name, value in values.items() if value is None)
        raise OptionError(
            f"{missing}: not given. Everything follows from the batch size and the time of a step: give both, or a "
            f"preset. Instead of the time you can give {option('example_flops')} and {option('device_flops')}."
        )
    if isinstance(step_seconds, bool) or not isinstance(step_seconds, Real) or not 0 < step_seconds < math.inf:
        raise OptionError(f"{option('step_seconds', step_seconds)}: expected seconds, more than 0")
    return count, float(step_seconds)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise OptionError(f"{option(name, value)}: expected a whole number of at least 1")
    return int(value)


def _range(experiments: int | tuple[int, int]) -> tuple[int, int]:
    ends = experiments if isinstance(experiments, tuple | list) else (experiments, experiments)
    counts = [_count("experiments", end) for end in ends]
    if len(counts) != 2 or counts[0] > counts[1]:
        raise OptionError(f"{option('experiments', experiments)}: expected a number, or (fewest, most)")
    return counts[0], counts[1]


def _nbytes(name: str, given: int | str | None, preset: int | None) -> int | None:
    return preset if given is None else parse_nbytes(given, name=name)


def _gpu_fit(
    batch_size: int,
    gpu_memory: int | str | None,
    example_memory: int | str | None,
    model_memory: int | str | None,
    preset: Preset | None,
) -> GpuFit | None:
    gpu = _nbytes("gpu_memory", gpu_memory, preset.gpu_memory_nbytes if preset else None)
    example = _nbytes("example_memory", example_memory, preset.example_memory_nbytes if preset else None)
    model = _nbytes("model_memory", model_memory, preset.model_memory_nbytes if preset else None)
    if gpu is not None and example is not None:
        return fit_gpu(batch_size, example, model or 0, gpu)
    if gpu_memory is not None or example_memory is not None or model_memory is not None:
        raise OptionError(
            f"the largest batch follows from {option('gpu_memory')} and {option('example_memory')}, the memory of the "
            "activations of one sample in training. Give both, or a preset that has them."
        )
    return None


def _serving(fewest: Demand, most: Demand) -> Serving:
    return {
        kind.name: {
            low.name: (kind.needed(low.reads_per_s, low.read_nbytes), kind.needed(high.reads_per_s, high.read_nbytes))
            for low, high in zip(fewest.reads, most.reads, strict=True)
        }
        for kind in STORAGE
    }
