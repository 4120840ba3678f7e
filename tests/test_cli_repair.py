"""`lmdbloader repair`: the list of the damage, the repair, and the exit status."""

from __future__ import annotations

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


def test_a_lost_index_comes_back(dataset: Path, capsys: Capture) -> None:
    expected = (dataset / "index.arrow").read_bytes()
    (dataset / "index.arrow").unlink()
    assert main(["repair", str(dataset)]) == 0
    text = capsys.readouterr()
    assert text.out.startswith(f"{dataset}: index.arrow: is missing\n") and text.err == ""
    assert (dataset / "index.arrow").read_bytes() == expected
    assert main(["verify", str(dataset)]) == 0


def test_damaged_samples_are_said_and_left_out(dataset: Path, tmp_path: Path, capsys: Capture) -> None:
    source = flip_payload(dataset, "lr", 3)
    assert main(["repair", str(dataset)]) == 1
    text = capsys.readouterr()
    assert f"sample 3, field lr, from {source}: its checksum does not match" in text.out
    assert text.err.startswith(f"lmdbloader: {dataset}: data.mdb is damaged") and "OUT" in text.err
    out = tmp_path / "new.lmdb"
    assert main(["repair", str(dataset), str(out)]) == 0
    text = capsys.readouterr()
    assert text.out.splitlines()[-1] == (
        f"{out}: written, 47 samples of {dataset}; 1 left out, listed in {out}/left_out.tsv"
    )
    assert main(["verify", str(out)]) == 0
    assert main(["repair", str(dataset), str(out)]) == 1
    assert "is there already" in capsys.readouterr().err
