"""Helpers of cores.py: how a turn is read, and the processes in which FFCV and torch's DataLoader are measured.

Each peer has its own process: FFCV compiles for seconds and sets the number of its threads for the whole process,
DataLoader forks, and one that hangs is ended without harm to the rest.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from common import Pairs, descendants
from loader import TURNED, turn_by_hand, turn_to_floats
from photos import MEAN, STD, Folder
from references import BATCH, copying
from stores import EndlessOrder, HandWrittenLmdb, PngPairs, Tensors, floats
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import Normalize, RandomDihedral, RandomHorizontalFlip, RandomResizedCrop, ToDtype

SIZE = 224
# Bytes of a sample in a batch, of one byte a value: a pair of 96 and 48 pixels, an image of 224.
PAIR_NBYTES, IMAGE_NBYTES = 3 * (96 * 96 + 48 * 48), 3 * SIZE * SIZE
ITEM_NBYTES = {"uint8": 1, "float32": 4}
# A Loader's transforms of pairs, and of images; the last two are left out for uint8.
FLOATS = ToDtype(torch.float32, scale=True)
TRANSFORMS = {
    ("pairs", "float32"): (RandomDihedral(), FLOATS),
    ("pairs", "uint8"): (RandomDihedral(),),
    ("images", "float32"): (RandomResizedCrop(SIZE), RandomHorizontalFlip(), FLOATS, Normalize(MEAN, STD)),
    ("images", "uint8"): (RandomResizedCrop(SIZE), RandomHorizontalFlip()),
}
Turn = dict[str, float]


def read_turn(batches: Iterator[Any], *, skip: int, multiple: int, seconds: float) -> Turn:
    """Read some batches that do not count, then whole batches for some seconds.

    Args:
        batches: Without end.
        skip: How many batches come first: those that were ready, and until all threads are at work.
        multiple: The number of batches that count is a multiple of this: threads that began together end together.
        seconds: At least.

    Returns:
        samples_per_s; p50_ms and p99_ms between one batch and the next; batches, seconds.
    """
    for _ in range(skip):
        next(batches)
    waited: list[float] = []
    samples = 0
    began = before = time.perf_counter()
    while before - began < seconds or len(waited) % multiple:
        samples += len(next(batches)[0])
        now = time.perf_counter()
        waited.append(now - before)
        before = now
    p50, p99 = np.percentile(waited, [50, 99]) * 1000
    took = before - began
    return {
        "samples_per_s": samples / took,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "batches": len(waited),
        "seconds": took,
    }


def repeated(dataset: LMDBDataset, length: int) -> LMDBDataset:
    """Return a view that has the samples again and again, so that no epoch ends in the middle of a turn."""
    return dataset.select(np.resize(np.arange(len(dataset)), max(length, len(dataset))))


class OurTurns:
    """Measures a Loader with its batches on the CPU, unpinned."""

    def __init__(
        self, path: Path, kind: str, dtype: str, *, batch_size: int, threads: int, length: int, verify: bool = True
    ) -> None:
        transforms = TRANSFORMS[kind, dtype]
        self.loader = Loader(
            repeated(LMDBDataset(path), length), batch_size, order="random", transforms=transforms, num_threads=threads,
            device="cpu", verify=verify,
        )  # fmt: skip
        self._at_once = threads * self.loader.batches_at_once
        # Fresh buffers are slow: each is written to once, within reason.
        until, batches = time.perf_counter() + 2, self._endless()
        for _ in range((threads + self.loader.prefetch + 2) * self.loader.batches_at_once):
            next(batches)
            if time.perf_counter() > until:
                break

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def __call__(self, seconds: float) -> Turn:
        """Read for some seconds; when this returns no thread is busy any more."""
        batches = self._endless()
        turn = read_turn(batches, skip=self._at_once, multiple=self._at_once, seconds=seconds)
        del batches
        time.sleep(min(1.2 * self._at_once * self.loader.batch_size / turn["samples_per_s"], 2))
        return turn

    def close(self) -> None:
        """End the threads."""
        self.loader.close()


class Copying:
    """Copies ready-made batches in random order with several threads: the speed of memory."""

    def __init__(self, pairs: Pairs, most: int) -> None:
        with ThreadPoolExecutor(most) as pool:
            self._turns = list(pool.map(lambda seed: copying(pairs, seed), range(most)))
        self._turns[0](0)  # compiles
        self._nbytes = BATCH * (pairs.lr[0].nbytes + pairs.hr[0].nbytes)
        for turn in self._turns:
            for number in range(3):
                turn(number)  # writes to each buffer once

    def measure(self, threads: int, seconds: float) -> float:
        """Return bytes copied a second, each counted once."""
        counts, until = [0] * threads, time.perf_counter() + seconds

        def work(number: int) -> None:
            while time.perf_counter() < until:
                self._turns[number](counts[number])
                counts[number] += 1

        workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(counts) * self._nbytes / (time.perf_counter() - began)


class Remote:
    """A process that measures on request."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Not a daemon: those may have no workers of their own. It ends when this side of the pipe is closed.
        self._process = context.Process(target=serve, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    def send(self, request: Any) -> None:
        """Send it something.

        Raises:
            RuntimeError: It has ended.
        """
        try:
            self._connection.send(request)
        except OSError:
            raise RuntimeError("its process has ended") from None

    def receive(self, seconds: float) -> Any:
        """Return the next thing that it says, None if it says nothing for so long.

        Raises:
            RuntimeError: It has ended.
        """
        if not self._connection.poll(max(seconds, 0)):
            return None
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"the process ended, exit status {self._process.exitcode}") from None

    def ask(self, seconds: float, *request: Any) -> Any:
        """Return the answer to a request.

        Raises:
            RuntimeError: It failed, or the process has ended or did not answer in so many seconds (it is ended then).
        """
        self.send(request)
        answer = self.receive(seconds)
        if answer is None:
            self.end()
            raise RuntimeError(f"no answer in {seconds:.0f} s")
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def end(self) -> None:
        """End the process, whatever it is at, and those that it has started."""
        self._connection.close()
        self._process.join(0.5)
        if self._process.is_alive():
            # Workers of a DataLoader whose parent was killed may wait for ever.
            started = descendants(self._process.pid or 0)
            self._process.kill()
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.join(5)


# FFCV: name -> (its file, kind, dtype, ways), the most valuable first, because each is compiled for seconds. Images,
# and pairs of 2 ways, are mirrored; pairs of 8 ways are turned as the Loader's are.
FFCV: dict[str, tuple[str, str, str, Literal[2, 8]]] = {
    "pairs float32": ("pairs", "pairs", "float32", 2),
    "raw256 float32": ("raw256", "images", "float32", 2),
    "original float32": ("original", "images", "float32", 2),
    "pairs uint8": ("pairs", "pairs", "uint8", 2),
    "raw256 uint8": ("raw256", "images", "uint8", 2),
    "pairs float32, turned": ("pairs", "pairs", "float32", 8),
    "pairs uint8, turned": ("pairs", "pairs", "uint8", 8),
}


READY = "ready"


def serve_ffcv(
    connection: Any,
    data: Path,
    names: Sequence[str],
    workers: int,
    batch_size: int,
    lengths: dict[str, int],
    checks: bool,
) -> None:
    """Compile some loaders, report each that is ready and finally that all are, and measure them on request.

    A message before that means that it has taken long enough; a request is (name, seconds).
    """
    torch.set_num_threads(1)
    found = {}
    for name in names:
        if connection.poll():
            connection.recv()
            break
        file, kind, dtype, ways = FFCV[name]
        began = time.perf_counter()
        try:
            found[name] = FfcvTurns(data / "ffcv" / f"{file}.beton", kind, dtype, batch_size, workers, ways)
            facts = {"seconds_to_first_batch": round(time.perf_counter() - began, 1)}
            if checks:
                dataset = LMDBDataset(data / ("pairs_raw" if kind == "pairs" else file))
                facts |= found[name].check(dataset)
            found[name].prepare(lengths[kind])
            connection.send((name, facts))
        except Exception as error:
            found.pop(name, None)
            connection.send((name, f"{type(error).__name__}: {error}"))
    connection.send((READY, {}))
    answer_requests(connection, lambda name, seconds: found[name](seconds))


def answer_requests(connection: Any, answer: Callable[..., Any]) -> None:
    """Answer until the other side is closed; an error is answered as text."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if not isinstance(request, tuple):
            continue  # the stop came after it had finished
        try:
            result = answer(*request)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        connection.send(result)


class FfcvTurns:
    """Measures a loader of FFCV, whose iterator rests between the turns."""

    def __init__(
        self, path: Path, kind: str, dtype: str, batch_size: int, workers: int, ways: Literal[2, 8] = 2
    ) -> None:
        import ffcv_peer

        options = {"batch_size": batch_size, "workers": workers, "device": "cpu", "dtype": getattr(torch, dtype)}
        if kind == "pairs":
            self._loader = ffcv_peer.pair_loader(path, ways=ways, **options)
        else:
            # In the order of bytes that costs it least.
            self._loader = ffcv_peer.image_loader(path, size=SIZE, channels_last=True, **options)
        self._kind, self._is_bytes = kind, dtype == "uint8"
        self._batches: Iterator[Any] = iter(())
        self._finish(iter(self._loader), 1)

    @staticmethod
    def _finish(iterator: Any, after: int) -> None:
        """Read some batches, then have the iterator's thread end where it is."""
        for _ in range(after):
            next(iterator)
        iterator.iter_ixes = iter(())
        for _ in iterator:
            pass

    def check(self, dataset: LMDBDataset) -> dict[str, Any]:
        """Read an epoch; return how many samples came, and whether they are the dataset's, each at most once.

        Pairs of bytes are identified by their sums, which turning does not change; images, which are cropped, only
        counted by label.
        """
        seen: list[Any] = []
        count = 0
        for first, second in self._loader:
            count += len(first)
            if self._kind == "images":
                seen += second.flatten().tolist()
            elif self._is_bytes:
                seen += pair_sums(first, second)
        if self._kind == "images":
            theirs = np.bincount(np.asarray(seen, np.int64))
            ours = np.bincount(dataset.reader.index.arrays["label"])
            matches = len(theirs) == len(ours) and bool((theirs <= ours).all())
        elif self._is_bytes:
            expected = [
                s for lr, hr in Loader(dataset, 256, order="sequential", device="cpu") for s in pair_sums(lr, hr)
            ]
            matches = not _more(seen, expected)
        else:
            matches = True
        size = self._loader.batch_size
        return {
            "delivered": count,
            "samples": len(dataset),
            "complete": count == len(dataset) // size * size,
            "matches": matches,
        }

    def prepare(self, length: int) -> None:
        """Have epochs as long as the Loader has them, and get the first batches."""
        import ffcv_peer

        ffcv_peer.lengthen(self._loader, length)
        self._begin()

    def _begin(self) -> None:
        self._iterator: Any = iter(self._loader)
        self._batches = self._endless()
        # Each of its buffers is written to once.
        for _ in range(self._loader.batches_ahead + 2):
            next(self._batches)
        self._rest(0.1)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._iterator
            self._iterator = iter(self._loader)

    def __call__(self, seconds: float) -> Turn:
        """Read for some seconds; when this returns its thread waits for room in its queue."""
        # Those in its queue, and one that waits for room there.
        turn = read_turn(self._batches, skip=self._loader.batches_ahead + 1, multiple=1, seconds=seconds)
        self._rest(min(1.2 * self._loader.batch_size / turn["samples_per_s"] + 0.005, 2))
        return turn

    def _rest(self, interval: float) -> None:
        """Wait until its thread does: until its queue is full, and one more batch is made, which takes an interval."""
        until = time.perf_counter() + 10
        while not self._iterator.output_queue.full() and time.perf_counter() < until:
            time.sleep(0.001)
        time.sleep(interval)


def pair_sums(lr: torch.Tensor, hr: torch.Tensor) -> list[tuple[int, int]]:
    """Return the sums of both halves of each pair of a batch."""
    halves = [half.flatten(1).sum(1, dtype=torch.int64).tolist() for half in (lr, hr)]
    return list(zip(*halves, strict=True))


def _more(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return whether something was found more often than expected."""
    from collections import Counter

    return bool(Counter(found) - Counter(expected))


class Photos(Folder):
    """The files of class folders of any names."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(folder, size)
        self._labels = {name: k for k, name in enumerate(sorted({path.parent.name for path in self._paths}))}

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path = self._paths[number]
        return self._recipe(path), self._labels[path.parent.name]


FOLDER, PNG, HAND, HAND_LOOP, OUR_DATALOADER = (
    "DataLoader, folder, Pillow",
    "DataLoader, PNG files, Pillow",
    "DataLoader, hand-written LMDB",
    "DataLoader, hand-written LMDB, float32 by the loop",
    "lmdbloader.dataloader",
)
# Each reader's kind of samples, and their name.
DATALOADERS = {
    FOLDER: ("images", "photos"),
    HAND: ("pairs", "pairs_hand"),
    OUR_DATALOADER: ("pairs", "pairs_raw"),
    PNG: ("pairs", "pairs_png"),
    HAND_LOOP: ("pairs", "pairs_hand"),
}


def serve_dataloaders(connection: Any, data: Path) -> None:
    """Report that the imports are done, then measure each request: (what, workers, batch size, seconds)."""
    torch.set_num_threads(1)
    connection.send(READY)
    answer_requests(connection, lambda *request: time_dataloader(data, *request))


def time_dataloader(data: Path, what: str, workers: int, batch_size: int, seconds: float) -> dict[str, float]:
    """Return a turn of a DataLoader, its batch size, and the seconds until it gave its first batch.

    The batches are smaller where those under way would not fit into /dev/shm.
    """
    datasets: dict[str, Callable[[], Any]] = {
        FOLDER: lambda: Photos(data / "photos" / "train", SIZE),
        PNG: lambda: PngPairs(data / "pairs_png", turn_to_floats),
        HAND: lambda: HandWrittenLmdb(data / "pairs_hand", turn_to_floats),
        HAND_LOOP: lambda: HandWrittenLmdb(data / "pairs_hand", turn_by_hand),
        OUR_DATALOADER: lambda: LMDBDataset(data / "pairs_raw").transformed(TURNED),
    }
    began = time.perf_counter()
    dataset = datasets[what]()
    # This process was spawned, and so would be its workers, which Linux forks by default.
    order = EndlessOrder(len(dataset), 1)
    if what == OUR_DATALOADER:
        loader: DataLoader[Any] = lmdbloader.dataloader(
            dataset, batch_size, sampler=order, num_workers=workers, multiprocessing_context="fork"
        )
    else:
        nbytes = (IMAGE_NBYTES if what == FOLDER else PAIR_NBYTES) * (1 if what == HAND_LOOP else 4)
        free = shutil.disk_usage("/dev/shm").free
        while batch_size > 1 and (2 * workers + 2) * batch_size * nbytes > 0.6 * free:
            batch_size //= 2
        loader = DataLoader(dataset, batch_size, sampler=order, num_workers=workers, multiprocessing_context="fork")
    batches = iter(loader)
    try:
        finish = finished(batches) if what == HAND_LOOP else batches
        next(finish)
        first = time.perf_counter() - began
        # Batches that the workers have ready at first are read and do not count.
        turn = read_turn(finish, skip=2 * workers, multiple=1 if what == FOLDER else workers, seconds=seconds)
        return {**turn, "batch_size": batch_size, "seconds_to_first_batch": round(first, 2)}
    finally:
        if hasattr(batches, "_shutdown_workers"):
            batches._shutdown_workers()
        del batches, loader
        gc.collect()


def finished(batches: Iterator[Any]) -> Iterator[Tensors]:
    """Yield batches as float32, converted here."""
    return map(floats, batches)


def check_stores(data: Path, count: int) -> dict[str, bool]:
    """Return for each store of pairs whether its first pairs are those of pairs_raw."""

    def keep(pair: Tensors) -> Tensors:
        return pair

    expected = LMDBDataset(data / "pairs_raw")
    stores = {
        "pairs_lz4": lambda: LMDBDataset(data / "pairs_lz4"),
        "pairs_png": lambda: PngPairs(data / "pairs_png", keep),
        "pairs_hand": lambda: HandWrittenLmdb(data / "pairs_hand", keep),
    }
    found = {}
    for name, opened in stores.items():
        store = opened()
        found[name] = all(
            torch.equal(a, b) for k in range(count) for a, b in zip(tuple(store[k]), tuple(expected[k]), strict=True)
        )
    return found


def join(barrier: Any) -> None:
    """Tell this process which requests the others wait for."""
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def time_together(path: str, kind: str, batch_size: int, threads: int, length: int, seconds: float) -> float:
    """Return samples a second of a Loader in this process, begun when all processes are ready."""
    measure = OurTurns(Path(path), kind, "float32", batch_size=batch_size, threads=threads, length=length)
    _barrier.wait(25)
    speed = measure(seconds)["samples_per_s"]
    _barrier.wait(25)  # none ends while others are being timed
    measure.close()
    return speed
