"""The implementations for Windows and macOS on stand-ins: processes without the features that those systems lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imports import PACKAGE, ROOT, modules_of
from remote_store import objects_of, serving, write_dataset

import lmdbloader
from lmdbloader.transforms import RandomCrop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins need /proc")

SYSTEMS = {"windows": ["defaults", "windows"], "macos": ["defaults", "macos", "posix"]}
both = pytest.mark.parametrize("system", SYSTEMS)


def run_on(system: str, code: str, folder: Path, *arguments: Any) -> Any:
    """Return what a program prints last, as JSON; it runs in `folder` on a stand-in, with `arguments` in its argv."""
    mutexes = folder / "mutexes"
    mutexes.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    child = subprocess.run(
        [sys.executable, "-c", f"import {system}; {system}.become()\n{code}", *map(str, arguments)],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, "STAND_IN_MUTEXES": str(mutexes)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-4000:]
    return json.loads(child.stdout.splitlines()[-1])


@both
def test_every_module_can_be_imported(system: str, tmp_path: Path) -> None:
    others = (
        "lmdbloader.kernels",
        "lmdbloader.base.system.",
        "lmdbloader.lab.lightning",
        "lmdbloader.integrations.",
        "lmdbloader.ray.",
    )
    names = [name for name in modules_of(PACKAGE) if not name.startswith(others) and not name.endswith("__main__")]
    code = (
        f"import importlib, json, sys\nfor name in {names}: importlib.import_module(name)\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('lmdbloader.base.system.')]))"
    )
    found = run_on(system, code, tmp_path)
    assert sorted(found) == [f"lmdbloader.base.system.{name}" for name in SYSTEMS[system]]


LIFE = """
import json, sys
from pathlib import Path
import lmdbloader
from lmdbloader.base import system
from lmdbloader.conversion import pool
from lmdbloader.store import open_writer
from lmdbloader.transforms import RandomCrop
photos, here = Path(sys.argv[1]), Path(".")
out = here / "d.lmdb"
lmdbloader.convert(photos, out, workers=1, codec="lz4")
found = {"problems": list(lmdbloader.verify(out).problems)}
for io in ("mmap", "pread"):
    loader = lmdbloader.Loader(lmdbloader.LMDBDataset(out), 2, shuffle=True, transforms=[RandomCrop(32)], io=io, seed=1)
    found[io] = [int(batch.image.sum()) for batch in loader]
    loader.close()
    del loader
reader = lmdbloader.LMDBDataset(out)
found["first"] = int(reader[0].image.sum())
try:
    lmdbloader.convert(photos, out, workers=1, codec="raw", overwrite=True)
except PermissionError as error:
    found["refused"] = str(error)
found["still"] = int(reader[0].image.sum())
del reader
pool.TASK_NBYTES = 1
lmdbloader.convert(photos, out, workers=2, codec="raw", overwrite=True)
manifest = lmdbloader.LMDBDataset(out).reader.manifest
found["digest"], found["nbytes"] = manifest.content_digest, manifest.sizes["data_nbytes"]
(here / "node").mkdir()
staged = lmdbloader.stage(out, here / "node")
found["staged"] = int(lmdbloader.LMDBDataset(staged)[0].image.sum())
index = out / "index.arrow"
index.write_bytes(index.read_bytes()[:-9])
lmdbloader.repair(out)
found["repaired"] = list(lmdbloader.verify(out).problems)
lmdbloader.extract(out, here / "files")
found["files"] = len(list((here / "files").rglob("*.png")))
lmdbloader.merge([out, out], here / "m.lmdb")
lmdbloader.subset(here / "m.lmdb", here / "s.lmdb", indices=range(found["files"]))
found["subset"] = lmdbloader.LMDBDataset(here / "s.lmdb").reader.manifest.content_digest
with open_writer(here / "w.lmdb", (), with_source=False, map_nbytes=2**20):
    found["owner"] = json.loads((here / "w.lmdb.partial" / "owner.json").read_bytes())
    try:
        lmdbloader.convert(photos, here / "w.lmdb", workers=1)
    except lmdbloader.errors.LockedError as error:
        found["locked"] = str(error)
found["left"] = sorted(p.name for p in here.iterdir())
found["started"] = system.start_of(found["owner"]["pid"])
print(json.dumps(found))
"""


@both
def test_the_life_of_a_dataset(system: str, photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "lz4.lmdb", workers=1, codec="lz4")
    lmdbloader.convert(photos, tmp_path / "raw.lmdb", workers=1, codec="raw")
    ours, raw = lmdbloader.LMDBDataset(tmp_path / "lz4.lmdb"), lmdbloader.LMDBDataset(tmp_path / "raw.lmdb")
    found = run_on(system, LIFE, tmp_path, photos)
    assert found["problems"] == [] == found["repaired"]
    loader = lmdbloader.Loader(ours, 2, shuffle=True, transforms=[RandomCrop(32)], seed=1)
    assert found["mmap"] == found["pread"] == [int(batch.image.sum()) for batch in loader]
    assert {found[name] for name in ("first", "still", "staged")} == {int(ours[0].image.sum())}
    assert found["digest"] == found["subset"] == raw.reader.manifest.content_digest  # made by two processes
    assert found["nbytes"] < 1.1 * raw.reader.manifest.sizes["data_nbytes"]  # not as long as LMDB's map
    assert found["files"] == len(ours)
    assert "process" in found["locked"] and "is writing there. Wait for it, or stop it." in found["locked"]
    assert found["left"] == ["d.lmdb", "files", "lz4.lmdb", "m.lmdb", "mutexes", "node", "raw.lmdb", "s.lmdb"]
    assert found["owner"]["boot"] == "" and found["owner"]["started"] == found["started"]
    if system == "windows":
        assert "open or mapped. Close what reads it" in found["refused"] and "d.lmdb" in found["refused"]
        assert found["started"] > 0
    else:
        assert "refused" not in found


SETS = """
import json, sys
from pathlib import Path
import lmdbloader
from lmdbloader.cli import main
from lmdbloader.transforms import RandomCrop
photos, here = Path(sys.argv[1]), Path(".")
found = {}
def sums(dataset):
    loader = lmdbloader.Loader(dataset, 2, shuffle=True, transforms=[RandomCrop(32)], seed=1)
    try:
        return [int(batch.image.sum()) for batch in loader]
    finally:
        loader.close()
lmdbloader.convert(photos, here / "p.lmdb", parts=2, workers=2, codec="lz4")
found["again"] = lmdbloader.convert(photos, here / "p.lmdb", parts=2, workers=2, codec="lz4").was_finished
for io in ("mmap", "pread"):
    try:
        found[io] = sums(lmdbloader.LMDBDataset(here / "p.lmdb", io=io))
    except lmdbloader.errors.OptionError as error:
        found[io] = str(error)
(here / "node").mkdir()
found["parts"] = lmdbloader.info(lmdbloader.stage("p.lmdb", "node")).num_parts
found["problems"] = list(lmdbloader.verify("p.lmdb").problems)
lmdbloader.extract("p.lmdb", "files")
lmdbloader.preview("p.lmdb", output="sheet.png")
lmdbloader.subset("p.lmdb", "a.lmdb", indices=[1, 0])
found["merged"] = main(["merge", "p.lmdb", "a.lmdb", "-o", "m.lmdb"])
appended = lmdbloader.append("a.lmdb", ["p.lmdb"])
found["appended"], found["names"] = appended.num_samples, sorted(p.name for p in Path("a.lmdb").iterdir())
lmdbloader.stage("a.lmdb", "node")
lmdbloader.append("a.lmdb", ["p.lmdb"])
found["staged"] = lmdbloader.info(lmdbloader.stage("a.lmdb", "node")).num_parts
found["whole"] = [list(lmdbloader.verify(place).problems) for place in ("a.lmdb", "node/a.lmdb")]
try:
    mixed = lmdbloader.mix([lmdbloader.LMDBDataset(path, io="pread") for path in ("a.lmdb", "m.lmdb")])
    found["mixed"] = len(sums(mixed))
except lmdbloader.errors.OptionError as error:
    found["mixed"] = str(error)
found["left"] = sorted(p.name for p in here.iterdir())
print(json.dumps(found))
"""


@both
def test_the_life_of_a_set(system: str, photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "one.lmdb", workers=1, codec="lz4")
    one = lmdbloader.LMDBDataset(tmp_path / "one.lmdb")
    loader = lmdbloader.Loader(one, 2, shuffle=True, transforms=[RandomCrop(32)], seed=1)
    found = run_on(system, SETS, tmp_path, photos)
    assert found["again"] is True
    assert found["pread"] == [int(batch.image.sum()) for batch in loader]
    if system == "windows":  # one error, and what has no `io` works all the same
        assert (
            "this system cannot map several files into one range of addresses" in found["mmap"]
            and 'io="pread"' in found["mmap"]
        )
    else:
        assert found["mmap"] == found["pread"]
    assert found["parts"] == 2 and found["problems"] == [] and found["merged"] == 0
    assert found["appended"] == 2 + len(one) and found["staged"] == 3 and found["whole"] == [[], []]
    # Windows may keep the first names of files that are open; nothing else is left.
    assert set(found["names"]) - {"data.mdb", "index.arrow"} >= {"manifest.json", "part-00000", "part-00001"}
    assert found["mixed"] == (2 + 2 * len(one)) // 2 + (2 + len(one)) // 2
    assert found["left"] == [
        "a.lmdb", "files", "m.lmdb", "mutexes", "node", "one.lmdb", "p.lmdb", "sheet.png",
    ]  # fmt: skip


REMOTE = """
import json, sys
from pathlib import Path
import lmdbloader
url = "s3://bucket/train.lmdb"
found = {"errors": []}
for fraction in (1.0, 0.5):
    try:
        dataset = lmdbloader.LMDBDataset(url, cache_dir="cache", cache_fraction=fraction)
        found["rows"] = [int(dataset[i].image.sum()) for i in (499, 0, 7)]
        found["opened"] = int(lmdbloader.LMDBDataset(url, cache_dir="cache")[7].image.sum())
    except lmdbloader.errors.OptionError as error:
        found["errors"].append(str(error))
Path("node").mkdir()
staged = lmdbloader.stage(url, "node")
found["problems"] = list(lmdbloader.verify(staged).problems)
print(json.dumps(found))
"""


@both
def test_a_dataset_at_a_url(system: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "train.lmdb")
    expected = lmdbloader.LMDBDataset(path)
    with serving(objects_of(path)):
        found = run_on(system, f"import s3fs\n{REMOTE}", tmp_path)
    assert found["problems"] == []
    if system == "windows":
        assert "rows" not in found and len(found["errors"]) == 2
        assert all("on Linux and macOS only. Copy it first: `lmdbloader stage s3://" in e for e in found["errors"])
    else:
        assert found["rows"] == [int(expected[i].image.sum()) for i in (499, 0, 7)]
        assert found["opened"] == int(expected[7].image.sum())
        assert len(found["errors"]) == 1 and "on Linux only" in found["errors"][0]


CONTINUED = """
import json, sys
from pathlib import Path
import lmdbloader
from lmdbloader.conversion import pool
from lmdbloader.store.writing import writer
photos, out = Path(sys.argv[1]), Path("d.lmdb")
pool.TASK_NBYTES = writer.TRANSACTION_NBYTES = 1
add, left = writer.Writer.add, [3]
def fail(*arguments):
    left[0] -= 1
    if not left[0]:
        raise RuntimeError("the power is gone")
    add(*arguments)
writer.Writer.add = fail
try:
    lmdbloader.convert(photos, out, workers=1)
except RuntimeError:
    pass
begun = Path("d.lmdb.partial/journal").stat().st_size
writer.Writer.add = add
note = Path("d.lmdb.partial/owner.json")
note.write_text(json.dumps({"pid": 7, "host": "node17", "boot": "", "started": 9}))
said = []
lmdbloader.convert(photos, out, workers=1, take_over=True, log=said.append)
print(json.dumps([begun, said, list(lmdbloader.verify(out).problems), len(lmdbloader.LMDBDataset(out))]))
"""


@both
def test_a_conversion_is_taken_over_and_resumed(system: str, photos: Path, tmp_path: Path) -> None:
    begun, said, problems, length = run_on(system, CONTINUED, tmp_path, photos)
    assert begun > 0 and problems == [] and length == 8
    assert any("taken over from process 7 on host node17" in line for line in said)
    assert any("2 of 8" in line for line in said) or any("2 inputs" in line for line in said), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.lmdb", "mutexes"]


FAILED = """
import json, os
from pathlib import Path
import lmdbloader
from lmdbloader.store.writing import claim
def fail(note):
    raise OSError(28, "No space left on device")
claim._write = fail
try:
    lmdbloader.write([{"number": 1}], "d.lmdb")
except OSError as error:
    print(json.dumps([str(error), sorted(os.listdir("."))]))
"""


@both
def test_a_folder_that_cannot_be_claimed_is_removed(system: str, tmp_path: Path) -> None:
    error, left = run_on(system, FAILED, tmp_path)
    assert "No space left" in error and left == ["mutexes"]


PARTS = r"""
import errno, json, os, time
from pathlib import Path
from lmdbloader.base import cores, disk_errors, system
from lmdbloader.conversion.extraction import unique_stems
here = Path(".")
found = {"names": [system.usable_name(name) for name in (
    "cat", "a:b?.png", "NUL", "com1.tar.gz", "com10", "end. ", "console", 'x"<>|*\\y', "lpt\u00b9.txt", "aux .x",
    "..a")]}
(here / "a").write_bytes(b"line\r\nwith \x1a inside")
descriptor = system.open_to_read("a")
room = bytearray(4)
found["reads"] = [system.read_at(descriptor, 100, 0).hex(), system.read_at(descriptor, 5, 18).hex(),
                  system.read_at(descriptor, 5, 99).hex(), system.read_into(descriptor, room, 6), bytes(room).hex()]
os.close(descriptor)
descriptor = os.open("a", os.O_RDWR | getattr(os, "O_BINARY", 0))
found["written"] = system.write_at(descriptor, b"SEAM", 1)
system.flush(descriptor)
os.close(descriptor)
found["now"] = (here / "a").read_bytes().hex()
os.symlink("a", "link")
for open_one in (lambda: system.open_itself(here / "link"), lambda: system.open_folder(here / "a"),
                 lambda: system.open_folder(here / "none")):
    try:
        open_one()
        found.setdefault("errors", []).append(None)
    except OSError as error:
        found.setdefault("errors", []).append(error.errno)
(here / "f").mkdir()
first, second = system.open_folder(here / "f"), system.open_folder(here / "f")
system.lock(first)
try:
    system.lock(second)
except BlockingIOError:
    found["locked"] = True
system.close(first)
system.lock(second)
system.close(second)
(here / "g").mkdir()
system.move_folder(here / "f", here / "g")
found["moved"] = sorted(os.listdir("."))
found["stems"] = unique_stems(["cats/1.png", "Cats/1.png", "a:b.png", "a_b.jpg", "e\u0301.png", "\u00e9.png", "E.jpg"])
found["cores"] = cores.count_cores()
found["memory"] = system.memory_sizes()
found["seconds"] = system.process_seconds(os.getpid()) >= 0
found["ended"] = [system.how_ended(status) for status in (3, 0xC0000017, 0xC0000005, -6)]
found["means"] = [system.means(errno.ENOSPC, text) for text in (os.strerror(errno.ENOSPC), "Windows says 112", "other")]
found["room"] = disk_errors.has_no_room(here / "a", 10)
found["size"] = (here / "a").stat().st_size
found["load"] = system.load_average()
found["limits"] = [system.address_limit(), system.process_limit()]
a, b = system.clock_ns(), system.clock_ns()
found["clock"] = 0 <= b - a < 10**9
print(json.dumps(found))
"""


@both
def test_the_parts(system: str, tmp_path: Path) -> None:
    found = run_on(system, PARTS, tmp_path)
    is_windows = system == "windows"
    given = [
        "cat", "a:b?.png", "NUL", "com1.tar.gz", "com10", "end. ", "console", 'x"<>|*\\y', "lpt\u00b9.txt", "aux .x",
        "..a",
    ]  # fmt: skip
    usable = [
        "cat", "a_b_.png", "_NUL", "_com1.tar.gz", "com10", "end__", "console", "x______y", "_lpt\u00b9.txt", "_aux .x",
        "..a",
    ]  # fmt: skip
    assert found["names"] == (usable if is_windows else given)
    accents = ["e\u0301", "\u00e9"] if is_windows else ["e\u0301", "\u00e9.png"]
    colon = ["a_b", "a_b.jpg"] if is_windows else ["a:b", "a_b"]
    assert found["stems"] == ["cats/1", "Cats/1.png", *colon, *accents, "E"]
    content = b"line\r\nwith \x1a inside"
    assert found["reads"] == [content.hex(), content[18:].hex(), "", 4, content[6:10].hex()]
    assert found["written"] == 4 and bytes.fromhex(found["now"]) == b"lSEAM\n" + content[6:]
    link, file, missing = found["errors"]
    assert (link, missing) == (40, 2) and file in (20, 13)
    assert found["locked"] and found["moved"] == ["a", "g", "link", "mutexes"]
    assert found["cores"] == 2 if is_windows else found["cores"] >= 1
    assert found["memory"] == ([64 * 2**30, 24 * 2**30] if is_windows else [0, 0])
    assert found["seconds"] and found["clock"] and found["room"] is False and found["size"] == len(content)
    assert found["means"] == [True, is_windows, False]
    if is_windows:
        assert found["ended"][0] == ["ended with exit status 3", False]
        assert found["ended"][1] == ["crashed with status 0xc0000017", True]
        assert found["ended"][2] == ["crashed with status 0xc0000005", False]
        assert found["load"] is None and found["limits"] == [None, None]
    else:
        assert found["ended"][3] == ["was killed by SIGABRT", True] and found["load"] >= 0


BUSY = """
import json, os, threading, time
from pathlib import Path
from lmdbloader.base import system
Path("a").write_text("new"); Path("b").write_text("old")
other = open("b")
threading.Timer(0.3, other.close).start()
system.replace_file("a", "b")
said = [Path("b").read_text()]
Path("a").write_text("newer")
with open("b"):
    try:
        system.replace_file("a", "b")
    except PermissionError as error:
        said += [str(error), error.errno]
print(json.dumps([*said, Path("b").read_text(), Path("a").read_text()]))
"""


def test_a_file_that_another_program_has_open_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    new, error, number, after, kept = run_on("windows", BUSY, tmp_path)
    assert (new, after, kept, number) == ("new", "new", "newer", 13)
    assert "'a' -> 'b'" in error and "Close what reads it" in error


GROWS = """
import json, os
import numpy as np
import lmdbloader

def names():
    return sorted(os.listdir("a"))

for name in "abc":
    lmdbloader.write([{"image": np.full((8, 8), ord(name), np.uint8)}], name)
lmdbloader.append("a", ["b"])
found = {"one file": names()}
lmdbloader.append("a", ["b", "c"])
found["set"] = names()
lmdbloader.write([{"image": np.zeros((8, 8), np.uint8)}], "a", overwrite=True)
is_open = lmdbloader.LMDBDataset("a")
lmdbloader.append("a", ["b"])
found["open"] = names()
found["values"] = [int(lmdbloader.LMDBDataset("a", io="pread")[i].image.max()) for i in range(2)]
del is_open
lmdbloader.append("a", ["c"])
found["later"] = names()
found["problems"] = list(lmdbloader.verify("a").problems)
print(json.dumps(found))
"""


def test_a_dataset_that_grows_leaves_old_names_on_windows_only_while_it_is_open(tmp_path: Path) -> None:
    found = run_on("windows", GROWS, tmp_path)
    of_two = ["index-00002.arrow", "manifest.json", "part-00000", "part-00001"]
    of_three = ["index-00003.arrow", *of_two[1:], "part-00002"]
    assert found["one file"] == of_two and found["set"] == found["later"] == of_three
    assert found["open"] == ["data.mdb", "index-00002.arrow", "index.arrow", *of_two[1:]]
    assert found["values"] == [0, ord("b")] and found["problems"] == []
