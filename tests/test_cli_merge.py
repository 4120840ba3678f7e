"""`lmdbloader merge`, `append` and `subset`: their output, and their exit status."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("command")
    for name, first in (("a", 0), ("b", 10)):
        samples = [{"image": np.full((8, 8 + i % 3, 3), first + i, np.uint8), "label": i % 2} for i in range(10)]
        lmdbloader.write(samples, place / name, classes={"label": ["cat", "dog"]})
    lmdbloader.write([{"label": 1}], place / "labels", classes={"label": ["bird", "cat"]})
    return place


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    return (status, *capsys.readouterr())


def test_merge_says_what_it_made(place: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    status, said, errors = run(capsys, "merge", place / "a", place / "b", "-o", out)
    assert (status, errors) == (0, "")
    assert said.startswith(f"{out}: 20 samples, ") and "MB/s" in said
    assert run(capsys, "merge", place / "a", place / "b", "--out", out) == (
        0, f"{out}: already made of the same samples (20); nothing to do\n", ""
    )  # fmt: skip
    assert run(capsys, "merge", place / "a", "-o", out, "--overwrite", "--quiet") == (0, "", "")
    assert len(LMDBDataset(out)) == 10


def test_append_says_what_it_did(place: Path, tmp_path: Path, capsys: Capture) -> None:
    lmdbloader.merge([place / "a"], tmp_path / "db")
    status, said, errors = run(capsys, "append", tmp_path / "db", place / "b", place / "a")
    assert (status, errors) == (0, "") and f"{tmp_path / 'db'}: 20 samples appended, " in said
    assert run(capsys, "append", tmp_path / "db", place / "b", "--quiet") == (0, "", "")
    assert len(LMDBDataset(tmp_path / "db")) == 40
    assert run(capsys, "append", tmp_path / "db", place / "labels", "--fields", "label")[0] == 2


def test_subset_takes_an_expression(place: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    status, said, errors = run(capsys, "subset", place / "a", 'label == "dog" and image.width > 8', "-o", out)
    assert (status, errors) == (0, "") and said.startswith(f"{out}: 3 of 10 samples\n{out}: 3 samples, ")
    assert LMDBDataset(out).table["image.width"].to_pylist() == [9, 10, 9]
    status, said, _ = run(capsys, "info", out)
    assert status == 0 and "num_samples 3" in said and "of_samples 10" in said
    status, _, errors = run(capsys, "subset", place / "a", "label = 3", "-o", tmp_path / "more")
    assert status == 2 and "label = 3" in errors
    share = ("subset", place / "a", "-o", tmp_path / "share", "--fraction", "30%", "--seed", 4)
    assert run(capsys, *share)[1].startswith(f"{tmp_path / 'share'}: 3 of 10 samples")
    status, _, errors = run(capsys, "subset", place / "a", "-o", tmp_path / "more")
    assert status == 2 and "EXPRESSION, --indices, --names, --limit, --fraction" in errors
    assert not (tmp_path / "more").exists()


def test_subset_reads_numbers_from_a_file(
    place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numbers").write_bytes(b"\xef\xbb\xbf9\r\n\r\n 2 \n-1\n0")
    assert run(capsys, "subset", place / "a", "-o", tmp_path / "out", "--indices", tmp_path / "numbers")[0] == 0
    ds = LMDBDataset(tmp_path / "out")
    assert [int(ds[i].image[0, 0, 0]) for i in range(len(ds))] == [9, 2, 9, 0]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"3\n4\n")))
    assert run(capsys, "subset", place / "a", "-o", tmp_path / "two", "--indices", "-", "--quiet") == (0, "", "")
    assert len(LMDBDataset(tmp_path / "two")) == 2


def test_subset_reads_names_from_a_file(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    lmdbloader.convert(photos, tmp_path / "db", workers=1)
    (tmp_path / "names").write_text("coffee.png\ncat.png\n")
    words = ["subset", tmp_path / "db", "-o", tmp_path / "out", "--names", tmp_path / "names"]
    assert run(capsys, *words)[0] == 0
    assert LMDBDataset(tmp_path / "out").table["source"].to_pylist() == ["coffee.png", "cat.png"]
    (tmp_path / "names").write_text("coffe.png\n")
    status, _, errors = run(capsys, *words[:3], tmp_path / "more", *words[4:])
    assert status == 2 and "has no source 'coffe.png'" in errors
