"""Training: the command from end to end, runs that continue, where time is counted, scores, checkpoints, bad input."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading_scripts import interrupt_at_save, load_script
from PIL import Image
from superresolution import ResidualSR, build_model, train_step
from torch import Tensor

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.superres import (
    bicubic,
    evaluate,
    predict,
    psnr,
)
from lmdbloader.superres.evaluation import Evaluation, Scores, pair_scale, score

train_sr = load_script("train_sr")
Pairs = list[tuple[Tensor, Tensor]]


def make_pairs(count: int, *, scale: int = 2, size: int = 12, channels: int = 3, dtype: type = np.uint8) -> Pairs:
    """A slope with noise on it, pairs whose LR image is the mean of each block."""
    rng = np.random.default_rng(0)
    peak = np.iinfo(dtype).max
    pairs = []
    for _ in range(count):
        hr = rng.random((channels, size, size)).cumsum(axis=1).cumsum(axis=2)
        hr = (0.95 * hr / hr.max() + 0.05 * rng.random(hr.shape)) * peak
        hr = hr.astype(dtype)
        lr = hr.reshape(channels, size // scale, scale, size // scale, scale).mean(axis=(2, 4)).astype(dtype)
        pairs.append((torch.from_numpy(lr), torch.from_numpy(hr)))
    return pairs


def batch_of(pairs: Pairs) -> tuple[Tensor, Tensor]:
    return torch.stack([lr for lr, _ in pairs]), torch.stack([hr for _, hr in pairs])


@pytest.fixture(scope="module")
def patches(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("datasets") / "patches.lmdb"
    lmdbloader.convert(photos, path, patch_size=48, stride=96, scale=2, workers=1)
    return path


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two photographs of different size, stored whole."""
    folder = tmp_path_factory.mktemp("datasets")
    (folder / "photos").mkdir()
    for name, right, bottom in [("wide", 124, 88), ("tall", 110, 106)]:
        Image.open(photos / "coffee.png").crop((60, 40, right, bottom)).save(folder / "photos" / f"{name}.png")
    lmdbloader.convert(folder / "photos", folder / "whole.lmdb", layout="images", scale=2, workers=1)
    return folder / "whole.lmdb"


def run(*arguments: object) -> int:
    status = train_sr.main([str(argument) for argument in ("--device", "cpu", "--num-threads", 1, *arguments)])
    assert isinstance(status, int)
    return status


# --- The command ---


@pytest.mark.parametrize("model", ["srcnn915", "srcnn955", "residual"])
def test_an_epoch_prints_loss_scores_and_where_the_time_went(
    model: str, patches: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(patches, "--val", whole, "--model", model, "--epochs", 2, "--limit-steps", 1, "--batch-size", 2) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{model} x2 on cpu: ")
    assert re.fullmatch(r"bicubic on 2 images: PSNR \d\d\.\d\d dB, SSIM 0\.\d{4}", lines[1])
    for number, line in enumerate(lines[2:], start=1):
        assert re.fullmatch(
            rf"epoch {number}/2  loss \d\.\d+e-\d+  PSNR \d+\.\d\d dB \([+-]\d+\.\d\d to bicubic\)  "
            r"SSIM 0\.\d{4} \([+-]\d\.\d{4}\)  \d+\.\d ms/step "
            r"\(data \d+%, copy \d+%, forward \d+%, backward \d+%, update \d+%\)",
            line,
        )
    assert len(lines) == 4


@pytest.mark.parametrize("crop", [(), ("--crop", 16, "--repeat", 3)])
def test_a_run_resumed_within_an_epoch_ends_where_an_unbroken_one_does(
    crop: tuple[object, ...],
    patches: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = whole if crop else patches
    options = (source, *crop, "--epochs", 2, "--limit-steps", 3, "--batch-size", 2, "--checkpoint-steps", 1)
    assert run(*options, "--checkpoint", tmp_path / "unbroken.pt") == 0
    with monkeypatch.context() as patch:
        interrupt_at_save(patch, train_sr, 5)  # two in each epoch, and one after it
        assert run(*options, "--checkpoint", tmp_path / "broken.pt") == 130
    assert "continue with --resume" in capsys.readouterr().err
    place = torch.load(tmp_path / "broken.pt", weights_only=True)["loader"]
    assert (place["epoch"], place["position"]) == (1, 4)
    torch.rand(7)
    assert run(*options, "--checkpoint", tmp_path / "broken.pt") == 1, "it is not overwritten unasked"
    assert run(*options, "--checkpoint", tmp_path / "broken.pt", "--resume") == 0

    unbroken, resumed = (torch.load(tmp_path / name, weights_only=True) for name in ("unbroken.pt", "broken.pt"))
    assert unbroken["loader"] == resumed["loader"]
    for key, weights in unbroken["model"].items():
        assert torch.equal(weights, resumed["model"][key]), key
    capsys.readouterr()
    assert run(*options, "--lr", 0.5, "--checkpoint", tmp_path / "broken.pt", "--resume") == 1
    assert "lr=0.001" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "--checkpoint FILE"),
        (["--checkpoint-steps", "5"], "--checkpoint-steps needs a file"),
        (["--lr", "0"], "--lr: must be a number above 0"),
        (["--crop", "0"], "must be 1 or more"),
    ],
)
def test_bad_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run("dataset", *arguments)

    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_datasets_that_do_not_suit_are_named(
    photos: Path, patches: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lmdbloader.convert(photos, tmp_path / "images.lmdb", layout="images", workers=1)
    lmdbloader.convert(photos, tmp_path / "x3.lmdb", layout="images", scale=3, workers=1)
    for arguments, message in [
        ((tmp_path / "images.lmdb",), "images.lmdb: a sample must be"),
        ((patches, "--val", tmp_path / "x3.lmdb"), "x3.lmdb: scale 3"),
        ((whole, "--batch-size", 2), "different shapes, hr of 50 to 64 by 48 to 66 pixels"),
        ((tmp_path / "absent.lmdb",), "absent.lmdb"),
    ]:
        assert run(*arguments) == 1
        assert message in capsys.readouterr().err


def test_one_of_several_scales_is_trained(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several, single = tmp_path / "x24.lmdb", tmp_path / "x4.lmdb"
    lmdbloader.convert(photos, several, layout="images", scale=[2, 4], workers=1)
    lmdbloader.convert(photos, single, layout="images", scale=4, workers=1)
    printed = []
    for path in (several, single):
        steps = ("--crop", 32, "--epochs", 1, "--limit-steps", 1, "--batch-size", 2)
        assert run(path, "--val", path, "--scale", 4, *steps) == 0
        printed.append(re.findall(r"loss \S+|PSNR \S+", capsys.readouterr().out))
    assert printed[0] == printed[1] != []
    assert run(several) == 1
    assert "Choose one: --scale 4" in capsys.readouterr().err
    assert run(several, "--scale", 3) == 1
    assert "lmdbloader.convert" not in capsys.readouterr().err
    assert run(single, "--scale", 2) == 1
    assert "has scale 4" in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"LMDBDataset\(path, fields=\['lr4', 'hr'\]\)"):
        pair_scale(lmdbloader.LMDBDataset(several))
    assert pair_scale(lmdbloader.LMDBDataset(several, fields=["lr2", "hr"])) == 2


# --- Crops of whole images ---


def test_crops_of_whole_images_are_trained_on_and_an_epoch_reads_as_many_pixels_as_there_are(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The photographs have 64 x 48 and 50 x 66 pixels."""
    assert run(whole, "--val", whole, "--crop", 16, "--epochs", 1, "--batch-size", 8) == 0
    note, line = capsys.readouterr().out.splitlines()[:2]
    assert note.startswith("note: ")  # it scores on what it trains on
    assert line == "srcnn915 x2 on cpu: 2 pairs, 12 crops of 16 x 16 of each, 3 steps an epoch"

    assert run(whole, "--crop", 48, "--epochs", 1, "--repeat", 1, "--no-augment") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("2 pairs, 1 crop of 48 x 48 of each, 1 steps an epoch")


@pytest.mark.parametrize("options", [(), ("--no-augment",)])
def test_every_crop_is_another_window_and_that_of_lr_is_the_same(
    options: tuple[str, ...], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    train = train_sr.train_epoch

    def keep(model: object, optimizer: object, batches: Iterable[tuple[Tensor, Tensor]], **hooks: Any) -> object:
        seen.extend(kept := list(batches))
        return train(model, optimizer, kept, **hooks)

    monkeypatch.setattr(train_sr, "train_epoch", keep)
    assert run(whole, "--crop", 16, "--repeat", 5, "--epochs", 2, "--batch-size", 10, *options) == 0

    assert [tuple(image.shape) for pair in seen for image in pair] == [(10, 3, 8, 8), (10, 3, 16, 16)] * 2
    assert len({hr.numpy().tobytes() for _, crops in seen for hr in crops}) > 15
    for lr, hr in seen:
        # Shifted by a pixel, these photographs differ by several times as much.
        means = torch.nn.functional.avg_pool2d(hr.float(), 2)
        here = (means - lr.float()).abs().mean()
        shifted = (means.roll(1, -1) - lr.float()).abs().mean()
        assert here < 0.5 * shifted


# --- Steps ---


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (3, np.uint16)])
@pytest.mark.parametrize("name", ["srcnn915", "residual"])
def test_grey_and_16_bit_images_train_and_score(name: str, channels: int, dtype: type) -> None:
    model = build_model("srcnn915", 2) if name == "srcnn915" else ResidualSR(2, num_features=4, num_blocks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    pairs = make_pairs(2, size=24, channels=channels, dtype=dtype)
    loss = train_step(model, optimizer, *batch_of(pairs))
    scores = evaluate(model, pairs, 2)

    assert 0 < loss.item() < 0.1
    # Untrained, both are bicubic but for SRCNN's luma being rounded after and not before.
    assert scores.model.psnr == pytest.approx(scores.bicubic.psnr, abs=0.2)


# --- Scores ---


def test_scores_are_those_of_each_image_against_its_original() -> None:
    model = ResidualSR(2, num_features=4, num_blocks=1)
    torch.nn.init.normal_(model.tail.weight, std=0.01)
    pairs = [*make_pairs(2, size=24), *make_pairs(1, size=30)]
    scores = evaluate(model, pairs, 2)

    assert scores.model.psnrs == tuple(psnr(predict(model, lr), hr, scale=2) for lr, hr in pairs)
    assert scores.bicubic.psnrs == tuple(psnr(bicubic(lr, 2), hr, scale=2) for lr, hr in pairs)
    assert scores.gain == pytest.approx(np.mean(scores.model.psnrs) - np.mean(scores.bicubic.psnrs))
    assert scores.model.psnr != scores.bicubic.psnr


def test_images_that_are_exact_are_not_in_the_mean_psnr() -> None:
    grey = (torch.full((3, 12, 12), 90, dtype=torch.uint8), torch.full((3, 24, 24), 90, dtype=torch.uint8))
    pairs = [*make_pairs(2, size=24), grey]
    baseline = score(lambda lr: bicubic(lr, 2), pairs, 2)
    assert baseline.psnrs[2] == math.inf
    assert baseline.num_exact == 1
    assert baseline.psnr == pytest.approx(np.mean(baseline.psnrs[:2]))
    assert (Scores((math.inf,), (1.0,)).psnr, Scores((math.inf,), (1.0,)).num_exact) == (math.inf, 1)

    # The model enlarges the grey image with an error: it counts for neither, so that the means are of the same images.
    found = Evaluation(model=Scores((31.0, 35.0, 60.0), baseline.ssims), bicubic=baseline)
    assert found.psnrs == (33.0, baseline.psnr)
    assert found.gain == pytest.approx(33.0 - baseline.psnr)
    exact = Scores((math.inf,), (1.0,))
    assert Evaluation(model=exact, bicubic=exact).gain == 0
