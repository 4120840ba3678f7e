"""`lmdbloader bench`: tables or JSON on the standard output, and progress on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_example import make_study

from lmdbloader.cli import main
from lmdbloader.lab import Study


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of `bench`, which returns the example at once."""
    found: dict[str, Any] = {}

    def bench(dataset: str, **options: Any) -> Study:
        options.pop("progress")("loading: begins")
        found.update(options, dataset=dataset)
        return make_study()

    monkeypatch.setattr("lmdbloader.lab.study.bench", bench)
    return found


def test_tables_go_to_stdout_and_progress_to_stderr(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train.lmdb"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{make_study()}\n"
    assert err.endswith("s] loading: begins\n")
    assert asked == {"dataset": "train.lmdb", "cold": False}


def test_every_option_is_passed_on(asked: dict[str, Any]) -> None:
    words = (
        "bench train.lmdb --baseline auto --cold --batch-sizes 4 8 --crops 32 whole "
        "--seconds 2 --repeats 5 --processes 1 8 --num-workers 0 4"
    )
    assert main(words.split()) == 0
    assert asked == {
        "dataset": "train.lmdb", "baseline": "auto", "batch_sizes": [4, 8], "crops": [32, None],
        "cold": True, "seconds": 2.0, "repeats": 5, "processes": [1, 8], "num_workers": [0, 4],
    }  # fmt: skip


def test_a_study_is_stored_and_drawn(asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, charts = tmp_path / "study.json", tmp_path / "charts.pdf"
    assert main(["bench", "train.lmdb", "--json", str(stored), "--charts", str(charts)]) == 0
    shown, err = capsys.readouterr()
    assert shown == f"{make_study()}\n" and f"charts: {charts}" in err and charts.read_bytes().startswith(b"%PDF")
    kept = json.loads(stored.read_text())
    assert kept == json.loads(json.dumps(make_study().as_json()))
    assert main(["bench", "train.lmdb", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == kept


def test_charts_are_a_pdf_file(asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train.lmdb", "--charts", str(tmp_path / "charts.html")]) != 0
    assert "expected a file name that ends in .pdf" in capsys.readouterr().err and asked == {}
