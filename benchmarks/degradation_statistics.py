"""Compares the LR images of a Real-ESRGAN training step with those that a Loader gives, in their statistics.

The step's images come from BasicSR's own code: its RealESRGANDataset, and the `feed_data` of its RealESRGANModel, with
its option file. Its model draws factors, modes and orders once for a batch, so each batch has one image here, and there
is no pool. Both read the same squares of photographs equally often. It runs in the environment of `make
test-frameworks`: .venv-frameworks/bin/python benchmarks/degradation_statistics.py
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from common import photographs, print_sections, table
from PIL import Image

import lmdbloader
from lmdbloader.superres import degradations
from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip

F64 = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parent.parent
TRAINER = ROOT / ".trainers" / "BasicSR"
OPTION_FILE = TRAINER / "options" / "train" / "RealESRGAN" / "train_realesrgan_x4plus.yml"
SIDE, CROP, BANDS = 400, 256, 8  # the dataset crops 400 pixels, the model 256 of them
THEIRS, OURS = "Real-ESRGAN's step", "Loader"


def write_squares(folder: Path, count: int) -> None:
    """Write squares of the photographs that are large enough, as PNG files and as a dataset."""
    sources, rng = [photo for photo in photographs() if min(photo.shape[:2]) >= SIDE], np.random.default_rng(0)
    squares = []
    for number in range(count):
        source = sources[number % len(sources)]
        top, left = (int(rng.integers(side - SIDE + 1)) for side in source.shape[:2])
        squares.append(np.ascontiguousarray(source[top : top + SIDE, left : left + SIDE]))
        Image.fromarray(squares[-1]).save(folder / f"{number:03d}.png")
    (folder / "meta_info.txt").write_text("".join(f"{number:03d}.png\n" for number in range(count)))
    lmdbloader.write(({"image": square} for square in squares), folder / "hr.lmdb", codec="raw")


def of_their_step(folder: Path, count: int) -> npt.NDArray[np.uint8]:
    """Return LR images (count, 3, H, W) of RealESRGANDataset and RealESRGANModel."""
    sys.path[:0] = [str(TRAINER), str(ROOT / "tests")]
    import trainer_program

    trainer_program.supply_modules()
    import yaml
    from basicsr.data.realesrgan_dataset import RealESRGANDataset
    from basicsr.models.realesrgan_model import RealESRGANModel
    from basicsr.utils import DiffJPEG, USMSharp

    opt = yaml.safe_load(OPTION_FILE.read_text())
    train = opt["datasets"]["train"]
    train |= {"dataroot_gt": str(folder), "meta_info": str(folder / "meta_info.txt"), "io_backend": {"type": "disk"}}
    dataset, sharpen, known = RealESRGANDataset(train), USMSharp(), {}

    def sharpened(images: torch.Tensor) -> torch.Tensor:
        # Filters of 51 x 51 pixels take most of the time: squares are sharpened once, and the finished GT not at all.
        if images.shape[-1] != SIDE:
            return images
        key = hashlib.sha256(images.contiguous().numpy().tobytes()).digest()
        if key not in known:
            known[key] = sharpen(images)
        return known[key]

    model = object.__new__(RealESRGANModel)  # without its networks
    vars(model).update(opt=opt, is_train=True, device="cpu", jpeger=DiffJPEG(differentiable=False))
    vars(model).update(usm_sharpener=sharpened, _dequeue_and_enqueue=lambda: None)
    found = []
    with trainer_program.CpuForCuda(), torch.no_grad():
        for number in range(count):
            model.feed_data(torch.utils.data.default_collate([dataset[number % len(dataset)]]))
            found.append((model.lq[0] * 255).round().to(torch.uint8).numpy())
    return np.stack(found)


def of_loader(folder: Path, count: int) -> npt.NDArray[np.uint8]:
    """Return LR images (count, 3, H, W) of a Loader."""
    transforms = [RandomCrop(CROP), RandomHorizontalFlip(), degradations.from_yaml(OPTION_FILE)]
    loader = lmdbloader.Loader(folder / "hr.lmdb", 16, shuffle=True, seed=0, transforms=transforms, num_threads=1)
    found: list[npt.NDArray[np.uint8]] = []
    while len(found) * 16 < count:
        found += [batch.lr.numpy().copy() for batch in loader]
    return np.concatenate(found)[:count]


def statistics(images: npt.NDArray[np.uint8]) -> dict[str, F64]:
    """Return the statistics of each image (N, 3, H, W), by name."""
    values = images.astype(np.float64)
    luma = np.tensordot(values, [0.299, 0.587, 0.114], ([1], [0]))
    down, across = np.diff(luma, axis=1)[:, :, :-1], np.diff(luma, axis=2)[:, :-1]
    found = {"mean gradient": np.hypot(down, across).mean((1, 2))}
    # Immerkaer 1996: the mean of a filter that gives 0 for planes and for edges along the axes.
    rows = luma[:, :-2] - 2 * luma[:, 1:-1] + luma[:, 2:]
    laplacian = rows[:, :, :-2] - 2 * rows[:, :, 1:-1] + rows[:, :, 2:]
    found["noise level"] = np.sqrt(np.pi / 2) / 6 * np.abs(laplacian).mean((1, 2))
    side = luma.shape[1]
    window = np.hanning(side)[:, None] * np.hanning(side)
    power = np.abs(np.fft.fft2((luma - luma.mean((1, 2), keepdims=True)) * window)) ** 2
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    for band in range(BANDS):
        is_inside = (frequency > band / BANDS / 2) & (frequency <= (band + 1) / BANDS / 2)
        name = f"power at {band / BANDS / 2:.4g} to {(band + 1) / BANDS / 2:.4g} cycles a pixel, dB"
        found[name] = 10 * np.log10(power[:, is_inside].mean(1) + 1)
    for number, color in enumerate(("red", "green", "blue")):
        found[f"mean of {color}"] = values[:, number].mean((1, 2))
        found[f"deviation of {color}"] = values[:, number].std((1, 2))
    return found


def interval(values: F64) -> tuple[float, float, float]:
    """Return the mean, and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def compare(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield one section."""
    from scipy.stats import ks_2samp

    write_squares(folder, options.squares)
    makers: dict[str, Callable[[Path, int], npt.NDArray[np.uint8]]] = {THEIRS: of_their_step, OURS: of_loader}
    measured = {name: statistics(make(folder, options.samples)) for name, make in makers.items()}
    rows, figures = [], {}
    for name, theirs in measured[THEIRS].items():
        found = {arm: interval(measured[arm][name]) for arm in makers}
        p = float(ks_2samp(theirs, measured[OURS][name]).pvalue)
        cells = [f"{mean:.2f} ({low:.2f} to {high:.2f})" for mean, low, high in found.values()]
        rows.append([name, *cells, f"{p:.3f}"])
        figures[name] = {**found, "p": p}
    title = f"LR images of {options.samples} samples: mean, 95 % interval, Kolmogorov-Smirnov"
    yield title, figures, table(["statistic", *makers, "p"], rows, markdown=options.markdown)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--squares", type=int, default=64, help="squares of 400 pixels; samples are a multiple of them")
    parser.add_argument("--seed", type=int, default=0, help="of Real-ESRGAN's step")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="file for every figure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002 - their code draws from it
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        print_sections(partial(compare, options=options), "Statistics of degraded images", options)


if __name__ == "__main__":
    main()
