"""Stage (a), correctness on CUDA: runs the tests that need a device, and stores the outcome of each.

On a machine without a GPU the same tests are collected, and each is skipped with its reason.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from correct_outcomes import VARIABLE
from stage import Stage, parse_stage

ROOT = Path(__file__).resolve().parent.parent.parent
# These measure, so they need the device for themselves, and get this many seconds at the end.
_ALONE = ("test_cuda_measuring.py",)
_SECONDS_ALONE = 75.0
_PROCESSES = 6
_SECONDS_A_TEST = 120
_LEAST_SECONDS = 25.0
# Between asking pytest to end and killing it.
_GRACE_SECONDS = 3.0
_TAIL_CHARACTERS = 3000
# The most text stored of all failures together: the file is kept in the repository.
_MOST_OF_FAILURES = 100_000


def main() -> None:
    stage = parse_stage("correct", __doc__)
    stage.put("device", device_facts(stage))
    files = sorted(path.name for path in (ROOT / "tests").glob("test_cuda_*.py"))
    together = [name for name in files if name not in _ALONE]
    alone = [name for name in files if name in _ALONE]
    totals: Counter[str] = Counter()
    for name, chosen, processes, kept_back in (
        ("together", together, max(min(_PROCESSES, stage.cores // 2), 1), _SECONDS_ALONE if alone else 0.0),
        # In its own process, so that one that hangs or dies is replaced.
        ("alone", alone, 1, 0.0),
    ):
        if chosen and stage.has(_LEAST_SECONDS, name):
            try:
                seconds = max(stage.left - kept_back - 5, _LEAST_SECONDS - 5)
                totals.update(run_tests(stage, name, chosen, processes, seconds))
            except Exception as error:
                stage.leave_out(name, f"{type(error).__name__}: {error}")
    stage.put("counts", dict(totals))
    if stage.device == "cpu":
        print(f"correct: no CUDA device here: of {totals['collected']} tests {totals['skipped']} were skipped")


def device_facts(stage: Stage) -> dict[str, Any]:
    """Return the device of the tests, its driver, and the versions of CUDA and cuDNN."""
    import numpy
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
        "cuda": torch.version.cuda, "cores": stage.cores, "device": stage.device,
    }  # fmt: skip
    if stage.device != "cuda":
        return facts

    def add(name: str, ask: Any) -> None:
        try:
            facts[name] = ask()
        except Exception as error:  # a fact that a release or a driver does not report is left out
            facts[name] = f"not known: {error}"

    properties = torch.cuda.get_device_properties(0)
    for name in ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size", "uuid",
                 "pci_bus_id", "clock_rate", "memory_clock_rate", "memory_bus_width"):  # fmt: skip
        value = getattr(properties, name, None)
        facts[name] = value if value is None or isinstance(value, int | float | str) else str(value)
    add("devices", torch.cuda.device_count)
    add("cudnn", torch.backends.cudnn.version)
    add("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())))
    add("driver", _driver)
    return facts


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def run_tests(stage: Stage, name: str, files: Sequence[str], processes: int, seconds: float) -> Counter[str]:
    """Run test files in some processes; keep their outcomes, also where they did not come to an end."""
    folder = Path(tempfile.mkdtemp(prefix="lmdbloader-correct-"))
    outcomes, printed = folder / "outcomes.jsonl", folder / "printed.txt"
    command = [
        sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "correct_outcomes", "-p", "no:cacheprovider",
        "--basetemp", str(folder / "tests"), "--tb", "short",
        # New releases add deprecation warnings: these are noted and do not fail a test here.
        "-W", "default",
    ]  # fmt: skip
    if find_spec("xdist") is not None:
        command += ["-n", str(processes), "--dist", "worksteal"]
    if find_spec("pytest_timeout") is not None:
        # A thread that ends the process, since one that waits for the device does not hear of signals.
        limit = max(10.0, min(_SECONDS_A_TEST, seconds - 10))
        command += ["--timeout", f"{limit:.0f}", "--timeout-method", "thread", "-o", "timeout_func_only=true"]
    environment = {**os.environ, VARIABLE: str(outcomes), "PYTHONFAULTHANDLER": "1"}
    paths = [str(Path(__file__).resolve().parent), str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    began = time.monotonic()
    with open(printed, "wb") as output:
        child = subprocess.Popen(
            [*command, *(str(Path("tests", file)) for file in files)], cwd=ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        status = _wait(child, stage, name, outcomes, seconds)
    kept = _keep(stage, name, outcomes, printed, status, time.monotonic() - began)
    shutil.rmtree(folder, ignore_errors=True)
    return kept


def _wait(child: subprocess.Popen[bytes], stage: Stage, name: str, outcomes: Path, seconds: float) -> int | None:
    """Wait for pytest, storing its results every few seconds; returns its exit status, None if time was up."""
    until = time.monotonic() + seconds
    status: int | None = None
    try:
        while status is None and time.monotonic() < until:
            try:
                status = child.wait(min(10.0, max(until - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                stage.put(name, _summary(_lines(outcomes)))
        if status is None:
            _signal(child, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_SECONDS)
    finally:
        _signal(child, signal.SIGKILL)  # and the processes that tests have started
        child.wait()
    return status


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _keep(stage: Stage, name: str, outcomes: Path, printed: Path, status: int | None, seconds: float) -> Counter[str]:
    lines = _lines(outcomes)
    summary = _summary(lines)
    tail = printed.read_text("utf-8", "replace")[-_TAIL_CHARACTERS:]
    # pytest's statuses: 0 all passed, 1 some failed, 5 nothing collected; for others its output matters more.
    stage.put(name, {**summary, "status": status, "seconds": round(seconds, 1), "printed": "" if status == 0 else tail})
    if status is None:
        missing = summary["counts"]["collected"] - summary["counts"]["ended"]
        stage.leave_out(f"{name}: {missing} tests", f"the time was up after {seconds:.0f} s")
    return Counter(summary["counts"])


def _lines(outcomes: Path) -> list[dict[str, Any]]:
    found = []
    if outcomes.exists():
        for line in outcomes.read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):  # the last one may be cut short
                found.append(json.loads(line))
    return found


def _summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcomes by test, failures with their text first, and how many there are of each kind."""
    tests: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] == "test":
            known = tests.get(line["test"])
            if known is None or line["outcome"] in ("failed", "error"):
                tests[line["test"]] = {key: value for key, value in line.items() if key not in ("kind", "test")}
    counts: Counter[str] = Counter({"collected": 0, "ended": len(tests), "passed": 0, "failed": 0, "skipped": 0})
    counts["collected"] = max([line["count"] for line in lines if line["kind"] == "collected"], default=0)
    counts["collected"] = max(counts["collected"], len(tests))
    counts.update(test["outcome"] for test in tests.values())
    # Every collecting process reports the same.
    errors = {line["test"]: line["text"] for line in lines if line["kind"] == "error"}
    failed = [{"test": name, **facts} for name, facts in tests.items() if facts["outcome"] in ("failed", "error")]
    room = _MOST_OF_FAILURES // max(len(failed), 1)
    for facts in failed:
        facts.update({key: facts[key][:room] for key in ("text", "printed") if key in facts})
    counts["not collected"] = len(errors)
    return {
        "counts": dict(counts),
        "not_collected": errors,
        "failed": failed,
        "skipped": _by_reason(tests),
        "passed": {name: facts["seconds"] for name, facts in tests.items() if facts["outcome"] == "passed"},
        "warnings": [line["text"] for line in lines if line["kind"] == "warning"],
    }


def _by_reason(tests: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, facts in tests.items():
        if facts["outcome"] == "skipped":
            found.setdefault(facts.get("text", ""), []).append(name)
    return found


if __name__ == "__main__":
    main()
