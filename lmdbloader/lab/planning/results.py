"""The figures of a plan, and the table and advice that `print` shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.base.text import counted
from lmdbloader.base.units import GIB, KIB, show_decimal_nbytes, show_flops, show_nbytes
from lmdbloader.lab.formatting import align, define, wrap
from lmdbloader.lab.planning.clusters import ClusterPlan
from lmdbloader.lab.planning.demand import STORAGE, Compute, Demand, GpuFit
from lmdbloader.lab.planning.presets import Preset
from lmdbloader.lab.planning.showing import show_number, show_seconds, show_size

_WIDTH = 88
# From the source's rules of thumb: "a few tens of GB" are for a local SSD; 25,600 reads a second of small files are a
# problem for NFS, 1,280 of large ones are not.
_LOCAL_NBYTES = 100e9
_MANY_READS, _FEW_READS = 10_000, 2000


@dataclass(frozen=True, slots=True)
class Serving:
    """How many devices of a storage class serve the demand.

    Attributes:
        storage: Name of the class.
        needed: For each way of reading ("sample", "record", "block") how many, for the fewest and the most experiments.
        limits_machine: Whether one machine, with its share of one experiment, gets less from it than it needs.
    """

    storage: str
    needed: dict[str, tuple[int, int]]
    limits_machine: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The data rate and storage that a training run needs.

    Attributes:
        batch_size, step_seconds: n of one GPU and t, from which all figures follow. Each sample must be ready within t,
            and so must 99 % of the batches.
        compute: The work of a step if t follows from it; None if t was given, or published.
        example_nbytes: Bytes of a sample on storage.
        gpus: GPUs of one experiment.
        fewest, most: The demand of the fewest and of the most experiments; the same if one number was given.
        serving: How many devices of each storage class serve the demand.
        fit: How the batch fits on the GPU; None if the memory of the GPU or of a sample is not known.
        dataset_nbytes: Size of the dataset, None if it was not given.
        cache_fraction: Share of the dataset that each machine keeps on a disk of its own.
        preset: The published workload from which missing figures were taken; None without one.
        notes: Differences from the source of the preset, and their reasons.
        cluster: The plan for several nodes on one storage; None if no option asks for one.
    """

    batch_size: int
    step_seconds: float
    compute: Compute | None
    example_nbytes: int
    gpus: int
    fewest: Demand
    most: Demand
    serving: tuple[Serving, ...]
    fit: GpuFit | None
    dataset_nbytes: int | None
    cache_fraction: float
    preset: Preset | None
    notes: tuple[str, ...]
    cluster: ClusterPlan | None = None

    @property
    def num_samples(self) -> int | None:
        """Samples in the dataset; None if its size is not known."""
        return None if self.dataset_nbytes is None else max(1, round(self.dataset_nbytes / self.example_nbytes))

    @property
    def epoch_seconds(self) -> float | None:
        """Time of an epoch of one experiment if its GPUs never wait; None if the size of the dataset is not known."""
        if self.num_samples is None:
            return None
        return self.num_samples * self.step_seconds / (self.batch_size * self.gpus)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`, with the sentences and the sources of the figures."""
        return {
            **asdict(self),
            "num_samples": self.num_samples,
            "epoch_seconds": self.epoch_seconds,
            "max_latency_seconds": self.step_seconds,
            "batches_within_step": 0.99,
            "sentences": sentences(self),
            "sources": {kind.name: kind.source for kind in STORAGE},
        }

    def __str__(self) -> str:
        """Return a table, and what it means in sentences."""
        return as_text(self)


def as_text(found: Plan) -> str:
    """Return the table and the sentences."""
    lines = [*_wrapped(_headline(found), ""), "", "Needed"]
    lines += define(list(_needed(found)), indent="  ")
    lines += ["", *reading_table(found)]
    if found.cluster is not None:
        lines += ["", *found.cluster.lines()]
    lines += ["", "What it means"]
    for sentence in sentences(found):
        lines += _wrapped(sentence, "  ")
    for note in found.notes:
        lines += _wrapped(f"Note: {note}", "  ")
    if found.preset is not None:
        lines += _wrapped(f"Source of the preset: {found.preset.source}", "  ")
    return "\n".join(lines)


def sentences(found: Plan) -> list[str]:
    """Return what a plan means, and advice, in sentences, the most important first."""
    of_nodes = found.cluster.sentences() if found.cluster is not None else ()
    return [*_pace(found), *_memory(found), *_packing(found), *_storage(found), *_caching(found), *of_nodes]


def _headline(found: Plan) -> str:
    gpus = "one GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    count = _span(found.fewest.experiments, found.most.experiments)
    experiments = "" if found.most.experiments == 1 else f", {count} experiments at the same time"
    title = f"{found.preset.name}: {found.preset.title}. " if found.preset else ""
    return (
        f"{title}Batches of {found.batch_size:,} on {gpus}{experiments}, a step of {show_seconds(found.step_seconds)}, "
        f"samples of {show_size(found.example_nbytes)}."
    )


def _needed(found: Plan) -> Iterator[tuple[str, str]]:
    low, high = found.fewest, found.most
    yield "samples", f"{_span(low.samples_per_s, high.samples_per_s)} a second"
    yield (
        "a batch",
        f"in {show_seconds(found.step_seconds)} or less, 99 times out of 100; each sample within that time, too",
    )
    yield "reads", f"{_span(low.reads[0].reads_per_s, high.reads[0].reads_per_s)} a second (IOPS), a sample each"
    yield "bandwidth", f"{_rate(low, high, decimal=True)} ({_rate(low, high, decimal=False)})"
    if found.dataset_nbytes is not None and found.num_samples is not None and found.epoch_seconds is not None:
        size = show_decimal_nbytes(found.dataset_nbytes)
        yield (
            "dataset",
            f"{size}: {counted(found.num_samples, 'sample')}, an epoch in {show_seconds(found.epoch_seconds)}",
        )
    if found.fit is not None:
        verdict = "fits" if found.fit.fits else "does NOT fit"
        yield (
            "GPU memory",
            f"{found.fit.batch_nbytes / GIB:.2f} GiB {verdict} in {found.fit.gpu_memory_nbytes / GIB:.2f} GiB; "
            f"the largest batch is {found.fit.largest:,}",
        )
    if found.compute is not None:
        share = "" if found.compute.utilization == 1 else f" at {found.compute.utilization:.3g} of its peak"
        yield "one GPU", f"{show_number(found.compute.samples_per_s)} samples a second by its FLOPS{share}"
    elif found.preset is not None and found.preset.theoretical_images_per_s and found.preset.images_per_s:
        theory, published = found.preset.theoretical_images_per_s, found.preset.images_per_s
        yield "one GPU", f"{theory:,.0f} images a second by its FLOPS, {published:,.0f} published"


def reading_table(found: Plan) -> Iterator[str]:
    """Yield the table of reads per second by size, and of how many devices of each storage class serve them."""
    # If samples are larger than records, a record holds one of them, and is not another way to read.
    pairs = list(zip(found.fewest.reads, found.most.reads, strict=True))
    ways = [pair for i, pair in enumerate(pairs) if i == 0 or pair[1].read_nbytes > pairs[i - 1][1].read_nbytes]
    heads = [f"{'a ' + way.name} of {show_size(way.read_nbytes)}" for _, way in ways]
    rows = [("one read is", *heads)]
    rows.append(("reads a second", *[_span(low.reads_per_s, high.reads_per_s) for low, high in ways]))
    if found.cache_fraction:
        left = 1 - found.cache_fraction
        rows.append(
            (
                f"  {found.cache_fraction:.0%} cached, epoch 2 on",
                *[_span(low.reads_per_s * left, high.reads_per_s * left) for low, high in ways],
            )
        )
    rows.append(("how many serve it", *[""] * len(ways)))
    for serving in found.serving:
        mark = " (*)" if serving.limits_machine else ""
        cells = [_span(*serving.needed[way.name]) for _, way in ways]
        rows.append((f"  {serving.storage}{mark}", *cells))
    yield from align(rows)
    for serving in found.serving:
        if serving.limits_machine:
            whose = "its GPUs need" if _nodes(found) > 1 else "one experiment needs"
            yield from _wrapped(f"(*) one machine gets less from it than {whose}.", "  ")
            break


def _pace(found: Plan) -> Iterator[str]:
    if found.compute is not None:
        peak = found.compute.utilization == 1
        work = f"{found.batch_size:,} x {show_flops(found.compute.example_flops, 'FLOP')}"
        speed = show_flops(found.compute.device_flops, "FLOPS")
        yield (
            f"The time of a step was computed: {work} / "
            + (speed if peak else f"({found.compute.utilization:.3g} x {speed})")
            + f" = {show_seconds(found.step_seconds)}."
            + (
                " That is the least that it can be, and the demand the most: the 1,457 images a second that are "
                "published for ResNet-50 on a V100 are 83 % of what its FLOPS give. Measure a step as soon as you can."
                if peak
                else ""
            )
        )
    each = found.most.samples_per_s / found.most.experiments
    yield (
        f"The GPUs of one experiment never wait if {each:,.0f} samples a second are ready: 99 of 100 batches within "
        f"{show_seconds(found.step_seconds)}. Once there is a dataset, `lmdbloader tune DB --batch-size "
        f"{found.batch_size} --step-seconds {found.step_seconds:.4g}` measures whether a machine keeps up."
    )


def _memory(found: Plan) -> Iterator[str]:
    if found.fit is None:
        return
    if not found.fit.fits:
        yield (
            f"A batch of {found.batch_size:,} does not fit the GPU; {found.fit.largest:,} do"
            + (f", {found.fit.largest_power:,} as a power of two. " if found.fit.largest else ": not even one. ")
            + "Mixed precision halves the activations; several GPUs can share a larger batch."
        )
    elif found.fit.largest_power > found.batch_size:
        yield f"The GPU has room for batches of {found.fit.largest_power:,}."
    else:
        yield (
            f"Batches of {2 * found.batch_size:,} would not fit the GPU. Gradients and the optimizer's state need "
            "memory too: the formula counts the parameters only once."
        )


def _packing(found: Plan) -> Iterator[str]:
    alone, record, block = found.most.reads
    if alone.reads_per_s / block.reads_per_s < 1.5:
        yield "Samples are large: reading them in larger pieces would gain little."
        return
    disks = found.serving[0].needed
    in_records = (
        f"{record.reads_per_s:,.0f} reads of {show_size(record.read_nbytes)} (a record of a converted dataset) or "
        if record.read_nbytes > alone.read_nbytes
        else ""
    )
    yield (
        f"One file per sample, or any random access, costs {alone.reads_per_s:,.0f} reads a second. The same bytes are "
        f"{in_records}{block.reads_per_s:,.0f} reads of {show_size(block.read_nbytes)}, which is how "
        'order="quasi_random" reads a dataset, still shuffled in every epoch: '
        f"{_plural(disks['block'][1], 'spinning disk')} in place of {disks['sample'][1]:,}."
    )


def _nodes(found: Plan) -> int:
    return 1 if found.cluster is None else found.cluster.cluster.nodes


def _each_node(found: Plan, nodes: int) -> str:
    """Return what serves one node of several from its own disks, or from its memory."""
    alone = found.most.reads[0]
    kinds = {kind.name: kind.needed(alone.reads_per_s / nodes, alone.read_nbytes) for kind in STORAGE}
    name = "SATA SSD" if kinds["SATA SSD"] == 1 else "NVMe SSD"
    size = "the dataset" if found.dataset_nbytes is None else show_decimal_nbytes(found.dataset_nbytes)
    text = (
        f"{_plural(kinds[name], name)} in each of the {nodes:,} nodes can serve its GPUs, "
        f"{show_decimal_nbytes(found.most.nbytes_per_s / nodes)}/s, from a copy of the dataset; nodes with more than "
        f"{size} of free memory read from storage in the first epoch only."
    )
    return text[0].upper() + text[1:]


def _storage(found: Plan) -> Iterator[str]:
    alone = found.most.reads[0]
    if found.most.experiments == 1 and _nodes(found) > 1:
        yield _each_node(found, _nodes(found))
    elif found.most.experiments == 1:
        count_of = {serving.storage: serving.needed["sample"][1] for serving in found.serving}
        name = "SATA SSD" if count_of["SATA SSD"] == 1 else "NVMe SSD"
        what = f"{_plural(count_of[name], name)} in the machine can serve it as it is"
        if found.dataset_nbytes is not None:
            what += (
                f"; a machine with more than {show_decimal_nbytes(found.dataset_nbytes)} of free memory reads from "
                "storage in the first epoch only"
            )
        small = found.dataset_nbytes is not None and found.dataset_nbytes <= _LOCAL_NBYTES
        what += ". `lmdbloader stage` copies a dataset there, once for all jobs." if small else "."
        yield what[0].upper() + what[1:]
    elif alone.reads_per_s >= _MANY_READS and alone.read_nbytes < 256 * KIB:
        yield (
            f"{alone.reads_per_s:,.0f} small reads a second are an expensive problem for shared storage: standard NFS "
            "does not serve them. Pack the samples (`lmdbloader convert`), keep a part on local disks, or take weaker "
            "GPUs or share them, so that steps last longer."
        )
    elif alone.reads_per_s <= _FEW_READS:
        yield (
            f"{alone.reads_per_s:,.0f} reads a second of {show_size(alone.read_nbytes)} are what a decent NFS serves: "
            "large files, relaxed steps."
        )
    if any(serving.limits_machine for serving in found.serving):
        names = " and ".join(serving.storage for serving in found.serving if serving.limits_machine)
        limit = min(k.machine_nbytes_per_s for k in STORAGE if k.machine_nbytes_per_s is not None)
        whose = "its GPUs need" if _nodes(found) > 1 else "one experiment needs"
        yield f"{names} gives one machine at most {show_decimal_nbytes(limit)}/s, less than {whose}."
    if found.example_nbytes >= 256 * KIB:
        yield (
            "Store images no larger than they are trained at (`lmdbloader convert --max-resolution`): then no "
            "bandwidth goes to pixels that are scaled away."
        )


def _caching(found: Plan) -> Iterator[str]:
    if not found.cache_fraction:
        return
    left = 1 - found.cache_fraction
    room = (
        "" if found.dataset_nbytes is None else f", {show_decimal_nbytes(found.cache_fraction * found.dataset_nbytes)},"
    )
    gain = f"{1 / left:.2f} times faster" if left else "without it"
    yield (
        f"With {found.cache_fraction:.0%} of the dataset{room} on a local disk, from the second epoch on the shared "
        f"storage serves {found.most.samples_per_s * left:,.0f} reads a second and "
        f"{show_decimal_nbytes(found.most.nbytes_per_s * left)}/s: where it was the limit, epochs are {gain}."
    )


def _rate(low: Demand, high: Demand, *, decimal: bool) -> str:
    show, step = (show_decimal_nbytes, 1000) if decimal else (show_nbytes, 1024)
    first, second = show(low.nbytes_per_s), show(high.nbytes_per_s)
    if low is high or first == second:
        return f"{first}/s"
    unit = second.partition(" ")[2]
    part = low.nbytes_per_s / step ** ("KMGTPE".find(unit[0]) + 1)
    # One unit for both ends, unless nothing would be left of the first.
    if first.partition(" ")[2] != unit and part >= 0.01:
        first = f"{part:.2g} {unit}"
    return f"{first}/s to {second}/s"


def _span(low: float, high: float) -> str:
    first, second = show_number(low), show_number(high)
    return first if first == second else f"{first} to {second}"


def _plural(count: int, name: str) -> str:
    return f"one {name}" if count == 1 else f"{count:,} {name}s"


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, indent, 2 * indent, width=_WIDTH)
