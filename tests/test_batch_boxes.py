"""Boxes and points move with the images of their sample, and a batch has lists of them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset
from transform_lists import lists_of_transforms
from transform_reference import COLORS, WARPS

import lmdbloader
from lmdbloader import fields
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError, OptionError
from lmdbloader.fields import kind_named

DECLARED = {"mask": fields.Mask(), "boxes": fields.Boxes(), "labels": fields.Labels(), "points": fields.Points()}
SIZES = [(37, 23), (24, 24), (30, 50)]
OTHERS = (T.ToDtype, T.Normalize, T.RandomErasing, T.Cutout, *get_args(COLORS), *get_args(WARPS))


def sample_of(height: int, width: int, seed: int, count: int = 1) -> dict[str, Any]:
    """Return an image, boxes of whole pixels in it, their centers, and a mask of the first box."""
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.integers(0, (width, height), (count, 2, 2)), 1)
    boxes = np.concatenate([corners[:, 0], corners[:, 1] + 1], 1).astype(np.float32)
    mask = np.zeros((height, width), np.uint8)
    for left, top, right, bottom in boxes[:1].astype(int):
        mask[top:bottom, left:right] = 1
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    points = boxes.reshape(-1, 2, 2).mean(1) - 0.5
    return {"image": image, "mask": mask, "boxes": boxes, "labels": np.arange(count), "points": points}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a dataset for each of SIZES, whose samples have one box each."""
    folder = tmp_path_factory.mktemp("boxes")
    for i, size in enumerate(SIZES):
        lmdbloader.write((sample_of(*size, k) for k in range(4)), folder / str(i), fields=DECLARED)
    return [folder / str(i) for i in range(len(SIZES))]


@pytest.fixture
def ragged(tmp_path: Path) -> lmdbloader.LMDBDataset:
    """Return a dataset of images of one size with 0, 1, 2, 3 ... boxes."""
    lmdbloader.write((sample_of(20, 30, k, k) for k in range(6)), tmp_path / "ragged", fields=DECLARED)
    assert lmdbloader.verify(tmp_path / "ragged").is_sound
    return lmdbloader.LMDBDataset(tmp_path / "ragged")


@settings(max_examples=100)
@given(st.data())
def test_boxes_stay_around_what_they_were_around(paths: list[Path], data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(SIZES) - 1))
    drawn = data.draw(lists_of_transforms({"image": SIZES[which]}, 3, np.uint8))
    moves = [replace(t, fields=None) for t in drawn if not isinstance(t, OTHERS)]
    slack = 1.01 if any(isinstance(t, T.Resize | T.RandomResizedCrop) for t in moves) else 0.0
    dataset = lmdbloader.LMDBDataset(paths[which]).select([0, 3, 1, 2, 0, 0])
    loader = lmdbloader.Loader(
        dataset, 4, order="sequential", transforms=moves, num_threads=1, seed=data.draw(st.integers(0, 9))
    )
    for batch in loader:
        for mask, boxes, points in zip(batch.mask, batch.boxes, batch.points, strict=True):
            height, width = mask.shape
            left, top, right, bottom = boxes[0].tolist()
            assert 0 <= left <= right <= width and 0 <= top <= bottom <= height
            rows, columns = torch.nonzero((mask == 1).any(1)).flatten(), torch.nonzero((mask == 1).any(0)).flatten()
            if not len(rows):
                assert min(right - left, bottom - top) <= slack
                continue
            seen = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
            assert max(abs(a - b) for a, b in zip(boxes[0].tolist(), seen, strict=True)) <= slack
            x, y = points[0].tolist()
            # A point of what a crop has cut off may lie in the border that the next transform has added.
            around = mask[int(max(y, 0)) : int(np.ceil(y)) + 1, int(max(x, 0)) : int(np.ceil(x)) + 1]
            is_inside = 0 <= x <= width - 1 and 0 <= y <= height - 1 and bool((around != 255).all())
            assert not is_inside or (
                left - 0.5 - slack <= x <= right - 0.5 + slack and top - 0.5 - slack <= y <= bottom - 0.5 + slack
            )


def test_samples_and_batches_have_boxes_of_any_number(ragged: lmdbloader.LMDBDataset) -> None:
    for k, sample in enumerate(ragged):
        expected = sample_of(20, 30, k, k)
        assert (sample.boxes.dtype, sample.labels.dtype, sample.points.dtype) == (
            torch.float32, torch.int64, torch.float32,
        )  # fmt: skip
        for name in ("boxes", "labels", "points"):
            np.testing.assert_array_equal(getattr(sample, name).numpy(), expected[name])
    assert ragged[0].boxes.shape == (0, 4) and ragged[0].points.shape == (0, 2)
    (batch,) = lmdbloader.Loader(ragged, 6, order="sequential")
    for name in ("boxes", "labels", "points"):
        assert isinstance(getattr(batch, name), list) and len(getattr(batch, name)) == 6
    assert batch.image.shape == (6, 3, 20, 30)
    (alike,) = lmdbloader.Loader(ragged.select([2, 2]), 2, order="random")  # a list even where the numbers are the same
    assert type(alike.boxes) is list and alike.boxes[0].shape == (2, 4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_under_a_dataloader_give_what_a_loader_gives(ragged: lmdbloader.LMDBDataset, num_workers: int) -> None:
    moves = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
    (expected,) = lmdbloader.Loader(ragged, 6, order="sequential", transforms=moves, seed=3)
    view = ragged.transformed(moves, seed=3)
    collate = lmdbloader.dataloader(view).collate_fn
    (batch,) = DataLoader(view, 6, num_workers=num_workers, collate_fn=collate)
    assert torch.equal(batch.image, expected.image)
    for name in ("boxes", "labels", "points"):
        pairs = zip(getattr(batch, name), getattr(expected, name), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("min_size", [1.0, 4])
def test_sanitizing_drops_boxes_with_what_belongs_to_them(ragged: lmdbloader.LMDBDataset, min_size: float) -> None:
    crop, sanitize = T.CenterCrop(6), T.SanitizeBoxes("boxes", "labels", "points", min_size=min_size)
    (plain,) = lmdbloader.Loader(ragged, 6, order="sequential", transforms=[crop])
    (batch,) = lmdbloader.Loader(ragged, 6, order="sequential", transforms=[crop, sanitize])
    dropped = 0
    for k in range(6):
        keep = (plain.boxes[k][:, 2:] - plain.boxes[k][:, :2] >= min_size).all(1)
        dropped += int((~keep).sum())
        for name in ("boxes", "labels", "points"):
            assert torch.equal(getattr(batch, name)[k], getattr(plain, name)[k][keep])
        sample = sanitize(ragged.transformed([crop])[k])
        assert torch.equal(sample.labels, batch.labels[k])
    assert 0 < dropped < 15
    assert sanitize({"boxes": torch.zeros(2, 4), "labels": torch.arange(2), "points": torch.zeros(2, 2)})[
        "labels"
    ].shape == (0,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.SanitizeBoxes("boxes", min_size=0), "expected a number of pixels above 0"),
        (lambda: T.SanitizeBoxes("boxes", min_size=float("nan")), "expected a number of pixels above 0"),
        (lambda: T.SanitizeBoxes(5), r"SanitizeBoxes\(5\): expected names"),  # type: ignore[arg-type]
        (
            lambda: T.SanitizeBoxes("boxes", "n")({"boxes": [torch.zeros(1, 4)] * 2, "n": torch.arange(2)}),
            "'n' has .*expected one for each box",
        ),
        (lambda: T.SanitizeBoxes("boxes", "n")({"boxes": torch.zeros(1, 4), "n": 5}), "'n' has"),
        (lambda: T.SanitizeBoxes("box")({"boxes": torch.zeros(1, 4)}), "no field 'box'; there are boxes"),
        (lambda: T.SanitizeBoxes()({"boxes": torch.zeros(4)}), r"expected tensors \(n, 4\)"),
        (
            lambda: T.SanitizeBoxes("boxes", "labels")({"boxes": torch.zeros(1, 4), "labels": torch.zeros(2)}),
            "'labels' has .*expected one for each box",
        ),
        (
            lambda: T.SanitizeBoxes()({"boxes": torch.zeros(2, 4), "labels": torch.arange(2)}),
            r"Write SanitizeBoxes\('boxes', 'labels'\)\.",
        ),
    ],
)
def test_what_cannot_be_sanitized_is_named(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "boxes",
            [[4, 3, 2, 9]],
            r"\[4.0, 3.0, 2.0, 9.0\] has its right before its left, or its bottom before",
        ),
        (
            "boxes",
            [[0.5, 0.5, 0.25, 0.5], [0, 0, 1, 1]],
            "within one pixel",
        ),
        ("boxes", [1, 2, 3, 4], r"\(4,\); expected \(n, 4\)"),
        ("boxes", [[1, 2, 3, float("nan")]], "not finite"),
        ("boxes", "a box", "boxes of <U5"),
        ("points", [[1, 2, 3]], r"\(1, 3\); expected \(n, 2\) or \(n, k, 2\)"),
        ("labels", [[1]], r"\(1, 1\); expected \(n,\)"),
        ("labels", [0.5], "labels of float64"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, name: str, value: Any, message: str) -> None:
    sample = {"image": np.zeros((9, 9, 3), np.uint8), name: value}
    with pytest.raises(OptionError, match=rf"sample 0, field '{name}'.*{message}"):
        lmdbloader.write([sample], tmp_path / "d", fields={name: DECLARED[name]})


@pytest.mark.parametrize("numbers", [(2, 1), (0, 1), (1, 2), (1, 0)])
def test_boxes_have_as_many_labels(tmp_path: Path, numbers: tuple[int, int]) -> None:
    def sample(num_boxes: int, num_labels: int, labels: str) -> dict[str, Any]:
        boxes = torch.tensor([[1, 2, 8, 9]] * num_boxes).reshape(-1, 4)
        return {"image": np.zeros((9, 9, 3), np.uint8), "boxes": boxes, labels: [3] * num_labels}

    for labels in ("kinds", "labels"):
        declared = {"boxes": fields.Boxes(), labels: fields.Labels()}
        lmdbloader.write([sample(0, 0, labels), sample(2, 2, labels)], tmp_path / labels, fields=declared)
        if labels == "kinds":  # they may be of anything
            lmdbloader.write([sample(*numbers, labels)], tmp_path / "d", fields=declared, overwrite=True)
            continue
        with pytest.raises(OptionError, match=f"sample 1: {numbers[0]} boxes and {numbers[1]} labels; expected a lab"):
            lmdbloader.write([sample(1, 1, labels), sample(*numbers, labels)], tmp_path / "e", fields=declared)
        assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("mix", [T.MixUp(num_classes=2), T.CutMix(num_classes=2)])
def test_images_are_not_mixed_without_their_masks_and_boxes(tmp_path: Path, mix: T.BatchFunction) -> None:
    others = {"depth": np.zeros((20, 30), np.float32), "age": 3.5, "sex": 1, "key": "a.jpg", "notes": {"a": [1]}}
    samples = ({**sample_of(20, 30, k), "label": k % 2, "raw": b"", **others} for k in range(4))
    lmdbloader.write(samples, tmp_path / "d", fields={**DECLARED, "notes": fields.Json()})
    for other in ("mask", "boxes", "points", "labels", "depth", "age", "sex", "notes"):
        dataset = lmdbloader.LMDBDataset(tmp_path / "d", fields=["image", other, "label"])
        with pytest.raises(OptionError, match=rf"field '{other}' .*Leave it out: .*fields=\['image', 'label'\]"):
            next(iter(lmdbloader.Loader(dataset, 4, shuffle=False, transforms=[mix])))
    dataset = lmdbloader.LMDBDataset(tmp_path / "d", fields=["image", "key", "label", "raw"])
    found = next(iter(lmdbloader.Loader(dataset, 4, shuffle=False, transforms=[mix])))
    assert found.label.shape == (4, 2) and found.key == ["a.jpg"] * 4 and found.raw == [b""] * 4


@pytest.mark.parametrize(
    ("name", "data"), [("boxes", bytes(15)), ("points", bytes(3)), ("points", bytes(9)), ("labels", b"1")]
)
def test_payloads_of_wrong_lengths_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    kind = kind_named(name)
    with monkeypatch.context() as patch:
        longer = type(kind)(
            **{key: getattr(kind, key) for key in ("type", "is_value", "decode", "is_ragged")},
            encode=lambda v: data,
        )
        patch.setattr(fields, "TABLE", {**fields.TABLE, name: longer})
        lmdbloader.write([{name: [0]}], tmp_path / "d", fields={name: DECLARED[name]})
    with pytest.raises(CorruptError, match=f"field '{name}' of sample 0: cannot be read as {name}"):
        lmdbloader.LMDBDataset(tmp_path / "d")[0]


def bounds_of(painted: torch.Tensor) -> list[list[float]]:
    """Return the box around the pixels of an image (C, H, W) that are not 0."""
    rows, columns = painted[0].any(1).nonzero().ravel(), painted[0].any(0).nonzero().ravel()
    return [[float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1]]


MOVES = [
    [T.RandomHorizontalFlip(1.0)],
    [T.RandomVerticalFlip(1.0)],
    [T.RandomDihedral()],
    [T.RandomCrop(48)],
    [T.CenterCrop((40, 48)), T.RandomHorizontalFlip()],
    [T.Resize((80, 120))],
    [T.RandomCrop(60, padding=4), T.RandomDihedral()],
]


@pytest.mark.parametrize("moves", MOVES, ids=str)
@pytest.mark.parametrize("other", ["mask", "depth"])
def test_boxes_move_with_their_image_next_to_a_larger_one(tmp_path: Path, other: str, moves: list[Any]) -> None:
    def samples() -> Any:
        for k in range(12):
            image = np.zeros((32, 32, 3), np.uint8)
            left, top = 9 + k % 3, 11 + k % 2
            image[top : top + 7, left : left + 9] = 200
            large = np.zeros((64, 64), np.uint8 if other == "mask" else np.uint16)
            yield {other: large, "image": image, "boxes": [[left, top, left + 9, top + 7]]}

    kinds = {"mask": fields.Mask(), "depth": fields.Image()}
    declared = {other: kinds[other], "boxes": fields.Boxes(image="image")}
    lmdbloader.write(samples(), tmp_path / "d", fields=declared)
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    off = 1.5 if isinstance(moves[0], T.Resize) else 0  # a resize blurs the edges of the image
    for sample in dataset.transformed(moves, seed=1):
        assert sample.boxes[0].tolist() == pytest.approx(bounds_of(sample.image)[0], abs=off)
    for batch in lmdbloader.Loader(dataset, 4, shuffle=False, transforms=moves):
        for boxes, image in zip(batch.boxes, batch.image, strict=True):
            assert boxes[0].tolist() == pytest.approx(bounds_of(image)[0], abs=off)


def test_the_image_of_boxes_is_stated(tmp_path: Path) -> None:
    sample = {"lr": np.zeros((10, 15, 3), np.uint8), "hr": np.zeros((20, 30, 3), np.uint8), "boxes": [[4, 3, 8, 9]]}
    for image, line in (
        (None, r"Write .*fields.Boxes\(image='hr'\)"),
        ("zr", "one of lr, hr"),
        ("boxes", "lr, hr"),
    ):
        with pytest.raises(OptionError, match=rf"field 'boxes': Boxes\(.*{line}"):
            lmdbloader.write([sample], tmp_path / "d", fields={"boxes": fields.Boxes(image=image)})
    lmdbloader.write([sample], tmp_path / "d", fields={"boxes": fields.Boxes(image="lr")})
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_text("utf-8"))
    assert manifest["fields"][2]["image"] == "lr"
    assert lmdbloader.verify(tmp_path / "d").is_sound
    flipped = lmdbloader.LMDBDataset(tmp_path / "d", ["hr", "boxes"]).transformed
    with pytest.raises(OptionError, match="are in 'lr', which is not read"):
        flipped([T.RandomHorizontalFlip(1.0)])[0]
    with pytest.raises(OptionError, match="are in 'lr', which is left out"):
        lmdbloader.subset(tmp_path / "d", tmp_path / "e", fields=["hr", "boxes"])
    lmdbloader.subset(tmp_path / "d", tmp_path / "e", fields=["lr", "boxes"])
    flipped = lmdbloader.LMDBDataset(tmp_path / "e").transformed
    assert flipped([T.RandomHorizontalFlip(1.0)])[0].boxes.tolist() == [[7, 3, 11, 9]]


def test_boxes_belong_to_the_image_and_not_to_a_mask_of_its_size(tmp_path: Path) -> None:
    sample = {"mask": np.zeros((20, 30), np.uint8), "image": np.zeros((20, 30, 3), np.uint8), "boxes": [[4, 3, 8, 9]]}
    lmdbloader.write([sample], tmp_path / "d", fields={"mask": fields.Mask(), "image": None, "boxes": fields.Boxes()})
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    assert list(dataset.fields) == ["mask", "image", "boxes"]
    for name, expected in (("image", [[22, 3, 26, 9]]), ("mask", [[4, 3, 8, 9]])):
        flipped = dataset.transformed([T.RandomHorizontalFlip(1.0, fields=(name,))])
        assert flipped[0].boxes.tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_torchvision_moves_them_to_the_same_places(tmp_path: Path, seed: int) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    pytest.importorskip("torchvision.tv_tensors")
    size = SIZES[seed % 3]
    lmdbloader.write([sample_of(*size, seed, 7)], tmp_path / "d", fields=DECLARED)
    rng = np.random.default_rng(seed)
    ours: list[Any] = []
    theirs: list[Any] = []
    for _ in range(4):
        which, (h, w) = rng.integers(4), rng.integers(5, 40, 2).tolist()
        ours.append(
            [T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0), T.CenterCrop((h, w)), T.Resize((h, w))][which]
        )
        theirs.append(
            [v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.CenterCrop((h, w)), v2.Resize((h, w))][which]
        )
        if which == 2:  # ours does not enlarge
            ours[-1], theirs[-1] = T.CenterCrop(5), v2.CenterCrop(5)
    dataset = lmdbloader.LMDBDataset(tmp_path / "d", fields=["image", "boxes", "points"])
    found = dataset.transformed(ours)[0]
    expected = lmdbloader.LMDBDataset(tmp_path / "d", ["image", "boxes", "points"], v2.Compose(theirs))[0]
    assert type(expected.boxes) is torch.Tensor
    torch.testing.assert_close(found.boxes, expected.boxes, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.points, expected.points, rtol=0, atol=1e-4)


@pytest.mark.parametrize("as_", ["dict", "tuple"])
def test_an_own_transform_leaves_boxes_lists_in_every_form(tmp_path: Path, as_: Any) -> None:
    lmdbloader.write((sample_of(20, 30, k, 2) for k in range(6)), tmp_path / "d", fields=DECLARED)
    plain = lmdbloader.LMDBDataset(tmp_path / "d")
    own = lmdbloader.LMDBDataset(tmp_path / "d", transform=lambda sample: sample, as_=as_)
    for dataset in (own, Subset(own, range(6))):
        (batch,) = lmdbloader.dataloader(dataset, 6, num_workers=0)
        boxes = batch["boxes"] if as_ == "dict" else batch[2]
        assert type(batch) is (dict if as_ == "dict" else tuple) and type(boxes) is list
        assert all(torch.equal(a, b.boxes) for a, b in zip(boxes, plain, strict=True))
    read = own._many([1, 2])
    assert type(pickle.loads(pickle.dumps(read))[0]) is type(own[1])


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ({"bbox": [[1, 2, 3, 4]]}, r"name, bbox holds boxes, "),
        ({"boxes": np.zeros((2, 4))}, "name, boxes holds boxes, which R"),
        ({"objects": {"bbox": [[1, 2, 3, 4]], "category": [0]}}, r"name, objects\['bbox'\] holds boxes"),
        ({"notes": [{"keypoints": [1, 2]}]}, r"name, notes\['keypoints'\] holds points"),
    ],
)
def test_boxes_that_were_not_declared_are_not_left_behind(tmp_path: Path, field: dict[str, Any], found: str) -> None:
    (name,) = field
    kind = fields.Array() if isinstance(field[name], np.ndarray) else fields.Json()
    lmdbloader.write([{"image": np.zeros((12, 18, 3), np.uint8), **field}] * 2, tmp_path / "d", fields={name: kind})
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    for read in (
        lambda: dataset.transformed([T.RandomCrop(8)]),
        lambda: lmdbloader.Loader(dataset, 2, transforms=[T.Resize(8)]),
    ):
        with pytest.raises(OptionError, match=found):
            read()
    assert dataset.transformed([T.ColorJitter(0.3)])[0].image.shape == (3, 12, 18)
    assert dataset.transformed([T.RandomCrop(8, fields=("image",))])[0].image.shape == (3, 8, 8)
    chosen = lmdbloader.LMDBDataset(tmp_path / "d", fields=["image"])
    assert chosen.transformed([T.RandomCrop(8)])[0].image.shape == (3, 8, 8)
