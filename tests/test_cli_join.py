"""`lmdbloader convert --part` and `lmdbloader join`: output, messages in flags, and exit status."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def src(tmp_path: Path) -> Path:
    for i in range(4):
        path = tmp_path / "src" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (16, 24, 3), np.uint8)).save(path)
    return tmp_path / "src"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    return (status, *capsys.readouterr())


def test_a_set_is_planned_converted_and_joined(src: Path, out: Path, capsys: Capture) -> None:
    status, said, errors = run(capsys, "convert", src, out, "--parts", 2, "--plan-only")
    assert (status, errors) == (0, "")
    assert f"{out}: planned 2 parts." in said and "--part 0/2 to 1/2" in said and f"lmdbloader join {out}\n" in said
    status, said, errors = run(capsys, "convert", src, out, "--part", "1/2")
    assert (status, errors) == (0, "")
    assert said.startswith(f"{out}: part 1 of 2, counted from 0: 2 samples in ")
    status, said, errors = run(capsys, "join", out)
    assert (status, said) == (1, "")
    assert "1 part is not complete: number 0 of 2" in errors
    assert f"lmdbloader convert SRC {out} --part 0/2`" in errors
    assert run(capsys, "convert", src, out, "--part", "0/2", "--quiet") == (0, "", "")
    status, said, _ = run(capsys, "convert", src, out, "--part", "0/2")
    assert said == f"{out}: part 0 of 2, counted from 0: complete already (2 samples); nothing to do\n"
    status, said, errors = run(capsys, "join", out)
    assert (status, errors) == (0, "") and said.startswith(f"{out}: 4 samples in ") and "index.arrow" in said
    assert run(capsys, "join", out) == (0, f"{out}: is in place already (4 samples); nothing to do\n", "")
    assert run(capsys, "convert", src, out, "--parts", 2, "--plan-only")[1].endswith("nothing to do\n")
    assert len(lmdbloader.LMDBDataset(out)) == 4
    assert sorted(os.listdir(out.parent)) == ["out", "src"]


def test_a_plan_by_size_tells_the_number_of_parts(src: Path, out: Path, capsys: Capture) -> None:
    assert "planned 4 parts" in run(capsys, "convert", src, out, "--part-size", "1KiB", "--plan-only")[1]
    status, _, errors = run(capsys, "convert", src, out, "--part-size", "1KiB", "--part", "0/3")
    assert status == 2 and f"--part 0/3: {out} has 4 parts, not 3" in errors
    assert run(capsys, "convert", src, out, "--part", "3/4")[0] == 0
    assert run(capsys, "convert", src, out, "--part-size", "1KiB", "--part", "2/4")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "2/2"], "--part 2/2: parts are counted from 0: expected 0/2 to 1/2"),
        (["--part", "1"], "--part 1: expected I/N, such as 0/16"),
        (["--part", "0/2", "--parts", "3"], "--part 0/2 with --parts 3: leave --parts out"),
        (["--part", "0/2", "--plan-only"], "leave one out"),
        (["--part", "0/2", "--split"], "--split makes several datasets"),
    ],
)
def test_wrong_usage(src: Path, out: Path, capsys: Capture, words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["convert", str(src), str(out), *words])
    assert raised.value.code == 2 and message in " ".join(capsys.readouterr().err.split())
    assert os.listdir(out.parent) == ["src"]
