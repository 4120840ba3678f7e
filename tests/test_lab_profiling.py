"""A profile shows where steps spend their time, for every kind of loader; it can be stored and compared."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.lab.machine import describe_environment
from lmdbloader.lab.profiling import Profile, Recorder, profile, rehearse
from lmdbloader.lab.profiling.loader_facts import facts_of
from lmdbloader.lab.profiling.threads import ThreadWatch

PHASES = ("data", "copy", "forward", "backward", "update", "compute")


@pytest.fixture(scope="module")
def patches(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    """384 patches of 24 pixels, as they are."""
    path = tmp_path_factory.mktemp("profiling") / "patches"
    lmdbloader.convert(photos, path, patch_size=24, codec="raw", workers=1)
    return lmdbloader.LMDBDataset(path)


def batches(count: int = 12, *, seconds: float = 0.0) -> Iterator[torch.Tensor]:
    for _ in range(count):
        time.sleep(seconds)
        yield torch.zeros(4, 3, 8, 8)


def is_timed(loader: lmdbloader.Loader) -> bool:
    loader.close()  # waits for the threads
    before = loader.stage_times()
    next(iter(loader))
    loader.close()
    return loader.stage_times() != before


# --- The recorder ---


def test_a_loop_marks_its_phases_and_the_rest_is_compute() -> None:
    with Recorder(list(batches()), warmup=2) as recorder:
        for _ in recorder:
            time.sleep(0.002)
            recorder.lap("forward")
            time.sleep(0.004)
    found = recorder.profile()
    assert found.num_steps == 10
    assert found.num_samples == 40
    assert list(found.phases) == ["data", "forward", "compute"]
    assert found.phases["forward"].p50 >= 0.002
    assert found.phases["compute"].p50 >= 0.004
    assert sum(phase.share for phase in found.phases.values()) == pytest.approx(1)
    assert found.step.mean == pytest.approx(sum(phase.mean for phase in found.phases.values()))
    assert (found.bottleneck, found.is_healthy, found.advice.gain_seconds) == ("model", True, 0)


def test_a_generator_is_profiled_until_it_ends() -> None:
    found = profile(batches(12), lambda batch: None, steps=100, warmup=2)
    assert found.num_steps == 10
    with pytest.raises(OptionError, match="2 steps were recorded, and the first 2"):
        profile(batches(2), lambda batch: None, steps=100, warmup=2)


def test_stage_times_that_somebody_takes_go_on(patches: lmdbloader.LMDBDataset) -> None:
    loader = lmdbloader.Loader(patches, 64, shuffle=True)
    assert not loader.time_stages()
    with Recorder(loader, warmup=0) as recorder:
        list(recorder)
    assert recorder.profile().stages is not None
    assert is_timed(loader)
    assert loader.time_stages(False)


def test_batches_that_come_on_the_device_are_not_copied(
    patches: lmdbloader.LMDBDataset, fake_cuda: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop does on the device before the model is long, and nothing a Loader's device= would take from it."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="0"))
    expected = {None: "copy", "cuda:1": "copy", "cuda": "model", "cuda:0": "model"}
    for device, name in expected.items():
        loader = lmdbloader.Loader(patches, 64, shuffle=True)
        monkeypatch.setattr(lmdbloader.Loader, "device", torch.device(device or "cpu"))
        fake_cuda[:] = np.cumsum([0, 0, 0] + [1, 50, 50] * 20).tolist()
        with Recorder(loader, warmup=0, device="cuda:0") as recorder:
            for _ in recorder:
                recorder.lap("copy")
        found = recorder.profile()
        assert found.phases["copy"].share > 0.3
        assert found.bottleneck == name
        assert ("device='cuda:0'" in str(found)) is (name == "copy")


@pytest.mark.parametrize(
    ("uuid", "device", "visible", "expected"),
    [
        ("1234", "cuda:1", "3,4", "GPU-1234"),
        (None, "cuda:1", "", 1),
        (None, "cuda", "", 2),
        (None, "cuda:0", "3,4", None),
    ],
)
def test_the_gpu_that_trains_is_looked_at_or_none(
    uuid: str | None, device: str, visible: str, expected: Any, fake_cuda: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    properties = types.SimpleNamespace(**({} if uuid is None else {"uuid": uuid}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr("lmdbloader.lab.profiling.recorder.GpuSampler", seen.append)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    Recorder([torch.zeros(1)], device=device)
    assert seen == [expected]


class Stranger:
    """A child of this process that loads nothing; it does what this thread does."""

    pid = os.getpid()


def test_a_child_that_loads_nothing_is_not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [Stranger()])
    assert facts_of([torch.zeros(1)]).kind == "main"
    watch = ThreadWatch("workers")
    work()
    watch.look()
    assert not watch.is_there


@pytest.mark.parametrize("is_persistent", [False, True])
def test_of_workers_only_the_loaders_own_are_watched(is_persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Slow(wait), 4, num_workers=1, persistent_workers=is_persistent)
    if is_persistent:
        next(iter(loader))
    recorder = Recorder(loader, warmup=1)
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [Stranger()])  # it has come since
    with recorder:
        for _ in recorder:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
    loading = recorder.profile().loading
    assert loading is not None
    assert 0 < loading.running < 0.15  # of 0.3 s that the loop computes


def test_a_step_that_is_left_early_counts_and_time_left_out_does_not() -> None:
    with Recorder(list(batches()), warmup=0) as recorder:
        for number, _ in enumerate(recorder):
            recorder.lap("forward")
            time.sleep(0.05)
            recorder.leave_out()
            if number == 3:
                break
    found = recorder.profile()
    assert found.num_steps == 4
    assert found.step.p50 < 0.04


def test_a_loader_that_waits_in_python_gets_that_advice(patches: lmdbloader.LMDBDataset) -> None:
    def busily(batch: Any) -> Any:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return batch

    loader = lmdbloader.Loader(patches, 64, shuffle=True, transforms=[busily], num_threads=1)
    found = rehearse(loader, 0.0, steps=8, warmup=3)
    assert found.bottleneck == "function"
    assert found.stages is not None
    assert found.stages.function >= 0.04  # half of it: batches that were read before do not count
    assert found.loading is not None
    assert found.loading.running >= 0.04
    assert "compiled ones of lmdbloader.transforms" in str(found)
    assert found.advice.is_bound
    assert not is_timed(loader)


def test_a_loader_that_something_wraps_is_found(patches: lmdbloader.LMDBDataset) -> None:
    class Numbered:
        def __init__(self, loader: lmdbloader.Loader) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            return iter(self.loader)

    # One thread: many cores read all batches before the first step.
    loader = lmdbloader.Loader(patches, 64, shuffle=True, num_threads=1)
    found = rehearse(Numbered(loader), 0.001, steps=2, warmup=1)
    assert found.loader == "Loader"
    assert found.stages is not None
    assert found.stages.num_batches > 0


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that Python works on for a while, or waits for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        self.work()
        return torch.zeros(3, 4, 4)


def work() -> None:
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass


def wait() -> None:
    time.sleep(0.003)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("how", "expected"), [(work, "function"), (wait, "storage")])
def test_work_and_waits_of_torchs_loader_are_distinguished(
    num_workers: int, how: Callable[[], None], expected: str
) -> None:
    loader = DataLoader(Slow(how), 4, num_workers=num_workers)
    found = rehearse(loader, 0.001, steps=8, warmup=1)
    assert found.bottleneck == expected
    assert found.stages is None
    assert found.loader == "DataLoader"
    assert found.num_threads == 1


# --- A step function ---


def test_a_step_function_with_lap_marks_its_phases() -> None:
    def step(batch: torch.Tensor, lap: Callable[[str], None]) -> None:
        for phase in ("copy", "forward", "backward", "update"):
            time.sleep(0.001)
            lap(phase)

    found = lmdbloader.lab.profile(list(batches(3)), step, steps=7, warmup=1)
    assert found.num_steps == 7
    assert [name for name, phase in found.phases.items() if phase.p50 >= 0.001] == list(PHASES[1:5])


def test_without_lap_the_optimisers_work_is_update() -> None:
    model = torch.nn.Linear(3, 1)
    adam = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor, scale: float = 1.0) -> None:
        adam.zero_grad()
        (scale * model(batch).sum()).backward()
        adam.step()

    found = profile([torch.zeros(2, 3)] * 4, step, steps=4, warmup=0)
    assert set(found.phases) == {"data", "update", "compute"}
    # A recorder without laps has no optimiser phase.
    with Recorder([torch.zeros(2, 3)] * 2, warmup=0) as recorder:
        for batch in recorder:
            step(batch)
    assert set(recorder.profile().phases) == {"data", "compute"}


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        ([], {}, "gives no batch"),
        ([torch.zeros(1)], {"steps": 0}, "steps=0: expected at least 1"),
        ([torch.zeros(1)], {"warmup": -1}, "warmup=-1: expected at least 0"),
    ],
)
def test_a_loader_that_gives_no_steps_is_refused(loader: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        profile(loader, lambda batch: None, **options)


def test_too_few_steps_and_a_step_without_a_length_say_so() -> None:
    with Recorder(list(batches(2)), warmup=2) as recorder:
        assert len(list(recorder)) == 2
    with pytest.raises(OptionError, match=r"2 steps were recorded, and the first 2 .*warmup=0"):
        recorder.profile()
    with pytest.raises(OptionError, match="not recording"):
        next(iter(recorder))
    with pytest.raises(OptionError, match=r"step_seconds=-1: expected seconds"):
        rehearse([torch.zeros(1)], -1)


# --- What comes out ---


@pytest.fixture(scope="module")
def found() -> Profile:
    return rehearse(list(batches(4)), 0.01, steps=6, warmup=1)


def test_a_profile_becomes_json_and_text(found: Profile, patches: lmdbloader.LMDBDataset) -> None:
    loaded = rehearse(lmdbloader.Loader(patches, 64, shuffle=True), 0.0, steps=4, warmup=1)
    stored, ours = (json.loads(json.dumps(one.as_json())) for one in (found, loaded))
    assert ours["bottleneck"] == loaded.bottleneck and ours["stages"]["num_batches"] > 0
    assert stored["environment"]["packages"]["torch"] == torch.__version__
    assert stored["environment"]["storage"] is None  # there was no dataset
    assert ours["environment"]["storage"] == describe_environment(patches.path)["storage"]
    assert str(found).startswith("Loading keeps up: the loop waits for data")
    for part in ("phase", "mean ms", "p99", "compute", "6 steps in"):
        assert part in str(found)
    assert "(of all its threads)" in str(loaded)


@pytest.mark.parametrize(
    ("was", "predicted", "is_bound", "now", "held"),
    [
        (0.1, 0.04, False, 0.041, True),
        (0.1, 0.04, False, 0.0439, True),
        (0.1, 0.04, False, 0.0361, True),
        (0.1, 0.04, False, 0.045, False),
        (0.1, 0.04, False, 0.035, False),
        (0.1, 0.04, True, 0.041, None),
        (0.1, 0.04, True, 0.09, None),
        (0.1, 0.04, True, 0.15, None),
        (0.1, 0.04, True, 0.035, False),
        (0.1, 0.1, False, 0.105, True),
        (0.1, 0.1, False, 0.12, False),
        (0.1, 0.1, False, 0.08, False),
    ],
)
def test_a_prediction_holds_or_not(
    found: Profile, was: float, predicted: float, is_bound: bool, now: float, held: bool | None
) -> None:
    advice = replace(found.advice, step_seconds=predicted, gain_seconds=was - predicted, is_bound=is_bound)
    before = replace(found, bottleneck="decode", step_seconds=was, advice=advice)
    compared = replace(found, step_seconds=now).compare(json.loads(json.dumps(before.as_json())))
    assert compared == replace(found, step_seconds=now).compare(before)
    words = {
        True: "The prediction held: ",
        False: "The prediction did not hold: ",
        None: "The prediction was a bound: ",
    }
    assert compared.startswith(words[held]) and ("at best" in compared) == is_bound
    assert "The bottleneck is still decode" in replace(before, step_seconds=now).compare(before)
    assert "The bottleneck is now verify" in replace(before, bottleneck="verify").compare(before)
