"""The demo: one short run from end to end on a user's folder, and the choices that it makes on the way."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from demos import classification, superres
from demos.class_folders import make_class_folders
from loading_scripts import load_script
from PIL import Image

import lmdbloader
from lmdbloader.errors import SourceError

demo = load_script("demo")


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """Three photographs, one of them gray, and three images that the demo has no use for."""
    folder = tmp_path / "my photos"
    folder.mkdir()
    for name in ("astronaut", "cat"):
        shutil.copy(photos / f"{name}.png", folder / f"{name}.PNG")
    with Image.open(photos / "rocket.png") as image:
        image.convert("L").save(folder / "rocket.png")
        image.convert("RGBA").save(folder / "alpha.png")
        image.resize((50, 200)).save(folder / "narrow.png")
    (folder / "broken.jpg").write_bytes(b"not an image")
    (folder / "notes.txt").write_text("not an image either")
    return folder


def test_it_converts_reads_trains_and_compares(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(superres, "READ_ROUNDS", 1)
    monkeypatch.setattr(superres, "READ_SECONDS", 0.0)
    output = tmp_path / "out"
    status = demo.main(["--images", str(folder), "--output", str(output), "--seconds", "0.5", "--only", "superres"])

    captured = capsys.readouterr()
    assert "2 to train on, 1 held out" in captured.out
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) pairs/s", captured.out)]
    assert len(rates) == 3
    ratio = re.search(r"([\d.]+) x$", captured.out, re.MULTILINE)
    assert ratio is not None
    assert float(ratio[1]) == pytest.approx(rates[2] / max(rates[:2]), rel=0.1)
    mean = re.search(r"mean +[\d.]+ +[\d.]+ +([+-][\d.]+)  dB", captured.out)
    assert mean is not None
    # So short a training may come out either way, but then the status says it.
    if float(mean[1]) != 0:
        assert status == (0 if float(mean[1]) > 0 else 1)
    assert ("not better than bicubic" in captured.err) == (status == 1)
    side = superres.CROP_SIZE * superres.ZOOM
    with Image.open(output / "comparison.png") as image:
        assert image.width > 3 * side
        assert image.height > side
    assert len(list((output / "png" / "hr").iterdir())) == len(list((output / "png" / "lr").iterdir())) > 0


def test_class_folders_are_converted_looked_at_read_and_learned(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("NUM_TRAIN", 16), ("NUM_VAL", 8), ("READ_ROUNDS", 1), ("EPOCHS", 4), ("BATCH_SIZE", 8)):
        monkeypatch.setattr(classification, name, value)
    output = tmp_path / "out"
    status = demo.main(["--images", str(folder), "--output", str(output), "--only", "classification"])

    text = capsys.readouterr().out
    assert "16 + 8 JPEG files from each of 3 photographs" in text
    assert len(re.findall(r"[\d,]+ images/s$", text, re.MULTILINE)) == 3
    top1 = re.search(r"Top-1 .*: ([\d.]+)% \(chance 33.3%\)", text)
    assert top1 is not None
    assert status == (0 if float(top1[1]) > 33.4 else 1)
    with Image.open(output / "classes.png") as sheet:
        assert min(sheet.size) > 100
    assert lmdbloader.LMDBDataset(output / "classes_val.lmdb").classes == ("00_astronaut", "01_cat", "02_rocket")


def test_training_and_validation_pieces_share_no_pixel(tmp_path: Path) -> None:
    ramp = np.repeat(np.arange(200, dtype=np.uint8)[None, :, None], 120, axis=0).repeat(3, axis=2)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    photographs = [tmp_path / "ramp.png"] * 2
    for seed in (0, 0, 1):
        folder = tmp_path / f"seed{seed}"
        names = make_class_folders(folder, num_train=6, num_val=6, sides=(30, 50), photographs=photographs, seed=seed)
        assert names == ["00_ramp", "01_ramp"]
    pieces = {}
    for split in ("train", "val"):
        files = sorted((tmp_path / "seed0" / split).rglob("*.jpg"))
        assert len(files) == 12
        pieces[split] = [np.array(Image.open(path)) for path in files]
        assert all(30 <= side <= 50 for piece in pieces[split] for side in piece.shape[:2])
    jpegs_error = 4
    assert max(piece.max() for piece in pieces["train"]) <= 119 + jpegs_error
    assert min(piece.min() for piece in pieces["val"]) >= 120 - jpegs_error
    first, other = (sorted((tmp_path / name).rglob("*.jpg"))[0].read_bytes() for name in ("seed0", "seed1"))
    assert first != other


def test_a_second_run_takes_over_the_first_ones_folder_and_nobody_elses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.prepare_output(tmp_path / "ours")
    (tmp_path / "ours" / "train").mkdir()
    demo.prepare_output(tmp_path / "ours")
    (tmp_path / "mine" / "train").mkdir(parents=True)

    assert demo.main(["--output", str(tmp_path / "mine"), "--seconds", "1"]) == 1
    assert "not from an earlier demo" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["train"]


def test_unusable_photographs_are_left_out_and_too_few_are_an_error(folder: Path, tmp_path: Path) -> None:
    training, held_out = superres.find_photographs(folder, tmp_path / "out")
    assert [path.name for path in [*training, *held_out]] == ["astronaut.PNG", "cat.PNG", "rocket.png"]

    for path in training:
        path.unlink()
    with pytest.raises(SourceError, match="1 of 4 images can be used; the demo needs two or more"):
        superres.find_photographs(folder, tmp_path / "out")
