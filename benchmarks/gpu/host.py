"""Stage (g): the time that getting a batch takes the loop's own thread, and the calls of torch and CUDA in it.

Batches are 8 pairs of 48 and 96 px with their numbers, and are ready when the loop asks for one. Without a GPU the
same batches stay in the computer's memory, and nobody reads the figures.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import feeds
import torch
from copies import bring
from device_data import folder_of
from fed import rounded
from stage import Stage, parse_stage
from torch.profiler import ProfilerActivity, profile, record_function

from lmdbloader import LMDBDataset
from lmdbloader.transforms import RandomCrop, RandomDihedral

BATCH_SIZE, CROP = 8, 96
TURNS, BATCHES = 7, 60
# Between two batches: the loader has time to make the next one, and the device is held up for about half of it.
_PAUSE_SECONDS, _BUSY_CYCLES = 0.0015, 1_400_000
_NEXT = "the loop's next batch"


def main() -> None:
    """Run the stage."""
    stage = parse_stage("host", __doc__)
    device = torch.device(stage.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    opened: dict[str, Callable[[], Any]] = {}
    for name, begin in ways(stage, device).items():
        function = stage.attempt(f"{name}: start", 4, partial(begun, begin))
        if function is not None:
            opened[name] = function
    rows = stage.attempt("batches", 15, lambda: measure(opened, device, stage.small)) or []
    stage.put("batches", rows)
    for row in rows:
        calls = stage.attempt(f"calls: {row['way']}", 3, partial(count_calls, opened[row["way"]], device))
        row |= calls or {}
        stage.put("batches", rows)


def ways(stage: Stage, device: torch.device) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return ways to get batches on the device: name -> function that begins."""
    dataset = LMDBDataset(folder_of(stage) / "pairs")

    def loader(**options: Any) -> Iterator[Any]:
        options = {"seed": 0, "drop_last": True, "transforms": [RandomCrop(CROP), RandomDihedral()], **options}
        opened = feeds.open_loader(dataset, BATCH_SIZE, **options)
        return feeds.loader_feed("", opened, device).raw()

    def bare() -> Iterator[Any]:
        batches = loader(pin_memory=True)
        pinned = [tuple(part.clone() for part in next(batches)) for _ in range(8)]
        if device.type == "cuda":
            pinned = [tuple(part.pin_memory() for part in batch) for batch in pinned]
        return (bring(batch, device) for batch in cycle(pinned))

    def copied_by_the_loop() -> Iterator[Any]:
        return (bring(batch, device) for batch in loader(pin_memory=True))

    names = ("copied", "on device", "kept")
    ours = {f"Loader, {name}": partial(loader, device=device, **feeds.WAYS[name]) for name in names}
    return {".to() of ready batches": bare, "Loader, .to()": copied_by_the_loop, **ours}


def begun(begin: Callable[[], Iterator[Any]]) -> Callable[[], Any]:
    """Return a function that gets the next batch, after some have come."""
    batches = begin()
    for _ in range(5):
        next(batches)
    return partial(next, batches)


def measure(opened: dict[str, Callable[[], Any]], device: torch.device, small: bool) -> list[dict[str, Any]]:
    """Return for each way the microseconds of the thread's own time, and those that pass, in medians of several turns.

    What reading the two clocks takes is measured as well, and taken off.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for turn in range(2 if small else TURNS + 1):
        for name, function in {"": lambda: None, **opened}.items():
            each = [one_batch(function, device) for _ in range(3 if small else BATCHES)]
            if turn:  # the first one takes memory
                own, passed = zip(*each, strict=True)
                worst = sorted(passed)[int(0.95 * len(passed))]
                found.setdefault(name, []).append((statistics.median(own), statistics.median(passed), worst))
    own, passed, _ = map(statistics.median, zip(*found.pop(""), strict=True))
    rows = []
    for name, turns in found.items():
        of_thread, of_clock, worst = map(statistics.median, zip(*turns, strict=True))
        rows.append(
            {
                "way": name,
                "batch_size": BATCH_SIZE,
                "us_thread": rounded(1e6 * max(of_thread - own, 0)),
                "us": rounded(1e6 * max(of_clock - passed, 0)),
                "us_p95": rounded(1e6 * max(worst - passed, 0)),
                "turns_us": [rounded(1e6 * (turn[0] - own)) for turn in turns],
            }
        )
    return rows


def one_batch(function: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Return the seconds of this thread, and those that passed, in getting one batch that is ready."""
    if device.type == "cuda":
        torch.cuda._sleep(_BUSY_CYCLES)
    time.sleep(_PAUSE_SECONDS)
    began, own = time.perf_counter(), time.thread_time()
    batch = function()
    own, passed = time.thread_time() - own, time.perf_counter() - began
    del batch
    return own, passed


def count_calls(function: Callable[[], Any], device: torch.device, count: int = 20) -> dict[str, Any]:
    """Return the calls of torch's operations and of CUDA by the loop's thread, a batch."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        for _ in range(count):
            time.sleep(_PAUSE_SECONDS)
            with record_function(_NEXT):
                batch = function()
            del batch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    named = [event for event in events if event.get("name") == _NEXT and event.get("cat") == "user_annotation"]
    inside = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in named]
    calls: dict[str, Counter[str]] = {"cuda": Counter(), "torch": Counter()}
    for event in events:
        kind = {"cuda_runtime": "cuda", "cuda_driver": "cuda", "cpu_op": "torch"}.get(event.get("cat", ""))
        if kind and any(event["tid"] == t and began <= event["ts"] < ended for t, began, ended in inside):
            calls[kind][event["name"]] += 1
    return {f"calls_of_{kind}": {name: n / count for name, n in found.items()} for kind, found in calls.items()}


if __name__ == "__main__":
    main()
