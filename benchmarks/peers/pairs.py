"""Compares the Loader with FFCV's fastest operation on pairs of patches, mirrored and turned eight ways.

    python benchmarks/peers/environment.py        # once: .venv-peers
    python benchmarks/peers/pairs.py              # about six minutes on two cores

Each arm is a process of its own. The arms take turns, and one rests while another is timed; the figures are the
processor time of the whole process and the pairs per second. Every loader is checked before it is timed. FFCV verifies
no checksum, because it stores none; one arm is the Loader without its checksums. `benchmarks/peers/report.py` puts the
results into the page.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

RESULTS = ROOT / "benchmarks" / "results" / "pairs.json"
OURS, UNVERIFIED, FFCV = "lmdbloader", "lmdbloader, verify=False", "FFCV"
MIRRORED, TURNED = "mirrored", "turned"
DTYPES, BATCH_SIZES, THREADS = ("uint8", "float32"), (8, 32, 128), (1, 2)
# Both loaders get epochs of so many samples: what an epoch's start costs is not what is compared.
_EPOCH = 200_000
_CHECKED = 1200


@dataclass(frozen=True, slots=True)
class Setting:
    """What all arms are timed with.

    Attributes:
        dtype: Of a batch: "uint8", or "float32" in 0..1.
        batch_size: Pairs in a batch.
        threads: That read; the process that receives the batches has one more.
    """

    dtype: str
    batch_size: int
    threads: int


# --- An arm, in a process of its own -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A loader.

    Attributes:
        batches: Without end.
        ahead: How many may be ready.
        period: After how many batches the threads have done the same work again.
        close: Ends its threads.
    """

    batches: Iterator[Any]
    ahead: int
    period: int
    close: Callable[[], None]


def open_ours(folder: Path, setting: Setting, ways: int, *, verify: bool) -> Opened:
    """Open the Loader."""
    import torch

    import lmdbloader
    from lmdbloader.transforms import RandomDihedral, RandomHorizontalFlip, ToDtype

    dataset = lmdbloader.LMDBDataset(folder / "pairs.lmdb")
    transforms: list[Any] = [RandomDihedral() if ways == 8 else RandomHorizontalFlip()]
    if setting.dtype == "float32":
        transforms.append(ToDtype(torch.float32, scale=True))
    loader = lmdbloader.Loader(
        dataset.select(np.resize(np.arange(len(dataset)), _EPOCH)), setting.batch_size, order="random",
        transforms=transforms, num_threads=setting.threads, verify=verify,
    )  # fmt: skip
    period = setting.threads * loader.batches_at_once
    return Opened(_endless(loader), (loader.prefetch + 2) * period, period, loader.close)


def open_ffcv(folder: Path, setting: Setting, ways: Literal[2, 8]) -> Opened:
    """Open FFCV's loader with ReadPatch or TurnPatch."""
    import ffcv_peer
    import torch

    common = ffcv_peer._common()
    loader = common.pair_loader(
        folder / "pairs.beton", batch_size=setting.batch_size, workers=setting.threads, device="cpu",
        dtype=getattr(torch, setting.dtype), ways=ways,
    )  # fmt: skip
    common.lengthen(loader, _EPOCH)
    iterators: list[Any] = []

    def batches() -> Iterator[Any]:
        while True:
            iterators[:] = [iter(loader)]
            yield from iterators[0]

    return Opened(batches(), loader.batches_ahead + 2, 1, lambda: iterators[0].close())


# How each is opened, and the ways in which it turns pairs.
ARMS: dict[str, tuple[Callable[..., Opened], int]] = {
    f"{name}, {how}": (function, ways)
    for name, function in (
        (OURS, functools.partial(open_ours, verify=True)),
        (UNVERIFIED, functools.partial(open_ours, verify=False)),
        (FFCV, open_ffcv),
    )
    for how, ways in ((MIRRORED, 2), (TURNED, 8))
}


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def write(folder: Path) -> None:
    """Write the pairs as a dataset and as FFCV's file."""
    import ffcv_peer

    import lmdbloader

    with np.load(folder / "pairs.npz") as stored:
        pairs = list(zip(stored["lr"], stored["hr"], strict=True))
    rows = ({"lr": lr.transpose(1, 2, 0), "hr": hr.transpose(1, 2, 0)} for lr, hr in pairs)
    lmdbloader.write(rows, folder / "pairs.lmdb", codec="raw")
    ffcv_peer._common().write_pairs(pairs, folder / "pairs.beton", workers=2)


def turned(patch: np.ndarray, way: int) -> np.ndarray:
    """Return a patch (C, H, W) in one of eight ways; 0 and 1 are as it is, and mirrored."""
    patch = patch.swapaxes(1, 2) if way & 4 else patch
    patch = patch[:, ::-1] if way & 2 else patch
    return patch[:, :, ::-1] if way & 1 else patch


def check(batches: Iterator[Any], stored: dict[str, np.ndarray], setting: Setting, ways: int) -> None:
    """Read some batches: pixels of stored pairs, both patches turned the same way, every way, no pair twice.

    Raises:
        ValueError: Something else came.
    """
    sums = stored["hr"].sum((1, 2, 3), dtype=np.int64)
    seen: set[int] = set()
    seen_ways: set[int] = set()
    for _ in range(-(-_CHECKED // setting.batch_size)):
        batch = [half.numpy() for half in next(batches)]
        if any(half.dtype != setting.dtype or len(half) != setting.batch_size for half in batch):
            raise ValueError(f"{batch[0].dtype} in batches of {len(batch[0])}")
        if setting.dtype == "float32":
            floats, batch = batch, [np.rint(half * 255).astype(np.uint8) for half in batch]
            if any(np.abs(a - b / np.float32(255)).max() > 1e-6 for a, b in zip(floats, batch, strict=True)):
                raise ValueError("floats that are not a byte over 255")
        for lr, hr in zip(*batch, strict=True):
            found = {
                (int(number), way)
                for number in np.flatnonzero(sums == hr.sum(dtype=np.int64))
                for way in range(ways)
                if np.array_equal(turned(stored["hr"][number], way), hr)
                and np.array_equal(turned(stored["lr"][number], way), lr)
            }
            if not found:
                raise ValueError("a pair that was not stored, or whose patches are turned differently")
            # A pair may be there twice, and may be its own mirror image.
            if len(found) == 1:
                ((number, way),) = found
                seen_ways.add(way)
                seen.add(number)
    if len(seen_ways) != ways or len(seen) < min(_CHECKED, len(sums)) / 2:
        raise ValueError(f"{len(seen_ways)} ways, {len(seen)} different pairs")


def take_turn(opened: Opened, seconds: float) -> dict[str, float]:
    """Return the processor time of a pair and the pairs per second, and rest until the threads do."""
    for _ in range(opened.ahead):
        next(opened.batches)
    pairs, count = 0, 0
    cpu, began = time.process_time(), time.perf_counter()
    now = began
    while now - began < seconds or count % opened.period:
        pairs += len(next(opened.batches)[0])
        count += 1
        now = time.perf_counter()
    cpu_us = (time.process_time() - cpu) / pairs * 1e6
    found = {"cpu_us": round(cpu_us, 2), "pairs_per_s": round(pairs / (now - began))}
    rest()
    return found


def rest() -> None:
    """Wait until no thread of this process works."""
    busy = True
    while busy:
        before = time.process_time()
        time.sleep(0.02)
        busy = time.process_time() - before > 0.001


def serve(arm: str, folder: Path) -> None:
    """Answer lines of JSON: a setting to open and check, or the seconds of a turn."""
    import torch

    torch.set_num_threads(1)
    stored = dict(np.load(folder / "pairs.npz"))
    open_it, ways = ARMS[arm]
    opened: Opened | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if "dtype" in request:
            if opened is not None:
                opened.close()
                rest()
            setting = Setting(**request)
            opened = open_it(folder, setting, ways)
            check(opened.batches, stored, setting, ways)
            rest()
        else:
            assert opened is not None
            answer = take_turn(opened, request["seconds"])
        print(json.dumps(answer), flush=True)


# --- The run -------------------------------------------------------------------------------------------------------


class Arm:
    """The process of an arm."""

    def __init__(self, name: str, python: Path, folder: Path) -> None:
        self.name = name
        words = [str(python), str(Path(__file__).resolve()), "--serve", name, "--folder", str(folder)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, request: dict[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last request.

        Raises:
            RuntimeError: The process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended with exit status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def measure(arms: Sequence[Arm], setting: Setting, turns: int, seconds: float) -> dict[str, Any]:
    """Return a row: the setting, and the turns of each arm. The order of the arms is reversed after each turn."""
    for arm in arms:
        arm.send(asdict(setting))
    for arm in arms:
        arm.answer()
    found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    for turn in range(turns + 1):
        for arm in arms if turn % 2 else reversed(arms):
            arm.send({"seconds": seconds})
            taken = arm.answer()
            if turn:  # the first one fills caches and memory
                found[arm.name].append(taken)
    return {**asdict(setting), "arms": found}


def ratio_of(row: dict[str, Any], figure: str, ours: str, theirs: str) -> float:
    """Return how many times as good one arm is as another: the median of the turns, each with the one next to it."""
    mine, others = ([turn[figure] for turn in row["arms"][arm]] for arm in (ours, theirs))
    pairs = zip(mine, others, strict=True)
    return statistics.median(b / a if figure == "cpu_us" else a / b for a, b in pairs)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=11, help="of each arm (default 11)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn (default 0.2)")
    parser.add_argument("--pairs", type=int, default=8000, help="how many are stored (default 8,000)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES, metavar="N")
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS, metavar="N")
    parser.add_argument("--env", type=Path, default=ROOT / ".venv-peers", help="made by environment.py")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: results/pairs.json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, folder: Path) -> None:
    """Write the pairs, measure every setting, print, and store the results."""
    from common import cut_pairs, environment

    python = options.env / "bin" / "python"
    pairs = cut_pairs(options.pairs)
    np.savez(folder / "pairs.npz", lr=pairs.lr, hr=pairs.hr)
    subprocess.run([str(python), __file__, "--serve", "write", "--folder", str(folder)], check=True)
    document: dict[str, Any] = {
        "settings": {"turns": options.turns, "seconds": options.seconds, "pairs": options.pairs},
        "environment": environment(folder), "date": time.strftime("%Y-%m-%d", time.gmtime()), "rows": [],
    }  # fmt: skip
    arms: list[Arm] = []
    try:
        arms += [Arm(name, python, folder) for name in ARMS]
        for threads in options.threads:
            for dtype in DTYPES:
                for batch_size in options.batch_sizes:
                    row = measure(arms, Setting(dtype, batch_size, threads), options.turns, options.seconds)
                    document["rows"].append(row)
                    print(_lines(row), flush=True)
    finally:
        for arm in arms:
            arm.end()
    options.results.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _lines(row: dict[str, Any]) -> str:
    lines = [f"{row['dtype']}, batches of {row['batch_size']}, {row['threads']} threads:"]
    for name, turns in row["arms"].items():
        cpu, speed = (statistics.median(turn[figure] for turn in turns) for figure in ("cpu_us", "pairs_per_s"))
        lines.append(f"  {name:35} {cpu:5.1f} us {speed:9,.0f} pairs/s")
    for how, theirs in ((TURNED, TURNED), (MIRRORED, MIRRORED), (TURNED, MIRRORED)):
        times = [ratio_of(row, figure, f"{OURS}, {how}", f"{FFCV}, {theirs}") for figure in ("cpu_us", "pairs_per_s")]
        lines.append(
            f"  {how} by FFCV {theirs}: {times[0]:.2f} x in processor time, {times[1]:.2f} x in pairs per second"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = parse_options(arguments)
    if options.serve == "write":
        write(options.folder)
    elif options.serve:
        serve(options.serve, options.folder)
    elif not (options.env / "bin" / "python").exists():
        print(f"{options.env} has no bin/python: run python benchmarks/peers/environment.py first.", file=sys.stderr)
        return 2
    else:
        with tempfile.TemporaryDirectory(prefix="lmdbloader-pairs-") as temporary:
            run(options, Path(temporary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
