"""Compares the Loader with other loaders on the same samples: checks each first, then times all of them in turns.

    python benchmarks/peers/environment.py        # once: .venv-peers with all of them
    python benchmarks/peers/run.py                # about 40 minutes on two cores
    python benchmarks/peers/run.py --quick        # a few minutes: does each still run?

Every step is a process of its own. Results go into a file after each; a run that was interrupted goes on when it is
started again with the same options. `benchmarks/peers/report.py` makes the page of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from job import JOBS, Job, make_marked_samples, make_samples  # noqa: E402
from measure import save_samples  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
OURS = "lmdbloader"
PEERS = (OURS, *sorted(path.stem[: -len("_peer")] for path in HERE.glob("*_peer.py") if path.stem != f"{OURS}_peer"))
CHECKED = 96
# A step that takes longer than so many seconds has failed.
_LIMIT = 240


class StepError(Exception):
    """A step of a peer failed; the message has the last lines that it printed."""


class Results:
    """What was measured, in a file that is written after each measurement."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = {"settings": settings, "peers": {}, "jobs": {}}
        if path.exists():
            stored = json.loads(path.read_text("utf-8"))
            if stored.get("settings") == settings:
                self.document = stored
                # What failed is tried again.
                for peer in [peer for peers in stored["jobs"].values() for peer in peers.values()]:
                    peer.pop("failed", None)

    def of(self, job: str, peer: str) -> dict[str, Any]:
        """Return the results of a peer's job, to be changed."""
        found: dict[str, Any] = self.document["jobs"].setdefault(job, {}).setdefault(peer, {})
        return found

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.document, indent=1) + "\n", "utf-8")
        os.replace(temporary, self.path)


class Steps:
    """Runs steps of peers in processes of their own."""

    def __init__(self, python: Path, folder: Path, seconds: float) -> None:
        self.python, self.folder, self.seconds = python, folder, seconds

    def run(self, step: str, peer: str, job: str | None = None, *others: str) -> Iterator[dict[str, Any]]:
        """Yield the results of a step.

        Raises:
            StepError: It failed, or took too long.
        """
        words = [str(self.python), str(HERE / "measure.py"), step, peer, *([job] if job else []), *others]
        with tempfile.TemporaryDirectory(prefix="peer-", dir=self.folder) as temporary:
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": temporary, "HF_DATASETS_OFFLINE": "1",
                "HF_HUB_OFFLINE": "1", "HF_HOME": temporary, "PYTHONWARNINGS": "ignore",
            }  # fmt: skip
            errors = Path(temporary, "errors.txt")
            with errors.open("w") as file:
                process = subprocess.Popen(
                    words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=file, text=True,
                    start_new_session=True,
                )  # fmt: skip
                try:
                    out, _ = process.communicate(timeout=_LIMIT)
                    ended = f"exit status {process.returncode}" if process.returncode else ""
                except subprocess.TimeoutExpired:
                    ended = f"no end after {_LIMIT} s"
                finally:
                    # Workers that are left would disturb what comes next.
                    _end(process)
            if ended:
                lines = [line for line in errors.read_text("utf-8", "replace").splitlines() if line.strip()]
                raise StepError(f"{step}: {ended}: {lines[-1].strip()[:300] if lines else 'nothing printed'}")
            yield from map(json.loads, out.splitlines())

    def one(self, step: str, peer: str, job: str | None = None, *others: str) -> dict[str, Any]:
        """Return the only result of a step."""
        (found,) = self.run(step, peer, job, *others)
        return found

    def stored(self, peer: str, job: Job) -> Path:
        """Return the folder where a peer has written the samples of a job."""
        return self.folder / "stores" / job.name / peer


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def prepare(steps: Steps, results: Results, peers: Sequence[str], jobs: Sequence[Job], count: int | None) -> None:
    """Describe and check each peer, and let it write the samples."""
    reasons = steps.python.parent.parent / "missing.json"
    missing = json.loads(reasons.read_text("utf-8")) if reasons.exists() else {}
    for peer in peers:
        found = results.document["peers"][peer] = steps.one("describe", peer)
        if found["missing"]:
            found["reason"] = missing.get(found["missing"], f"{found['missing']} is not installed")
    for job in jobs:
        marked, full = (steps.folder / f"{job.name}-{kind}.npz" for kind in ("marked", "samples"))
        save_samples(make_marked_samples(job, CHECKED), marked)
        save_samples(make_samples(job, count or job.samples), full)
        for peer in does(results, peers, job):
            with _recorded(results, job, peer) as entry:
                if "check" not in entry:
                    folder = steps.folder / "checked"
                    wrong = steps.one("check", peer, job.name, "--samples", str(marked), "--folder", str(folder))
                    if wrong["wrong"]:
                        raise StepError("; ".join(wrong["wrong"][:3]))
                    entry["check"] = "passed"
                if "write" not in entry or not steps.stored(peer, job).exists():
                    folder = steps.stored(peer, job)
                    entry["write"] = steps.one("write", peer, job.name, "--samples", str(full), "--folder", str(folder))


def does(results: Results, peers: Sequence[str], job: Job) -> list[str]:
    """Return the peers that are installed, do a job, and have not failed."""
    described = results.document["peers"]
    return [
        peer
        for peer in peers
        if not described[peer]["missing"]
        and job.name in described[peer]["jobs"]
        and "failed" not in results.of(job.name, peer)
    ]


class _recorded:
    """Enters with the results of a peer's job; saves them, and records a StepError as the peer's failure."""

    def __init__(self, results: Results, job: Job, peer: str) -> None:
        self.results, self.job, self.peer = results, job, peer

    def __enter__(self) -> dict[str, Any]:
        self.began = time.perf_counter()
        return self.results.of(self.job.name, self.peer)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        is_failure = isinstance(error, StepError)
        if is_failure:
            self.results.of(self.job.name, self.peer)["failed"] = str(error)
        self.results.save()
        text = f"failed: {error}" if is_failure else "done"
        print(f"{self.job.name:11} {self.peer:12} {time.perf_counter() - self.began:6.1f} s  {text}", flush=True)
        return is_failure


def settings_of_turn(job: Job, rows: Sequence[dict[str, Any]], workers: Sequence[int], turn: int) -> list[list[int]]:
    """Return what to measure in a turn: (workers, batch size).

    In the first turn every number of workers, of crops at the smaller batch size only; afterwards, and for other batch
    sizes, the number that was fastest in the first turn.
    """
    screened = job.batch_sizes if job.is_pairs else job.batch_sizes[:1]
    if turn == 0:
        return [[count, size] for count in workers for size in screened]
    first = [row for row in rows if row["turn"] == 0 and row["batch_size"] in screened]
    chosen = []
    for size in job.batch_sizes:
        near = min(screened, key=lambda other: abs(other - size))
        best = max((row for row in first if row["batch_size"] == near), key=lambda row: row["images_per_s"])
        chosen.append([best["workers"], size])
    return chosen


def take_turn(steps: Steps, results: Results, peers: Sequence[str], job: Job, turn: int) -> None:
    """Time all peers once."""
    for peer in does(results, peers, job):
        workers = results.document["peers"][peer]["workers"]
        with _recorded(results, job, peer) as entry:
            rows = entry.setdefault("speed", [])
            wanted = settings_of_turn(job, rows, workers, turn)
            taken = [[row["workers"], row["batch_size"]] for row in rows if row["turn"] == turn]
            if left := [setting for setting in wanted if setting not in taken]:
                seconds = steps.seconds * (1 if job.is_pairs else 2)
                words = ["--settings", json.dumps(left), "--seconds", str(seconds)]
                for row in steps.run("speed", peer, job.name, "--folder", str(steps.stored(peer, job)), *words):
                    rows.append({"turn": turn, **row})


def time_starts(steps: Steps, results: Results, peers: Sequence[str], job: Job) -> None:
    """Time the first batches of all peers, each with its best workers, and measure their memory."""
    size = 32 if job.is_pairs else 64
    for peer in does(results, peers, job):
        with _recorded(results, job, peer) as entry:
            if "start" not in entry:
                rows = [row for row in entry["speed"] if row["batch_size"] == size]
                workers = max(rows, key=lambda row: row["images_per_s"])["workers"]
                words = ["--folder", str(steps.stored(peer, job)), "--settings", json.dumps([[workers, size]])]
                entry["start"] = steps.one("start", peer, job.name, *words)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--turns", type=int, default=3, help="how often all are timed, one after the other (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="of one measurement of pairs (default 0.4); of crops twice that"
    )
    parser.add_argument("--env", type=Path, default=ROOT / ".venv-peers", help="made by environment.py")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: results/peers.json")
    parser.add_argument("--folder", type=Path, help="where the peers write (default: a temporary folder)")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--quick", action="store_true", help="few samples, one turn: does each still run?")
    options = parser.parse_args(arguments)
    options.samples = None
    if options.quick:
        options.turns, options.seconds, options.samples = min(options.turns, 2), 0.05, 256
    return options


def measure_all(options: argparse.Namespace, folder: Path) -> None:
    """Check, write, time in turns, and time the starts."""
    from common import environment

    jobs = [JOBS[name] for name in dict.fromkeys(options.jobs)]
    peers = [OURS, *(peer for peer in dict.fromkeys(options.peers) if peer != OURS)]
    settings = {
        "turns": options.turns, "seconds": options.seconds, "quick": options.quick,
        "samples": {job.name: options.samples or job.samples for job in jobs},
    }  # fmt: skip
    if options.fresh:
        options.results.unlink(missing_ok=True)
    results = Results(options.results, settings)
    results.document["environment"] = environment(folder)
    results.document["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    steps = Steps(options.env / "bin" / "python", folder, options.seconds)
    prepare(steps, results, peers, jobs, options.samples)
    for turn in range(options.turns):
        for job in jobs:
            take_turn(steps, results, peers, job, turn)
    for job in jobs:
        time_starts(steps, results, peers, job)
    results.save()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = parse_options(arguments)
    if not (options.env / "bin" / "python").exists():
        print(f"{options.env} has no bin/python: run python benchmarks/peers/environment.py first.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="lmdbloader-peers-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure_all(options, folder.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
