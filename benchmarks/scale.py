"""Compares the model of many nodes with real processes, and computes with it what happens at larger sizes.

The model is `lmdbloader.lab.planning.scale`, which `lmdbloader plan --nodes` uses. First, 1 to 8 processes of torchrun
(gloo) read one dataset: from a storage that is slowed down to a bandwidth or to a number of requests a second, from the
machine's disk, and from memory; each figure stands beside the predicted one. Then the real orders are read in epochs of
many ranks, with caches that are simulated block by block. The last tables are the model's alone: nothing in them was
measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import print_sections, rss_anon, table
from fresh import of_fresh_process

import lmdbloader
from lmdbloader import LMDBDataset, Loader, QuasiRandom
from lmdbloader.lab.planning import scale
from lmdbloader.lab.planning.scale import Cluster, Storage
from lmdbloader.loader.orders import Layout, Share
from lmdbloader.loader.quasi_random import epoch_order

SIDE = 32
NBYTES = SIDE * SIDE * 3
BATCH_SIZE = 16
# The slowed storage, so slow that reading takes most of the time also where the processes share two cores.
SLOW_NBYTES_PER_S, SLOW_REQUESTS_PER_S = 8_000_000, 1500
# Words of the file that all processes share: when the storage is free again, whether it is slow, and the limits.
_WORDS = struct.Struct("qqqq")
_SLOW_STORAGE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long long *words;
__attribute__((constructor)) static void start(void) {
    char *path = getenv("SLOW_STORAGE");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd >= 0) words = mmap(0, 32, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
ssize_t pread(int fd, void *to, size_t nbytes, off_t at) {
    if (words && words[1]) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        long long now = t.tv_sec * 1000000000LL + t.tv_nsec, cost = 0, free, end;
        if (words[2]) cost = nbytes * 1000000000LL / words[2];
        if (words[3] && 1000000000LL / words[3] > cost) cost = 1000000000LL / words[3];
        do {
            free = words[0];
            end = (free > now ? free : now) + cost;
        } while (!__sync_bool_compare_and_swap(&words[0], free, end));
        t.tv_sec = end / 1000000000LL, t.tv_nsec = end % 1000000000LL;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0)) {}
    }
    return syscall(SYS_pread64, fd, to, nbytes, at);
}
"""

# Hypothetical: data sheets of the kinds of storage, not of a product.
STORAGES = {
    "NFS server": Storage(2e9, 50_000, 3e9),
    "parallel file system": Storage(100e9, 1e6, 12e9),
    "object storage": Storage(200e9, 55_000, 12e9),
}
GPUS = (8, 64, 512, 4096)
COUNTS = (10**7, 10**8, 10**9, 10**10)
# A photograph of ImageNet's size, what a fast GPU trains of them, and a node: 8 GPUs, memory for reading, local NVMe.
EXAMPLE_NBYTES, GPU_SAMPLES_PER_S = 110_000, 2500
GPUS_PER_NODE, NODE_MEMORY, LOCAL_DISK = 8, 512 * 2**30, 7_000_000_000_000
_BLOCKS_PER_LANE = 20


def as_rank(plan: Mapping[str, Any]) -> None:
    """Read an epoch as one process of torchrun, step by step with the others, and write down what it took."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    ds = LMDBDataset(plan["path"], io=plan["io"])[: plan["samples"]]
    loader = Loader(ds, plan["batch_size"], order=plan["order"], seed=1, shard="auto", num_threads=plan["threads"])
    len(loader)
    if plan["slow"]:
        with open(os.environ["SLOW_STORAGE"], "r+b") as file, mmap.mmap(file.fileno(), _WORDS.size) as words:
            words[:] = _WORDS.pack(0, 1, *plan["slow"])
    total = torch.zeros(1)
    if not plan["steps_together"]:  # what is done once in a process would be a large part of so short an epoch
        for _ in loader:
            pass
    distributed.barrier()
    disk, cpu, began = _disk_nbytes(), time.process_time(), time.perf_counter()
    count, first = 0, 0.0
    for batch in loader:
        if plan["steps_together"]:
            distributed.all_reduce(total)
        count += len(batch.image)
        first = first or time.perf_counter() - began
    found = {
        "samples": count, "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu,
        "disk_nbytes": _disk_nbytes() - disk, "first_seconds": first, "private_nbytes": rss_anon(),
    }  # fmt: skip
    Path(plan["out"], f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


def _disk_nbytes() -> int:
    """Return the bytes that the disk has read for this process."""
    with open("/proc/self/io", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def run_ranks(world_size: int, folder: Path, library: Path, **plan: Any) -> dict[str, Any]:
    """Return what all processes together took."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        words = Path(out, "storage")
        words.write_bytes(_WORDS.pack(0, 0, 0, 0))
        usual = {"slow": None, "threads": 2, "io": "mmap", "order": "random", "batch_size": BATCH_SIZE}
        text = json.dumps({**usual, "steps_together": True, **plan, "out": out})
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
        environment = {**of_fresh_process(), "OMP_NUM_THREADS": "1", "SLOW_STORAGE": str(words)}
        if plan.get("slow"):
            environment["LD_PRELOAD"] = str(library)
        done = subprocess.run([*command, __file__, "--as-rank", text], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        ranks = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(world_size)]
    seconds = max(each["seconds"] for each in ranks)
    return {
        "samples_per_s": sum(each["samples"] for each in ranks) / seconds,
        "cpu_us_a_sample": 1e6 * sum(each["cpu_seconds"] for each in ranks) / sum(each["samples"] for each in ranks),
        "disk_nbytes": sum(each["disk_nbytes"] for each in ranks),
        "private_nbytes": max(each["private_nbytes"] for each in ranks),
        "load": os.getloadavg()[0],
    }


def write_samples(path: Path, count: int) -> None:
    """Write images of 32 x 32 pixels with a label."""
    pixels = np.random.default_rng(0).integers(0, 256, (256, SIDE, SIDE, 3), np.uint8)
    samples = ({"image": pixels[i % 256], "label": i % 10} for i in range(count))
    lmdbloader.write(samples, path, codec="raw")


def built(folder: Path) -> Path:
    """Compile the slow storage, and return the library."""
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SLOW_STORAGE)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    subprocess.run(compiler, check=True, capture_output=True)
    return library


def forget_pages(path: Path) -> None:
    """Drop a dataset's pages from memory."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure_ranks(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the predicted and the measured figure of each run of processes."""
    path, library = folder / "scale.lmdb", built(folder)
    write_samples(path, options.samples)
    whole, some = options.samples, min(options.samples, options.slow_samples)
    found: list[dict[str, Any]] = []
    cpu: dict[str, float] = {}

    def note(world_size: int, what: str, unit: str, predicted: float, measured: float, load: float) -> None:
        ratio = measured / predicted
        found.append(
            {"processes": world_size, "what": what, "unit": unit, "predicted": predicted, "measured": measured}
            | {"ratio": ratio, "load": load}
        )
        print(f"  {world_size} processes, {what}: {ratio:.3f}", file=sys.stderr, flush=True)

    for world_size in options.processes:
        cluster = Cluster(1, world_size, BATCH_SIZE, NBYTES, NBYTES * whole, math.inf)
        for what, limits in (
            ("storage of 8 MB/s", (SLOW_NBYTES_PER_S, 0)), ("storage of 1,500 requests/s", (0, SLOW_REQUESTS_PER_S)),
        ):  # fmt: skip
            ran = run_ranks(world_size, folder, library, path=str(path), samples=some, slow=limits, io="pread")
            storage = Storage(*(float(limit) or None for limit in limits), None)
            # The rate at which the storage feeds exactly all ranks.
            needed = scale.set_ups(Cluster(1, world_size, BATCH_SIZE, NBYTES, NBYTES * some, 1e9), storage)[0]
            note(world_size, what, "samples/s", 1e9 * needed.fed, ran["samples_per_s"], ran["load"])
        for order in ("random", "quasi_random"):
            # Without steps in common: gloo's own CPU time would be a large part of so small samples'.
            own = {"batch_size": 256, "steps_together": False, "threads": 1}
            ran = run_ranks(world_size, folder, library, path=str(path), samples=whole, order=order, **own)
            cpu.setdefault(order, ran["cpu_us_a_sample"])
            if world_size > 1:
                name = f"CPU of a sample in memory, {order}"
                note(world_size, name, "us", cpu[order], ran["cpu_us_a_sample"], ran["load"])
        memory = scale.memory_of(dataclasses.replace(cluster, batch_size=256))
        note(world_size, "private memory of a rank", "bytes", memory.rank_nbytes, ran["private_nbytes"], ran["load"])
        forget_pages(path)
        ran = run_ranks(world_size, folder, library, path=str(path), samples=whole, order="quasi_random")
        share = scale.node_share(1, world_size, scale.num_lanes(whole * NBYTES // scale.BLOCK_NBYTES))
        stored = (path / "data.mdb").stat().st_size + (path / "index.arrow").stat().st_size
        note(world_size, "bytes from the disk, quasi_random", "bytes", share * stored, ran["disk_nbytes"], ran["load"])
    shutil.rmtree(path)
    return found


def read_of_rank(order: Any, rank: int, ranks: int, count: int) -> list[np.ndarray[Any, Any]]:
    """Return the samples of each read of a rank, as its Loader asks for them."""
    windows = order.windows(Share(1, rank, ranks).positions(count))
    return [windows.samples(k, k + 1) for k in range(len(windows.begins))]


def measure_orders(ranks: int, per_node: int, lanes: int | None) -> dict[str, Any]:
    """Return what the real quasi-random order reads for one node of many, and what the model says.

    The dataset has 20 blocks for each lane: the blocks of a larger one are read in the same way, only longer.
    """
    sizes = QuasiRandom() if lanes is None else QuasiRandom(window_nbytes=lanes * scale.BLOCK_NBYTES)
    most = scale.MOST_LANES if lanes is None else lanes
    count = most * _BLOCKS_PER_LANE * scale.BLOCK_NBYTES // EXAMPLE_NBYTES
    layout = Layout(
        count,
        lambda first, end: (np.arange(first, end) * EXAMPLE_NBYTES, np.full(end - first, EXAMPLE_NBYTES)),
    )
    order = epoch_order(sizes, layout, seed=0, epoch=0)
    seen, lengths = np.zeros(count, bool), []
    for rank in range(per_node):
        for samples in read_of_rank(order, rank, ranks, count):
            seen[samples] = True
            lengths.append(len(samples))
    return {
        "ranks": ranks, "lanes": most, "mean_read_nbytes": float(np.mean(lengths)) * EXAMPLE_NBYTES,
        "overlap": float(seen.mean()) * (ranks // per_node),
        "predicted_overlap": scale.node_share(ranks // per_node, per_node, most) * (ranks // per_node),
    }  # fmt: skip


def measure_order_memory(blocks: int) -> dict[str, float]:
    """Return the bytes that a quasi-random order of many blocks takes in one of 64 ranks, for each block."""
    nbytes = scale.BLOCK_NBYTES // 2
    layout = Layout(2 * blocks, lambda first, end: (np.arange(first, end) * nbytes, np.full(end - first, nbytes)))
    tracemalloc.start()
    order = epoch_order("quasi_random", layout, seed=0, epoch=0)
    order.windows(Share(1, 0, 64).positions(2 * blocks))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"blocks": blocks, "nbytes_a_block": peak / blocks, "predicted": scale.ORDER_BLOCK_NBYTES}


def simulate_cache(nodes: int, kept: float, epochs: int, seed: int) -> dict[str, float]:
    """Return the hits of one node's caches in epochs of the real order, block by block, and what the model says."""
    blocks = scale.MOST_LANES * _BLOCKS_PER_LANE
    nbytes = scale.BLOCK_NBYTES // 4
    layout = Layout(
        blocks * 4, lambda first, end: (np.arange(first, end) * nbytes, np.full(end - first, nbytes))
    )  # four samples in a block
    recent: OrderedDict[int, None] = OrderedDict()
    pinned = set(np.random.default_rng(seed).permutation(blocks)[: round(kept * blocks)].tolist())
    hits = reads = pinned_hits = 0
    for epoch in range(epochs):
        order = epoch_order("quasi_random", layout, seed=seed, epoch=epoch)
        positions = Share(1, 0, nodes).positions(blocks * 4)
        samples = order.samples(positions.of_batches(0, len(positions)))
        for block in (samples[np.r_[True, samples[1:] // 4 != samples[:-1] // 4]] // 4).tolist():
            if epoch >= epochs // 2:
                reads, hits, pinned_hits = reads + 1, hits + (block in recent), pinned_hits + (block in pinned)
            recent[block] = None
            recent.move_to_end(block)
            if len(recent) > kept * blocks:
                recent.popitem(last=False)
    # The four samples of a block are read one after the other in its lane: those after the first find it in memory.
    first = reads / 4
    return {
        "nodes": nodes, "kept": kept, "page_cache": (hits - (reads - first)) / first, "pinned": pinned_hits / reads,
        "predicted_page_cache": scale.lru_hits(kept, 1 / nodes), "predicted_pinned": kept,
    }  # fmt: skip


def measure_converting(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return images a second that one worker and two convert, unchanged JPEG files."""
    from common import photographs
    from PIL import Image

    images, source = photographs(), folder / "photos"
    source.mkdir()
    rng = np.random.default_rng(0)
    for i in range(options.images):
        image = images[i % len(images)]
        y, x = rng.integers(image.shape[0] - 250), rng.integers(image.shape[1] - 250)
        Image.fromarray(image[y : y + 250, x : x + 250]).resize((500, 500)).save(source / f"{i:05d}.jpg", quality=92)
    found: dict[str, Any] = {"nbytes": statistics.mean(p.stat().st_size for p in source.iterdir())}
    for workers in (1, 2):
        cpu, began = os.times(), time.perf_counter()
        lmdbloader.convert(source, folder / "out.lmdb", workers=workers, progress=False)
        seconds, after = time.perf_counter() - began, os.times()
        used = sum(after[:4]) - sum(cpu[:4])
        found["1 worker" if workers == 1 else f"{workers} workers"] = {
            "images_per_s": options.images / seconds,
            "cpu_seconds_an_image": used / options.images,
        }
        shutil.rmtree(folder / "out.lmdb")
    shutil.rmtree(source)
    return found


def predict(converting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the model's figures for every size; none of them was measured."""
    per_worker = 1 / converting["1 worker"]["cpu_seconds_an_image"]
    rows = []
    for kind, storage in STORAGES.items():
        for gpus in GPUS:
            for count in COUNTS:
                cluster = Cluster(
                    gpus // GPUS_PER_NODE, GPUS_PER_NODE, 256, EXAMPLE_NBYTES, EXAMPLE_NBYTES * count,
                    gpus * GPU_SAMPLES_PER_S, NODE_MEMORY, LOCAL_DISK,
                )  # fmt: skip
                memory = scale.memory_of(dataclasses.replace(cluster, batch_size=256))
                fed = {each.name.strip(): each.fed for each in scale.set_ups(cluster, storage)}
                limits = {each.name.strip(): each.limit for each in scale.set_ups(cluster, storage)}
                workers = gpus // GPUS_PER_NODE * 64
                rows.append(
                    {
                        "storage": kind, "gpus": gpus, "samples": count, "fed": fed, "limits": limits,
                        "needed_nbytes_per_s": cluster.nbytes_per_s,
                        "copy_seconds": scale.copy_seconds(cluster, storage),
                        "rank_nbytes": memory.rank_nbytes, "index_nbytes": memory.index_nbytes,
                        "node_nbytes": memory.node_nbytes(GPUS_PER_NODE),
                        "convert_seconds": scale.convert_seconds(
                            count, per_worker, workers, 2 * EXAMPLE_NBYTES * count, storage.nbytes_per_s
                        ),
                        "convert_workers": workers,
                    }
                )  # fmt: skip
    return rows


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the figures and the text of each section; the texts come together with the last one."""
    found: dict[str, Any] = {"Real processes": measure_ranks(folder, options)}
    found["Real orders of many ranks"] = sorted(
        (
            measure_orders(ranks, min(ranks, GPUS_PER_NODE), lanes)
            for ranks in options.ranks
            for lanes in {None, scale.lanes_for(ranks) if scale.MOST_LANES % ranks else None}
        ),
        key=lambda f: (f["ranks"], f["lanes"]),
    )
    found["Arrays of the order"] = measure_order_memory(options.blocks)
    found["Caches of a node"] = [
        simulate_cache(nodes, kept, max(4, options.epochs * nodes), seed=1)
        for nodes in options.nodes
        for kept in (0.1, 0.2, 0.5, 0.8)
    ]
    found["Converting"] = measure_converting(folder, options)
    found["Predicted"] = predict(found["Converting"])
    shown = texts(found, markdown=options.markdown)
    for name, figures in found.items():
        yield name, figures, shown[name] if name in shown else f"{shown['Feeding']}\n\n{shown['Sizes']}"


def texts(found: Mapping[str, Any], *, markdown: bool) -> dict[str, str]:
    """Return the table of each section from its figures."""
    processes = [
        [
            f["what"], str(f["processes"]), f"{f['predicted']:,.1f} {f['unit']}", f"{f['measured']:,.1f}",
            f"{f['ratio']:.2f}",
        ]
        for f in sorted(found["Real processes"], key=lambda f: (f["what"], f["processes"]))
    ]  # fmt: skip
    orders = [
        [
            f"{f['ranks']:,}", f"{f['lanes']:,}", f"{f['mean_read_nbytes'] / 2**20:.2f} MiB", f"{f['overlap']:.2f} x",
            f"{f['predicted_overlap']:.2f} x",
        ]
        for f in found["Real orders of many ranks"]
    ]  # fmt: skip
    memory = found["Arrays of the order"]
    caches = [
        [str(f["nodes"]), f"{f['kept']:.0%}"]
        + [f"{f[k]:.1%}" for k in ("page_cache", "predicted_page_cache", "pinned", "predicted_pinned")]
        for f in found["Caches of a node"]
    ]
    converting = [
        [name, f"{f['images_per_s']:,.0f}", f"{1e3 * f['cpu_seconds_an_image']:.2f}"]
        for name, f in found["Converting"].items()
        if name != "nbytes"
    ]
    tables: dict[str, tuple[list[str], list[list[str]]]] = {
        "Real processes": (["real processes", "how many", "predicted", "measured", "measured / predicted"], processes),
        "Real orders of many ranks": (
            ["ranks", "lanes", "mean read", "bytes that all nodes read", "predicted"], orders
        ),
        "Caches of a node": (
            ["nodes", "kept on each", "page cache hits", "predicted", "pinned part hits", "predicted"], caches
        ),
        "Converting": (["converting JPEG files as they are", "images/s", "CPU ms an image"], converting),
        "Feeding": _feeding(found["Predicted"]),
        "Sizes": _sizes(found["Predicted"]),
    }  # fmt: skip
    shown = {name: table(header, rows, markdown=markdown) for name, (header, rows) in tables.items()}
    shown["Arrays of the order"] = (
        f"Arrays of the order: at most {memory['nbytes_a_block']:.1f} bytes for each block; the model has "
        f"{memory['predicted']}."
    )
    return shown


def _feeding(predicted: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return a table of the shares of the GPUs that each storage feeds: random / quasi-random / the best way."""
    rows = []
    for gpus in GPUS:
        for count in COUNTS:
            of_size = [f for f in predicted if (f["gpus"], f["samples"]) == (gpus, count)]
            cells = []
            for f in of_size:
                best = max(f["fed"], key=lambda name, f=f: (f["fed"][name], -list(f["fed"]).index(name)))
                way = best.removeprefix("+ ").replace(" on each node", "")
                shares = (f["fed"]["random"], f["fed"]["quasi-random"], f["fed"][best])
                cells.append(f"{' / '.join(f'{share:.0%}' for share in shares)} ({way})")
            needed = f"{of_size[0]['needed_nbytes_per_s'] / 1e9:,.1f} GB/s"
            rows.append([f"{gpus:,}", f"10^{round(math.log10(count))}", needed, *cells])
    return ["GPUs", "images", "needed", *STORAGES], rows


def _sizes(predicted: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return a table of memory and of times, by the number of images."""
    rows = []
    for count in COUNTS:
        first = next(f for f in predicted if f["samples"] == count)
        hours = [
            next(
                f for f in predicted if (f["samples"], f["storage"], f["gpus"]) == (count, "parallel file system", gpus)
            )
            for gpus in (8, 512)
        ]
        rows.append(
            [
                f"10^{round(math.log10(count))}",
                f"{EXAMPLE_NBYTES * count / 1e12:,.1f} TB",
                f"{first['rank_nbytes'] / 2**30:.1f} GiB",
                f"{first['index_nbytes'] / 1e9:,.1f} GB",
                *(f"{f['convert_seconds'] / 3600:,.2f} h" for f in hours),
                *(f"{f['copy_seconds'] / 3600:,.1f} h" for f in hours),
            ]
        )
    header = ["images", "dataset", "memory of a rank", "index on a node", "convert, 64 workers", "4,096 workers"]
    return [*header, "copy to 1 node", "to 64 nodes"], rows


def page(found: Mapping[str, Any], text: str) -> str:
    """Return a page with the tables of stored figures, between the comments that name them."""
    for name, shown in texts(found, markdown=True).items():
        start, end = f"<!-- figures: {name} -->", "<!-- end of figures -->"
        if start in text:
            head, rest = text.split(start, 1)
            text = f"{head}{start}\n\n{shown}\n\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3, 4, 8], metavar="N", help="real ones")
    parser.add_argument("--samples", type=int, default=60_000, help="of 3 KB (default: %(default)s)")
    parser.add_argument("--slow-samples", type=int, default=12_000, help="read from a slowed storage")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 48, 64, 128, 192, 512, 1024, 4096], metavar="N")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 8], metavar="N", help="with simulated caches")
    parser.add_argument("--epochs", type=int, default=8, help="with simulated caches, for each node")
    parser.add_argument("--blocks", type=int, default=2_000_000, help="of which the order's memory is measured")
    parser.add_argument("--images", type=int, default=1500, help="to convert (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="for the datasets (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try it")
    parser.add_argument("--page", type=Path, nargs=2, metavar="FILE", help="put stored figures into a page, and end")
    parser.add_argument("--as-rank", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        as_rank(json.loads(options.as_rank))
        return
    if options.page:
        stored, text = options.page
        text.write_text(page(json.loads(stored.read_text("utf-8")), text.read_text("utf-8")), "utf-8")
        return
    if options.quick:
        options.processes, options.samples, options.slow_samples, options.ranks = [1], 2000, 200, [8, 128]
        options.nodes, options.epochs, options.images = [1], 2, 12
    print_sections(lambda folder: run(folder, options), "Many ranks: the model and real processes", options)


if __name__ == "__main__":
    main()
