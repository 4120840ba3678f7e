"""A plausible, complete study for tests of reports; its figures are invented."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from lmdbloader.lab.study.results import Study
from lmdbloader.lab.study.rows import (
    BaselineFolder,
    ColdRow,
    GpuLoad,
    IsolationRow,
    Latency,
    LoaderKind,
    OversubscriptionRow,
    Phases,
    StudiedDataset,
    StudiedField,
    StudySettings,
    SweepRow,
    ThreadsRow,
    Training,
)

BATCH_SIZES = (8, 16, 32, 64, 128)
CROPS = (16, 64)
NUM_SAMPLES = 12_000
# Samples a second at batch 128 and crop 64, and fixed milliseconds a batch.
_SPEED: dict[LoaderKind, tuple[float, float]] = {
    "lmdbloader": (52_000.0, 0.02),
    "dataloader": (14_000.0, 0.9),
    "folder": (1_900.0, 1.4),
}
_ENVIRONMENT = {
    "processor": {"model": "AMD EPYC 7B13", "num_online": 4, "num_usable": 4, "quota": None},
    "memory": {"total_nbytes": 16 * 2**30, "available_nbytes": 11 * 2**30, "shm_nbytes": 8 * 2**30},
    "system": "Linux 6.8.0",
    "python": "3.12.4",
}
_MACHINE = (
    ("processor", "AMD EPYC 7B13"),
    ("cores", "4 usable"),
    ("memory", "16 GiB, 11 GiB free"),
    ("/dev/shm", "8 GiB, 8 GiB free"),
    ("torch", "2.9.0"),
    ("Python", "3.12.4, Linux 6.8.0"),
    ("dataset on", "ext4"),
    ("load average", "0.3"),
)


def make_study(*, gpu: bool = False, baseline: bool = True, model: str | None = "srcnn915") -> Study:
    """Return a study.

    Args:
        gpu: Whether there was one: its columns are filled, and pinned and paged memory compared.
        baseline: Whether there was a folder of files.
        model: The trained model; None: loading alone.
    """
    sources: tuple[LoaderKind, ...] = ("lmdbloader", "dataloader", *(("folder",) if baseline else ()))
    environment: dict[str, Any] = {**_ENVIRONMENT, "devices": [{"name": "NVIDIA H100 80GB HBM3"}] if gpu else []}
    notes = [] if gpu else ["Pinned memory was not compared with paged memory: there is no accelerator here."]
    if not baseline:
        notes.append("No folder of files was compared with: --baseline DIR names one, --baseline auto makes one.")
    return Study(
        release="0.1.0",
        created="2026-01-31T12:00:00Z",
        seconds=97.5,
        environment=environment,
        machine=(*_MACHINE, ("GPU", "NVIDIA H100 80GB HBM3")) if gpu else _MACHINE,
        cores=4,
        dataset=StudiedDataset(
            path="div2k_x2.lmdb",
            num_samples=NUM_SAMPLES,
            fields=(
                StudiedField("lr", "image", "48 x 48, RGB, 8-bit"),
                StudiedField("hr", "image", "96 x 96, RGB, 8-bit"),
            ),
            fields_read=("lr", "hr"),
            raw_nbytes=NUM_SAMPLES * 3 * (48**2 + 96**2),
            stored_nbytes=int(NUM_SAMPLES * 3 * (48**2 + 96**2) * 0.83),
            content_digest="xxh64:0123456789abcdef",
        ),
        baseline=BaselineFolder("auto", NUM_SAMPLES, 2 * NUM_SAMPLES, NUM_SAMPLES * 19_500, ("png",))
        if baseline
        else None,
        settings=StudySettings(
            seconds=0.5,
            repeats=3,
            batch_sizes=BATCH_SIZES,
            crops=CROPS,
            model=model,
            device="cuda:0 (NVIDIA H100 80GB HBM3)" if gpu else "cpu",
            num_threads=4,
            num_workers=4,
            command="lmdbloader bench div2k_x2.lmdb --baseline auto",
        ),
        sweep=tuple(
            _row(source, size, crop, pinned, gpu, model)
            for crop in CROPS
            for size in BATCH_SIZES
            for source in sources
            for pinned in ((True, False) if gpu and source != "lmdbloader" else (gpu,))
        ),
        threads=tuple(ThreadsRow(n, 32, speed, _turns(speed)) for n in (1, 2, 3, 4) for speed in [16_400.0 * n**0.93]),
        oversubscription=tuple(
            OversubscriptionRow(source, 4 * n, float(n), 32, speed, share, _turns(speed))
            for source in sources
            for n in (1, 2, 3, 4)
            for share in [1.0 if source == "lmdbloader" else 1 - 0.06 * (n - 1)]
            for speed in [_speed(source, 32, 64) * share]
        ),
        isolation=tuple(
            IsolationRow(source, k, size, 4 // k, total, total / k * 0.94, total / k * 1.05, _turns(total))
            for source in sources
            for k in (1, 2, 4)
            for size in BATCH_SIZES
            for total in [_speed(source, size, 64) * (1 - 0.03 * (k - 1))]
        ),
        notes=tuple(notes),
        cold=tuple(
            ColdRow(source, order, 32, 64, 8_000, speed * share, speed, 0.0, _turns(speed * share), _turns(speed))
            for source, order, share in (
                ("lmdbloader", "random", 0.4),
                ("lmdbloader", "quasi_random", 0.9),
                *((source, "random", 0.3) for source in sources[1:]),
            )
            for speed in [_speed(source, 32, 64)]
        ),
    )


def faster(study: Study, times: float) -> Study:
    """Return a study whose Loader is so many times as fast loading alone, in the sweep."""
    rows = [
        dataclasses.replace(
            row, samples_per_s=row.samples_per_s * times, turns=tuple(turn * times for turn in row.turns)
        )
        if row.source == "lmdbloader"
        else row
        for row in study.sweep
    ]
    return dataclasses.replace(study, sweep=tuple(rows))


def make_latency(p50: float, count: int = 400) -> Latency:
    """Return a distribution with a tail: log-normal around a median in seconds."""
    first = math.floor(8 * math.log10(p50 / 6))
    edges = [10 ** (k / 8) for k in range(first, first + 18)]
    centres = [math.log2(math.sqrt(a * b) / p50) for a, b in itertools.pairwise(edges)]
    weights = [math.exp(-((c if c < 0 else c / 2) ** 2) * 2) for c in centres]
    counts = [round(count * weight / sum(weights)) for weight in weights]
    return Latency(p50, p50 * 6.5, p50 * 16, p50 * 1.3, tuple(edges), tuple(counts))


def _turns(speed: float) -> tuple[float, ...]:
    return speed * 0.96, speed, speed * 1.02


def _speed(source: LoaderKind, batch_size: int, crop: int) -> float:
    speed, fixed = _SPEED[source]
    each = 1 / speed * (0.6 if crop == 16 else 1.0)
    return batch_size / (fixed / 1000 + each * batch_size)


def _row(source: LoaderKind, batch_size: int, crop: int, pinned: bool, gpu: bool, model: str | None) -> SweepRow:
    speed = _speed(source, batch_size, crop) * (1.08 if pinned and crop == 64 else 1.0)
    stages = {"read": 0.11, "verify": 0.09, "decode": 0.33, "transform": 0.4, "function": 0.0, "buffer": 0.07}
    return SweepRow(
        source=source,
        batch_size=batch_size,
        crop=crop,
        is_pinned=pinned,
        samples_per_s=speed,
        turns=_turns(speed),
        epoch_seconds=NUM_SAMPLES / speed,
        latency=make_latency(batch_size / speed),
        cpu_seconds_per_sample=3.8 / speed,
        stages={name: share * 3.6 / speed for name, share in stages.items()} if source == "lmdbloader" else None,
        training=None if model is None else _training(batch_size, crop, speed, gpu),
    )


def _training(batch_size: int, crop: int, speed: float, gpu: bool) -> Training:
    pixels = batch_size * crop * crop
    forward, backward = (6e-4, 4e-4 + pixels * 2.2e-9) if gpu else (2e-3 + pixels * 2e-7, 3e-3 + pixels * 4e-7)
    copy, update = (1.5e-4, 2.5e-4) if gpu else (4e-4, 2e-4)
    model_seconds = copy + forward + backward + update
    data = max(batch_size / speed - model_seconds, 5e-5)
    phases = Phases(data, copy, forward, backward, update)
    busy = (forward + backward + update) / phases.total
    return Training(
        samples_per_s=batch_size / phases.total,
        epoch_seconds=NUM_SAMPLES / batch_size * phases.total,
        phases=phases,
        wait=make_latency(data),
        gpu=GpuLoad(100 * busy, 90 + 380 * busy, 620 + pixels * 9e-4) if gpu else None,
        num_steps=400,
        turns=_turns(batch_size / phases.total),
    )
