"""Facts about the machine are read as the system states them, from planted files and from the real one."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import GIB, healthy, plant

from lmdbloader.lab import machine
from lmdbloader.lab.machine import Device, filesystem_of, residency
from lmdbloader.lab.machine.description import describe_memory
from lmdbloader.lab.machine.gpu import describe_gpus

MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nHugePages_Total: 0\n"


def test_this_machine_describes_itself() -> None:
    found = machine.describe()
    assert 1 <= found.processor.num_usable <= (os.cpu_count() or 1)
    assert found.memory.total_nbytes >= found.memory.free_nbytes > 0
    assert found.libraries.pillow_version and found.libraries.torch
    stated = json.loads(json.dumps(found.as_json()))
    assert stated["processor"]["model"] == found.processor.model
    assert stated["num_usable_cores"] == found.processor.num_usable
    assert found.processor.model in str(found) and max(map(len, str(found).splitlines())) <= 120


def test_facts_are_read_from_the_root_that_is_given(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: A  fast\tone\nprocessor\t: 1\nmodel name\t: Another\n",
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon {GIB}\nfile {2 * GIB}\nshmem {GIB // 2}\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H100\nIRQ: 12\n",
            "proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA H100\nIRQ: 13\n",
        },
    )
    (root / "dev" / "shm").mkdir(parents=True)
    found = machine.describe(root=root)
    assert found.processor.model == "A fast one"
    assert found.processor.quota == 2
    assert found.memory.total_nbytes == 16 * GIB and found.memory.available_nbytes == 8 * GIB
    # 3 GiB in use, of which 1.5 GiB are cached files that can be given up.
    assert found.memory.limit_nbytes == 4 * GIB and found.memory.limit_left_nbytes == 5 * GIB // 2
    assert found.memory.free_nbytes == 5 * GIB // 2 and found.memory.usable_nbytes == 4 * GIB
    assert found.devices == (Device("NVIDIA H100", None),) * 2
    assert "2 x NVIDIA H100" in str(found) and "control group 2" in str(found)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/job/memory.max": "max\n"}, (None, None)),
        ({"sys/fs/cgroup/job/memory.max": "0\n", "sys/fs/cgroup/job/memory.current": "5\n"}, (0, 0)),
        ({"sys/fs/cgroup/job/memory.max": "nonsense"}, (None, None)),
        # A limit without an account: all of it may be free.
        ({"sys/fs/cgroup/job/memory.max": f"{GIB}"}, (GIB, GIB)),
        # More than the machine has.
        ({"sys/fs/cgroup/job/memory.max": f"{64 * GIB}"}, (None, None)),
        # The group around it is tighter.
        ({"sys/fs/cgroup/job/memory.max": f"{8 * GIB}", "sys/fs/cgroup/memory.max": f"{2 * GIB}",
          "sys/fs/cgroup/memory.current": f"{GIB}"}, (2 * GIB, GIB)),
    ],
)  # fmt: skip
def test_memory_limits_of_control_groups(
    tmp_path: Path, files: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    found = describe_memory(plant(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n", **files}))
    assert (found.limit_nbytes, found.limit_left_nbytes) == expected


@pytest.mark.parametrize(("limit", "expected"), [(2 * GIB, 2 * GIB), (9223372036854771712, None)])
def test_memory_limits_of_version_1(tmp_path: Path, limit: int, expected: int | None) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/box\n3:cpu:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{limit}\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/box/memory.stat": f"cache 1\ntotal_cache {GIB // 2}\ntotal_shmem 0\n",
    }
    found = describe_memory(plant(tmp_path, files))
    assert found.limit_nbytes == expected
    assert found.limit_left_nbytes == (None if expected is None else 3 * GIB // 2)


def test_usable_cores_are_the_least_of_all_limits() -> None:
    planted = healthy().processor
    assert planted.num_usable == 8
    assert replace(planted, num_allowed=3).num_usable == 3
    assert replace(planted, quota=2).num_usable == 2
    assert replace(planted, quota=64).num_usable == 8


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
28 27 0:30 / /data rw,relatime shared:5 master:1 - nfs4 server:/export/my\040data rw,vers=4.2,rsize=1048576,hard
29 28 0:31 / /data/in\040memory rw - tmpfs tmpfs rw,size=1024k
30 27 259:1 / /fast rw - xfs /dev/nvme0n1p1 rw
31 27 8:16 / /old rw - ext4 /dev/sdb rw
32 27 0:40 / /pool rw - btrfs /dev/sdc1 rw
33 27 0:41 / /image rw - overlay overlay rw,lowerdir=/a,upperdir=/b
34 27 0:42 / /hidden rw - ext4 /dev/sdb rw
35 27 0:43 / /hidden rw - fuse.sshfs me@there:/ rw
36 27 0:44 / /odd rw - unheard_of thing rw
38 27 253:0 / /secret rw - ext4 /dev/mapper/secret rw
39 27 9:0 / /raid rw - xfs /dev/md0 rw
40 27 253:1 / /mixed rw - xfs /dev/mapper/mixed rw
nonsense
37 27 0:45 / /cut
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    root = plant(
        tmp_path,
        {
            "proc/self/mountinfo": MOUNTS,
            "sys/devices/vda/queue/rotational": "1\n",
            "sys/devices/nvme0n1/queue/rotational": "0\n",
            "sys/devices/nvme0n1/nvme0n1p1/partition": "1\n",
            "sys/devices/sdb/queue/rotational": "1\n",
            "sys/devices/sdc/queue/rotational": "0\n",
            "sys/devices/sdc/sdc1/partition": "1\n",
            **{f"sys/devices/{name}/queue/rotational": "0\n" for name in ("dm-0", "dm-1", "md0")},
        },
    )
    for link, target in (
        ("dev/block/254:0", "vda"),
        ("dev/block/259:1", "nvme0n1/nvme0n1p1"),
        ("dev/block/8:16", "sdb"),
        ("class/block/sdc1", "sdc/sdc1"),
        # Encrypted; a RAID of two disks, one of them in a partition; a volume of different disks.
        ("dev/block/253:0", "dm-0"),
        ("devices/dm-0/slaves/nvme0n1p1", "nvme0n1/nvme0n1p1"),
        ("dev/block/9:0", "md0"),
        ("devices/md0/slaves/sdb", "sdb"),
        ("devices/md0/slaves/sdb2", "sdb"),
        ("dev/block/253:1", "dm-1"),
        ("devices/dm-1/slaves/sdb", "sdb"),
        ("devices/dm-1/slaves/dm-0", "dm-0"),
    ):
        (root / "sys" / link).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / link).symlink_to(root / "sys" / "devices" / target)
    return root


@pytest.mark.parametrize(
    ("path", "mount_point", "kind", "device"),
    [
        ("/", "/", "local", None),  # a virtual machine's disk calls itself spinning, whatever it is
        ("/database", "/", "local", None),
        ("/data", "/data", "network", None),
        ("/data/deep/down", "/data", "network", None),
        ("/data/in memory/x", "/data/in memory", "memory", None),
        ("/fast/db", "/fast", "local", "nvme"),
        ("/old/db", "/old", "local", "spinning disk"),
        ("/pool/db", "/pool", "local", "ssd"),
        ("/image/db", "/image", "overlay", None),
        ("/secret/db", "/secret", "local", "nvme"),
        ("/raid/db", "/raid", "local", "spinning disk"),
        ("/mixed/db", "/mixed", "local", None),
        ("/hidden/db", "/hidden", "network", None),
        ("/odd/db", "/odd", "unknown", None),
        ("/data/../old/db", "/old", "local", "spinning disk"),
    ],
)
def test_file_systems(mounts: Path, path: str, mount_point: str, kind: str, device: str | None) -> None:
    found = filesystem_of(path, mounts)
    assert (found.mount_point, found.kind, found.device) == (mount_point, kind, device)
    assert found.type in str(found) and found.mount_point in str(found)


def test_a_network_mount_keeps_its_server(mounts: Path) -> None:
    found = filesystem_of("/data/x", mounts)
    assert found.source == "server:/export/my data"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(9 * 2**20 + 5))
    return path


def test_residency_after_the_pages_were_given_up(large: Path) -> None:
    if filesystem_of(large).kind != "local":
        pytest.skip("pages of this file system cannot be given up")
    with large.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = residency(large)
    assert share is not None and share < 0.1
    with large.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(4 * 2**20)
    share = residency(large)
    assert share is not None and 0.4 < share < 0.55


def test_residency_looks_at_pieces_of_a_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 * GIB)
    share = residency(path)
    assert share is None or share < 0.01


class _Error(Exception):
    pass


@pytest.mark.parametrize("broken", [None, "nvmlInit", "nvmlDeviceGetCount"])
def test_gpus_from_nvml(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    def fail(*_: object) -> None:
        raise _Error

    nvml = SimpleNamespace(
        NVMLError=_Error,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda number: (f"GPU {number}", b"GPU 1")[number],  # older releases give bytes
        nvmlDeviceGetMemoryInfo=lambda number: SimpleNamespace(total=80 * GIB),
        nvmlSystemGetCudaDriverVersion=lambda: 12040,
        nvmlSystemGetDriverVersion=lambda: "550.54.14",
    )
    if broken:
        setattr(nvml, broken, fail)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    expected = () if broken else (Device("GPU 0", 80 * GIB), Device("GPU 1", 80 * GIB))
    if not broken or not Path("/proc/driver/nvidia").exists():
        assert describe_gpus()[0] == expected
