"""`lmdbloader convert` as a user sees it: its output, its exit status, and interruptions."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from part_sets import tree
from PIL import Image

import lmdbloader
from lmdbloader.cli import main

ROOT = Path(__file__).resolve().parent.parent
Capture = pytest.CaptureFixture[str]


def save(path: Path, height: int = 16, width: int = 24, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, compress_level=1)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    for i in range(3):
        save(tmp_path / "src" / f"{i}.png", seed=i)
    return tmp_path / "src"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def left(out: Path) -> list[str]:
    return sorted(p.name for p in out.parent.iterdir() if p.name.startswith(out.name))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_it_prints_a_summary(src: Path, out: Path, capsys: Capture) -> None:
    assert main(["convert", str(src), str(out), "--patch-size", "8", "--scale", "2", "--workers", "1"]) == 0
    text = capsys.readouterr()
    assert text.err == ""
    lines = text.out.splitlines()
    assert lines[0] == f"{out}: 3 images, layout images"
    assert lines[1].startswith("data: about ")
    assert lines[1].endswith(", estimated from 3 of 3 inputs; map size: 1.04 MiB; codec: lr raw, hr raw")
    assert lines[2].startswith(f"{out}: 18 samples in ")
    assert lines[3].split() == ["pixels", "4.22", "KiB,", "stored", "as", "4.22", "KiB", "(36", "raw)"]
    assert lines[4].lstrip().startswith("data.mdb ") and " x the payload; index.arrow " in lines[4]
    assert re.fullmatch(
        r"  source   .* KiB of files; data\.mdb is .* x that(: images are stored as pixels, .*)?", lines[5]
    )
    assert len(lmdbloader.LMDBDataset(out)) == 18


def test_write_modes_reach_the_conversion(src: Path, out: Path) -> None:
    words = (
        "--write-mode proportion --compress-probability 0.25 --jpeg-quality 70 --max-resolution 9 --seed 5 --subset 2"
    )
    assert main(["convert", str(src), str(out), *words.split(), "--workers", "1", "--quiet"]) == 0
    dataset = lmdbloader.LMDBDataset(out)
    assert len(dataset) == 2
    assert dataset.reader.manifest.made_by["options"]["storage"] == {
        "mode": "proportion",
        "jpeg_code": "fast",
        "max_resolution": 9,
        "jpeg_quality": 70,
        "compress_probability": 0.25,
        "smart_threshold": None,
        "seed": 5,
    }


def test_splits_become_datasets_with_common_labels(src: Path, out: Path, tmp_path: Path, capsys: Capture) -> None:
    splits = tmp_path / "splits"
    for split, classes in (("train", "ab"), ("val", "bc")):
        for name in classes:
            shutil.copytree(src, splits / split / name)
    assert main(["convert", str(splits), str(out), "--split", "--workers", "1"]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["train.lmdb", "val.lmdb"]
    train, val = (lmdbloader.LMDBDataset(out / f"{name}.lmdb") for name in ("train", "val"))
    assert [sample.label for sample in train] == [0, 0, 0, 1, 1, 1]
    assert [sample.label for sample in val] == [1, 1, 1, 2, 2, 2]
    assert "train.lmdb" in capsys.readouterr().out
    (splits / "devkit" / "docs").mkdir(parents=True)  # holds no images
    assert main(["convert", str(splits), str(out), "--split", "--workers", "1"]) == 0
    assert capsys.readouterr().out.count("nothing to do") == 2
    assert main(["convert", str(splits), str(out / "val.lmdb"), "--split"]) == 1
    assert "is a dataset. With --split" in capsys.readouterr().err
    new = tmp_path / "new"
    assert main(["convert", str(splits), str(new), "--split", "--write-mode", "raw", "--jpeg-quality", "80"]) == 2
    assert "--jpeg-quality has no effect" in capsys.readouterr().err
    assert not new.exists()
    assert main(["convert", str(src), str(out), "--split"]) == 1
    assert "holds no folders like train/ and val/" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "--hr", str(src), "--lr", str(src), str(out), "--split"])


def test_paths_may_stand_on_both_sides_of_an_option(src: Path, out: Path) -> None:
    assert main(["convert", str(src), "--patch-size", "8", str(out), "--quiet"]) == 0
    assert len(lmdbloader.LMDBDataset(out)) == 18


def test_quiet_prints_nothing(src: Path, out: Path, capsys: Capture) -> None:
    assert main(["convert", str(src), str(out), "--quiet", "--workers", "2"]) == 0
    assert main(["convert", str(src), str(out), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_same_again_says_so(src: Path, out: Path, capsys: Capture) -> None:
    assert main(["convert", str(src), str(out)]) == 0
    capsys.readouterr()
    assert main(["convert", str(src), str(out)]) == 0
    expected = f"{out}: already made from the same inputs with the same options (3 samples); nothing to do\n"
    assert capsys.readouterr() == (expected, "")
    assert main(["convert", str(src), str(out), "--patch-size", "8"]) == 1
    assert "(--overwrite)" in capsys.readouterr().err
    assert main(["convert", str(src), str(out), "--patch-size", "8", "--overwrite"]) == 0
    assert len(lmdbloader.LMDBDataset(out)) == 18


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["SRC", "OUT", "--stride", "4"], 2, "--stride without --patch-size"),
        (["SRC", "OUT", "--patch-size", "17"], 1, "0.png: 24x16 pixels are smaller than a patch of 17"),
        (["SRC/nowhere", "OUT"], 1, "there is no such folder"),
        (["SRC", "OUT/deeper"], 1, "does not exist. Create it first"),
    ],
)
def test_errors_are_one_line_and_a_status(
    src: Path, out: Path, capsys: Capture, words: list[str], status: int, message: str
) -> None:
    paths = [word.replace("SRC", str(src)).replace("OUT", str(out)) for word in words]
    assert main(["convert", *paths, "--workers", "1"]) == status
    text = capsys.readouterr().err
    assert text.startswith("lmdbloader: ") and text.count("\n") == 1
    assert message in text
    assert left(out) == []


@pytest.mark.parametrize("more", [["--workers", "2"], ["--parts", "2"]], ids=["workers", "writers"])
def test_the_messages_of_other_processes_name_flags(tmp_path: Path, capsys: Capture, more: list[str]) -> None:
    rng = np.random.default_rng(0)
    for number in range(4):
        for half, side in (("hr", 401), ("lr", 200)):
            (tmp_path / half).mkdir(exist_ok=True)
            pixels = rng.integers(0, 256, (side, side, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / half / f"{number}.bmp")
    halves = [word for half in ("hr", "lr") for word in (f"--{half}", str(tmp_path / half))]
    assert main(["convert", *halves, str(tmp_path / "out"), *more, "--workers", "2"]) == 1
    assert "multiple of 2. --crop-to-scale crops it" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_the_list_of_skipped_images_is_that_of_a_call_in_python(src: Path, tmp_path: Path, workers: int) -> None:
    Image.new("RGBA", (24, 16)).save(src / "alpha.png")
    assert main(["convert", str(src), str(tmp_path / "a"), "--on-error", "skip", "--workers", str(workers)]) == 0
    lmdbloader.convert(src, tmp_path / "b", on_error="skip", workers=workers)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert "choose alpha='drop' or alpha='white'" in (tmp_path / "a" / "skipped.tsv").read_text()


def test_a_path_that_the_terminal_cannot_show(src: Path, tmp_path: Path) -> None:
    target = os.fsencode(tmp_path) + b"/\xff.lmdb"
    command = [sys.executable, "-m", "lmdbloader", "convert", str(src), target]
    child = subprocess.run(
        command, env={**environment(), "PYTHONIOENCODING": "ascii"}, cwd=tmp_path, capture_output=True
    )
    assert (child.returncode, child.stderr) == (0, b"")
    assert b"\\udcff.lmdb: 3 samples" in child.stdout


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGTERM, 130, "lmdbloader: interrupted\n"), (signal.SIGKILL, -signal.SIGKILL, "")],
)
def test_a_conversion_that_is_stopped_leaves_no_worker_and_does_not_block_the_next_one(
    src: Path, out: Path, number: signal.Signals, status: int, said: str
) -> None:
    save(out.parent / "endless" / "one.png", 500, 700)
    for i in range(1500):  # which take a minute
        (out.parent / "endless" / f"{i}.png").symlink_to("one.png")
    words = ["convert", str(out.parent / "endless"), str(out), "--patch-size", "96", "--scale", "2", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "lmdbloader", *words],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as child:  # fmt: skip
        until = time.monotonic() + 60
        while not any(out.parent.glob("out.lmdb.partial/part-*/data.mdb")) and time.monotonic() < until:
            time.sleep(0.01)
        workers = psutil.Process(child.pid).children(recursive=True)
        assert len(workers) == 2
        child.send_signal(number)
        assert (child.communicate(timeout=60)[1], child.returncode) == (said, status)
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    assert left(out) == (["out.lmdb.partial"] if number == signal.SIGKILL else [])
    assert main(["convert", str(src), str(out), "--quiet"]) == 0
    assert left(out) == ["out.lmdb"]


def test_a_full_disk_leaves_nothing(out: Path, tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / "src" / f"{i}.png", 700, 1000, seed=i)

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))

    child = subprocess.run(
        [sys.executable, "-m", "lmdbloader", "convert", str(tmp_path / "src"), str(out), "--workers", "1", "--quiet"],
        env=environment(),
        preexec_fn=limit_files,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 1
    assert child.stderr.count("\n") == 1
    assert "disk full (" in child.stderr and "Free some space and run it again" in child.stderr
    assert left(out) == []
