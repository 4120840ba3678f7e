"""One step of one peer, in a process of its own: run.py starts it, and each line of its output is a result in JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from checking import check
from job import JOBS, Job, Samples

DEFAULT_WORKERS = (0, 1, 2)
CHECK_BATCH = 16
# No measurement may take longer than so many times the seconds that it was given.
_PATIENCE = 6


def save_samples(samples: Samples, path: Path) -> None:
    """Write samples into a file of NumPy's."""
    columns = dict(samples)
    if isinstance(samples.get("image"), list):
        columns["lengths"] = np.array([len(data) for data in samples["image"]])
        columns["image"] = np.frombuffer(b"".join(samples["image"]), np.uint8)
    np.savez(path, **columns)


def load_samples(path: Path) -> Samples:
    """Return what save_samples wrote."""
    with np.load(path) as stored:
        columns: Samples = dict(stored)
    lengths = columns.pop("lengths", None)
    if lengths is not None:
        ends = np.cumsum(lengths)
        columns["image"] = [columns["image"][a:b].tobytes() for a, b in zip(ends - lengths, ends, strict=True)]
    return columns


def workers_of(peer: Any) -> tuple[int, ...]:
    """Return the numbers of workers or threads to try."""
    return tuple(getattr(peer, "WORKERS", DEFAULT_WORKERS))


class Epochs:
    """A peer's loader that is open, and the number of its next epoch."""

    def __init__(self, peer: Any, job: Job, folder: Path, batch_size: int, workers: int, seed: int = 1) -> None:
        self._loader = peer.open(job, folder, batch_size, workers, seed)
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(self._epoch)
        self._epoch += 1
        return iter(self._loader)

    def batches(self) -> Iterator[Any]:
        """Yield the batches of one epoch after the other, without end."""
        while True:
            yield from self

    def close(self) -> None:
        """Close the loader, if it can be closed."""
        if hasattr(self._loader, "close"):
            self._loader.close()


def write(peer: Any, job: Job, samples: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Write the samples and yield the seconds and the bytes."""
    from common import disk_nbytes

    columns = load_samples(samples)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.perf_counter()
    peer.write(job, columns, folder)
    yield {"seconds": time.perf_counter() - began, "samples": len(columns["index"]), "nbytes": disk_nbytes(folder)}


def check_peer(peer: Any, job: Job, samples: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Write marked samples, read two epochs with each number of workers, and yield what was wrong, if anything was."""
    columns = load_samples(samples)
    found = []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    peer.write(job, columns, folder)
    for workers in workers_of(peer):
        epochs = Epochs(peer, job, folder, CHECK_BATCH, workers)
        # A batch may be overwritten by later ones.
        kept = [
            [{name: np.asarray(value).copy() for name, value in batch.items()} for batch in epochs] for _ in range(2)
        ]
        epochs.close()
        found += [f"workers {workers}: {what}" for what in check(job, columns, kept)]
    shutil.rmtree(folder, ignore_errors=True)
    yield {"wrong": found}


def speed(peer: Any, job: Job, folder: Path, settings: list[list[int]], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield images a second and CPU microseconds an image of each setting (workers, batch size)."""
    for workers, batch_size in settings:
        epochs = Epochs(peer, job, folder, batch_size, workers)
        batches = epochs.batches()
        # The first batches compile, and start the workers. They are taken as soon as they are there, so that none is
        # ready when the time begins.
        for _ in range(workers + 2):
            next(batches)
        yield {"workers": workers, "batch_size": batch_size, **_timed(batches, max(workers, 1), seconds)}
        batches.close()  # type: ignore[attr-defined]
        epochs.close()
        del batches, epochs


def _timed(batches: Iterator[Any], together: int, seconds: float) -> dict[str, Any]:
    images, count, waits = 0, 0, []
    cpu, began = cpu_seconds(), time.perf_counter()
    before = began
    # Workers hand over their batches at about the same time: whole rounds of them, and at least two.
    while True:
        batch = next(batches)
        images += len(batch["index"])
        count += 1
        now = time.perf_counter()
        waits.append(now - before)
        before = now
        if (
            now - began >= seconds
            and count % together == 0
            and (count >= 2 * together or now - began > _PATIENCE * seconds)
        ):
            break
    p50, p99 = np.percentile(waits, [50, 99]) * 1000
    return {
        "images_per_s": images / (before - began),
        "cpu_us": (cpu_seconds() - cpu) / images * 1e6,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


def start(peer: Any, job: Job, folder: Path, workers: int, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield seconds to the first batch of a new process and of later epochs, and the peak memory of reading one."""
    drop_from_cache(folder)
    began = time.perf_counter()
    epochs = Epochs(peer, job, folder, batch_size, workers)
    next(batches := iter(epochs))
    first = time.perf_counter() - began
    for _ in batches:
        pass
    later = []
    for _ in range(2):
        began = time.perf_counter()
        next(batches := iter(epochs))
        later.append(time.perf_counter() - began)
        with PeakPss() as memory:
            for _ in batches:
                pass
    epochs.close()
    yield {
        "workers": workers, "batch_size": batch_size, "cold_s": first, "epoch_s": statistics.median(later),
        "peak_pss": memory.peak,
    }  # fmt: skip


def drop_from_cache(folder: Path) -> None:
    """Ask the system to forget the pages of all files in a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its descendants, and of its children that have ended."""
    from common import descendants

    ticks = 0
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    own = os.times()
    return time.process_time() + own.children_user + own.children_system + ticks / os.sysconf("SC_CLK_TCK")


def pss(pid: int) -> int:
    """Return the memory of a process in bytes, with its share of what it shares with others; 0 once it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class PeakPss:
    """Watches the memory of this process and its descendants while it is entered: `peak`, in bytes."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.peak, self._seconds, self._done = 0, seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        from common import descendants

        pids = [os.getpid(), *descendants(os.getpid())]
        self.peak = max(self.peak, sum(map(pss, pids)))


def describe(peer: Any) -> dict[str, Any]:
    """Return the title, the settings and the versions of a peer; `missing` is the first package that is not there."""
    from importlib.metadata import PackageNotFoundError, version

    versions, missing = {}, None
    for package in peer.PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing = missing or package
    return {
        "title": peer.NAME, "settings": peer.SETTINGS, "jobs": list(peer.JOBS), "not": getattr(peer, "NOT", {}),
        "versions": versions, "missing": missing, "workers": list(workers_of(peer)),
    }  # fmt: skip


def main() -> None:
    """Do one step, and leave without waiting for threads of libraries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("describe", "write", "check", "speed", "start"))
    parser.add_argument("peer")
    parser.add_argument("job", nargs="?", choices=list(JOBS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--settings", type=json.loads, default=[])
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    # Libraries print: results have a way of their own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = importlib.import_module(f"{options.peer}_peer")
    if options.step == "describe":
        steps = iter([describe(peer)])
    else:
        import torch

        # With more, torch's threads and the workers of a loader get into each other's way.
        torch.set_num_threads(1)
        job = JOBS[options.job]
        if options.step == "speed":
            steps = speed(peer, job, options.folder, options.settings, options.seconds)
        elif options.step == "start":
            steps = start(peer, job, options.folder, *options.settings[0])
        else:
            function = write if options.step == "write" else check_peer
            steps = function(peer, job, options.samples, options.folder)
    for result in steps:
        print(json.dumps(result), file=out, flush=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
