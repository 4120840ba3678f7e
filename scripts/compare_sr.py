"""Trains networks on bicubic and on degraded pairs of scikit-image's photographs, and scores them on others."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import torch
from demos.superres import CROP_SIZE, HELD_OUT_PHOTOGRAPHS, TRAINING_PHOTOGRAPHS, ZOOM, copy_photographs, telling_crop
from PIL import Image, ImageDraw, ImageFont
from superresolution.models import Model, ModelName, build_model
from superresolution.training import cosine_rate, train_epoch
from torch import Tensor

import lmdbloader
from lmdbloader.errors import LmdbloaderError
from lmdbloader.superres import bicubic, degradations, merge_luma, predict, psnr, ssim
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomDihedral

SCALE, CROP, BATCH_SIZE = 2, 64, 4
# Steps that take a few minutes of one core; those of a light network take less time.
STEPS: dict[ModelName, int] = {"srcnn915": 3000, "espcn": 3000, "edsr-baseline": 400}
RATES = {"edsr-baseline": 4e-4}
PAIRS = ("bicubic", "real_esrgan")
# The demo's split, with one gray photograph more held out.
HELD_OUT = (*HELD_OUT_PHOTOGRAPHS, "camera.png")
# Degraded test images: the side of a center crop, and the number of draws of each.
TEST_SIDE, TEST_DRAWS = 192, 6
# Tests and the photographs of them that a picture shows.
DRAWN = (("bicubic", 0), ("bicubic", 2), ("real_esrgan", 12), ("real_esrgan", 17))
# Student's t for a 95 % confidence interval, by the number of seeds.
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}

Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Run:
    """One trained network: its CPU minutes, and its scores by test: mean PSNR in dB and mean SSIM, on luma."""

    model: str
    pairs: str
    seed: int
    steps: int
    minutes: float
    scores: dict[str, list[float]]


def degradation(*, fixed: bool = False) -> degradations.Degradation:
    """Return Real-ESRGAN's degradation without sharpening `hr`: tests compare with the original photographs."""
    return degradations.real_esrgan(SCALE, gt_usm=False, lq_usm=False, fixed=fixed)


def prepare(folder: Path) -> tuple[Path, Path]:
    """Make the datasets to train on and to test with, whole photographs with `lr` by bicubic."""
    import skimage.data

    home = Path(skimage.data.__file__).parent
    names = {"train": [n for n in TRAINING_PHOTOGRAPHS if n not in HELD_OUT], "test": HELD_OUT}
    for split, chosen in names.items():
        if not (folder / f"{split}.lmdb").exists():
            copy_photographs([home / name for name in chosen], folder / split)
            lmdbloader.convert(folder / split, folder / f"{split}.lmdb", layout="images", scale=SCALE)
    return folder / "train.lmdb", folder / "test.lmdb"


def test_pairs(path: Path) -> dict[str, Pairs]:
    """Return the tests: whole photographs downscaled by bicubic, and degraded center crops of them."""
    whole = lmdbloader.LMDBDataset(path)
    hr = lmdbloader.LMDBDataset(path, fields=["hr"])
    degraded = [
        (lr.clone(), square.clone())
        for seed in range(TEST_DRAWS)
        for batch in lmdbloader.Loader(
            hr, len(hr), seed=seed, shuffle=False, transforms=[CenterCrop(TEST_SIDE), degradation(fixed=True)]
        )
        for lr, square in zip(batch.lr, batch.hr, strict=True)
    ]
    return {"bicubic": [tuple(whole[index]) for index in range(len(whole))], "real_esrgan": degraded}


def train(path: Path, name: ModelName, pairs: str, seed: int, steps: int) -> tuple[Model, float]:
    """Return a trained network, and the CPU minutes that it took."""
    torch.manual_seed(seed)
    model = build_model(name, SCALE)
    rate = RATES.get(name, 1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    is_degraded = pairs == "real_esrgan"
    dataset = lmdbloader.LMDBDataset(path, fields=["hr"] if is_degraded else None)
    loader = lmdbloader.Loader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        seed=seed,
        repeat=math.ceil(steps * BATCH_SIZE / len(dataset)),
        transforms=[RandomCrop(CROP), RandomDihedral(), *([degradation()] if is_degraded else [])],
        num_threads=1,
    )

    def before_step(step: int) -> None:
        optimizer.param_groups[0]["lr"] = cosine_rate(rate, step / steps)

    began = time.process_time()
    train_epoch(model, optimizer, islice(loader, steps), before_step=before_step)
    return model, (time.process_time() - began) / 60


def score(enlarge: Callable[[Tensor], Tensor], tests: dict[str, Pairs]) -> dict[str, list[float]]:
    """Return the mean PSNR and SSIM of each test, on luma."""
    found: dict[str, list[float]] = {}
    for name, pairs in tests.items():
        made = [(enlarge(lr), hr) for lr, hr in pairs]
        found[name] = [statistics.fmean(metric(*pair, scale=SCALE) for pair in made) for metric in (psnr, ssim)]
    return found


def run_all(folder: Path, results: Path, seeds: int) -> list[Run]:
    """Train and score every network that the results do not have yet, and write them after each."""
    runs = [Run(**run) for run in json.loads(results.read_text())["runs"]] if results.exists() else []
    known = {(run.model, run.pairs, run.seed) for run in runs}
    wanted = [(name, pairs, seed) for seed in range(seeds) for name in STEPS for pairs in PAIRS]
    missing = [run for run in wanted if run not in known]
    if not missing:
        return runs
    folder.mkdir(parents=True, exist_ok=True)
    training, held_out = prepare(folder)
    tests = test_pairs(held_out)
    if not runs:
        runs = [Run("bicubic", "", 0, 0, 0.0, score(lambda lr: bicubic(lr, SCALE), tests))]
    for name, pairs, seed in missing:
        model, minutes = train(training, name, pairs, seed, STEPS[name])
        scores = score(lambda lr, model=model: predict(model, lr), tests)  # type: ignore[misc]
        runs.append(Run(name, pairs, seed, STEPS[name], round(minutes, 2), scores))
        print(f"{name}, {pairs}, seed {seed}: {minutes:.1f} minutes, {scores}", file=sys.stderr, flush=True)
        torch.save(model.state_dict(), folder / f"{name}-{pairs}-{seed}.pt")
        content = {"torch": torch.__version__, "threads": torch.get_num_threads(), "runs": [asdict(r) for r in runs]}
        results.write_text(json.dumps(content, indent=1) + "\n")
    return runs


def interval(values: Sequence[float], digits: int) -> str:
    """Return the mean over the seeds, and the half width of its 95 % confidence interval."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    half = T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.{digits}f} ± {half:.{digits}f}"


def table(runs: Sequence[Run]) -> str:
    """Return the scores of all networks, and the differences that the seeds show, as Markdown."""
    lines = [
        "| network | trained on pairs by | minutes | PSNR, bicubic | SSIM | PSNR, `real_esrgan` | SSIM |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.pairs):
        groups.setdefault((run.model, run.pairs), []).append(run)
    for (model, pairs), group in groups.items():
        cells = [f"`{model}`" if pairs else model, pairs and (f"`{pairs}`" if "_" in pairs else pairs)]
        cells.append(f"{statistics.fmean(run.minutes for run in group):.1f}" if pairs else "")
        for test in PAIRS:
            for metric, digits in ((0, 2), (1, 3)):
                values = [run.scores[test][metric] for run in group]
                cells.append(interval(values, digits) if pairs else f"{values[0]:.{digits}f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| difference, of the same seeds | test | PSNR | SSIM |", "| --- | --- | ---: | ---: |"]
    small, *_, large = STEPS
    compared = [
        ((small, "bicubic"), ("bicubic", ""), "bicubic"),
        ((large, "bicubic"), (small, "bicubic"), "bicubic"),
        *(((name, "real_esrgan"), (name, "bicubic"), "real_esrgan") for name in STEPS),
    ]
    for better, worse, test in compared:
        both = list(zip(groups[better], cycle(groups[worse]), strict=False))
        names = [f"`{name}`" + f" trained on {of}" * (better[0] == worse[0]) for name, of in (better, worse)]
        gains = [
            interval([a.scores[test][metric] - b.scores[test][metric] for a, b in both], digits)
            for metric, digits in ((0, 2), (1, 3))
        ]
        lines.append(f"| {names[0]} over {names[1]} | {test} | {gains[0]} | {gains[1]} |")
    return "\n".join(lines)


def draw(folder: Path, path: Path) -> None:
    """Save what the networks of the first seed make of four held-out photographs, two of them degraded."""
    tests = test_pairs(prepare(folder)[1])

    def of_model(name: ModelName, pairs: str) -> Callable[[Tensor], Tensor]:
        model = build_model(name, SCALE)
        model.load_state_dict(torch.load(folder / f"{name}-{pairs}-0.pt", weights_only=True))
        return lambda lr: (
            merge_luma(bicubic(lr, SCALE), predict(model, lr)) if model.channels == 1 else predict(model, lr)
        )

    small, *_, large = STEPS
    before: tuple[str, Callable[[Tensor], Tensor]] = ("bicubic", lambda lr: bicubic(lr, SCALE))
    ways = {
        "bicubic": [before, *((name, of_model(name, "bicubic")) for name in (small, large))],
        "real_esrgan": [before, *((f"{large} on {pairs}", of_model(large, pairs)) for pairs in PAIRS)],
    }
    side, gap, caption, count = CROP_SIZE * ZOOM, 8, 22, len(DRAWN)
    sheet = Image.new("RGB", (4 * side + 5 * gap, count * (side + caption + gap) + gap), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row, (test, index) in enumerate(DRAWN):
        lr, hr = tests[test][index]
        images = [(name, way(lr)) for name, way in ways[test]]
        y, x = telling_crop(images[0][1], images[-1][1])
        titles = [f"{name}  {psnr(image, hr, scale=SCALE):.2f} dB" for name, image in images]
        for column, (title, image) in enumerate([*zip(titles, [i for _, i in images], strict=True), ("original", hr)]):
            crop = image[:, y : y + CROP_SIZE, x : x + CROP_SIZE].permute(1, 2, 0).numpy()
            left, top = gap + column * (side + gap), gap + row * (side + caption + gap)
            pen.text((left, top), title, fill="black", font=font)
            sheet.paste(Image.fromarray(crop).resize((side, side), Image.Resampling.NEAREST), (left, top + caption))
    sheet.save(path, optimize=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="With complete RESULTS, only the table is printed.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for datasets and weights; made if it is missing")
    parser.add_argument(
        "--results", type=Path, metavar="RESULTS", help="JSON of all scores, continued (default: FOLDER/results.json)"
    )
    parser.add_argument("--seeds", type=int, choices=range(1, max(T) + 1), default=3, help="default: %(default)s")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="save what the first seed makes of photographs; needs its weights"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        print(table(run_all(options.folder, options.results or options.folder / "results.json", options.seeds)))
        if options.picture:
            draw(options.folder, options.picture)
    except (LmdbloaderError, OSError) as error:
        print(f"compare_sr: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
