"""The figures of a study as frozen data, and the rows of its sweep that a chart, a table or a sentence needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Our Loader; lmdbloader.dataloader, which is torch's DataLoader over the same dataset; and torch's DataLoader over the
# same images as files in a folder.
LoaderKind = Literal["lmdbloader", "dataloader", "folder"]
SOURCES: tuple[LoaderKind, ...] = ("lmdbloader", "dataloader", "folder")
LOADER_NAMES: dict[LoaderKind, str] = {
    "lmdbloader": "Loader",
    "dataloader": "DataLoader (LMDB)",
    "folder": "DataLoader (files)",
}
# As the folder of files: files that are extracted from the dataset for the study.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class StudiedField:
    """A field of the dataset.

    Attributes:
        name: Of the field.
        kind: image, array, int, float, text, bytes or json.
        description: Its contents, in words: "48 x 48, RGB, 8-bit".
    """

    name: str
    kind: str
    description: str


@dataclass(frozen=True, slots=True)
class StudiedDataset:
    """The dataset that was read.

    Attributes:
        path: As it was given.
        num_samples: Samples in it.
        fields: Its fields.
        fields_read: Names of the image fields that were read.
        raw_nbytes: Decoded bytes of all samples.
        stored_nbytes: Stored ones.
        content_digest: Of the dataset.
    """

    path: str
    num_samples: int
    fields: tuple[StudiedField, ...]
    fields_read: tuple[str, ...]
    raw_nbytes: int
    stored_nbytes: int
    content_digest: str


@dataclass(frozen=True, slots=True)
class BaselineFolder:
    """The folder of image files that was read for comparison.

    Attributes:
        path: As it was given; "auto" if the files were extracted from the dataset for the study.
        num_samples: Samples that its files make: pairs count once.
        num_files: Files.
        nbytes: Of the files together.
        formats: Formats of the files, such as "png", in alphabetical order.
    """

    path: str
    num_samples: int
    num_files: int
    nbytes: int
    formats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How it was measured.

    Attributes:
        seconds: Length of one turn of one setting.
        repeats: Turns of each setting; the medians of the turns are the figures.
        batch_sizes: Sizes that were measured.
        crops: Sides of the random windows in pixels of the largest field; None stands for whole images.
        model: Name of the model that was trained; None if batches were only loaded.
        device: Where it was trained: "cpu", "cuda:0"; with its name in brackets.
        num_threads: Threads of the Loader.
        num_workers: Worker processes of torch's DataLoader.
        command: The command line that does the same.
    """

    seconds: float
    repeats: int
    batch_sizes: tuple[int, ...]
    crops: tuple[int | None, ...]
    model: str | None
    device: str
    num_threads: int
    num_workers: int
    command: str


@dataclass(frozen=True, slots=True)
class Latency:
    """How long the loop waited for a batch, over all turns.

    Attributes:
        p50_seconds, p99_seconds, max_seconds: Median, 99th percentile and longest.
        mean_seconds: Of all.
        edges: (n + 1,) limits of the histogram's bins in seconds: eight to each power of ten, the same for every row,
            from the bin of the shortest to that of the longest.
        counts: (n,) batches in each bin. Waits below a microsecond are in the first.
    """

    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    mean_seconds: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """Mean seconds of a training step, by phase.

    Attributes:
        data: Waiting for the batch.
        copy: To the device, and there to float.
        forward: With the loss.
        backward: The gradients.
        update: Of the weights.
    """

    data: float
    copy: float
    forward: float
    backward: float
    update: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.data + self.copy + self.forward + self.backward + self.update


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """The use of a device over the training turns, as NVML reports it.

    Attributes:
        utilisation_percent: Share of the time in which a kernel ran, mean.
        power_watts: Drawn, mean.
        memory_mib: The most that was in use on the device, by every process.
        temperature_celsius: The highest.
        fan_percent: Of the fan's full speed, mean.
        performance_state: That it was in most often: 0 is the fastest, 15 the slowest.
    """

    utilisation_percent: float
    power_watts: float | None
    memory_mib: float
    temperature_celsius: float | None = None
    fan_percent: float | None = None
    performance_state: int | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """A model trained on the batches.

    Attributes:
        samples_per_s: Median of the turns.
        epoch_seconds: Time of the dataset's samples at this speed.
        phases: Where a step's time went.
        wait: How long steps waited for their batch.
        gpu: None if there is none, or NVML is not there.
        num_steps: Measured, over all turns.
        turns: Samples a second of each turn; empty in studies of older releases.
    """

    samples_per_s: float
    epoch_seconds: float
    phases: Phases
    wait: Latency
    gpu: GpuLoad | None
    num_steps: int
    turns: tuple[float, ...] = ()

    @property
    def stall(self) -> float:
        """Share of the time that the model waited for data, 0 to 1."""
        return self.phases.data / self.phases.total if self.phases.total else 0.0


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One setting of the sweep: loader, batch size, crop and memory.

    Attributes:
        source: Who makes the batches.
        batch_size: Samples in a batch.
        crop: Side of the random window in pixels of the largest field; None: whole images.
        is_pinned: Whether batches are in page-locked memory; always False without an accelerator.
        samples_per_s: Loading alone: median of the turns.
        turns: Loading alone: samples a second of each turn.
        epoch_seconds: Loading alone: time of the dataset's samples at this speed.
        latency: Loading alone: how long the loop waited for a batch.
        cpu_seconds_per_sample: Processor time of this process and its workers, loading alone.
        stages: Loading alone: seconds of thread time for each sample by the loader's stage (read, verify, decode,
            transform, function, buffer); None for the other sources.
        training: Speed and phases with the model; None without one.
    """

    source: LoaderKind
    batch_size: int
    crop: int | None
    is_pinned: bool
    samples_per_s: float
    turns: tuple[float, ...]
    epoch_seconds: float
    latency: Latency
    cpu_seconds_per_sample: float
    stages: Mapping[str, float] | None
    training: Training | None


@dataclass(frozen=True, slots=True)
class ThreadsRow:
    """The speed of the Loader with a number of threads.

    Attributes:
        num_threads: Threads, at most the cores.
        batch_size: Samples in a batch.
        samples_per_s: Median of the turns.
        turns: Samples a second of each turn; empty in studies of older releases.
    """

    num_threads: int
    batch_size: int
    samples_per_s: float
    turns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class OversubscriptionRow:
    """More threads or workers than cores.

    Attributes:
        source: Who makes the batches.
        num_workers: Threads asked of the Loader, or worker processes of torch's DataLoader.
        per_core: num_workers / cores.
        batch_size: Samples in a batch.
        samples_per_s: Median of the turns.
        of_one_per_core: samples_per_s as a share of that with one worker for each core; 0.9 is a drop by 10 %.
        turns: Samples a second of each turn; empty in studies of older releases.
    """

    source: LoaderKind
    num_workers: int
    per_core: float
    batch_size: int
    samples_per_s: float
    of_one_per_core: float
    turns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class IsolationRow:
    """Several processes at the same time, each with one loader and no model.

    Attributes:
        source: Who makes the batches.
        num_processes: Processes.
        batch_size: Samples in a batch.
        workers_each: Threads or worker processes of each loader.
        samples_per_s: Of all processes together.
        slowest, fastest: Samples a second of the slowest and of the fastest process.
        turns: Samples a second of all processes together in each turn; empty in studies of older releases.
    """

    source: LoaderKind
    num_processes: int
    batch_size: int
    workers_each: int
    samples_per_s: float
    slowest: float
    fastest: float
    turns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ColdRow:
    """A pass from a cold page cache, and the same pass again, from a warm one.

    Attributes:
        source: Who makes the batches.
        order: Of the samples: "random", or "quasi_random", which the Loader has for cold storage.
        batch_size: Samples in a batch.
        crop: Side of the random window in pixels of the largest field; None: whole images.
        num_samples: Samples in a pass: an epoch, or what was read in the time.
        cold_samples_per_s, warm_samples_per_s: Medians of the passes, with the start of threads or workers.
        held: Share of the files that stayed in the page cache when it was dropped, at most; 0 if unknown.
        cold_turns, warm_turns: Samples a second of each pass; empty in studies of older releases.
    """

    source: LoaderKind
    order: str
    batch_size: int
    crop: int | None
    num_samples: int
    cold_samples_per_s: float
    warm_samples_per_s: float
    held: float
    cold_turns: tuple[float, ...] = ()
    warm_turns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyFigures:
    """All figures of a study, see `Study`."""

    release: str
    created: str
    seconds: float
    environment: Mapping[str, Any]
    machine: tuple[tuple[str, ...], ...]
    cores: int
    dataset: StudiedDataset
    baseline: BaselineFolder | None
    settings: StudySettings
    sweep: tuple[SweepRow, ...]
    threads: tuple[ThreadsRow, ...]
    oversubscription: tuple[OversubscriptionRow, ...]
    isolation: tuple[IsolationRow, ...]
    notes: tuple[str, ...]
    cold: tuple[ColdRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of a sweep, found by their settings.

    Attributes:
        rows: All of them.
    """

    rows: tuple[SweepRow, ...]

    @property
    def crops(self) -> tuple[int | None, ...]:
        """Sides of windows, in the order in which they were measured."""
        return tuple(dict.fromkeys(row.crop for row in self.rows))

    @property
    def sources(self) -> tuple[LoaderKind, ...]:
        """Who was measured."""
        return tuple(source for source in SOURCES if any(row.source == source for row in self.rows))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes of batches, ascending."""
        return tuple(sorted({row.batch_size for row in self.rows}))

    def curve(self, source: LoaderKind, crop: int | None, *, pinned: bool | None = None) -> tuple[SweepRow, ...]:
        """Return one row for each batch size, ascending.

        Args:
            source: Who made the batches.
            crop: Side of the windows.
            pinned: Only rows with pinned, or only with paged memory; None: pinned rows if there are any.
        """
        found: dict[int, SweepRow] = {}
        for row in self.rows:
            if row.source == source and row.crop == crop and pinned in (None, row.is_pinned):
                kept = found.get(row.batch_size)
                if kept is None or (row.is_pinned and not kept.is_pinned):
                    found[row.batch_size] = row
        return tuple(found[size] for size in sorted(found))

    def row(self, source: LoaderKind, batch_size: int, crop: int | None) -> SweepRow | None:
        """Return one of the rows of `curve`, None if that was not measured."""
        return next((row for row in self.curve(source, crop) if row.batch_size == batch_size), None)


def loading(study: StudyFigures) -> Sweep:
    """Return the whole sweep."""
    return Sweep(study.sweep)


def training(study: StudyFigures) -> Sweep:
    """Return the rows with which a model was trained."""
    return Sweep(tuple(row for row in study.sweep if row.training is not None))


def on_gpu(study: StudyFigures) -> Sweep:
    """Return the rows that have figures of a GPU."""
    return Sweep(tuple(row for row in study.sweep if row.training is not None and row.training.gpu is not None))


def both_memories(study: StudyFigures) -> Sweep:
    """Return the rows of settings that were trained from pinned and from paged memory."""
    trained = training(study).rows

    def key(row: SweepRow) -> tuple[LoaderKind, int, int | None]:
        return row.source, row.batch_size, row.crop

    pinned, paged = ({key(row) for row in trained if row.is_pinned is which} for which in (True, False))
    return Sweep(tuple(row for row in trained if key(row) in pinned & paged))


def focus(study: StudyFigures) -> tuple[int, int | None]:
    """Return the batch size and the window that sentences are about: the smallest, which is hardest, and the last."""
    sweep = loading(study)
    return sweep.batch_sizes[0], sweep.crops[-1]


def stage_rows(study: StudyFigures) -> tuple[SweepRow, ...]:
    """Return the rows whose stages are drawn: the Loader's smallest and largest batches of every crop."""
    sweep = Sweep(tuple(row for row in study.sweep if row.stages))
    sizes = dict.fromkeys((sweep.batch_sizes[0], sweep.batch_sizes[-1])) if sweep.rows else ()
    found = (sweep.row("lmdbloader", size, crop) for crop in sweep.crops for size in sizes)
    return tuple(row for row in found if row is not None)
