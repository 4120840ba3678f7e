"""`lmdbloader append`: what it prints, refuses and keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.cli import main
from lmdbloader.conversion import combining
from lmdbloader.store import read_manifest

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("command")
    for name, first in (("a", 0), ("b", 10)):
        samples = [{"image": np.full((8, 8 + i % 3, 3), first + i, np.uint8), "label": i % 2} for i in range(10)]
        lmdbloader.write(samples, place / name, classes={"label": ["cat", "dog"]})
    lmdbloader.write([{"label": 1}], place / "labels", classes={"label": ["bird", "cat"]})
    return place


@pytest.fixture
def db(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place / "a", tmp_path / "db"))


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    return (status, *capsys.readouterr())


def test_append_says_what_it_did(place: Path, db: Path, capsys: Capture) -> None:
    status, said, errors = run(capsys, "append", db, place / "b", place / "a")
    assert (status, errors) == (0, "")
    lines = said.splitlines()
    assert lines[-1].startswith(f"{db}: 20 samples appended, ") and "MB/s" in lines[-1]
    assert lines[-1].endswith("; 30 samples")
    assert run(capsys, "append", db, place / "b", "--quiet") == (0, "", "")
    assert len(LMDBDataset(db)) == 40
    status, said, _ = run(capsys, "info", db)
    digests = [read_manifest(place / name).content_digest for name in "bab"]
    text = " ".join(said.split())
    assert status == 0 and all(digest in text for digest in digests)


def test_an_interrupted_append_is_resumed(
    place: Path, db: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(combining, "join", interrupt)
        status, _, errors = run(capsys, "append", db, place / "b")
    assert status == 130
    assert errors.splitlines() == ["lmdbloader: interrupted"]
    status, _, errors = run(capsys, "append", db, place / "a")
    assert status == 1 and "discard its progress with restart=True" in errors
    status, said, _ = run(capsys, "append", db, place / "b")
    assert status == 0 and "resuming after 10 of 10 samples" in said
    assert len(LMDBDataset(db)) == 20
