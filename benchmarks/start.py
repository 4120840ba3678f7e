"""Measures start-up in new processes, as a user sees it: imports, opening, the first sample and batch, commands.

Every figure is the minimum of several processes, in seconds and in processor time. Other load on the machine adds to
the first, and hardly to the second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import cut_pairs, print_sections, table
from fresh import in_fresh_process, in_this_process, of_fresh_process
from stores import write_ours_lz4

import lmdbloader

_TIMED = """
import sys, time
{before}
wall, cpu = time.perf_counter(), time.process_time()
{code}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
_PATCHES = (
    "from lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype\n"
    "transforms = [RandomCrop(64), RandomDihedral(), ToDtype(torch.float32, scale=True)]"
)
_CROPS = (
    "from lmdbloader.transforms import RandomHorizontalFlip, RandomResizedCrop, ToDtype\n"
    "transforms = [RandomResizedCrop(176), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True)]"
)
_OPEN = "import lmdbloader\nds = lmdbloader.LMDBDataset(sys.argv[1])"
_BATCH = "next(iter(lmdbloader.Loader(ds, 16, order='random', transforms=transforms)))"


@dataclass(frozen=True, slots=True)
class Figure:
    """One stretch of a process's beginning.

    Attributes:
        name: For the table.
        bound: Seconds that it may take.
        dataset: Name of the dataset that the code opens.
        before: Code that is not timed.
        code: Code that is timed.
    """

    name: str
    bound: float
    dataset: str
    before: str
    code: str


FIGURES = (
    Figure("import lmdbloader", 0.05, "patches", "", "import lmdbloader"),
    Figure("LMDBDataset(path), torch imported", 0.1, "patches", "import torch", _OPEN),
    Figure("the first ds[0] after it", 0.1, "patches", f"import torch\n{_OPEN}", "ds[0]"),
    Figure("the first batch of patches after it", 0.3, "patches", f"import torch\n{_OPEN}", f"{_PATCHES}\n{_BATCH}"),
    Figure("the first batch of JPEG crops after it", 0.3, "jpegs", f"import torch\n{_OPEN}", f"{_CROPS}\n{_BATCH}"),
    Figure(
        "from torch to the first batch of patches", 1.0, "patches", "import torch", f"{_OPEN}\n{_PATCHES}\n{_BATCH}"
    ),
    Figure("from torch to the first batch of JPEG crops", 1.0, "jpegs", "import torch", f"{_OPEN}\n{_CROPS}\n{_BATCH}"),
)
# Whole commands, the start of Python included. A conversion of one image contains what comes before it is decoded.
COMMANDS = {
    "lmdbloader --help": (0.1, ["--help"]),
    "lmdbloader plan": (0.2, ["plan", "--preset", "resnet50-v100"]),
    "lmdbloader info": (0.2, ["info", "{patches}"]),
    "lmdbloader convert, one image": (1.0, ["convert", "{image}", "{out}"]),
}


def prepare(folder: Path) -> None:
    """Write what is read: patches, JPEGs, and a folder of one image."""
    from PIL import Image

    pairs = cut_pairs(64, patch_size=192)
    if not (folder / "patches").exists():
        write_ours_lz4(pairs, folder / "patches")
    for name, count in (("photos", 32), ("image", 1)):
        (folder / name).mkdir(exist_ok=True)
        for i in range(count):
            Image.fromarray(pairs.hr[i].transpose(1, 2, 0)).save(folder / name / f"{i}.jpg")
    if not (folder / "jpegs").exists():
        lmdbloader.convert(folder / "photos", folder / "jpegs", workers=1, progress=False)


def time_command(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return the seconds and the processor time of a command."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    names = {name: str(folder / name) for name in ("patches", "image", "out")}
    command = [sys.executable, "-m", "lmdbloader", *(word.format(**names) for word in words)]
    before, wall = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=of_fresh_process())
    seconds, after = time.perf_counter() - wall, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, spent


def measure(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the bound and the least seconds and processor time of each figure; their turns alternate."""
    found = {f.name: {"bound": f.bound} for f in FIGURES}
    found |= {name: {"bound": bound} for name, (bound, _) in COMMANDS.items()}

    def note(name: str, seconds: float, cpu_seconds: float) -> None:
        for what, value in (("seconds", seconds), ("cpu_seconds", cpu_seconds)):
            found[name][what] = min(value, found[name].get(what, value))

    timed = in_this_process if options.quick else in_fresh_process
    for _ in range(options.repeats + 1):  # the first turn fills the page cache and Python's cache of bytecode
        for f in FIGURES:
            code = _TIMED.format(before=f.before, code=f.code)
            seconds, cpu_seconds = timed(code, str(folder / f.dataset))
            note(f.name, seconds, cpu_seconds)
        for name, (_, words) in COMMANDS.items():
            note(name, *time_command(words, folder))
    return found


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of the only section."""
    prepare(folder)
    figures = measure(folder, options)
    rows = [
        [name, f"{f['seconds']:.3f}", f"{f['cpu_seconds']:.3f}", f"{f['bound']:.2f}", _verdict(f)]
        for name, f in figures.items()
    ]
    header = ["a new process", "seconds", "processor seconds", "bound", ""]
    yield "start", figures, table(header, rows, markdown=options.markdown)


def _verdict(figure: dict[str, float]) -> str:
    return "reached" if figure["seconds"] <= figure["bound"] else "MISSED"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="processes for each figure (default 7)")
    parser.add_argument("--folder", type=Path, help="keep the datasets here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.repeats = 0
    print_sections(lambda folder: run(folder, options), f"the least of {options.repeats} processes each", options)


if __name__ == "__main__":
    main()
