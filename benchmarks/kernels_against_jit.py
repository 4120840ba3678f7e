"""Times the Loader with the library of kernels against the Loader with kernels that Numba's JIT compiles.

Two processes with one reading thread each take turns, so the machine's other work meets both. The figures are medians:
the processor time of a sample with the JIT, and the speed of the library as a multiple of the JIT's. Numba compiles for
the same kind of processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import cut_pairs, photographs, print_sections, table

PATCHES, PHOTOS = 6000, 900
BATCHES = (1, 8, 64, 256)
ROOT = Path(__file__).resolve().parent.parent


def make_datasets(folder: Path) -> None:
    """Write the patches raw and as lz4, and photographs as JPEG files, unless they are there."""
    import numpy as np
    from PIL import Image

    import lmdbloader

    pairs = cut_pairs(PATCHES)
    for codec in ("raw", "lz4"):
        if not (folder / codec).exists():
            both = zip(pairs.lr, pairs.hr, strict=True)
            samples = ({"lr": lr.transpose(1, 2, 0), "hr": hr.transpose(1, 2, 0)} for lr, hr in both)
            lmdbloader.write(samples, folder / codec, codec=codec)
    if not (folder / "jpeg").exists():
        (folder / "files").mkdir(exist_ok=True)
        rng, sources = np.random.default_rng(0), photographs()
        for number in range(PHOTOS):
            source = sources[number % len(sources)]
            top, left = (int(rng.integers(size - 256 + 1)) for size in source.shape[:2])
            piece = Image.fromarray(source[top : top + 256, left : left + 256])
            piece.save(folder / "files" / f"{number:04}.jpg", quality=90)
        lmdbloader.convert(folder / "files", folder / "jpeg", workers=1)


def cases(folder: Path) -> dict[str, Callable[[], float]]:
    """Return what reads one epoch of each case, and returns the seconds of processor time for a sample."""
    import lmdbloader
    from lmdbloader.transforms import ColorJitter, RandomHorizontalFlip, RandomResizedCrop

    resized = RandomResizedCrop(128), RandomHorizontalFlip()
    bicubic = RandomResizedCrop(128, interpolation="bicubic"), ColorJitter(0.4, 0.4, 0.4)
    kinds: dict[str, tuple[str, tuple[Any, ...]]] = {
        "raw": ("raw", ()),
        "lz4": ("lz4", ()),
        "JPEG": ("jpeg", ()),
        "JPEG, resized crop": ("jpeg", resized),
        "JPEG, bicubic and colours": ("jpeg", bicubic),
    }

    def epoch(loader: Any) -> float:
        began = time.process_time()
        count = sum(len(batch[0]) for batch in loader)
        return (time.process_time() - began) / count

    found = {}
    for name, (stored, transforms) in kinds.items():
        dataset = lmdbloader.LMDBDataset(folder / stored)
        for size in BATCHES:
            loader = lmdbloader.Loader(dataset, size, order="random", transforms=list(transforms), num_threads=1)
            found[f"{name}, {size}"] = lambda loader=loader: epoch(loader)
    return found


def serve(folder: Path) -> None:
    """Measure each case that a line of the input names."""
    found = cases(folder)
    for line in sys.stdin:
        print(found[line.strip()](), flush=True)


class Peer:
    """A process that measures."""

    def __init__(self, folder: Path, choice: str, kind: str) -> None:
        jit = {"NUMBA_CPU_NAME": kind, "NUMBA_CPU_FEATURES": ""} if kind.startswith("x86") else {}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        settings = {**os.environ, **jit, "PYTHONPATH": path, "LMDBLOADER_KERNELS": choice}
        command = [sys.executable, __file__, "--serve", str(folder)]
        self._process = subprocess.Popen(
            command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, name: str) -> float:
        """Return the seconds of processor time for a sample of one case."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def run(folder: Path, turns: int, kind: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the section of one kind of processor."""
    make_datasets(folder)
    peers = Peer(folder, "jit", kind), Peer(folder, kind, kind)
    names = list(cases(folder))
    figures: dict[str, dict[str, float]] = {}
    for name in names:
        for peer in peers:
            peer.ask(name)  # compiles, and brings everything into memory
        taken = []
        for turn in range(turns):
            first, second = peers if turn % 2 else peers[::-1]
            one, other = first.ask(name), second.ask(name)
            taken.append((one, other) if turn % 2 else (other, one))
        figures[name] = {
            "jit": statistics.median(jit for jit, _ in taken),
            "ratio": statistics.median(jit / library for jit, library in taken),
        }
        print(f"{name}: {figures[name]['ratio']:.2f}", file=sys.stderr, flush=True)
    for peer in peers:
        peer.close()
    rows = [[name, f"{1e6 * found['jit']:.1f} us", f"{found['ratio']:.2f} x"] for name, found in figures.items()]
    header = ["payloads, batch size", "JIT, a sample", "library's speed"]
    yield f"Library against JIT, {kind}", figures, table(header, rows, markdown=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="", help="of processor, such as x86-64-v3; default: this machine's best")
    parser.add_argument("--turns", type=int, default=9, help="of each case (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="keep the datasets here (default: a temporary folder)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    from lmdbloader.kernels.building.linking import best_here

    kind = options.kind or best_here().kind
    print_sections(lambda folder: run(folder, options.turns, kind), "Kernels: library against JIT", options)


if __name__ == "__main__":
    main()
