"""`lmdbloader extract` hands its options on, and takes samples as Python writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.cli.extract import parse_samples
from lmdbloader.errors import OptionError


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    samples = [
        {"image": np.full((4, 4), i, np.uint8), "depth": np.full((4, 4), i, np.uint16), "label": i} for i in range(9)
    ]
    lmdbloader.write(samples, tmp_path / "db")
    return str(tmp_path / "db")


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.png"))


def test_fields_and_samples_are_heeded(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "files"
    assert main(["extract", dataset, str(files), "--fields", "image, label", "--samples", "0:2,-1", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert files_in(files) == ["000000.png", "000001.png", "000008.png"]
    assert main(["extract", dataset, str(files)]) == 1
    assert main(["extract", dataset, f"{files}2", "--fields", "depth,image", "--samples", "4"]) == 0
    assert files_in(tmp_path / "files2") == ["depth/000004.png", "image/000004.png"]


ends = st.none() | st.integers(-30, 30)


@given(st.integers(1, 20), ends, ends, st.none() | st.integers(-4, 4).filter(bool))
def test_ranges_are_those_of_python(length: int, start: int | None, stop: int | None, step: int | None) -> None:
    text = ":".join("" if value is None else str(value) for value in (start, stop, step))
    assert parse_samples(text, length) == sorted(range(length)[start:stop:step])


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(-n, n - 1), min_size=1))))
def test_numbers_count_from_either_end(case: tuple[int, list[int]]) -> None:
    length, numbers = case
    assert parse_samples(",".join(map(str, numbers)), length) == sorted({range(length)[n] for n in numbers})


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "1:2:0", "1.5", "1,,2", "0-100", "10", "-11", ":a"])
def test_bad_sample_numbers_are_refused_and_quoted(text: str) -> None:
    with pytest.raises(OptionError, match="--samples"):
        parse_samples(text, 10)
