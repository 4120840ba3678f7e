"""The comparison of training from image files and from a dataset: the command, its plan, its statistics, its report."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparison import findings, report
from comparison.arms import PairFiles, opened
from comparison.material import Pairs, Photos, make_pairs, make_photos
from comparison.plan import Plan, Run, Speed, TurnOf, make_plan
from comparison.results import Results, load
from comparison.settings import ARMS, SWEEPS, Arm, Setting
from comparison.statistics import difference
from comparison.training import take_steps
from comparison_example import BASE, made_up
from demos.class_folders import find_photographs, make_class_folders
from hypothesis import given
from hypothesis import strategies as st
from loading_scripts import load_script
from PIL import Image

from lmdbloader.base.stopwatch import PHASES, StepTimer
from lmdbloader.lab.machine import describe

compare_training = load_script("compare_training")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four photographs, one of them gray."""
    folder = tmp_path_factory.mktemp("photographs")
    for name in ("astronaut.png", "camera.png", "chelsea.png", "coffee.png"):
        with Image.open(find_photographs() / name) as image:
            image.crop((100, 40, 360, 240)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def pairs(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Patch pairs of the photographs."""
    return make_pairs(photographs, tmp_path_factory.mktemp("pairs") / "data", limit=20, say=lambda line: None)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders without a split."""
    folder = tmp_path_factory.mktemp("classes")
    make_class_folders(folder, num_train=12, num_val=6, sides=(64, 96), num_classes=3)
    return folder


@pytest.fixture(scope="module")
def photos(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """The class folders as material."""
    return make_photos(classes, tmp_path_factory.mktemp("photos") / "data", say=lambda line: None)


# The material


def test_files_and_dataset_have_the_same_pairs(pairs: Pairs) -> None:
    import lmdbloader

    dataset = lmdbloader.LMDBDataset(pairs.dataset)
    assert len(pairs.files) == len(dataset) == 20
    for files, sample in zip(pairs.files, dataset, strict=True):
        for path, image in zip(files, (sample.lr, sample.hr), strict=True):
            with Image.open(path) as opened_file:
                assert np.array_equal(np.asarray(opened_file), image.permute(1, 2, 0).numpy())


def test_files_and_dataset_have_the_same_labels(photos: Photos, classes: Path) -> None:
    import lmdbloader

    dataset = lmdbloader.LMDBDataset(photos.dataset)
    assert photos.classes == tuple(sorted(path.name for path in (classes / "train").iterdir()))
    assert [photos.classes[label] for label in photos.labels] == [path.parent.name for path in photos.files]
    assert [sample.label for sample in dataset] == list(photos.labels)
    assert len(lmdbloader.LMDBDataset(photos.validation)) == 18


def test_what_is_held_out_is_not_trained_on(classes: Path, tmp_path: Path) -> None:
    """Without a `val` every fifth file of a class is held out."""
    import lmdbloader

    found = make_photos(classes / "train", tmp_path, say=lambda line: None)
    held_out = lmdbloader.LMDBDataset(found.validation).table.column("source").to_pylist()
    trained = {f"{path.parent.name}/{path.name}" for path in found.files}
    assert len(found.files) == 30 and len(held_out) == 6
    assert not trained & set(held_out)


# The arms


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_arm_gives_the_same_kind_of_batches(pairs: Pairs, photos: Photos, arm: Arm, workers: int) -> None:
    shapes: list[Any] = []
    for material, model in ((pairs, "srcnn"), (photos, "tiny")):
        setting = Setting(model, 4, 32, workers)
        with opened(material, arm, setting, device=CPU, seed=0) as next_epoch:
            batches = [list(next_epoch()) for _ in range(2)]
        assert [len(found) for found in batches] == [len(material.files) // 4] * 2
        assert not torch.equal(batches[0][0][0], batches[1][0][0])
        shapes.append([(tuple(part.shape), part.dtype) for part in batches[0][0]])
    uint8, floats = torch.uint8, torch.float32
    assert shapes[0] == [((4, 3, 16, 16), uint8), ((4, 3, 32, 32), uint8)]
    assert shapes[1] == [((4, 3, 32, 32), floats), ((4,), torch.int64)]


def test_pairs_from_files_are_cut_and_flipped_together(tmp_path: Path) -> None:
    """In an image whose pixels are all different, the window of lr is the one of hr."""
    lr = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3)
    hr = lr.repeat(2, 0).repeat(2, 1)
    for name, pixels in (("lr.png", lr), ("hr.png", hr)):
        Image.fromarray(pixels).save(tmp_path / name)
    files = PairFiles([(tmp_path / "lr.png", tmp_path / "hr.png")], 8)
    seen = set()
    for _ in range(50):
        small, large = files[0]
        assert torch.equal(small.repeat_interleave(2, 1).repeat_interleave(2, 2), large)
        seen.add(small.numpy().tobytes())
    assert len(seen) > 20


# Statistics


def test_intervals_hold_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = sum(
        bool(difference(rng.normal(5, 1, 3).tolist(), rng.normal(5, 3, 3).tolist()).contains_zero) for _ in range(2000)
    )
    assert 0.94 <= held / 2000 <= 0.98  # Welch's interval is a little too wide for so few values


# The plan


@given(
    st.floats(60, 7200), st.floats(20, 20_000), st.floats(0.1, 3), st.integers(1, 5),
    st.lists(st.sampled_from(list(SWEEPS)), unique=True), st.integers(1, 16), st.sampled_from(["cpu", "cuda"]),
)  # fmt: skip
def test_a_plan_fits_into_its_time_or_says_so(
    seconds: float, speed: float, overhead: float, num_seeds: int, sweeps: list[str], cores: int, device: str
) -> None:
    plan = make_plan(
        BASE, {(model, arm): Speed(speed, overhead) for model in BASE for arm in ARMS},
        num_samples={"srcnn": 2000, "tiny": 1200}, score_seconds={"srcnn": 0.2, "tiny": 0.1}, sweeps=sweeps,
        num_seeds=num_seeds, seconds=seconds, device=device, cores=cores,
    )  # fmt: skip
    assert plan.seconds <= seconds or any("longer than was asked for" in line for line in plan.left_out)
    wanted = sum(SWEEPS[name].concerns(setting, device) for name in sweeps for setting in BASE.values())
    assert sum(map(len, plan.sweeps.values())) + sum("no time for" in line for line in plan.left_out) == wanted
    keys = [item.key for item in plan.items(cores)]
    assert len(keys) == len(set(keys))
    assert sum(key.startswith("run") for key in keys) == len(BASE) * len(ARMS) * num_seeds
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


# The findings


def test_image_files_are_compared_at_their_best_number_of_workers() -> None:
    """Here they are three times as fast without workers as in the runs."""
    results = made_up()
    for item in results.plan.items(2):
        if isinstance(item, TurnOf) and item.sweep == "workers":
            speed = {"folder": 300.0 if item.place == 0 else 100.0}.get(item.arm, 450.0)
            results.turns[item.key] = replace(results.turns[item.key], samples_per_s=speed)
    assert findings.headline(results).startswith("Loader trains SRCNN 1.5 times as fast and")
    text = re.sub(r"\s+", " ", report.as_text(results))
    assert "Loader is 1.5 times as fast as image files; with 2 for both, as in these runs, 4.0 times (95 % " in text


def _uneven(results: Results, model: str, seconds: tuple[float, ...]) -> None:
    """Give the runs of a model from Loader these seconds an epoch, seed by seed."""
    for seed, each in enumerate(seconds):
        key = Run(model, "lmdbloader", seed).key
        results.runs[key] = [replace(epoch, seconds=each) for epoch in results.runs[key]]


def test_speeds_that_vary_more_than_they_differ_are_no_conclusion() -> None:
    """The median run is twice as fast as from files, the others half and twenty times as fast."""
    results = made_up(sweeps=("batch-size",))
    _uneven(results, "srcnn", (20.0, 5.0, 0.5))
    assert findings.headline(results) == (
        "Loader trains a small ResNet 4.0 times as fast as image files do; these runs do not tell whether Loader "
        "trains SRCNN faster than image files do; no difference in quality was found"
    )
    assert findings.summary(results)[0].startswith("SRCNN: the speeds varied more than they differ.")
    text = re.sub(r"\s+", " ", report.as_text(results))
    assert re.search(r"vary too much to compare speeds: Loader is between 0\.\d+ and [\d,.]+ times as fast", text)


def test_one_seed_claims_no_equal_quality() -> None:
    text = report.as_text(made_up(seeds=1))
    assert "does not tell whether the quality is the same" in re.sub(r"\s+", " ", text)
    assert "no difference" not in text


def test_time_to_a_target_counts_whole_epochs() -> None:
    outcomes = {outcome.arm: outcome for outcome in findings.outcomes(made_up(), "srcnn")}
    target = outcomes["folder"].target
    assert target is not None and outcomes["lmdbloader"].target == pytest.approx(target / 4, rel=0.4)
    assert outcomes["folder"].total == pytest.approx(40)


def test_results_are_written_and_read_back(tmp_path: Path) -> None:
    results = made_up()
    results.save(tmp_path / "results.json")
    found = load(tmp_path / "results.json", results.wanted)
    assert found == results
    assert found is not None and report.as_text(found) == report.as_text(results)


# The command


def compare(*arguments: object) -> int:
    status = compare_training.main([str(argument) for argument in [*arguments, "--device", "cpu", "--workers", 1]])
    assert isinstance(status, int)
    return status


def test_the_command_compares_and_goes_on(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted after three runs, the second call does the rest."""
    out = tmp_path / "out"
    options = (photographs, "--out", out, "--minutes", "0.01", "--samples", 12, "--batch-size", 4, "--size", 16,
               "--models", "srcnn,tiny", "--seeds", 1, "--sweeps", "patch")  # fmt: skip
    monkeypatch.setattr(compare_training, "_TRY_SECONDS", 0.05)
    trained = compare_training.train_run
    calls: list[Arm] = []

    def stopping(*arguments: Any, **others: Any) -> Any:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(arguments[1])
        return trained(*arguments, **others)

    monkeypatch.setattr(compare_training, "train_run", stopping)
    assert compare(*options) == 130
    assert "Not done yet" in (out / "report.txt").read_text("utf-8")
    monkeypatch.setattr(compare_training, "train_run", trained)
    assert compare(*options) == 0
    text = (out / "report.txt").read_text("utf-8")
    assert "Not done yet" not in text and text in capsys.readouterr().out
    kept = json.loads((out / "results.json").read_text("utf-8"))
    assert len(kept["runs"]) == 6
    assert kept["environment"]["storage"] == describe(out).storage
    assert dict(kept["facts"])["system"] in text
    assert (out / "report.html").stat().st_size > 10_000
    assert compare(*options, "--size", 32) == 1
    assert "was begun with --size 16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "srcn"], "no model is called 'srcn'; there are srcnn, edsr"),
        (["--sweeps", "batchsize"], "no sweep is called 'batchsize'"),
        (["--minutes", "0"], "must be above 0"),
    ],
)
def test_wrong_options_are_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare("photographs", *arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "least", "steps"), [(0.0, 2, 2), (0.0, 0, 0), (9.0, 2, 3)])
def test_steps_are_taken_for_the_time_with_their_waits(
    monkeypatch: pytest.MonkeyPatch, seconds: float, least: int, steps: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    timer = StepTimer()

    def step(batch: int, timer: StepTimer) -> None:
        now[0] += 3 + batch
        timer.lap("forward")

    assert take_steps(count(), step, seconds, timer, least=least) == steps
    assert timer.rows()[:, PHASES.index("forward")].tolist() == [3 + k for k in range(steps)]
