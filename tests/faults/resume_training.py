"""Epochs interrupted at random steps and resumed with other threads, batch sizes and ranks: the rest is unchanged.

Some parts run in a process of their own that hands its place over in a file, and some of these die by SIGKILL
in the step after the one that they have saved.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch

from .cases import Wrong
from .outcome import Outcome

_COUNT = 211
_EPOCHS = 3
# It takes a few seconds; many times that where the machine is busy. Where it hangs, its stack is printed.
_HUNG_SECONDS = 300.0
_ORDERS = ("random", "quasi_random", "sequential", "small windows")
_ENDS: dict[str, dict[str, Any]] = {"short": {}, "padded": {"pad": True}, "dropped": {"drop_last": True}}
_Expected = dict[tuple[str, int], tuple[list[int], dict[int, torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings that may differ from one part of an epoch to the next."""

    batch_size: int
    world_size: int
    num_threads: int
    prefetch: int
    io: str


@dataclass(frozen=True, slots=True)
class _Part:
    """The arguments of one part of an epoch; they pickle."""

    path: str
    order: str
    end: str
    epoch: int
    settings: _Settings
    state: dict[str, Any] | None
    steps: int | None
    is_killed: bool = False


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Interrupt `count` epochs, each up to three times, and compare every sample with the undisturbed run's."""
    path = folder / "d"
    _make_dataset(path)
    expected = {(order, epoch): _undisturbed(path, order, epoch) for order in _ORDERS for epoch in range(_EPOCHS + 1)}
    names = ("epochs", "interruptions", "with other settings", "in other processes", "killed", "samples compared")
    counts = dict.fromkeys((*names, "different"), 0)
    failures: list[str] = []
    for number in range(count):
        story: list[str] = []
        try:
            _case(random.Random(f"{seed} {number}"), path, folder / "given.pt", expected, counts, story)
        except Exception as error:
            counts["different"] += 1
            failures.append(f"case {number} of seed {seed}: {type(error).__name__}: {error}: {'; '.join(story)}")
    return Outcome("resume_training", "bit-equal remainder", counts, failures)


def _case(
    rng: random.Random, path: Path, file: Path, expected: _Expected, counts: dict[str, int], story: list[str]
) -> None:
    order, epoch, end = rng.choice(_ORDERS), rng.randrange(_EPOCHS), rng.choice(list(_ENDS))
    story.append(f"{order}, epoch {epoch}, {end}")
    settings = last = _settings(rng)
    state: dict[str, Any] | None = None
    given: list[int] = []
    counts["epochs"] += 1
    num_parts = rng.randint(2, 4)
    for number in range(num_parts):
        if number:
            counts["interruptions"] += 1
            if rng.random() < 0.8:
                before, settings = settings, _settings(rng)
                counts["with other settings"] += settings != before
        left = _COUNT - (0 if state is None else state["position"])
        steps = rng.randint(0, _num_steps(left, settings, end)) if number < num_parts - 1 else None
        last = settings if left else last
        elsewhere = rng.random() < 0.15
        killed = elsewhere and steps is not None and rng.random() < 0.5
        part = _Part(str(path), order, end, epoch, settings, state, steps, killed)
        story.append(f"{left} left, {steps} steps of {settings}{', elsewhere' * elsewhere}{', killed' * killed}")
        found = _elsewhere(part, file) if elsewhere else _give(part)
        counts["in other processes"] += elsewhere
        counts["killed"] += killed
        counts["samples compared"] += len(found["numbers"])
        _compare(found, expected[order, epoch][1])
        given += found["numbers"]
        state = found["state"]
    if state is None or (state["epoch"], state["position"]) != (epoch + 1, 0):
        raise Wrong(f"at the end the place is {state}")
    _check_order(given, expected[order, epoch][0], end, last)
    found = _give(_Part(str(path), order, end, epoch + 1, settings, state, 1))
    _compare(found, expected[order, epoch + 1][1])
    _check_order(found["numbers"], expected[order, epoch + 1][0][: len(found["numbers"])], "short", last)


def _settings(rng: random.Random) -> _Settings:
    from lmdbloader.base.cores import count_cores

    threads = min(rng.randint(1, 2), count_cores())
    return _Settings(rng.randint(1, 20), rng.randint(1, 4), threads, rng.randint(0, 3), rng.choice(["mmap", "pread"]))


def _num_steps(left: int, settings: _Settings, end: str) -> int:
    whole, rest = divmod(left, settings.batch_size * settings.world_size)
    return whole + (rest > 0 and end != "dropped")


def _compare(found: dict[str, Any], expected: dict[int, torch.Tensor]) -> None:
    for number, image in zip(found["numbers"], found["images"], strict=True):
        if not torch.equal(image, expected[number]):
            raise Wrong(f"sample {number} came otherwise")


def _check_order(given: list[int], order: list[int], end: str, last: _Settings) -> None:
    """Check that all ranks together got the order, except samples left out or repeated at its end."""
    missing = len(order) - len(given)
    low = 1 - last.world_size if end == "padded" else 0
    high = last.batch_size * last.world_size - 1 if end == "dropped" else 0
    if not low <= missing <= high:
        raise Wrong(f"{len(given)} samples were given of {len(order)}")
    if given != (order + order)[: len(given)]:
        raise Wrong("samples were given in another order")


def _make_dataset(path: Path) -> None:
    import numpy as np

    import lmdbloader

    rng = np.random.default_rng(0)
    pictures = (rng.integers(0, 256, (20, 20, 3)).astype(np.uint8) for _ in range(_COUNT))
    lmdbloader.write(({"image": p, "number": i, "raw": bytes([i] * 3)} for i, p in enumerate(pictures)), path)


def _undisturbed(path: Path, order: str, epoch: int) -> tuple[list[int], dict[int, torch.Tensor]]:
    found = _give(_Part(str(path), order, "short", epoch, _Settings(32, 1, 1, 2, "mmap"), None, None))
    return found["numbers"], dict(zip(found["numbers"], found["images"], strict=True))


def _loaders(part: _Part) -> list[Any]:
    """Return the loaders of all ranks, at their place."""
    import lmdbloader
    from lmdbloader.transforms import ColorJitter, RandomCrop, RandomDihedral, ToDtype

    settings, loaders = part.settings, []
    order: Any = lmdbloader.QuasiRandom(5000, 20_000) if part.order == "small windows" else part.order
    io: Any = settings.io
    for rank in range(settings.world_size):
        loader = lmdbloader.Loader(
            lmdbloader.LMDBDataset(part.path), settings.batch_size, order=order, seed=11,
            transforms=[RandomCrop(12), RandomDihedral(), ColorJitter(0.3), ToDtype(torch.float32, scale=True)],
            num_threads=settings.num_threads, prefetch=settings.prefetch, io=io, shard=(rank, settings.world_size),
            **_ENDS[part.end],
        )  # fmt: skip
        if part.state is not None:
            loader.load_state_dict(part.state)
        loader.set_epoch(part.epoch)
        loaders.append(loader)
    return loaders


def _steps(part: _Part) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the batches of all ranks, step by step, with their place after it: before the first, and after the last."""
    loaders = _loaders(part)
    yield [], loaders[0].state_dict()
    for step in zip_longest(*loaders):
        states = [loader.state_dict() for loader, batch in zip(loaders, step, strict=True) if batch is not None]
        if any(state != states[0] for state in states):
            raise Wrong(f"ranks are at different places: {states}")
        yield [batch for batch in step if batch is not None], states[0]
    yield [], loaders[-1].state_dict()


def _give(part: _Part, save: Callable[[dict[str, Any]], None] = lambda given: None) -> dict[str, Any]:
    """Return the numbers of the samples that all ranks are given, their images, and the place after that."""
    given: dict[str, Any] = {"numbers": [], "images": torch.empty(0, 3, 12, 12)}
    steps = _steps(part)
    for batches, state in islice(steps, None if part.steps is None else part.steps + 1):
        dealt: list[tuple[int, int, torch.Tensor]] = []
        for rank, batch in enumerate(batches):
            numbers = batch.number.tolist()
            if batch.raw != [bytes([number] * 3) for number in numbers]:
                raise Wrong("a sample came with the bytes of another one")
            dealt += [
                (k * part.settings.world_size + rank, *of)
                for k, of in enumerate(zip(numbers, batch.image, strict=True))
            ]
        # Ranks take turns: position by position, they have the step.
        dealt.sort(key=lambda one: one[0])
        given["numbers"] += [number for _, number, _ in dealt]
        given["images"] = torch.cat([given["images"], *(image[None] for _, _, image in dealt)])
        given["state"] = state
        save(given)
    if part.is_killed:
        next(steps, None)  # this step is lost, and comes again
        os.kill(os.getpid(), signal.SIGKILL)
    return given


def _elsewhere(part: _Part, file: Path) -> dict[str, Any]:
    """Do as `_give` in another process, which saves its samples after every step."""
    file.unlink(missing_ok=True)
    process = multiprocessing.get_context("spawn").Process(target=_give_and_save, args=(part, str(file)))
    process.start()
    process.join(2 * _HUNG_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise Wrong("a process hung")
    if process.exitcode != (-signal.SIGKILL if part.is_killed else 0):
        raise Wrong(f"a process ended with status {process.exitcode}")
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    return saved


def _give_and_save(part: _Part, file: str) -> None:
    faulthandler.dump_traceback_later(_HUNG_SECONDS)

    def save(given: dict[str, Any]) -> None:
        torch.save(given, f"{file}.partial")
        os.replace(f"{file}.partial", file)

    _give(part, save)
