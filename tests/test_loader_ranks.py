"""One to eight real processes take the same global steps, and hand an epoch over between numbers of ranks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from part_sets import make_set
from rank_program import CASES, ONCE, as_forked, make
from torch.multiprocessing.spawn import start_processes

import lmdbloader

COUNT, BATCH_SIZE = 331, 3
PROGRAM = Path(__file__).with_name("rank_program.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ranks")
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 4, 5, 3), np.uint8)
    samples = [{"image": image, "number": i} for i, image in enumerate(pixels)]
    lmdbloader.write(samples, folder / "whole.lmdb")
    bounds = [0, 100, 101, 290, COUNT]
    make_set(folder / "set.lmdb", [samples[first:end] for first, end in itertools.pairwise(bounds)])
    return str(folder)


@pytest.fixture(scope="module")
def orders(folder: str) -> list[list[list[int]]]:
    """The numbers of two epochs of each case, read by one process as it is."""
    found = []
    for case in CASES:
        loader = make(folder, case, 64, (0, 1))
        found.append([[n for batch in loader for n in batch.number.tolist()] for _ in range(2)])
        if case[1] in ONCE:
            assert sorted(found[-1][0]) == sorted(found[-1][1]) == sorted(set(found[-1][0]))
    return found


def run(world_size: int, out: Path, *, launcher: str, **plan: Any) -> list[list[Any]]:
    """Return what each rank of a group of processes has read; see `rank_program.read`."""
    out.mkdir()
    (out / "plan.json").write_text(json.dumps(plan))
    if launcher == "fork":
        start_processes(as_forked, (world_size, str(out)), nprocs=world_size, start_method="fork")  # type: ignore[no-untyped-call]
    else:
        command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", str(PROGRAM), str(out)]
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,  # emulated it is slow
        )
        assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


def shares(order: list[int], start: int, world_size: int, steps: int | None) -> list[list[list[int]]]:
    """Return the batches of each rank from a position on, the slow way: a step is a piece of the order, dealt out."""
    left, ranks = order[start:], [[] for _ in range(world_size)]  # type: list[int], list[list[list[int]]]
    left += order[: -len(left) % world_size]  # the last step is filled up from the beginning
    for first in range(0, len(left), BATCH_SIZE * world_size):
        if steps is not None and first == steps * BATCH_SIZE * world_size:
            break
        step = left[first : first + BATCH_SIZE * world_size]
        for rank, batches in enumerate(ranks):
            batches.append(step[rank::world_size])
    return ranks


def check(
    found: list[list[Any]], orders: list[list[list[int]]], *, start: int, steps: int | None
) -> list[dict[str, Any]]:
    """Compare every rank's batches of every case with the order; return the states, which all ranks share."""
    states = []
    for number, (first, second) in enumerate(orders):
        expected = shares(first, start, len(found), steps)
        if steps is None:
            following = shares(second, 0, len(found), None)
            expected = [mine + more for mine, more in zip(expected, following, strict=True)]
        assert [rank[number][0] for rank in found] == expected, CASES[number]
        (state,) = {json.dumps(rank[number][1]) for rank in found}
        states.append(json.loads(state))
    return states


@pytest.mark.parametrize("world_size", [2, 8])
def test_processes_take_the_same_steps_of_two_epochs(
    folder: str, orders: list[list[list[int]]], tmp_path: Path, world_size: int
) -> None:
    found = run(
        world_size, tmp_path / "run", launcher="fork", folder=folder, before=[], batch_size=BATCH_SIZE, steps=None
    )
    states = check(found, orders, start=0, steps=None)
    assert [(state["epoch"], state["position"]) for state in states] == [(2, 0)] * len(CASES)


def test_an_epoch_goes_through_groups_of_all_sizes(folder: str, orders: list[list[list[int]]], tmp_path: Path) -> None:
    states: list[dict[str, Any]] = []
    start, plan = 0, {"folder": folder, "batch_size": BATCH_SIZE}
    for number, (world_size, steps) in enumerate([(8, 2), (2, 8)]):
        found = run(world_size, tmp_path / str(number), launcher="fork", **plan, before=states, steps=steps)
        states = check(found, orders, start=start, steps=steps)
        start += BATCH_SIZE * world_size * steps
        assert {state["position"] for state in states} == {start}
    # Three divide neither the samples nor what is left of them; they end the epoch and read the next one.
    found = run(3, tmp_path / "last", launcher="torchrun", **plan, before=states, steps=None)
    check(found, orders, start=start, steps=None)
