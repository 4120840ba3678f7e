"""`lmdbloader bench`: tables or JSON on the standard output, progress on stderr, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_example import faster, make_study

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import OptionError
from lmdbloader.lab import Study


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of `bench`, which returns the example at once."""
    found: dict[str, Any] = {}

    def bench(dataset: str, **options: Any) -> Study:
        options.pop("progress")("sweep: begins")
        found.update(options, dataset=dataset)
        return make_study()

    monkeypatch.setattr("lmdbloader.lab.study.bench", bench)
    return found


def test_tables_go_to_stdout_and_progress_to_stderr(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train.lmdb"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{make_study()}\n"
    assert err.endswith("s] sweep: begins\n")
    assert asked == {"dataset": "train.lmdb"}


def test_every_option_is_passed_on(asked: dict[str, Any]) -> None:
    words = (
        "bench train.lmdb --baseline auto --only sweep isolation --batch-sizes 4 8 --crops 32 whole --model none "
        "--seconds 2 --repeats 5 --processes 1 8 --num-workers 0 --device cpu"
    )
    assert main(words.split()) == 0
    assert asked == {
        "dataset": "train.lmdb", "baseline": "auto", "batch_sizes": [4, 8], "crops": [32, None], "model": None,
        "only": ["sweep", "isolation"], "seconds": 2.0, "repeats": 5, "processes": [1, 8], "num_workers": 0,
        "device": "cpu",
    }  # fmt: skip


def test_a_study_is_stored_shown_again_and_reported(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, report = tmp_path / "study.json", tmp_path / "report.html"
    assert main(["bench", "train.lmdb", "--json", str(stored)]) == 0
    out = capsys.readouterr().out
    asked.clear()
    assert main(["bench", str(stored), "--report", str(report)]) == 0
    shown, err = capsys.readouterr()
    assert shown == out and f"report: {report}" in err and "<img" in report.read_text("utf-8")
    assert main(["bench", str(stored), "--json", "-"]) == 0
    assert Study.from_json(json.loads(capsys.readouterr().out)) == make_study()
    assert not asked


def test_two_stored_studies_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for name, study in zip(names, (make_study(), faster(make_study(), 2.0)), strict=True):
        Path(name).write_text(json.dumps(study.as_json()))
    assert main(["bench", *names]) == 0
    assert "second / first" in capsys.readouterr().out
    for arguments, named in (
        ([*names, "--report", "c.html"], "--report"),
        ([names[0], "train.lmdb"], "train.lmdb"),
        ([str(tmp_path), names[1]], str(tmp_path)),
        ([*names, "--seconds", "2"], "--seconds"),
    ):
        assert main(["bench", *arguments]) == 2
        assert named in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["train.lmdb", "--json", "none/study.json"], 1, "none/study.json"),
        (["train.lmdb", "--report", "report.pdf"], 2, "report.pdf"),
        (["none.json"], 1, "none.json"),
        (["broken.json"], 1, "broken.json: is not JSON"),
        (["db", "--only", "tape"], 2, "invalid choice: 'tape'"),
        (["db", "--crops", "wide"], 2, "argument --crops: 'wide'"),
    ],
)
def test_what_makes_no_sense_is_one_line_before_anything_is_measured(
    words: list[str], status: int, expected: str, asked: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    try:
        found = main(["bench", *words])
    except SystemExit as leaving:
        found = int(str(leaving.code))
    assert found == status and not asked
    last = capsys.readouterr().err.splitlines()[-1]
    assert expected in last and last.startswith("lmdbloader")


def test_a_measurement_from_end_to_end(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmdbloader.convert(photos, tmp_path / "db", workers=1)
    words = ["--only", "threads", "--batch-sizes", "4", "--crops", "16", "--seconds", "0.002", "--repeats", "1"]
    assert main(["bench", str(tmp_path / "db"), *words, "--json", "-"]) == 0
    study = Study.from_json(json.loads(capsys.readouterr().out))
    assert study.facts["dataset"].startswith(str(tmp_path / "db")) and study.section("threads")[0].samples_per_s > 0
