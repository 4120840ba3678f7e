"""Options of Python callers: the values that are accepted, their types, and the errors for all others."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.base.arguments import flag, number, optional, ordered_texts, path_text, shown, whole
from lmdbloader.errors import OptionError

PIXELS = np.zeros((16, 16, 3), np.uint8)


class _Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@given(st.integers())
def test_whole_numbers_come_back(value: int) -> None:
    assert whole("n", value) == value == optional(whole, "n", value)


@pytest.mark.parametrize("value", [np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)])
def test_whole_numbers_of_other_types_become_pythons(value: Any) -> None:
    assert type(whole("n", value)) is int and whole("n", value) == 7


@pytest.mark.parametrize(
    "value", [True, np.True_, 2.0, "4", None, b"4", np.float32(4), torch.tensor(4.0), torch.ones(2), _Odd()]
)
def test_other_values_than_whole_numbers_are_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^n={re.escape(shown(value))}: expected a whole number$"):
        whole("n", value)


def test_numbers() -> None:
    for value in (0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)):
        assert type(number("p", value)) is float and number("p", value) == 0.5
    assert (number("p", 1), number("p", np.int8(1)), optional(number, "p", None)) == (1.0, 1.0, None)
    for refused in (True, "0.5", None, 10**400, [0.5], 1j):
        with pytest.raises(OptionError, match=r"^p=.*: expected a number$"):
            number("p", refused)


def test_flags() -> None:
    assert (flag("f", True), flag("f", np.False_)) == (True, False)
    for refused in ("no", 0, 1, None, "", []):
        with pytest.raises(OptionError, match=r"^f=.*: expected True or False$"):
            flag("f", refused)


def test_texts_in_order() -> None:
    for names in (["b", "a"], ("b", "a"), np.array(["b", "a"]), np.array(["b", "a"], object)):
        found = ordered_texts("classes", names)
        assert found == ("b", "a") and [type(name) for name in found] == [str, str]
    assert ordered_texts("classes", []) == ()


@pytest.mark.parametrize(
    "names",
    [
        {"cat", "dog"}, frozenset(["cat"]), {"cat": 0}, {"cat": 0}.keys(), {"cat": 0}.values(), iter(["cat"]),
        (name for name in ["cat"]), "cat", b"cat", ["cat", 1], ["cat", "cat"], None, 3, np.array("cat"), [["cat"]],
    ],
)  # fmt: skip
def test_texts_without_an_order_and_other_things_are_refused(names: Any) -> None:
    with pytest.raises(
        OptionError, match=r"^classes=.*: expected different names \(str\) in order, as a list or tuple"
    ):
        ordered_texts("classes", names)


def test_paths() -> None:
    assert path_text("out", b"a\xff") == os.fsdecode(b"a\xff")
    assert path_text("out", Path("a/b")) == path_text("out", "a/b") == "a/b"
    for refused in (None, 3, "a\0b", b"a\0b"):
        with pytest.raises(OptionError, match=r"^out=.*: expected a path"):
            path_text("out", refused)


# --- every option of convert, estimate and write ---


@pytest.fixture
def src(tmp_path: Path) -> Path:
    from PIL import Image

    (tmp_path / "src").mkdir()
    for i in range(4):
        Image.fromarray(PIXELS + i).save(tmp_path / "src" / f"{i}.png")
    return tmp_path / "src"


WHOLE = ("patch_size", "stride", "scale", "max_pixels", "max_resolution", "jpeg_quality", "smart_threshold", "subset")
SHARED = [
    *((name, value) for name in (*WHOLE, "seed", "workers") for value in (2.5, "two", True, np.float64(2.5), [2.5])),
    *((name, [2]) for name in (*WHOLE, "seed", "workers") if name != "scale"),
    *((name, value) for name in ("compress_probability", "min_pair_psnr") for value in ("half", True, [0.5])),
    *(("classes", value) for value in ({"a", "b"}, "ab", 3)),
    *((name, value) for name in ("codec", "layout", "bicubic", "alpha", "on_error") for value in (3, ["x"])),
    ("write_mode", ["raw"]),
]


@pytest.mark.parametrize(("name", "value"), [*SHARED, ("out", 3), ("out", "a\0b"), ("hr", 3)])
def test_convert_refuses_by_name(src: Path, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(OptionError, match={"out": "path"}.get(name, name.replace("_", "[_ ]"))):
        lmdbloader.convert(src, **{"out": tmp_path / "out", name: value})
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("max_resolution", "jpeg_quality") for value in (2.5, "two", True)),
        *(("smart_threshold", value) for value in (2.5, "two", True)),
        ("seed", 1.5), ("seed", True), ("compress_probability", "half"), ("overwrite", "no"), ("progress", "yes"),
        ("codec", 3), ("write_mode", 3), ("write_mode", {"image": ["raw"]}), ("path", 3),
        ("classes", ["a"]),
        ("classes", {"label": {"cat", "dog", "bird"}}), ("classes", {"label": (name for name in "ab")}),
    ],
)  # fmt: skip
def test_write_refuses_by_name(tmp_path: Path, name: str, value: Any) -> None:
    options = {
        "path": tmp_path / "out",
        "write_mode": "proportion" if name in ("seed", "compress_probability") else "smart",
    }
    options |= {"smart_threshold": 5} if options["write_mode"] == "smart" else {}
    with pytest.raises(OptionError, match=name.replace("_", "[_ ]")):
        lmdbloader.write([{"image": PIXELS, "label": 0}], **{**options, name: value})
    assert not any(tmp_path.iterdir())


def test_numbers_of_numpy_make_the_same_dataset(src: Path, tmp_path: Path) -> None:
    numbers = {"patch_size": 8, "stride": 4, "compress_probability": 0.5, "jpeg_quality": 80, "subset": 3, "seed": 2}
    plain = {"write_mode": "proportion", "max_pixels": 1000, "workers": 1}
    lmdbloader.convert(src, tmp_path / "python", **plain, **numbers)
    others = {n: np.float32(v) if isinstance(v, float) else np.int64(v) for n, v in numbers.items()}
    lmdbloader.convert(src, os.fsencode(tmp_path / "numpy"), **plain, **others, overwrite=np.False_)
    made = [(tmp_path / name / "manifest.json").read_bytes() for name in ("python", "numpy")]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("label", r"^fields='label': expected a list of names, such as \['label'\]$"),
        (3, r"^fields=3: expected a list of names$"),
        (["label", "label"], r"^fields=\('label', 'label'\): expected at least one name, each once$"),
        ([], r"^fields=\(\): expected at least one name, each once$"),
        (["mask"], r"a\.lmdb: no field 'mask'; it has label, number$"),
    ],
)
def test_names_of_fields_are_checked_alike_wherever_they_are_given(tmp_path: Path, fields: Any, message: str) -> None:
    place = tmp_path / "a.lmdb"
    lmdbloader.write([{"label": 1, "number": 2.5}], place)
    for use in (
        lambda: lmdbloader.LMDBDataset(place, fields),
        lambda: lmdbloader.merge([place], tmp_path / "out", fields=fields),
        lambda: lmdbloader.subset(place, tmp_path / "out", limit=1, fields=fields),
    ):
        with pytest.raises(OptionError, match=message):
            use()
    # A view of fewer fields does not stand for the dataset.
    view = lmdbloader.LMDBDataset(place, ["label"])
    with pytest.raises(OptionError, match=r"a\.lmdb: no field 'number'; it has label$"):
        lmdbloader.merge([view, place], tmp_path / "out", fields=["number"])
