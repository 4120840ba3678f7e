"""Knows which figures of README and the documentation come from which results, and writes them into the pages.

    python benchmarks/figures.py            # lists the figures that differ from benchmarks/results
    python benchmarks/figures.py --write    # puts those of benchmarks/results into the pages

A figure is a text of a page with places for numbers, and how the numbers follow from files in benchmarks/results. A
test compares them, and finds numbers that look measured and are neither in FIGURES nor in NOT_MEASURED. The pages that
benchmarks/gpu/report.py and benchmarks/peers/report.py make have tests of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
GPU = "gpu/2026-11-22-h100-b"
Numbers = tuple[float, ...]

# Pages without figures of ours, or made by a generator that has its own test; see the module's docstring.
GENERATED = (
    "docs/benchmarks/gpu.md", "docs/benchmarks/peers.md", "docs/project/coverage.md",
    *(
        f"docs/reference/{name}.md"
        for name in ("index", "loading", "transforms", "conversion", "lab", "training", "cli")
    ),
)  # fmt: skip
# Numbers that look measured and are not: arithmetic, limits, defaults.
NOT_MEASURED: dict[str, tuple[str, ...]] = {
    "docs/concepts/reliability.md": ("32 MB, 5 s",),  # a limit of a test
    "docs/how-to/balance.md": ("this is 16 % with multiples of 64", "8 % with multiples of 32"),  # arithmetic
    "docs/how-to/convert.md": (
        "if that saves 10 %", "saves less than 10 %", "at least 20 dB PSNR",
    ),
    "docs/how-to/feeding.md": ("fewer than 99 % of the batches", "the 95 % interval"),
    "docs/how-to/load.md": ("up to 40 times the bytes", "up to 1.4 times as many"),  # arithmetic
    "docs/how-to/plan.md": ("its 95 % interval", "25, 11 or 6 % of its HR"),  # arithmetic
    "docs/how-to/train-sr.md": ("with 95 % intervals",),
    "docs/project/coverage.md": (
        "50,000 requests a second", "at 2,500 images a second", "128 ranks: twice; 512: 8 times",  # arithmetic
        "| 0.1 s |", "| 1 s |", "1.05 x |", "0.85 x, steady", "at 50 MB/s and 20 ms", "| 0.97 x |",  # targets
    ),
    "docs/reference/format.md": ("16 x (n + 1)", "8 x u16", "256 times the upper one", "1.02 to 1.1 times the bytes"),
}  # fmt: skip

# A number with a unit or a word of a measurement.
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
LOOKS_MEASURED = re.compile(
    rf"(?<![\w.,]){_NUMBER}(?:\s(?:to|and|or)\s{_NUMBER})?\s?"
    r"(?:x\b(?!\s\d)|times\b|/s\b|(?:(?:images|pairs|samples|crops|photographs)\s)?(?:per|a)\ssecond\b"
    r"|ms\b|µs\b|us\b|ns\b|dB\b|%|s\b|seconds?\b)"
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Numbers of a page that follow from results.

    Attributes:
        page: Below the repository.
        text: As it stands on the page, where lines may break elsewhere, with a format for each number: "{:,.0f} pairs".
        numbers: Returns the numbers, in the order of the text.
    """

    page: str
    text: str
    numbers: Callable[[], Numbers]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the text with any numbers, over the ends of lines; a group for each number."""
        parts = re.split(r"\{[^}]*\}", self.text)
        spaced = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in parts]
        return re.compile(rf"({_NUMBER})".join(spaced) + r"(?!\d)")

    def shown(self) -> list[str]:
        """Return the numbers as the page has to show them."""
        formats = re.findall(r"\{[^}]*\}", self.text)
        return [how.format(value) for how, value in zip(formats, self.numbers(), strict=True)]


# --- Results ---


@cache
def read(name: str) -> Any:
    """Return the results in a file."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def crops(way: str) -> float:
    """Return the pairs a second of a way of crops.py, which begins with these words, with its best setting."""
    rows = [row for row in read("crops")["Random crops"] if row["way"].startswith(way)]
    return max(float(row["pairs_per_s"]) for row in rows)


def space(what: str, photographs: str = "photographs") -> float:
    """Return MiB for a photograph of crops.py."""
    found = read("crops")["Disk space for a photograph"]
    return float(found[what] / found[photographs] / 2**20)


def cores(figure: str, what: str, dataset: str) -> float:
    """Return samples a second of a loader on the cores of the GPU machine, in float32 batches of 128, at its best."""
    wanted = (what, dataset, "float32", 128)
    return max(
        float(row["samples_per_s"])
        for row in read(f"{GPU}/cores")["figures"][figure]
        if tuple(map(row.get, ("what", "dataset", "dtype", "batch_size"))) == wanted
    )


def accuracy(feed: str, value: str) -> float:
    """Return a mean of the classifier's training on the GPU machine."""
    (row,) = (row for row in read(f"{GPU}/accuracy")["figures"]["classifier"] if row["feed"] == feed)
    return float(row[value])


def fed_by_loader(model: str) -> Numbers:
    """Return the least and the most that training is as fast with Loader as from the folder."""
    rows = [row for row in read(f"{GPU}/fed")["figures"]["training"] if row["model"] == model]
    folder = {(r["pixels"], r["batch_size"]): r["samples_per_s"] for r in rows if r["feed"] == "folder"}
    times = [
        row["samples_per_s"] / folder[row["pixels"], row["batch_size"]]
        for row in rows
        if row["kind"] == "loader" and (row["pixels"], row["batch_size"]) in folder
    ]
    return min(times), max(times)


def peer(job: str, name: str, size: int = 64) -> float:
    """Return the median of samples a second of a loader of benchmarks/peers, with its best number of workers."""
    turns: dict[int, list[float]] = {}
    for row in read("peers")["jobs"][job][name]["speed"]:
        if row["batch_size"] == size:
            turns.setdefault(row["workers"], []).append(row["images_per_s"])
    # Only the best number was measured in all turns.
    return float(statistics.median(max(turns.values(), key=lambda found: (len(found), statistics.median(found)))))


def images(what: str) -> float:
    """Return images a second of images.py, crops to 224 in batches of 64, at its best."""
    rows = read("images")["speed"]
    return max(float(row[-1]) for row in rows if row[:3] == [what, 224, 64])


def pairs(what: str) -> float:
    """Return pairs a second of loader.py at their best, with checksums."""
    rows = read("loader")["pairs"]
    return max(float(row[-1]) for row in rows if row[0] == what and row[3] != "not verified")


def small_batches(source: str) -> float:
    """Return how many times as long an epoch of crops of 64 takes in batches of 8 as in batches of 128."""
    speeds = {
        row["batch_size"]: statistics.median(row["turns"])
        for row in read("bench")["rows"]
        if (row["source"], row["crop"]) == (source, 64)
    }
    return speeds[128] / speeds[8]


def converting(job: str) -> float:
    """Return images a second of convert.py."""
    (row,) = (row for row in read("convert")["figures"] if row["job"] == job)
    return float(row["images_per_s"])


def overheads() -> Numbers:
    """Return the least and the most bytes that a sample takes beyond its payload, in datasets of 1,000 or more."""
    kinds = (found for name, found in read("overhead").items() if name != "environment")
    values = [row["overhead"] for found in kinds for count, row in found.items() if int(count) >= 1000]
    return min(values), max(values)


def views(part: str, name: str) -> Any:
    """Return a figure of views.py, of the section that begins with a word."""
    (found,) = (found for title, found in read("views").items() if title.startswith(part))
    return found[name]


def growth() -> float:
    """Return the MiB that reading ten times as many samples takes more."""
    small, large = read("memory")["growth"]["read, 0 workers"]
    return float(large["own"] - small["own"]) / 2**20


def waste() -> float:
    """Return the most bytes of a data file as a share of its payloads."""
    return max(float(row["data_nbytes"] / row["payload_nbytes"]) for row in read("memory")["waste"])


def recording() -> float:
    """Return by how many per cent recording makes a step longer."""
    found = read("profiling")["training"]
    bare, recorded = (statistics.median(found[name]) for name in ("bare", "recorded"))
    return 100 * (recorded / bare - 1)


def scores(model: str, trained: str) -> Numbers:
    """Return PSNR on both kinds of pairs, each with half of its 95 % interval over the seeds; bicubic has none."""
    runs = [run for run in read("super-resolution")["runs"] if (run["model"], run["pairs"]) == (model, trained)]
    found: list[float] = []
    for kind in ("bicubic", "real_esrgan"):
        values = [run["scores"][kind][0] for run in runs]
        found.append(statistics.mean(values))
        if len(values) == 3:
            found.append(4.303 * statistics.stdev(values) / math.sqrt(3))  # Student's t for two degrees of freedom
    return tuple(found)


def codecs(kinds: Sequence[str], by: str = "lz4") -> Numbers:
    """Return the least and the most pairs a second of delta as a share of another codec's."""
    found = read("storage")
    if kinds == ("memory",):
        speeds = {(codec, how): speed for codec, how, speed in found["Pairs of patches"]}
        shares = [speeds["delta", how] / speeds[by, how] for codec, how in speeds if codec == by]
    else:
        rows = found["Little memory, slow disks"]
        shares = [rows[kind]["delta"] / rows[kind][by] for kind in kinds]
    return min(shares), max(shares)


def delta_bytes() -> Numbers:
    """Return the least and the most bytes of delta as a share of those of pixels."""
    shares = [row["delta"] for row in read("storage")["Bytes, of those of the pixels"].values()]
    return min(shares), max(shares)


def recoded() -> Numbers:
    """Return the least and the most crops a second of recoded JPEG files as a share of those of unchanged ones."""
    shares = [row[2] for name, row in read("storage")["JPEG files"].items() if name.startswith("crops")]
    return min(shares), max(shares)


def on_device() -> Numbers:
    """Return how many times as fast the Loader degrades images as torch does, at least and at most."""
    found = read("degradations")["Degradations of 256 x 256 pixels, scale 4"]
    times = [speed / found[f"{name}, on_device"] for name, speed in found.items() if f"{name}, on_device" in found]
    return min(times), max(times)


def beyond(way: str) -> float:
    """Return the µs that a way of own_functions.py takes for an image of 96 pixels, beyond reading it."""
    found = read("own-functions")["Processor time of one transform"]["96"]
    return float(found[way] - found["none"])


def parts(order: str) -> float:
    """Return the CPU time of a sample of a set of parts, by that of one file."""
    found: dict[str, Any] = dict(read("parts")["CPU time a sample"])
    return float(found[order]["ratio"])


def many(section: str, value: str, unit: float = 1.0) -> Callable[[], Numbers]:
    """Return a function of a value of many_samples.py for each order."""

    def numbers() -> Numbers:
        (found,) = (found for name, found in read("many-samples").items() if name.startswith(section))
        return tuple(unit * found[order][value] for order in ("random", "quasi_random", "sequential"))

    return numbers


def on_ray(value: str) -> list[float]:
    """Return images a second of Ray by those of the local engine, in each turn."""
    found = read("engines")["images a second"]
    return [ray[value] / local[value] for ray, local in zip(found["ray"], found["local"], strict=True)]


def steady_on_ray() -> float:
    """Return the median of Ray's steady images a second by that of the local engine."""
    found = read("engines")["images a second"]
    steady = {name: statistics.median(turn["steady_images_per_s"] for turn in found[name]) for name in ("ray", "local")}
    return float(steady["ray"] / steady["local"])


def writing() -> float:
    """Return the speed of `write` as a share of that of a loop over LMDB's put."""
    found = {row["name"]: row["seconds"] for row in read("write")["figures"]}
    turns = zip(found["LMDB put, by hand"], found["arrays, 1 worker"], strict=True)
    return statistics.median(theirs / ours for theirs, ours in turns)


def worst_in_workers() -> float:
    """Return the least speed of torch's DataLoader with workers over a dataset, as a share of that of LMDB by hand."""
    best: dict[tuple[str, int, int], float] = {}
    for row in read("read")["figures"]:
        key = tuple(row["setting"][name] for name in ("store", "batch_size", "workers"))
        best[key] = max(best.get(key, 0.0), row["pairs_per_s"])
    return min(
        speed / best["LMDB by hand", batch_size, workers]
        for (store, batch_size, workers), speed in best.items()
        if store.startswith("LMDBDataset") and workers
    )


def crops_of_patches() -> float:
    """Return the speed of crops of 2K photographs as a share of that of stored patches."""
    found = {tuple(key): float(speed) for *key, speed in read("loader")["crops"]}
    return found["crops", "float32", 2] / found["patches", "float32", 2]


# --- Figures ---


def one(function: Callable[..., float], *arguments: Any) -> Callable[[], Numbers]:
    """Return a function of one number."""
    return lambda: (float(function(*arguments)),)


def several(*calls: tuple[Callable[..., float], Any]) -> Callable[[], Numbers]:
    """Return a function of a number for each function with its arguments."""
    return lambda: tuple(float(function(*arguments)) for function, *arguments in calls)


README, TWO_CORES = "README.md", "docs/benchmarks/index.md"
TRAIN_SR, SCALE = "docs/how-to/train-sr.md", "docs/project/coverage.md"
_DATALOADER = ("dataloaders", "DataLoader, folder, Pillow", "photos")
# In the order of README's table.
_PEERS = ("lmdbloader", "ffcv_fused", "litdata", "webdataset", "datasets", "dali")
FIGURES: tuple[Figure, ...] = (
    Figure(README, "whole 2K photographs: {:,.0f} pairs per second,", one(crops, "whole images")),
    Figure(README, "over the PNG files: {:.1f};", one(crops, "whole PNG")),
    Figure(README, "that were cut before: {:,.0f}.", one(crops, "PNG sub-images")),
    Figure(
        README,
        "to 224 x 224: {:,.0f} images per second. FFCV with its own operations: {:,.0f}. torch's `DataLoader`: "
        "{:,.0f}.",
        several((cores, "images", "Loader", "original"), (cores, "images", "FFCV", "original"), (cores, *_DATALOADER)),
    ),
    Figure(README, "on an H100: {:.2f} s.", one(accuracy, "Loader, original files", "seconds")),
    Figure(README, "Through torch's `DataLoader`: {:.2f} s.", one(accuracy, "folder, DataLoader", "seconds")),
    Figure(
        README, "the same within its noise: {:.3f} and {:.3f}.",
        several((accuracy, "Loader, original files", "top1"), (accuracy, "folder, DataLoader", "top1")),
    ),
    *(
        Figure(README, f"| {what} per second, 2 cores |" + 6 * " {:,.0f} |", several(*((peer, job, n) for n in _PEERS)))
        for what, job in (("JPEG crops", "crops-jpeg"), ("Pairs of patches", "pairs"))
    ),
    Figure(
        README, "{:,.0f} pairs of 96 and 48 pixels per second on sixteen cores, lmdbloader {:,.0f}.",
        several((cores, "pairs", "FFCV", "pairs"), (cores, "pairs", "Loader", "pairs_raw")),
    ),
    Figure(README, "training was {:.1f} to {:.1f} times as fast as from PNG files", lambda: fed_by_loader("edsr")),
    # Two cores
    Figure(TWO_CORES, "the Loader reads {:,.0f} pairs per second", one(crops, "whole images")),
    Figure(TWO_CORES, "with Pillow {:.1f} from the PNG files", one(crops, "whole PNG")),
    Figure(TWO_CORES, "and {:.0f} from PNG sub-images", one(crops, "PNG sub")),
    Figure(TWO_CORES, "the Loader reads {:,.0f} images per second", one(images, "original")),
    Figure(TWO_CORES, "torch's `DataLoader` with Pillow {:,.0f}.", one(images, "folder, Pillow")),
    Figure(
        TWO_CORES, "| whole PNG files, `DataLoader` with Pillow | {:.1f} | {:.1f} MiB |",
        several((crops, "whole PNG"), (space, "HR and LR PNG files")),
    ),
    Figure(
        TWO_CORES, "overlapping by half, `DataLoader` with Pillow | {:.0f} | {:.1f} MiB |",
        several((crops, "PNG sub"), (space, "PNG sub-images", "photographs cut")),
    ),
    Figure(
        TWO_CORES, "| dataset of `convert --scale 2`, Loader | {:,.0f} | {:.1f} MiB |",
        several((crops, "whole images"), (space, "dataset")),
    ),
    Figure(TWO_CORES, "`DataLoader` over the files, with Pillow | {:,.0f} |", one(images, "folder, Pillow")),
    Figure(TWO_CORES, "Loader, JPEG files stored unchanged | {:,.0f} |", one(images, "original")),
    Figure(TWO_CORES, "Loader, JPEG files recoded without loss | {:,.0f} |", one(images, "recoded")),
    Figure(TWO_CORES, "pixels of at most 256 a side | {:,.0f} |", one(images, "raw256")),
    Figure(TWO_CORES, "`DataLoader` over a hand-written LMDB | {:,.0f} |", one(pairs, "LMDB by hand")),
    Figure(TWO_CORES, "Loader, lz4 | {:,.0f} |", one(pairs, "Loader lz4")),
    Figure(TWO_CORES, "Loader, pixels | {:,.0f} |", one(pairs, "Loader raw")),
    Figure(
        TWO_CORES,
        "takes the Loader {:.1f} times as long, torch's `DataLoader` over the same dataset {:.1f} times as long, and "
        "over PNG files {:.1f} times.",
        several((small_batches, "lmdbloader"), (small_batches, "dataloader"), (small_batches, "folder")),
    ),
    Figure(TWO_CORES, "`write` reaches {:.2f} of the speed", one(writing)),
    Figure(TWO_CORES, "a dataset reads {:.2f} of the pairs per second", one(worst_in_workers)),
    Figure(TWO_CORES, "are read at {:.2f} of the speed of [stored", one(crops_of_patches)),
    Figure(TWO_CORES, "`convert` makes patches of {:.1f} photographs", one(converting, "lmdbloader.convert")),
    Figure(TWO_CORES, "Pillow alone decodes {:.1f}.", one(converting, "decode only: Pillow")),
    Figure(TWO_CORES, "each sample takes {:.0f} to {:.0f} bytes in addition", overheads),
    Figure(
        TWO_CORES, "take {:.1f} ms of processor time in one Loader, and {:.1f} ms with torchvision v2",
        lambda: (
            1000 * views("Views", "one Loader, 10 views")["cpu"],
            1000 * views("Views", "DataLoader, torchvision v2")["cpu"],
        ),
    ),
    Figure(
        TWO_CORES, "`RandAugment` takes {:.0f} µs for an image of 224 x 224 pixels, torchvision's {:,.0f} µs.",
        lambda: (
            views("Transforms", "RandAugment(2, 9)") - views("Transforms", "the crop alone"),
            views("Transforms", "RandAugment(2, 9), torchvision"),
        ),
    ),
    Figure(
        TWO_CORES, "the first batch of patches takes [{:.2f} s]",
        lambda: (read("start")["start"]["from torch to the first batch of patches"]["seconds"],),
    ),
    Figure(TWO_CORES, "as many samples takes [{:.1f} MiB more]", one(growth)),
    Figure(TWO_CORES, "a step of 5 ms [{:.1f} %]", one(recording)),
    # Other pages
    Figure("docs/how-to/train-sr.md", "| bicubic |  | {:.2f} | {:.2f} |", lambda: scores("bicubic", "")),
    *(
        Figure(
            TRAIN_SR, f"| `{model}` | {trained} " + "| {:.2f} ± {:.2f} | {:.2f} ± {:.2f} |",
            lambda model=model, trained=trained: scores(model, trained.strip("`")),
        )
        for model in ("srcnn915", "edsr-baseline")
        for trained in ("bicubic", "`real_esrgan`")
    ),
    Figure(
        "docs/concepts/how-it-works.md", "samples opens in {:.1f} ms", lambda: (read("memory")["opening"]["median"],)
    ),
    Figure("docs/concepts/how-it-works.md", "data files take at most {:.3f} times their payloads", one(waste)),
    Figure("docs/how-to/write.md", "`put`: {:.2f} of its samples per second", one(writing)),
    Figure("docs/how-to/degradations.md", "compiled code is {:.0f} to {:.0f} times as fast as `on_device`", on_device),
    Figure("docs/how-to/convert.md", "`delta` takes {:.2f} to {:.2f} of the bytes of `raw`", delta_bytes),
    Figure(
        "docs/how-to/convert.md", "reads {:.1f} to {:.1f} times as many images per second from a cold disk",
        lambda: codecs(("cold disk, 50 MB/s", "cold disk, 200 MB/s"), "raw"),
    ),
    Figure(
        "docs/how-to/convert.md", "but {:.1f} to {:.1f} times as many from memory", lambda: codecs(("memory",), "raw")
    ),
    Figure("docs/how-to/convert.md", "`fast` reads {:.1f} to {:.1f} times as many images per second", recoded),
    Figure(
        "docs/how-to/custom.md", "a compiled `solarize` took {:.1f} µs of an image", one(beyond, "CompiledFunction")
    ),
    Figure(
        "docs/how-to/custom.md", "the built-in transform {:.1f}, torch on the batch {:.0f}",
        several((beyond, "built in"), (beyond, "torch on the batch")),
    ),
    Figure(SCALE, "| opening | 0.1 s | {:.0f} ms | {:.0f} ms | {:.0f} ms |", many("Opening", "open_seconds", 1000)),
    Figure(SCALE, "| first batch | 1 s | {:.2f} s | {:.1f} s | {:.2f} s |", many("Opening", "first_batch_seconds")),
    Figure(
        SCALE, "| 200 MB | {:.0f} MiB | {:.0f} MiB | {:.0f} MiB |", many("Opening", "private_nbytes", 1 / 2**20)
    ),
    Figure(
        SCALE, "| a step, median | | {:.2f} ms | {:.2f} ms | {:.2f} ms |", many("Between", "step_seconds", 1000)
    ),
    Figure(SCALE, "| no pause | {:.1f} ms | {:.1f} ms | {:.1f} ms |", many("Between", "between_seconds", 1000)),
    Figure(
        SCALE, "takes {:.2f} times the CPU time per sample of a dataset of 10^6 ({:.2f} to {:.2f} in 9 turns)",
        lambda: tuple(read("many-samples")["Random reading"][name] for name in ("ratio", "least", "most")),
    ),
    Figure(
        SCALE, "{:.3f} of the speed of the link; {:.2f} requests per MiB; {:.2f} x the bytes",
        lambda: tuple(read("remote")["everything is fetched"][0][2][name] for name in ("of_best", "requests", "bytes")),
    ),
    Figure(
        SCALE, "by CPU time | {:.2f} x as fast", lambda: (statistics.median(read("remote")["everything is cached"]),)
    ),
    Figure(SCALE, "| {:.2f} of those of the dataset", lambda: (float(read("remote")["a part is kept"][1][2]),)),
    Figure(
        SCALE, "| random {:.2f} x, quasi-random {:.2f} x, sequential {:.2f} x |",
        several((parts, "random"), (parts, "quasi_random"), (parts, "sequential")),
    ),
    Figure(
        SCALE, "steady {:.2f} and {:.2f} x, with the start {:.2f} and {:.2f} x",
        lambda: (*on_ray("steady_images_per_s"), *on_ray("images_per_s")),
    ),
)  # fmt: skip


# --- Pages ---


def prose(text: str) -> str:
    """Return a page with blanks in place of code and comments, at the same length."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"\S", " ", found[0])

    for pattern in (r"^ *(```+|~~~+).*?^ *\1", r"<!--.*?-->", r"`[^`\n]*`"):
        text = re.sub(pattern, blank, text, flags=re.MULTILINE | re.DOTALL)
    return text


def unknown(page: str, text: str) -> Iterator[str]:
    """Yield what looks measured on a page and is in no figure."""
    known = [found.span() for figure in FIGURES if figure.page == page for found in figure.pattern.finditer(text)]
    for words in NOT_MEASURED.get(page, ()):
        pattern = r"\s+".join(map(re.escape, words.split()))
        known += [found.span() for found in re.finditer(pattern, text)]
    for found in LOOKS_MEASURED.finditer(prose(text)):
        if not any(first < found.end() and found.start() < end for first, end in known):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{page}:{line}: {' '.join(text[max(0, found.start() - 40) : found.end() + 20].split())}"


def differing(figure: Figure, text: str) -> str | None:
    """Return what is wrong with a figure of a page, None if nothing is."""
    found = list(figure.pattern.finditer(text))
    if len(found) != 1:
        return f"{figure.page}: {len(found)} times on the page, not once: {figure.text}"
    shown = figure.shown()
    if list(found[0].groups()) != shown:
        return f"{figure.page}: {' '.join(found[0][0].split())} -> {', '.join(shown)}"
    return None


def written(figure: Figure, text: str) -> str:
    """Return a page with the figure's numbers from the results; its lines break where they did.

    A page that does not have the text exactly once stays as it is.
    """
    if len(figure.pattern.findall(text)) != 1:
        return text

    def replace(found: re.Match[str]) -> str:
        parts, end = [], found.start()
        for number, value in enumerate(figure.shown(), 1):
            parts += [text[end : found.start(number)], value]
            end = found.end(number)
        return "".join([*parts, text[end : found.end()]])

    return figure.pattern.sub(replace, text)


def pages() -> dict[str, str]:
    """Return the texts of README and the documentation, by their paths."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or write; return the exit status: 1 if something is left to be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the numbers of the results into the pages")
    options = parser.parse_args(arguments)
    texts = pages()
    if options.write:
        changed = dict(texts)
        for figure in FIGURES:
            changed[figure.page] = written(figure, changed[figure.page])
        for page, text in changed.items():
            if text != texts[page]:
                (ROOT / page).write_text(text, "utf-8")
        texts = changed
    wrong = [found for figure in FIGURES if (found := differing(figure, texts[figure.page]))]
    for page, text in texts.items():
        if page not in GENERATED:
            wrong += [f"{found} (in no figure)" for found in unknown(page, text)]
    print("\n".join(wrong) or f"{len(FIGURES)} texts with figures, all as in benchmarks/results")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
