"""A process that reads a dataset while its files are cut short: `python reading_cut_short.py PATH IO SECONDS`.

Prints how many reads gave the right bytes and how many raised CorruptError; anything else ends it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from payloads import EACH

from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError

IMAGES = [name for name, kind in EACH.items() if kind == "image"]
MOVED = [T.RandomCrop(32), T.ToDtype(torch.float32, scale=True)]


def ways(dataset: LMDBDataset) -> Iterator[Callable[[], Any]]:
    """Yield every way to read, each as a function that returns the data."""
    for row in range(len(dataset)):
        yield lambda row=row: list(dataset[row])
        yield lambda row=row: dataset.reader.read_array("packed", row)
        for name in IMAGES:
            yield lambda row=row, name=name: dataset.crop(row, top=1, left=2, height=33, width=30, field=name)
    yield lambda: list(dataset._many(range(len(dataset))).columns.values())
    for name in EACH:
        view = LMDBDataset(dataset.path, [name], io=dataset.reader.io)
        loader = Loader(view, 2, order="sequential", num_threads=1)
        yield lambda loader=loader: [batch[0] for batch in loader]
        if name not in IMAGES:
            continue
        moved, scaled = view.transformed(MOVED, seed=0), view.transformed([T.ToDtype(torch.float32, True)])
        moved.set_epoch(0)
        cropping = Loader(view, 2, order="sequential", num_threads=1, transforms=[T.RandomCrop(32)], seed=3)
        resizing = Loader(view, 2, order="sequential", num_threads=1, transforms=[T.Resize((20, 24))])
        yield lambda moved=moved: moved[1]
        yield lambda scaled=scaled: scaled[2]
        for each in (cropping, resizing):
            yield lambda loader=each: set_first(loader) or [batch[0] for batch in loader]


def set_first(loader: Loader) -> None:
    loader.set_epoch(0)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b))) if hasattr(a, "shape") else bool(a == b)


def main(path: Path, io: Any, seconds: float) -> None:
    dataset = LMDBDataset(path, io=io)
    reads = list(ways(dataset))
    expected = [read() for read in reads]
    file, content = path / "data.mdb", (path / "data.mdb").read_bytes()
    counts: Counter[str] = Counter()

    def read_all() -> None:
        for read, value in zip(reads, expected, strict=True):
            try:
                assert same(read(), value)
                counts["right"] += 1
            except CorruptError as error:
                assert error.path == str(path) and error.field in EACH and error.sample is not None
                counts["corrupt"] += 1

    if io == "pread":
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert str(path) not in maps.read()
        for name in ("index.arrow", "manifest.json"):
            os.truncate(path / name, 0)
    read_all()
    assert counts["corrupt"] == 0
    arrays = dataset.reader.index.arrays
    offsets = sorted({int(at) for name in EACH for at in arrays[f"{name}.offset"]})
    cuts = [0, 1, 4095, 4096, len(content) - 1, *random.Random(0).sample(offsets, 5)]
    for cut in cuts:
        os.truncate(file, cut)
        read_all()
        with open(file, "r+b") as handle:
            handle.write(content)
    before = counts["corrupt"]
    read_all()
    assert counts["corrupt"] == before > 0, counts
    until = time.monotonic() + seconds

    def cut_and_mend() -> None:
        choose = random.Random(1)
        while time.monotonic() < until:
            os.truncate(file, choose.randrange(len(content)))
            time.sleep(choose.random() * 0.01)
            with open(file, "r+b") as handle:
                handle.write(content)
            time.sleep(choose.random() * 0.01)

    thread = threading.Thread(target=cut_and_mend)
    thread.start()
    while thread.is_alive():
        read_all()
    thread.join()
    print(counts["right"], counts["corrupt"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
