"""Stage (k): two processes that train on one GPU, each with its share of every epoch, over gloo and over NCCL.

NCCL may refuse two ranks on one device; then its message is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import feeds
import torch
from device_data import folder_of
from fed import rounded
from stage import Stage, parse_stage
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from lmdbloader import LMDBDataset
from lmdbloader.transforms import RandomCrop, RandomDihedral

RANKS, STEPS, BATCH_SIZE = 2, 20, 16
_SECONDS = 20.0


def main() -> None:
    """Run the stage; or be one of its ranks."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--backend")
    parser.add_argument("--way")
    parser.add_argument("--store", type=Path)
    options, others = parser.parse_known_args()
    stage = parse_stage("ranks", __doc__, others)
    if options.rank is not None:
        be_rank(folder_of(stage) / "pairs", options.rank, options.backend, options.way, options.store, stage.device)
    rows: list[dict[str, Any]] = []
    for backend, way in (("gloo", "copied"), ("nccl", "copied"), ("gloo", "on device"), ("gloo", "kept")):
        what = f"{backend}, {way}"
        if backend == "nccl" and stage.device == "cpu":
            stage.leave_out(what, "it needs a GPU")
            continue
        row = stage.attempt(what, 8, lambda b=backend, w=way: start(stage, b, w))
        if row is not None:
            rows.append({"backend": backend, "way": way, **row})
            stage.put("ranks", rows)


def start(stage: Stage, backend: str, way: str) -> dict[str, Any]:
    """Run both ranks, and return what they have seen together."""
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary)
        command = [sys.executable, __file__, "--data", str(stage.data), "--out", str(store / "none.json")]
        command += ["--backend", backend, "--way", way, "--store", temporary]
        began = time.perf_counter()
        children = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(RANKS)
        ]
        try:
            seconds = max(min(_SECONDS, stage.left - 2), 1)
            printed = [child.communicate(timeout=seconds)[0].decode("utf-8", "replace") for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
        files = [store / f"{rank}.json" for rank in range(RANKS)]
        if not all(file.exists() for file in files):
            said = [line for text in printed for line in text.splitlines() if "rror" in line]
            return {"ended": "refused", "message": " ".join(dict.fromkeys(said))[-500:]}
        found = [json.loads(file.read_text("utf-8")) for file in files]
    seen = [set(each["numbers"]) for each in found]
    return {
        "ended": "done",
        "steps": STEPS,
        "samples": [len(each) for each in seen],
        "are_disjoint": len(set.union(*seen)) == sum(map(len, seen)) == RANKS * STEPS * BATCH_SIZE,
        "are_weights_equal": found[0]["weights"] == found[1]["weights"],
        "steps_per_s": rounded(STEPS / max(each["seconds"] for each in found)),
        "seconds": rounded(time.perf_counter() - began),
    }


def be_rank(path: Path, rank: int, backend: str, way: str, store: Path, device: str) -> None:
    """Train for some steps as one rank, write what was seen, and end this process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS))
    where = torch.device(device)
    distributed.init_process_group(
        backend, init_method=f"file://{store}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=_SECONDS)
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Conv2d(3, 3, 3, padding=1).to(where))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = feeds.open_loader(
        LMDBDataset(path), BATCH_SIZE, device=where, seed=0, shard="auto", drop_last=True,
        transforms=[RandomCrop(64), RandomDihedral()], **feeds.WAYS[way],
    )  # fmt: skip
    numbers: list[int] = []
    began = time.perf_counter()
    for step, batch in enumerate(loader):
        if step == STEPS:
            break
        loss = model(batch.hr.float() / 255).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers += batch.label.tolist()
    seconds = time.perf_counter() - began
    weights = [value.tolist() for value in model.module.bias.detach().cpu()]
    (store / f"{rank}.json").write_text(json.dumps({"numbers": numbers, "weights": weights, "seconds": seconds}))
    distributed.barrier()
    sys.stdout.flush()
    # A thread of gloo that still drops a tensor while the interpreter ends would abort the process.
    os._exit(0)


if __name__ == "__main__":
    main()
