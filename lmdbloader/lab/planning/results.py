"""The figures of a plan, and the table and advice that `print` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.base.text import counted
from lmdbloader.base.units import GIB, KIB, show_decimal_nbytes, show_nbytes
from lmdbloader.lab.formatting import align, define, number, wrap
from lmdbloader.lab.planning.demand import STORAGE, Demand, GpuFit, Reads
from lmdbloader.lab.planning.presets import Preset

_WIDTH = 88
# 25,600 reads a second of small files are a problem for NFS, 1,280 of large ones are not.
_MANY_READS, _FEW_READS = 10_000, 2000

# Storage class -> way of reading ("sample", "record", "block") -> devices for the fewest and the most experiments.
Serving = Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The data rate and storage that a training run needs.

    Attributes:
        batch_size, step_seconds: n of one GPU and t, from which all figures follow. Each sample must be ready within t,
            and so must 99 % of the batches.
        example_nbytes: Bytes of a sample on storage.
        gpus: GPUs of one experiment.
        fewest, most: The demand of the fewest and of the most experiments; the same if one number was given.
        serving: How many devices of each storage class serve the demand, for each way of reading ("sample", "record",
            "block"): for the fewest and for the most experiments.
        fit: How the batch fits on the GPU; None if the memory of the GPU or of a sample is not known.
        flops_samples_per_s: Samples that one GPU trains a second by its FLOPS; None if these are not known.
        dataset_nbytes: Size of the dataset, None if it was not given.
        cache_fraction: Share of the dataset that each machine keeps on a disk of its own.
        preset: The published workload from which missing figures were taken; None without one.
    """

    batch_size: int
    step_seconds: float
    example_nbytes: int
    gpus: int
    fewest: Demand
    most: Demand
    serving: Serving
    fit: GpuFit | None
    flops_samples_per_s: float | None
    dataset_nbytes: int | None
    cache_fraction: float
    preset: Preset | None

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
            "sentences": sentences(self),
            "sources": {kind.name: kind.source for kind in STORAGE},
        }

    def __str__(self) -> str:
        """Return a table, and what it means in sentences."""
        lines = [*wrap(_headline(self), width=_WIDTH), "", "Needed", *define(list(_needed(self)), indent="  "), ""]
        texts = sentences(self)
        if self.preset is not None:
            texts += [f"Note: {note}" for note in self.preset.notes]
            texts.append(f"Source of the preset: {self.preset.source}")
        lines += [*_reading_table(self), "", "What it means"]
        return "\n".join([*lines, *(line for text in texts for line in wrap(text, "  ", "    ", width=_WIDTH))])


def _headline(found: Plan) -> str:
    count = span(found.fewest.experiments, found.most.experiments)
    experiments = "" if found.most.experiments == 1 else f", {count} experiments at the same time"
    title = f"{found.preset.name}: {found.preset.title}. " if found.preset else ""
    return (
        f"{title}Batches of {found.batch_size:,} on {counted(found.gpus, 'GPU')}{experiments}, a step of "
        f"{show_seconds(found.step_seconds)}, samples of {show_size(found.example_nbytes)}."
    )


def _needed(found: Plan) -> Iterator[tuple[str, str]]:
    low, high = found.fewest, found.most
    yield "samples", f"{span(low.samples_per_s, high.samples_per_s)} a second"
    yield (
        "a batch",
        f"in {show_seconds(found.step_seconds)} or less, 99 times out of 100; each sample within that time, too",
    )
    yield "reads", f"{span(low.reads[0].reads_per_s, high.reads[0].reads_per_s)} a second (IOPS), a sample each"
    decimal, binary = (
        " to ".join(dict.fromkeys(f"{show(each.nbytes_per_s)}/s" for each in (low, high)))
        for show in (show_decimal_nbytes, show_nbytes)
    )
    yield "bandwidth", f"{decimal} ({binary})"
    if found.dataset_nbytes is not None and found.num_samples is not None and found.epoch_seconds is not None:
        size, samples = show_decimal_nbytes(found.dataset_nbytes), counted(found.num_samples, "sample")
        yield "dataset", f"{size}: {samples}, an epoch in {show_seconds(found.epoch_seconds)}"
    if (fit := found.fit) is not None:
        verdict = "fits" if fit.fits else "does NOT fit"
        memory = f"{fit.batch_nbytes / GIB:.2f} GiB {verdict} in {fit.gpu_memory_nbytes / GIB:.2f} GiB"
        power = f" ({fit.largest_power:,} as a power of two)" if fit.largest_power != fit.largest else ""
        yield "GPU memory", f"{memory}; the largest batch is {fit.largest:,}{power}"
    if found.flops_samples_per_s is not None:
        text = f"{number(found.flops_samples_per_s)} samples a second by its FLOPS"
        preset = found.preset
        if preset is not None and preset.images_per_s and preset.flops_images_per_s == found.flops_samples_per_s:
            text += f", {preset.images_per_s:,.0f} published"
        yield "one GPU", text


def _reading_table(found: Plan) -> list[str]:
    """Return the table of reads per second by size, and of how many devices of each storage class serve them."""
    # If samples are larger than records, a record holds one of them, and is not another way to read.
    pairs: list[tuple[Reads, Reads]] = []
    for pair in zip(found.fewest.reads, found.most.reads, strict=True):
        if not pairs or pair[1].read_nbytes > pairs[-1][1].read_nbytes:
            pairs.append(pair)
    rows = [["one read is", *(f"a {way.name} of {show_size(way.read_nbytes)}" for _, way in pairs)]]
    rows.append(["reads a second", *(span(low.reads_per_s, high.reads_per_s) for low, high in pairs)])
    if left := found.cache_fraction and 1 - found.cache_fraction:
        rows.append(
            [
                f"  {found.cache_fraction:.0%} cached, epoch 2 on",
                *(span(low.reads_per_s * left, high.reads_per_s * left) for low, high in pairs),
            ]
        )
    rows.append(["how many serve it", *[""] * len(pairs)])
    rows += [[f"  {name}", *(span(*needed[way.name]) for _, way in pairs)] for name, needed in found.serving.items()]
    return align(rows)


def sentences(found: Plan) -> list[str]:
    """Return what a plan means, and advice, in sentences, the most important first."""
    return [_pace(found), *_storage(found), *_caching(found)]


def _pace(found: Plan) -> str:
    return (
        f"`lmdbloader tune DB --batch-size {found.batch_size} --step-seconds {found.step_seconds:.4g}` measures "
        "whether a machine keeps up."
    )


def _storage(found: Plan) -> Iterator[str]:
    alone = found.most.reads[0]
    if found.most.experiments == 1:
        name = "SATA SSD" if found.serving["SATA SSD"]["sample"][1] == 1 else "NVMe SSD"
        yield (
            f"{counted(found.serving[name]['sample'][1], name)} in the machine can serve it as it is. "
            "`lmdbloader stage` copies a dataset there."
        )
    elif alone.reads_per_s >= _MANY_READS and alone.read_nbytes < 256 * KIB:
        yield (
            f"{alone.reads_per_s:,.0f} small reads a second are expensive on shared storage. Pack the "
            "samples (`lmdbloader convert`), keep a part on local disks, or take weaker GPUs or share them."
        )
    elif alone.reads_per_s <= _FEW_READS:
        yield (
            "The files are large and the steps relaxed: a decent NFS serves "
            f"{alone.reads_per_s:,.0f} reads a second of {show_size(alone.read_nbytes)}."
        )
    for kind in STORAGE:
        limit = kind.machine_nbytes_per_s
        if limit is not None and found.most.nbytes_per_s / found.most.experiments > limit:
            text = f"{kind.name} gives one machine at most {show_decimal_nbytes(limit)}/s, less than one experiment."
            yield f"{text} If samples are pixels of photographs, --codec delta about halves their bytes."


def _caching(found: Plan) -> Iterator[str]:
    if found.cache_fraction:
        left = 1 - found.cache_fraction
        gain = "without it" if not left else f"{1 / left:.2f} times faster" if left < 0.95 else "hardly faster"
        yield (
            f"With {found.cache_fraction:.0%} of the dataset on a local disk, from the second epoch on the shared "
            f"storage serves {found.most.samples_per_s * left:,.0f} reads a second and "
            f"{show_decimal_nbytes(found.most.nbytes_per_s * left)}/s: where it was the limit, epochs are {gain}."
        )


def span(low: float, high: float) -> str:
    """Return a number, or both ends of a range.

    >>> span(640.2, 1280), span(5, 5)
    ('640 to 1,280', '5')
    """
    return " to ".join(dict.fromkeys((number(low), number(high))))


def show_size(nbytes: int) -> str:
    """Return a size in the units that it was probably given in.

    >>> show_size(65536), show_size(500_000)
    ('64 KiB', '500 KB')
    """
    return show_nbytes(nbytes) if nbytes % KIB == 0 else show_decimal_nbytes(nbytes)


def show_seconds(value: float) -> str:
    """Return a time in a suitable unit.

    >>> [show_seconds(value) for value in (0.0005, 0.087, 2, 150, 30000)]
    ['0.5 ms', '87 ms', '2 s', '2.5 min', '8.3 h']
    """
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:,.1f} h"
