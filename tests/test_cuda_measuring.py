"""What is measured on a CUDA device: its use by NVML, the laps of steps by its own clock, and who is named as slow."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA, repeated, sleep

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.cli import main
from lmdbloader.lab.profiling import StepTimer, profile
from lmdbloader.transforms import RandomCrop, ToDtype

pytestmark = [
    *NEEDS_CUDA,
    pytest.mark.skipif(
        importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py: pip install lmdbloader[gpu]"
    ),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "pairs.lmdb"
    rng = np.random.default_rng(0)
    samples = (
        {side: rng.integers(0, 256, (n, n, 3), np.uint8) for side, n in (("lr", 16), ("hr", 32))} for _ in range(256)
    )
    lmdbloader.write(samples, path)
    return path


# --- NVML ---


# --- The clock of steps ---


def test_time_on_the_device_is_found_in_the_lap_that_queued_it() -> None:
    wanted = {"copy": 0.004, "forward": 0.020, "backward": 0.012, "update": 0.008}
    sleep(0.1)  # counts the cycles, and brings the clock up
    timer = StepTimer(DEVICE)
    timer.start()
    for _ in range(5):
        timer.lap("data")
        for phase, seconds in wanted.items():
            sleep(seconds)
            timer.lap(phase)
    assert timer.num_steps == 5
    rows = timer.rows()
    assert rows.shape == (5, len(StepTimer.PHASES))
    found = dict(zip(StepTimer.PHASES, np.median(rows, axis=0).tolist(), strict=True))
    assert found["data"] < 0.002 and found["compute"] < 0.002, found
    for phase, seconds in wanted.items():
        assert 0.5 * seconds < found[phase] < 2 * seconds + 0.002, found


def test_waiting_on_the_host_is_data_only_where_the_device_has_nothing_to_do() -> None:
    sleep(0.1)
    busy, idle = StepTimer(DEVICE), StepTimer(DEVICE)
    for timer, seconds in ((busy, 0.04), (idle, 0.002)):
        torch.cuda.synchronize()
        timer.start()
        for _ in range(6):
            time.sleep(0.02)  # who loads
            timer.lap("data")
            sleep(seconds)
            timer.lap("forward")
        torch.cuda.synchronize()
    # But for the first step, which nothing comes before.
    phases = StepTimer.PHASES
    for timer, is_waiting in ((busy, False), (idle, True)):
        row = dict(zip(phases, np.median(timer.rows()[1:], axis=0).tolist(), strict=True))
        assert (row["data"] > row["forward"]) == is_waiting, row


# --- Profiles ---


def loader_of(pairs: Path, *, slow: float = 0.0, device: Any = DEVICE) -> Loader:
    """Return a loader of batches of 64, each of which a function delays."""

    def delay(batch: Any) -> Any:
        time.sleep(slow)
        return batch

    transforms = [RandomCrop(32), ToDtype(torch.float32, scale=True), *([delay] if slow else [])]
    dataset = repeated(LMDBDataset(pairs), 256 * 20)
    return Loader(dataset, 64, shuffle=True, num_threads=1, device=device, transforms=transforms)


def step_of(seconds: float) -> Callable[..., None]:
    """Return a step that the device takes so long for."""
    weights = torch.ones(3, 3, 3, 3, device=DEVICE)

    def step(batch: Any, lap: Callable[[str], None]) -> None:
        lr = batch.lr.to(DEVICE, non_blocking=True)
        lap("copy")
        torch.nn.functional.conv2d(lr, weights).mean()
        sleep(seconds)
        lap("forward")

    return step


@pytest.mark.parametrize("device", [DEVICE, None])
def test_a_slow_model_is_named(pairs: Path, device: Any) -> None:
    found = profile(loader_of(pairs, device=device), step_of(0.02), steps=60)
    assert found.bottleneck == "model", str(found)
    assert found.stall < 0.2
    assert found.phases["forward"].mean > 0.5 * 0.02
    gpu = found.gpu
    assert gpu is not None and gpu.name == torch.cuda.get_device_name(0)
    assert None not in (gpu.utilization_percent, gpu.power_watts, gpu.memory_mib), gpu
    assert "GPU" in str(found) or gpu.name in str(found)
    assert json.loads(json.dumps(found.as_json()))["bottleneck"] == found.bottleneck


# --- Commands ---


def test_bench_fills_the_columns_of_the_gpu(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ["--only", "sweep", "--batch-sizes", "32", "--crops", "32", "--seconds", "0.2", "--repeats", "1"]
    assert main(["bench", str(pairs), *measured, "--num-workers", "2", "--json", str(tmp_path / "study.json")]) == 0
    shown = capsys.readouterr().out
    study = json.loads((tmp_path / "study.json").read_text())
    assert torch.cuda.get_device_name(0) in study["facts"]["model"]
    rows = [row for row in study["rows"] if row["section"] == "training"]
    assert {row["source"] for row in rows} == {"lmdbloader", "dataloader"}
    for figures in (row["figures"] for row in rows):
        assert figures["gpu_power_watts"] > 20 and figures["gpu_memory_mib"] > 16
        assert 0 <= figures["gpu_utilization_percent"] <= 100
        assert all(figures[f"{phase}_seconds"] > 0 for phase in ("forward", "backward", "update"))
    assert any(row["figures"]["gpu_utilization_percent"] > 0 for row in rows)
    assert "power" in shown and "GPU busy" in shown
