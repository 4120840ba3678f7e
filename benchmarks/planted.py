"""Pipelines with one planted bottleneck each, and two without: the cases that a profile must name correctly."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Stored as whole JPEG files, and as pixels of small patches.
JPEGS, PATCHES = "jpegs", "patches"
_DISK_NBYTES_PER_S = 5_000_000
_COMPETITORS = 4


@dataclass(frozen=True, slots=True)
class Plant:
    """A bottleneck.

    Attributes:
        what: Its description.
        expected: The bottleneck that the profile must name.
        run: Makes the pipeline from a folder with the datasets, and returns its profile.
        is_alone: Whether it changes the process that it runs in, so that it needs one of its own.
        preloaded: C code whose functions replace those of the C library in that process.
    """

    what: str
    expected: str
    run: Callable[[Path], Any]
    is_alone: bool = False
    preloaded: str = ""


def make_datasets(folder: Path) -> None:
    """Convert photographs into the datasets that plants read, unless they are there."""
    from common import photographs
    from PIL import Image

    import lmdbloader

    if (folder / PATCHES).exists():
        return
    images, copies = folder / "images", folder / "copies"
    for place in (images, copies):
        place.mkdir(parents=True, exist_ok=True)
    sources = [photograph for photograph in photographs() if min(photograph.shape[:2]) >= 400]
    for number in range(20):
        whole = Image.fromarray(np.rot90(sources[number % len(sources)], number // len(sources)))
        whole.resize((1200, 900)).save(images / f"{number:02}.jpg", quality=92)
        for copy in range(8):
            os.link(images / f"{number:02}.jpg", copies / f"{number:02}-{copy}.jpg")
    lmdbloader.convert(copies, folder / JPEGS, workers=1)
    lmdbloader.convert(images, folder / PATCHES, patch_size=48, codec="raw", workers=1)


def _loader(folder: Path, name: str, batch_size: int, *transforms: Any, **options: Any) -> Any:
    import lmdbloader

    dataset = lmdbloader.LMDBDataset(folder / name)
    return lmdbloader.Loader(
        dataset, batch_size, transforms=transforms, num_threads=_threads(), **{"order": "random", **options}
    )


def _threads() -> int:
    return min(2, len(os.sched_getaffinity(0)))


def _rehearse(loader: Any, step_seconds: float, *, steps: int, warmup: int) -> Any:
    from lmdbloader.lab.profiling import rehearse

    return rehearse(loader, step_seconds, steps=steps, warmup=warmup)


# --- With a bottleneck ---


def slow_disk(folder: Path) -> Any:
    """Read through SLOW_PREAD, which `run_alone` puts in place of the C library's function."""
    return _rehearse(_loader(folder, PATCHES, 64, io="pread"), 0.005, steps=16, warmup=4)


def slow_decode(folder: Path) -> Any:
    """Decode large JPEG files whole, for short steps."""
    from lmdbloader.transforms import CenterCrop

    return _rehearse(_loader(folder, JPEGS, 16, CenterCrop((900, 900))), 0.002, steps=16, warmup=8)


def slow_python(folder: Path) -> Any:
    """Have a function compute in Python, which holds the interpreter's lock."""

    def busily(batch: Any) -> Any:
        until = time.thread_time() + 0.06
        while time.thread_time() < until:
            sum(range(100))
        return batch

    return _rehearse(_loader(folder, PATCHES, 64, busily), 0.005, steps=16, warmup=4)


def slow_numpy(folder: Path) -> Any:
    """Have a function compute in NumPy, which lets go of the lock."""

    def busily(batch: Any) -> Any:
        values = np.linspace(0, 1, 200_000)
        until = time.thread_time() + 0.06
        while time.thread_time() < until:
            np.sort(np.sin(values))
        return batch

    return _rehearse(_loader(folder, PATCHES, 64, busily), 0.005, steps=16, warmup=4)


def slow_sample_transform(folder: Path) -> Any:
    """Have the dataset's own transform called for every sample."""
    import lmdbloader

    class Slow(lmdbloader.LMDBDataset):
        def transform(self, sample: Any) -> Any:
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                sum(range(100))
            return sample

    loader = lmdbloader.Loader(Slow(folder / PATCHES), 64, order="random", num_threads=_threads())
    return _rehearse(loader, 0.005, steps=16, warmup=4)


def starved(folder: Path) -> Any:
    """Load a workload that two cores could feed easily, on one core that others compete for."""
    import torch

    from lmdbloader.transforms import ColorJitter, RandomResizedCrop, ToDtype

    work = RandomResizedCrop(64), ColorJitter(0.4, 0.4, 0.4), ToDtype(torch.float32, scale=True)
    loader = _loader(folder, PATCHES, 320, *work)
    # A step as long as one core needs for a batch: two cores need half of it, a fifth of a core five times as long.
    step_seconds = _cpu_seconds_of_a_batch(loader)
    core = min(os.sched_getaffinity(0))
    with _competitors(core):
        for thread in os.listdir("/proc/self/task"):  # those that load have started already
            os.sched_setaffinity(int(thread), {core})
        return _rehearse(loader, step_seconds, steps=12, warmup=6)


def _cpu_seconds_of_a_batch(loader: Any) -> float:
    """Return the CPU time that loading a batch takes, of all threads, from an epoch after one that warms up."""
    for _ in loader:
        pass
    before = time.process_time()
    for _ in loader:
        pass
    return (time.process_time() - before) / len(loader)


@contextmanager
def _competitors(core: int) -> Iterator[None]:
    """Keep a core busy with other processes."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() == {os.getpid()}: sum(range(10000))"
    found = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(_COMPETITORS)]
    try:
        yield
    finally:
        for process in found:
            process.kill()
        for process in found:
            process.wait()


# --- Without one ---


def slow_model(folder: Path) -> Any:
    """Train a model whose steps take longer than loading."""
    import torch

    from lmdbloader.lab.profiling import profile
    from lmdbloader.transforms import ToDtype

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 24, 5, padding=2), torch.nn.ReLU(), torch.nn.Conv2d(24, 3, 5))
    adam = torch.optim.Adam(model.parameters())

    def step(batch: Any, lap: Callable[[str], None]) -> None:
        loss = model(batch.image).square().mean()
        lap("forward")
        adam.zero_grad()
        loss.backward()
        lap("backward")
        adam.step()
        lap("update")

    try:
        return profile(_loader(folder, PATCHES, 32, ToDtype(torch.float32, scale=True)), step, steps=24, warmup=8)
    finally:
        torch.set_num_threads(threads)


def healthy(folder: Path) -> Any:
    """Feed a device that computes for 20 ms a step."""
    from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip

    loader = _loader(folder, PATCHES, 64, RandomCrop(32), RandomHorizontalFlip())
    return _rehearse(loader, 0.02, steps=40, warmup=8)


# The dynamic linker finds it before the C library's own function.
SLOW_PREAD = f"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
ssize_t pread(int fd, void *to, size_t nbytes, off_t at) {{
    usleep(nbytes * 1000000 / {_DISK_NBYTES_PER_S});
    return syscall(SYS_pread64, fd, to, nbytes, at);
}}
"""


PLANTS = {
    "slow disk": Plant("a disk of 5 MB/s for each reader", "storage", slow_disk, is_alone=True, preloaded=SLOW_PREAD),
    "slow decode": Plant("JPEG files of 1200x900, decoded whole", "decode", slow_decode),
    "slow Python": Plant("a batch function that computes in Python for 60 ms", "function", slow_python),
    "slow NumPy": Plant("a batch function that computes in NumPy for 60 ms", "function", slow_numpy),
    "slow sample transform": Plant("a dataset's own transform of 1 ms a sample", "function", slow_sample_transform),
    "starved": Plant(f"one core, shared with {_COMPETITORS} busy processes", "cpu", starved, is_alone=True),
    "slow model": Plant("a model that trains on the CPU", "model", slow_model),
    "healthy": Plant("steps of 20 ms that loading keeps up with", "model", healthy),
}  # fmt: skip


def run_alone(name: str, folder: Path, count: int = 1) -> list[dict[str, Any]]:
    """Run a plant so many times, each in its own process, and return the profiles as plain values."""
    command = [sys.executable, "-W", "ignore", __file__, "--run", name, "--folder", str(folder), "--count", str(count)]
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as made:
        preloaded = {"LD_PRELOAD": str(_built(PLANTS[name].preloaded, Path(made)))} if PLANTS[name].preloaded else {}
        settings = {**os.environ, "PYTHONPATH": path, **preloaded}
        child = subprocess.run(command, env=settings, capture_output=True, text=True)
    found = [json.loads(line) for line in child.stdout.splitlines()]
    if child.returncode or len(found) != count:
        raise RuntimeError(f"{name}: {child.stderr}")
    return found


def _built(source: str, folder: Path) -> Path:
    """Compile C code into a shared library and return its path."""
    (folder / "planted.c").write_text(source)
    library = folder / "planted.so"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-O2", "-o", str(library)]
    subprocess.run([*compiler, str(folder / "planted.c")], check=True, capture_output=True)
    return library


def main() -> None:
    """Run one plant, and print a line of JSON, its profile, for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=list(PLANTS), required=True, help="which")
    parser.add_argument("--folder", type=Path, required=True, help="with the datasets; they are made where it has none")
    parser.add_argument("--count", type=int, default=1, help="how often (default: 1)")
    parser.add_argument("--text", action="store_true", help="print it for people")
    options = parser.parse_args()
    # Forks of a process that has imported everything, and has loaded no kernel yet, start at once.
    import lmdbloader.lab.profiling
    import lmdbloader.transforms  # noqa: F401

    for _ in range(options.count):
        child = os.fork()
        if not child:
            found = PLANTS[options.run].run(options.folder)
            print(found if options.text else json.dumps(found.as_json()), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
