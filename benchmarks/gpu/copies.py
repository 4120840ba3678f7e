"""Stage (c): the cost of copying batches to the device, from pinned and from paged memory, without other work.

Figures are shares of the link: the best of a few pinned copies of 256 MiB. Without a GPU, copies within memory
stand in.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fed import rounded, synchronize
from stage import Stage, parse_stage
from torch import Tensor

LINK_NBYTES = 256 * 2**20
TURNS = 3
_MOST_BUFFERS, _BUFFERS_NBYTES = 8, 128 * 2**20


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
    stage.attempt("batches", 6, lambda: measure_batches(stage, device, link))


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


if __name__ == "__main__":
    main()
