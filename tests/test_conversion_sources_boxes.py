"""Folders of images with boxes, COCO's and YOLO's, become one dataset: XYXY in pixels, with the names of classes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.cli import main
from lmdbloader.conversion import plan_parts, saved_plan
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.yolo import parse_names
from lmdbloader.errors import DestinationError, ImageError, OptionError, SourceError, SourceNotFoundError

SIZES = {"a.jpg": (30, 40), "b.png": (50, 20), "deep/c.jpg": (64, 64)}
NAN = float("nan")


def save_images(folder: Path) -> Path:
    for i, (name, (height, width)) in enumerate(SIZES.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        y, x, c = np.ogrid[:height, :width, :3]
        Image.fromarray((y * 3 + x * 2 + c * 40 + i).astype(np.uint8)).save(folder / name)
    return folder


def content() -> dict[str, Any]:
    """Return COCO's JSON for SIZES: ids with gaps, not in order, a crowd, and boxes that reach out or have no area."""
    images = [
        {"id": 100 - i, "file_name": name, "height": height, "width": width}
        for i, (name, (height, width)) in enumerate(SIZES.items())
    ]
    boxes = [
        {"id": 1, "image_id": 98, "category_id": 90, "bbox": [1, 2, 3.5, 4.25], "iscrowd": 0},
        {"id": 2, "image_id": 100, "category_id": 7, "bbox": [0, 0, 10, 20], "segmentation": [[0, 0, 5, 5, 0, 5]]},
        {"id": 3, "image_id": 98, "category_id": 7, "bbox": [60, -5, 20, 20], "area": 12.5},
        {"id": 4, "image_id": 98, "category_id": 7, "bbox": [0, 0, 9, 9], "iscrowd": 1, "segmentation": {"counts": []}},
        {"id": 5, "image_id": 98, "category_id": 7, "bbox": [5, 5, 0, 9]},
    ]
    categories = [{"id": 90, "name": "toothbrush"}, {"id": 7, "name": "train"}, {"id": 8, "name": "boat"}]
    info = {"info": {"year": 2017}, "licenses": [{"id": 1}, 2]}
    return {**info, "images": images, "annotations": boxes, "categories": categories}


def save_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Return a folder with train2017/ and annotations/instances_train2017.json."""
    save_images(tmp_path / "src" / "train2017")
    save_json(tmp_path / "src" / "annotations" / "instances_train2017.json", content())
    return tmp_path / "src"


def change(coco: Path, value: Any) -> None:
    save_json(coco / "annotations" / "instances_train2017.json", value)


EXPECTED = {
    "a.jpg": ([[0, 0, 10, 20]], [0]),
    "b.png": ([], []),
    "deep/c.jpg": ([[1, 2, 4.5, 6.25], [60, 0, 64, 15]], [2, 0]),
}


def check(path: Path) -> lmdbloader.LMDBDataset:
    assert lmdbloader.verify(path).is_sound
    dataset = lmdbloader.LMDBDataset(path)
    assert [(f.name, f.kind) for f in dataset.fields.values()] == [
        ("image", "image"), ("boxes", "boxes"), ("labels", "labels"),
    ]  # fmt: skip
    sources = dataset.table["source"].to_pylist()
    assert sources == list(EXPECTED)
    for sample, name in zip(dataset, sources, strict=True):
        boxes, labels = EXPECTED[name]
        assert (sample.boxes.tolist(), sample.labels.tolist()) == (boxes, labels)
        assert sample.boxes.shape == (len(boxes), 4) and sample.image.shape == (3, *SIZES[name])
    return dataset


# --- COCO ---


def test_coco_becomes_one_dataset(coco: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    report = lmdbloader.convert(coco, tmp_path / "out", layout="coco", log=lines.append)
    dataset = check(tmp_path / "out")
    assert dataset.classes == ("train", "boat", "toothbrush")
    assert (report.layout, report.num_samples, report.stored_as["jpeg"]) == ("coco", 3, 2)
    assert dict(report.classes) == {"train": 2, "boat": 0, "toothbrush": 1}
    assert report.notes == (
        "left out: 1 box of a crowd (iscrowd)",
        "clipped to the image: 1 box",
        "left out: 1 box without area in the image",
        "not read, only boxes are: 2 segmentation",
    )
    assert "3 classes: train (2), boat (0), toothbrush (1)" in lines
    assert lmdbloader.convert(coco, tmp_path / "out", layout="coco").was_finished
    batches = lmdbloader.Loader(
        dataset,
        3,
        order="sequential",
        transforms=[T.RandomHorizontalFlip(1.0), T.Resize((32, 32)), T.SanitizeBoxes("boxes", "labels")],
    )
    (batch,) = batches
    assert batch.image.shape == (3, 3, 32, 32) and [len(boxes) for boxes in batch.boxes] == [1, 0, 2]
    assert batch.boxes[2][0].tolist() == [29.75, 1, 31.5, 3.125] and batch.labels[2].tolist() == [2, 0]


@pytest.mark.parametrize("write_mode", [None, "raw", "jpg", "original"])
def test_every_storage_and_the_file_by_name(coco: Path, tmp_path: Path, write_mode: Any) -> None:
    (coco / "annotations").rename(tmp_path / "elsewhere")
    named = {"annotations": tmp_path / "elsewhere" / "instances_train2017.json"}
    lmdbloader.convert(coco / "train2017", tmp_path / "out", write_mode=write_mode, workers=1, **named)
    check(tmp_path / "out")
    found = lmdbloader.estimate(coco / "train2017", **named)
    assert (found.layout, found.num_sources) == ("coco", 3)
    line = ["convert", str(coco / "train2017"), str(tmp_path / "b"), "--annotations", str(named["annotations"])]
    assert write_mode or (main(line) == 0 and check(tmp_path / "b"))


def test_splits_of_coco(coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(coco / "train2017", coco / "val2017")
    with pytest.raises(SystemExit):
        main(["convert", str(coco), str(tmp_path / "x"), "--split", "--annotations", "a.json"])
    assert "leave --annotations out" in capsys.readouterr().err
    line = ["convert", str(coco), str(tmp_path / "out"), "--split", "--layout", "coco"]
    assert main(line) == 1
    assert "no annotations found" in capsys.readouterr().err
    other = content()
    path = save_json(coco / "annotations" / "instances_val2017.json", {**other, "categories": other["categories"][:2]})
    assert main(line) == 2
    assert "has other classes of boxes" in capsys.readouterr().err
    save_json(path, other)
    assert main(line) == 0
    assert "left out: annotations/" not in capsys.readouterr().err
    check(tmp_path / "out" / "train2017.lmdb")
    check(tmp_path / "out" / "val2017.lmdb")
    with pytest.raises(SourceError, match=r"several sets .*train2017.*val2017"):
        lmdbloader.convert(coco, tmp_path / "y", layout="coco")


def test_places_of_the_file(coco: Path, tmp_path: Path) -> None:
    assert len(list_sources(coco / "train2017", layout="coco").sources) == 3
    (coco / "images").mkdir()
    (coco / "train2017").rename(coco / "images" / "train2017")
    assert len(list_sources(coco, layout="coco").sources) == 3
    assert len(list_sources(coco / "images" / "train2017", layout="coco").sources) == 3
    (coco / "annotations" / "instances_train2017.json").rename(coco / "images/train2017/_annotations.coco.json")
    assert len(list_sources(coco / "images" / "train2017", layout="coco").sources) == 3
    with pytest.raises(SourceError, match=r"no annotations found; looked for annotations/instances_X\.json"):
        list_sources(coco, layout="coco")
    for path, message in ((coco, "is a folder"), (coco / "nothing.json", "there is no such file")):
        with pytest.raises(SourceNotFoundError, match=message):
            list_sources(coco / "images", annotations=path)
    with pytest.raises(SourceError, match="local files"):
        list_sources(coco / "images", annotations="s3://bucket/a.json")


def test_images_and_file_that_do_not_fit(coco: Path, tmp_path: Path) -> None:
    (coco / "train2017" / "b.png").rename(coco / "train2017" / "z.png")
    with pytest.raises(SourceError, match=r"instances_train2017\.json lists b\.png, not found there.*on_error='skip'"):
        lmdbloader.convert(coco, tmp_path / "out", layout="coco")
    report = lmdbloader.convert(coco, tmp_path / "out", layout="coco", on_error="skip")
    assert report.num_samples == 2
    assert [name for name, _ in report.ignored] == ["z.png", "b.png"]
    assert "does not list it" in report.ignored[0][1] and "but it is not in" in report.ignored[1][1]
    value = content()
    for image in value["images"]:
        image["file_name"] = f"train2017/{image['file_name']}"
    change(coco, value)
    with pytest.raises(SourceError, match=r"expected the folder that file_name starts from"):
        lmdbloader.convert(coco, tmp_path / "again", layout="coco", on_error="skip")


def test_names_of_other_systems_are_found(coco: Path, tmp_path: Path) -> None:
    value = content()
    value["images"][0]["file_name"] = "./a.jpg"
    value["images"][2]["file_name"] = "deep\\c.jpg"
    change(coco, value)
    lmdbloader.convert(coco, tmp_path / "out", layout="coco")
    check(tmp_path / "out")


@pytest.mark.parametrize("size", [(40, 30), (30, 41)])
def test_another_size_than_annotated_is_refused(coco: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    value = content()
    value["images"][0] |= {"height": size[0], "width": size[1]}
    change(coco, value)
    with pytest.raises(
        ImageError, match=rf"a\.jpg: its annotations are for {size[1]}x{size[0]} pixels, and it has 40x30"
    ):
        lmdbloader.convert(coco, tmp_path / "out", layout="coco")
    report = lmdbloader.convert(coco, tmp_path / "out", layout="coco", on_error="skip", restart=True)
    assert report.num_samples == 2


@pytest.mark.parametrize("upright", [True, False])
def test_turned_jpegs(coco: Path, tmp_path: Path, upright: bool) -> None:
    image = Image.new("RGB", (30, 40))
    exif = image.getexif()
    exif[0x112] = 6
    image.save(coco / "train2017" / "a.jpg", exif=exif)  # 40x30 when it is turned
    if not upright:
        value = content()
        value["images"][0] |= {"height": 40, "width": 30}
        change(coco, value)
        with pytest.raises(ImageError, match="turned by its EXIF or XMP data, and the boxes are not"):
            lmdbloader.convert(coco, tmp_path / "out", layout="coco")
        return
    lmdbloader.convert(coco, tmp_path / "out", layout="coco")
    check(tmp_path / "out")


def turn(path: Path, orientation: int, *, as_xmp: bool = False) -> None:
    """Save an image again as a JPEG with an orientation."""
    exif = Image.Exif()
    exif[0x112] = orientation
    xmp = f'<rdf:Description tiff:Orientation="{orientation}"/>'.encode()
    body = b"http://ns.adobe.com/xap/1.0/\0" + xmp
    file = io.BytesIO()
    Image.open(path).save(file, "JPEG", **({} if as_xmp else {"exif": exif}))
    data = file.getvalue()
    path.write_bytes(data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:] if as_xmp else data)


@pytest.mark.parametrize("orientation", [2, 3, 4])
@pytest.mark.parametrize("as_xmp", [False, True])
def test_boxes_of_images_that_fit_before_and_after_a_turn_are_noted(
    coco: Path, tmp_path: Path, orientation: int, as_xmp: bool
) -> None:
    turn(coco / "train2017" / "a.jpg", orientation, as_xmp=as_xmp)
    turn(coco / "train2017" / "deep" / "c.jpg", 6)  # a square
    said: list[str] = []
    report = lmdbloader.convert(coco, tmp_path / "out", layout="coco", log=said.append)
    check(tmp_path / "out")
    note = (
        "2 images, such as a.jpg, are turned by their EXIF or XMP data, and their boxes are stored as they are. Boxes "
    )
    assert report.notes[-1].startswith(note) and said[-1] == f"note: {report.notes[-1]}."
    parts = lmdbloader.convert(coco, tmp_path / "parts", layout="coco", parts=2)
    assert parts.notes[-1].startswith(note)


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_options_that_boxes_exclude(coco: Path, tmp_path: Path, layout: Any) -> None:
    for name in ("patch_size", "scale", "max_resolution"):
        with pytest.raises(OptionError, match=f"{name}=4 with boxes: images would change without them"):
            lmdbloader.convert(coco, tmp_path / "out", layout=layout, **{name: 4})
    file = coco / "annotations" / "instances_train2017.json"
    for options, message in (
        ({"layout": "classes"}, "layout='classes' with annotations, which means layout='coco'"),
        ({"masks": coco}, "with masks, which means"),
        ({"layout": "coco", "classes": ["a"]}, "category 'train' is not among the 1 classes given"),
    ):
        with pytest.raises(OptionError, match=message):
            lmdbloader.convert(coco / "train2017", tmp_path / "out", annotations=file, **options)
    with pytest.raises(OptionError, match="annotations with hr and lr"):
        lmdbloader.convert(None, tmp_path / "out", annotations=file, hr=coco, lr=coco)


def test_classes_can_be_numbered_otherwise(coco: Path, tmp_path: Path) -> None:
    names = ["person", "toothbrush", "boat", "train"]
    lmdbloader.convert(coco, tmp_path / "out", layout="coco", classes=names)
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert dataset.classes == tuple(names) and dataset[2].labels.tolist() == [1, 3]


def test_boxes_changed_in_the_middle_are_noticed(coco: Path, tmp_path: Path) -> None:
    (coco / "train2017" / "deep" / "c.jpg").write_bytes(b"no image")
    options: dict[str, Any] = {"layout": "coco", "workers": 1, "parts": 2}
    with pytest.raises(ImageError, match=r"deep/c\.jpg"):
        lmdbloader.convert(coco, tmp_path / "out", **options)
    save_images(coco / "train2017")
    assert (tmp_path / "out.partial" / "part-00000").exists()
    value = content()
    value["annotations"][1]["bbox"] = [0, 0, 10, 21]
    change(coco, value)
    with pytest.raises(DestinationError, match=r"the inputs have changed .* boxes"):
        lmdbloader.convert(coco, tmp_path / "out", **options)
    change(coco, content())
    lmdbloader.convert(coco, tmp_path / "out", restart=True, **options)
    check(tmp_path / "out")


def test_boxes_of_an_older_plan_are_never_taken(coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, options = tmp_path / "out", {"layout": "coco", "parts": 2}
    value = content()
    value["annotations"][1]["bbox"] = [0, 0, 10, 21]
    change(coco, value)
    plan_parts(coco, out, **options)
    change(coco, content())

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped between the plan and its inputs")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(saved_plan, "_pack", stop)
        patch.setattr(saved_plan, "BytesIO", stop)
        plan_parts(coco, out, **options)
    lmdbloader.convert(coco, out, workers=1, **options)
    check(out)


def edited(key: str, number: int, **values: Any) -> dict[str, Any]:
    value = content()
    value[key][number] |= values
    return value


def without(key: str) -> dict[str, Any]:
    return {name: part for name, part in content().items() if name != key}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (edited("annotations", 1, bbox=[0, 0, NAN, 5]), r"annotations\[1\] \(id 2\): bbox is .*nan.*four finite"),
        (edited("annotations", 1, bbox=[0, 0, 5]), r"annotations\[1\] .*expected four finite numbers"),
        (edited("annotations", 1, image_id="100"), r"image_id is '100'; expected a whole number"),
        (edited("annotations", 1, category_id=5), r"1 annotation.* category_id that the file does not list, such as 5"),
        (edited("annotations", 1, iscrowd="no"), "iscrowd is 'no'; expected 0 or 1"),
        (edited("images", 1, id=100), r"images\[1\] \(id 100\): another image has this id: a\.jpg"),
        (edited("images", 1, file_name="a.jpg"), r"images\[0\] and images\[1\] have the same file_name"),
        (edited("images", 1, file_name="../train2017/a.jpg"), "not found there"),
        (edited("images", 1, height=0), "20x0 pixels; expected the width and height"),
        (edited("categories", 1, id=90), r"categories\[1\] \(id 90\): another category has this id: 'toothbrush'"),
        (edited("categories", 1, name="boat"), "the categories 7 and 8 are both called 'boat'"),
        ({**content(), "annotations": [5]}, r"annotations\[0\]: 5; expected an object"),
        ({**content(), "annotations": [{"id": 1, "image_id": 100, "caption": "x"}]}, "has no bbox, but captions"),
        (without("annotations"), "has no list 'annotations'; it has "),
        (json.dumps(content())[:-3], "is not JSON"),
        ('{"images": [' + "[" * 200_000, "nested too deeply"),
        ('{"images": [{"id": ' + "9" * 5000 + "}]}", "Exceeds the limit"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(coco: Path, value: Any, message: str) -> None:
    change(coco, value)
    with pytest.raises(SourceError, match=message) as caught:
        list_sources(coco, layout="coco")
    assert "instances_train2017.json" in str(caught.value)


def test_boxes_of_images_that_are_not_listed_are_counted(coco: Path) -> None:
    value = content()
    value["annotations"][0]["image_id"] = 5
    change(coco, value)
    listing = list_sources(coco, layout="coco")
    assert "left out: 1 box of an image that the file does not list" in listing.notes
    for annotation in value["annotations"]:
        annotation["image_id"] = 5
    change(coco, value)
    with pytest.raises(SourceError, match="no annotation has the id of an image"):
        list_sources(coco, layout="coco")


coordinates = st.floats(-100, 200, width=32)


def refusal_of(rows: list[Any]) -> str | None:
    """Return why all boxes together are refused, given (image, x, y, width, height, is_crowd) of each."""
    boxes = [row[1:5] for row in rows if not row[5]]
    numbers = [value for box in boxes for value in box]
    if numbers and min(numbers) >= -0.1 and max(numbers) <= 1.1 and any(value % 1 for value in numbers):
        return "within one pixel"
    sizes = [SIZES[list(SIZES)[row[0]]] for row in rows if not row[5]]
    outside = [
        min(x, y, x + w, y + h) < -1 or max(x, x + w) > width + 1 or max(y, y + h) > height + 1
        for (x, y, w, h), (height, width) in zip(boxes, sizes, strict=True)
    ]
    return "boxes reach beyond" if len(boxes) >= 10 and 2 * sum(outside) > len(boxes) else None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([7, 8, 90]), *[coordinates] * 4, st.booleans()), max_size=20)
)
def test_boxes_are_those_of_the_references(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    src = tmp_path_factory.mktemp("src")
    names = list(SIZES)
    for name in names:
        (src / name).parent.mkdir(exist_ok=True)
        (src / name).touch()
    annotations = [
        {"image_id": 100 - image, "category_id": category, "bbox": box, "iscrowd": int(crowd)}
        for image, category, *box, crowd in rows
    ]
    file = save_json(src / "boxes.json", {**content(), "annotations": annotations})
    if (expected_error := refusal_of([row[:1] + row[2:] for row in rows])) is not None:
        with pytest.raises(SourceError, match=expected_error):
            list_sources(src, annotations=file)
        return
    listing = list_sources(src, annotations=file)
    for number, (name, source) in enumerate(zip(names, listing.sources, strict=True)):
        height, width = SIZES[name]
        expected = []
        for image, category, x, y, w, h, crowd in rows:
            left, right = (min(max(value, 0), width) for value in (x, x + w))
            top, bottom = (min(max(value, 0), height) for value in (y, y + h))
            corners = np.array([left, top, right, bottom], np.float32)
            if image == number and not crowd and corners[2] > corners[0] and corners[3] > corners[1]:
                expected.append(([left, top, right, bottom], [7, 8, 90].index(category)))
        assert source.name == name and source.annotation is not None
        boxes = np.frombuffer(source.annotation.boxes).reshape(-1, 4)
        np.testing.assert_array_equal(boxes, np.array([box for box, _ in expected]).reshape(-1, 4))
        assert np.frombuffer(source.annotation.labels, np.int64).tolist() == [label for _, label in expected]
    taken = listing.sources.take(np.array([2, 0]))
    assert [taken[0], taken[1]] == [listing.sources[2], listing.sources[0]]


def test_shares_are_refused_unless_a_box_is_larger(coco: Path, tmp_path: Path) -> None:
    value = content()
    for annotation in value["annotations"]:
        annotation["bbox"] = [number / 64 for number in [1, 2, 30, 4]]
    change(coco, value)
    with pytest.raises(SourceError, match=r"instances_train2017\.json: its boxes, such as \[0\.015625, .* one pixel"):
        lmdbloader.convert(coco, tmp_path / "out", layout="coco")
    assert not (tmp_path / "out").exists()
    value["annotations"][0]["bbox"] = [1, 2, 30, 4]
    change(coco, value)
    assert list_sources(coco, layout="coco").sources[2].annotation is not None


# Most boxes are in another form if more than half of ten or more reach out: (reach out, do not, is refused).
FORMS = [(9, 0, False), (5, 5, False), (6, 5, True), (10, 0, True)]


@pytest.mark.parametrize(("out", "within", "is_refused"), FORMS)
def test_corners_of_coco_are_not_taken_for_sides(coco: Path, out: int, within: int, is_refused: bool) -> None:
    boxes = [[20, 10, 39, 29]] * out + [[30, 20, 11, 11]] * within  # 11 reach out by the pixel that is tolerated
    annotations = [{"image_id": 100, "category_id": 7, "bbox": box} for box in boxes]
    change(coco, {**content(), "annotations": annotations})
    if not is_refused:
        assert list_sources(coco, layout="coco").notes[0] == f"clipped to the image: {out + within} boxes"
        return
    found = rf"{out} of {out + within} boxes reach .* \(20, 10\) to \(59, 39\) in 40x30; .* subtract left and top"
    with pytest.raises(SourceError, match=rf"instances_train2017\.json: {found}"):
        list_sources(coco, layout="coco")


# --- YOLO ---

LABELS = {
    "a": "0 0.125 0.3333333333333333 0.25 0.6666666666666666\n",
    "deep/c": "2 0.04296875 0.064453125 0.0546875 0.06640625\n\n0 0.96875 0.1171875 0.0625 0.234375",
}


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """Return a folder with images/, labels/ and data.yaml; b.png has no boxes, and no text file."""
    src = tmp_path / "src"
    save_images(src / "images")
    for name, text in LABELS.items():
        (src / "labels" / name).parent.mkdir(parents=True, exist_ok=True)
        (src / "labels" / f"{name}.txt").write_text(text)
    (src / "data.yaml").write_text("train: images\nnc: 3\nnames: [train, boat, toothbrush]\n")
    return src


def test_yolo_becomes_one_dataset(yolo: Path, tmp_path: Path) -> None:
    report = lmdbloader.convert(yolo, tmp_path / "out", layout="yolo")
    dataset = check(tmp_path / "out")
    assert dataset.classes == ("train", "boat", "toothbrush")
    assert report.notes == ("without boxes: 1 image without a text file",) and report.ignored == ()
    assert lmdbloader.convert(yolo, tmp_path / "out", layout="yolo").was_finished
    (yolo / "labels" / "b.txt").write_text("")
    assert lmdbloader.convert(yolo, tmp_path / "out", layout="yolo").was_finished  # no boxes either way
    (yolo / "labels" / "a.txt").write_text("1 0.5 0.5 0.5 0.5")
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.convert(yolo, tmp_path / "out", layout="yolo")
    assert main(["estimate", str(yolo), "--layout", "yolo"]) == 0


def test_no_label_of_yolo_is_lost_by_the_spelling_of_a_name(yolo: Path) -> None:
    (yolo / "labels" / "a.txt").rename(yolo / "labels" / "a.TXT")
    (yolo / "labels" / "b.text").write_text("0 0.5 0.5 0.1 0.1")
    (yolo / "images" / "b.txt").write_text("0 0.5 0.5 0.1 0.1")
    (yolo / "coco8.yaml").write_text("names: [x, y, z]")
    (yolo / "classes.TXT").write_text("x")
    listing = list_sources(yolo, layout="yolo")
    assert [len(source.annotation.labels) // 8 for source in listing.sources if source.annotation] == [1, 0, 2]
    known = "not read: the names of the classes are those of data.yaml"
    names = (("classes.TXT", known), ("coco8.yaml", known))
    assert listing.ignored == (("*.txt", "1 not read: b.txt"), ("*.text", "1 not read: b.text"), *names)
    (yolo / "labels" / "a.txt").write_text("")
    with pytest.raises(SourceError, match=r"a\.TXT and a\.txt have the same stem|a\.txt and a\.TXT have the same stem"):
        list_sources(yolo, layout="yolo")


def test_keys_of_coco_that_are_not_read_are_noted(coco: Path) -> None:
    value = content()
    value["annotations"][0] |= {"isCrowd": 1, "attributes": {"occluded": True}, "score": 0}
    change(coco, value)
    notes = list_sources(coco / "train2017", layout="coco").notes
    assert "not read, only boxes are: 1 attributes" in notes and "not read, only boxes are: 1 isCrowd" in notes


def test_trees_of_yolo(yolo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for inner in ("images", "labels"):
        (yolo / inner).rename(yolo / "aside")
        (yolo / inner).mkdir()
        (yolo / "aside").rename(yolo / inner / "train")
    (yolo / "labels" / "train" / "alone.txt").write_text("0 0 0 0 0")
    report = lmdbloader.convert(yolo / "images" / "train", tmp_path / "a", layout="yolo")
    check(tmp_path / "a")
    assert report.ignored == (("alone.txt", "belongs to no image"),)
    assert main(["convert", str(yolo), str(tmp_path / "out"), "--split", "--layout", "yolo"]) == 1
    assert "holds no folders like train/ and val/" in capsys.readouterr().err
    other = tmp_path / "other"
    for inner in ("images", "labels"):
        shutil.copytree(yolo / inner / "train", other / "train" / inner)
    shutil.copy(yolo / "data.yaml", other)
    assert main(["convert", str(other), str(tmp_path / "out"), "--split", "--layout", "yolo"]) == 0
    assert "data.yaml" not in capsys.readouterr().err
    assert check(tmp_path / "out" / "train.lmdb").classes == ("train", "boat", "toothbrush")
    flat = save_images(tmp_path / "flat")
    for name, text in LABELS.items():
        (flat / f"{name}.txt").write_text(text)
    report = lmdbloader.convert(flat, tmp_path / "b", layout="yolo")
    assert check(tmp_path / "b").classes == () and report.classes == {}
    assert any("the classes have no names" in note for note in report.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0.5 0.5 0.5 1.5", r"a\.txt, line 2: 1\.5 is not from 0 to 1; expected shares .*Divide pixels"),
        ("0 0.5 nan 0.5 0.5", "nan is not from 0 to 1"),
        ("3 0.5 0.5 0.5 0.5", r"line 2: class 3, but .*data\.yaml has 3 names, from 0 to 2"),
        ("0.5 0.5 0.5 0.5 0.5", "the class is 0.5"),
        ("cat 0.5 0.5 0.5 0.5", "'cat 0.5 0.5 0.5 0.5'; expected `class x y width height`"),
        ("0 0.5 0.5 0.5", "4 numbers"),
        ("0 0.5 0.5 0.5 0.5 0.9", "6 numbers .*leave the confidence out"),
        ("0 0.5 0.5 0.5 0.5 0.9 0.9 2", "8 numbers .*keypoints are not read"),
    ],
)
def test_damaged_lines_are_named(yolo: Path, text: str, message: str) -> None:
    (yolo / "labels" / "a.txt").write_text(f"0 0.5 0.5 0.5 0.5\n{text}\n")
    with pytest.raises(SourceError, match=message):
        list_sources(yolo, layout="yolo")


def test_polygons_become_boxes(yolo: Path, tmp_path: Path) -> None:
    (yolo / "labels" / "a.txt").write_text("0 0 0 0.25 0 0.1 0.6666666666666666\n1 1 1 0 0 0 0")
    report = lmdbloader.convert(yolo, tmp_path / "out", layout="yolo")
    sample = lmdbloader.LMDBDataset(tmp_path / "out")[0]
    assert sample.boxes.tolist() == [[0, 0, 10, 20], [0, 0, 40, 30]] and sample.labels.tolist() == [0, 1]
    assert "turned into the box around it: 2 polygons" in report.notes
    (yolo / "data.yaml").write_text("kpt_shape: [17, 3]\nnames: [a, b, c]\n")
    with pytest.raises(SourceError, match="keypoints are not read"):
        list_sources(yolo, layout="yolo")


def test_boxes_of_yolo_are_clipped_and_those_without_area_left_out(yolo: Path) -> None:
    (yolo / "labels" / "a.txt").write_text("0 0 0 1 1\n0 0.5 0.5 0 1\n0 0.9 0.9 0.200002 0.2")
    listing = list_sources(yolo, layout="yolo")
    assert listing.notes[:2] == ("clipped to the image: 1 box", "left out: 1 box without area in the image")
    source = listing.sources[0]
    assert source.annotation is not None
    boxes = np.frombuffer(source.annotation.boxes).reshape(-1, 4)
    np.testing.assert_allclose(boxes, [[0, 0, 0.5, 0.5], [0.799999, 0.8, 1, 1]])


@pytest.mark.parametrize(("out", "within", "is_refused"), FORMS)
def test_corners_of_yolo_are_not_taken_for_a_center(yolo: Path, out: int, within: int, is_refused: bool) -> None:
    lines = ["0 0.5 0.3 0.9 0.9"] * out + ["0 0.5 0.5 1 1.0", "0 0.26 0.5 0.53 1"] * within  # rounded to two digits
    (yolo / "labels" / "a.txt").write_text("\n".join(lines[: out + within]))
    (yolo / "labels" / "deep" / "c.txt").unlink()
    if not is_refused:
        assert list_sources(yolo, layout="yolo").notes[0].startswith("clipped to the image")
        return
    with pytest.raises(SourceError, match=rf"labels: {out} of {out + within} boxes reach .*add half of the width"):
        list_sources(yolo, layout="yolo")


def test_places_that_are_not_yolos(yolo: Path, tmp_path: Path) -> None:
    for path in (yolo / "labels").rglob("*.txt"):
        path.unlink()
    with pytest.raises(
        SourceError, match=r"no text file belongs to an image .*expected labels/a\.txt for images/a\.jpg"
    ):
        list_sources(yolo, layout="yolo")
    with pytest.raises(SourceNotFoundError, match="no such folder"):
        list_sources(tmp_path / "nothing", layout="yolo")
    with pytest.raises(SourceError, match="reads local folders only"):
        list_sources("s3://bucket/images", layout="yolo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no images in it"):
        list_sources(tmp_path / "empty", layout="yolo")
    Image.new("L", (4, 4)).save(yolo / "images" / "a.png")
    with pytest.raises(SourceError, match="two images have the name a"):
        list_sources(yolo, layout="yolo")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [a, b c, 'd, e']", ["a", "b c", "d, e"]),
        ("names: [\"x\", 'it''s']  # two\nnc: 2", ["x", "it's"]),
        ("nc: 2\nnames:\n- a\n- b  # note\ntrain: x", ["a", "b"]),
        ("names:\n  1: b\n  0: a\npath: x", ["a", "b"]),
        ("names: [0, 1, yes]", ["0", "1", "yes"]),
        *(
            (text, None)
            for text in (
                "nc: 3", "names:\n", "names: *others", "names: [a, [b]]", "names: [a", "names: {}", "[names]",
                "names:\n  0: a\n  2: b", "names:\n  cat: 0", "names: {0: a, b}", "names:\n  - a: b",
                "names: [a]\nnames: [b]", "names: {0: a, 1: b, 1: c}",
            )
        ),
    ],
)  # fmt: skip
def test_names_in_yaml(text: str, names: list[str] | None) -> None:
    if names is None:
        with pytest.raises(ValueError, match=r"YAML|names"):
            parse_names(text)
    else:
        assert parse_names(text) == names


def test_names_that_cannot_be_read_can_be_given(yolo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (yolo / "data.yaml").write_text("names: *others")
    with pytest.raises(SourceError, match=r"data\.yaml: the names .*classes\.txt"):
        lmdbloader.convert(yolo, tmp_path / "a", layout="yolo")
    lmdbloader.convert(yolo, tmp_path / "a", layout="yolo", classes=["x", "y", "z"])
    assert check(tmp_path / "a").classes == ("x", "y", "z")
    with pytest.raises(SourceError, match="class 2, but classes has 2 names"):
        lmdbloader.convert(yolo, tmp_path / "b", layout="yolo", classes=["x", "y"])
    with pytest.raises(OptionError, match="different names"):
        lmdbloader.convert(yolo, tmp_path / "b", layout="yolo", classes=["x", "x"])
    assert main(["convert", str(yolo), str(tmp_path / "b"), "--layout", "yolo"]) == 1
    assert "classes.txt, one a line" in capsys.readouterr().err
    (yolo / "classes.txt").write_text("x\ny\nz\n\n")
    assert main(["convert", str(yolo), str(tmp_path / "b"), "--layout", "yolo"]) == 0
    assert check(tmp_path / "b").classes == ("x", "y", "z")
    for text, message in (("x\nx\nz", "two classes are called 'x'"), ("x\n\nz", "a class has no name")):
        (yolo / "classes.txt").write_text(text)
        with pytest.raises(SourceError, match=message):
            list_sources(yolo, layout="yolo")
