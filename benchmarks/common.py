"""Shared by the benchmarks: real photographs, a description of the environment, memory, and tables."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
Key = TypeVar("Key", bound=Hashable)

# The color photographs that the scikit-image package itself carries; nothing is downloaded.
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)
_MIB = 2**20

DISTINCT_MOSAICS = 48


@dataclass(frozen=True, slots=True)
class Pairs:
    """Aligned patches of real photographs.

    Attributes:
        lr: (n, 3, h, w) uint8.
        hr: (n, 3, H, W) uint8, `scale` times larger.
    """

    lr: U8
    hr: U8

    def __len__(self) -> int:
        return len(self.hr)


def time_loader(loader: Any, seconds: float) -> Any:
    """Return the `BatchTimes` of some seconds of a Loader, epoch after epoch."""
    from lmdbloader.base.stopwatch import time_batches

    return time_batches(chain.from_iterable(repeat(loader)), seconds, lambda batch: len(batch[0]))


def in_turns(runs: Mapping[Key, Callable[[int], int]], turns: int) -> dict[Key, list[float]]:
    """Return the CPU seconds for each item of functions that take turns; each gets the turn, and returns its items."""
    times: dict[Key, list[float]] = {key: [] for key in runs}
    for turn in range(turns + 1):
        for key, run in runs.items():
            began = time.process_time()
            count = run(turn)
            if turn:  # the first one fills caches and memory
                times[key].append((time.process_time() - began) / count)
    return times


def photographs() -> list[U8]:
    """Return scikit-image's color photographs, each (H, W, 3) uint8."""
    import skimage.data
    from PIL import Image

    folder = Path(skimage.data.__file__).parent
    return [np.asarray(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS]


def cut_pairs(count: int, *, patch_size: int = 96, scale: int = 2, seed: int = 0) -> Pairs:
    """Return `count` patches at random places of all photographs, some mirrored, with their LR patches."""
    from lmdbloader.images.downscale import crop_to_multiple, downscale

    highs = [crop_to_multiple(photograph, scale) for photograph in photographs()]
    lows = [downscale(high, scale) for high in highs]
    rng = np.random.default_rng(seed)
    small = patch_size // scale
    lr = np.empty((count, 3, small, small), np.uint8)
    hr = np.empty((count, 3, patch_size, patch_size), np.uint8)
    for i in range(count):
        which = i % len(highs)
        height, width = lows[which].shape[:2]
        top, left = int(rng.integers(height - small + 1)), int(rng.integers(width - small + 1))
        down, across = rng.choice([-1, 1], 2)
        for out, image, factor in ((lr, lows[which], 1), (hr, highs[which], scale)):
            side = small * factor
            patch = image[top * factor : top * factor + side, left * factor : left * factor + side]
            out[i] = patch[::down, ::across].transpose(2, 0, 1)
    return Pairs(lr, hr)


def mosaic(sources: Sequence[U8], rng: np.random.Generator, width: int, height: int) -> U8:
    """Return an image (height, width, 3) laid out of pieces of others at their own resolution."""
    canvas = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, 300):
        for left in range(0, width, 400):
            piece = sources[rng.integers(len(sources))][:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]
            h, w = min(300, height - top), min(400, width - left)
            y, x = rng.integers(piece.shape[0] - h + 1), rng.integers(piece.shape[1] - w + 1)
            canvas[top : top + h, left : left + w] = piece[y : y + h, x : x + w]
    return canvas


def write_mosaics(folder: Path, count: int, *, width: int = 2040, height: int = 1356, seed: int = 0) -> None:
    """Write `count` PNG photographs of DIV2K's usual size, each a `mosaic`.

    Encoding takes longer than the measurements, so after 48 the same files appear under other names.
    """
    from PIL import Image

    sources = photographs()
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        if number >= DISTINCT_MOSAICS:
            os.link(folder / f"{number % DISTINCT_MOSAICS:05d}.png", folder / f"{number:05d}.png")
            continue
        Image.fromarray(mosaic(sources, rng, width, height)).save(folder / f"{number:05d}.png")


def environment(folder: Path) -> dict[str, Any]:
    """Return the environment of the figures: machine, load, versions, the disk below `folder`, as text to show.

    Its entry "record" has all of it as the package records it with every result.
    """
    from lmdbloader.lab.machine import describe

    machine = describe(folder)
    rows = dict(machine.rows())
    disk = rows.pop("storage", "unknown")
    return {
        **rows,
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "disk": f"{disk}, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free",
        "lmdbloader": machine.lmdbloader,
        "record": machine.as_json(),
    }


def rss_anon(pid: int | str = "self") -> int:
    """Return the anonymous memory of a process in bytes, 0 once it is gone; mapped files do not count."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


class PeakMemory:
    """Watches the anonymous memory of this process and of those that it starts, while it is entered.

    Attributes:
        before: Bytes of this process when it was entered.
        own: The most bytes that this process had.
        children: The most bytes that its descendants had together.
    """

    def __init__(self, seconds: float = 0.01) -> None:
        self.before = self.own = self.children = 0
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self.before = self.own = rss_anon()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._seconds):
            self.own = max(self.own, rss_anon())
            self.children = max(self.children, sum(map(rss_anon, descendants(os.getpid()))))


def disk_nbytes(path: Path) -> int:
    """Return the bytes that a file or a folder takes on the disk, in whole blocks as the disk hands them out."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_blocks * 512 for p in files)


def mib(nbytes: float) -> str:
    """Return bytes as text.

    >>> mib(3 * 2**20)
    '3.0 MiB'
    """
    return f"{nbytes / _MIB:,.1f} MiB"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Return a table as text, the first column to the left and the others to the right."""
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |" if markdown else "  ".join(padded).rstrip()

    rule = "|" + "|".join("-" * (w + 1) + (":" if k else "-") for k, w in enumerate(widths)) + "|"
    return "\n".join([line(header), *([rule] if markdown else []), *map(line, rows)])


def environment_text(found: Mapping[str, Any], command: Sequence[str], *, markdown: bool) -> str:
    """Return the environment and the command line that took the figures, as text."""
    program = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *command])
    lines = {**found, "command": f"`{program}`" if markdown else program}
    del lines["record"]
    return "\n".join(f"- {key}: {value}" if markdown else f"{key}: {value}" for key, value in lines.items())


def print_sections(
    run: Callable[[Path], Iterator[tuple[str, Any, str]]], title: str, options: argparse.Namespace
) -> None:
    """Measure section after section, and print the results.

    Args:
        run: Yields the name, the figures and the text of each, and may write into the folder that it is given.
        title: Of them all.
        options: `folder` (None: a temporary one), `markdown`, and `json`: a file for every figure, or None.
    """
    with tempfile.TemporaryDirectory(prefix="lmdbloader-benchmark-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = environment(folder)
        kept: dict[str, Any] = {"environment": found}
        texts = []
        for name, figures, text in run(folder):
            texts.append(f"{'### ' if options.markdown else ''}{name}\n\n{text}")
            is_keyed = isinstance(figures, dict) and all(isinstance(key, tuple) for key in figures)
            kept[name] = [[*key, value] for key, value in figures.items()] if is_keyed else figures
            print(f"{name}: done", file=sys.stderr, flush=True)
    print(environment_text(found, sys.argv[1:], markdown=options.markdown))
    print(f"\n{title}\n")
    print("\n\n".join(texts))
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1), "utf-8")
