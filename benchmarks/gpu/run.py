"""Runs the stages of the GPU benchmark, each in a process of its own: one that fails or hangs costs no other's results.

On the machine with the GPU, without network:

    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages correct cores copies
    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages fed accuracy

The second finds in --work what the first has installed and made. `pack.py` makes the folder to bring along.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What a stage gets between being asked to end and being killed.
_GRACE_SECONDS = 5.0
# Less than this is not worth a start.
_LEAST_SECONDS = 20.0
# Of what a stage printed, so much is kept.
_TAIL_CHARACTERS = 6000


@dataclass(frozen=True, slots=True)
class Plan:
    """One stage.

    Attributes:
        script: In this folder.
        seconds: That it may take.
        why: What it shows.
    """

    script: str
    seconds: float
    why: str


# In the order of their worth: the time may end before all were run.
STAGES = {
    "material": Plan("material.py", 240, "JPEGs, PNGs and datasets made"),
    "betons": Plan("betons.py", 120, "the same for FFCV"),
    "correct": Plan("correct.py", 240, "(a) right on CUDA"),
    "cores": Plan("cores.py", 220, "(b) all cores, no GPU"),
    "copies": Plan("copies.py", 90, "(c) copies to the device"),
    "fed": Plan("fed.py", 385, "(d) training fed or not"),
    "accuracy": Plan("accuracy.py", 200, "(e) the same accuracy from every source"),
}
# Everything stands on them; each is quick where its files are there already.
_FIRST = ("material", "betons")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended.

    Attributes:
        status: "done", "failed", "out of time", "left out".
        seconds: That it took.
        reason: The exit status or why it did not run; empty where it is done.
        tail: The end of what it printed.
    """

    status: str
    seconds: float
    reason: str
    tail: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values; what a stage that is done has printed is in its figures."""
        kept: dict[str, Any] = {"status": self.status, "seconds": round(self.seconds, 1)}
        if self.status != "done":
            kept.update(reason=self.reason, tail=self.tail)
        return kept


def run_process(command: Sequence[str], seconds: float, environment: dict[str, str]) -> Outcome:
    """Run a program, show what it prints, and end it and all that it started when its time is over."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        is_late = False
        try:
            child.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            is_late = True
            _signal_group(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_SECONDS)
        finally:
            # What a stage leaves running would disturb the next one.
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()
        printed.seek(max(printed.seek(0, os.SEEK_END) - _TAIL_CHARACTERS, 0))
        tail = printed.read().decode("utf-8", "replace")
    took = time.monotonic() - began
    if is_late:
        return Outcome("out of time", took, f"ended after {seconds:.0f} s", tail)
    if child.returncode:
        return Outcome("failed", took, _how_it_ended(child.returncode), tail)
    return Outcome("done", took, "", tail)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _how_it_ended(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"


class Benchmark:
    """One run: where things are, until when, and what came of each stage so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Take the options of the command line."""
        self.options = options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.site, self.data = options.work / "site", options.work / "data"
        self.outcomes: dict[str, Any] = {}
        self._building: subprocess.Popen[bytes] | None = None
        options.out.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent, ROOT, self.site))),
            "PYTHONUNBUFFERED": "1",
            # A worker that a signal ends says where it was.
            "PYTHONFAULTHANDLER": "1",
            # Nothing may wait for a network that is not there.
            "HF_HUB_OFFLINE": "1",
            "PIP_NO_INDEX": "1",
        }

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.deadline - time.monotonic()

    def install(self) -> None:
        """Install what was brought along, and begin to build FFCV, which takes a while."""
        if self.options.pack is None:
            return
        done = self.site / ".installed"
        arguments = ["--pack", str(self.options.pack), "--site", str(self.site), "--build", str(self.options.work)]
        command = [sys.executable, str(HERE / "install.py"), *arguments]
        if not done.exists():
            self.note("install", run_process(command, 120, self.environment))
            if self.outcomes["install"]["status"] == "done":
                done.touch()
        if not (self.site / ".ffcv").exists():
            self._log = open(self.options.work / "ffcv.log", "wb")  # noqa: SIM115
            self._building = subprocess.Popen(
                [*command, "--ffcv"], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def finish_building(self) -> None:
        """Wait for FFCV, but not for ever."""
        if self._building is None:
            return
        child, self._building = self._building, None
        began = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(min(self.left / 3, 150), 1))
        _signal_group(child.pid, signal.SIGKILL)
        child.wait()
        self._log.close()
        tail = (self.options.work / "ffcv.log").read_text("utf-8", "replace")[-_TAIL_CHARACTERS:]
        status = "done" if child.returncode == 0 else "failed"
        if status == "done":
            (self.site / ".ffcv").touch()
        reason = "" if status == "done" else _how_it_ended(child.returncode)
        self.note("build FFCV", Outcome(status, time.monotonic() - began, reason, tail))

    def run_stage(self, name: str) -> None:
        """Run one stage, as long as there is time."""
        plan = STAGES[name]
        seconds = min(plan.seconds, self.left - _GRACE_SECONDS)
        if seconds < _LEAST_SECONDS:
            self.note(name, Outcome("left out", 0.0, f"{max(self.left, 0):.0f} s were left", ""))
            return
        result = self.options.out / f"{name}.json"
        # A stage ends by itself a little before it is made to.
        own = max(seconds - 15, seconds * 0.8)
        command = [sys.executable, str(HERE / plan.script), "--data", str(self.data), "--out", str(result)]
        command += ["--seconds", f"{own:.0f}", *(["--small"] if self.options.small else [])]
        print(f"== {name}: {plan.why}; at most {seconds:.0f} s", flush=True)
        outcome = run_process(command, seconds, self.environment)
        self.note(name, outcome)

    def note(self, name: str, outcome: Outcome) -> None:
        """Keep and show how something ended."""
        self.outcomes[name] = outcome.as_json()
        first = next(iter(self.options.stages), "none")
        path = self.options.out / f"run-{first}.json"
        kept = {"command": sys.argv[1:], "small": self.options.small, "stages": self.outcomes}
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        shown = outcome.tail[-_TAIL_CHARACTERS // (4 if outcome.status == "done" else 1) :]
        print(f"{shown}\n== {name}: {outcome.status} after {outcome.seconds:.1f} s {outcome.reason}", flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    chosen = [name for name in STAGES if name not in _FIRST]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--stages", nargs="+", choices=list(STAGES), default=chosen, metavar="NAME", help=", ".join(STAGES))
    add("--minutes", type=float, default=9, help="after which everything has ended (default 9)")
    add("--out", type=Path, required=True, metavar="DIR", help="gets one JSON file a stage, and how each stage ended")
    add("--pack", type=Path, metavar="DIR", help="what pack.py made; without it, what is installed is used")
    add("--work", type=Path, default=Path("/tmp/lmdbloader-gpu"), metavar="DIR", help="data and installed packages")
    add("--small", action="store_true", help="a rehearsal: everything runs once, in tiny sizes")
    options = parser.parse_args(arguments)
    options.out, options.work = options.out.resolve(), options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    """Run the stages; the exit status is 0 where all are done."""
    benchmark = Benchmark(parse_options())
    benchmark.install()
    for name in STAGES:
        if name in _FIRST or name in benchmark.options.stages:
            if name == "betons":
                benchmark.finish_building()
            benchmark.run_stage(name)
    print("\n== " + "; ".join(f"{name}: {kept['status']}" for name, kept in benchmark.outcomes.items()))
    return 0 if all(kept["status"] == "done" for kept in benchmark.outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
