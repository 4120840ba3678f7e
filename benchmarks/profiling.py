"""Measures the cost of profiling, and how often it names planted bottlenecks."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import environment, environment_text, table
from planted import PATCHES, PLANTS, make_datasets, run_alone

import lmdbloader
from lmdbloader.transforms import RandomCrop

STEP_SECONDS = 0.005


def bare(batches: Iterable[Any], step: Callable[[Any], None], count: int) -> None:
    """Do steps, unwatched."""
    for number, batch in enumerate(batches, 1):
        step(batch)
        if number == count:
            return


def recorded(batches: Iterable[Any], step: Callable[[Any], None], count: int) -> None:
    """Run steps with a recorder of four phases."""
    with lmdbloader.lab.Recorder(batches, warmup=0) as recorder:
        for number, batch in enumerate(recorder, 1):
            step(batch)
            for phase in ("copy", "forward", "backward", "update"):
                recorder.lap(phase)
            if number == count:
                return


def cost_alone(turns: int, steps: int) -> dict[str, list[float]]:
    """Return seconds a step of a loop that does nothing, bare and recorded, by turns."""
    batches = [torch.zeros(4, 3, 8, 8)] * steps
    found: dict[str, list[float]] = {"bare": [], "recorded": []}
    for _ in range(turns):
        for name, loop in (("bare", bare), ("recorded", recorded)):
            began = time.perf_counter()
            loop(batches, lambda batch: None, steps)
            found[name].append((time.perf_counter() - began) / steps)
    return found


def cost_in_training(folder: Path, turns: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds of steps of 5 ms that a Loader feeds, and those of a core that all threads took for one."""
    loader = lmdbloader.Loader(
        lmdbloader.LMDBDataset(folder / PATCHES), 32, order="random", transforms=[RandomCrop(32)]
    )

    def step(batch: Any) -> None:
        time.sleep(STEP_SECONDS)

    found: dict[str, list[float]] = {name + what: [] for name in ("bare", "recorded") for what in ("", " cpu")}
    bare(loader, step, 20)
    for _ in range(turns):
        for name, loop in (("bare", bare), ("recorded", recorded)):
            loader.set_epoch(0)
            began, cpu = time.perf_counter(), time.process_time()
            loop(loader, step, steps)
            found[name].append((time.perf_counter() - began) / steps)
            found[name + " cpu"].append((time.process_time() - cpu) / steps)
    return found


def cost_rows(alone: dict[str, list[float]], training: dict[str, list[float]]) -> list[list[str]]:
    """Return the table of the cost."""
    rows = []
    # Other load makes turns longer: of wall times the shortest turn is the best estimate.
    for what, found, names, choose in (
        ("a loop that does nothing: time", alone, ("bare", "recorded"), min),
        ("steps of 5 ms, fed by a Loader: time", training, ("bare", "recorded"), min),
        ("the same: core time of all threads", training, ("bare cpu", "recorded cpu"), statistics.median),
    ):
        before, after = (choose(found[name]) for name in names)
        rows.append([
            what, f"{1e6 * before:,.1f}", f"{1e6 * after:,.1f}", f"{1e6 * (after - before):+,.1f}",
            f"{(after - before) / STEP_SECONDS:+.2%}",
        ])  # fmt: skip
    return rows


def name_planted(folder: Path, count: int, only: Sequence[str] | None) -> dict[str, list[dict[str, Any]]]:
    """Return the profiles of each plant, each run in its own process."""
    found = {}
    for name in only or PLANTS:
        found[name] = run_alone(name, folder, count)
        wrong = [profile["bottleneck"] for profile in found[name] if profile["bottleneck"] != PLANTS[name].expected]
        print(f"{name}: {count - len(wrong)} of {count}", *(f"called {other}" for other in wrong), file=sys.stderr)
    return found


def planted_rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Return the table of the planted bottlenecks."""
    rows = []
    for name, profiles in found.items():
        plant = PLANTS[name]
        named = sum(profile["bottleneck"] == plant.expected for profile in profiles)
        stalls = [profile["stall"] for profile in profiles]
        delays = [profile["loading"]["delayed"] / sum(profile["loading"].values()) for profile in profiles]
        rows.append([
            name, plant.what, plant.expected, f"{named} of {len(profiles)}", f"{min(stalls):.0%} to {max(stalls):.0%}",
            f"{min(delays):.0%} to {max(delays):.0%}",
        ])  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10, help="runs of each planted bottleneck (default: 10)")
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), metavar="NAME", help="these plants only")
    parser.add_argument("--turns", type=int, default=15, help="of measuring the cost (default: 15)")
    parser.add_argument("--folder", type=Path, help="for the datasets, kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--quick", action="store_true", help="a try in seconds; its figures mean nothing")
    options = parser.parse_args(argv)
    if options.quick:
        options.count, options.turns, options.only = 1, 1, ["healthy"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        make_datasets(folder)
        surroundings = environment(folder)
        print(environment_text(surroundings, argv, markdown=options.markdown), end="\n\n")
        steps = 20 if options.quick else 200
        alone, training = cost_alone(options.turns, 50 * steps), cost_in_training(folder, options.turns, steps)
        header = ["measurement", "bare us", "recorded us", "cost us", "of a 5 ms step"]
        print(table(header, cost_rows(alone, training), markdown=options.markdown), end="\n\n", flush=True)
        planted = name_planted(folder, options.count, options.only)
        header = [
            "planted",
            "description",
            "expected",
            "was",
            "waiting for data",
            "loading threads without a core",
        ]
        print(table(header, planted_rows(planted), markdown=options.markdown))
    if options.json:
        figures = {"alone": alone, "training": training, "planted": planted}
        options.json.write_text(json.dumps({"environment": surroundings, **figures}, indent=1))


if __name__ == "__main__":
    main()
