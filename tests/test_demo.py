"""The demo: one short run from end to end on a user's folder, and the choices that it makes on the way."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from demos import class_folders, classification, superres
from demos.class_folders import make_class_folders
from loading_scripts import load_script
from PIL import Image
from superresolution import build_model

import lmdbloader
from lmdbloader.errors import SourceError
from lmdbloader.superres import Evaluation, Scores

demo = load_script("demo")


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """Three photographs, one of them grey, and three images that the demo has no use for."""
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


def test_squares_are_png_files_with_the_photographs_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path), "--side", "32", "--num-train", "3", "--num-val", "1", "--num-classes", "2"]
    assert class_folders.main(arguments) == 0
    assert "2 classes, 3 files of each in train/, 1 in val/" in capsys.readouterr().out
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == 2 * 4
    assert not list(tmp_path.rglob("*.jpg"))
    with Image.open(class_folders.find_photographs() / "astronaut.png") as photograph:
        pixels = np.array(photograph)
    for path in files[:3]:
        assert path.parent.name == "astronaut"
        piece = np.array(Image.open(path))
        assert piece.shape == (32, 32, 3)
        corners = np.argwhere((pixels == piece[0, 0]).all(axis=2))
        assert any(np.array_equal(pixels[y : y + 32, x : x + 32], piece) for y, x in corners)


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


def test_photographs_are_chosen_in_order_and_the_last_tenth_is_held_out(tmp_path: Path) -> None:
    for number in range(60):
        Image.new("RGB", (96, 96)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "out").mkdir()
    Image.new("RGB", (96, 96)).save(tmp_path / "out" / "99.png")
    training, held_out = superres.find_photographs(tmp_path, tmp_path / "out")

    assert len(training) == superres.MAX_TRAINING_PHOTOGRAPHS
    assert training == sorted(set(training))
    assert (training[0].name, training[-1].name) == ("00.png", "53.png")
    assert len(held_out) == superres.MAX_HELD_OUT_PHOTOGRAPHS
    assert (held_out[0].name, held_out[-1].name) == ("54.png", "59.png")


def test_unusable_photographs_are_left_out_and_too_few_are_an_error(folder: Path, tmp_path: Path) -> None:
    training, held_out = superres.find_photographs(folder, tmp_path / "out")
    assert [path.name for path in [*training, *held_out]] == ["astronaut.PNG", "cat.PNG", "rocket.png"]

    for path in training:
        path.unlink()
    with pytest.raises(SourceError, match="1 of 4 images can be used; the demo needs two or more"):
        superres.find_photographs(folder, tmp_path / "out")


def test_scikit_images_photographs_are_there_and_never_on_both_sides(tmp_path: Path) -> None:
    training, held_out = superres.find_photographs(None, tmp_path)

    assert all(superres.is_usable(path) for path in [*training, *held_out])
    names = [{re.split(r"[._]", path.name)[0] for path in side} for side in (training, held_out)]
    assert not names[0] & names[1]


def test_copies_keep_the_bytes_of_colour_and_make_grey_rgb(folder: Path, tmp_path: Path) -> None:
    superres.copy_photographs([folder / "cat.PNG", folder / "rocket.png"], tmp_path / "copies")

    assert (tmp_path / "copies" / "00_cat.PNG").read_bytes() == (folder / "cat.PNG").read_bytes()
    with Image.open(tmp_path / "copies" / "01_rocket.png") as image, Image.open(folder / "rocket.png") as grey:
        assert image.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(image), np.asarray(grey)[..., None].repeat(3, axis=2))


def test_png_pairs_are_the_patches_themselves(tmp_path: Path) -> None:
    pairs = [tuple(torch.randint(0, 256, (3, side, side), dtype=torch.uint8) for side in (4, 8)) for _ in range(3)]
    superres.write_png_pairs(pairs, tmp_path / "png")
    dataset = superres.PngPairs(tmp_path / "png", len(pairs))

    assert len(dataset) == 3
    for index, (expected_lr, expected_hr) in enumerate(pairs):
        lr, hr = dataset[index]
        assert torch.equal(lr, expected_lr)
        assert torch.equal(hr, expected_hr)


def test_the_crop_is_where_the_images_differ_most() -> None:
    before = torch.zeros(1, 200, 300, dtype=torch.uint8)
    after = before.clone()
    after[0, 100 : 100 + superres.CROP_SIZE, 150 : 150 + superres.CROP_SIZE] = 9

    assert superres.telling_crop(before, after) == (100, 150)


def test_the_table_has_a_line_for_each_photograph_and_the_mean() -> None:
    scores = Evaluation(model=Scores((31.0, 33.5), (0.9, 0.9)), bicubic=Scores((30.0, 34.0), (0.9, 0.9)))
    rows = [line.split() for line in superres.score_table(["cat", "a rocket"], scores).splitlines()[1:]]

    assert rows == [
        ["cat", "30.00", "31.00", "+1.00", "dB"],
        ["a", "rocket", "34.00", "33.50", "-0.50", "dB"],
        ["mean", "32.00", "32.25", "+0.25", "dB"],
    ]


def test_the_demo_fails_when_a_model_is_not_better_than_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(superres, "run", lambda *_: False)
    monkeypatch.setattr(classification, "run", lambda *_: False)

    assert demo.main(["--images", str(folder), "--output", str(tmp_path / "out")]) == 1
    complaints = capsys.readouterr().err
    assert "SRCNN is not better than bicubic after 60 s; try --seconds 120" in complaints
    assert "the classifier is not better than chance" in complaints


def test_training_takes_the_time_that_it_was_given() -> None:
    model = build_model("srcnn915", 2)
    batch = (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    timer = superres.train(model, [batch], seconds=0.2)

    assert timer.num_steps > 0
    assert sum(timer.seconds.values()) >= 0.1


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--seconds", "nan"], ["--images", "absent"]])
def test_bad_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        demo.main(arguments)

    assert exit_info.value.code == 2
    assert arguments[0] in capsys.readouterr().err
