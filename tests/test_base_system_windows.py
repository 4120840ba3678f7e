"""The implementation for Windows, on a stand-in: a process without what Windows lacks, that refuses what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imports import PACKAGE, ROOT, modules_of

import lmdbloader
from lmdbloader.transforms import RandomCrop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in needs /proc")

OTHERS = ("lmdbloader.base.system.linux", "lmdbloader.base.system.macos", "lmdbloader.base.system.posix")


def on_windows(code: str, folder: Path, *arguments: Any) -> Any:
    """Return what a program prints last, as JSON; it runs in `folder` in such a process, with `arguments` in argv."""
    mutexes = folder / "mutexes"
    mutexes.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "STAND_IN_MUTEXES": str(mutexes),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }
    child = subprocess.run(
        [sys.executable, "-c", f"import windows; windows.become()\n{code}", *map(str, arguments)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-4000:]
    return json.loads(child.stdout.splitlines()[-1])


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    names = [name for name in modules_of(PACKAGE) if name not in OTHERS and not name.startswith("lmdbloader.kernels")]
    names = [name for name in names if name not in ("lmdbloader.lab.lightning", "lmdbloader.__main__")]
    names = [name for name in names if name != "lmdbloader.cli.__main__"]
    code = (
        f"import importlib, json, sys\nfor name in {names}: importlib.import_module(name)\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('lmdbloader.base.system.')]))"
    )
    assert sorted(on_windows(code, tmp_path)) == ["lmdbloader.base.system.defaults", "lmdbloader.base.system.windows"]


LIFE = """
import json, shutil, sys
from pathlib import Path
import lmdbloader
from lmdbloader.base import system
from lmdbloader.store import open_writer
from lmdbloader.transforms import RandomCrop
photos, here = Path(sys.argv[1]), Path(".")
out = here / "d.lmdb"
lmdbloader.convert(photos, out, workers=1, codec="lz4")
found = {"problems": list(lmdbloader.verify(out).problems)}
for io in ("mmap", "pread"):
    with lmdbloader.Loader(lmdbloader.LMDBDataset(out), 2, transforms=[RandomCrop(32)], io=io, seed=1) as loader:
        found[io] = [int(batch.image.sum()) for batch in loader]
    del loader
reader = lmdbloader.LMDBDataset(out)
found["first"] = int(reader[0].image.sum())
try:
    lmdbloader.convert(photos, out, workers=1, codec="raw", overwrite=True)
except PermissionError as error:
    found["refused"] = str(error)
found["still"] = int(reader[0].image.sum())
del reader
lmdbloader.convert(photos, out, workers=1, codec="raw", overwrite=True)
found["raw"] = int(lmdbloader.LMDBDataset(out)[0].image.sum())
(here / "node").mkdir()
staged = lmdbloader.stage(out, here / "node")
found["staged"] = int(lmdbloader.LMDBDataset(staged)[0].image.sum())
index = out / "index.arrow"
index.write_bytes(index.read_bytes()[:-9])
lmdbloader.repair(out)
found["repaired"] = list(lmdbloader.verify(out).problems)
lmdbloader.extract(out, here / "files")
found["files"] = sorted(p.name for p in (here / "files").rglob("*.png"))
with open_writer(here / "w.lmdb", (), with_source=False, map_nbytes=2**20):
    found["owner"] = json.loads((here / "w.lmdb.partial" / "owner.json").read_bytes())
    try:
        lmdbloader.convert(photos, here / "w.lmdb", workers=1)
    except lmdbloader.errors.LockedError as error:
        found["locked"] = str(error)
found["left"] = sorted(p.name for p in here.iterdir())
found["times"] = system.start_of(found["owner"]["pid"])
print(json.dumps(found))
"""


def test_the_life_of_a_dataset(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "here.lmdb", workers=1, codec="lz4")
    ours = lmdbloader.LMDBDataset(tmp_path / "here.lmdb")
    found = on_windows(LIFE, tmp_path, photos)
    assert found["problems"] == [] == found["repaired"]
    loader = lmdbloader.Loader(ours, 2, transforms=[RandomCrop(32)], seed=1)
    assert found["mmap"] == found["pread"] == [int(batch.image.sum()) for batch in loader]
    assert {found[name] for name in ("first", "still", "raw", "staged")} == {int(ours[0].image.sum())}
    assert "open or mapped. Close what reads it" in found["refused"] and "d.lmdb" in found["refused"]
    assert len(found["files"]) == len(ours)
    assert "process" in found["locked"] and "is writing there. Wait for it, or stop it." in found["locked"]
    assert found["owner"]["started"] == found["times"] > 0 and found["owner"]["boot"] == ""
    assert found["left"] == ["d.lmdb", "files", "here.lmdb", "mutexes", "node"]
