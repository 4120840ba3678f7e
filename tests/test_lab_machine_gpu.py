"""The use of a GPU is read through NVML; without a GPU it is None."""

from __future__ import annotations

import sys
import time
import types

import pytest

from lmdbloader.lab.machine.gpu import GpuSampler, GpuUse


class NVMLError(Exception):
    pass


class Nvml(types.ModuleType):
    """A stand-in for pynvml with one GPU, at work half of the time; functions named in `missing` fail."""

    NVMLError = NVMLError

    def __init__(self, *missing: str) -> None:
        super().__init__("pynvml")
        self.missing, self.looks, self.is_up = missing, 0, False

    def fail_if_missing(self, name: str) -> None:
        if name in self.missing:
            raise NVMLError(name)

    def nvmlInit(self) -> None:
        self.fail_if_missing("driver")
        self.is_up = True

    def nvmlShutdown(self) -> None:
        self.is_up = False

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        if number:
            raise NVMLError("no such GPU")
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise NVMLError("no such GPU")
        return "handle"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Card 9"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> types.SimpleNamespace:
        assert self.is_up
        self.looks += 1
        self.fail_if_missing("utilisation")
        if self.looks > 3:
            self.fail_if_missing("later")
        return types.SimpleNamespace(gpu=0 if self.looks == 1 else 50)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        self.fail_if_missing("memory")
        return types.SimpleNamespace(used=min(self.looks, 3) * 2**20)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self.fail_if_missing("power")
        return 70_000


def use_of(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, gpu: int | str = 0) -> GpuUse | None:
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
    assert use.as_json()["power_watts"] == 70


@pytest.mark.parametrize("missing", ["utilisation", "power", "memory"])
def test_a_model_that_lacks_one_figure_reports_the_rest(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use = use_of(Nvml(missing), monkeypatch)
    assert use is not None
    told = {"utilisation": use.utilization_percent, "power": use.power_watts, "memory": use.memory_mib}
    assert told == {"utilisation": 50, "power": 70, "memory": 3} | {missing: None}
    assert use.num_samples >= 5


def test_the_readings_of_a_gpu_that_is_lost_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    use = use_of(Nvml("later"), monkeypatch)
    assert use is not None
    assert use.num_samples == 2


@pytest.mark.parametrize(("missing", "gpu"), [("driver", 0), ("", 1), ("", "GPU-7")])
def test_without_a_gpu_the_use_is_none(missing: str, gpu: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_of(Nvml(missing), monkeypatch, gpu) is None


def test_without_the_package_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with GpuSampler() as sampler:
        pass
    assert sampler.use is None
