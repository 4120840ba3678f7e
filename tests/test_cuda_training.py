"""The training scripts on a CUDA device: mixed precision, compiled models, resumed runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_device import DEVICE, NEEDS_CUDA
from loading_scripts import interrupt_at_save, load_script

import lmdbloader

pytestmark = NEEDS_CUDA

train_sr = load_script("train_sr")
train_classifier = load_script("train_classifier")


def smooth(rng: np.random.Generator, side: int) -> np.ndarray:
    """An image (side, side, 3) uint8 of slopes and a little noise: what a model can learn to enlarge."""
    slopes = rng.random((side, side, 3)).cumsum(axis=0).cumsum(axis=1)
    return (255 * (0.95 * slopes / slopes.max() + 0.05 * rng.random(slopes.shape))).astype(np.uint8)


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "patches.lmdb"
    rng = np.random.default_rng(0)

    def pairs(count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            hr = smooth(rng, 48)
            yield {"lr": hr.reshape(24, 2, 24, 2, 3).mean(axis=(1, 3)).astype(np.uint8), "hr": hr}

    lmdbloader.write(pairs(48), path)
    return path


def write_classes(path: Path, count: int, seed: int) -> Path:
    """Write images of four classes, whose colors tell them."""
    rng = np.random.default_rng(seed)

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(count):
            image = rng.integers(0, 100, (40, 40, 3), np.uint8)
            image[..., number % 2 :: 2] += 75 * (1 + number // 2 % 2)
            yield {"image": image, "label": number % 4}

    lmdbloader.write(samples(), path, classes={"label": ["a", "b", "c", "d"]})
    return path


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    write_classes(folder / "train.lmdb", 96, 0)
    write_classes(folder / "val.lmdb", 40, 1)
    return folder


def run_sr(*arguments: object, device: str = DEVICE) -> int:
    fixed = ("--device", device, "--num-threads", 2, "--batch-size", 8)
    return int(train_sr.main([str(argument) for argument in (*fixed, *arguments)]))


def run_classifier(*arguments: object, device: str = DEVICE) -> int:
    fixed = ("--device", device, "--num-threads", 2, "--model", "tiny", "--batch-size", 16, "--size", 32)
    return int(train_classifier.main([str(argument) for argument in (*fixed, *arguments)]))


def entries(log: Path) -> list[dict[str, float]]:
    return [entry for line in log.read_text().splitlines() if "epoch" in (entry := json.loads(line))]


def model_of(path: Path) -> dict[str, torch.Tensor]:
    content = torch.load(path, weights_only=True, map_location="cpu")["model"]
    assert isinstance(content, dict)
    return content


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], *, share: float) -> None:
    """Assert that weights differ by no more than a share of their size: sums on the device have no fixed order."""
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        distance = float((found[key].double() - tensor.double()).norm())
        assert distance <= share * float(tensor.double().norm()) + 1e-4, f"{key}: {distance}"


# --- Super-resolution ---


@pytest.mark.parametrize("model", ["srcnn915"])
def test_a_super_resolution_model_trains_as_on_the_cpu(
    patches: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for device in (DEVICE, "cpu"):
        assert run_sr(patches, "--val", patches, "--model", model, "--epochs", 2, device=device) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{model} x2 on {device}")
        losses[device] = [float(re.search(r"loss (\S+)", line)[1]) for line in lines[2:4]]  # type: ignore[index]
        assert len(losses[device]) == 2
        for line in lines[2:4]:
            assert re.search(r"PSNR \d+\.\d\d dB .* ms/step \(data \d+%, copy \d+%, forward \d+%", line), line
    # bfloat16 has 8 bits of precision.
    assert losses[DEVICE] == pytest.approx(losses["cpu"], rel=0.1)


def test_a_super_resolution_run_that_is_resumed_within_an_epoch(
    patches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (patches, "--epochs", 2, "--limit-steps", 3, "--checkpoint-steps", 1, "--checkpoint")
    assert run_sr(*options, tmp_path / "unbroken.pt") == 0
    with monkeypatch.context() as patch:
        interrupt_at_save(patch, train_sr, 5)  # two in each epoch, and one after it
        assert run_sr(*options, tmp_path / "broken.pt") == 130
    capsys.readouterr()
    torch.rand(7, device=DEVICE)
    assert run_sr(*options, tmp_path / "broken.pt", "--resume") == 0
    assert "after epoch 1 and 2 steps" in capsys.readouterr().out
    assert_close(model_of(tmp_path / "broken.pt"), model_of(tmp_path / "unbroken.pt"), share=0.02)
    # What the device has written the CPU goes on with.
    more = (patches, "--epochs", 3, "--limit-steps", 3, "--checkpoint-steps", 1, "--checkpoint")
    assert run_sr(*more, tmp_path / "broken.pt", "--resume", device="cpu") == 0


# --- Classifiers ---


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--amp", "bf16", "--data-device", "cpu"),
        ("--amp", "fp16", "--no-channels-last", "--blur-pool"),
        ("--amp", "fp32", "--order", "quasi_random"),
        ("--progressive", "--delay-fraction", 0.25, "--finetune-fraction", 0.25, "--size-increment", 8),
    ],
    ids=str,
)
def test_a_classifier_trains_in_every_precision(
    classes: Path, options: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, train, val = tmp_path / "log.jsonl", classes / "train.lmdb", classes / "val.lmdb"
    epochs = ("--epochs", 8, "--warmup", 2, "--lr", 1)
    assert run_classifier(train, "--val", val, *epochs, "--log-json", log, *options) == 0
    first = capsys.readouterr().out.splitlines()[0]
    dtype = {"fp16": "float16", "fp32": "float32"}.get(str(options[1]) if options[:1] == ("--amp",) else "", "bfloat16")
    assert re.fullmatch(rf"tiny on {DEVICE}:0, {dtype}: 96 images of 4 classes, 6 steps of 16", first)
    found = entries(log)
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["val_loss"]) for entry in found)
    assert all(0 <= entry["data_share"] <= 1 and entry["images"] == 96 for entry in found)
    assert found[-1]["loss"] < found[0]["loss"]
    assert found[-1]["top1"] >= 0.5, "chance is 0.25"


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_a_classifier_that_is_resumed_within_an_epoch(
    classes: Path, tmp_path: Path, amp: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        classes / "train.lmdb", "--amp", amp, "--epochs", 2, "--limit-steps", 3, "--checkpoint-steps", 2,
        "--checkpoint",
    )  # fmt: skip
    assert run_classifier(*options, tmp_path / "unbroken.pt") == 0
    with monkeypatch.context() as patch:
        interrupt_at_save(patch, train_classifier, 3)  # one in each epoch, and one after it
        assert run_classifier(*options, tmp_path / "broken.pt") == 130
    assert run_classifier(*options, tmp_path / "broken.pt", "--resume") == 0
    assert "after epoch 1 and 2 steps" in capsys.readouterr().out
    broken, unbroken = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True, map_location="cpu") for name in ("broken", "unbroken")
    )
    assert bool(broken["scaler"]) == (amp == "fp16")
    assert broken["scaler"] == unbroken["scaler"]
    assert broken["loader"] == unbroken["loader"]
    assert_close(broken["model"], unbroken["model"], share=0.05)


# --- Compiled models ---
