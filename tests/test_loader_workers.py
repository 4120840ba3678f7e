"""Worker processes of `dataloader`: batches that cannot be sent, and a /dev/shm that is full."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from nursery import Nursery

import lmdbloader


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "d.lmdb"
    lmdbloader.write(({"image": np.full((64, 64, 3), i, np.uint8), "label": i} for i in range(120)), path)
    return path


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_a_wait(nursery: Nursery, path: Path, tmp_path: Path) -> None:
    code = (
        f"import lmdbloader\nds = lmdbloader.LMDBDataset({str(path)!r})\n"
        "loader = lmdbloader.dataloader(ds, 8, num_workers=1, collate_fn=lambda samples: lambda: samples)\n"
        "next(iter(loader))\n"
    )
    program = nursery.start(code, tmp_path)
    assert program.end() == 1
    assert "in DataLoader worker process 0" in program.errors
    assert re.search("Can't (pickle|get) local object", program.errors)


FULL = """
import ctypes, gc, os, subprocess, sys, torch, lmdbloader
own_mounts = 0x20000  # CLONE_NEWNS of Linux
mount = "mount --make-rprivate / && mount -t tmpfs -o size=256k tmpfs /dev/shm"
if ctypes.CDLL(None).unshare(own_mounts) or subprocess.run(["sh", "-c", mount], capture_output=True).returncode:
    sys.exit("no file system can be mounted here")
class Pixels(lmdbloader.LMDBDataset):
    def transform(self, sample): return sample.image.float(), sample.label
def large(samples): return torch.ones(100_000)
print(sum(len(b.label) for b in lmdbloader.dataloader(lmdbloader.LMDBDataset(PATH), 40, num_workers=1)))
print(sum(len(b[1]) for b in lmdbloader.dataloader(Pixels(PATH), 40, num_workers=1)))
print(os.listdir("/dev/shm"))
ds = lmdbloader.LMDBDataset(PATH)
try:
    next(iter(lmdbloader.dataloader(ds, 40, num_workers=1, collate_fn=large)))
except (lmdbloader.errors.DiskFullError, RuntimeError) as error:
    print(str(error).splitlines()[-1])
gc.collect()
with open("/dev/shm/other", "wb", buffering=0) as file:
    while os.statvfs("/dev/shm").f_bavail: file.write(bytes(4096))
view = ds.transformed([])
try:
    lmdbloader.dataloader(view, 40, num_workers=1)
except lmdbloader.errors.DiskFullError as error:
    print(error)
print(sum(len(b.label) for b in lmdbloader.Loader(view, 40, shuffle=True)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /dev/shm")
def test_a_full_dev_shm_is_not_needed_or_is_an_error(nursery: Nursery, path: Path, tmp_path: Path) -> None:
    program = nursery.start(f"PATH = {str(path)!r}\n" + FULL, tmp_path)
    status = program.end()
    if "no file system" in program.errors:
        pytest.skip(program.errors)
    assert status == 0, program.errors
    lines = program.out.splitlines()
    assert lines[:3] == ["120", "120", "[]"]
    told = [(lines[3], "400,000"), (lines[4], "20,480")]
    if "is killed by signal: Bus error" in lines[3]:  # from older torch, which does not reserve it
        assert "out of shared memory" in told.pop(0)[0]
    for line, wanted in told:
        assert f"/dev/shm is full: worker processes need {wanted} bytes" in line and "--shm-size" in line
    assert lines[5] == "120"
