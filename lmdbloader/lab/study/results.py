"""What a study found: every figure as frozen data, which JSON keeps and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmdbloader.errors import FormatError
from lmdbloader.lab.study.plain import from_plain, to_plain

STUDY_VERSION = 1

# Who makes the batches: our Loader; lmdbloader.dataloader, which is torch's DataLoader over the same dataset; and
# torch's DataLoader over the same images as files in a folder, as the study before us had them.
Source = Literal["lmdbloader", "dataloader", "folder"]
SOURCES: tuple[Source, ...] = ("lmdbloader", "dataloader", "folder")
SOURCE_NAMES: dict[Source, str] = {
    "lmdbloader": "Loader",
    "dataloader": "DataLoader (LMDB)",
    "folder": "DataLoader (files)",
}


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """A field of the dataset.

    Attributes:
        name: Of the field.
        kind: image, array, int, float, text, bytes or json.
        description: What it holds, in words: "48 x 48, RGB, 8-bit".
    """

    name: str
    kind: str
    description: str


@dataclass(frozen=True, slots=True)
class DatasetFacts:
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
    fields: tuple[FieldFacts, ...]
    fields_read: tuple[str, ...]
    raw_nbytes: int
    stored_nbytes: int
    content_digest: str


@dataclass(frozen=True, slots=True)
class BaselineFacts:
    """The folder of image files that was read for comparison.

    Attributes:
        path: As it was given; "auto" where the files were extracted from the dataset for the study.
        num_samples: Samples that its files make: pairs count once.
        num_files: Files.
        nbytes: Of the files together.
        formats: What the files are: "png" and the like, in alphabetical order.
    """

    path: str
    num_samples: int
    num_files: int
    nbytes: int
    formats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How it was measured.

    Attributes:
        seconds: Length of one turn of one setting.
        repeats: Turns of each setting; the medians of the turns are the figures.
        batch_sizes: Sizes that were measured.
        crops: Sides of the random windows in pixels of the largest field; None stands for whole images.
        model: Name of the model that was trained; None where batches were only loaded.
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
        counts: (n,) batches in each bin. What was faster than a microsecond is in the first.
    """

    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    mean_seconds: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """Mean seconds of a training step, by what it was busy with.

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
class GpuUse:
    """What a device did over the training turns, as NVML has it.

    Attributes:
        utilisation_percent: Share of the time in which a kernel ran, mean.
        power_watts: Drawn, mean.
        memory_mib: The most that was in use on the device, by every process.
    """

    utilisation_percent: float
    power_watts: float | None
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Training:
    """A model trained on the batches.

    Attributes:
        samples_per_s: Median of the turns.
        epoch_seconds: What the dataset's samples take at this speed.
        phases: Where a step's time went.
        wait: How long steps waited for their batch.
        gpu: None where there is none, or NVML is not there.
        num_steps: Measured, over all turns.
    """

    samples_per_s: float
    epoch_seconds: float
    phases: Phases
    wait: Latency
    gpu: GpuUse | None
    num_steps: int

    @property
    def stall(self) -> float:
        """Share of the time that the model waited for data, 0 to 1."""
        return self.phases.data / self.phases.total if self.phases.total else 0.0


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One setting: who loads, in batches of which size, cut to which size, into which memory.

    Attributes:
        source: Who makes the batches.
        batch_size: Samples in a batch.
        crop: Side of the random window in pixels of the largest field; None: whole images.
        is_pinned: Whether batches lie in page-locked memory; always False without an accelerator.
        samples_per_s: Loading alone: median of the turns.
        turns: Loading alone: samples a second of each turn.
        epoch_seconds: Loading alone: what the dataset's samples take at this speed.
        latency: Loading alone: how long the loop waited for a batch.
        cpu_seconds_per_sample: Processor time of this process and its workers, loading alone.
        stages: Loading alone: seconds of thread time for each sample by the loader's stage (read, verify, decode,
            transform, function, buffer); None for sources that do not tell.
        training: With the model; None where none was trained.
    """

    source: Source
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
    """The Loader with so many threads.

    Attributes:
        num_threads: Threads, at most the cores.
        batch_size: Samples in a batch.
        samples_per_s: Median of the turns.
    """

    num_threads: int
    batch_size: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class OversubscriptionRow:
    """More threads or workers than cores.

    Attributes:
        source: Who makes the batches.
        num_workers: Threads asked of the Loader, or worker processes of torch's DataLoader.
        per_core: num_workers / cores.
        batch_size: Samples in a batch.
        samples_per_s: Median of the turns.
        of_one_per_core: samples_per_s as a share of what one worker for each core gives; 0.9 is a drop by 10 %.
    """

    source: Source
    num_workers: int
    per_core: float
    batch_size: int
    samples_per_s: float
    of_one_per_core: float


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
    """

    source: Source
    num_processes: int
    batch_size: int
    workers_each: int
    samples_per_s: float
    slowest: float
    fastest: float


@dataclass(frozen=True, slots=True)
class Study:
    """A whole study. `print(study)` shows its tables; a section that was not asked for is empty.

    Attributes:
        release: Of lmdbloader that measured.
        created: When it ended, as "2026-01-31T12:00:00Z".
        seconds: How long all of it took.
        environment: The machine, as `machine.describe().as_json()` tells it.
        machine: The same for people: (name, value) of each line, and what else a reader must know of it.
        cores: Cores that the process could use.
        dataset: What was read.
        baseline: The folder of files; None where there was none.
        settings: How.
        sweep: Batch sizes, crops, sources, and pinned memory.
        threads: Scaling by threads.
        oversubscription: More threads or workers than cores.
        isolation: Several processes at the same time.
        notes: What was left out and why, in sentences.
    """

    release: str
    created: str
    seconds: float
    environment: Mapping[str, Any]
    machine: tuple[tuple[str, ...], ...]
    cores: int
    dataset: DatasetFacts
    baseline: BaselineFacts | None
    settings: Settings
    sweep: tuple[SweepRow, ...]
    threads: tuple[ThreadsRow, ...]
    oversubscription: tuple[OversubscriptionRow, ...]
    isolation: tuple[IsolationRow, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the tables, no wider than 100 columns, and at their end what they say."""
        from lmdbloader.lab.study.text import as_text  # which stands on this module

        return as_text(self)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as `json.dumps` takes it."""
        return {"study_version": STUDY_VERSION, **to_plain(self)}

    @classmethod
    def from_json(cls, value: Any) -> Study:
        """Return the study that `as_json` gave.

        Args:
            value: Parsed JSON.

        Raises:
            FormatError: It is no study, of another version, or an entry is missing, unknown or of another type.
        """
        if not isinstance(value, Mapping) or "study_version" not in value:
            raise FormatError(
                f"study: found {value!r:.80}; expected the JSON object that `lmdbloader bench --json` writes"
            )
        found = value["study_version"]
        if found != STUDY_VERSION or isinstance(found, bool):
            raise FormatError(
                f"study: version {found!r:.80}; this release reads {STUDY_VERSION}. Measure again, or use the "
                "release that measured."
            )
        return from_plain(cls, {key: entry for key, entry in value.items() if key != "study_version"}, "study")
