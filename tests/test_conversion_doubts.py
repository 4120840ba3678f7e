"""Folders that look like one thing and would be read as another are refused with the line to write, or noted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.conversion.doubts import describe_classes
from lmdbloader.errors import LmdbloaderError, SourceError

Capture = pytest.CaptureFixture[str]


def make(folder: Path, *names: str) -> Path:
    """Make small images, and other files."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".png", ".jpg")):
            Image.new("RGB", (12, 8), (number, 0, 0)).save(folder / name)
        else:
            (folder / name).write_text("x")
    return folder


def fields_of(path: Path) -> list[str]:
    return list(lmdbloader.LMDBDataset(path).fields)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png"), "holds train/, val/, which"),
        (("train/1.png", "test/2.png", "other/3.png"), "holds test/, train/, which"),
        (("Training/1.png", "Validation/2.png"), "holds Training/, Validation/, which"),
        (("train2017/1.jpg", "val2017/2.jpg", "annotations/a.json"), "holds train2017/, val2017/, which"),
        (("trainA/1.jpg", "trainB/2.jpg", "testA/3.jpg", "testB/4.jpg"), "holds testA/, testB/, trainA/ and 1 more,"),
        (("DIV2K_train_HR/1.png", "DIV2K_valid_HR/2.png"), "holds DIV2K_train_HR/, DIV2K_valid_HR/, which"),
    ],
)
def test_splits_are_not_taken_for_classes(tmp_path: Path, capsys: Capture, names: tuple[str, ...], splits: str) -> None:
    src, out = make(tmp_path / "src", *names), tmp_path / "out"
    for options in ({}, {"patch_size": 4}):
        with pytest.raises(SourceError, match=f"src: {splits}") as error:
            lmdbloader.convert(src, out, **options)
    assert f"for split in lmdbloader.find_splits({str(src)!r}): lmdbloader.convert(" in str(error.value)
    with pytest.raises(SourceError, match=splits):
        lmdbloader.estimate(src)
    assert main(["convert", str(src), str(out)]) == 1
    said = capsys.readouterr().err
    assert f"For a dataset of each, write: lmdbloader convert {src} OUT --split. If they are classes, write" in said
    assert not out.exists()
    # Every line of advice works.
    assert main(["convert", str(src), str(out), "--split", "--quiet"]) == 0
    assert {p.stem for p in out.iterdir()} == {
        name.partition("/")[0] for name in names if name[-4:] in (".png", ".jpg")
    }
    assert lmdbloader.convert(src, tmp_path / "classes", layout="classes").classes.keys() == {
        p.stem for p in out.iterdir()
    }
    assert fields_of(tmp_path / "classes") == ["image", "label"]
    lmdbloader.convert(src, tmp_path / "images", layout="images")
    assert fields_of(tmp_path / "images") == ["image"]


def save_pairs(folder: Path, high: str, low: str, count: int = 4) -> None:
    """Save pairs of scale 2 under names with a place for a number."""
    for number in range(count):
        for name, side in ((high, 16), (low, 8)):
            path = folder / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (side, side), (40 * number, 0, 0)).save(path)


@pytest.mark.parametrize(
    ("high", "low", "line"),
    [
        (
            "train_sharp/00{}/1.png",
            "train_sharp_bicubic/X4/00{}/1.png",
            "hr={0}/train_sharp lr={0}/train_sharp_bicubic/X4",
        ),
        ("clean/{}.png", "rainy/{}.png", "hr={0}/clean lr={0}/rainy"),
        ("gt/{}_clean.png", "data/{}_rain.png", ""),
        ("seq/0{}/1.png", "vimeo_matlabLRx4/seq/0{}/1.png", "hr={0}/seq lr={0}/vimeo_matlabLRx4/seq"),
        ("Normal/normal0000{}.png", "Low/low0000{}.png", ""),
        ("GOPR{}/sharp/1.png", "GOPR{}/blur/1.png", ""),
        ("our{}/high/1.png", "our{}/low/1.png", ""),
        ("{}/Canon_HR.png", "{}/Canon_LR2.png", ""),
        ("000{}_S6/1_GT_SRGB.PNG", "000{}_S6/1_NOISY_SRGB.PNG", ""),
        ("image_SRF_{}/img_HR.png", "image_SRF_{}/img_LR.png", ""),
    ],
)
def test_halves_of_pairs_are_not_taken_for_classes(tmp_path: Path, high: str, low: str, line: str) -> None:
    src = tmp_path / "src"
    save_pairs(src, high, low)
    with pytest.raises(SourceError, match="which are probably halves of a pair") as error:
        lmdbloader.convert(src, tmp_path / "out")
    assert lmdbloader.convert(src, tmp_path / "classes", layout="classes").layout == "classes"
    save_pairs(tmp_path / "splits" / "train", high, low)
    with pytest.raises(SourceError, match=r"train: holds .*which are probably halves of a pair"):
        lmdbloader.find_splits(tmp_path / "splits")
    if not line:
        assert "put the halves into a folder of each, under equal names, and write hr='HIGH', lr='LOW'" in str(
            error.value
        )
        return
    hr, lr = (part.partition("=")[2].format(src) for part in line.split())
    assert f"write hr={hr!r}, lr={lr!r}, and leave src out" in str(error.value)
    assert lmdbloader.convert(None, tmp_path / "pairs", hr=hr, lr=lr).num_samples == 4


def test_classes_with_equal_names_of_images_are_classes(tmp_path: Path) -> None:
    src = make(
        tmp_path / "src", *[f"{name}/{i}.png" for name in ("rain", "snow", "low_tide", "beach") for i in range(3)]
    )
    assert [*lmdbloader.convert(src, tmp_path / "out").classes] == ["beach", "low_tide", "rain", "snow"]


def test_halves_of_pairs_next_to_each_other_get_a_note(tmp_path: Path) -> None:
    src = make(tmp_path / "src", *[f"img_00{i}_SRF_4_{half}.png" for i in range(3) for half in ("HR", "LR")])
    (note,) = lmdbloader.convert(src, tmp_path / "out").notes
    assert note.startswith("img_000_SRF_4_HR.png and img_000_SRF_4_LR.png are probably halves of a pair.")


def test_the_line_for_splits_in_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = make(tmp_path / "src", "train/a/1.png", "train/b/1.png", "val/b/2.png", "val/c/2.png")
    with pytest.raises(SourceError) as error:
        lmdbloader.convert(src, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    exec(str(error.value).split("`")[1], {"lmdbloader": lmdbloader})
    val = lmdbloader.LMDBDataset("val.lmdb")
    assert val.classes == ("a", "b", "c") and [sample.label for sample in val] == [1, 2]


def test_splits_next_to_an_image_are_splits_too(tmp_path: Path, capsys: Capture) -> None:
    src = make(tmp_path / "src", "train/1.png", "val/2.png", "sample.png", "a.csv", "b.csv", "annotations/a.json", ".x")
    (src / "test").symlink_to(src / "val")
    (src / "again").symlink_to(src)
    make(src, "__MACOSX/train/._1.png", "lost+found/#1.png")
    out = tmp_path / "out"
    with pytest.raises(SourceError, match="holds test/, train/, val/, which"):
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


def test_splits_below_the_folder_of_all_images(tmp_path: Path) -> None:
    src = make(tmp_path / "yolo", "images/train/1.png", "images/val/2.png", "labels/train/1.txt", "data.yaml")
    with pytest.raises(SourceError, match=r"yolo/images: holds train/, val/, .*find_splits\('[^']*yolo/images'\)"):
        lmdbloader.convert(src, tmp_path / "out")


@pytest.mark.parametrize("names", [("trainA", "trainB"), ("train_blur", "train_blur_jpeg"), ("train2014", "train2017")])
def test_parts_of_training_data_are_not_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    src = make(tmp_path / "src", *(f"{name}/1.png" for name in names))
    with pytest.raises(SourceError, match=f"holds {names[0]}/, {names[1]}/, which are probably splits of a dataset"):
        lmdbloader.convert(src, tmp_path / "out")
    assert [split.name for split in lmdbloader.find_splits(src)] == [*names]


@pytest.mark.parametrize("names", [("train", "plane"), ("test", "rest"), ("trains", "values")])
def test_classes_with_such_names_stay_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    src = make(tmp_path / "src", *(f"{name}/1.png" for name in names))
    assert list(lmdbloader.convert(src, tmp_path / "out").classes) == sorted(names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("images/1.png", "masks/1.png"), "holds images/, masks/, which are probably images and their masks or labels"),
        (
            ("JPEGImages/1.jpg", "SegmentationClass/1.png", "Annotations/1.xml"),
            "holds JPEGImages/, SegmentationClass/, .*For the images alone, convert .*src/JPEGImages. If",
        ),
        (
            ("GTmod12/1.png", "LRbicx2/1.png"),
            "which are probably halves of pairs. Write hr='.*src/GTmod12', lr='.*src/LRbicx2', and leave src out",
        ),
        (("gt/1.png", "lq/1.png"), "probably halves of pairs"),
        (("images/1.png", "labels/1.txt", "labels/1.png"), "For images with YOLO's boxes, write layout='yolo'"),
    ],
)
def test_images_and_what_belongs_to_them_are_not_classes(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    src = make(tmp_path / "src", *names)
    with pytest.raises(SourceError, match=message):
        lmdbloader.convert(src, tmp_path / "out")
    assert len(lmdbloader.convert(src, tmp_path / "out", layout="classes").classes) == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("train/images/1.png", "train/masks/1.png"),
            "src/train: holds images/, masks/, .* convert .*src/train/images. For",
        ),
        (
            ("data/HR/1.png", "data/LR/1.png"),
            "src/data: holds HR/, LR/, .*Write hr='.*src/data/HR', lr='.*src/data/LR'",
        ),
    ],
)
def test_a_folder_around_them_makes_no_difference(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    src = make(tmp_path / "src", *names)
    with pytest.raises(SourceError, match=message):
        lmdbloader.convert(src, tmp_path / "out")
    assert len(lmdbloader.LMDBDataset(lmdbloader.convert(src, tmp_path / "out", layout="images").path)) == 2


def test_the_line_for_pairs_works(tmp_path: Path, capsys: Capture) -> None:
    src, out = make(tmp_path / "src", "GTmod12/1.png", "LRbicx2/1x2.png"), tmp_path / "out"
    Image.new("RGB", (6, 4)).save(src / "LRbicx2" / "1x2.png")
    Image.new("RGB", (12, 8)).save(src / "GTmod12" / "1.png")
    assert main(["convert", str(src), str(out)]) == 1
    line = capsys.readouterr().err.split("Write ")[1].split(",")[0]
    assert main(["convert", *line.split(), str(out), "--quiet"]) == 0
    assert fields_of(out) == ["lr", "hr"]


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("a/1.png", "b/2.png"), None),
        (
            ("1.png", "2.png", "a/3.png", "b/4.png"),
            "1.png and others are in no folder, so a/, b/ give no labels. If they",
        ),
        (("1.png", "2.png", "3.png", "a/3.png", "b/4.png"), None),
        (("1.png", "a/2.png"), None),
        (("a/1.png", "b/.2.png"), "hidden files are read too, such as b/.2.png"),
        (
            (".cache/1.png", "2.png", "3.png", "4.png", "a/.5.png"),
            "hidden files are read too, such as a/.5.png",
        ),
        (("1.heic", "2.png"), "*.heic files are not read. If they are images, convert them to PNG or JPEG"),
        (("1.png", "1_mask.png", "2.png"), "1_mask.png and other images are named like masks. Each of them will be"),
        (
            ("cats/1.png", "cats/2.png"),
            "all images are in {src}/cats, so they have no labels. If it is a class, write ",
        ),
        (
            ("train/cat/1.png", "train/dog/1.png"),
            "all images are in {src}/train. If its folders (cat/, dog/) are classes, convert {src}/train",
        ),
        (
            ("1.png", "a.json", "1.txt"),
            "*.json and *.txt files are not read: labels, boxes or captions in them will not be in the dataset. COCO's "
            "boxes: layout='coco'. YOLO's boxes: layout='yolo'. Write samples",
        ),
        (("1.png", "labels.csv", "1.xml", "notes.md"), "*.csv and *.xml files are not read: labels, boxes or captions"),
    ],
)
def test_what_is_not_in_a_dataset_is_noted(
    tmp_path: Path, capsys: Capture, names: tuple[str, ...], note: str | None
) -> None:
    src = make(tmp_path / "src", *names)
    report = lmdbloader.convert(src, tmp_path / "out")
    assert lmdbloader.convert(src, tmp_path / "out").notes == report.notes  # was finished
    assert main(["convert", str(src), str(tmp_path / "again")]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    if note is None:
        assert (report.notes, printed) == ((), [])
    else:
        assert report.notes[0].startswith(note.format(src=src)) and len(report.notes) == 1
        in_flags = re.sub(r"layout='(\w+)'", r"--layout \1", report.notes[0])
        assert printed == [f"note: {in_flags}."]


def test_notes_are_only_made_where_labels_could_be(tmp_path: Path) -> None:
    src = make(tmp_path / "src", "all/1.png")
    assert lmdbloader.convert(src, tmp_path / "a", patch_size=4).notes == ()
    assert lmdbloader.convert(src, tmp_path / "b", layout="classes").notes == ()
    assert lmdbloader.convert(src, tmp_path / "c", layout="images").notes == ()
    make(src, "more/2.png")
    (note,) = lmdbloader.convert(src, tmp_path / "d", patch_size=4).notes
    expected = (
        "with patches or scales, the folders all/, more/ give no labels. If they are classes, write layout='classes'"
    )
    assert note == expected
    assert lmdbloader.convert(src, tmp_path / "e", patch_size=4, layout="classes").notes == ()


def test_a_conversion_of_classes_counts_them(tmp_path: Path, capsys: Capture) -> None:
    src = make(tmp_path / "src", "b/1.png", "a/2.png", "a/3.png")
    report = lmdbloader.convert(src, tmp_path / "out", classes=["a", "b", "none"], patch_size=4, layout="classes")
    assert dict(report.classes) == {"a": 2, "b": 1, "none": 0}
    assert report.num_samples == 18
    assert main(["convert", str(src), str(tmp_path / "other")]) == 0
    assert "\n2 classes: a (2 images), b (1)\n" in capsys.readouterr().out
    assert dict(lmdbloader.convert(src, tmp_path / "other").classes) == {"a": 2, "b": 1}  # was finished
    assert lmdbloader.convert(src / "a", tmp_path / "images").classes == {}


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"a": 1}, "1 class: a (1 image)"),
        (dict.fromkeys("abcdef", 3), "6 classes: a (3 images), b (3), c (3), d (3), e (3), f (3)"),
        (dict.fromkeys("abcdefg", 3), "7 classes of 3 images: a (3), b (3), c (3) ... g (3)"),
    ],
)
def test_classes_in_a_line(counts: dict[str, int], text: str) -> None:
    assert describe_classes(counts) == text


def test_swapped_arguments_are_recognised(tmp_path: Path, capsys: Capture) -> None:
    src, out = make(tmp_path / "my photos", "a/1.png"), tmp_path / "train.lmdb"
    given: dict[str, Any] = {"patch_size": 4, "write_mode": "jpg", "jpeg_quality": 80, "log": print, "progress": True}
    with pytest.raises(SourceError, match=r"train\.lmdb: there is no such folder, and .*photos holds images") as error:
        lmdbloader.convert(out, src, **given)
    line = str(error.value).split("Write: ")[1]
    assert "patch_size=4, write_mode='jpg', jpeg_quality=80, progress=True)" in line
    exec(line, {"lmdbloader": lmdbloader})
    flags = ["--patch-size", "4", "--write-mode", "jpg", "--jpeg-quality", "80", "--overwrite"]
    assert main(["convert", *flags, str(out), str(src)]) == 1
    expected = f"{out}: is a dataset of lmdbloader, and {src} holds images. The source comes first. Write: "
    said = capsys.readouterr().err.strip()
    line = shlex.join(["lmdbloader", "convert", str(src), str(out), *flags])
    assert said == f"lmdbloader: {expected}{line}"
    assert main(shlex.split(line)[1:]) == 0


@pytest.mark.parametrize(("given", "message"), [("nowhere", "there is no such folder\\.$"), ("src", "no images in it")])
def test_other_mistakes_keep_their_message(tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "src").mkdir()
    other: Any = make(tmp_path / "other", "a.txt")
    with pytest.raises(LmdbloaderError, match=message):
        lmdbloader.convert(tmp_path / given, other)
