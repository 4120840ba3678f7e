"""A GPU that is not there: a stand-in for NVML's Python package."""

from __future__ import annotations

import types


class NVMLError(Exception):
    pass


class Nvml(types.ModuleType):
    """A stand-in for pynvml with one GPU, at work half of the time; functions named in `missing` fail."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

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

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        self.fail_if_missing("temperature")
        return 60 + min(self.looks, 4)

    def nvmlDeviceGetFanSpeed(self, handle: str) -> int:
        self.fail_if_missing("fan")
        return 30

    def nvmlDeviceGetPerformanceState(self, handle: str) -> int:
        self.fail_if_missing("state")
        if "known state" in self.missing:
            return 32
        return 8 if self.looks <= 2 else 2
