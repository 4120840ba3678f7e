"""A study that is interrupted keeps its turns, and goes on from them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.lab.study import Study, bench

SMALL: dict[str, Any] = {
    "batch_sizes": [2], "crops": [16], "seconds": 0.002, "repeats": 3, "num_workers": 0, "processes": [1],
    "model": "srcnn915", "device": "cpu",
}  # fmt: skip
SHORT: dict[str, Any] = {"only": ["oversubscription"], "repeats": 1}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what studies keep."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmdbloader" / "bench"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "db"
    images = np.random.default_rng(0).integers(0, 256, (8, 24, 24, 3), np.uint8)
    lmdbloader.write(({"image": image} for image in images), path)
    return path


class Interrupting:
    """Notes the lines of progress, and interrupts at the first one with some words."""

    def __init__(self, words: str = "never") -> None:
        self.words, self.lines = words, list[str]()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if self.words in line:
            self.words = "never"
            raise KeyboardInterrupt


def broken_off(dataset: Path, words: str, **options: Any) -> list[str]:
    """Interrupt a study when a line of progress has these words; return all lines."""
    progress = Interrupting(words)
    with pytest.raises(KeyboardInterrupt):
        bench(dataset, **{**SMALL, **options}, progress=progress)
    return progress.lines


def resumed(dataset: Path, **options: Any) -> tuple[Study, list[str]]:
    progress = Interrupting()
    return bench(dataset, **{**SMALL, **options}, progress=progress), progress.lines


def reused(study: Study) -> int:
    """Return how many turns a study says that it had already."""
    found = [re.search(r"went on: (\d+) turns? had been measured", note) for note in study.notes]
    return sum(int(match[1]) for match in found if match)


def test_an_interrupted_study_goes_on_and_a_finished_one_leaves_nothing(dataset: Path, cache: Path) -> None:
    lines = broken_off(dataset, "trains, turn 3/3", only=["sweep"])
    # Loading and training each have three turns of two sources.
    assert re.fullmatch(r"10 turns kept: within a day, the same command goes on from here \(.*\.jsonl\)", lines[-1])
    (kept,) = cache.iterdir()
    stored = kept.read_text()

    study, lines = resumed(dataset, only=["sweep"])

    assert reused(study) == 10
    assert lines[0].startswith(
        "going on from 10 turns of an interrupted study of the same; to measure again, use --rest"
    )
    assert lines[0].endswith(f"delete {kept}")
    assert [line for line in lines if "sweep" in line] == ["sweep: trains, turn 3/3, crop 16, batches of 2"]
    assert len(study.sweep) == 2 and all(row.training is not None for row in study.sweep)
    assert all(f'"{source}"' in stored or f"'{source}'" in stored for source in ("lmdbloader", "dataloader"))
    assert not list(cache.iterdir())
    assert reused(resumed(dataset, only=["sweep"], repeats=1)[0]) == 0


def test_turns_that_are_kept_are_those_of_the_result(dataset: Path, cache: Path) -> None:
    """Their speeds are changed in the file, and come out of it again."""
    lines = broken_off(dataset, "oversubscription: dataloader", **SHORT)
    assert "4 turns kept" in lines[-1]
    (kept,) = cache.iterdir()
    changed = '"num_samples": 7000, "seconds": 2'
    kept.write_text(re.sub(r'"num_samples": \d+, "seconds": [\d.e-]+', changed, kept.read_text()))

    study, _ = resumed(dataset, **SHORT)

    speeds = [(row.source, row.samples_per_s) for row in study.oversubscription]
    assert speeds[:4] == [("lmdbloader", 3500.0)] * 4
    assert all(source == "dataloader" and speed != 3500 for source, speed in speeds[4:]) and len(speeds) == 8


def test_isolation_goes_on(dataset: Path, cache: Path) -> None:
    options: dict[str, Any] = {"only": ["isolation"], "batch_sizes": [1, 2], "repeats": 1}
    broken_off(dataset, "isolation: 1 process, batches of 2", **options)
    study, _ = resumed(dataset, **options)
    assert reused(study) == 2 and len(study.isolation) == 4


@pytest.mark.parametrize("change", [{"repeats": 2}, {"crops": [8]}])
def test_another_study_has_turns_of_its_own(change: dict[str, Any], dataset: Path, cache: Path) -> None:
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    assert reused(resumed(dataset, **{**SHORT, **change})[0]) == 0
    assert reused(resumed(dataset, **SHORT)[0]) == 4


def test_other_samples_have_turns_of_their_own(dataset: Path, cache: Path) -> None:
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    view = lmdbloader.LMDBDataset(dataset).select(range(6))
    assert reused(bench(view, **{**SMALL, **SHORT})) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text + '["threads: ',
        lambda text: text.replace('"seconds"', '"minutes"'),
        lambda text: "\0\xff{}[]\n[1, 2, 3]\n[[], 1]\n[{}, 1]\n",
        lambda text: "",
    ],
)
def test_turns_that_cannot_be_read_are_measured_again(damage: Any, dataset: Path, cache: Path) -> None:
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    (kept,) = cache.iterdir()
    kept.write_text(damage(kept.read_text().rstrip()), "utf-8")
    # It is interrupted again: what is kept now can be read.
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    assert len(re.findall("^.+$", kept.read_text("utf-8"), re.MULTILINE)) >= 4
    assert reused(resumed(dataset, **SHORT)[0]) == 4


def test_turns_of_yesterday_are_measured_again(dataset: Path, cache: Path) -> None:
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    (kept,) = cache.iterdir()
    os.utime(kept, times=(time.time() - 25 * 3600,) * 2)
    assert reused(resumed(dataset, **SHORT)[0]) == 0


def test_a_study_that_can_keep_nothing_is_measured(dataset: Path, cache: Path) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file in place of the folder")
    lines = broken_off(dataset, "oversubscription: dataloader", **SHORT)
    assert not any("kept" in line for line in lines)
    assert resumed(dataset, **SHORT)[0].oversubscription


def test_the_time_that_is_left_is_shown_and_restart_measures_again(
    dataset: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_off(dataset, "oversubscription: dataloader", **SHORT)
    assert list(cache.iterdir())
    words = f"bench {dataset} --only oversubscription --batch-sizes 2 --crops 16 --seconds 0.002 --repeats 1"
    words += " --num-workers 0 --processes 1 --device cpu --restart"

    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    assert "had been measured" not in out
    assert re.search(r"oversubscription: dataloader, .*; about \d+ s left\n", err)
