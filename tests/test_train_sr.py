"""Training: the command from end to end, runs that continue, where time is counted, scores, checkpoints, bad input."""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loading_scripts import interrupt_at_save, load_script
from PIL import Image
from superresolution import EDSR, build_model, train_step, training
from superresolution.data import DegradedImages
from superresolution.scoring import score_with
from superresolution.training import average_weights
from torch import Tensor

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.superres import bicubic, degradations, evaluate, merge_luma, predict, psnr
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


@pytest.mark.parametrize("model", ["srcnn915", "srcnn955", "espcn", "edsr-small", "swinir-light"])
def test_an_epoch_prints_loss_scores_and_where_the_time_went(
    model: str, patches: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(patches, "--val", whole, "--model", model, "--epochs", 2, "--limit-steps", 1, "--batch-size", 2) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{model} x2 on cpu: ")
    assert re.fullmatch(r"bicubic on 2 images: PSNR \d\d\.\d\d dB, SSIM 0\.\d{4}", lines[1])
    for number, line in enumerate(lines[2:4], start=1):
        assert re.fullmatch(
            rf"epoch {number}/2  loss \d\.\d+e-\d+  PSNR \d+\.\d\d dB \([+-]\d+\.\d\d to bicubic\)  "
            r"SSIM 0\.\d{4} \([+-]\d\.\d{4}\)  [\d,]+\.\d ms/step "
            r"\(data \d+%, copy \d+%, forward \d+%, backward \d+%, update \d+%\)",
            line,
        )
    assert lines[4].split() == ["PSNR", "Y", "SSIM", "Y", "PSNR", "RGB", "SSIM", "RGB"]
    assert [line.split()[0] for line in lines[5:]] == ["bicubic", model]
    scores = re.search(r"PSNR (\S+) dB \(.*SSIM (\S+) ", lines[3])
    assert scores is not None
    assert lines[6].split()[1:3] == list(scores.groups())


@pytest.mark.parametrize(
    "crop", [(), ("--crop", 16, "--repeat", 3), ("--crop", 16, "--repeat", 3, "--ema", 0.5, "--loss", "charbonnier")]
)
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
    assert ("trained" in unbroken) == ("--ema" in crop)
    for part in {"model", "trained"} & unbroken.keys():
        for key, weights in unbroken[part].items():
            assert torch.equal(weights, resumed[part][key]), (part, key)
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
        (["--ema", "1"], "--ema: must be below 1"),
        (["--tile", "64"], "--tile needs images to score"),
        (["--loss", "ssim"], "--loss: invalid choice"),
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


# --- Degradations ---


@pytest.fixture(scope="module")
def photographs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two photographs of different size, whose sides are no multiples of 4, without `lr`."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "photos").mkdir()
    for name, size in [("astronaut.png", (63, 50)), ("coffee.png", (58, 66))]:
        with Image.open(photos / name) as image:
            image.crop((20, 20, 20 + size[0], 20 + size[1])).save(folder / "photos" / name)
    lmdbloader.convert(folder / "photos", folder / "hr.lmdb", workers=1, layout="images")
    return folder / "hr.lmdb"


@pytest.mark.parametrize("name", ["real_esrgan", "bsrgan"])
def test_lr_is_made_by_a_degradation_and_whole_images_are_scored(
    name: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (photographs, "--val", photographs, "--crop", 32, "--degradation", name, "--batch-size", 2)
    options = (*options, "--repeat", 4, "--epochs", 2, "--checkpoint-steps", 1)
    assert run(*options, "--checkpoint", tmp_path / "unbroken.pt") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "srcnn915 x4 on cpu: 2 images, 4 crops of 32 x 32 of each, 4 steps an epoch"
    assert lines[2] == f"lr is made by {name}(scale=4)"
    assert lines[3].startswith(f"bicubic on 2 images, degraded by {name}: PSNR ")

    with pytest.MonkeyPatch.context() as patch:
        interrupt_at_save(patch, train_sr, 5)
        assert run(*options, "--checkpoint", tmp_path / "broken.pt") == 130
    assert run(*options, "--checkpoint", tmp_path / "broken.pt", "--resume") == 0
    unbroken, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("unbroken", "broken"))
    assert all(torch.equal(weights, resumed["model"][key]) for key, weights in unbroken["model"].items())
    capsys.readouterr()
    assert run(*options, "--scale", 2, "--checkpoint", tmp_path / "broken.pt", "--resume") == 1
    assert f"degradation={name}(scale=4)" in capsys.readouterr().err.replace("'", "")


def test_images_to_score_are_degraded_alike_at_every_reading_and_each_in_its_own_way(photographs: Path) -> None:
    dataset = lmdbloader.LMDBDataset(photographs)
    images = DegradedImages(dataset, degradations.real_esrgan(4, gt_usm=False, lq_usm=False, fixed=True))
    pairs = [images[index] for index in range(len(images))]

    assert [tuple(image.shape) for pair in pairs for image in pair] == [
        (3, 12, 15), (3, 48, 60), (3, 16, 14), (3, 64, 56)
    ]  # fmt: skip
    for index, (lr, hr) in enumerate(pairs):
        assert torch.equal(images[index][0], lr)
        height, width = hr.shape[1:]
        assert torch.equal(dataset[index][0][:, :height, :width], hr)


def test_the_other_ways_to_name_a_degradation(
    photographs: Path, whole: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = tmp_path / "options.toml"
    options.write_text("scale = 2\n[degradations]\nresize_range = [0.5, 1.5]\njpeg_range = [50, 95]\n")
    quick = ("--epochs", 1, "--limit-steps", 1, "--batch-size", 2)
    if sys.version_info >= (3, 11):
        assert run(photographs, "--crop", 16, "--degradation", options, "--val", whole, *quick) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1] == "lr is made by neosr(scale=2, jpeg_range=(50, 95))"
        assert lines[2].startswith("bicubic on 2 images: "), "pairs are scored as they are stored"
    assert run(whole, "--crop", 16, "--degradation", "bsrgan", *quick) == 0, "of pairs, hr is degraded"
    assert "lr is made by bsrgan(" in capsys.readouterr().out
    image = np.zeros((32, 32, 3), np.uint8)
    stereo = tmp_path / "stereo.lmdb"
    lmdbloader.write([{"one": image, "two": image}], stereo)
    for arguments, message in [
        (
            (stereo, "--crop", 16, "--degradation", "bsrgan"),
            "expected a dataset with one image field, found one, two",
        ),
        ((photographs, "--crop", 16, "--degradation", "esrgan"), "expected real_esrgan, bsrgan"),
        ((photographs, "--crop", 16, "--degradation", "bsrgan(blur=1)"), "blur"),
        ((photographs, "--crop", 16), "write --degradation real_esrgan"),
        ((photographs, "--crop", 16, "--degradation", "bsrgan", "--val", whole), "whole.lmdb: scale 2; bsrgan"),
        ((photographs, "--crop", 18, "--degradation", "bsrgan"), "--crop 18: expected a multiple of 4"),
    ]:
        assert run(*arguments) == 1
        assert message in capsys.readouterr().err


# --- Steps ---


@pytest.mark.parametrize(
    ("loss", "expected"), [("l1", 0.25), ("mse", 0.125), ("charbonnier", (0.001 + math.hypot(0.5, 0.001)) / 2)]
)
def test_the_losses(loss: str, expected: float) -> None:
    model = EDSR(2, num_features=4, num_blocks=1)  # untrained: bicubic
    lr, hr = torch.full((1, 3, 8, 8), 0.5), torch.full((1, 3, 16, 16), 0.5)
    hr[..., :8] = 1
    found = train_step(model, torch.optim.SGD(model.parameters(), lr=0), lr, hr, loss=loss)

    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_averaged_weights_follow_the_models() -> None:
    model = EDSR(2, num_features=4, num_blocks=1)
    average = copy.deepcopy(model).requires_grad_(False)
    first = [weights.clone() for weights in model.parameters()]
    for weights in model.parameters():
        weights.data += 1
    average_weights(average, model, 0.75)

    for found, before in zip(average.parameters(), first, strict=True):
        torch.testing.assert_close(found, before + 0.25)


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (3, np.uint16)])
@pytest.mark.parametrize("name", ["srcnn915", "edsr"])
def test_grey_and_16_bit_images_train_and_score(name: str, channels: int, dtype: type) -> None:
    model = build_model("srcnn915", 2) if name == "srcnn915" else EDSR(2, num_features=4, num_blocks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    pairs = make_pairs(2, size=24, channels=channels, dtype=dtype)
    loss = train_step(model, optimizer, *batch_of(pairs))
    scores = evaluate(model, pairs, 2)

    assert 0 < loss.item() < 0.1
    # Untrained, both are bicubic but for SRCNN's luma being rounded after and not before.
    assert scores.model.psnr == pytest.approx(scores.bicubic.psnr, abs=0.2)


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint16, 5), (np.float32, 3)])
def test_bands_and_floats_are_refused_before_training(
    dtype: type, channels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [{"lr": np.ones((8, 8, channels), dtype), "hr": np.ones((16, 16, channels), dtype)}] * 2
    kinds = {"lr": lmdbloader.fields.Image(), "hr": lmdbloader.fields.Image()}
    lmdbloader.write(images, tmp_path / "bands.lmdb", fields=kinds)
    assert run(tmp_path / "bands.lmdb", "--epochs", 1) != 0
    assert f"images of torch.{np.dtype(dtype)} with {channels} channels" in capsys.readouterr().err


# --- Scores ---


def test_the_last_table_scores_averaged_weights_the_mean_of_8_and_perceptual_metrics(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for `lpips`, whose networks need weights from the internet."""

    class LPIPS(torch.nn.Module):
        def __init__(self, net: str, verbose: bool) -> None:
            super().__init__()
            assert net == "alex"

        def forward(self, image: Tensor, reference: Tensor) -> Tensor:
            assert min(image.min(), reference.min()) < -0.5 and image.shape[1] == 3
            return (image - reference).square().mean().view(1, 1, 1, 1)

    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=LPIPS))
    monkeypatch.setitem(sys.modules, "piq", None)
    options = (whole, "--crop", 16, "--epochs", 1, "--val", whole, "--ema", 0.9, "--checkpoint", tmp_path / "sr.pt")
    assert run(*options, "--self-ensemble", "--perceptual", "--tile", 20) == 0
    printed = capsys.readouterr().out
    assert "note: an average with --ema 0.9 spans some 10 steps, and this run has 2: " in printed
    lines = printed.splitlines()[-4:]
    assert lines[0].split()[-1] == "LPIPS"
    names, numbers = zip(*(re.split(r"\s{2,}", line, maxsplit=1) for line in lines[1:]), strict=True)
    assert names == ("bicubic", "srcnn915", "srcnn915, mean of 8")

    model = build_model("srcnn915", 2)
    model.load_state_dict(torch.load(tmp_path / "sr.pt", weights_only=True)["model"])
    dataset = lmdbloader.LMDBDataset(whole)
    means = [score(lambda lr, way=way: way(lr), dataset, 2).psnr for way in (
        lambda lr: predict(model, lr), lambda lr: predict(model, lr, self_ensemble=True)
    )]  # fmt: skip
    for found, expected in zip(numbers[1:], means, strict=True):
        assert float(found.split()[0]) == pytest.approx(expected, abs=0.006)

    monkeypatch.setitem(sys.modules, "lpips", None)
    assert run(*options[:-2], "--perceptual") == 1
    assert "pip install lpips piq" in capsys.readouterr().err


def test_scores_on_rgb_are_those_of_the_colors_that_luma_gets_from_bicubic() -> None:
    pairs = make_pairs(2, size=24)
    model = build_model("srcnn915", 2)
    found = score_with(lambda lr: predict(model, lr), pairs, 2, {})
    shown = [merge_luma(bicubic(lr, 2), predict(model, lr)) for lr, _ in pairs]

    assert found["PSNR Y"] == pytest.approx(np.mean([psnr(predict(model, lr), hr, scale=2) for lr, hr in pairs]))
    errors = [
        (image.double() - hr.double())[:, 2:-2, 2:-2].square().mean()
        for image, (_, hr) in zip(shown, pairs, strict=True)
    ]
    assert found["PSNR RGB"] == pytest.approx(np.mean([10 * math.log10(255**2 / error) for error in errors]))
    assert list(score_with(lambda lr: bicubic(lr, 2), make_pairs(1, size=24, channels=1), 2, {})) == [
        "PSNR Y",
        "SSIM Y",
    ]


class Sharpening(torch.nn.Module):
    """Sees one pixel to each side; its result depends on how the image lies."""

    channels, scale, upscales = 3, 2, True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, 12, 3, padding=1, padding_mode="replicate")

    def forward(self, images: Tensor) -> Tensor:
        return torch.nn.functional.pixel_shuffle(self.layer(images).sigmoid(), 2)


@pytest.mark.parametrize(("tile", "overlap"), [(7, 1), (5, 3), (64, 0), (1, 1)])
@pytest.mark.parametrize("self_ensemble", [False, True])
def test_tiles_are_those_of_the_whole_image(tile: int, overlap: int, self_ensemble: bool) -> None:
    model = Sharpening()
    image = torch.randint(0, 256, (3, 13, 17), dtype=torch.uint8)
    whole = predict(model, image, self_ensemble=self_ensemble)

    found = predict(model, image, tile=tile, overlap=overlap, self_ensemble=self_ensemble)
    assert found.shape == (3, 26, 34)
    assert (found.int() - whole.int()).abs().max() <= 1  # rounding
    assert not torch.equal(predict(model, image, tile=7, overlap=0), predict(model, image))


def test_the_mean_of_8_flips_and_turns_does_not_depend_on_how_the_image_lies() -> None:
    model = Sharpening()
    image = torch.randint(0, 256, (3, 9, 12), dtype=torch.uint8)
    large = predict(model, image, self_ensemble=True)

    for view in (lambda i: i.flip(-1), lambda i: i.rot90(1, (-2, -1)), lambda i: i.flip(-2).rot90(3, (-2, -1))):
        assert (predict(model, view(image), self_ensemble=True).int() - view(large).int()).abs().max() <= 1
    assert (predict(model, image.flip(-1)).int() - predict(model, image).flip(-1).int()).abs().max() > 3
    for wrong in ({"tile": 0}, {"tile": 2.5}, {"overlap": -1}, {"self_ensemble": "no"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            predict(model, image, **wrong)
    for no_image in (image[None], image.permute(1, 2, 0), image.numpy(), image[:2], None):
        with pytest.raises(OptionError, match=r"expected one image, a tensor of shape \(1 or 3, h, w\); found"):
            predict(model, no_image)  # type: ignore[arg-type]
    for wrong_floats in (lambda: predict(model, image * 1.0), lambda: bicubic(image * 1.0, 2)):
        with pytest.raises(OptionError, match=r"values up to 2\d\d; expected 0..1"):
            wrong_floats()
    model.layer.weight.data.fill_(float("nan"))
    with pytest.raises(OptionError, match="Sharpening returned NaN"):
        evaluate(model, [(image, image)], 2)
    with pytest.raises(OptionError, match=r"Conv2d has no attribute channels, scale, upscales. Set model.scale"):
        predict(torch.nn.Conv2d(3, 3, 3), image)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Conv2d has no attribute channels"):
        evaluate(torch.nn.Conv2d(3, 3, 3), [(image, image)], 1)  # type: ignore[arg-type]


def test_scores_are_those_of_each_image_against_its_original() -> None:
    model = EDSR(2, num_features=4, num_blocks=1)
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

    # The model enlarges the gray image with an error: it counts for neither, so that the means are of the same images.
    found = Evaluation(model=Scores((31.0, 35.0, 60.0), baseline.ssims), bicubic=baseline)
    assert found.psnrs == (33.0, baseline.psnr)
    assert found.gain == pytest.approx(33.0 - baseline.psnr)
    exact = Scores((math.inf,), (1.0,))
    assert Evaluation(model=exact, bicubic=exact).gain == 0


def test_a_run_reports_within_its_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])
    reports = training.Reports(50, 16)
    reports.start()
    lines = []
    for step in range(10):
        clock[0] += 2.0
        lines.append(reports.add("epoch 1/3", step + 1, torch.tensor(0.5)))
    assert lines[2] == "epoch 1/3: 3 of 50 steps, loss 5.000e-01, 8.0 pairs/s"
    assert [line is not None for line in lines] == [False, False, True] * 3 + [False]


def test_ctrl_c_before_the_first_checkpoint_says_that_nothing_was_kept(
    patches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_sr, "train_epoch", interrupt)
    assert run(patches, "--checkpoint", tmp_path / "run.pt") == 130
    assert "stopped; nothing was kept." in capsys.readouterr().err
    assert run(patches) == 130
    assert "nothing was kept: --checkpoint FILE" in capsys.readouterr().err
