"""`bench` measures what a dataset allows, of every kind, notes what it leaves out, and shows it in tables."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.lab import Study, bench
from lmdbloader.lab.image_files import extract_files, find_files
from lmdbloader.lab.machine import describe
from lmdbloader.transforms import RandomHorizontalFlip

QUICK: dict[str, Any] = {"seconds": 0.002, "repeats": 2, "num_workers": [1]}


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 pairs of 48 x 48 and 96 x 96 pixels."""
    path = tmp_path_factory.mktemp("study") / "pairs"
    lmdbloader.convert(photos, path, scale=2, patch_size=96, stride=64, workers=1)
    return path


def survives(study: Study) -> Study:
    """Return a study, which JSON must keep, and whose tables must have every source and section."""
    assert json.dumps(study.as_json(), allow_nan=False)
    assert study.environment and "processor" in study.facts
    text = str(study)
    assert all(note.split()[0] in text for note in study.notes)
    assert all(min(row.turns) > 0 and min(row.figures.values(), default=0) >= 0 for row in study.rows)
    return study


# What is measured


def test_pairs_are_compared_with_their_files(pairs: Path) -> None:
    lines: list[str] = []
    study = survives(bench(pairs, baseline="auto", batch_sizes=[8, 2], crops=[16], progress=lines.append, **QUICK))
    sources = ("lmdbloader", "dataloader", "folder")
    rows = study.section("loading")
    assert [(row.source, row.batch_size, row.crop) for row in rows] == [(s, n, 16) for n in (2, 8) for s in sources]
    assert all(len(row.turns) == 2 for row in rows)
    for row in rows:
        assert 0 < row.figures["wait_p50_seconds"] <= row.figures["wait_p99_seconds"]
        stages = [f"{name}_seconds" for name in ("read", "verify", "decode", "transform", "function", "buffer")]
        assert all((stage in row.figures) == (row.source == "lmdbloader") for stage in stages)
    assert "files (png)" in study.facts["files"]
    assert study.environment["storage"] == describe(pairs).storage
    assert lines[0].startswith("baseline: writing") and "loading, 1 at once: begins" in lines


def test_workers_and_processes_are_counted_up(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.lab.study.experiment.count_cores", lambda: 2)
    program = ModuleType("__main__")  # a script without a guard, which no process may run again
    program.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit(1)")
    monkeypatch.setitem(sys.modules, "__main__", program)
    options: dict[str, Any] = {**QUICK, "repeats": 1, "num_workers": [0, 4]}
    study = survives(bench(pairs, batch_sizes=[8], crops=[16], processes=[1, 2], **options))
    rows = study.section("loading")
    assert [(row.num_processes, row.source, row.num_workers) for row in rows] == [
        (1, "lmdbloader", 2), (1, "dataloader", 0), (1, "dataloader", 4),
        (2, "lmdbloader", 1), (2, "dataloader", 0), (2, "dataloader", 2),
    ]  # fmt: skip
    for row in rows:
        assert ("slowest" in row.figures) == (row.num_processes == 2)
        if row.num_processes == 2:
            assert 0 < row.figures["slowest"] <= row.figures["fastest"] <= max(row.turns)


def test_a_view_is_measured_as_it_is(pairs: Path) -> None:
    view = lmdbloader.LMDBDataset(pairs, fields=["hr"]).select(range(5))
    study = bench(view, batch_sizes=[8], crops=[16], **QUICK)
    assert study.facts["dataset"].endswith(": 5 samples") and study.facts["read"].startswith("hr (")
    assert {row.batch_size for row in study.rows} == {8}  # more than there are: samples are read again
    with pytest.raises(OptionError, match="transforms of its own"):
        bench(view.transformed([RandomHorizontalFlip()]))
    with pytest.raises(OptionError, match="no samples"):
        bench(view.select([]))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sizes": [0]}, {"batch_sizes": []}, {"crops": [0]}, {"crops": [1000]},
        {"seconds": 0}, {"seconds": float("nan")}, {"repeats": 0}, {"processes": [0]},
        {"num_workers": [-1]}, {"baseline": "no such folder"},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(pairs: Path, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(OptionError) as caught:
        bench(pairs, **options)
    shown = str(value[0] if isinstance(value, list) and value else value)
    assert name.replace("_sizes", "") in str(caught.value).replace(" ", "") and shown in str(caught.value)


# The baseline


def ramp(height: int, width: int, offset: int = 0) -> np.ndarray:
    """Return an image whose pixels encode their place: (row, column, offset)."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, offset)], axis=2).astype(np.uint8)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def six(tmp_path: Path) -> lmdbloader.LMDBDataset:
    """Six pairs, the larger image of each twice as large."""
    samples = ({"lr": ramp(16, 16, i), "hr": np.repeat(np.repeat(ramp(16, 16, i), 2, 0), 2, 1)} for i in range(6))
    lmdbloader.write(samples, tmp_path / "six")
    return lmdbloader.LMDBDataset(tmp_path / "six")


def test_extracted_files_are_the_samples_and_windows_of_a_pair_show_the_same(
    six: lmdbloader.LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, chosen = extract_files(six, tmp_path / "files")
    assert chosen.tolist() == list(range(6)) and files.describe().startswith("12 files (png)")
    for number in range(6):
        assert all(np.array_equal(one, two) for one, two in zip(files[number], six[number], strict=True))
    low, high = replace(files, crop=8)[0]
    assert low.shape == (3, 4, 4) and np.array_equal(high, low.repeat_interleave(2, 1).repeat_interleave(2, 2))
    with pytest.raises(OptionError, match="window of 3 does not suit"):
        replace(files, crop=3)[0]
    monkeypatch.setattr("lmdbloader.lab.image_files._AUTO_SAMPLES", 3)
    assert len(extract_files(six, tmp_path / "part")[1]) == 3


def test_fields_are_folders_whose_files_pair_up_by_name(six: lmdbloader.LMDBDataset, tmp_path: Path) -> None:
    for name, factor in (("lr", 1), ("hr", 2)):
        for number in (10, 2, 1):
            save(tmp_path / "f" / name / "deep" / f"{number:03d}.png", ramp(4 * factor, 4 * factor, number))
    files = find_files(tmp_path / "f", six)
    assert [[int(image[2, 0, 0]) for image in files[i]] for i in range(3)] == [[1, 1], [2, 2], [10, 10]]
    study = bench(six, baseline=tmp_path / "f", batch_sizes=[2], crops=[8], **QUICK)
    assert any(note.startswith("The files are other images: 3 samples") for note in study.notes)
    (tmp_path / "f" / "hr" / "deep" / "010.png").unlink()
    with pytest.raises(OptionError, match="found 3 for lr, 2 for hr"):
        find_files(tmp_path / "f", six)
