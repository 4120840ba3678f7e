"""Makes docs/benchmarks/peers.md, its charts, and the tables of all results of run.py and pairs.py.

python benchmarks/peers/report.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "benchmarks"), str(ROOT / "scripts"), str(ROOT)]

from common import table  # noqa: E402
from draw_readme import Bar, Chart, Panel, draw_chart  # noqa: E402
from job import JOBS, Job  # noqa: E402
from pairs import FFCV, MIRRORED, TURNED, UNVERIFIED, ratio_of  # noqa: E402
from pairs import RESULTS as PAIRS  # noqa: E402

from lmdbloader.base.text import counted  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "benchmarks" / "peers.md"
TABLES = RESULTS.with_suffix(".md")
_LINK = "../../benchmarks/results/peers.md"  # to the tables, from the page
OURS = "lmdbloader"
FILES = "files"
Peers = dict[str, dict[str, Any]]
# Panels of the two charts: title, job, batch size.
CHARTS = {
    "peers-pairs": (("Batches of 8", "pairs", 8), ("Batches of 64", "pairs", 64)),
    "peers-crops": (("Pixels of 256 x 256", "crops", 64), ("JPEG files of 500 x 375", "crops-jpeg", 64)),
}
TITLES = {
    "peers-pairs": "Pairs of patches per second, as float32 batches",
    "peers-crops": "Crops of 224 x 224 per second, as float32 batches of 64",
}
_MIB = 2**20
# What is compared beyond the speed: name, its value of a peer's results, whether more is better, how it is shown.
Figure = tuple[str, Callable[[dict[str, Any]], float], bool, Callable[[float], str]]
FIGURES: tuple[Figure, ...] = (
    ("cold first batch", lambda found: found["start"]["cold_s"] * 1000, False, lambda v: f"{v:,.0f} ms"),
    ("first batch of a later epoch", lambda found: found["start"]["epoch_s"] * 1000, False, lambda v: f"{v:,.1f} ms"),
    ("written", lambda found: found["write"]["samples"] / found["write"]["seconds"], True, lambda v: f"{v:,.0f} /s"),
    ("on disk", lambda found: found["write"]["nbytes"] / _MIB, False, lambda v: f"{v:,.0f} MiB"),
    ("peak memory", lambda found: found["start"]["peak_pss"] / _MIB, False, lambda v: f"{v:,.0f} MiB"),
)


# Why others are better, by the name of a figure, as the page says it.
REASONS: dict[str, str] = {
    "cold first batch": "A new process first loads lmdbloader's modules and the dataset's index, and a thread reads 64"
    " samples at once.",
    "first batch of a later epoch": "Grain and DALI read on across the end of an epoch. The Loader begins an epoch when"
    " the loop does, because its order may depend on the loop (`set_epoch`, a restored state).",
    "writing": "`write` transposes pixels, computes checksums, makes an index, decodes each JPEG once to find damaged"
    " ones, and waits until the disk has everything.",
    "bytes on disk": "PNG files, lz4 and ArrayRecord compress. Here pixels are stored as they are, to be read without"
    ' decoding. `codec="delta"` takes fewer bytes than all of them: 0.43 to 0.47 of the pixels of photographs, where'
    " PNG takes 0.53 to 0.59 ([measured](../../benchmarks/results/storage.md)).",
    "peak memory": "The pages of a mapped dataset count, though the system can take them back at any time. The Loader"
    " also keeps `num_threads + prefetch` groups of at least 64 samples.",
}


class Document:
    """The results of run.py."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored
        self.peers: Peers = stored["peers"]

    def title(self, peer: str) -> str:
        """Return the name of a peer for readers."""
        return str(self.peers[peer]["title"])

    def done(self, job: Job) -> Peers:
        """Return the results of the peers that did a job, the fastest first."""
        found = {
            peer: results
            for peer, results in self.stored["jobs"].get(job.name, {}).items()
            if "failed" not in results and "speed" in results and "start" in results
        }
        sizes = _sizes(job)
        order = sorted(found, key=lambda peer: -sum(rate(found[peer], size) for size in sizes))
        return {peer: found[peer] for peer in order}


def _sizes(job: Job) -> tuple[int, ...]:
    return job.batch_sizes


def rows_of(results: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the turns at a batch size with the number of workers that has most of them, which was the fastest."""
    by_workers: dict[int, list[dict[str, Any]]] = {}
    for row in results["speed"]:
        if row["batch_size"] == size:
            by_workers.setdefault(row["workers"], []).append(row)
    if not by_workers:
        return []
    return max(by_workers.values(), key=lambda rows: (len(rows), _median(rows, "images_per_s")))


def rate(results: dict[str, Any], size: int) -> float:
    """Return the median of images a second at a batch size; 0 where it was not measured."""
    rows = rows_of(results, size)
    return _median(rows, "images_per_s") if rows else 0.0


def _median(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(statistics.median(row[name] for row in rows))


def times(ratio: float) -> str:
    """Return a ratio as text.

    >>> times(12.34), times(1.234), times(0.5)
    ('12 x', '1.2 x', '0.50 x')
    """
    return f"{ratio:.0f} x" if ratio >= 9.95 else f"{ratio:.1f} x" if ratio >= 1 else f"{ratio:.2f} x"


def span(ratios: Sequence[float]) -> str:
    """Return the least and the greatest of some ratios as text.

    >>> span([2.0, 3.0]), span([2.0, 2.01])
    ('2.0 to 3.0 x', '2.0 x')
    """
    least, most = times(min(ratios)), times(max(ratios))
    return least if least == most else f"{least.removesuffix(' x')} to {most}"


# --- The first sentences ------------------------------------------------------------------------------------------


def ratios_to(document: Document, job: Job, chosen: Callable[[str], bool]) -> list[tuple[float, int, str]]:
    """Return for each batch size: our speed of that of the fastest other peer that is chosen, the size, that peer."""
    done = document.done(job)
    found = []
    for size in _sizes(job):
        others = {peer: rate(results, size) for peer, results in done.items() if peer != OURS and chosen(peer)}
        others = {peer: speed for peer, speed in others.items() if speed}
        if OURS in done and others and rate(done[OURS], size):
            best = max(others, key=lambda peer: others[peer])
            found.append((rate(done[OURS], size) / others[best], size, best))
    return found


def sentences(document: Document) -> list[str]:
    """Return three sentences: our speed of that of the fastest other, of image files', and where a peer is better."""
    nearest, files = [], []
    for job in JOBS.values():
        found = ratios_to(document, job, lambda peer: True)
        if found:
            names = "; ".join(dict.fromkeys(document.title(peer) for _, _, peer in found))
            nearest.append(f"{_short(job)} {span([ratio for ratio, _, _ in found])} ({names})")
        found = ratios_to(document, job, lambda peer: peer == FILES)
        if found:
            files.append(f"{_short(job)} {span([ratio for ratio, _, _ in found])}")
    if not nearest:
        return ["Nothing was compared."]
    return [
        "Compared with the fastest other loader at each batch size, lmdbloader reads this many times as many samples "
        f"per second: {', '.join(nearest)}. FFCV verifies no checksum; lmdbloader verifies that of each sample.",
        f"Compared with torch's DataLoader over image files, with Pillow: {', '.join(files) or 'not measured'}.",
        _summary(document),
    ]


def _short(job: Job) -> str:
    return {"pairs": "pairs", "crops": "crops of pixels", "crops-jpeg": "crops of JPEGs"}[job.name]


def better(document: Document) -> dict[str, list[str]]:
    """Return what other peers do better, by the figure: who, in which job, and how many times as well."""
    found: dict[str, list[str]] = {}
    for job in JOBS.values():
        done = document.done(job)
        if OURS not in done:
            continue
        for ratio, size, peer in ratios_to(document, job, lambda peer: True):
            if ratio < 1:
                line = f"{document.title(peer)} in batches of {size}, {times(1 / ratio)} ({_short(job)})"
                found.setdefault("images per second", []).append(line)
        for name, value, more, _ in FIGURES:
            values = {peer: value(results) for peer, results in done.items()}
            best = (max if more else min)(values, key=lambda peer: values[peer])
            ratio = values[best] / values[OURS] if more else values[OURS] / values[best]
            # A ratio that is shown as 1.0 counts as equal.
            if best != OURS and ratio >= 1.05:
                others = sum((v > values[OURS]) == more and v != values[OURS] for v in values.values()) - 1
                also = f" and {counted(others, 'other')}" if others else ""
                what = {"written": "writing", "on disk": "bytes on disk"}.get(name, name)
                line = f"{document.title(best)}{also}, up to {times(ratio)} ({_short(job)})"
                found.setdefault(what, []).append(line)
    return found


def behind_ffcv(stored: dict[str, Any]) -> str:
    """Return where FFCV's operation for pairs takes less processor time; empty where it does so nowhere."""
    found = []
    for title, ours, theirs in _COMPARED:
        ratios = [1 / ratio_of(row, "cpu_us", ours, theirs) for row in stored["rows"]]
        if worse := [slower for slower in ratios if slower >= 1.05]:
            found.append(f"{title}, up to {times(max(worse))} in {len(worse)} of {len(ratios)} cases")
    return "; ".join(found)


def _summary(document: Document) -> str:
    found = list(better(document))
    if not found:
        return "No other loader was better in any figure of this page."
    named = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
    return f"Others are better in {named}. [Which ones, and by how much](#where-others-are-better)."


# --- Tables and charts ----------------------------------------------------------------------------------------------


def speed_table(document: Document, job: Job) -> str:
    """Return images a second by batch size, each with the best number of workers and the range of the turns."""
    rows = []
    for peer, results in document.done(job).items():
        row = [document.title(peer)]
        for size in _sizes(job):
            turns = rows_of(results, size)
            if not turns:
                row.append("-")
                continue
            speeds = [turn["images_per_s"] for turn in turns]
            median, least, most = statistics.median(speeds), min(speeds), max(speeds)
            row.append(f"{median:,.0f} ({least:,.0f}-{most:,.0f}) w{turns[0]['workers']}")
        rows.append(row)
    return table(["", *(f"batches of {size}" for size in _sizes(job))], rows, markdown=True)


def short_table(document: Document) -> str:
    """Return the images a second of each peer by job and batch size, lmdbloader first."""
    columns = [(job, size) for job in JOBS.values() for size in (8, 64, 256) if size in _sizes(job)]
    jobs = {job.name: document.done(job) for job, _ in columns}
    columns = [(job, size) for job, size in columns if OURS in jobs[job.name]]
    rows = []
    for peer in sorted(document.peers, key=lambda peer: peer != OURS):
        speeds = [rate(jobs[job.name][peer], size) if peer in jobs[job.name] else 0.0 for job, size in columns]
        if any(speeds):
            rows.append([document.title(peer), *(f"{speed:,.0f}" if speed else "-" for speed in speeds)])
    return table(["", *(f"{_short(job)}, {size}" for job, size in columns)], rows, markdown=True)


def cost_table(document: Document, job: Job) -> str:
    """Return CPU time, waits, starts, writing, disk and memory."""
    size = 32 if job.is_pairs else 64
    rows = []
    for peer, results in document.done(job).items():
        turns = rows_of(results, size)
        shown = [show(value(results)) for _, value, _, show in FIGURES]
        waits = f"{_median(turns, 'p50_ms'):,.2f}, {_median(turns, 'p99_ms'):,.2f} ms" if turns else "-"
        cpu = f"{_median(turns, 'cpu_us'):,.0f} us" if turns else "-"
        rows.append([document.title(peer), cpu, waits, *shown])
    header = ["", "CPU time per image", "p50, p99 of a batch", *(name for name, _, _, _ in FIGURES)]
    return table(header, rows, markdown=True)


def charts(document: Document) -> dict[str, str]:
    """Return the charts as SVG, by their names."""
    drawn = {}
    settings = document.stored["settings"]
    for key, wanted in CHARTS.items():
        panels = []
        for title, name, size in wanted:
            bars = [
                Bar(
                    document.title(peer),
                    tuple(turn["images_per_s"] for turn in turns),
                    rate(results, size),
                    peer == OURS,
                )
                for peer, results in document.done(JOBS[name]).items()
                if (turns := rows_of(results, size))
            ]
            if bars:
                panels.append(Panel(title, tuple(bars)))
        if panels:
            lines = (
                f"{document.stored['date']}, {_machine(document.stored)}. Median of {settings['turns']} turns; lines "
                "on the bars: slowest to fastest turn.",
                "Each with its best number of threads or workers (0, 1 or 2). python benchmarks/peers/run.py",
            )
            drawn[key] = draw_chart(Chart(TITLES[key], tuple(panels), lines, key, 158))
    return drawn


def _machine(stored: dict[str, Any]) -> str:
    environment = stored["environment"]
    cores = str(environment.get("cores", "2 usable")).split()[0]
    return f"{cores} cores of an {environment.get('processor', 'unknown processor')}"


# --- Pairs, compared with FFCV's fastest operation ----------------------------------------------------------------

# What is compared: title, our arm, FFCV's.
_COMPARED = (
    ("both turned", f"{OURS}, {TURNED}", f"{FFCV}, {TURNED}"),
    ("both mirrored", f"{OURS}, {MIRRORED}", f"{FFCV}, {MIRRORED}"),
    ("turned, FFCV's only mirrored", f"{OURS}, {TURNED}", f"{FFCV}, {MIRRORED}"),
)


def pairs_section(stored: dict[str, Any]) -> str:
    """Return the section of pairs.py's ratios, for the page: their ranges."""
    rows = []
    for title, ours, theirs in _COMPARED:
        ranges = [
            span([ratio_of(row, figure, ours, theirs) for row in stored["rows"]])
            for figure in ("cpu_us", "pairs_per_s")
        ]
        rows.append([title, *(found.removesuffix(" x") for found in ranges)])
    shown = table(["", "by processor time", "by pairs per second"], rows, markdown=True)
    facts = {"date": stored["date"], "machine": _machine(stored), "load": stored["environment"]["load"].split()[0]}
    return _PAIRS.format(table=shown, tables=_LINK, **facts, **stored["settings"]).rstrip()


def pairs_ratios(stored: dict[str, Any]) -> str:
    """Return each of pairs.py's ratios."""
    rows = []
    sizes = sorted({row["batch_size"] for row in stored["rows"]})
    kinds = list(dict.fromkeys((row["dtype"], row["threads"]) for row in stored["rows"]))
    for title, ours, theirs in _COMPARED:
        for dtype, threads in kinds:
            found = {
                row["batch_size"]: row for row in stored["rows"] if (row["dtype"], row["threads"]) == (dtype, threads)
            }
            cells = [
                ", ".join(f"{ratio_of(found[size], figure, ours, theirs):.2f}" for figure in ("cpu_us", "pairs_per_s"))
                for size in sizes
            ]
            rows.append([title, dtype, str(threads), *cells])
    return table(["", "type", "threads", *(f"batches of {size}" for size in sizes)], rows, markdown=True)


def pairs_table(stored: dict[str, Any]) -> str:
    """Return the medians of pairs.py's arms, for the page of tables."""
    rows = []
    for row in stored["rows"]:
        for arm, turns in row["arms"].items():
            cpu, speed = _median(turns, "cpu_us"), _median(turns, "pairs_per_s")
            least, most = (choose(turn["cpu_us"] for turn in turns) for choose in (min, max))
            facts = [row["dtype"], str(row["batch_size"]), str(row["threads"]), arm]
            rows.append([*facts, f"{cpu:.1f} us ({least:.1f}-{most:.1f})", f"{speed:,.0f}"])
    return table(["type", "batch", "threads", "", "CPU time of a pair", "pairs per second"], rows, markdown=True)


_PAIRS = f"""\
## Pairs, compared with FFCV's fastest operation

FFCV's own operations draw the flips of each field alone. Its arm for pairs is one compiled operation, written for this
comparison. It reads a patch from the map, mirrors it or turns it one of eight ways, and converts it, in one pass. **It
verifies no checksum**, because FFCV stores none. lmdbloader verifies the checksum of each sample.

How many times as fast lmdbloader is, in batches of 8, 32 and 128, with 1 and 2 threads, as uint8 and float32:

{{table}}

{{date}}, {{machine}}, while other programs ran (load {{load}}). {{pairs:,}} pairs, medians of {{turns}} paired turns of
{{seconds}} s. Both loaders get long epochs: what the start of an epoch costs is not part of these figures. [The
tables]({{tables}}#pairs-compared-with-ffcvs-fastest-operation) have each setting, and those of
`{UNVERIFIED.partition(", ")[2]}`.
"""
_BEHIND_FFCV = (
    "It reads each byte once and verifies nothing. lmdbloader hashes each byte as well, and where FFCV's operation only"
    " mirrors, it turns half of the pairs by 90 degrees."
)
_RATIOS = "Pairs per second of processor time, then pairs per second, each divided by FFCV's:"
_PAIRS_TABLE = """\
Medians; in brackets the fastest and the slowest turn. FFCV verifies no checksum. `mirrored` is left and right at
random; `turned` is one of eight flips and rotations. The processor time is that of the whole process."""


# --- The page -------------------------------------------------------------------------------------------------------

_MADE = "<!-- Made by benchmarks/peers/report.py from benchmarks/results/peers.json. Change those, not this. -->\n\n"
_WORDS = "comparison, faster than, FFCV, WebDataset, LitData, MosaicML Streaming, DALI, Grain, SPDL, HDF5"
_HEAD = f"""<!-- search: {_WORDS} -->

# Compared with other loaders

How many images per second lmdbloader and other data loaders read from the same samples, on a machine without a GPU, and
how they compare in start-up time, size on disk and memory. [Benchmarks on a GPU](gpu.md) compare with FFCV on 16 cores.

{_MADE}"""
_METHOD = """\
## How it was measured

- **The same samples.** {samples}, cut from the photographs of scikit-image. Pairs are patches of 48 x 48 and
  96 x 96 pixels with a random horizontal flip, the same for both. Crops are torchvision's RandomResizedCrop(224) with
  a random horizontal flip, normalized. A batch has float32 tensors (N, C, H, W), the labels and the sample numbers.
- **The best settings.** Each dataset is written and read as the loader's documentation advises for speed, with [these
  settings](../../benchmarks/results/peers.md#versions-and-settings).
  If the user has to collate the batch, one function does it for all such loaders: it flips and converts pairs in one
  pass, and crops bytes with torchvision's transforms. In the process that receives the batches, torch has one thread.
- **Checked first.** A loader is timed only if it passes these checks with each number of workers: two epochs have each
  sample once, in different orders, with its own label and pixels; both images of a pair match and get the same flip;
  the second epoch has new flips and crops.
- **In turns.** All loaders are timed once, then all again: {turns} turns of {seconds} s for pairs, twice that for
  crops. Each turn is a new process, timed after its first batches. Figures are medians, with the slowest and the
  fastest turn. The first turn tries 0, 1 and 2 workers, or threads if the loader has threads (crops: in batches of 64
  only). The other turns use the best number; w1 is one worker. Data is in the page cache.
- **CPU time per image** includes the workers. **Cold first batch**: a new process opens a dataset that was dropped from
  the page cache; importing the loader and compiling count. **Peak memory** is the sum over all processes during an
  epoch, with shared pages counted once and mapped files included (PSS). **Written** counts only the time to write
  arrays from memory.

## Run it

```bash
python benchmarks/peers/environment.py  # once: .venv-peers, with each loader that can be installed
python benchmarks/peers/run.py          # about 40 minutes on two cores
python benchmarks/peers/pairs.py        # about 6 minutes: pairs, compared with FFCV's fastest operation
python benchmarks/peers/report.py       # this page and its tables
```

`make bench-peers` does all four. `--peers` and `--jobs` select loaders and jobs; `--quick` only checks that each
loader runs. The same command continues an interrupted run. To add a loader, add a file `NAME_peer.py` to
`benchmarks/peers/`; `job.py` there describes what it has to do.
"""


def page(document: Document, pictures: Sequence[str], pairs: dict[str, Any] | None) -> str:
    """Return the page; `pictures` are the names of the charts that there are, `pairs` what pairs.py has stored."""
    settings = document.stored["settings"]
    parts = ["\n\n".join(sentences(document))]
    parts.append(f"{document.stored['date']}, {_machine(document.stored)}.")
    if settings["quick"]:
        parts.insert(0, "A `--quick` run made these figures: they only show that each loader runs.")
    alternatives = {
        "peers-pairs": "Pairs per second of each loader, by batch size",
        "peers-crops": "Crops per second of each loader, from pixels and from JPEG files",
    }
    parts += [f"![{alternatives[name]}](pictures/{name}.svg)" for name in pictures]
    parts.append(
        "## Samples per second\n\nPairs of patches, crops of images stored as pixels and crops of JPEG files, in "
        f'batches of 8, 64 or 256. "-" was not measured.\n\n{short_table(document)}\n\n'
        f"[The tables]({_LINK}) have every figure: all batch sizes, ranges, CPU time, first batch, writing, disk and "
        "memory."
    )
    if pairs:
        parts.append(pairs_section(pairs))
    found = better(document)
    if found or pairs:
        lines = [
            f"- **{what[0].upper() + what[1:]}**: {'; '.join(who)}. {REASONS.get(what, '')}".rstrip()
            for what, who in found.items()
        ]
        if pairs and (listed := behind_ffcv(pairs)):
            lines.insert(0, f"- **Processor time of pairs** (FFCV's fastest operation): {listed}. {_BEHIND_FFCV}")
        parts.append("\n".join(["## Where others are better", "", "By 5 % or more, and why:", "", *lines]))
    counts = [
        f"{settings['samples'][job.name]:,} {_short(job)}" for job in JOBS.values() if job.name in settings["samples"]
    ]
    parts.append(
        _METHOD.format(samples=", ".join(counts), turns=settings["turns"], seconds=settings["seconds"]).rstrip()
    )
    return _HEAD + "\n\n".join(parts) + "\n"


def tables(document: Document, pairs: dict[str, Any] | None) -> str:
    """Return the page of every figure."""
    parts = [
        "Every figure behind [Compared with other loaders](../../docs/benchmarks/peers.md), which explains how it was "
        "measured. Speeds are medians, with the slowest and the fastest turn; w1 is one "
        "worker or thread."
    ]
    for job in JOBS.values():
        if document.done(job):
            random = job.random[0].upper() + job.random[1:]
            costs = f"In batches of {32 if job.is_pairs else 64}:"
            noun = "Pairs" if job.is_pairs else "Images"
            parts.append(f"## {job.title}\n\n{random}. {noun} per second:\n\n{speed_table(document, job)}")
            parts += [costs, cost_table(document, job)]
    if pairs:
        parts.append(f"## Pairs, compared with FFCV's fastest operation\n\n{_PAIRS_TABLE}\n\n{pairs_table(pairs)}")
        parts.append(f"{_RATIOS}\n\n{pairs_ratios(pairs)}")
    parts.append(_settings_section(document))
    if absent := _absent(document):
        parts.append("## Not measured\n\n" + "\n".join(f"- {line}" for line in absent))
    return f"# Tables of other loaders\n\n{_MADE}" + "\n\n".join(parts) + "\n"


def _settings_section(document: Document) -> str:
    lines = []
    for peer, described in document.peers.items():
        if not described["missing"]:
            versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items())
            lines.append(
                f"- **{document.title(peer)}**{f' ({versions})' if versions else ''}: {described['settings']}."
            )
    machine = [f"- {key}: {value}" for key, value in document.stored["environment"].items() if key != "record"]
    return "\n".join(["## Versions and settings", "", *lines, "", "The machine:", "", *machine])


def _absent(document: Document) -> list[str]:
    lines = []
    for peer, described in document.peers.items():
        if described["missing"]:
            lines.append(f"{document.title(peer)}: not installed. {described['reason']}")
            continue
        for job in JOBS.values():
            failed = document.stored["jobs"].get(job.name, {}).get(peer, {}).get("failed")
            if failed:
                lines.append(f"{document.title(peer)}, {_short(job)}: failed. `{failed.replace('`', chr(39))}`")
            elif job.name in described["not"]:
                lines.append(f"{document.title(peer)}, {_short(job)}: {described['not'][job.name]}.")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its charts; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: results/peers.json")
    parser.add_argument("--pairs", type=Path, default=PAIRS, metavar="FILE", help="default: results/pairs.json")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="default: docs/benchmarks/peers.md")
    parser.add_argument("--tables", type=Path, default=TABLES, metavar="FILE", help="default: results/peers.md")
    options = parser.parse_args(arguments)
    if not options.results.exists():
        print(f"{options.results}: no such file. benchmarks/peers/run.py makes it.", file=sys.stderr)
        return 2
    document = Document(json.loads(options.results.read_text("utf-8")))
    pairs = json.loads(options.pairs.read_text("utf-8")) if options.pairs.exists() else None
    pictures = options.out.parent / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = charts(document)
    for name, text in drawn.items():
        (pictures / f"{name}.svg").write_text(text, "utf-8")
    options.out.write_text(page(document, list(drawn), pairs), "utf-8")
    options.tables.write_text(tables(document, pairs), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
