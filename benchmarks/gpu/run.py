"""Runs the stages of the GPU benchmark in separate processes: one that fails or hangs costs no other's results.

On the machine with the GPU, without network:

    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages correct cores
    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages copies fed accuracy
    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages more
    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages compare
    python3 benchmarks/gpu/run.py --pack benchmarks/gpu/pack --out results --stages device-side

Each takes less than nine minutes. The later ones reuse the first one's files in --work, and the figures so far in
--out. `pack.py` makes the folder to copy to the machine.
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
# Seconds between asking a stage to end and killing it.
_GRACE_SECONDS = 5.0
# Less than this is not worth a start.
_LEAST_SECONDS = 20.0
# The number of characters kept of a stage's output.
_TAIL_CHARACTERS = 6000


@dataclass(frozen=True, slots=True)
class Plan:
    """One stage.

    Attributes:
        script: In this folder. Its figures go into a file of the same name.
        seconds: That it may take.
        why: Its purpose.
        more: Whether it goes on where an earlier stage of the same script has ended.
        needs: The stages that make its files. They run once for each --work.
    """

    script: str
    seconds: float
    why: str
    more: bool = False
    needs: tuple[str, ...] = ("photographs", "betons", "material")


_SMALL = ("device_data",)
# In the order of their worth: the time may end before all were run.
STAGES = {
    "photographs": Plan("photographs.py", 120, "JPEGs and PNGs made", needs=()),
    "betons": Plan("betons.py", 60, "FFCV's files of the JPEGs", needs=()),
    "material": Plan("material.py", 150, "datasets made", needs=()),
    "device_data": Plan("device_data.py", 60, "small datasets made", needs=()),
    "host": Plan("host.py", 35, "(g) the loop's own time for a batch", needs=_SMALL),
    "device": Plan("device.py", 85, "(h) transforms on the device: equal, and how fast", needs=_SMALL),
    "keep": Plan("keep.py", 110, "(i) datasets that stay on the device or decoded", needs=_SMALL),
    "fed_device": Plan("fed_device.py", 130, "(j) training fed by the device side or not", needs=_SMALL),
    "ranks": Plan("ranks.py", 50, "(k) two processes on one GPU", needs=_SMALL),
    "jpeg": Plan("jpeg.py", 35, "(l) JPEG decoded on the GPU", needs=_SMALL),
    "correct": Plan("correct.py", 200, "(a) right on CUDA"),
    "cores": Plan("cores.py", 200, "(b) all cores, no GPU"),
    "copies": Plan("copies.py", 40, "(c) copies to the device"),
    "fed": Plan("fed.py", 350, "(d) training fed or not"),
    "accuracy": Plan("accuracy.py", 150, "(e) the same accuracy from every source"),
    "compare": Plan("compare.py", 480, "(f) scripts/compare_training.py: files, DataLoader and Loader"),
    "cores more": Plan("cores.py", 130, "(b) converting by fewer workers, processes", more=True),
    "accuracy more": Plan("accuracy.py", 230, "(e) more seeds", more=True),
    "fed more": Plan("fed.py", 150, "(d) plan, doctor, whole epochs", more=True),
}
# Everything else depends on them: they make files.
_FIRST = tuple(name for name, plan in STAGES.items() if not plan.needs)
# The stages to ask for: "more" continues those that have ended, "device-side" is a set that fits into nine minutes.
STAGE_NAMES = [*(name for name, plan in STAGES.items() if name not in _FIRST and not plan.more), "more", "device-side"]
# The builds that a stage needs, and the longest wait for them.
_NEEDS = {"betons": ("build FFCV", 120.0)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended.

    Attributes:
        status: "done", "failed", "out of time", "left out".
        seconds: That it took.
        reason: The exit status or why it did not run; empty where it is done.
        tail: The end of its output.
    """

    status: str
    seconds: float
    reason: str
    tail: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values; the output of a finished stage is left out, as its figures hold it."""
        kept: dict[str, Any] = {"status": self.status, "seconds": round(self.seconds, 1)}
        if self.status != "done":
            kept.update(reason=self.reason, tail=self.tail)
        return kept


def run_process(command: Sequence[str], seconds: float, environment: dict[str, str]) -> Outcome:
    """Run a program, show its output, and end it and all its children when its time is over."""
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
            # Processes that a stage leaves running would disturb the next one.
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


def chosen_stages(asked: Sequence[str]) -> list[str]:
    """Return the stages that run for what was asked for, those that make their files first.

    >>> chosen_stages(["host", "jpeg"])
    ['device_data', 'host', 'jpeg']
    """
    sets = {
        "more": [name for name, plan in STAGES.items() if plan.more],
        "device-side": [name for name, plan in STAGES.items() if plan.needs == _SMALL],
    }
    wanted = {name for word in asked for name in sets.get(word, [word])}
    wanted |= {name for stage in wanted for name in STAGES[stage].needs}
    return [name for name in STAGES if name in wanted]


class Benchmark:
    """One run: its folders, its deadline, and the outcome of each stage so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Take the options of the command line."""
        self.options = options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.site, self.data = options.work / "site", options.work / "data"
        self.outcomes: dict[str, Any] = {}
        self.chosen = chosen_stages(options.stages)
        self._building: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        options.out.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            # The wheel comes before the clone, where no kernels are built. The current folder, the clone, is left out.
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent, self.site, ROOT, ROOT / "scripts"))),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            # A worker that a signal ends says where it was.
            "PYTHONFAULTHANDLER": "1",
            # Nothing may wait for a network that is not there.
            "HF_HUB_OFFLINE": "1",
            "PIP_NO_INDEX": "1",
            # Nor for the answer of a name server that nobody reaches.
            "RES_OPTIONS": "timeout:1 attempts:1",
        }

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.deadline - time.monotonic()

    def install(self) -> bool:
        """Install the pack, and start building FFCV; return False if nothing can run without it."""
        if self.options.pack is None:
            return True
        done = self.site / ".installed"
        arguments = ["--pack", str(self.options.pack), "--site", str(self.site), "--build", str(self.options.work)]
        command = [sys.executable, str(HERE / "install.py"), *arguments]
        if not done.exists():
            self.note("install", run_process(command, 120, self.environment))
            if self.outcomes["install"]["status"] != "done":
                return False
            done.touch()
        if "betons" in self.chosen:
            self.build("build FFCV", [*command, "--ffcv"])
        return True

    def build(self, name: str, command: Sequence[str]) -> None:
        """Begin to build something while the first stages run, unless an earlier command has."""
        if self._marker(name).exists():
            return
        with open(self._log(name), "wb") as log:
            child = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._building[name] = (child, time.monotonic())

    def finish_building(self, name: str, seconds: float) -> None:
        """Wait for the build, but not for ever."""
        if name not in self._building:
            return
        child, began = self._building.pop(name)
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(min(self.left / 3, seconds), 1))
        _signal_group(child.pid, signal.SIGKILL)
        child.wait()
        tail = self._log(name).read_text("utf-8", "replace")[-_TAIL_CHARACTERS:]
        status = "done" if child.returncode == 0 else "failed"
        if status == "done":
            self._marker(name).touch()
        reason = "" if status == "done" else _how_it_ended(child.returncode)
        self.note(name, Outcome(status, time.monotonic() - began, reason, tail))

    def end(self) -> None:
        """End builds that are still running."""
        for name in list(self._building):
            self.finish_building(name, 1)

    def _marker(self, name: str) -> Path:
        return self.options.work / f".{name.replace(' ', '-')}.done"

    def _log(self, name: str) -> Path:
        return self.options.work / f"{name.replace(' ', '-')}.log"

    def run_stage(self, name: str) -> None:
        """Run one stage, as long as there is time."""
        plan = STAGES[name]
        if name in _FIRST and self._marker(name).exists():
            return
        seconds = min(plan.seconds, self.left - _GRACE_SECONDS)
        if seconds < _LEAST_SECONDS:
            self.note(name, Outcome("left out", 0.0, f"{max(self.left, 0):.0f} s were left", ""))
            return
        result = self.options.out / f"{Path(plan.script).stem}.json"
        # A stage ends by itself a little before it is made to.
        own = max(seconds - 15, seconds * 0.8)
        command = [sys.executable, str(HERE / plan.script), "--data", str(self.data), "--out", str(result)]
        command += ["--seconds", f"{own:.0f}", *(["--small"] if self.options.small else [])]
        command += ["--more"] if plan.more else []
        print(f"== {name}: {plan.why}; at most {seconds:.0f} s", flush=True)
        outcome = run_process(command, seconds, self.environment)
        self.note(name, outcome)
        if name in _FIRST and outcome.status == "done" and "left_out" not in json.loads(result.read_text("utf-8")):
            self._marker(name).touch()

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    told = f"{', '.join(STAGE_NAMES)} (default: all); more: what those before it leave for the end"
    add("--stages", nargs="+", choices=STAGE_NAMES, default=STAGE_NAMES, metavar="NAME", help=told)
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
    if not benchmark.install():  # a machine's time is not spent on stages that all fail
        return 1
    for name in benchmark.chosen:
        if name in _NEEDS:
            benchmark.finish_building(*_NEEDS[name])
        benchmark.run_stage(name)
    benchmark.end()
    print("\n== " + "; ".join(f"{name}: {kept['status']}" for name, kept in benchmark.outcomes.items()))
    return 0 if all(kept["status"] == "done" for kept in benchmark.outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
