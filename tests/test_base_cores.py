"""The number of cores follows affinity and the quotas of control groups, both versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.base import system
from lmdbloader.base.cores import count_cores, count_own_cores
from lmdbloader.base.system import quota_cores

PROJECT = Path(system.__file__).resolve().parents[3]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": ""}, None),
        ({**V2, "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({**V2, "sys/fs/cgroup/job/step/cpu.max": "200000 100000\n"}, 2),
        ({**V2, "sys/fs/cgroup/job/step/cpu.max": "150000 100000\n"}, 2),
        ({**V2, "sys/fs/cgroup/job/step/cpu.max": "1000 100000\n"}, 1),
        # A group without a limit in one that has one, and the tighter of two limits.
        ({**V2, "sys/fs/cgroup/job/cpu.max": "300000 100000", "sys/fs/cgroup/job/step/cpu.max": "max 100000"}, 3),
        ({**V2, "sys/fs/cgroup/job/cpu.max": "300000 100000", "sys/fs/cgroup/job/step/cpu.max": "900000 100000"}, 3),
        # The group's name is that on the host: the container sees its own as the root.
        ({"proc/self/cgroup": "0::/host/name\n", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpu.max": "400000 100000",
          "sys/other/cpu.max": "100000 100000"}, 4),
        # In addition to version 1.
        ({**V2, "sys/fs/cgroup/unified/job/cpu.max": "250000 50000"}, 5),
        ({**V1, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n"}, None),
        ({**V1, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
          "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n"}, 3),
        ({**V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "700000\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 7),
        # Other controllers say nothing about the processor.
        ({"proc/self/cgroup": "4:cpuset:/box\n", "sys/fs/cgroup/cpuset/box/cpu.cfs_quota_us": "100000",
          "sys/fs/cgroup/cpuset/box/cpu.cfs_period_us": "100000"}, None),
    ],
)  # fmt: skip
def test_quotas(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert quota_cores(plant(tmp_path, files)) == expected


@given(quota=st.integers(1, 10**9), period=st.integers(1, 10**6))
def test_a_quota_is_rounded_up(tmp_path_factory: pytest.TempPathFactory, quota: int, period: int) -> None:
    root = plant(tmp_path_factory.mktemp("root"), {**V2, "sys/fs/cgroup/cpu.max": f"{quota} {period}"})
    found = quota_cores(root)
    assert found is not None
    assert (found - 1) * period < quota <= found * period


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (3, 3), (64, 8)])
def test_the_least_limit_holds(monkeypatch: pytest.MonkeyPatch, quota: int | None, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(system, "quota_cores", lambda: quota)
    assert count_cores() == expected


def test_without_affinity_the_machine_s_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(system, "quota_cores", lambda: None)
    for found, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert count_cores() == expected


@pytest.mark.parametrize(
    ("own", "launcher", "processes", "expected"),
    [
        (64, 64, None, 64),
        (64, 64, "1", 64),
        (64, 64, "8", 8),
        (64, 64, "7", 9),
        (2, 2, "8", 1),
        # Bound by the launcher: to cores of its own, to those of a node of the memory, to fewer than its share.
        (8, 64, "8", 8),
        (32, 64, "8", 8),
        (4, 64, "8", 4),
        (64, 1, "8", 8),  # the launcher's are unknown
        *((6, 6, text, 6) for text in ("", "0", "-2", "two", "2.5", "\u00b2")),
    ],
)
def test_processes_of_torchrun_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, own: int, launcher: int, processes: str | None, expected: int
) -> None:
    monkeypatch.setattr(system, "quota_cores", lambda: None)
    monkeypatch.setattr(system, "allowed_cores", lambda: own)
    monkeypatch.setattr(system, "cores_of_parent", lambda: launcher)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert count_own_cores() == expected
    assert count_cores() == own


def test_processes_share_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "quota_cores", lambda: 6)
    monkeypatch.setattr(system, "allowed_cores", lambda: 64)
    monkeypatch.setattr(system, "cores_of_parent", lambda: 64)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert count_own_cores() == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_a_bound_process_keeps_its_cores() -> None:
    all_cores = count_cores()
    code = (
        "import os; from lmdbloader.base.cores import count_own_cores; first = count_own_cores(); "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(first, count_own_cores())"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "LOCAL_WORLD_SIZE": "2"},
    )  # fmt: skip
    assert child.stdout.split() == [str(max(1, all_cores // 2)), "1"]
