"""Stage (d): training throughput, with batches that are already on the device, and with batches of every feed.

For each network, size and batch the ceiling comes first: whole training steps (forward, backward, optimizer) in
bfloat16 and channels_last on batches that never leave the device. Then the same steps fed by our Loader, by FFCV, and
by torch's DataLoader over files. A feed is emptied before it is measured, so batches that were ready before do not
count; whole rounds of its workers are timed, in several turns.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import feeds
import torch
from feeds import Feed
from stage import Stage, parse_stage
from superresolution.training import train_step
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.lab import Recorder, doctor, plan
from lmdbloader.lab.arms import cpu_seconds
from lmdbloader.lab.profiling.loader_facts import facts_of

TURNS = 3
# The least number of steps before timing, and the seconds that an answer of NVML covers.
_FEWEST_STEPS, _NVML_SECONDS = 3, 0.6
SCALES = {"resnet50": 0.02, "resnet18": 0.05, "tiny": 0.05}
_MOST_TEXT = 300


class ImageTrainer:
    """A classifier, and steps that train it: bfloat16, channels_last, SGD with momentum."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        model, self.origin = feeds.residual_network(name)
        self.model: nn.Module = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=SCALES[name] / 10, momentum=0.9, weight_decay=5e-5, nesterov=True
        )

    def step(self, feed: Feed, batch: Any, timer: Any) -> None:
        """Train on a batch as its source gave it."""
        is_there = batch[0].device.type == self.device.type
        images, labels = feed.place(batch)
        if not is_there:
            timer.lap("copy")
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(images if self.device.type == "cuda" else images.float())
            loss = functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)
        timer.lap("forward")
        loss.backward()
        timer.lap("backward")
        self.optimizer.step()
        timer.lap("update")


class PairTrainer:
    """A super-resolution network, and steps that train it as scripts/train_sr.py does."""

    def __init__(self, name: str, device: torch.device, *, small: bool) -> None:
        self.name, self.device, self.origin = name, device, "superresolution"
        self.model: Any = feeds.restoring_network(name, small=small).to(device)
        self.model.train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)

    def step(self, feed: Feed, batch: Any, timer: Any) -> None:
        """Train on a batch as its source gave it; uint8 becomes float32 on the device."""
        lr, hr = tuple(batch)[:2]
        train_step(self.model, self.optimizer, lr, hr, timer=timer)


Trainer = ImageTrainer | PairTrainer


@dataclass
class Run:
    """State shared by the sections."""

    stage: Stage
    device: torch.device
    workers: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    alone: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    # (network, pixels, batch size) -> samples a second on batches that are on the device.
    ceilings: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def seconds(self, full: float) -> float:
        """How long to measure something for."""
        return 0.0 if self.stage.small else full

    def keep(self, row: dict[str, Any]) -> None:
        """Keep the figures of one training, with its share of the ceiling."""
        ceiling = self.ceilings.get((row["model"], row["pixels"], row["batch_size"]))
        if ceiling is not None:
            row["ceiling_per_s"], row["share_of_ceiling"] = rounded(ceiling), rounded(row["samples_per_s"] / ceiling)
        row["at_s"] = round(self.stage.seconds - self.stage.left)
        self.rows.append(row)
        short = {key: row[key] for key in ("samples_per_s", "share_of_ceiling", "stall", "cores") if key in row}
        print(f"{row['model']} {row['pixels']} px, {row['batch_size']}, {row['feed']}: {short}", flush=True)
        self.stage.put("training", self.rows)


def rounded(value: float | None) -> float | None:
    """Return four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _NoLaps:
    """A timer that measures nothing."""

    def lap(self, phase: str) -> None:
        """Forget it."""


class _NoRecorder:
    """Replaces the recorder if that fails: rates without phases."""

    def __init__(self) -> None:
        self.timer = _NoLaps()

    def __enter__(self) -> _NoRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self) -> None:
        """Do nothing."""

    def got(self, batch: Any) -> None:
        """Do nothing."""

    def profile(self) -> None:
        """Return that there is none."""


def watch(feed: Feed, raw: Iterator[Any], trainer: Trainer, pixels: int, seconds: float) -> dict[str, Any]:
    """Train from a feed for a while; return its figures.

    Args:
        feed: The feed.
        raw: Its batches without end.
        trainer: That takes them.
        pixels: Height and width of the training images, for the row.
        seconds: Of all turns together, at least; each is made of whole rounds of the feed's workers.
    """
    if trainer.device.type == "cuda":
        synchronize(trainer.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(trainer.device)
    drain(feed, raw)
    try:
        found = _watched(feed, raw, trainer, seconds, Recorder(feed.source, warmup=0, device=trainer.device))
    except (TimeoutError, StopIteration, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # the rate is worth having without its explanation
        found = _watched(feed, raw, trainer, seconds, _NoRecorder())
        found["recorder_error"] = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    described = {"model": trainer.name, "pixels": pixels, "batch_size": feed.batch_size, "feed": feed.name}
    return {**described, "kind": feed.kind, **found}


def _watched(feed: Feed, raw: Iterator[Any], trainer: Trainer, seconds: float, recorder: Any) -> dict[str, Any]:
    device = trainer.device
    # NVML reports the last moments: the first answer has to be about training, too.
    until = time.perf_counter() + min(_NVML_SECONDS, seconds / 3)
    fewest = _FEWEST_STEPS if seconds else 1
    while fewest > 0 or time.perf_counter() < until:
        trainer.step(feed, next(raw), _NoLaps())
        fewest -= 1
    synchronize(device)
    turns: list[float] = []
    steps, host_waited = 0, 0.0
    with recorder:
        cpu, began = cpu_seconds(), time.perf_counter()
        for _ in range(TURNS if seconds else 1):
            count, start = 0, time.perf_counter()
            while count % feed.period or not count or time.perf_counter() - start < seconds / TURNS:
                recorder.ask()
                asked = time.perf_counter()
                batch = next(raw)
                host_waited += time.perf_counter() - asked
                recorder.got(batch)
                trainer.step(feed, batch, recorder.timer)
                del batch
                count += 1
                if time.perf_counter() - start > 3 * seconds:
                    break  # a slow feed of many workers: the batches so far must do
            synchronize(device)
            turns.append(count * feed.batch_size / (time.perf_counter() - start))
            steps += count
        elapsed = time.perf_counter() - began
        cores = (cpu_seconds() - cpu) / elapsed
    row: dict[str, Any] = {
        "samples_per_s": rounded(statistics.median(turns)),
        "turns": [rounded(turn) for turn in turns],
        "steps": steps,
        "cores": rounded(cores),
        "host_wait": rounded(host_waited / elapsed),
    }
    if device.type == "cuda":
        row["peak_mib"] = rounded(torch.cuda.max_memory_allocated(device) / 2**20)
    profile = recorder.profile()
    if profile is None:
        return row
    row |= {
        "stall": rounded(profile.phases["data"].share),
        "wait_p99_ms": rounded(1000 * profile.phases["data"].p99),
        "phases_ms": {name: rounded(1000 * times.mean) for name, times in profile.phases.items()},
        "bottleneck": profile.bottleneck,
        "advice": str(profile.advice)[:_MOST_TEXT],
    }
    if profile.gpu is not None:
        row["gpu_percent"], row["watts"] = rounded(profile.gpu.utilization_percent), rounded(profile.gpu.power_watts)
        row["gpu_mib"] = rounded(profile.gpu.memory_mib)
        row["celsius"], row["fan_percent"] = profile.gpu.temperature_celsius, rounded(profile.gpu.fan_percent)
        row["performance_state"] = profile.gpu.performance_state
    return row


def drain(feed: Feed, raw: Iterator[Any]) -> None:
    """Use up the batches that a feed has ready."""
    if feed.kind == "resident":
        return
    began = time.perf_counter()
    for _ in range(feed.ahead):
        next(raw)
        if time.perf_counter() - began > 1:  # nothing was ready
            return


def read_alone(feed: Feed, raw: Iterator[Any], seconds: float) -> float:
    """Return the samples a second of a feed whose batches are brought to the device, and nothing else is done."""
    drain(feed, raw)
    synchronize(feed.device)
    count, began = 0, time.perf_counter()
    while True:
        feed.place(next(raw))
        count += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds and (count % feed.period == 0 or elapsed > 4 * seconds):
            break
    synchronize(feed.device)
    return count * feed.batch_size / (time.perf_counter() - began)


def measure_ceiling(run: Run, trainer: Trainer, feed: Feed, pixels: int, seconds: float) -> None:
    """Measure training on batches that are on the device, and store that as the ceiling."""

    def measure() -> dict[str, Any]:
        return watch(feed, feed.raw(), trainer, pixels, run.seconds(seconds))

    row = run.stage.attempt(f"{trainer.name} {pixels} px, {feed.batch_size}, {feed.name}", seconds + 6, measure)
    if row is not None:
        run.ceilings[trainer.name, pixels, feed.batch_size] = row["samples_per_s"]
        run.keep({**row, "network": trainer.origin})


def measure_feed(
    run: Run,
    open_feed: Callable[[], Feed],
    name: str,
    trainers: list[Any],
    pixels: int,
    seconds: float,
    *,
    start: float = 3.0,
    alone: float = 1.0,
) -> None:
    """Measure a feed alone, and the training of each network from it.

    Args:
        run: Of it all.
        open_feed: Opens it.
        name: For the list of left-out items.
        trainers: Networks.
        pixels: For the rows.
        seconds: Of each training.
        start: The approximate seconds of its start.
        alone: Seconds of reading alone, 0 for none.
    """
    what = f"{pixels} px, {name}"
    opened: list[Any] = []

    def begin() -> tuple[Feed, Iterator[Any], float]:
        began = time.perf_counter()
        feed = open_feed()
        opened.append(feed)
        raw = feed.raw()
        opened.append(raw)
        next(raw)
        return feed, raw, time.perf_counter() - began

    try:
        begun = run.stage.attempt(f"{what}: start", start + alone + (seconds + 1) * len(trainers), begin)
        if begun is None:
            return
        feed, raw, started = begun
        if alone:
            found = run.stage.attempt(f"{what}: alone", alone + 1, lambda: read_alone(feed, raw, run.seconds(alone)))
            if found is not None:
                run.alone.append(
                    {
                        "pixels": pixels,
                        "batch_size": feed.batch_size,
                        "feed": feed.name,
                        "samples_per_s": rounded(found),
                        "first_batch_s": rounded(started),
                    }
                )
                run.stage.put("alone", run.alone)
        for trainer in trainers:
            told = f"{trainer.name} {what}, {feed.batch_size}"
            row = run.stage.attempt(
                told,
                seconds + 2,
                lambda trainer=trainer: watch(feed, raw, trainer, pixels, run.seconds(seconds)),  # type: ignore[misc]
            )
            if row is not None:
                run.keep(row)
    finally:
        for part in reversed(opened):
            with contextlib.suppress(Exception):
                part.close()
        gc.collect()


def image_feeds(run: Run, size: int, batch_size: int) -> dict[str, tuple[float, Callable[[], Feed]]]:
    """Return the feeds of a classifier: name -> (seconds that its start takes, function that opens it)."""
    data, device = run.stage.data, run.device
    common: dict[str, Any] = {"batch_size": batch_size, "size": size, "device": device, "endless": True}
    return {
        "loader raw256": (2, lambda: feeds.loader_images(data / "raw256", **common)),
        "loader jpg": (2, lambda: feeds.loader_images(data / "original", name="loader jpg", **common)),
        "loader raw256, uint8": (
            2,
            lambda: feeds.loader_images(data / "raw256", dtype=torch.uint8, name="loader raw256, uint8", **common),
        ),
        "loader jpg, two cores free": (
            2,
            lambda: feeds.loader_images(
                data / "original", threads=max(1, run.stage.cores - 2), name="loader jpg, two cores free", **common
            ),
        ),
        "loader jpg, uint8": (
            2,
            lambda: feeds.loader_images(data / "original", dtype=torch.uint8, name="loader jpg, uint8", **common),
        ),
        "folder": (4, lambda: feeds.folder_images(data / "photos" / "train", workers=run.workers, **common)),
        "FFCV raw256": (
            15,
            lambda: feeds.ffcv_images(data / "ffcv" / "raw256.beton", workers=run.workers, **common),
        ),
        "FFCV jpg": (
            15,
            lambda: feeds.ffcv_images(data / "ffcv" / "original.beton", workers=run.workers, **common),
        ),
    }


def image_ceilings(run: Run, trainers: list[ImageTrainer], size: int, batch_size: int, seconds: float) -> None:
    """Measure the ceilings of classifiers at a size, on real images where they can be read."""

    def open_resident() -> Feed:
        source = feeds.loader_images(
            run.stage.data / "raw256", batch_size=batch_size, size=size, device=run.device, endless=True
        )
        try:
            return feeds.resident(source.batches(), run.device, batch_size)
        finally:
            source.close()

    feed = run.stage.attempt(f"resident images of {size} px", 5, open_resident)
    if feed is None:
        images = feeds.random_images(run.device, batch_size, size, torch.bfloat16)
        feed = feeds.resident(images, run.device, batch_size, name="resident, random")
    for trainer in trainers:
        measure_ceiling(run, trainer, feed, size, seconds)


def classify(
    run: Run, trainers: list[ImageTrainer], size: int, batch_size: int, names: tuple[str, ...], seconds: float
) -> None:
    """Measure classifiers at a size from some feeds."""
    available = image_feeds(run, size, batch_size)
    for name in names:
        start, open_feed = available[name]
        measure_feed(run, open_feed, name, trainers, size, seconds, start=start)


def pair_ceiling(run: Run, trainer: PairTrainer, patch: int, batch_size: int, seconds: float) -> None:
    """Measure the ceiling of a super-resolution network."""
    feed = feeds.resident(feeds.random_pairs(run.device, batch_size, patch), run.device, batch_size)
    measure_ceiling(run, trainer, feed, patch, seconds)


def restore(run: Run, trainers: list[PairTrainer], batch_size: int, names: tuple[str, ...], seconds: float) -> None:
    """Measure super-resolution networks on patches of 96 pixels from some feeds."""
    data = run.stage.data
    common: dict[str, Any] = {"batch_size": batch_size, "device": run.device, "endless": True}
    available: dict[str, tuple[float, Callable[[], Feed]]] = {
        "loader pairs_raw": (1, lambda: feeds.loader_pairs(data / "pairs_raw", **common)),
        "loader pairs_lz4": (1, lambda: feeds.loader_pairs(data / "pairs_lz4", **common)),
        "folder": (2, lambda: feeds.folder_pairs(data / "pairs_png", workers=run.workers, **common)),
        "FFCV": (12, lambda: feeds.ffcv_pairs(data / "ffcv" / "pairs.beton", workers=run.workers, **common)),
    }
    for name in names:
        start, open_feed = available[name]
        what = f"{name}, {batch_size}"
        measure_feed(run, open_feed, what, trainers, 96, seconds, start=start, alone=0.5)


def consult(run: Run, size: int, batch_size: int, model: str, name: str) -> None:
    """Store the predictions of `plan` and `doctor` for a feed and a network, with the measured values."""
    ceiling = run.ceilings.get((model, size, batch_size))
    if ceiling is None:
        run.stage.leave_out(f"plan and doctor: {model}, {name}", "its ceiling is not known")
        return
    # A processor's step may take seconds, and a rehearsal has none to spare.
    step = min(batch_size / ceiling, 0.02) if run.stage.small else batch_size / ceiling
    start, open_feed = image_feeds(run, size, batch_size)[name]

    def ask() -> dict[str, Any]:
        feed = open_feed()
        try:
            seen = next(
                (
                    row
                    for row in run.rows
                    if (row["model"], row["pixels"], row["batch_size"], row["feed"])
                    == (model, size, batch_size, feed.name)
                ),
                {},
            )
            alone = next(
                (
                    row["samples_per_s"]
                    for row in run.alone
                    if (row["pixels"], row["batch_size"], row["feed"]) == (size, batch_size, feed.name)
                ),
                None,
            )
            nbytes = sample_nbytes(feed, run.stage.data)
            planned = plan(batch_size=batch_size, step_seconds=step, example_size=nbytes)
            told = doctor(loader=feed.source, step_seconds=step)
            feeding, profile = told.finding("feeding"), told.profile
            return {
                "model": model,
                "pixels": size,
                "batch_size": batch_size,
                "feed": feed.name,
                "step_ms": rounded(1000 * step),
                "needed_per_s": rounded(planned.most.samples_per_s),
                "needed_bytes_per_s": rounded(planned.most.nbytes_per_s),
                "plan": str(planned).splitlines()[0][:_MOST_TEXT],
                "alone_per_s": alone,
                "doctor_verdict": feeding.verdict,
                "doctor": feeding.value[:_MOST_TEXT],
                "doctor_remedy": feeding.remedy[:_MOST_TEXT],
                "doctor_step_ms": None if profile is None else rounded(1000 * profile.step_seconds),
                "doctor_share": None if profile is None else rounded(min(1.0, step / profile.step_seconds)),
                "other_problems": [finding.name for finding in told.problems if finding.name != "feeding"],
                "seen_share": seen.get("share_of_ceiling"),
                "seen_stall": seen.get("stall"),
                "seen_bottleneck": seen.get("bottleneck"),
            }
        finally:
            feed.close()

    row = run.stage.attempt(f"plan and doctor: {model} {size} px, {name}", start + 9, ask)
    if row is not None:
        run.verdicts.append(row)
        run.stage.put("verdicts", run.verdicts)


def sample_nbytes(feed: Feed, data: Path) -> int:
    """Return the stored bytes of a sample."""
    images = facts_of(feed.source).images if feed.kind == "loader" else None
    if images is not None:
        return max(1, round(images.stored_nbytes))
    sizes = [path.stat().st_size for path in list((data / "photos" / "train").rglob("*.jpg"))[:500]]
    return max(1, round(statistics.fmean(sizes)))


def whole_epochs(run: Run, trainer: ImageTrainer, size: int, batch_size: int, names: tuple[str, ...]) -> None:
    """Time whole epochs of the data, including their starts: the cost of a small dataset."""
    data = run.stage.data
    common: dict[str, Any] = {"batch_size": batch_size, "size": size, "device": run.device}
    ways: dict[str, tuple[int, float, Callable[[], Feed]]] = {
        "loader raw256": (3, 10, lambda: feeds.loader_images(data / "raw256", **common)),
        "FFCV raw256": (
            3,
            25,
            lambda: feeds.ffcv_images(data / "ffcv" / "raw256.beton", workers=run.workers, **common),
        ),
        "folder": (2, 30, lambda: feeds.folder_images(data / "photos" / "train", workers=run.workers, **common)),
    }
    for name in names:
        count, needed, open_feed = ways[name]

        def measure(count: int = count, open_feed: Callable[[], Feed] = open_feed) -> dict[str, Any]:
            feed = open_feed()
            seconds, samples = [], 0
            try:
                # Work done once per process, compiling and starting workers, is not part of an epoch.
                feeds.first_of(feed)
                for _ in range(count):
                    began = time.perf_counter()
                    with contextlib.closing(feed._once()) as batches:
                        for batch in islice(batches, 2 if run.stage.small else None):
                            trainer.step(feed, batch, _NoLaps())
                            samples += feed.batch_size
                    synchronize(run.device)
                    seconds.append(time.perf_counter() - began)
            finally:
                feed.close()
            return {
                "model": trainer.name,
                "pixels": size,
                "batch_size": batch_size,
                "feed": feed.name,
                "samples": samples // count,
                "epoch_s": [rounded(each) for each in seconds],
            }

        row = run.stage.attempt(f"whole epochs, {name}", needed, measure)
        if row is not None:
            run.epochs.append(row)
            run.stage.put("epochs", run.epochs)


def compiled_ceiling(run: Run, size: int, batch_size: int, name: str) -> None:
    """Measure a classifier's ceiling after torch.compile."""

    def measure() -> dict[str, Any]:
        trainer = ImageTrainer(name, run.device)
        trainer.model = torch.compile(trainer.model)  # type: ignore[assignment]
        images = feeds.random_images(run.device, batch_size, size, torch.bfloat16)
        feed = feeds.resident(images, run.device, batch_size, name="resident, compiled")
        for batch in feed.source:
            trainer.step(feed, batch, _NoLaps())
        return watch(feed, feed.raw(), trainer, size, run.seconds(3))

    row = run.stage.attempt(f"{name} {size} px, compiled", 75, measure)
    if row is not None:
        run.keep(row)


def small_loss(device: torch.device) -> float:
    """Train a step on the device before anything is timed: libraries are loaded at the first."""
    layer = nn.Conv2d(3, 8, 3).to(device)
    loss: Tensor = layer(torch.randn(2, 3, 16, 16, device=device)).square().mean()
    loss.backward()
    return float(loss.detach())


def ask_peers(run: Run, parts: list[str], seconds: float) -> None:
    """Measure FFCV in its own process, and keep its figures: it may die, or hang, and nothing else with it.

    Args:
        run: Of it all.
        parts: Of the measurements: "images:224" (pixels), "pairs:64" (batch size), "epochs:224".
        seconds: That it takes, about.
    """
    stage, what = run.stage, f"FFCV, {' '.join(parts)}"
    if not stage.has(5 if stage.small else seconds / 2, what):
        return
    budget = max(min(1.3 * seconds, stage.left - 8), 3)
    part = stage.out.with_name(stage.out.stem + "-peers.json")
    part.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--data", str(stage.data), "--out", str(part), "--seconds", f"{budget:.0f}"]
    command += ["--peers", *parts, *(["--small"] if stage.small else [])]
    if run.device.type == "cuda":
        synchronize(run.device)
        torch.cuda.empty_cache()
    try:
        status: int | str = subprocess.run(command, timeout=budget + 5, check=False).returncode
    except subprocess.TimeoutExpired:
        status = "none: it was stopped after its time"
    if status != 0:
        stage.leave_out(what, f"the process ended with exit status {status}; what it had measured is kept")
    if not part.exists():
        return
    found = json.loads(part.read_text("utf-8"))
    figures = found.get("figures", {})
    for row in figures.get("training", []):
        run.keep(row)
    for name, rows in (("alone", run.alone), ("epochs", run.epochs)):
        if figures.get(name):
            rows.extend(figures[name])
            stage.put(name, rows)
    for name, reason in found.get("left_out", {}).items():
        stage.leave_out(name, reason)
    part.unlink()


def measure_peers(run: Run, parts: list[str], names: tuple[str, ...], batch_size: int) -> None:
    """Measure the requests of `ask_peers`, in this process."""
    for part in parts:
        what, number = part.split(":")
        if what == "pairs":
            restorers = [PairTrainer(name, run.device, small=run.stage.small) for name in ("edsr", "srcnn")]
            restore(run, restorers, int(number), ("FFCV",), 1.5)
            continue
        classifiers = [ImageTrainer(name, run.device) for name in names]
        if what == "epochs":
            whole_epochs(run, classifiers[-1], int(number), batch_size, ("FFCV raw256",))
        else:
            classify(run, classifiers, int(number), batch_size, ("FFCV raw256", "FFCV jpg"), 3)


def measure_all(run: Run, names: tuple[str, ...], batch_size: int) -> None:
    """Measure everything, the most valuable first."""
    small, device = run.stage.small, run.device
    large, medium, least = (48, 40, 32) if small else (224, 160, 128)
    ours = ("loader raw256", "loader jpg", "folder")
    bytes_sent = ("loader raw256, uint8", "loader jpg, uint8")
    classifiers = [
        trainer for name in names if (trainer := run.stage.attempt(name, 3, lambda n=name: ImageTrainer(n, device)))
    ]

    image_ceilings(run, classifiers, large, batch_size, 2.4)
    classify(run, classifiers, large, batch_size, ours, 2.4)
    classify(run, classifiers[-1:], large, batch_size, bytes_sent, 2)
    ask_peers(run, [f"images:{large}"], 60)
    image_ceilings(run, classifiers, least, batch_size, 1.8)
    classify(run, classifiers, least, batch_size, ours, 1.8)

    restorers = make_restorers(run)
    for number in (4,) if small else (16, 128, 64, 8, 32):
        trainers = restorers[-1:] if number in (8, 32) else restorers
        for trainer in trainers:
            pair_ceiling(run, trainer, 96, number, 1.0)
        restore(run, trainers, number, ("loader pairs_raw", "folder"), 1.2)

    if not small:
        image_ceilings(run, classifiers, medium, batch_size, 1.8)
        classify(run, classifiers, medium, batch_size, ours, 1.8)


def make_restorers(run: Run) -> list[PairTrainer]:
    """Return the super-resolution networks."""
    found = (
        run.stage.attempt(name, 1, lambda n=name: PairTrainer(n, run.device, small=run.stage.small))  # type: ignore[misc]
        for name in ("edsr", "srcnn")
    )
    return [trainer for trainer in found if trainer]


def measure_more(run: Run, names: tuple[str, ...], batch_size: int) -> None:
    """Measure the jobs that `measure_all` left for the end: they need its ceilings and speeds."""
    small, device = run.stage.small, run.device
    large, least = (48, 32) if small else (224, 128)
    asked = [(names[-1], "loader jpg"), (names[-1], "folder"), (names[0], "folder"), (names[-1], "loader raw256")]
    for model, name in asked[: 1 if small else None]:
        consult(run, large, batch_size, model, name)
    restorers = make_restorers(run)
    restore(run, restorers, 4 if small else 64, ("loader pairs_lz4",), 1.2)
    trainer = run.stage.attempt(names[-1], 3, lambda: ImageTrainer(names[-1], device))
    classifiers = [trainer] if trainer else []
    if not small:
        classify(run, classifiers, least, batch_size, ("loader jpg, two cores free", "loader raw256, uint8"), 1.8)
        ask_peers(run, ["pairs:64", f"images:{least}"], 80)
    if classifiers:
        whole_epochs(run, classifiers[-1], large, batch_size, ("loader raw256", "folder"))
    if not small:
        ask_peers(run, [f"epochs:{large}"], 45)
        compiled_ceiling(run, large, batch_size, names[0])


def main() -> None:
    """Run the stage."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--peers", nargs="+", default=[], metavar="PART")
    options, others = parser.parse_known_args()
    stage = parse_stage("fed", __doc__, others)
    device = torch.device(stage.device)
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)
    small_loss(device)
    run = Run(stage, device, 2 if stage.small else stage.cores)
    batch_size = 8 if stage.small else 256
    names = ("tiny",) if stage.small else ("resnet50", "resnet18")
    if options.peers:
        measure_peers(run, options.peers, names, batch_size)
        return
    if stage.more:
        earlier(run)
        measure_more(run, names, batch_size)
        return
    stage.put("settings", {**facts(device), "workers": run.workers, "images_batch_size": batch_size, "turns": TURNS})
    measure_all(run, names, batch_size)


def earlier(run: Run) -> None:
    """Read the stage's earlier figures."""
    stage = run.stage
    run.rows, run.alone = stage.figure("training", []), stage.figure("alone", [])
    run.verdicts, run.epochs = stage.figure("verdicts", []), stage.figure("epochs", [])
    for row in run.rows:
        if row["kind"] == "resident" and "compiled" not in row["feed"]:
            run.ceilings[row["model"], row["pixels"], row["batch_size"]] = row["samples_per_s"]


def facts(device: torch.device) -> dict[str, Any]:
    """Return the settings that the figures depend on."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": "CPU",
        "precision": "bfloat16 autocast, channels_last",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name,
            "device_gib": rounded(properties.total_memory / 2**30),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


if __name__ == "__main__":
    main()
