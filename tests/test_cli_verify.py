"""`lmdbloader verify`: silent satisfaction, or every damaged sample by number and file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from damage import flip_payload

import lmdbloader
from lmdbloader.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def dataset(photos: Path, tmp_path: Path) -> Path:
    lmdbloader.convert(photos, tmp_path / "made.lmdb", patch_size=96, scale=2, workers=1)
    return tmp_path / "made.lmdb"


def test_a_sound_dataset(dataset: Path, capsys: Capture) -> None:
    assert main(["verify", str(dataset)]) == 0
    assert capsys.readouterr() == (f"{dataset}: sound, 48 samples\n", "")
    assert main(["verify", str(dataset), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_damaged_samples_are_named_with_their_files(dataset: Path, capsys: Capture) -> None:
    files = [flip_payload(dataset, "lr", 3), flip_payload(dataset, "hr", 41), flip_payload(dataset, "lr", 41)]
    assert len(set(files)) == 2
    assert main(["verify", str(dataset), "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == f"{dataset}: DAMAGED: 2 of 48 samples, problems of the dataset as a whole: 1"
    assert lines[-1].startswith(f"`lmdbloader repair {dataset} OUT` writes the samples that are sound")
    for sample, field, source in ((3, "lr", files[0]), (41, "hr", files[1]), (41, "lr", files[2])):
        (line,) = [line for line in lines if line.startswith(f"sample {sample}, field {field}, from {source}: ")]
        assert "its checksum does not match" in line
    assert sum(line.startswith("sample ") for line in lines) == 3


def test_a_dataset_that_does_not_open_has_no_count(dataset: Path, capsys: Capture) -> None:
    (dataset / "index.arrow").write_bytes(b"")
    assert main(["verify", str(dataset)]) == 1
    assert f"{dataset}: DAMAGED: it does not open, problems of the dataset as a whole: 1" in capsys.readouterr().out


def test_of_many_damaged_samples_twenty_are_shown_and_the_rest_is_counted(dataset: Path, capsys: Capture) -> None:
    for sample in range(10, 35):
        flip_payload(dataset, "lr", sample)
    flip_payload(dataset, "hr", 29)
    flip_payload(dataset, "hr", 30)
    assert main(["verify", str(dataset)]) == 1
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split(",")[0] for line in lines if line.startswith("sample ")]
    assert shown == [f"sample {sample}" for sample in [*range(10, 30), 29]], "all fields of twenty samples"
    assert "and 5 more damaged samples; --all prints them" in lines
    assert f"{dataset}: DAMAGED: 25 of 48 samples, problems of the dataset as a whole: 1" in lines
    assert main(["verify", str(dataset), "--all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("sample ") for line in lines) == 27 == len(lmdbloader.verify(dataset).damaged)
    assert not any("more damaged" in line for line in lines)


def test_json_has_every_sample(dataset: Path, capsys: Capture) -> None:
    assert main(["verify", str(dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "is_sound": True, "num_samples": 48, "problems": [], "damaged": [], "files": [], "advice": "",
    }  # fmt: skip
    files = [flip_payload(dataset, "lr", sample) for sample in range(25)]
    assert main(["verify", str(dataset), "--json", "--quiet"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["is_sound"], found["files"]) == (False, ["data.mdb"])
    assert [damage["source"] for damage in found["damaged"]] == files
    assert found["damaged"][7]["sample"] == 7 and found["damaged"][7]["field"] == "lr"
