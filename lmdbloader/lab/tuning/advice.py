"""What a grid of settings tells beside which is best: what workers and pinned memory bring, and small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lmdbloader.lab.tuning.race import Setting
from lmdbloader.lab.tuning.results import Row

# Fewer samples than these share what a batch costs.
_SMALL_BATCH = 64
_NOTABLY = 1.05


def advise(
    rows: Sequence[Row], picks: Mapping[str, Setting], batch_size: int, *, has_accelerator: bool
) -> Iterator[str]:
    """Yield what there is to know about a grid.

    Args:
        rows: What was measured.
        picks: The setting that was chosen, by kind.
        batch_size: Samples in a batch.
        has_accelerator: Whether pinned memory was measured.
    """
    speed = {row.setting: row.samples_per_s for row in rows}
    workers = [setting for setting in speed if setting.kind == "workers"]
    pick = picks.get("workers")
    if pick is not None:
        most = max(s for s in workers if s.pinned == pick.pinned)
        if most.count > pick.count and speed[pick] > _NOTABLY * speed[most]:
            yield (
                f"More workers are no help here: with {most.count} the DataLoader reads "
                f"{speed[most] / speed[pick]:.2f} x as much as with {pick.count}."
            )
        yield from _about_pinning(speed, pick, has_accelerator)
        if "threads" in picks:
            ratio = f"The Loader reads {speed[picks['threads']] / speed[pick]:.2f} x as much as the DataLoader"
            yield (
                f"{ratio}, whose workers send every batch to this process."
                if pick.count
                else f"{ratio}, which reads best without workers here, and then lets each step wait for its batch."
            )
    if batch_size < _SMALL_BATCH:
        yield _about_small_batches(batch_size, "threads" in picks)


def _about_pinning(speed: Mapping[Setting, float], pick: Setting, has_accelerator: bool) -> Iterator[str]:
    if not has_accelerator:
        yield "No accelerator: pinned memory, which only copies to one profit from, was not measured and is off."
        return
    pinned, paged = (Setting("workers", pick.count, is_pinned) for is_pinned in (True, False))
    if pinned in speed and paged in speed:
        ratio = speed[pinned] / speed[paged]
        yield f"With {pick.count} workers, pinned memory gives {ratio:.2f} x the samples/s of paged."


def _about_small_batches(batch_size: int, has_loader: bool) -> str:
    text = (
        f"Batches of {batch_size} are small: what a DataLoader's batch costs whatever its size (sending it, pinning "
        "it) is shared by few samples, so fewer workers and paged memory are often best. Tune each size by itself."
    )
    return f"{text} The Loader's threads read several of them in one go." if has_loader else text
