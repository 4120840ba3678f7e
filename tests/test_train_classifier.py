"""Training of classifiers: the command from end to end, resumed runs, several processes, bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classification.processes import choose_device
from loading_scripts import interrupt_at_save, load_script, make_class_datasets

import lmdbloader
from lmdbloader.errors import OptionError

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "train_classifier.py"


train_classifier = load_script("train_classifier")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets train.lmdb and val.lmdb of crops of four real photographs."""
    return make_class_datasets(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def thumbnails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset shaped like CIFAR-10: 64 images of 32 x 32 pixels, labels without names."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("cifar") / "train.lmdb"
    samples = ({"image": rng.integers(0, 256, (32, 32, 3), np.uint8), "label": i % 10} for i in range(64))
    lmdbloader.write(samples, path)
    return path


def run(*arguments: object, size: int | None = 32) -> int:
    sizes = [] if size is None else ["--size", size]
    fixed = ["--device", "cpu", "--num-threads", 1, "--model", "tiny", "--batch-size", 16, *sizes]
    status = train_classifier.main([str(argument) for argument in [*fixed, *arguments]])
    assert isinstance(status, int)
    return status


def entries_of(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a log but those that a run begins with."""
    return [entry for line in log.read_text().splitlines() if "epoch" in (entry := json.loads(line))]


def weights(path: Path) -> dict[str, torch.Tensor]:
    model = torch.load(path, weights_only=True)["model"]
    assert isinstance(model, dict)
    return model


# --- The command ---


@pytest.mark.parametrize(
    "options",
    [
        ("--blur-pool", "--amp", "bf16", "--no-channels-last", "--schedule", "triangle"),
        ("--label-smoothing", 0, "--order", "quasi_random", "--data-device", "cpu", "--amp", "fp32"),
    ],
)
def test_an_epoch_prints_and_logs_top1_speed_and_waiting(
    options: tuple[object, ...], photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, val = photographs / "train.lmdb", photographs / "val.lmdb"
    assert run(train, "--val", val, "--epochs", 2, "--log-json", tmp_path / "log.jsonl", *options) == 0

    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"tiny on cpu, (float32|bfloat16): 48 images of 4 classes, 3 steps of 16", lines[0])
    entries = entries_of(tmp_path / "log.jsonl")
    assert [entry["epoch"] for entry in entries] == [1, 2]
    for line, entry in zip(lines[1:], entries, strict=True):
        assert re.fullmatch(
            r"epoch \d/2  32 px  loss \d\.\d{3}  top-1 \d+\.\d\d%  [\d,]+ images/s \(\d+% waiting for data\)", line
        )
        assert f"top-1 {entry['top1']:.2%}" in line
        assert entry["images"] == 48
        assert entry["images_per_s"] == pytest.approx(48 / entry["seconds"])
        assert 0 <= entry["data_share"] <= 1
        assert (entry["top1"] * 24) == pytest.approx(round(entry["top1"] * 24))


def test_the_same_seed_gives_the_same_weights_and_another_does_not(photographs: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ("--epochs", 1, "--limit-steps", 2, "--seed", seed, "--checkpoint", tmp_path / name)
        assert run(photographs / "train.lmdb", *options) == 0
    first, same, other = (weights(tmp_path / name)["fc.weight"] for name in "abc")
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


# --- Class folders ---


def test_a_folder_trains_like_the_dataset_that_is_made_from_it(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The switch changes nothing but the draws of the augmentation: same images, order, steps and scores."""
    logs = {}
    for name, source in (("dataset", [photographs]), ("folder", ["--folder", photographs])):
        log = tmp_path / f"{name}.jsonl"
        assert run(*source, "--epochs", 8, "--warmup", 2, "--lr", 1, "--log-json", log) == 0
        logs[name] = entries_of(log)
    first, *_ = capsys.readouterr().out.partition("tiny on cpu, float32: 48 image files of 4 classes, 3 steps of 16\n")
    assert first.startswith("tiny on cpu, float32: 48 images of 4 classes, 3 steps of 16\n")
    for entry, expected in zip(logs["folder"], logs["dataset"], strict=True):
        assert entry.keys() == expected.keys()
        assert (entry["epoch"], entry["size"], entry["images"]) == (expected["epoch"], 32, 48)
        assert 0 < entry["data_share"] < 1
    # The first step's rate is so low that the losses differ by the draws alone.
    assert logs["folder"][0]["loss"] == pytest.approx(logs["dataset"][0]["loss"], rel=0.2)
    assert min(entries[-1]["top1"] for entries in logs.values()) >= 0.5, "chance is 0.25"


# --- Final scores ---


def test_final_scores_are_told_without_and_with_augmentation_and_size(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--folder", photographs]
    log = tmp_path / "log.jsonl"
    options = ("--epochs", 1, "--tta", "flip", "--eval-size", 40, "--log-json", log, "--checkpoint", tmp_path / "a.pt")
    assert run(*source, *options) == 0

    printed = capsys.readouterr().out.splitlines()[2:]
    epoch, final = entries_of(log)
    scores = final["scores"]
    assert [(score["size"], score["tta"]) for score in scores] == [
        (32, "none"), (32, "flip"), (40, "none"), (40, "flip"),
    ]  # fmt: skip
    assert scores[0]["top1"] == epoch["top1"]
    assert scores[0]["val_loss"] == pytest.approx(epoch["val_loss"], rel=1e-5)
    assert len({score["val_loss"] for score in scores}) == 4
    assert printed[0] == "final top-1, without and with what --tta and --eval-size add:"
    for line, score, name in zip(
        printed[1:],
        scores,
        ("32 px", "32 px, with mirror images", "40 px", "40 px, with mirror images"),
        strict=True,
    ):
        points = 100 * (score["top1"] - scores[0]["top1"])
        change = "" if score is scores[0] else f"  ({points:+.2f} points)"
        assert line == f"  {name:25}  {score['top1']:.2%}{change}"
    # A finished run is scored again without a step, with other options of scoring.
    assert run(*source, "--epochs", 1, "--tta", "crops", "--checkpoint", tmp_path / "a.pt", "--resume") == 0
    assert re.search(
        r"all its epochs are done\ntiny.*\nfinal.*\n  32 px  .*\n  32 px, ten views of each  \d+\.\d\d%  \(",
        capsys.readouterr().out,
    )


# --- Checkpoints ---


@pytest.mark.parametrize("source", [("train.lmdb",), ("--folder", "train")])
def test_a_run_resumed_within_an_epoch_ends_where_an_unbroken_one_does(
    source: tuple[str, ...], photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    *switch, name = source
    options = (*switch, photographs / name, "--epochs", 2, "--limit-steps", 3, "--checkpoint-steps", 2, "--checkpoint")
    assert run(*options, tmp_path / "unbroken.pt") == 0
    with monkeypatch.context() as patch:
        interrupt_at_save(patch, train_classifier, 3)  # one in each epoch, and one after it
        assert run(*options, tmp_path / "broken.pt") == 130
    assert run(*options, tmp_path / "broken.pt", "--resume") == 0
    assert "after epoch 1 and 2 steps" in capsys.readouterr().out
    unbroken, resumed = weights(tmp_path / "unbroken.pt"), weights(tmp_path / "broken.pt")
    for key, value in unbroken.items():
        assert torch.equal(value, resumed[key]), key


def test_a_run_is_resumed_with_its_own_options_only(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (photographs / "train.lmdb", "--epochs", 1, "--limit-steps", 1, "--checkpoint", tmp_path / "run.pt")
    assert run(*options) == 0
    assert run(*options) == 1, "it is not overwritten unasked"
    capsys.readouterr()
    assert run(*options, "--resume", "--seed", 3) == 1
    assert "seed=0" in capsys.readouterr().err
    assert run("--folder", photographs / "train", *options[1:], "--resume") == 1
    assert "dataset=" in capsys.readouterr().err
    assert run(*options, "--resume") == 0
    assert "all its epochs are done" in capsys.readouterr().out


# --- Several processes ---


def test_two_processes_share_the_data_and_end_with_one_model(photographs: Path, tmp_path: Path) -> None:
    """Each step's images, and the epoch's counts and scores, are those of one process with twice the batch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(SCRIPT)]
    # An odd number: a process that repeated an image would count it twice.
    lmdbloader.write(lmdbloader.LMDBDataset(photographs / "val.lmdb")[:23], tmp_path / "val.lmdb")
    options = [
        str(photographs / "train.lmdb"), "--val", str(tmp_path / "val.lmdb"), "--model", "tiny", "--size", "32",
        "--batch-size", "8", "--epochs", "1", "--device", "cpu", "--log-json", str(tmp_path / "log.jsonl"),
        "--checkpoint", str(tmp_path / "run.pt"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240, env=environment)

    assert child.returncode == 0, child.stderr
    assert child.stdout.count("epoch 1/1") == 1
    assert "tiny on 2 x cpu, float32: 48 images of 4 classes, 3 steps of 16" in child.stdout
    (entry,) = entries_of(tmp_path / "log.jsonl")
    assert entry["images"] == 48
    assert entry["top1"] > 0 and (entry["top1"] * 23) == pytest.approx(round(entry["top1"] * 23))
    assert weights(tmp_path / "run.pt").keys() == weights_of_one(photographs, tmp_path).keys()


def weights_of_one(photographs: Path, folder: Path) -> dict[str, torch.Tensor]:
    assert run(photographs / "train.lmdb", "--epochs", 1, "--limit-steps", 1, "--checkpoint", folder / "one.pt") == 0
    return weights(folder / "one.pt")


# --- Bad input ---


def test_datasets_that_do_not_suit_are_named(
    photographs: Path, thumbnails: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8)}], tmp_path / "images.lmdb")
    assert run(tmp_path / "images.lmdb") == 1
    assert "1 samples of image; expected image and label. Convert with --layout classes." in capsys.readouterr().err
    assert run(photographs / "train.lmdb", "--val", thumbnails) == 1
    assert "other classes than" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="epochs are empty"):
        assert run(photographs / "train.lmdb", "--batch-size", 64, "--epochs", 1) == 1
    assert "smaller than one batch" in capsys.readouterr().err


def test_each_process_of_a_node_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(OptionError, match="there are 2 CUDA devices here"):
        choose_device("cuda")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(OptionError, match=r"2 processes of this node would share it\. Use --device cuda\."):
        choose_device("cuda:0")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lr", "0"],
        ["--label-smoothing", "1"],
        ["--resume"],
        ["--progressive", "--preset", "cifar"],
        ["--tta", "crops", "--preset", "cifar"],
        ["--folder", "photos"],
    ],
)
def test_bad_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        train_classifier.main(["db", *arguments])
    assert exit_info.value.code == 2
    assert arguments[0] in capsys.readouterr().err
