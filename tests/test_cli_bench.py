"""`lmdbloader bench`: a table or JSON on the standard output, progress on stderr, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_example import faster, make_study

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import OptionError
from lmdbloader.lab.study import Study


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of `bench`, which returns the example at once."""
    found: dict[str, Any] = {}

    def bench(dataset: str, **options: Any) -> Study:
        found.update(options, dataset=dataset)
        options["progress"]("sweep: begins")
        return make_study()

    monkeypatch.setattr("lmdbloader.lab.study.bench", bench)
    return found


def test_the_table_goes_to_stdout_and_progress_to_stderr(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "train.lmdb"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{make_study()}\n"
    assert err.endswith("s] sweep: begins\n")
    asked.pop("progress")
    assert asked == {
        "dataset": "train.lmdb", "baseline": None, "batch_sizes": (8, 16, 32, 64, 128), "crops": (16, 64),
        "model": "srcnn915", "only": ("sweep", "threads", "oversubscription", "isolation"), "seconds": 0.2,
        "repeats": 3, "processes": None, "num_workers": None, "device": None,
    }  # fmt: skip


def test_every_option_is_passed_on(asked: dict[str, Any]) -> None:
    words = (
        "bench train.lmdb --baseline auto --only sweep isolation --batch-sizes 4 8 --crops 32 whole --model none "
        "--seconds 2 --repeats 5 --processes 1 8 --num-workers 0 --device cpu"
    )
    assert main(words.split()) == 0
    asked.pop("progress")
    assert asked == {
        "dataset": "train.lmdb", "baseline": "auto", "batch_sizes": [4, 8], "crops": [32, None], "model": None,
        "only": ["sweep", "isolation"], "seconds": 2.0, "repeats": 5, "processes": [1, 8], "num_workers": 0,
        "device": "cpu",
    }  # fmt: skip


def test_json_stands_alone_on_stdout(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train.lmdb", "--json", "-"]) == 0
    assert Study.from_json(json.loads(capsys.readouterr().out)) == make_study()


def test_json_goes_to_a_file_in_addition_to_the_table(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "train.lmdb", "--json", str(tmp_path / "study.json")]) == 0
    assert "What this says" in capsys.readouterr().out
    assert Study.from_json(json.loads((tmp_path / "study.json").read_text())) == make_study()


def test_a_file_that_cannot_be_written_is_reported_before_measuring(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "train.lmdb", "--json", str(tmp_path / "none" / "study.json")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err
    assert not asked


@pytest.mark.parametrize("before", [None, "old"])
def test_a_measurement_that_fails_leaves_the_json_file_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    def bench(dataset: str, **options: Any) -> Study:
        raise OptionError("no")

    monkeypatch.setattr("lmdbloader.lab.study.bench", bench)
    file = tmp_path / "study.json"
    if before is not None:
        file.write_text(before)
    assert main(["bench", "train.lmdb", "--json", str(file)]) == 2
    assert (file.read_text() if file.exists() else None) == before


@pytest.mark.parametrize("name", ["file", "file/charts"])
def test_a_folder_of_charts_that_cannot_be_made_is_reported_before_measuring(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", "train.lmdb", "--charts", str(tmp_path / name)]) == 1
    assert f"{tmp_path / name}: is a file, or lies in one" in capsys.readouterr().err
    assert not asked


def test_a_stored_study_is_not_measured(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stored = tmp_path / "study.json"
    assert main(["bench", str(stored)]) == 1
    assert "study.json: there is no such file; expected output of `lmdbloader" in capsys.readouterr().err
    stored.write_text(json.dumps(make_study().as_json()))
    assert main(["bench", str(stored), "--batch-sizes", "8", "--seconds", "2"]) == 2
    assert "--batch-sizes, --seconds would need a new measurement" in capsys.readouterr().err
    assert not asked


def test_a_measurement_from_end_to_end(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmdbloader.convert(photos, tmp_path / "db", workers=1)
    words = ["--only", "threads", "--batch-sizes", "4", "--crops", "16", "--seconds", "0.002", "--repeats", "1"]
    assert main(["bench", str(tmp_path / "db"), *words, "--json", "-"]) == 0
    study = Study.from_json(json.loads(capsys.readouterr().out))
    assert study.dataset.path == str(tmp_path / "db") and study.threads[0].samples_per_s > 0


def test_a_report_and_charts_are_drawn(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report, charts = tmp_path / "report.html", tmp_path / "charts"
    assert main(["bench", "train.lmdb", "--report", str(report), "--charts", str(charts), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert Study.from_json(json.loads(out)) == make_study()
    assert "<svg" in report.read_text("utf-8")
    assert {path.suffix for path in charts.iterdir()} == {".png", ".svg"}
    assert f"report: {report}" in err and f"files in {charts}" in err


def test_a_report_that_cannot_be_written_is_reported_before_measuring(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "train.lmdb", "--report", str(tmp_path / "report.pdf")]) == 2
    assert "expected a file name that ends in .html" in capsys.readouterr().err
    assert not asked


def test_a_stored_study_is_shown(asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stored = tmp_path / "study.json"
    stored.write_text(json.dumps(make_study(gpu=True).as_json()))
    assert main(["bench", str(stored)]) == 0
    assert capsys.readouterr().out == f"{make_study(gpu=True)}\n"
    assert not asked
    stored.write_text("{")
    assert main(["bench", str(stored)]) == 1
    assert "study.json: is not JSON" in capsys.readouterr().err


def test_two_stored_studies_are_compared(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(make_study().as_json()))
    Path("b.json").write_text(json.dumps(faster(make_study(), 2.0).as_json()))
    assert main(["bench", "a.json", "b.json", "--report", "c.html", "--json", "c.json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("In b.json loading is 2 times as fast as in a.json; training is not measurably faster")
    assert "report: c.html" in err and "<svg" in Path("c.html").read_text("utf-8")
    stored = json.loads(Path("c.json").read_text())
    assert stored["comparison_version"] == 1 and stored["names"] == ["a.json", "b.json"]
    assert main(["bench", "a.json", "b.json", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == stored
    assert main(["bench", "a.json", "train.lmdb"]) == 2
    assert "lmdbloader bench train.lmdb --json study.json" in capsys.readouterr().err
    assert main(["bench", "a.json", "b.json", "--charts", "charts"]) == 2
    assert "--charts: draws one study. Give --report FILE.html" in capsys.readouterr().err
    assert main(["bench", "a.json", "b.json", "--seconds", "2"]) == 2
    assert "--seconds would need a new measurement" in capsys.readouterr().err
    assert main(["bench", "a.json", "none.json"]) == 1
    assert not asked


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["no such.lmdb"], 1, "no such.lmdb"),
        (["db", "--only", "tape"], 2, "invalid choice: 'tape'"),
        (["db", "--crops", "wide"], 2, "argument --crops: 'wide': expected a whole number of pixels"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    words: list[str], status: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["bench", *words])
    except SystemExit as leaving:
        found = int(str(leaving.code))
    assert found == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert expected in last and last.startswith("lmdbloader")


def test_a_folder_of_images_next_to_a_dataset_gets_the_line_to_write(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "own photos.lmdb"
    lmdbloader.convert(photos, db, progress=False)
    for arguments in ([str(photos), str(db)], [str(db), str(photos)]):
        assert main(["bench", *arguments]) == 2
        error = capsys.readouterr().err
        assert f"{photos}: is not a dataset." in error
        assert error.endswith(f"write: lmdbloader bench '{db}' --baseline {photos}\n")
    assert main(["bench", str(db), str(db)]) == 2
    assert f"lmdbloader bench '{db}' --json study.json" in capsys.readouterr().err
