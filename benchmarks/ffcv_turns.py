"""FFCV's part of benchmarks/storage.py, for the interpreter of `.venv-peers`: writes its files, and times its loader.

FFCV stores no checksums, and verifies none. Its pairs are read by one compiled operation of ours, which mirrors or
turns them (`gpu/ffcv_peer.py`). It is asked with a line of JSON, and prints its answer as one.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "gpu")]

PAIRS, IMAGES = "pairs.beton", "images.beton"
# Epochs of so many samples: what starting one costs is not what is compared.
_LONG = 1_000_000
# The longest that filling the cache takes, in turns.
_MOST_TO_FILL = 10
# Until its code is compiled, and its threads have started.
_FIRST_BATCHES = 8


def write(folder: Path, asked: dict[str, Any]) -> int:
    """Write `pairs.npz` of a folder, or class folders of JPEG files, as FFCV's file; return its bytes."""
    import ffcv_peer

    if "images" in asked:
        path, source = folder / IMAGES, Path(asked["images"])
        ffcv_peer.write_images(source, path, mode="jpg", max_resolution=None, workers=2)
    else:
        path = folder / PAIRS
        with np.load(folder / "pairs.npz") as stored:
            ffcv_peer.write_pairs(list(zip(stored["lr"], stored["hr"], strict=True)), path, workers=2)
    return path.stat().st_size


def time_pairs(folder: Path, asked: dict[str, Any]) -> float:
    """Return pairs a second, as `limited.py` does; before the process is limited, the code is compiled."""
    import ffcv_peer
    import torch
    from limited import BATCH_SIZE, forget

    is_turned = asked.get("work") == "turned, float32"
    loader = ffcv_peer.pair_loader(
        folder / PAIRS, batch_size=BATCH_SIZE, workers=os.cpu_count() or 1, device="cpu",
        dtype=torch.float32 if is_turned else torch.uint8, ways=8 if is_turned else 2,
    )  # fmt: skip
    _take(iter(loader), _FIRST_BATCHES)
    loader.memory_manager.context.mmap = None  # the next epoch maps the file again
    gc.collect()
    forget(folder)
    for join in asked["joins"]:
        Path(join).write_text(str(os.getpid()))
    batches = iter(loader)
    if asked["fills"]:
        # With little memory an epoch takes minutes; the cache is full long before.
        until = time.perf_counter() + _MOST_TO_FILL * asked["seconds"]
        while time.perf_counter() < until and next(batches, None) is not None:
            pass
        batches.close()
        ffcv_peer.lengthen(loader, _LONG)
        batches = iter(loader)
    pairs, began = 0, time.perf_counter()
    for batch in batches:
        pairs += len(batch[0])
        if time.perf_counter() - began >= asked["seconds"]:
            break
    return pairs / (time.perf_counter() - began)


def time_crops(folder: Path, asked: dict[str, Any]) -> list[float]:
    """Return images a second of processor time in one thread of each work (side, batch size), medians of the turns."""
    import ffcv_peer
    import torch

    opened: list[Iterator[Any]] = []
    for side, batch_size in asked["works"]:
        loader = ffcv_peer.image_loader(
            folder / IMAGES, batch_size=batch_size, size=side, workers=1, device="cpu", dtype=torch.uint8
        )
        ffcv_peer.lengthen(loader, _LONG)
        opened.append(iter(loader))
        _take(opened[-1], _FIRST_BATCHES, closes=False)
    turns: list[list[float]] = []
    for _ in range(asked["turns"]):
        turns.append([])
        for batches in opened:
            _take(batches, _FIRST_BATCHES, closes=False)
            images, cpu, began = 0, time.process_time(), time.perf_counter()
            while time.perf_counter() - began < asked["seconds"]:
                images += len(next(batches)[0])
            turns[-1].append(images / (time.process_time() - cpu))
            time.sleep(0.2)  # its thread makes the batches that are ahead
    return [statistics.median(found) for found in zip(*turns, strict=True)]


def _take(batches: Any, count: int, *, closes: bool = True) -> None:
    for _ in itertools.islice(batches, count):
        pass
    if closes:
        batches.close()


def main() -> None:
    """Answer the question in the first argument."""
    asked = json.loads(sys.argv[1])
    answer = {"write": write, "crops": time_crops}.get(asked.get("task"), time_pairs)(Path(asked["path"]), asked)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # FFCV's threads wait for a consumer


if __name__ == "__main__":
    main()
