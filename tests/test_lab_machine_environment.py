"""The environment of a result: what planted machines state is kept, what is missing is null, nothing is personal."""

from __future__ import annotations

import getpass
import json
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import plant

import lmdbloader
from lmdbloader.lab.machine import describe

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")

CPU = "sys/devices/system/cpu"


def topology(sockets: int, cores: int, threads: int) -> dict[str, str]:
    """Return the files of /sys for a machine: the second thread of each core is numbered after all first ones."""
    files, count = {}, sockets * cores
    for number in range(count * threads):
        siblings = ",".join(str(number % count + count * thread) for thread in range(threads))
        files |= {
            f"{CPU}/cpu{number}/topology/physical_package_id": f"{number % count // cores}\n",
            f"{CPU}/cpu{number}/topology/core_cpus_list": f"{siblings}\n",
        }
    return files


SERVER = {
    **topology(2, 4, 2),
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu sse\n",
    f"{CPU}/smt/active": "1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
    "sys/devices/system/node/possible": "0-1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\nVERSION_ID="24.04"\n',
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build\n"
    "GCC version:  gcc version 12.3.0\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A100-SXM4-80GB\n",
    "proc/self/mountinfo": "31 27 259:1 / / rw,noatime - xfs /dev/nvme0n1p1 rw,logbufs=8,data=ordered\n"
    "32 31 0:40 / /home/alice rw - nfs4 files.example.org:/export/alice rw,vers=4.2,rsize=1048576,"
    "clientaddr=10.0.0.9\n",
    "sys/dev/block/259:1/queue/rotational": "0\n",
}  # fmt: skip


@on_linux
def test_a_server_states_everything(tmp_path: Path) -> None:
    machine = describe("/data/train.lmdb", root=plant(tmp_path, SERVER))
    found = machine.as_json()
    processor = found["processor"]
    assert processor["model"] == "AMD EPYC 7763"
    assert (processor["sockets"], processor["cores"], processor["has_smt"], processor["numa_nodes"]) == (2, 8, True, 2)
    assert found["memory"]["huge_pages"] == "madvise"
    assert found["distribution"] == "Ubuntu 24.04.1 LTS"
    assert found["driver"] == {"version": "550.54.14", "cuda": None}
    assert found["devices"] == [{"name": "NVIDIA A100-SXM4-80GB", "memory_nbytes": None}]
    assert found["storage"]["type"] == "xfs"
    rows = dict(machine.rows())
    assert rows["layout"] == "2 sockets, 8 physical cores, SMT on, 2 NUMA nodes"
    assert rows["system"].startswith("Ubuntu 24.04.1 LTS, ") and rows["system"].endswith(platform.machine())
    assert rows["driver"] == "550.54.14"


@on_linux
@pytest.mark.parametrize(
    ("files", "layout"),
    [
        (topology(1, 4, 1), (1, 4, False, None)),
        (topology(1, 2, 2), (1, 2, True, None)),  # a kernel without SMT's switch
        ({**topology(1, 2, 1), f"{CPU}/smt/active": "0\n"}, (1, 2, False, None)),
        # Boards that name no package, and a kernel that knows only the older name.
        ({f"{CPU}/cpu{n}/topology/physical_package_id": "-1\n" for n in range(2)}
         | {f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n}\n" for n in range(2)}, (None, 2, False, None)),
        ({f"{CPU}/cpu0/topology/core_id": "0\n"}, (None, None, None, None)),
    ],
)  # fmt: skip
def test_layouts_of_processors(tmp_path: Path, files: dict[str, str], layout: tuple[Any, ...]) -> None:
    processor = describe(root=plant(tmp_path, files)).as_json()["processor"]
    assert tuple(processor[name] for name in ("sockets", "cores", "has_smt", "numa_nodes")) == layout


@on_linux
def test_nothing_in_it_is_personal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user, host, path or server, and no environment variable but those of a list."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abc123secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = describe("/home/alice/train.lmdb", root=plant(tmp_path, SERVER)).as_json()
    assert found["storage"]["text"] == "nfs4 over the network"
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    # The kernel's and packages' versions may hold any short word.
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), "alice", "secret", "10.0.0.9", "example.org"}
    text = json.dumps(found)
    assert not [name for name in names if len(name) > 4 and name in text]
    assert not re.search(r'"/\w', text)


def test_this_machine_tells_versions() -> None:
    machine = describe(Path(__file__))
    found = machine.as_json()
    assert found["lmdbloader"] == lmdbloader.__version__
    assert found["python"] == platform.python_version() and found["architecture"] == platform.machine()
    assert {"numpy", "torch", "pyarrow", "lmdb"} <= set(found["packages"])
    assert "lmdbloader" not in found["packages"]
    assert dict(machine.rows())["packages"].count("numpy ") == 1
