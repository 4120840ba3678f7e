"""subset: the samples that a condition, numbers or names choose, as stored, in their order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.store import read_manifest

COUNT = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("subset")
    lmdbloader.write(map(make_sample, range(COUNT)), place / "d", classes={"label": ["ant", "bee", "cat"]})
    return place / "d"


@pytest.fixture(scope="module")
def patches(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("patches")
    lmdbloader.convert(photos, place / "d", patch_size=96, workers=1)
    return place / "d"


def make_sample(i: int) -> dict[str, Any]:
    return {"image": np.full((8 + i % 4, 8, 3), i, np.uint8), "label": i % 3, "number": i}


def numbers_of(path: Path) -> list[int]:
    return LMDBDataset(path).table["number"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "where",
    [
        'label in ("ant", "cat") and image.height >= 10',
        "not (number < 5 or label == 'bee')",
        "number >= 30",
    ],
    ids=str,
)
def test_a_condition_chooses_what_a_view_has(path: Path, tmp_path: Path, where: Any) -> None:
    done = lmdbloader.subset(path, tmp_path / "out", where)
    expected = LMDBDataset(path).where(where).table["number"].to_pylist()
    assert numbers_of(tmp_path / "out") == expected and 0 < len(expected) < COUNT
    assert done.num_samples == len(expected)
    lmdbloader.write(map(make_sample, expected), tmp_path / "fresh", classes={"label": ["ant", "bee", "cat"]})
    assert done.content_digest == read_manifest(tmp_path / "fresh").content_digest
    assert lmdbloader.verify(tmp_path / "out").is_sound
    assert LMDBDataset(tmp_path / "out").classes == ("ant", "bee", "cat")
    assert read_manifest(tmp_path / "out").made_by["choices"] == {"where": str(where)}


@settings(max_examples=20)
@given(rows=st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=60))
def test_numbers_choose_samples_in_their_order(path: Path, tmp_path_factory: Any, rows: list[int]) -> None:
    folder = tmp_path_factory.mktemp("any")
    done = lmdbloader.subset(path, folder / "out", indices=rows)
    expected = [row % COUNT for row in rows]
    assert numbers_of(folder / "out") == expected
    assert done.notes == ()
    shutil.rmtree(folder)


def test_a_mask_and_a_view_choose_samples(path: Path, tmp_path: Path) -> None:
    lmdbloader.subset(path, tmp_path / "mask", indices=[i % 4 == 0 for i in range(COUNT)])
    assert numbers_of(tmp_path / "mask") == list(range(0, COUNT, 4))
    lmdbloader.subset(LMDBDataset(path)[::-1], tmp_path / "view", "number < 5")
    assert numbers_of(tmp_path / "view") == [4, 3, 2, 1, 0]
    lmdbloader.subset(LMDBDataset(path, fields=["number"]), tmp_path / "field", "label == 'ant'", indices=[9, 1, 3])
    assert numbers_of(tmp_path / "field") == [9, 3]
    assert list(LMDBDataset(tmp_path / "field").fields) == ["number"]
    assert LMDBDataset(tmp_path / "field").classes == ()


def test_names_choose_all_samples_of_a_source_in_their_order(patches: Path, tmp_path: Path) -> None:
    done = lmdbloader.subset(patches, tmp_path / "out", names=["coffee.png", "cat.png"])
    table = LMDBDataset(tmp_path / "out").table
    assert table["source"].to_pylist() == ["coffee.png"] * 6 + ["cat.png"] * 6
    assert done.num_samples == 12 and table["left"].to_pylist() == [0, 96, 192] * 4
    with pytest.raises(OptionError, match=r"no source 'cat.pgn'"):
        lmdbloader.subset(patches, tmp_path / "more", names=["cat.pgn"])
    with pytest.raises(OptionError, match="is given twice"):
        lmdbloader.subset(patches, tmp_path / "more", names=["cat.png", "cat.png"])
    with pytest.raises(OptionError, match=r"no source 'coffee\.png'"):
        lmdbloader.subset(LMDBDataset(patches).where("source == 'cat.png'"), tmp_path / "more", names=["coffee.png"])


def test_samples_of_one_source_that_are_apart_have_one_name(patches: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(48)
    lmdbloader.subset(patches, tmp_path / "out", indices=order)
    expected = LMDBDataset(patches).select(order).table
    assert LMDBDataset(tmp_path / "out").table.to_pylist() == expected.to_pylist()
    assert lmdbloader.info(tmp_path / "out").num_sources == 8
    assert lmdbloader.verify(tmp_path / "out").is_sound


def test_a_share_is_chosen_at_random_and_a_smaller_one_is_a_part_of_it(path: Path, tmp_path: Path) -> None:
    lmdbloader.subset(path, tmp_path / "10", limit=10)
    lmdbloader.subset(path, tmp_path / "half", fraction=0.5)
    lmdbloader.subset(path, tmp_path / "other", limit=10, seed=1)
    ten, half, other = (numbers_of(tmp_path / name) for name in ("10", "half", "other"))
    assert len(ten) == len(other) == 10 and len(half) == 20
    assert ten == sorted(ten) != other and set(ten) < set(half)
    lmdbloader.subset(path, tmp_path / "cats", "label == 'cat'", limit=3)
    assert len(numbers_of(tmp_path / "cats")) == 3 and all(n % 3 == 2 for n in numbers_of(tmp_path / "cats"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"nothing says which samples to take"),
        ({"where": "lable == 'cat'"}, "there is no column 'lable'"),
        ({"where": "label == 'dog'"}, r"label has no class 'dog'. Its classes are \('ant', 'bee', 'cat'\)"),
        ({"where": "number > 99"}, "no sample fits the condition number > 99, of 40 samples"),
        ({"where": "__import__('os').system('true')"}, "cannot read "),
        ({"indices": [40]}, "indices: sample 40 of a dataset of 40 samples"),
        ({"indices": [True]}, r"a mask of shape \(1,\) for 40 samples"),
        ({"indices": []}, "no sample is chosen"),
        ({"names": ["a.png"]}, "its samples have no sources"),
        ({"names": ["a"], "indices": [1]}, "Leave one of them out"),
        ({"limit": 41}, "limit=41 of 40 samples: expected 1 to 40"),
        ({"fraction": 1.5}, "expected a share above 0, at most 1"),
        ({"seed": 3, "where": "label == 1"}, "seed=3 has no effect"),
    ],
)  # fmt: skip
def test_what_fits_no_sample_is_refused(path: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lmdbloader.subset(path, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_another_choice_does_not_replace_a_subset(path: Path, tmp_path: Path) -> None:
    lmdbloader.subset(path, tmp_path / "out", "label == 1")
    assert lmdbloader.subset(path, tmp_path / "out", "label == 1").was_finished
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.subset(path, tmp_path / "out", "label == 2")
    with pytest.raises(DestinationError, match="is one of the inputs"):
        lmdbloader.subset(path, path, "label == 2", overwrite=True)


def test_single_frames_of_clips_are_not_drawn(tmp_path: Path) -> None:
    frames = ({"image": np.full((8, 8), i, np.uint8), "clip": clip, "frame": i} for clip in "abcd" for i in range(5))
    lmdbloader.write(frames, tmp_path / "clips")
    for options in ({"limit": 10}, {"fraction": 0.5}, {"limit": 2, "where": "clip == 'a'"}):
        with pytest.raises(OptionError, match=r"single frames of clips.*clip in .*split\(\[0\.1, 0\.9\]\)") as caught:
            lmdbloader.subset(tmp_path / "clips", tmp_path / "out", **options)
    line = str(caught.value).partition("in Python: ")[2].partition(" For single")[0].removesuffix(".")
    exec(line.replace("0.1, 0.9", "0.25, 0.75"), {"lmdbloader": lmdbloader, "OUT": tmp_path / "part"})
    assert len(lmdbloader.Clips(tmp_path / "part", 5)) == 1
    lmdbloader.subset(tmp_path / "clips", tmp_path / "some", "clip in ('a', 'b')")
    assert len(lmdbloader.Clips(tmp_path / "some", 5)) == 2
    assert lmdbloader.subset(tmp_path / "clips", tmp_path / "images", limit=3, fields=["image"]).num_samples == 3
