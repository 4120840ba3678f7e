"""`lab.plan`: checks the options, and computes the figures of a plan."""

from __future__ import annotations

import math
from numbers import Integral, Real

from lmdbloader.base.option_names import option
from lmdbloader.base.units import FLOPS, parse_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.planning.clusters import ClusterPlan, cluster_plan, parse_rate, parse_requests
from lmdbloader.lab.planning.demand import STORAGE, Compute, Demand, GpuFit, demand, fit_gpu
from lmdbloader.lab.planning.presets import Preset, find_preset
from lmdbloader.lab.planning.results import Plan, Serving
from lmdbloader.lab.planning.scale import Cluster, Storage

# Used if it is not given: a photograph of ImageNet's size.
_EXAMPLE = "64KiB"


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
    nodes: int | None = None,
    storage_bandwidth: int | float | str | None = None,
    storage_iops: int | str | None = None,
    network_bandwidth: int | float | str | None = None,
    node_memory: int | str | None = None,
    local_disk: int | str | None = None,
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
        nodes: Machines of one experiment, each with the same number of GPUs. With this or one of the next five, which
            need dataset_size, the plan predicts which share of the GPUs one storage feeds, what caches save, and the
            memory of a rank.
        storage_bandwidth: Bytes per second that the storage delivers to all nodes together, such as "2GB/s".
        storage_iops: Requests per second of all nodes together that the storage serves.
        network_bandwidth: Bytes per second that the network delivers to one node.
        node_memory: The memory of a node that is free for reading, without that of the training program.
        local_disk: The space on a node's own disk for a copy of the dataset or a part of it.

    Raises:
        OptionError: An option is missing or out of its range.

    >>> found = plan(batch_size=128, step_seconds=0.087, example_size="64KiB", gpus=4)
    >>> round(found.most.samples_per_s), round(found.most.nbytes_per_s / 1e6, 1)
    (5885, 385.7)
    >>> round(plan(batch_size=128, example_flops="4G", device_flops="7T").most.samples_per_s)
    1750
    """
    found = None if preset is None else find_preset(preset)
    compute = _compute(step_seconds, example_flops, device_flops, utilization, found)
    if batch_size is None and found is not None and compute is not None:
        batch_size = found.batch_size
    if compute is not None and batch_size is not None:
        step_seconds = _count("batch_size", batch_size) / compute.samples_per_s
    batch_size, step_seconds = _step(batch_size, step_seconds, found)
    gpus = _count("gpus", gpus if gpus is not None else found.gpus if found else 1)
    fewest, most = _range(experiments if experiments is not None else found.experiments if found else 1)
    example_nbytes = _nbytes("example_size", example_size, found.example_nbytes if found else None)
    dataset_nbytes = _nbytes("dataset_size", dataset_size, found.dataset_nbytes if found else None)
    if isinstance(cache_fraction, bool) or not isinstance(cache_fraction, Real) or not 0 <= cache_fraction <= 1:
        raise OptionError(f"{option('cache_fraction', cache_fraction)}: expected a share from 0 to 1")
    if example_nbytes is None:
        example_nbytes = parse_nbytes(_EXAMPLE)
    if dataset_nbytes is not None and dataset_nbytes < example_nbytes:
        raise OptionError(
            f"{option('dataset_size', dataset_size)}: is smaller than one sample of {example_nbytes} bytes. Give both "
            "in the same units."
        )
    demands = [demand(batch_size, step_seconds, example_nbytes, gpus, count) for count in (fewest, most)]
    rates = (storage_bandwidth, storage_iops, network_bandwidth)
    sizes = (node_memory, local_disk)
    per_experiment = batch_size, example_nbytes, dataset_nbytes, demands[1].samples_per_s / most
    cluster = _cluster(nodes, gpus, most, per_experiment, rates, sizes)
    return Plan(
        batch_size,
        step_seconds,
        compute,
        example_nbytes,
        gpus,
        demands[0],
        demands[1],
        _serving(demands[0], demands[1], 1 if cluster is None else cluster.cluster.nodes),
        _gpu_fit(batch_size, gpu_memory, example_memory, model_memory, found),
        dataset_nbytes,
        float(cache_fraction),
        found,
        found.notes if found else (),
        cluster,
    )


def _cluster(
    nodes: int | None,
    gpus: int,
    experiments: int,
    per_experiment: tuple[int, int, int | None, float],
    rates: tuple[int | float | str | None, int | str | None, int | float | str | None],
    sizes: tuple[int | str | None, int | str | None],
) -> ClusterPlan | None:
    """Return the plan of several nodes; None if no option asks for one."""
    names = ("storage_bandwidth", "storage_iops", "network_bandwidth", "node_memory", "local_disk")
    given = [name for name, value in zip(("nodes", *names), (nodes, *rates, *sizes), strict=True) if value is not None]
    if not given:
        return None
    batch_size, example_nbytes, dataset_nbytes, samples_per_s = per_experiment
    if dataset_nbytes is None:
        raise OptionError(
            f"{option(given[0])} without {option('dataset_size')}: what caches save and the memory for reading depend "
            f"on the size of the dataset. Add it: {option('dataset_size', '10TB')}"
        )
    nodes = None if nodes is None else _count("nodes", nodes)
    memory, disk = (
        None if size is None else parse_nbytes(size, name=n) for n, size in zip(names[3:], sizes, strict=True)
    )
    storage = Storage(
        parse_rate(rates[0], names[0]), parse_requests(rates[1], names[1]), parse_rate(rates[2], names[2])
    )
    cluster = Cluster(1, gpus, batch_size, example_nbytes, dataset_nbytes, samples_per_s, memory, disk)
    return cluster_plan(nodes, gpus, experiments, cluster, storage)


def _compute(
    step_seconds: float | None,
    example_flops: float | str | None,
    device_flops: float | str | None,
    utilization: float,
    preset: Preset | None,
) -> Compute | None:
    """Return the work of a step; None if its time is given or follows from the preset."""
    if isinstance(utilization, bool) or not isinstance(utilization, Real) or not 0 < utilization <= 1:
        raise OptionError(f"{option('utilization', utilization)}: expected a share of more than 0, up to 1")
    both = f"{option('example_flops')} and {option('device_flops')}"
    if example_flops is None and device_flops is None:
        if utilization != 1:
            raise OptionError(f"{option('utilization', utilization)} has no effect without {both}")
        return None
    if step_seconds is not None:
        raise OptionError(
            f"{option('step_seconds', step_seconds)} together with {both}: the time of a step follows from them. Give "
            "one or the other."
        )
    of_example = _flops("example_flops", example_flops, preset.example_flops if preset else None)
    of_device = _flops("device_flops", device_flops, preset.gpu_flops if preset else None)
    if of_example is None or of_device is None:
        missing = option("example_flops" if of_example is None else "device_flops")
        raise OptionError(f"{missing}: not given. The time of a step follows from {both}: give both.")
    return Compute(of_example, of_device, float(utilization))


def _flops(name: str, given: float | str | None, preset: float | None) -> float | None:
    if given is None:
        return preset
    value = FLOPS.parse(given) if isinstance(given, str) else given
    if value is None:
        raise OptionError(f"{option(name, given)}: expected {FLOPS.forms}")
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise OptionError(f"{option(name, given)}: expected floating-point operations, more than 0")
    return float(value)


def _step(batch_size: int | None, step_seconds: float | None, preset: Preset | None) -> tuple[int, float]:
    if preset is None and (batch_size is None or step_seconds is None):
        missing = " and ".join(
            option(name)
            for name, value in (("batch_size", batch_size), ("step_seconds", step_seconds))
            if value is None
        )
        raise OptionError(
            f"{missing}: not given. Everything follows from the batch size and the time of a step: give both, or a "
            f"preset. Instead of the time you can give {option('example_flops')} and {option('device_flops')}."
        )
    count = _count("batch_size", batch_size if batch_size is not None else preset.batch_size if preset else 0)
    if step_seconds is None and preset is not None:
        if preset.images_per_s is not None:
            step_seconds = count / preset.images_per_s
        elif preset.step_seconds is not None and count == preset.batch_size:
            step_seconds = preset.step_seconds
        else:
            raise OptionError(
                f"{option('batch_size', count)}: preset {preset.name} gives the time of a step only for batches of "
                f"{preset.batch_size}. Give {option('step_seconds')} too."
            )
    if (
        isinstance(step_seconds, bool)
        or not isinstance(step_seconds, Real)
        or not math.isfinite(step_seconds)
        or step_seconds <= 0
    ):
        raise OptionError(f"{option('step_seconds', step_seconds)}: expected seconds, more than 0")
    return count, float(step_seconds)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise OptionError(f"{option(name, value)}: expected a whole number of at least 1")
    return int(value)


def _range(experiments: int | tuple[int, int]) -> tuple[int, int]:
    ends = experiments if isinstance(experiments, tuple | list) else (experiments, experiments)
    if len(ends) != 2:
        raise OptionError(f"{option('experiments', experiments)}: expected a number, or (fewest, most)")
    fewest, most = (_count("experiments", end) for end in ends)
    if fewest > most:
        raise OptionError(f"{option('experiments', experiments)}: expected the fewest first")
    return fewest, most


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
            "activations of one sample in training. Give both, or a preset that has them. To measure the latter, "
            "compare torch.cuda.max_memory_allocated() of steps with one and with two samples."
        )
    return None


def _serving(fewest: Demand, most: Demand, nodes: int) -> tuple[Serving, ...]:
    found = []
    for kind in STORAGE:
        needed = {
            low.name: (kind.needed(low.reads_per_s, low.read_nbytes), kind.needed(high.reads_per_s, high.read_nbytes))
            for low, high in zip(fewest.reads, most.reads, strict=True)
        }
        one = most.nbytes_per_s / most.experiments / nodes
        limits = kind.machine_nbytes_per_s is not None and one > kind.machine_nbytes_per_s
        found.append(Serving(kind.name, needed, limits))
    return tuple(found)
