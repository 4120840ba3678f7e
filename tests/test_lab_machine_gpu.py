"""The use of a GPU is read through NVML; without a GPU it is None."""

from __future__ import annotations

import sys
import time

import pytest
from nvml import Nvml

from lmdbloader.lab.machine.gpu import GpuSampler, GpuUse


def use_of(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, gpu: int | str | None = 0) -> GpuUse | None:
    """Look at a GPU until it was looked at a few times."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with GpuSampler(gpu, seconds=0.001) as sampler:
        until = time.monotonic() + 5
        while 0 < nvml.looks < 6 and "later" not in nvml.missing and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert sampler.use is None
    assert not nvml.is_up
    return sampler.use


@pytest.mark.parametrize("gpu", [0, "GPU-1"])
def test_utilisation_power_and_memory_are_seen(gpu: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    use = use_of(Nvml(), monkeypatch, gpu)
    assert use is not None
    assert (use.name, use.utilization_percent, use.power_watts, use.memory_mib) == ("Card 9", 50, 70, 3)
    assert use.num_samples >= 5
    # The highest temperature, and the state that it was in most often.
    assert (use.temperature_celsius, use.fan_percent, use.performance_state) == (64, 30, 2)


@pytest.mark.parametrize("missing", ["utilisation", "power", "memory", "temperature", "fan", "state", "known state"])
def test_a_model_that_lacks_one_figure_reports_the_rest(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use = use_of(Nvml(missing), monkeypatch)
    assert use is not None
    told = {
        "utilisation": use.utilization_percent, "power": use.power_watts, "memory": use.memory_mib,
        "temperature": use.temperature_celsius, "fan": use.fan_percent, "state": use.performance_state,
    }  # fmt: skip
    expected = {"utilisation": 50, "power": 70, "memory": 3, "temperature": 64, "fan": 30, "state": 2}
    assert told == expected | {missing.removeprefix("known "): None}
    assert use.num_samples >= 5


def test_the_readings_of_a_gpu_that_is_lost_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    use = use_of(Nvml("later"), monkeypatch)
    assert use is not None
    assert use.num_samples == 2


@pytest.mark.parametrize(("missing", "gpu"), [("driver", 0), ("", 1), ("", "GPU-7"), ("", None)])
def test_without_a_gpu_the_use_is_none(missing: str, gpu: int | str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_of(Nvml(missing), monkeypatch, gpu) is None


def test_without_the_package_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuSampler() as sampler:
        pass
    assert sampler.use is None
