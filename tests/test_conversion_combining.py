"""Merging and subsets that are killed, interrupted, or find no room: nothing half done is seen, and they continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.conversion import combining
from lmdbloader.errors import DestinationError, DiskFullError
from lmdbloader.store import read_manifest

COUNT = 300


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("combining") / "db"
    rng = np.random.default_rng(0)
    samples = ({"image": rng.integers(0, 256, (10, 10, 3), np.uint8), "number": i} for i in range(COUNT))
    lmdbloader.write(samples, path, codec="raw")
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts of a few samples."""
    monkeypatch.setattr("lmdbloader.store.copying._CHUNK_NBYTES", 3000)
    monkeypatch.setattr("lmdbloader.conversion.combining.PART_NBYTES", 10_000)


def merge(db: Path, out: Path, **options: Any) -> Any:
    return lmdbloader.merge([db, LMDBDataset(db)[::-1]], out, **options)


SCRIPT = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
import test_conversion_combining as combining_test
from lmdbloader.conversion import combining
from lmdbloader.store import Work, copying

copying._CHUNK_NBYTES, combining.PART_NBYTES = 3000, 10_000
left, complete = int(sys.argv[3]), Work.complete
def stop(self, *arguments):
    global left
    left -= 1
    found = complete(self, *arguments)
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
Work.complete = stop
combining_test.merge(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def run(db: Path, out: Path, commits: int) -> int:
    """Merge in a process that is killed after some parts; return its exit status."""
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    path = os.pathsep.join(p for p in sys.path if p)
    words = [sys.executable, "-c", script, str(db), str(out), str(commits)]
    return subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL).returncode


def test_one_that_is_killed_twice_has_the_result_of_a_whole_one(db: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", []
    expected = merge(db, tmp_path / "whole")
    for commits in (3, 2):
        assert run(db, out, commits) == -signal.SIGKILL
        assert not out.exists() and any((tmp_path / "out.partial").glob("part-*"))
    done = merge(db, out, log=said.append)
    assert any("resuming after" in line for line in said)
    assert done.content_digest == expected.content_digest == read_manifest(out).content_digest
    assert lmdbloader.verify(out).is_sound
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }


@pytest.fixture
def stopped(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The destination of a merge that has stopped after some transactions."""
    with monkeypatch.context() as patch:
        patch.setattr(combining, "join", _fail)
        with pytest.raises(RuntimeError, match="stopped"):
            merge(db, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    yield tmp_path / "out"


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("stopped")


def test_another_call_does_not_continue_it(db: Path, stopped: Path, photos: Path) -> None:
    with pytest.raises(DestinationError, match=r"is unfinished there.*restart=True"):
        lmdbloader.merge([db], stopped)
    with pytest.raises(DestinationError, match=r"unfinished|interrupted"):
        lmdbloader.subset(db, stopped, "number >= 20")
    with pytest.raises(DestinationError, match=r"unfinished|interrupted"):
        lmdbloader.convert(photos, stopped, workers=1)
    with pytest.raises(DestinationError, match=r"unfinished|interrupted"):
        lmdbloader.write([{"number": 1}], stopped)
    with pytest.raises(DestinationError, match="is unfinished there"):
        lmdbloader.write(iter([{"number": 1}]), stopped)
    merge(db, stopped)
    assert lmdbloader.verify(stopped).is_sound


def test_other_names_of_classes_or_fields_do_not_continue_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content digest covers neither."""
    samples = [{"label": i % 2, "number": i} for i in range(COUNT)]
    for name, classes in (("a", ["cat", "dog"]), ("b", ["cat", "dog"]), ("other", ["dog", "cat"])):
        lmdbloader.write(samples, tmp_path / name, classes={"label": classes})
    with monkeypatch.context() as patch:
        patch.setattr(combining, "join", _fail)
        with pytest.raises(RuntimeError, match="stopped"):
            lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    for inputs, fields in ((("a", "other"), None), (("other", "other"), None), (("a", "b"), ["number", "label"])):
        with pytest.raises(DestinationError, match="is unfinished there"):
            lmdbloader.merge([tmp_path / name for name in inputs], tmp_path / "out", fields=fields)
    lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert lmdbloader.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out").was_finished
    for inputs in (("a", "other"), ("other", "other")):
        with pytest.raises(DestinationError, match="a dataset is there already"):
            lmdbloader.merge([tmp_path / name for name in inputs], tmp_path / "out")


def test_its_progress_can_be_discarded(db: Path, stopped: Path) -> None:
    lmdbloader.merge([db], stopped, restart=True)
    assert read_manifest(stopped).content_digest == read_manifest(db).content_digest
    assert [path.name for path in stopped.parent.iterdir()] == ["out"]


def test_a_damaged_result_is_not_taken_for_finished(db: Path, tmp_path: Path) -> None:
    merge(db, tmp_path / "out")
    flip(tmp_path / "out", 3000, "index.arrow")
    with pytest.raises(DestinationError, match=r"but is damaged.*overwrite=True"):
        merge(db, tmp_path / "out")
    merge(db, tmp_path / "out", overwrite=True)
    assert lmdbloader.verify(tmp_path / "out").is_sound


def test_too_little_room_is_said_before_anything_is_copied(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 10_000))
    with pytest.raises(DiskFullError, match=r"the samples take \S+ KiB, and 9\.77 KiB are free: \S+ KiB are missing"):
        merge(db, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
