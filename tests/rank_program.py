"""What each rank of a group does in the tests of many ranks; torchrun starts it as a program, tests fork it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lmdbloader import LMDBDataset, Loader, QuasiRandom, mix

# What a Loader is made of: what it is given, from a folder with `whole.lmdb` and the same samples as a set of parts,
# `set.lmdb`; and any options that decide its order. A new kind of either gets a line here. Samples tell their `number`.
DATASETS: dict[str, Callable[[Path], Any]] = {
    "a dataset": lambda folder: LMDBDataset(folder / "whole.lmdb"),
    "a view": lambda folder: LMDBDataset(folder / "whole.lmdb")[310:7:-2],
    "a set": lambda folder: LMDBDataset(folder / "set.lmdb"),
    "a mixture": lambda folder: mix([LMDBDataset(folder / "whole.lmdb")[:120], LMDBDataset(folder / "set.lmdb")[120:]]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "random": {"order": "random", "seed": 5},
    "sequential": {"order": "sequential"},
    "quasi-random": {"order": "quasi_random", "seed": 5},
    "quasi-random, 12 lanes": {"order": QuasiRandom(200, 2400), "seed": 5},
    "a list": {"order": [n * n % 140 for n in range(211)], "seed": 5},
    "a function": {"order": lambda epoch: range(epoch, 120 + epoch), "seed": 5},
    "weights": {"weights": [1.0 + n for n in range(331)], "num_samples": 200, "seed": 5},
    "repeats": {"repeat": 2, "shuffle": True, "seed": 5},
}
# Those with which an epoch has every sample once.
ONCE = ("random", "sequential", "quasi-random", "quasi-random, 12 lanes")
_OF_ALL = ("random", "quasi-random, 12 lanes")
CASES = [(data, options) for data in DATASETS for options in OPTIONS if data == "a dataset" or options in _OF_ALL]


def make(folder: str | Path, case: tuple[str, str], batch_size: int, shard: Any) -> Loader:
    """Return the Loader of a case."""
    data, options = case
    return Loader(DATASETS[data](Path(folder)), batch_size, shard=shard, num_threads=1, **OPTIONS[options])


def read(folder: str, before: list[Any], batch_size: int, steps: int | None) -> list[Any]:
    """Read each case as one rank of the group, and return what was seen.

    Args:
        folder: Of the datasets.
        before: The state with which each case continues; empty to begin.
        batch_size: Of one rank.
        steps: How many steps of all ranks to read; None: the rest of this epoch and the next one.

    Returns:
        (batches, the state after them) of each case; a batch is a list of numbers.
    """
    found = []
    for number, case in enumerate(CASES):
        loader = make(folder, case, batch_size, "auto")
        if before:
            loader.load_state_dict(before[number])
        seen: list[list[int]] = []
        for _ in range(1 if steps else 2):
            if steps == 0:
                break
            for batch in loader:
                # A rank with fewer batches than another would wait here for ever, as in DistributedDataParallel.
                total = torch.tensor(len(seen))
                distributed.all_reduce(total)
                assert total == loader.world_size * len(seen)
                seen.append(batch.number.tolist())
                if len(seen) == steps:
                    break
        found.append((seen, loader.state_dict()))
    return found


def main(folder: str) -> None:
    """Do what a folder's `plan.json` says, as a rank of a group that torchrun's variables describe."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=100))
    found = read(**json.loads(Path(folder, "plan.json").read_text()))
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def as_forked(rank: int, world_size: int, folder: str) -> None:
    """Do the same in a process that was forked."""
    store = f"file://{folder}/store"
    names = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ.update(names, LOCAL_WORLD_SIZE=str(world_size))
    distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=100)
    )
    found = read(**json.loads(Path(folder, "plan.json").read_text()))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    # A thread of gloo that still drops a tensor while the interpreter ends would abort the process.
    os._exit(0)
