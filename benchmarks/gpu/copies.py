"""Stage (c): the cost of copying batches to the device, from pinned and from paged memory, alone and during a step.

Figures are shares of the link: the best of a few pinned copies of 256 MiB. Without a GPU, copies within memory and
sleeping stand in.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import feeds
import torch
from fed import drain, rounded, synchronize
from feeds import Feed
from stage import Stage, parse_stage
from torch import Tensor

from lmdbloader.loader.device import on_device

LINK_NBYTES = 256 * 2**20
TURNS = 3
_MOST_BUFFERS, _BUFFERS_NBYTES = 8, 128 * 2**20
_MATRIX = 4096


def main() -> None:
    """Run the stage."""
    stage = parse_stage("copies", __doc__)
    device = torch.device(stage.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)
    else:
        torch.set_num_threads(1)
    link = stage.attempt("link", 2, lambda: measure_link(device, stage.small))
    if link is not None:
        stage.put("link", link)
    for what, seconds, measure in (
        ("batches", 6, lambda: measure_batches(stage, device, link)),
        ("overlap", 25, lambda: measure_overlap(stage, device)),
        ("conversion", 3, lambda: measure_conversion(stage, device)),
        ("loops", 20, lambda: measure_loops(stage, device)),
    ):
        stage.attempt(what, seconds, measure)


def bring(tensors: Any, device: torch.device) -> tuple[Tensor, ...]:
    """Return a batch on the device; a copy of it where the device is the CPU."""
    if device.type == "cpu":
        return tuple(tensor.clone() for tensor in tensors)
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)


def buffers(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, device: torch.device, *, pinned: bool
) -> list[tuple[Tensor, ...]]:
    """Return some batches in memory that was written to, so that the processor's caches do not hold them all."""
    nbytes = sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
    count = min(max(2, _BUFFERS_NBYTES // nbytes), _MOST_BUFFERS)
    pin = pinned and device.type == "cuda"
    return [tuple(torch.empty(shape, dtype=dtype, pin_memory=pin).fill_(1) for shape in shapes) for _ in range(count)]


def seconds_each(function: Callable[[int], Any], count: int, device: torch.device) -> float:
    """Return the seconds per call, including the work that the calls have started."""
    synchronize(device)
    began = time.perf_counter()
    for number in range(count):
        function(number)
    synchronize(device)
    return (time.perf_counter() - began) / count


def measure_link(device: torch.device, small: bool) -> dict[str, Any]:
    """Return the best rate of a large pinned copy, in GB/s (billions of bytes)."""
    nbytes = LINK_NBYTES // 64 if small else LINK_NBYTES
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda").fill_(1)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    found = [seconds_each(lambda _: target.copy_(source, non_blocking=True), 1, device) for _ in range(12)][2:]
    back = [seconds_each(lambda _: source.copy_(target, non_blocking=True), 1, device) for _ in range(6)][2:]
    return {
        "nbytes": nbytes,
        "gb_per_s": rounded(nbytes / min(found) / 1e9),
        "turns": [rounded(nbytes / each / 1e9) for each in found],
        "to_host_gb_per_s": rounded(nbytes / min(back) / 1e9),
    }


def batch_shapes(small: bool) -> Iterator[tuple[str, int, list[tuple[int, ...]]]]:
    """Yield the kinds of batches: name, number of samples, and shapes."""
    for count in (8,) if small else (8, 32, 64, 128, 256):
        yield "images of 224 px", count, [(count, 3, 224, 224)]
    for patch, counts in ((96, (8, 16, 32, 64, 128)), (64, (8, 32, 128)), (16, (8, 32, 128))):
        for count in counts[: 1 if small else None]:
            yield f"pairs of {patch} px", count, [(count, 3, side, side) for side in (patch // 2, patch)]


def measure_batches(stage: Stage, device: torch.device, link: dict[str, Any] | None) -> None:
    """Measure copies of batches as large as real ones, from pinned and paged memory in turn."""
    rows: list[dict[str, Any]] = []
    for what, count, shapes in batch_shapes(stage.small):
        for dtype in (torch.uint8, torch.float32):
            if stage.left < 2:
                stage.leave_out(f"copies of {what}, {count}", "no time was left")
                return
            sources = {
                memory: buffers(shapes, dtype, device, pinned=memory == "pinned") for memory in ("pinned", "paged")
            }
            nbytes = sum(tensor.numel() * tensor.element_size() for tensor in sources["paged"][0])
            # About 12 ms of copies at 25 GB/s.
            repeats = 2 if stage.small else min(max(4, int(0.3e9 / nbytes)), 300)
            together: dict[str, list[float]] = {memory: [] for memory in sources}
            alone: dict[str, list[float]] = {memory: [] for memory in sources}
            for turn in range(TURNS + 1):
                for memory, batches in sources.items():
                    copy = lambda number, batches=batches: bring(batches[number % len(batches)], device)  # noqa: E731
                    together_s = seconds_each(copy, repeats, device)
                    alone_s = statistics.median(seconds_each(copy, 1, device) for _ in range(5))
                    if turn:  # the first one takes memory
                        together[memory].append(together_s)
                        alone[memory].append(alone_s)
            for memory in sources:
                rate = nbytes / statistics.median(together[memory]) / 1e9
                rows.append(
                    {
                        "what": what,
                        "batch_size": count,
                        "dtype": str(dtype).removeprefix("torch."),
                        "memory": memory,
                        "nbytes": nbytes,
                        "gb_per_s": rounded(rate),
                        "share_of_link": None if link is None else rounded(rate / link["gb_per_s"]),
                        "us": rounded(1e6 * statistics.median(together[memory])),
                        "us_alone": rounded(1e6 * statistics.median(alone[memory])),
                        "turns": [rounded(nbytes / each / 1e9) for each in together[memory]],
                    }
                )
            del sources
        stage.put("batches", rows)


def measure_conversion(stage: Stage, device: torch.device) -> None:
    """Measure bytes sent and made floats on the device, against floats sent, until bfloat16 images are there."""
    normalise = feeds.normalise_there(device)

    def finish(images: Tensor) -> Tensor:
        return normalise(images, images)[0] if images.dtype == torch.uint8 else images.to(torch.bfloat16)

    rows = []
    for count in (4,) if stage.small else (32, 256):
        shapes: list[tuple[int, ...]] = [(count, 3, 224, 224)]
        sources = {
            str(dtype).removeprefix("torch."): buffers(shapes, dtype, device, pinned=True)
            for dtype in (torch.uint8, torch.bfloat16, torch.float32)
        }
        turns: dict[str, list[float]] = {name: [] for name in sources}
        repeats = 2 if stage.small else max(8, 1600 // count)
        for turn in range(TURNS + 1):
            for name, batches in sources.items():
                each = seconds_each(
                    lambda number, batches=batches: finish(bring(batches[number % len(batches)], device)[0]),
                    repeats,
                    device,
                )
                if turn:
                    turns[name].append(each)
        for name, found in turns.items():
            rows.append(
                {
                    "sent": name,
                    "batch_size": count,
                    "ms": rounded(1000 * statistics.median(found)),
                    "turns": [rounded(1000 * each) for each in found],
                }
            )
        stage.put("conversion", rows)


class Work:
    """Work of a length that is known, on the device: waiting, or products of matrices, which use its memory as well."""

    def __init__(self, kind: str, seconds: float, device: torch.device) -> None:
        self.kind, self.device, self.wanted = kind, device, seconds
        self._cycles = self._count = 0
        if device.type != "cuda":
            return
        if kind == "sleep":
            cycles = 20_000_000
            self._run = lambda count: torch.cuda._sleep(count)
        else:
            cycles = 16
            self._a, self._b = (torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2))
            self._c = torch.empty_like(self._a)
            self._run = self._multiply
        self._run(cycles)  # libraries are loaded
        each = statistics.median(seconds_each(lambda _: self._run(cycles), 3, device) for _ in range(3)) / cycles
        self._cycles = max(1, round(seconds / each))

    def __call__(self) -> None:
        """Do it once."""
        if self.device.type == "cuda":
            self._run(self._cycles)
        else:
            time.sleep(self.wanted)

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._a, self._b, out=self._c)


def measure_overlap(stage: Stage, device: torch.device) -> None:
    """Measure steps of a known length with a copy each: ahead on its own stream, or in the loop."""
    count = 4 if stage.small else 256
    steps = 2 if stage.small else 10
    pinned = buffers([(count, 3, 224, 224)], torch.float32, device, pinned=True)
    paged = buffers([(count, 3, 224, 224)], torch.float32, device, pinned=False)
    copy = statistics.median(
        seconds_each(lambda number: bring(pinned[number % len(pinned)], device), 6, device) for _ in range(TURNS)
    )
    nbytes = pinned[0][0].numel() * 4
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def ahead() -> Iterator[Any]:
        batches = (pinned[number % len(pinned)] for number in range(steps))
        return batches if stream is None else on_device(batches, device, stream)

    def in_loop(sources: list[tuple[Tensor, ...]]) -> Iterator[Any]:
        return (bring(sources[number % len(sources)], device) for number in range(steps))

    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "none": lambda: iter([pinned[0]] * steps),
        "ahead": ahead,
        "loop, pinned": lambda: in_loop(pinned),
        "loop, paged": lambda: in_loop(paged),
    }
    rows = []
    for kind in ("sleep", "matmul"):
        for ratio in (1.0,) if stage.small else (0.5, 1.0, 3.0):
            work = Work(kind, ratio * copy, device)
            turns: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(TURNS + 1):
                for name, open_way in ways.items():
                    synchronize(device)
                    began = time.perf_counter()
                    for _ in open_way():
                        work()
                    synchronize(device)
                    if turn:
                        turns[name].append((time.perf_counter() - began) / steps)
            compute = statistics.median(turns["none"])
            for name in ("ahead", "loop, pinned", "loop, paged"):
                step = statistics.median(turns[name])
                rows.append(
                    {
                        "work": kind,
                        "copied": name,
                        "nbytes": nbytes,
                        "compute_ms": rounded(1000 * compute),
                        "copy_ms": rounded(1000 * copy),
                        "step_ms": rounded(1000 * step),
                        "of_the_longer": rounded(step / max(compute, copy)),
                        "of_the_sum": rounded(step / (compute + copy)),
                        "turns_ms": [rounded(1000 * each) for each in turns[name]],
                    }
                )
            stage.put("overlap", rows)


def measure_loops(stage: Stage, device: torch.device) -> None:
    """Measure loops over real loaders, whose batches are brought to the device ahead or by the loop."""
    rows: list[dict[str, Any]] = []
    small, cores = stage.small, stage.cores
    raw256, pairs = stage.data / "raw256", stage.data / "pairs_raw"
    size, many = (32, 8) if small else (224, 256)

    def images(copies: feeds.Copies, dtype: torch.dtype) -> Feed:
        return feeds.loader_images(
            raw256, batch_size=many, size=size, device=device, dtype=dtype, copies=copies, endless=True
        )

    def restoring(copies: feeds.Copies, batch_size: int, crop: int | None, dtype: torch.dtype) -> Feed:
        return feeds.loader_pairs(
            pairs, batch_size=batch_size, device=device, crop=crop, dtype=dtype, copies=copies, endless=True
        )

    def by_workers(pinned: bool, batch_size: int, crop: int | None) -> Feed:
        return feeds.dataloader_pairs(
            pairs, batch_size=batch_size, device=device, workers=2 if small else min(8, cores), crop=crop, pinned=pinned
        )

    three: tuple[feeds.Copies, ...] = ("ahead", "pinned", "paged")
    cases: list[tuple[str, int, str, dict[str, Callable[[], Feed]]]] = []
    for dtype in (torch.float32, torch.uint8):
        ways: dict[str, Callable[[], Feed]] = {
            f"loader, {copies}": lambda copies=copies, dtype=dtype: images(copies, dtype)  # type: ignore[misc]
            for copies in three
        }
        cases.append((f"images of {size} px", many, str(dtype).removeprefix("torch."), ways))
    for batch_size, crop, dtype in (
        (64, None, torch.uint8),
        (64, None, torch.float32),
        (8, 64, torch.uint8),
        (8, 16, torch.uint8),
        (128, 16, torch.uint8),
        (128, 64, torch.uint8),
    )[: 2 if small else None]:
        number = min(batch_size, 8) if small else batch_size
        ways = {
            f"loader, {copies}": lambda copies=copies, number=number, crop=crop, dtype=dtype: restoring(  # type: ignore[misc]
                copies, number, crop, dtype
            )
            for copies in three
        }
        if dtype == torch.uint8:
            for pinned in (True, False):
                ways[f"DataLoader, {'pinned' if pinned else 'paged'}"] = (
                    lambda pinned=pinned, number=number, crop=crop: by_workers(pinned, number, crop)  # type: ignore[misc]
                )
        cases.append((f"pairs of {crop or 96} px", number, str(dtype).removeprefix("torch."), ways))
    for what, batch_size, dtype_name, ways in cases:
        told = f"loop over {what}, {batch_size}, {dtype_name}"
        stage.attempt(
            told,
            6,
            lambda what=what, n=batch_size, d=dtype_name, w=ways: rows.extend(compare(stage, what, n, d, w)),
        )
        stage.put("loops", rows)


def compare(
    stage: Stage, what: str, batch_size: int, dtype: str, ways: dict[str, Callable[[], Feed]]
) -> list[dict[str, Any]]:
    """Return the steps of one loop over several feeds, in turns, with work that is half as long again as reading."""
    device = torch.device(stage.device)
    with contextlib.ExitStack() as opened:
        running: dict[str, tuple[Feed, Iterator[Any]]] = {}
        for name, open_feed in ways.items():
            try:
                feed = open_feed()
                opened.callback(feed.close)
                raw = feed.raw()
                feed.place(next(raw))
                running[name] = (feed, raw)
            except Exception as error:
                stage.leave_out(f"loop over {what}, {batch_size}, {name}", f"{type(error).__name__}: {error}"[:300])
        if not running:
            return []
        first, raw = next(iter(running.values()))
        drain(first, raw)
        count = 1 if stage.small else max(2 * first.period, 16)
        reading = seconds_each(lambda _: first.place(next(raw)), count, device)
        work = Work("sleep", min(max(1.5 * reading, 0.0005), 0.1), device)
        steps = 2 if stage.small else min(max(12, int(0.25 / work.wanted)), 500)
        compute = statistics.median(seconds_each(lambda _: work(), min(steps, 50), device) for _ in range(TURNS))
        turns: dict[str, list[float]] = {name: [] for name in running}
        for turn in range(1 if stage.small else TURNS):
            for name, (feed, raw) in running.items():

                def step(number: int, feed: Feed = feed, raw: Iterator[Any] = raw) -> None:
                    feed.place(next(raw))
                    work()

                # Every turn starts with the same number of ready batches, except the first, which has fewer.
                if not turn:
                    seconds_each(step, min(steps, 10), device)
                turns[name].append(seconds_each(step, steps, device))
        for _, raw in running.values():
            raw.close()  # type: ignore[attr-defined]
    return [
        {
            "what": what,
            "batch_size": batch_size,
            "dtype": dtype,
            "way": name,
            "reading_ms": rounded(1000 * reading),
            "compute_ms": rounded(1000 * compute),
            "step_ms": rounded(1000 * statistics.median(found)),
            "share": rounded(compute / statistics.median(found)),
            "turns_ms": [rounded(1000 * each) for each in found],
        }
        for name, found in turns.items()
    ]


if __name__ == "__main__":
    main()
