"""Folders that look like splits, halves of pairs or images with masks are not taken for classes or images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.errors import SourceError

Capture = pytest.CaptureFixture[str]


def make(folder: Path, *names: str) -> Path:
    """Make small images, and other files."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.lower().endswith((".png", ".jpg")):
            Image.new("RGB", (12, 8), (number, 0, 0)).save(folder / name)
        else:
            (folder / name).write_text("x")
    return folder


def check(tmp_path: Path, names: tuple[str, ...], what: str) -> Path:
    """Check that images with these names are refused, unless the caller insists."""
    src = make(tmp_path / "src", *names)
    for call in (lmdbloader.estimate, lambda src: lmdbloader.convert(src, tmp_path / "out")):
        with pytest.raises(SourceError, match=what):
            call(src)
    assert not (tmp_path / "out").exists()
    lmdbloader.convert(src, tmp_path / "images", layout="images")
    assert list(lmdbloader.LMDBDataset(tmp_path / "images").fields) == ["image"]
    return src


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png"), "train/, val/"),
        (("train2017/1.jpg", "val2017/2.jpg", "annotations/a.json"), "train2017/, val2017/"),
        (("trainA/1.jpg", "trainB/2.jpg", "testA/3.jpg", "testB/4.jpg"), "testA/, testB/, trainA/ and 1 more"),
        (("DIV2K_train_HR/1.png", "DIV2K_valid_HR/2.png"), "DIV2K_train_HR/, DIV2K_valid_HR/"),
    ],
)
def test_splits_are_not_taken_for_classes(tmp_path: Path, names: tuple[str, ...], splits: str) -> None:
    src = check(tmp_path, names, f"src: holds {splits}, probably splits of a dataset")
    with pytest.raises(SourceError, match="splits"):
        lmdbloader.convert(src, tmp_path / "out", patch_size=4)
    out = tmp_path / "splits"
    assert main(["convert", str(src), str(out), "--split", "--quiet"]) == 0
    tops = {name.partition("/")[0] for name in names if name[-4:] in (".png", ".jpg")}
    assert {path.stem for path in out.iterdir()} == tops
    assert lmdbloader.convert(src, tmp_path / "classes", layout="classes").classes.keys() == tops


@pytest.mark.parametrize(
    ("high", "low"),
    [
        ("REDS_sharp/00{}/1.png", "REDS_sharp_bicubic/X4/00{}/1.png"),
        ("gt/{}_clean.png", "data/{}_rain.png"),
        ("GOPR{}/sharp/1.png", "GOPR{}/blur/1.png"),
        ("000{}_S6/1_GT_SRGB.PNG", "000{}_S6/1_NOISY_SRGB.PNG"),
        ("img_00{}_SRF_4_HR.png", "img_00{}_SRF_4_LR.png"),
    ],
)
def test_halves_of_pairs_are_not_taken_for_classes_or_images(tmp_path: Path, high: str, low: str) -> None:
    names = tuple(name.format(number) for number in range(4) for name in (high, low))
    src = check(tmp_path, names, "probably halves of a pair.*layout='pairs', which pairs them by these words")
    pairs = list_sources(src, layout="pairs").sources
    found = [(s.name, os.path.relpath(os.fsdecode(s.lr_files[0]), src)) for s in pairs]
    assert found == [*zip(sorted(names[::2]), sorted(names[1::2]), strict=True)]
    make(tmp_path / "splits" / "train", *names)
    with pytest.raises(SourceError, match=r"train: holds .*probably halves of a pair"):
        lmdbloader.find_splits(tmp_path / "splits")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("images/1.png", "masks/1.png"), "images/, masks/, probably images and their masks"),
        (("images/1.png", "labels/1.txt", "labels/1.png"), "images and their masks"),
        (("GTmod12/a.png", "LRbicx2/b.png"), "GTmod12/, LRbicx2/, probably halves of pairs"),
        (("X2/1x2.png", "X3/1x3.png", "X4/1x4.png"), "X2/, X3/, X4/, probably the same images at several scales"),
        (("1.png", "1_mask.png", "2.png"), "1_mask.png, probably the mask of another image"),
        (("train_sharp/a/1.png", "X4/a/1.png"), "train_sharp/, X4/, probably halves of pairs"),
        (("GT/a/1.png", "BIx4/a/1.png", "BDx4/a/1.png"), "GT/, BDx4/, BIx4/, probably halves of pairs"),
        # A folder around them makes no difference.
        (("train/images/1.png", "train/masks/1.png"), "src/train: holds images/, masks/"),
        (("images/train/1.png", "images/val/2.png", "labels/train/1.txt"), "src/images: holds train/, val/"),
    ],
)
def test_images_and_what_belongs_to_them_are_not_classes(tmp_path: Path, names: tuple[str, ...], what: str) -> None:
    check(tmp_path, names, what)


@pytest.mark.parametrize(
    ("high", "low"),
    [
        ("train_sharp", "train_sharp_bicubic/X4"),
        ("GT", "LQ"),
        ("sharp", "X4"),
        ("GT", "BIx4"),
        ("val/sharp", "val/blur"),
        ("X2", "X4"),
    ],
)
def test_halves_of_pairs_are_not_taken_for_clips(tmp_path: Path, high: str, low: str) -> None:
    names = [f"{half}/{clip}/{frame}.png" for half in (high, low) for clip in ("000", "001") for frame in range(3)]
    src = make(tmp_path / "src", *names)
    with pytest.raises(SourceError, match=r"hr and lr\. To make clips of all of them, give the folders other names"):
        lmdbloader.convert(src, tmp_path / "out", layout="clips")
    assert lmdbloader.convert(src / low, tmp_path / "low", layout="clips").num_samples == 6
    assert not (tmp_path / "out").exists()


def test_splits_and_folders_named_like_masks_are_clips(tmp_path: Path) -> None:
    names = ("train/000/1.png", "val/000/1.png", "images/000/1.png", "masks/000/1.png")
    assert lmdbloader.convert(make(tmp_path / "src", *names), tmp_path / "out", layout="clips").num_samples == 4


def test_halves_that_are_named_like_splits_are_halves(tmp_path: Path) -> None:
    names = [f"{half}/{clip}/1.png" for half in ("train_sharp", "train_sharp_bicubic/X4") for clip in ("000", "001")]
    src = check(tmp_path, tuple(names), "train_sharp/000/1.png and train_sharp_bicubic/X4/000/1.png, probably halves")
    for options in ([], ["--layout", "clips"], ["--scale", "4"]):
        assert main(["convert", str(src), str(tmp_path / "out"), "--split", "--quiet", *options]) == 1
    assert not (tmp_path / "out").exists()
    # Splits of both halves are splits, as those of DIV2K; so are the domains of CycleGAN.
    make(src, "val_sharp/000/1.png", "val_sharp_bicubic/X4/000/1.png")
    assert len(lmdbloader.find_splits(src, layout="images")) == len(lmdbloader.find_splits(src, layout="clips")) == 4
    assert len(lmdbloader.find_splits(make(tmp_path / "cyclegan", "trainA/1.jpg", "trainB/1.jpg"))) == 2


@pytest.mark.parametrize(
    "names",
    [("1.png", "a/2.png"), ("1.png", "2.png", "a/3.png", "b/4.png"), ("a/.1.png", "2.png"), ("cats/1.png",)],
)
def test_images_in_some_folders_are_images(tmp_path: Path, names: tuple[str, ...]) -> None:
    report = lmdbloader.convert(make(tmp_path / "src", *names), tmp_path / "out")
    assert (report.layout, report.num_samples, report.notes) == ("images", len(names), ())


def test_magnifications_of_different_images_are_classes(tmp_path: Path) -> None:
    src = make(tmp_path / "src", "4x/a1.png", "4x/b2.png", "8x/c3.png", "8x/a4.png")
    assert [*lmdbloader.convert(src, tmp_path / "out").classes] == ["4x", "8x"]


def test_splits_that_are_asked_for_as_classes_get_a_note(tmp_path: Path) -> None:
    src = make(tmp_path / "src", "train/a/1.png", "val/a/2.png")
    (note,) = lmdbloader.convert(src, tmp_path / "out", layout="classes").notes
    assert note == "the classes are train, val: `lmdbloader convert --split` makes a dataset of each."


def test_splits_next_to_an_image_are_splits_too(tmp_path: Path, capsys: Capture) -> None:
    src = make(tmp_path / "src", "train/1.png", "val/2.png", "sample.png", "a.csv", "b.csv", "annotations/a.json", ".x")
    (src / "test").symlink_to(src / "val")
    (src / "again").symlink_to(src)
    make(src, "__MACOSX/train/._1.png", "lost+found/#1.png")
    out = tmp_path / "out"
    with pytest.raises(SourceError, match="holds test/, train/, val/"):
        lmdbloader.convert(src, out)
    assert main(["convert", str(src), str(out), "--split", "--quiet"]) == 0
    assert {path.name for path in out.iterdir()} == {"test.lmdb", "train.lmdb", "val.lmdb"}
    assert capsys.readouterr().err.splitlines() == [
        "left out: annotations/: a folder without images",
        "left out: again: a link to a folder that it is in",
        "left out: *.csv: 2 not read: a.csv ...",
        "left out: *.png: 1 not read: sample.png",
        "left out: __MACOSX: 1 hidden or left by a program: __MACOSX",
        "left out: lost+found: 1 hidden or left by a program: lost+found",
    ]


def test_swapped_arguments_are_recognized(tmp_path: Path) -> None:
    src, out = make(tmp_path / "my photos", "a/1.png"), tmp_path / "train.lmdb"
    with pytest.raises(SourceError, match=r"train\.lmdb: there is no such folder, and .*photos holds images"):
        lmdbloader.convert(out, src)
    lmdbloader.convert(src, out)
    with pytest.raises(SourceError, match=r"train\.lmdb: is a dataset of lmdbloader, and .*photos holds images"):
        lmdbloader.convert(out, src, overwrite=True)
