"""Conditions of `where` as text: they choose the samples that Python's own rules choose, and nothing is evaluated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.errors import CorruptError, OptionError

COUNT = 40
NAMES = ["night", "day", "it's", 'say "x"', "", "ü", "3"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    samples = (
        {
            "image": np.zeros((4 + i % 3, 5, 3), np.uint8),
            "label": int(rng.integers(0, 4)),
            "other": int(rng.integers(-3, 3)),
            "score": float(rng.choice([-1.5, 0.0, 2.0, math.nan])),
            "name": str(rng.choice(NAMES)),
        }
        for i in range(COUNT)
    )
    path = tmp_path_factory.mktemp("conditions") / "d.lmdb"
    lmdbloader.write(samples, path, classes={"label": ["ant", "bee", "cat", "it's"]})
    return path


@pytest.fixture(scope="module")
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def chosen(ds: LMDBDataset, condition: str) -> list[int]:
    return ds.where(condition).rows_of(np.arange(len(ds.where(condition)))).tolist()


NUMBERS = st.sampled_from(["label", "other", "image.height", "image.width"])
LITERALS = st.one_of(st.integers(-3, 6), st.sampled_from([-1.5, 0.5, 2.0, True, False]), st.integers(-(2**62), 2**62))
COMPARED = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
NUMBER_TESTS = st.builds("{} {} {}".format, NUMBERS, COMPARED, st.one_of(LITERALS.map(repr), NUMBERS))
CHAINS = st.builds("{} {} {} {} {}".format, LITERALS.map(repr), COMPARED, NUMBERS, COMPARED, LITERALS.map(repr))
MEMBERS = st.builds(
    "{} {} {}".format,
    NUMBERS,
    st.sampled_from(["in", "not in"]),
    st.one_of(st.lists(LITERALS, max_size=4), st.lists(LITERALS, max_size=4).map(tuple)).map(repr),
)
TEXTS = st.sampled_from([*NAMES, "n", "none of them"])
TEXT_TESTS = st.one_of(
    st.builds("name {} {!r}".format, COMPARED, TEXTS),
    st.builds("{!r} {} name".format, TEXTS, st.sampled_from(["==", "<", "in", "not in"])),
    st.builds("name in {!r}".format, st.lists(TEXTS, max_size=3)),
)
CONDITIONS = st.recursive(
    st.one_of(NUMBER_TESTS, CHAINS, MEMBERS, TEXT_TESTS, st.sampled_from(["True", "False"])),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("({}) & ({})".format, inner, inner),
        st.builds("({}) | ~({})".format, inner, inner),
    ),
    max_leaves=6,
)


@given(condition=CONDITIONS)
def test_a_condition_chooses_what_python_would(ds: LMDBDataset, condition: str) -> None:
    class Image:
        height = width = 0

    expected = []
    for number, row in enumerate(ds.table.to_pylist()):
        image = Image()
        image.height, image.width = row["image.height"], row["image.width"]
        if eval(condition.replace("~(", "1 - ("), {"__builtins__": {}, "image": image, **row}):
            expected.append(number)
    assert chosen(ds, condition) == expected


@pytest.mark.parametrize(
    ("condition", "same"),
    [
        ("label == 'cat'", "label == 2"),
        ('label == "it\'s"', "label == 3"),
        ("label in ('ant', 'bee')", "label < 2"),
        ("label != 'ant' and label != 'bee'", "label >= 2"),
        ("score is not null", "score > -9"),
        ("score is not None", "not score is null"),
        ("not (score is null)", "score == score"),
        ("  label == 2\n  or label == 3 ", "label >= 2"),
        ("image.height>4", "5<=image.height"),
    ],
)
def test_two_conditions_choose_the_same(ds: LMDBDataset, condition: str, same: str) -> None:
    assert chosen(ds, condition) == chosen(ds, same)
    assert 0 < len(chosen(ds, condition)) < COUNT


@pytest.fixture(scope="module")
def damaged_texts(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """A dataset whose long texts are damaged, so that reading any of them is an error."""
    path = tmp_path_factory.mktemp("conditions") / "texts.lmdb"
    lmdbloader.write(({"note": f"{i} " * 200, "label": i % 4, "name": "x"} for i in range(COUNT)), path)
    reader = LMDBDataset(path).reader
    with open(path / "data.mdb", "r+b") as file:
        for at in reader.index.arrays["note.offset"].tolist():
            file.seek(at)
            file.write(b"?")
    return LMDBDataset(path)


def test_long_texts_are_read_only_if_a_condition_names_them(damaged_texts: LMDBDataset) -> None:
    ds = damaged_texts
    for condition in ("label == 3", "label == 3 and name == 'x'"):
        assert len(ds.where(condition)) == COUNT // 4
    for condition in ("note == 'x'", "label == 9 or '1' in note"):
        with pytest.raises(CorruptError, match="field 'note' of sample"):
            ds.where(condition)


def test_the_table_has_the_long_texts_of_the_fields_that_are_read(damaged_texts: LMDBDataset) -> None:
    with pytest.raises(CorruptError, match="field 'note'"):
        _ = damaged_texts.table
    labels = LMDBDataset(damaged_texts.path, fields=["label"])
    assert labels.table.column_names == ["label", "name"]
    with pytest.raises(OptionError, match="'note'"):
        labels["note"]


def test_the_source_of_patches_can_be_asked_for(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "d", patch_size=96, workers=1)
    ds = LMDBDataset(tmp_path / "d")
    assert set(ds.where("source == 'cat.png'").table["source"].to_pylist()) == {"cat.png"}
    assert len(ds.where("'cat' in source and top == 0")) == 3
    assert len(ds.where("source in ['cat.png', 'coffee.png']")) == 12


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("lable == 3", r"there is no column 'lable'\. The columns are image\.height"),
        ("label == cat", "cat is a class: write 'cat' in quotes"),
        ("label == 'zebra'", r"label has no class 'zebra'\. Its classes are \('ant', 'bee'"),
        ("other == 'a'", "other holds whole numbers, and 'a' is not one"),
        ("name == 3", "name holds texts, and 3 is not one"),
        ("name < label", "name holds texts and label whole numbers"),
        ("label = 3", "expected comparisons of columns"),
        ("label == 3 AND other == 1", "expected comparisons of columns"),
        ("label == 3 & other == 1", "expected comparisons of columns"),
        ("label == None", "write `is null`"),
        ("score != null", "write `is null`"),
        ("label is 3", "cannot read"),
        ("label", "cannot read"),
        ("label in 3", "no column '3'"),
        ("name not in ('a')", r"needs a list after it: write `in \['a'\]`"),
        ("3 in label", r"`in` needs a list after it"),
        ("label in other", r"`in` needs a list after it"),
        ("3 == 3", "cannot read"),
        ("label + 1 == 3", "cannot read"),
        ("len(name) > 3", "cannot read"),
        ("__import__('os').system('true')", "cannot read"),
        ("name.startswith('a')", "cannot read"),
        ("label == 1 if True else False", "cannot read"),
        ("[label for label in (1, 2)]", "cannot read"),
        ("label == 99999999999999999999", "has more than 64 bits"),
        ("", "expected comparisons"),
        ("label == 3\0", "where"),
        ("(" * 3000 + "label" + ")" * 3000, "where"),
        ("not " * 3000 + "True", "nested too deeply"),
        ("label == 3 or " * 20_000 + "label == 1", "has 280010 characters"),
    ],
)  # fmt: skip
def test_other_texts_are_refused(ds: LMDBDataset, condition: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ds.where(condition)
