"""Times the Loader, other loaders that do the same work, and the limits of the machine.

The work: pairs of 96x96 and 48x48 patches of real photographs in random order, with one of eight flips and rotations
for each pair, as float32 batches. Turns are interleaved in one run; the figures are medians and ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    Pairs,
    cut_pairs,
    mib,
    print_sections,
    table,
    time_loader,
    write_mosaics,
)
from fresh import ORDERS_HEADER, measure_memory, start_up, time_orders
from references import REFERENCES, pairs_per_s
from stores import HAND_WRITTEN, STORES, EndlessOrder, Store, floats
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.cores import count_cores
from lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype

BATCH_SIZES, THREADS = (8, 16, 32, 64, 128), (1, 2)
OURS = {"raw": "LMDBDataset raw", "lz4": "LMDBDataset lz4"}
SECTIONS = ("pairs", "references", "crops", "memory", "orders", "start", "threads")
TO_FLOAT = ToDtype(torch.float32, scale=True)
TURNED = (RandomDihedral(), TO_FLOAT)
# Candidates by name: a function of seconds that returns samples a second.
Candidates = dict[tuple[Any, ...], Callable[[float], float]]
Results = dict[tuple[Any, ...], float]


def turn_by_hand(pair: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return a pair turned or mirrored one of eight ways, as people write it with NumPy."""
    which = int(torch.randint(8, ()))
    turned = []
    for image in pair:
        pixels = image.numpy()
        if which & 4:
            pixels = pixels.transpose(0, 2, 1)
        if which & 2:
            pixels = pixels[:, ::-1]
        if which & 1:
            pixels = pixels[:, :, ::-1]
        turned.append(torch.from_numpy(np.ascontiguousarray(pixels)))
    return tuple(turned)


def turn_to_floats(pair: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return a pair turned or mirrored, as float32."""
    return floats(turn_by_hand(pair))


def timed(batches: Iterator[Any], finish: Callable[[Any], Any], seconds: float) -> float:
    """Return samples a second over some seconds of a loader's batches."""
    torch.set_num_threads(1)
    samples, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds or not samples:  # one at least, however busy the machine is
        samples += len(finish(next(batches))[0])
    return samples / (now - began)


def of_dataloader(store: Store, folder: Path, batch_size: int, workers: int, where: str) -> Callable[[float], float]:
    """Return a function that measures torch's DataLoader over a store, converting in the samples or in the loop."""
    if store.dataset is None:
        dataset: Any = LMDBDataset(folder).transformed(TURNED if where == "sample" else TURNED[:1])
        loader = lmdbloader.dataloader(
            dataset, batch_size, sampler=EndlessOrder(len(dataset), 1), num_workers=workers
        )  # fmt: skip
    else:
        dataset = store.dataset(folder, turn_to_floats if where == "sample" else turn_by_hand)
        loader = DataLoader(
            dataset, batch_size, sampler=EndlessOrder(len(dataset), 1), num_workers=workers,
            persistent_workers=workers > 0,
        )  # fmt: skip
    finish = floats if where == "consumer" else tuple
    next(iter(loader))
    return lambda seconds: timed(iter(loader), finish, seconds)


def of_loader(loader: Loader) -> Callable[[float], float]:
    """Return a function that measures a Loader."""
    next(iter(loader))
    return lambda seconds: float(time_loader(loader, seconds).samples_per_s)


def turns_of(candidates: Candidates, options: argparse.Namespace) -> dict[tuple[Any, ...], list[float]]:
    """Return the turns of each candidate; turns are interleaved, so other load affects all alike."""
    turns: dict[tuple[Any, ...], list[float]] = {key: [] for key in candidates}
    for _ in range(options.repeats):
        for key, measure in candidates.items():
            turns[key].append(measure(options.seconds))
    return turns


def take_turns(candidates: Candidates, options: argparse.Namespace) -> Results:
    """Return the median of each candidate's turns."""
    return {key: statistics.median(values) for key, values in turns_of(candidates, options).items()}


def time_pairs(folder: Path, options: argparse.Namespace) -> Results:
    """Time the work of the module's docstring: (name, batch size, workers or threads, detail) -> pairs a second."""
    turns: dict[tuple[Any, ...], list[float]] = {}
    by_name = {store.name: store for store in STORES}
    for batch_size in options.batch_sizes:
        # Those with workers first: none can be forked while this process has the hand-written LMDB open.
        for workers in sorted(options.workers, reverse=True):
            candidates: Candidates = {}
            for name in options.candidates:
                for where in ("sample", "consumer"):
                    key = (name, batch_size, workers, where)
                    candidates[key] = of_dataloader(by_name[name], folder / name, batch_size, workers, where)
            loaders = open_loaders(folder, batch_size, options)
            candidates |= {key: of_loader(loader) for key, loader in loaders.items()}
            for key, found in turns_of(candidates, options).items():
                turns.setdefault(key, []).extend(found)
            del candidates
            for loader in loaders.values():
                loader.close()
        for name in options.candidates:
            by_name[name].close(folder / name)
        print(f"pairs: batches of {batch_size} done", file=sys.stderr, flush=True)
    return {key: statistics.median(values) for key, values in turns.items()}


def open_loaders(folder: Path, batch_size: int, options: argparse.Namespace) -> dict[tuple[Any, ...], Loader]:
    """Return a Loader of every codec, number of threads, with and without checksums."""
    return {
        (f"Loader {codec}", batch_size, threads, "verified" if verify else "not verified"): Loader(
            LMDBDataset(folder / name),
            batch_size,
            order="random",
            transforms=TURNED,
            num_threads=threads,
            verify=verify,
        )
        for codec, name in OURS.items()
        for threads in options.threads
        for verify in (True, False)
    }


def report_pairs(results: Results, markdown: bool) -> str:
    """Return the table of pairs, and the conclusions about the Loader."""
    best: dict[tuple[Any, ...], tuple[float, str]] = {}
    for (name, batch_size, count, detail), speed in results.items():
        kept = (name, batch_size, count, detail == "not verified")
        best[kept] = max(best.get(kept, (0.0, "")), (speed, detail))
    by_hand = max(speed for (name, *_), (speed, _) in best.items() if name == HAND_WRITTEN)
    rows = [
        [name, str(count), str(batch_size), f"{speed:,.0f}", f"{speed / by_hand:.2f}", detail]
        for (name, batch_size, count, _), (speed, detail) in sorted(
            best.items(), key=lambda item: (item[0][0], item[0][3], item[0][2], item[0][1])
        )
    ]
    header = ["", "workers or threads", "batch", "pairs/s", "x by hand, best setting", "float32 made in, or checksums"]
    ours = {key: speed for key, (speed, _) in best.items() if key[0].startswith("Loader")}
    lines = []
    for codec in OURS:
        mine = {key[1:]: speed for key, speed in ours.items() if key[0] == f"Loader {codec}"}
        verified = {key: speed for key, speed in mine.items() if not key[2]}
        sizes, threads = sorted({key[0] for key in mine}), sorted({key[1] for key in mine})
        lines.append(
            f"Loader {codec}: {max(verified.values()) / by_hand:.1f} x the hand-written LMDB's best setting "
            f"({min(verified[b, threads[-1], False] for b in sizes) / by_hand:.1f} to "
            f"{max(verified[b, threads[-1], False] for b in sizes) / by_hand:.1f} x by batch size); batches of "
            f"{sizes[0]} against {sizes[-1]}: "
            + ", ".join(f"{mine[sizes[0], n, False] / mine[sizes[-1], n, False]:.2f} ({n} threads)" for n in threads)
            + f"; {threads[-1]} threads against {threads[0]}: "
            + _range([mine[b, threads[-1], False] / mine[b, threads[0], False] for b in sizes])
            + "; checksums on against off: "
            + _range([mine[b, n, False] / mine[b, n, True] for b in sizes for n in threads])
            + "."
        )
    return "\n\n".join([table(header, rows, markdown=markdown), "\n".join(lines)])


def _range(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def time_references(folder: Path, pairs: Pairs, options: argparse.Namespace) -> Results:
    """Time the machine's limits, and the Loader with unchanged uint8: (name, threads) -> pairs a second."""
    candidates: Candidates = {}
    for threads in options.threads:
        for reference in REFERENCES:
            candidates[reference.name, threads] = pairs_per_s(reference, pairs, threads)
        ds = LMDBDataset(folder / OURS["raw"])
        for label, transforms in (("uint8", ()), ("float32", (TO_FLOAT,)), ("float32, turned", TURNED)):
            for batch_size in (options.batch_sizes[0], options.batch_sizes[-1]):
                loader = Loader(ds, batch_size, order="random", transforms=transforms, num_threads=threads)
                candidates[f"Loader raw, {label}, batches of {batch_size}", threads] = of_loader(loader)
    return take_turns(candidates, options)


def report_references(results: Results, markdown: bool) -> str:
    """Return the table of references, as shares of copying."""
    rows = []
    for (name, threads), speed in results.items():
        copying = results[REFERENCES[0].name, threads]
        rows.append([name, str(threads), f"{speed:,.0f}", f"{speed / copying:.2f}"])
    return table(["", "threads", "pairs/s", "of copying"], rows, markdown=markdown)


def time_crops(folder: Path, options: argparse.Namespace) -> Results:
    """Time crops out of stored 2K photographs against stored patches: (what, type, threads) -> images a second."""
    photographs = folder / "photographs.lmdb"
    if not photographs.exists():
        with tempfile.TemporaryDirectory() as images:
            write_mosaics(Path(images), options.photographs)
            lmdbloader.convert(images, photographs, codec="raw")
    whole = LMDBDataset(photographs)
    whole = whole.select(np.resize(np.arange(len(whole)), options.pairs))
    patches = LMDBDataset(folder / OURS["raw"], fields=["hr"])
    candidates: Candidates = {}
    for threads in options.threads:
        for label, last in (("uint8", ()), ("float32", (TO_FLOAT,))):
            crops = Loader(whole, 64, order="random", transforms=(RandomCrop(96), *last), num_threads=threads)
            candidates["crops", label, threads] = of_loader(crops)
            candidates["patches", label, threads] = of_loader(
                Loader(patches, 64, order="random", transforms=last, num_threads=threads)
            )
    return take_turns(candidates, options)


def report_crops(results: Results, markdown: bool) -> str:
    """Return the table of crops."""
    rows = [
        [label, str(threads), f"{speed:,.0f}", f"{results['patches', label, threads]:,.0f}",
         f"{speed / results['patches', label, threads]:.2f}"]
        for (what, label, threads), speed in results.items() if what == "crops"
    ]  # fmt: skip
    return table(
        ["", "threads", "96x96 crops/s of 2K photographs", "stored patches/s", "ratio"], rows, markdown=markdown
    )


def time_many_threads(folder: Path, options: argparse.Namespace) -> Results:
    """Time asking for more threads than cores: (threads,) -> pairs a second."""
    cores = count_cores()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ds = LMDBDataset(folder / OURS["lz4"])
        return take_turns(
            {
                (n,): of_loader(Loader(ds, 32, order="random", transforms=TURNED, num_threads=n))
                for n in (cores, 2 * cores, 4 * cores)
            },
            options,
        )


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [store.name for store in STORES]
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help=str(SECTIONS))
    parser.add_argument("--candidates", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of 96x96 and 48x48 pixels (default 4000)")
    parser.add_argument("--large", type=int, default=45_000, help="pairs of the dataset that is read cold")
    parser.add_argument("--photographs", type=int, default=48, help="2K photographs to cut from (default 48)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(BATCH_SIZES), metavar="N")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="of torch's DataLoader")
    parser.add_argument("--threads", type=int, nargs="+", default=list(THREADS), metavar="N", help="of the Loader")
    parser.add_argument("--repeats", type=int, default=5, help="turns of everything (default 5)")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a turn (default 0.25)")
    parser.add_argument("--folder", type=Path, help="keep the stores here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="some seconds: does it still run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.pairs, options.large, options.photographs, options.repeats, options.seconds = 256, 300, 1, 1, 0.02
        options.batch_sizes, options.workers, options.candidates = [8, 16], [0], [HAND_WRITTEN]
    return options


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of every section."""
    pairs = cut_pairs(options.pairs)
    for store in STORES:
        if store.name in {*options.candidates, *OURS.values()} and not (folder / store.name).exists():
            store.write(pairs, folder / store.name)
    sections: dict[str, tuple[Callable[[], Any], Callable[[Any], str]]] = {
        "pairs": (lambda: time_pairs(folder, options), lambda r: report_pairs(r, options.markdown)),
        "references": (
            lambda: time_references(folder, pairs, options),
            lambda r: report_references(r, options.markdown),
        ),
        "crops": (lambda: time_crops(folder, options), lambda r: report_crops(r, options.markdown)),
        "memory": (
            lambda: measure_memory(folder, list(OURS.values()), options),
            lambda r: table(
                ["peak RssAnon", ""], [[name, mib(nbytes)] for name, nbytes in r.items()], markdown=options.markdown
            ),
        ),
        "orders": (
            lambda: time_orders(folder, options),
            lambda r: table(ORDERS_HEADER, r, markdown=options.markdown),
        ),
        "start": (
            lambda: start_up(folder, options),
            lambda r: table(["", ""], [[name, f"{value:.2f}"] for name, value in r.items()], markdown=options.markdown),
        ),
    }
    sections["threads"] = (
        lambda: time_many_threads(folder, options),
        lambda r: table(
            ["threads", "pairs/s", f"of {count_cores()} threads"],
            [[str(n), f"{speed:,.0f}", f"{speed / r[(count_cores(),)]:.2f}"] for (n,), speed in r.items()],
            markdown=options.markdown,
        ),
    )
    for name in options.sections:
        figures = sections[name][0]()
        yield name, figures, sections[name][1](figures)


def main() -> None:
    """Measure, and print the tables."""
    options = parse_options()
    title = f"{options.pairs} pairs, {options.repeats} turns of {options.seconds} s, medians"
    print_sections(lambda folder: run(folder, options), title, options)


if __name__ == "__main__":
    main()
