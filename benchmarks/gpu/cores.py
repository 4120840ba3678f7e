"""Stage (b): loading on all cores without a GPU, compared with memory copies, FFCV, torch's DataLoader and an LMDB.

Pairs of 96 and 48 pixels and photographs cropped to 224 by 1, 2, 4, ... threads; small batches; conversion by the same
numbers of workers; processes that share the cores. Figures are lists of flat rows: `what` (Loader, FFCV, memory copy,
DataLoader, ...), `dataset`, `dtype`, `threads` (or workers), `batch_size`, `samples_per_s` (the median of `turns`),
`p50_ms` and `p99_ms` from one batch to the next, `bytes_per_s` of the batches, `of_memory_copy`: their share of the
bytes that the same number of threads copy, `efficiency`: the speed divided by that of one thread and the number
of threads. Turns are interleaved.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import Pairs
from cores_peers import (
    DATALOADERS,
    FFCV,
    FOLDER,
    IMAGE_NBYTES,
    ITEM_NBYTES,
    PAIR_NBYTES,
    READY,
    Copying,
    OurTurns,
    Remote,
    check_stores,
    join,
    serve_dataloaders,
    serve_ffcv,
    time_together,
)
from photos import of_full_decoding
from stage import Stage, parse_stage

from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.cores import count_cores

BATCH_SIZE, SMALL_BATCH_SIZES = 128, (8, 16, 32, 64)
OURS, PEER, COPY, DECODING = "Loader", "FFCV", "memory copy", "decoding whole files only"
# (dataset, kind, dtype) that the Loader is timed with.
PAIRS = [(f"pairs_{codec}", "pairs", dtype) for codec in ("raw", "lz4") for dtype in ("float32", "uint8")]
PIXELS = [("raw256", "images", "float32"), ("raw256", "images", "uint8")]
JPEGS = [("original", "images", "float32")]
CLASSES = {"layout": "classes", "write_mode": "raw", "max_resolution": 256}
# Conversions: source, options, and files per worker, enough for some seconds after the start.
CONVERSIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    "JPEGs to pixels of at most 256": ("photos/train", CLASSES, 600),
    "JPEGs to JPEGs of at most 384": ("photos/train", {**CLASSES, "write_mode": "jpg", "max_resolution": 384}, 500),
    "2K PNGs to patches": ("div2k", {"patch_size": 96, "scale": 2}, 10),
}
# One file per worker: the time of starting, which every conversion's seconds contain.
STARTING = "starting, one JPEG for each worker"
# In its own process: workers would import all that this script does.
CONVERT = """
import json, sys, time
import lmdbloader
source, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
began = time.perf_counter()
report = lmdbloader.convert(source, out, **options)
print(json.dumps([time.perf_counter() - began, int(report.sizes["data_nbytes"])]))
"""
Measure = Callable[[float], dict[str, float]]


def main() -> None:
    """Measure, the most valuable figures first."""
    # Pinned memory and a CUDA context are the other stages' subject.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    stage = parse_stage("cores", __doc__)
    torch.set_num_threads(1)
    cores = Cores(stage)
    try:
        cores.run_more() if stage.more else cores.run()
    finally:
        cores.end_peers()


@dataclass(slots=True)
class Table:
    """The rows of one figure: candidates take turns, and every row is kept as soon as it is there."""

    stage: Stage
    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def take_turns(
        self, candidates: list[tuple[dict[str, Any], Measure]], *, turns: int, seconds: float, least: float
    ) -> None:
        """Measure candidates in turn, and add their rows; nothing more is begun when fewer seconds are left."""
        found: list[list[dict[str, float]]] = [[] for _ in candidates]
        failed: set[int] = set()
        for _ in range(turns):
            for k, (facts, measure) in enumerate(candidates):
                if k in failed or self.stage.left < least:
                    continue
                try:
                    found[k].append(measure(seconds))
                except Exception as error:
                    failed.add(k)
                    self.stage.leave_out(f"{self.name}: {_name(facts)}", _text(error))
        for (facts, _), taken in zip(candidates, found, strict=True):
            if taken:
                self.rows.append({**facts, **_medians(taken)})
        self.put()

    def put(self) -> None:
        """Compute the comparisons between rows, and keep all rows."""
        for row in self.rows:
            if row["sample_nbytes"]:
                row["bytes_per_s"] = round(row["samples_per_s"] * row["sample_nbytes"])
        copies = {(r["dtype"], r["threads"]): r["bytes_per_s"] for r in self.rows if r["what"] == COPY}
        alone = {_case(r): r["samples_per_s"] for r in self.rows if r.get("threads") == 1}
        for row in self.rows:
            copy = copies.get((row.get("dtype"), row.get("threads")))
            if copy and row["what"] != COPY and "bytes_per_s" in row:
                row["of_memory_copy"] = round(row["bytes_per_s"] / copy, 4)
            if (one := alone.get(_case(row))) and row.get("threads"):
                row["efficiency"] = round(row["samples_per_s"] / (one * row["threads"]), 3)
        if self.rows:
            self.stage.put(self.name, self.rows)


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("what", "dataset", "dtype", "batch_size", "verify"))


def _name(facts: dict[str, Any]) -> str:
    return " ".join(str(value) for key, value in facts.items() if key != "sample_nbytes")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _medians(turns: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of some turns, and the speeds of all."""
    row: dict[str, Any] = {
        key: round(statistics.median(turn[key] for turn in turns), 3)
        for key in ("samples_per_s", "p50_ms", "p99_ms")
        if key in turns[0]
    }
    row["turns"] = [round(turn["samples_per_s"], 1) for turn in turns]
    row["turn_seconds"] = round(statistics.median(turn["seconds"] for turn in turns), 3)
    for key in ("batch_size", "seconds_to_first_batch"):
        if key in turns[0]:
            row[key] = turns[0][key]
    return row


class Cores:
    """The measurements of this stage, and their shared state."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.data, self.small = stage, stage.data, stage.small
        self.cores = min(stage.cores, count_cores())
        self.threads = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= self.cores]
        if self.cores not in self.threads:
            self.threads.append(self.cores)
        self.seconds, self.turns = (0.02, 1) if self.small else (0.2, 3)
        self.batch_size = 32 if self.small else BATCH_SIZE
        # An epoch is longer than any turn.
        self.length = {"pairs": 3000, "images": 600} if self.small else {"pairs": 250_000, "images": 100_000}
        self.peers: dict[int, Remote] = {}
        self.waiting: dict[int, list[str]] = {}
        self.compiled: dict[tuple[int, str], dict[str, Any]] = {}
        self.dataloaders: Remote | None = None
        self.dataloaders_are_ready = False
        self.pairs, self.images = Table(stage, "pairs"), Table(stage, "images")
        self.loaders, self.small_batches = Table(stage, "dataloaders"), Table(stage, "small batches")
        self.copying: dict[str, Copying] = {}
        self.conversions: list[dict[str, Any]] = stage.figure("conversion", [])
        self.loaders.rows.extend(stage.figure("dataloaders", []))
        self.done: set[tuple[str, int]] = set()

    def run(self) -> None:
        """Measure all that there is time for."""
        full, one, others = self.threads[-1], self.threads[:1], self.threads[1:-1]
        self.stage.put("cores", {"cores": self.cores, "threads": self.threads, "shm_free": shm_free()})
        self.attempt("FFCV", self.start_ffcv)
        self.attempt("DataLoader", self.start_dataloaders)
        self.attempt("memory copy", self.make_copies)
        self.attempt("stores", lambda: self.stage.put("stores agree", check_stores(self.data, 16)))
        # While FFCV compiles, on one core each, measure jobs that need few cores.
        for n in [n for n in self.threads if n * 4 <= self.cores]:
            for what in DATALOADERS:
                if self.is_compiling():
                    self.attempt(what, lambda w=what, k=n: self.time_dataloader(w, k, beside=True))  # type: ignore[misc]
        self.attempt("FFCV", self.await_ffcv)
        inner = [n for n in (8, 4, 2) if n in others] + [n for n in others if n not in (2, 4, 8)]
        for n in dict.fromkeys([full, *one, *inner]):
            self.attempt(f"pairs by {n}", lambda k=n: self.time_pairs(k))  # type: ignore[misc]
        for n in dict.fromkeys([full, *one]):
            self.attempt(f"images by {n}", lambda k=n: self.time_images(k))  # type: ignore[misc]
        for what in DATALOADERS:
            self.attempt(what, lambda w=what: self.time_dataloader(w, full))  # type: ignore[misc]
        self.attempt("small batches", lambda: self.time_small_batches(full))
        for n in inner:
            self.attempt(f"images by {n}", lambda k=n: self.time_images(k))  # type: ignore[misc]

    def run_more(self) -> None:
        """Measure the jobs that `run` left for the end."""
        full = self.threads[-1]
        for name in list(CONVERSIONS)[-1:] if self.small else (STARTING, *CONVERSIONS):
            self.attempt(name, lambda c=name: self.time_conversion(c, full))  # type: ignore[misc]
        for what in () if self.small or full <= 8 else DATALOADERS:
            self.attempt(what, lambda w=what: self.time_dataloader(w, 8))  # type: ignore[misc]
        for workers in self.threads[-2::-1]:
            for name in () if self.small else CONVERSIONS:
                self.attempt(name, lambda c=name, k=workers: self.time_conversion(c, k))  # type: ignore[misc]
        self.attempt("processes", self.time_processes)
        self.attempt("FFCV's writer", self.time_ffcv_writer)

    def end_peers(self) -> None:
        """End the processes of FFCV and of the DataLoaders: none may keep this one from ending."""
        for peer in [*self.peers.values(), *([self.dataloaders] if self.dataloaders else [])]:
            peer.end()
        self.peers, self.dataloaders = {}, None

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Run a job; an error is noted, and the rest continues."""
        try:
            work()
        except Exception as error:
            self.stage.leave_out(what, _text(error))

    def start_ffcv(self) -> None:
        """Start a process for each number of threads, which compile all at once."""
        try:
            from ffcv_peer import ffcv_available
        except ImportError as error:
            self.stage.leave_out("FFCV", f"ffcv_peer: {error}")
            return
        reason = ffcv_available()
        if reason is None and not (self.data / "ffcv").is_dir():
            reason = f"{self.data / 'ffcv'} is missing: betons.py makes it"
        if reason is not None:
            self.stage.leave_out("FFCV", reason)
            return
        # A rehearsal has two cores, and each of them takes seconds to compile.
        names = ["pairs float32", "raw256 float32"] if self.small else list(FFCV)
        for n in self.threads[-1:] if self.small else reversed(self.threads):
            is_full = n == self.threads[-1]
            self.peers[n] = Remote(serve_ffcv, self.data, names, n, self.batch_size, self.length, is_full)
            self.waiting[n] = [*names, READY]

    def start_dataloaders(self) -> Remote:
        """Start the process that DataLoaders are measured in."""
        self.dataloaders, self.dataloaders_are_ready = Remote(serve_dataloaders, self.data), False
        return self.dataloaders

    def is_compiling(self) -> bool:
        """Handle the messages of FFCV's processes, and return whether any is still compiling."""
        self.hear(0)
        return any(self.waiting.values())

    def hear(self, seconds: float) -> None:
        """Handle the messages of FFCV's processes within some seconds."""
        until = time.monotonic() + seconds
        while any(self.waiting.values()):
            for n, names in list(self.waiting.items()):
                try:
                    said = self.peers[n].receive(0.02) if names else None
                except RuntimeError as error:
                    self.stage.leave_out(f"FFCV by {n}", f"{', '.join(names)}: {error}")
                    names.clear()
                    continue
                if said is None:
                    continue
                name, facts = said
                names.remove(name)
                if name == READY:
                    if names:
                        self.stage.leave_out(f"FFCV by {n}", f"{', '.join(names)}: not compiled in time")
                    names.clear()
                elif isinstance(facts, str):
                    self.stage.leave_out(f"FFCV by {n}: {name}", facts)
                else:
                    self.compiled[n, name] = facts
            if time.monotonic() >= until:
                break

    def await_ffcv(self) -> None:
        """Wait until FFCV has compiled, at most a third of the stage's time; loaders not ready by then are left out."""
        if not self.peers:
            return
        began = time.monotonic()
        self.hear(min(self.stage.seconds / 3, self.stage.left - 60))
        late = [n for n, names in self.waiting.items() if names]
        for n in late:
            with suppress(RuntimeError):
                self.peers[n].send("enough")
        # Each ends its compilation.
        self.hear(min(self.stage.seconds / 8, self.stage.left - 40))
        for n, names in self.waiting.items():
            if names:
                self.stage.leave_out(f"FFCV by {n}", f"{', '.join(names)}: not compiled in time, and did not stop")
                self.peers[n].end()
                self.compiled = {key: facts for key, facts in self.compiled.items() if key[0] != n}
                names.clear()
        rows = [{"threads": n, "loader": name, **facts} for (n, name), facts in self.compiled.items()]
        self.stage.put("FFCV ready", rows)
        self.stage.put("seconds waited for FFCV", round(time.monotonic() - began, 1))

    def ffcv(self, n: int, name: str) -> list[tuple[dict[str, Any], Measure]]:
        """Return FFCV as a candidate; nothing if it is not ready or delivers wrong batches."""
        facts = self.compiled.get((n, name))
        checked = self.compiled.get((self.threads[-1], name), {})
        if facts is None or not checked.get("complete", True) or not checked.get("matches", True):
            return []
        file, kind, dtype, ways = FFCV[name]
        dataset = f"{file}, turned" if ways == 8 else file
        row = {"what": PEER, "dataset": dataset, **self.facts(kind, dtype, n, self.batch_size)}
        return [(row, lambda seconds: self.peers[n].ask(60, name, seconds))]

    def facts(self, kind: str, dtype: str, n: int, batch_size: int) -> dict[str, Any]:
        """Return the first keys of a row of batches."""
        nbytes = (PAIR_NBYTES if kind == "pairs" else IMAGE_NBYTES) * ITEM_NBYTES[dtype]
        return {"kind": kind, "dtype": dtype, "threads": n, "batch_size": batch_size, "sample_nbytes": nbytes}

    def ours(
        self, cases: list[tuple[str, str, str]], n: int, batch_size: int, **options: Any
    ) -> list[tuple[dict[str, Any], Measure]]:
        """Return Loaders as candidates; one that does not open is noted."""
        found: list[tuple[dict[str, Any], Measure]] = []
        for dataset, kind, dtype in cases:
            row = {"what": OURS, "dataset": dataset, **self.facts(kind, dtype, n, batch_size), **options}
            try:
                turns = OurTurns(
                    self.data / dataset,
                    kind,
                    dtype,
                    batch_size=batch_size,
                    threads=n,
                    length=self.length[kind],
                    **options,
                )
            except Exception as error:
                self.stage.leave_out(_name(row), _text(error))
                continue
            found.append((row, turns))
        return found

    def make_copies(self) -> None:
        """Allocate the buffers of the memory copy, one per thread: 280 MB of pairs as bytes and as floats."""
        dataset = LMDBDataset(self.data / "pairs_raw")
        count = min(len(dataset), 8192)
        lr, hr = next(iter(Loader(dataset, count, order="sequential", device="cpu", num_threads=1)))
        count = max(count, 128)  # a batch at least
        lr, hr = (torch.cat([part, part])[:count].numpy() for part in (lr, hr))
        self.copying["uint8"] = Copying(Pairs(lr, hr), self.cores)
        quarter = max(count // 4, 128)
        floats = Pairs(lr[:quarter].astype("float32"), hr[:quarter].astype("float32"))
        self.copying["float32"] = Copying(floats, self.cores)

    def copies(self, n: int) -> list[tuple[dict[str, Any], Measure]]:
        """Return copying memory as candidates."""

        def candidate(dtype: str, copying: Copying) -> tuple[dict[str, Any], Measure]:
            nbytes = PAIR_NBYTES * ITEM_NBYTES[dtype]

            def measure(seconds: float) -> dict[str, float]:
                return {"samples_per_s": copying.measure(n, seconds) / nbytes, "seconds": seconds}

            row = {"what": COPY, "dtype": dtype, "threads": n, "sample_nbytes": nbytes}
            return row, measure

        return [candidate(dtype, copying) for dtype, copying in self.copying.items()]

    def turns_by(self, n: int) -> int:
        """Return how many turns are taken by some threads: most by all, whose figures are published."""
        return self.turns if n == self.threads[-1] else min(self.turns, 2)

    def time_pairs(self, n: int) -> None:
        """Time pairs by some threads."""
        if not self.stage.has(8 if not self.small else 0.5, f"pairs by {n} threads"):
            return
        ours = self.ours(PAIRS, n, self.batch_size)
        try:
            names = ("pairs float32", "pairs uint8", "pairs float32, turned", "pairs uint8, turned")
            peers = [candidate for name in names for candidate in self.ffcv(n, name)]
            candidates = [*self.copies(n), *ours, *peers]
            self.pairs.take_turns(candidates, turns=self.turns_by(n), seconds=self.seconds, least=2)
        finally:
            close(ours)

    def time_images(self, n: int) -> None:
        """Time images by some threads: pixels in short turns, JPEGs in longer ones."""
        if ("images", n) in self.done or not self.stage.has(12 if not self.small else 0.5, f"images by {n} threads"):
            return
        self.done.add(("images", n))
        ours = self.ours(PIXELS, n, self.batch_size)
        try:
            candidates = [*self.copies(n), *ours, *self.ffcv(n, "raw256 float32"), *self.ffcv(n, "raw256 uint8")]
            self.images.take_turns(candidates, turns=self.turns_by(n), seconds=self.seconds, least=2)
        finally:
            close(ours)
        ours = self.ours(JPEGS, n, self.batch_size)
        # Of one class, so that they fit into memory; the time to read them is not counted.
        folder = min((self.data / "photos" / "train").iterdir())
        decode = of_full_decoding(folder, n)
        row = {"what": DECODING, "dataset": "photos", "threads": n, "kind": "images", "sample_nbytes": 0}
        try:
            candidates = [
                *ours,
                *self.ffcv(n, "original float32"),
                (row, lambda seconds: {"samples_per_s": decode(min(seconds, 0.3)), "seconds": min(seconds, 0.3)}),
            ]
            seconds = 0.02 if self.small else 0.5
            self.images.take_turns(candidates, turns=self.turns_by(n), seconds=seconds, least=4)
        finally:
            close(ours)

    def time_small_batches(self, n: int) -> None:
        """Time small batches by all threads, and large ones without checksums."""
        sizes = (8,) if self.small else SMALL_BATCH_SIZES
        for batch_size in sizes:
            if not self.stage.has(4 if not self.small else 0.5, f"batches of {batch_size}"):
                return
            ours = self.ours(PAIRS, n, batch_size)
            self.small_batches.take_turns(ours, turns=self.turns, seconds=self.seconds / 2, least=2)
            close(ours)
        ours = self.ours(PAIRS[:2] + PIXELS[:1], n, self.batch_size, verify=False)
        self.small_batches.take_turns(ours, turns=self.turns, seconds=self.seconds / 2, least=2)
        close(ours)

    def time_dataloader(self, what: str, n: int, *, beside: bool = False) -> None:
        """Time a DataLoader with some workers; `beside`: compilers were running on other cores."""
        title = f"{what} by {n} workers"
        if (what, n) in self.done or not self.stage.has(8 if not self.small else 1, title):
            return
        remote, seconds = self.dataloaders or self.start_dataloaders(), 0.02 if self.small else 1.0
        if not self.dataloaders_are_ready:
            if remote.receive(min(60.0, self.stage.left - 4)) is None:
                raise RuntimeError("its process took too long to start")
            self.dataloaders_are_ready = True
        limit = min(40.0, self.stage.left - 2)
        kind, dataset = DATALOADERS[what]
        row = {"what": what, "dataset": dataset, **self.facts(kind, "float32", n, self.batch_size)}
        row |= {"beside_compilers": True} if beside else {}
        turns = 2 if n == self.threads[-1] and what != FOLDER and not self.small else 1
        before = len(self.loaders.rows)
        measure = lambda s: remote.ask(limit, what, n, self.batch_size, s)  # noqa: E731
        self.loaders.take_turns([(row, measure)], turns=turns, seconds=seconds, least=3)
        if len(self.loaders.rows) > before:
            self.done.add((what, n))
        else:  # it may have been ended, or be in no state to go on
            remote.end()
            self.dataloaders = None

    def time_conversion(self, what: str, workers: int) -> None:
        """Time converting as many files as keep the workers busy for some seconds, in total time."""
        title = f"converting {what} by {workers}"
        if (what, workers) in self.done or not self.stage.has(12 if not self.small else 4, title):
            return
        self.done.add((what, workers))
        folder, options, per_worker = CONVERSIONS.get(what, ("photos/train", CLASSES, 1))
        source, is_pngs = self.data / folder, folder == "div2k"
        count = 4 if self.small else per_worker * workers
        with tempfile.TemporaryDirectory(dir=self.data, prefix=".converting-") as temporary:
            if is_pngs:
                source = linked(source, Path(temporary) / "in", count)
            else:
                count = min(count, sum(1 for _ in source.rglob("*.jpg")))
                options = {**options, "subset": count}
            out = str(Path(temporary) / "out")
            command = [sys.executable, "-c", CONVERT, str(source), out, json.dumps({**options, "workers": workers})]
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=max(min(60.0, self.stage.left - 2), 1), check=False
            )
            if ended.returncode:
                raise RuntimeError(f"exit status {ended.returncode}: {ended.stderr.strip()[-300:]}")
            took, nbytes = json.loads(ended.stdout.strip().splitlines()[-1])
        self.conversions.append({
            "what": what, "workers": workers, "images": count, "seconds": round(took, 2),
            "images_per_s": round(count / took, 1), "nbytes_written": nbytes,
        })  # fmt: skip
        alone = {row["what"]: row["images_per_s"] for row in self.conversions if row["workers"] == 1}
        for row in self.conversions:
            if row["what"] in alone:
                row["efficiency"] = round(row["images_per_s"] / (alone[row["what"]] * row["workers"]), 3)
        self.stage.put("conversion", self.conversions)

    def time_processes(self) -> None:
        """Time processes with a Loader of two threads each, which share the cores, and one such process alone."""
        count, threads = max(self.cores // 2, 2), 2 if self.cores > 2 else 1
        context, rows = multiprocessing.get_context("spawn"), []
        for processes in (count,) if self.small else (count, 1):
            if not self.stage.has(12 if not self.small else 1, f"{processes} processes"):
                break
            barrier = context.Barrier(processes)
            with context.Pool(processes, join, (barrier,)) as pool:
                for dataset, kind in (("pairs_raw", "pairs"), ("raw256", "images")):
                    arguments = (
                        str(self.data / dataset), kind, self.batch_size, threads, self.length[kind], 5 * self.seconds,
                    )  # fmt: skip
                    speeds = pool.starmap_async(time_together, [arguments] * processes, chunksize=1).get(40)
                    rows.append({
                        "what": OURS, "dataset": dataset, "dtype": "float32", "processes": processes,
                        "threads_each": threads, "samples_per_s": round(sum(speeds), 1),
                        "each": [round(speed, 1) for speed in speeds],
                    })  # fmt: skip
                    self.stage.put("processes", rows)

    def time_ffcv_writer(self) -> None:
        """Time FFCV's writer and converting to the same files, both with a worker for each core."""
        from ffcv_peer import ffcv_available, write_images

        if ffcv_available() is not None or not self.stage.has(25 if not self.small else 5, "FFCV's writer"):
            return
        rows = []
        for name, mode, longest in (("pixels of at most 256", "raw", 256), ("JPEGs", "jpg", None)):
            if not self.stage.has(12 if not self.small else 2, f"FFCV's writer: {name}"):
                return
            with tempfile.TemporaryDirectory(dir=self.data, prefix=".writing-") as temporary:
                # The photographs to validate with: a tenth, which is enough for a writer that starts at once.
                source = self.data / "photos" / "val"
                began = time.perf_counter()
                write_images(source, Path(temporary) / "beton", mode=mode, max_resolution=longest, workers=self.cores)
                took = time.perf_counter() - began
            count = sum(1 for _ in source.rglob("*.jpg"))
            rows.append({
                "what": f"FFCV's writer, {name}", "workers": self.cores, "images": count,
                "seconds": round(took, 2), "images_per_s": round(count / took, 1),
            })  # fmt: skip
            self.stage.put("FFCV's writer", rows)


def close(candidates: list[tuple[dict[str, Any], Measure]]) -> None:
    """End the threads of Loaders."""
    for _, turns in candidates:
        if isinstance(turns, OurTurns):
            turns.close()


def linked(source: Path, folder: Path, count: int) -> Path:
    """Make a folder of so many links to the files of another; return it."""
    folder.mkdir()
    files = sorted(source.iterdir())
    for number in range(count):
        file = files[number % len(files)]
        os.link(file, folder / f"{number:05d}{file.suffix}")
    return folder


def shm_free() -> int | None:
    """Return the bytes that are free in /dev/shm, or None."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


if __name__ == "__main__":
    main()
