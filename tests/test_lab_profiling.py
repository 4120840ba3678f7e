"""A profile shows where steps spend their time, for every kind of loader; it can be stored and compared."""

from __future__ import annotations

import json
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.lab.profiling import Profile, Recorder, profile, rehearse

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
    for _ in range(3):
        found = rehearse(loader, 0.0, steps=8, warmup=3)
        if found.bottleneck != "cpu":  # other programs had both cores: the advice is theirs
            break
    assert found.bottleneck == "function"
    assert found.stages is not None
    assert found.stages.function >= 0.04  # half of it: batches that were read before do not count
    assert found.loading is not None
    assert found.loading.running >= 0.04
    assert "compiled ones of lmdbloader.transforms" in str(found)
    assert found.advice.is_bound
    assert not is_timed(loader)


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


# --- What comes out ---


@pytest.fixture(scope="module")
def found() -> Profile:
    return rehearse(list(batches(4)), 0.01, steps=6, warmup=1)


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
