"""`lmdbloader tune`: its output, its exit status, and forgetting."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader import cli
from lmdbloader.base.stopwatch import BatchTimes
from lmdbloader.lab.tuning.measuring import Measurer
from lmdbloader.lab.tuning.race import ReadSetting
from lmdbloader.loader import tuning_cache
from lmdbloader.loader.tuning_cache import case_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets") / "d.lmdb"
    shades = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
    lmdbloader.write([{"image": shades + i} for i in range(64)], folder)
    return folder


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turns take no time; one thread is best. The command sets a handler, which must not outlive its call."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def measure(self: Measurer, setting: ReadSetting, number: int) -> BatchTimes:
        return BatchTimes(1000, 1.0 + setting.count + (setting.kind == "workers"), (0.001, 0.002))

    monkeypatch.setattr(Measurer, "__call__", measure)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_grid_and_the_line_are_printed_and_remembered(path: Path, capsys: Capture) -> None:
    assert cli.main(["tune", str(path), "--batch-size", "8", "--crop", "16"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"{path}: batches of 8, RandomCrop(size=16" in printed.out
    assert "Loader, 1 thread" in printed.out and "DataLoader, 0 workers" in printed.out
    assert (
        f"import lmdbloader; loader = lmdbloader.Loader(lmdbloader.LMDBDataset('{path}'), batch_size=8, shuffle=True"
        in printed.out
    )
    ds = lmdbloader.LMDBDataset(path)
    assert lmdbloader.Loader(ds, 8, shuffle=True, transforms=[lmdbloader.transforms.RandomCrop(16)]).num_threads == 1


def test_json_is_alone_on_stdout(path: Path, capsys: Capture) -> None:
    assert cli.main(["tune", str(path), "--batch-size", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_threads"], found["num_workers"], found["verdict"]) == (1, 0, None)
    assert {(row["kind"], row["count"]) for row in found["rows"]} >= {("threads", 1), ("workers", 0)}


def test_a_step_that_is_not_fed_is_status_one(path: Path, capsys: Capture) -> None:
    words = ["tune", str(path), "--batch-size", "8", "--seconds", "1", "--step-seconds"]
    assert cli.main([*words, "1e-6"]) == 1  # 8 million samples/s
    assert "\n\nFAIL: " in capsys.readouterr().out
    assert cli.main([*words, "1e-6", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["passed"] is False


def test_forgetting_measures_nothing(path: Path, capsys: Capture) -> None:
    for batch_size in ("4", "8"):
        assert cli.main(["tune", str(path), "--batch-size", batch_size]) == 0
    capsys.readouterr()
    ds = lmdbloader.LMDBDataset(path)
    assert tuning_cache.recall_threads(case_of(ds, 4)) == 1

    assert cli.main(["tune", str(path), "--forget"]) == 0
    assert capsys.readouterr().out == f"{path}: 4 entries forgotten\n"
    assert tuning_cache.recall_threads(case_of(ds, 4)) is None
    assert cli.main(["tune", str(path), "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": 0}


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        ([], "the following arguments are required: --batch-size", 2),
        (["--batch-size", "0"], "batch_size=0, crop=None: expected at least 1", 2),
        (["--batch-size", "8", "--step-seconds", "-1"], "step_seconds=-1.0: expected seconds, more than 0", 2),
        (["--batch-size", "65"], "it has 64 samples, fewer than one batch", 2),
        (["--batch-size", "8", "--crop", "x"], "argument --crop: 'x': expected a whole number of pixels", 2),
    ],
)
def test_wrong_usage_says_what(path: Path, capsys: Capture, words: list[str], message: str, status: int) -> None:
    try:
        found: Any = cli.main(["tune", str(path), *words])
    except SystemExit as error:
        found = error.code
    assert found == status
    assert message in capsys.readouterr().err


def test_a_missing_dataset_is_status_one(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["tune", str(tmp_path / "none"), "--batch-size", "8"]) == 1
    assert cli.main(["tune", str(tmp_path / "none"), "--forget"]) == 1
    assert capsys.readouterr().out == ""
