"""Staging: a copy that is equal, made once, shared by waiting jobs, and never half there."""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip

import lmdbloader
from lmdbloader.base import system
from lmdbloader.cli import main
from lmdbloader.conversion import staging
from lmdbloader.errors import CorruptError, DestinationError, DiskFullError, FormatError, LockedError, OptionError

FILES = ["data.mdb", "index.arrow", "manifest.json"]
Capture = pytest.CaptureFixture[str]


def make(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shade)
    lmdbloader.write(({"image": rng.integers(0, 255, (40, 40, 3), np.uint8)} for _ in range(20)), path)
    return path


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return make(tmp_path / "shared" / "train.lmdb")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_copy_is_equal_and_nothing_else_is_left(db: Path, node: Path) -> None:
    (db / "skipped.tsv").write_text("name\treason\n")
    lines: list[str] = []
    path = lmdbloader.stage(db, node, log=lines.append)
    assert path == node / "train.lmdb"
    assert content(path) == content(db)
    assert [p.name for p in node.iterdir()] == ["train.lmdb"]
    assert len(lmdbloader.LMDBDataset(path)) == 20
    assert "copied and checked" in lines[-1]


def test_what_is_there_is_not_copied_again(db: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lmdbloader.stage(db, node)
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in path.iterdir()}
    lines: list[str] = []
    assert lmdbloader.stage(str(db) + "/", str(node), log=lines.append) == path
    assert lines == [f"{path}: staged already"]
    assert {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in path.iterdir()} == before
    monkeypatch.chdir(db)
    assert lmdbloader.stage(".", node) == path
    assert lmdbloader.stage(path, node) == path, "it is its own copy"


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_damaged_copy_is_made_again(db: Path, node: Path, how: str) -> None:
    path = lmdbloader.stage(db, node)
    if how == "cut":
        os.truncate(path / "data.mdb", 5000)
    else:
        (path / "data.mdb").unlink()
    lines: list[str] = []
    assert content(lmdbloader.stage(db, node, log=lines.append)) == content(db)
    assert "damaged; it is copied again" in lines[0]


def test_a_copy_is_read_when_asked(db: Path, node: Path, capsys: Capture) -> None:
    path = lmdbloader.stage(db, node)
    status = (path / "data.mdb").stat()
    flip(path, 9000)
    os.utime(path / "data.mdb", ns=(status.st_atime_ns, status.st_mtime_ns))  # as if the disk had changed it
    assert lmdbloader.stage(db, node) == path and content(path) != content(db)
    assert main(["stage", str(db), str(node), "--check"]) == 0
    assert "damaged; it is copied again" in capsys.readouterr().err
    assert content(path) == content(db)
    assert main(["stage", str(db), str(node), "--check"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"{path}: staged already"


def test_a_damaged_source_is_refused(db: Path, node: Path) -> None:
    data = bytearray((db / "data.mdb").read_bytes())
    data[-1] ^= 1  # in the unused room of the last page
    (db / "data.mdb").write_bytes(data)
    with pytest.raises(CorruptError, match=r"data\.mdb.*: the copy's digest is"):
        lmdbloader.stage(db, node)
    assert not (node / "train.lmdb").exists()


def test_another_dataset_of_that_name_is_replaced_only_when_asked(db: Path, node: Path, tmp_path: Path) -> None:
    lmdbloader.stage(make(tmp_path / "other" / "train.lmdb", 1), node)
    before = content(node / "train.lmdb")
    with pytest.raises(DestinationError, match=r"a dataset is there already.*overwrite=True"):
        lmdbloader.stage(db, node)
    assert content(node / "train.lmdb") == before
    lmdbloader.stage(db, node, overwrite=True)
    assert content(node / "train.lmdb") == content(db)


def test_other_things_are_never_replaced(db: Path, node: Path) -> None:
    (node / "train.lmdb").mkdir(parents=True)
    (node / "train.lmdb" / "thesis.txt").write_text("mine")
    with pytest.raises(DestinationError, match="with other things in it"):
        lmdbloader.stage(db, node, overwrite=True)
    assert content(node / "train.lmdb") == {"thesis.txt": b"mine"}
    assert [p.name for p in node.iterdir()] == ["train.lmdb"]


def test_only_finished_datasets_are_staged(tmp_path: Path, node: Path, db: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        lmdbloader.stage(tmp_path / "nothing", node)
    with pytest.raises(FormatError, match=r"has no manifest\.json"):
        lmdbloader.stage(tmp_path, node)
    db.rename(db.with_name("train.lmdb.partial"))
    with pytest.raises(FormatError, match="not finished"):
        lmdbloader.stage(db, node)
    assert not node.exists()


def test_wrong_places_are_refused(db: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Is its environment variable set"):
        lmdbloader.stage(db, "")
    with pytest.raises(OptionError, match="timeout=-1"):
        lmdbloader.stage(db, tmp_path, timeout=-1)
    with pytest.raises(DestinationError, match="its parent does not exist"):
        lmdbloader.stage(db, tmp_path / "not" / "mounted")
    with pytest.raises(DestinationError, match="is inside"):
        lmdbloader.stage(db, db)


def test_room_is_looked_for_before_anything_is_copied(db: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(2**30, 2**30, 2**16))
    with pytest.raises(DiskFullError, match=r"64 KiB are free: .* are missing"):
        lmdbloader.stage(db, node)
    assert not (node / "train.lmdb").exists()


def test_a_copy_that_was_interrupted_goes_on(db: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = staging._copy

    def stop(origin: Any, name: str, *rest: Any) -> None:
        if name == "data.mdb":
            raise KeyboardInterrupt
        real(origin, name, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(staging, "_copy", stop)
        lmdbloader.stage(db, node)
    assert content(lmdbloader.stage(db, node)) == content(db)
    assert [p.name for p in node.iterdir()] == ["train.lmdb"]


def test_a_byte_that_changes_on_its_way_is_found(db: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = system.flush_path

    def damage(path: Path) -> None:
        real(path)
        if path.name.startswith("data.mdb.new"):
            flip(path.parent, 9000, path.name)

    monkeypatch.setattr("lmdbloader.base.system.flush_path", damage)
    with pytest.raises(CorruptError, match="the copy's digest is"):
        lmdbloader.stage(db, node)
    assert not (node / "train.lmdb").exists()


def test_others_wait_for_the_one_that_copies_and_say_so(db: Path, node: Path) -> None:
    node.mkdir()
    lines: list[str] = []
    said = threading.Event()

    def log(line: str) -> None:
        lines.append(line)
        said.set()

    with staging._alone(node / "train.lmdb", None, log):
        with pytest.raises(LockedError, match="Waited 0 s for it"):
            lmdbloader.stage(db, node, timeout=0)
        waiting = threading.Thread(target=lmdbloader.stage, args=(db, node), kwargs={"log": log})
        waiting.start()
        assert said.wait(20)
    waiting.join(20)
    assert "waiting" in lines[0] and content(node / "train.lmdb") == content(db)


def test_the_command_prints_the_path_and_nothing_else(db: Path, node: Path, capsys: Capture) -> None:
    assert main(["stage", str(db), str(node)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{node / 'train.lmdb'}\n"
    assert "copying " in err
    assert main(["stage", str(db), str(node), "--quiet"]) == 0
    assert capsys.readouterr() == (f"{node / 'train.lmdb'}\n", "")
    assert main(["stage", str(db), ""]) == 2
    assert sorted(p.name for p in (node / "train.lmdb").iterdir()) == FILES
