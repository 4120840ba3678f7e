"""The bottleneck, the advice and its gain follow from the times of a typical step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from lmdbloader.base.stage_times import StageTimes
from lmdbloader.lab.profiling.bottleneck import (
    Advice,
    TypicalStep,
    advise,
    loading_cost,
    name_bottleneck,
    other_codec,
)
from lmdbloader.lab.profiling.loader_facts import LoaderFacts, StoredImages
from lmdbloader.lab.profiling.threads import ThreadTimes

JPEGS = StoredImages({"jpeg": 1.0}, 100_000, 1_500_000, 1000, is_resized=True)
PIXELS = StoredImages({"raw": 1.0}, 30_000, 30_000, 100, is_resized=False)
PACKED = StoredImages({"lz4": 1.0}, 15_000, 30_000, 100, is_resized=False)
DELTA = replace(PACKED, codecs={"delta": 1.0})
SLOW = replace(JPEGS, are_slow_jpegs=True)
FAST = "recode /data/train.lmdb OUT --jpeg-code fast"
FACTS = LoaderFacts("Loader", "loader", 2, 2, "random", "/data/train.lmdb", 2, 8, PIXELS)


def figures(step: float, busy: float, *, delayed: float = 0.0, copy: float = 0.0, **stages: float) -> TypicalStep:
    """Return a typical step, in milliseconds, whose batches cost two threads the times of `stages`."""
    seconds = {name: value / 1000 for name, value in stages.items()}
    total = sum(seconds.values())
    loading = ThreadTimes(max(total - delayed / 1000, 0.0), delayed / 1000)
    times = StageTimes(**seconds, num_batches=10, nbytes=30_000_000) if stages else None
    return TypicalStep(step / 1000, (step - busy) / 1000, copy / 1000, times, loading, None, 0.0, 10)


def named(
    found: TypicalStep,
    facts: LoaderFacts = FACTS,
    *,
    is_copied: bool = False,
    side: int | None = 96,
    device: str = "cuda",
) -> Any:
    """Return the bottleneck and the advice."""
    feed = loading_cost(found, facts.kind, facts.num_threads)
    name = name_bottleneck(found, feed, is_copied=is_copied)
    return name, advise(name, found, feed, facts, side=side, device=device)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"read": 150, "verify": 5, "decode": 20, "transform": 25}, "storage"),
        ({"read": 20, "verify": 150, "transform": 30}, "verify"),
        ({"read": 10, "decode": 150, "transform": 40}, "decode"),
        ({"read": 10, "decode": 50, "transform": 140}, "transform"),
        ({"read": 10, "decode": 80, "transform": 60, "buffer": 50}, "transform"),
        ({"read": 10, "transform": 60, "function": 130}, "function"),
    ],
)
def test_the_largest_stage_holds_up_a_loop_that_waits(stages: dict[str, float], expected: str) -> None:
    found = figures(100, 10, **stages)
    name, advice = named(found)
    assert name == expected
    assert advice.step_seconds + advice.gain_seconds == pytest.approx(found.step)
    assert found.busy <= advice.step_seconds + 1e-12
    # The same stages are not a bottleneck if the loop does not wait.
    assert named(figures(100, 99, **stages))[0] == "model"
    assert named(figures(0.1, 0.06, **stages))[0] == "model"


@pytest.mark.parametrize(
    ("step", "busy", "delayed", "expected"),
    [
        # Without delays a batch costs a quarter: the loop would have it in time.
        (100, 40, 150, "cpu"),
        # Other programs take three quarters of the time, and decoding is too slow all the same.
        (100, 10, 150, "decode"),
        # Some delay is always there.
        (100, 80, 40, "decode"),
    ],
)
def test_waiting_for_a_core_differs_from_being_slow(step: float, busy: float, delayed: float, expected: str) -> None:
    assert named(figures(step, busy, delayed=delayed, decode=140, transform=60))[0] == expected


def test_the_loops_wait_for_a_core_does_not_make_cpu_the_bottleneck_of_a_slow_pipeline() -> None:
    """Two cores that eight others use: the loop's own step seems long, and decoding takes 30 ms a step at best."""
    found = figures(300, 40, delayed=540, decode=590, transform=10)
    assert named(found)[0] == "cpu"
    assert named(replace(found, loop=ThreadTimes(0.001, 0.2)))[0] == "decode"
    # Of a loop that mostly waits for data, most of its delay is after a batch has come.
    assert named(replace(found, loop=ThreadTimes(0.001, 0.035)))[0] == "cpu"


# --- What would help ---


def advice_of(facts: LoaderFacts = FACTS, *, side: int | None = 96, device: str = "cpu", **stages: float) -> Advice:
    found: Advice = named(figures(100, 10, **stages), facts, side=side, device=device)[1]
    return found


@pytest.mark.parametrize(
    ("facts", "stages", "said", "milliseconds"),
    [
        # Two threads at 200 ms a batch make 100 ms a step; the rest of the 200 is in proportion.
        (replace(FACTS, images=PACKED), {"decode": 150, "transform": 50}, "--codec raw", 25),
        # Twice the bytes are to be read and checked.
        (replace(FACTS, images=PACKED), {"read": 20, "verify": 20, "decode": 140, "transform": 20}, "--codec raw", 50),
        (replace(FACTS, images=replace(JPEGS, is_resized=False)), {"decode": 160, "transform": 40}, "raw", 20),
        # 110 of 1000 pixels a side: 1.21 % of the pixels, 18 % of the bytes.
        (replace(FACTS, images=JPEGS), {"read": 20, "decode": 140, "transform": 40}, "--max-resolution 110", 21.8),
        # Recoding saves 3 / 8 of decoding, pixels that fit in memory all of it.
        (replace(FACTS, images=SLOW), {"decode": 160, "transform": 40}, f"{FAST}` loses nothing", 20),
        (replace(FACTS, images=replace(SLOW, side=100, fits_raw=False)), {"decode": 160, "transform": 40}, FAST, 70),
        (replace(FACTS, images=DELTA), {"decode": 160, "transform": 40}, "recode /data/train.lmdb OUT --codec raw", 20),
        (replace(FACTS, images=replace(DELTA, fits_raw=False)), {"decode": 200}, "do not fit in memory", 50),
        (FACTS, {"transform": 200}, "twice as many cores", 50),
        (replace(FACTS, num_cores=8), {"transform": 200}, "num_threads=8", 25),
        (FACTS, {"verify": 180, "transform": 20}, "verify=False", 10),
        (FACTS, {"function": 100, "transform": 20}, "compiled ones of lmdbloader.transforms", 16.7),
        (FACTS, {"function": 100}, "dataset's own transform", 10),
        # 3 MB a step take 3 ms from a fast disk, of 200.
        (FACTS, {"read": 180, "transform": 20}, "lmdbloader stage /data/train.lmdb", 11.5),
        (replace(FACTS, path="/my data/a.lmdb"), {"read": 180, "transform": 20}, "stage '/my data/a.lmdb' DIR", 11.5),
        (FACTS, {"read": 180, "transform": 20}, "order='quasi_random'", 11.5),
        (FACTS, {"read": 180, "transform": 20}, "recode /data/train.lmdb OUT --codec delta", 11.5),
        (replace(FACTS, images=None), {"decode": 200}, "codec='raw'", 10),
    ],
)
def test_the_change_that_helps_most_is_given_with_its_gain(
    facts: LoaderFacts, stages: dict[str, float], said: str, milliseconds: float
) -> None:
    advice = advice_of(facts, **stages)
    assert said in advice.text
    assert 1000 * advice.step_seconds == pytest.approx(milliseconds, abs=0.06)
    assert f"{milliseconds:.3g} ms a step instead of 100 ms" in str(advice)


MOVES = replace(FACTS, moves_there=True)
ON_GPU = replace(MOVES, device="cuda:0", images=replace(PIXELS, fits_device=True))
DECODED = replace(FACTS, images=replace(JPEGS, fits_decoded=True))


@pytest.mark.parametrize(
    ("facts", "stages", "device", "said"),
    [
        (MOVES, {"transform": 150, "read": 50}, "cuda", "device='cuda', on='device'"),
        (MOVES, {"transform": 150, "read": 50}, "cpu", "twice as many cores"),
        (FACTS, {"transform": 150, "read": 50}, "cuda", "twice as many cores"),
        # Less than half of the time is saved.
        (MOVES, {"transform": 90, "decode": 60, "read": 50}, "cuda", "twice as many cores"),
        (ON_GPU, {"transform": 150, "read": 50}, "cuda", "keep='device'"),
        (ON_GPU, {"read": 150, "transform": 50}, "cuda", "keep='device'"),
        (ON_GPU, {"read": 150, "transform": 50}, "cpu", "a fast disk"),
        (replace(ON_GPU, keep="device"), {"transform": 150, "read": 50}, "cuda", "on='device'"),
        (DECODED, {"decode": 150, "transform": 50}, "cpu", "keep='memory'"),
        (replace(DECODED, images=JPEGS), {"decode": 150, "transform": 50}, "cpu", "--max-resolution"),
        (replace(DECODED, keep="memory"), {"decode": 150, "transform": 50}, "cpu", "--max-resolution"),
        (replace(DECODED, images=replace(PACKED, fits_decoded=True)), {"decode": 150}, "cpu", "--codec raw"),
        (replace(DECODED, kind="workers"), {"decode": 150, "transform": 50}, "cpu", "--max-resolution"),
    ],
)
def test_a_loader_leaves_work_to_the_device_or_keeps_what_it_has_done(
    facts: LoaderFacts, stages: dict[str, float], device: str, said: str
) -> None:
    assert said in advice_of(facts, device=device, **stages).text


@pytest.mark.parametrize("images", [JPEGS, replace(SLOW, is_resized=False), DELTA])
def test_nothing_is_recoded_without_need(images: StoredImages) -> None:
    facts = replace(FACTS, images=images)
    assert "--codec delta" not in advice_of(facts, read=200).text
    assert "--jpeg-code" not in advice_of(facts, decode=200).text
    assert "recode" not in advice_of(facts, transform=200).text


@pytest.mark.parametrize(
    ("images", "stage", "said"),
    [
        (SLOW, "decode", FAST),
        (SLOW, "transform", ""),
        (JPEGS, "decode", ""),
        (DELTA, "decode", "OUT --codec raw"),
        (replace(DELTA, fits_raw=False), "decode", ""),
        (replace(DELTA, fits_raw=False), "read", ""),
        # From the second epoch on it is read from memory.
        (PIXELS, "read", ""),
        (replace(PIXELS, fits_raw=False), "read", "OUT --codec delta"),
        (replace(PACKED, fits_raw=False), "read", "OUT --codec delta"),
        (replace(PACKED, fits_raw=False), "decode", ""),
        (None, "decode", ""),
    ],
)
def test_the_codec_that_suits_the_slowest_stage(images: StoredImages | None, stage: str, said: str) -> None:
    found = other_codec(StageTimes(**{"verify": 1.0, stage: 2.0}), replace(FACTS, images=images))
    assert said in found and bool(said) == bool(found)


# --- Without a Loader ---


@pytest.mark.parametrize(
    ("running", "delayed", "expected"),
    [
        (160, 20, "function"),  # of 200 ms that two workers have in a step of 100
        (20, 170, "cpu"),
        (20, 10, "storage"),
        (None, 0, "function"),  # unknown
    ],
)
def test_the_core_time_of_worker_processes_shows_their_bottleneck(
    running: float | None, delayed: float, expected: str
) -> None:
    loading = None if running is None else ThreadTimes(running / 1000, delayed / 1000)
    found = replace(figures(100, 30), loading=loading)
    facts = replace(FACTS, name="DataLoader", kind="workers", images=None, path=None)
    assert named(found, facts)[0] == expected


@pytest.mark.parametrize(("waiting", "expected"), [(0.075, "function"), (0.01, "storage")])
def test_the_core_time_of_the_loops_own_thread_shows_its_bottleneck(waiting: float, expected: str) -> None:
    found = replace(figures(100, 20), loading=ThreadTimes(waiting + 0.02, 0.0), waiting=waiting)
    facts = replace(FACTS, name="list", kind="main", num_threads=1, images=None, path=None)
    name, advice = named(found, facts)
    assert name == expected
    assert advice.step_seconds < 0.1


seconds = st.floats(0, 10)


def test_a_prediction_that_changes_nothing_says_so() -> None:
    assert str(Advice("Do this.", 0.0042, 1e-8)) == "Do this. Predicted: hardly shorter steps."
    stages = {"read": 10, "decode": 150, "transform": 40}
    same = replace(JPEGS, raw_nbytes=100_000, is_resized=False, fits_raw=False)
    text = str(named(figures(100, 10, **stages), replace(FACTS, images=same))[1])
    assert "1.0 times" not in text and "about as large as it is" in text
