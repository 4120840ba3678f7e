"""Super-resolution: photographs into one dataset, reading speed, SRCNN trained on it, a comparison."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from superresolution.models import Model, build_model
from superresolution.training import cosine_rate, train_step
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import lmdbloader
from lmdbloader.errors import SourceError
from lmdbloader.images.decode import IMAGE_SUFFIXES
from lmdbloader.superres import Evaluation, StepTimer, bicubic, evaluate, luma, merge_luma, predict
from lmdbloader.transforms import RandomDihedral, ToDtype

SCALE = 2
PATCH_SIZE = 96
READ_BATCH_SIZE = 128
READ_PAIRS = 1024
READ_ROUNDS = 3
READ_SECONDS = 1.0
TRAIN_BATCH_SIZE = 4
LEARNING_RATE = 1e-3
# Photographs in scikit-image that are sharp. Both halves of the stereo pair (motorcycle) are on the training side.
TRAINING_PHOTOGRAPHS = (
    "brick.png",
    "camera.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
HELD_OUT_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png")
# A folder with hundreds of photographs would make this more than a demonstration.
MAX_TRAINING_PHOTOGRAPHS = 40
MAX_HELD_OUT_PHOTOGRAPHS = 5
CROP_SIZE = 72
ZOOM = 4


# --- Photographs ---


def find_photographs(folder: Path | None, output: Path) -> tuple[list[Path], list[Path]]:
    """Choose the photographs to train on and those to hold out.

    Args:
        folder: The user's folder, searched with its sub-folders; None takes those that scikit-image carries.
        output: Left out of the search.

    Returns:
        Training and held-out files: of the user's, the last tenth (1 to 5) is held out and at most 40 are trained on.

    Raises:
        SourceError: Fewer than two photographs can be used, or scikit-image is not installed.
    """
    if folder is None:
        try:
            import skimage.data
        except ImportError:
            raise SourceError(
                "the photographs come from scikit-image: pip install scikit-image, or use --images."
            ) from None
        home = Path(skimage.data.__file__).parent
        return [home / name for name in TRAINING_PHOTOGRAPHS], [home / name for name in HELD_OUT_PHOTOGRAPHS]
    files = [path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    files = sorted((path for path in files if output.resolve() not in path.resolve().parents), key=os.fsencode)
    photographs = [path for path in files if is_usable(path)]
    if len(photographs) < 2:
        raise SourceError(
            f"{folder}: {len(photographs)} of {len(files)} images can be used; the demo needs two or more "
            f"8-bit RGB or gray photographs of at least {PATCH_SIZE} x {PATCH_SIZE} pixels."
        )
    num_held_out = max(1, len(photographs) // 10)
    training, held_out = photographs[:-num_held_out], photographs[-num_held_out:]
    return evenly(training, MAX_TRAINING_PHOTOGRAPHS), evenly(held_out, MAX_HELD_OUT_PHOTOGRAPHS)


def is_usable(path: Path) -> bool:
    """Return whether a file's header is that of an 8-bit RGB or gray image with room for a patch."""
    try:
        with Image.open(path) as image:
            return image.mode in ("RGB", "L") and min(image.size) >= PATCH_SIZE
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
        return False


def evenly(items: Sequence[Path], limit: int) -> list[Path]:
    """Return at most `limit` of the items, evenly spread over them."""
    places = np.linspace(0, len(items) - 1, min(limit, len(items))).round().astype(int)
    return [items[place] for place in places]


def copy_photographs(files: Sequence[Path], folder: Path) -> None:
    """Copy photographs into a fresh folder; gray ones get three channels, so that all samples are alike."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, path in enumerate(files):
        with Image.open(path) as image:
            if image.mode == "RGB":
                shutil.copyfile(path, folder / f"{number:02}_{path.name}")
            else:
                image.convert("RGB").save(folder / f"{number:02}_{path.stem}.png")


# --- Reading ---


class PngPairs(Dataset[tuple[Tensor, Tensor]]):
    """The usual baseline: pairs of PNG files, `lr/000000.png` and `hr/000000.png`, decoded on access."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder = folder
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        lr, hr = (read_png(self.folder / side / f"{index:06}.png") for side in ("lr", "hr"))
        return lr, hr


def read_png(path: Path) -> Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def write_png_pairs(pairs: Iterable[tuple[Tensor, Tensor]], folder: Path) -> None:
    """Write (lr, hr) pairs as PNG files into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for side in ("lr", "hr"):
        (folder / side).mkdir(parents=True)
    for number, pair in enumerate(pairs):
        for side, image in zip(("lr", "hr"), pair, strict=True):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / side / f"{number:06}.png")


def measure_readers(loaders: dict[str, Iterable[Any]]) -> dict[str, float]:
    """Measure loaders in interleaved turns, so other load affects all of them alike.

    Args:
        loaders: Name -> loader of (lr, hr) batches, uint8 or float32.

    Returns:
        Name -> pairs made into float32 batches per second, the median of the rounds.
    """
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for loader in loaders.values():
        count_pairs(loader)  # Workers start and pages are read.
    for _ in range(READ_ROUNDS):
        for name, loader in loaders.items():
            began, num_pairs = time.perf_counter(), 0
            while not num_pairs or time.perf_counter() - began < READ_SECONDS:
                num_pairs += count_pairs(loader)
            rates[name].append(num_pairs / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


def count_pairs(loader: Iterable[Any]) -> int:
    """Read everything once as float32, and return the number of pairs."""
    num_pairs = 0
    for lr, hr in loader:
        if hr.dtype == torch.uint8:
            lr, hr = lr.float().div_(255), hr.float().div_(255)
        num_pairs += len(hr)
    return num_pairs


# --- Training and looking ---


def train(model: Model, loader: Iterable[Any], *, seconds: float) -> StepTimer:
    """Train for a time, the learning rate falling along a cosine over it; returns where the time went."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    timer = StepTimer(torch.device("cpu"))
    model.train()
    with tqdm(
        total=seconds, desc="   training", disable=None, leave=False, bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} s"
    ) as bar:
        began = time.perf_counter()
        timer.start()
        for lr, hr in endless(loader):
            timer.lap("data")
            elapsed = time.perf_counter() - began
            if elapsed >= seconds:
                break
            bar.update(elapsed - bar.n)
            optimizer.param_groups[0]["lr"] = cosine_rate(LEARNING_RATE, elapsed / seconds)
            train_step(model, optimizer, lr, hr, timer=timer)
    return timer


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the loader's batches over and over."""
    while True:
        yield from loader


def score_table(names: Sequence[str], scores: Evaluation) -> str:
    """Return the PSNR of bicubic and of the model, a line per photograph and one for the mean."""
    width = max(map(len, [*names, "photograph"]))
    lines = [f"   {'photograph':{width}}  bicubic    SRCNN     gain"]
    rows = [*zip(names, scores.bicubic.psnrs, scores.model.psnrs, strict=True)]
    for name, before, after in [*rows, ("mean", *reversed(scores.psnrs))]:
        lines.append(f"   {name:{width}}  {before:7.2f}  {after:7.2f}  {after - before:+7.2f}  dB")
    return "\n".join(lines)


def draw_comparison(model: Model, dataset: Any, scores: Evaluation, path: Path) -> None:
    """Save a picture with a row per held-out photograph: bicubic, SRCNN and original, a crop enlarged."""
    try:
        font = ImageFont.load_default(16)
    except (ImportError, TypeError):  # Built without FreeType, or before 10.1: one small size.
        font = ImageFont.load_default()
    side, gap, caption = CROP_SIZE * ZOOM, 8, 26
    num_rows = len(dataset)
    sheet = Image.new("RGB", (3 * side + 4 * gap, num_rows * (side + caption + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for row in range(num_rows):
        lr, hr = dataset[row]
        before = bicubic(lr, SCALE)
        after = merge_luma(before, predict(model, lr))
        titles = (
            f"bicubic  {scores.bicubic.psnrs[row]:.2f} dB",
            f"SRCNN  {scores.model.psnrs[row]:.2f} dB",
            "original",
        )
        top, left = telling_crop(before, after)
        for column, (title, image) in enumerate(zip(titles, (before, after, hr), strict=True)):
            crop = image[:, top : top + CROP_SIZE, left : left + CROP_SIZE].permute(1, 2, 0).numpy()
            place = (gap + column * (side + gap), gap + row * (side + caption + gap))
            draw.text((place[0] + 2, place[1] + 2), title, fill="black", font=font)
            enlarged = Image.fromarray(crop).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (place[0], place[1] + caption))
    sheet.save(path)


def telling_crop(before: Tensor, after: Tensor) -> tuple[int, int]:
    """Return top and left of the crop in which the two images differ most, for better or worse."""
    difference = np.abs(luma(before) - luma(after))
    sums = np.pad(difference, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    size = CROP_SIZE
    totals = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    top, left = np.unravel_index(totals.argmax(), totals.shape)
    return int(top), int(left)


# --- The whole way ---


def run(images: Path | None, output: Path, seconds: float) -> bool:
    """Run the demo; returns whether SRCNN is better than bicubic."""
    training, held_out = find_photographs(images, output)
    copy_photographs(training, output / "train")
    copy_photographs(held_out, output / "val")
    print(f"1. Photographs: {len(training)} to train on, {len(held_out)} held out, copied to {output}")

    bar = sys.stderr.isatty()
    # Large photographs have patches enough without overlap.
    stride = PATCH_SIZE // 2 if images is None else PATCH_SIZE
    report = lmdbloader.convert(
        output / "train",
        output / "train.lmdb",
        layout="images",
        patch_size=PATCH_SIZE,
        stride=stride,
        scale=SCALE,
        overwrite=True,
        progress=bar,
    )
    lmdbloader.convert(output / "val", output / "val.lmdb", layout="images", scale=SCALE, overwrite=True, progress=bar)
    patches, photographs = lmdbloader.LMDBDataset(output / "train.lmdb"), lmdbloader.LMDBDataset(output / "val.lmdb")
    took = "from an earlier run" if report.was_finished else f"in {report.seconds:.1f} s"
    print(
        f"2. Conversion: {len(patches):,} pairs of {PATCH_SIZE} x {PATCH_SIZE} and {PATCH_SIZE // SCALE} x "
        f"{PATCH_SIZE // SCALE} pixels, {took}: {output / 'train.lmdb'}, {report.sizes['data_nbytes'] / 1e6:.0f} MB"
    )
    compare_reading(patches, output / "png")

    print(f"4. Training SRCNN 9-1-5 from the dataset for {seconds:.0f} s", flush=True)
    torch.manual_seed(0)
    model = build_model("srcnn915", SCALE)
    loader = lmdbloader.Loader(patches, TRAIN_BATCH_SIZE, shuffle=True, seed=0, transforms=[RandomDihedral()])
    timer = train(model, loader, seconds=seconds)
    print(f"   {timer.num_steps:,} steps, {timer.summary()}")

    scores = evaluate(model, photographs, SCALE)
    print("5. PSNR on photographs that it has not seen (luma)")
    print(score_table([path.stem for path in held_out], scores))
    draw_comparison(model, photographs, scores, output / "comparison.png")
    print(f"6. bicubic | SRCNN | original, side by side: {output / 'comparison.png'}")
    return scores.gain > 0


def compare_reading(patches: Any, folder: Path) -> None:
    """Print how fast the dataset and PNG files with the same patches can be read into float32 batches."""
    count = min(READ_PAIRS, len(patches))
    chosen = patches.select(np.linspace(0, len(patches) - 1, count).round().astype(int).tolist())
    write_png_pairs((chosen[index] for index in range(count)), folder)
    print(f"3. Reading {count:,} pairs in random order, float32 batches of {READ_BATCH_SIZE}", flush=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    png = PngPairs(folder, count)
    loaders: dict[str, DataLoader[Any]] = {
        f"PNG files, DataLoader, {workers} workers": DataLoader(
            png, READ_BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        for workers in (0, cores)
    }
    ours = lmdbloader.Loader(
        chosen, READ_BATCH_SIZE, shuffle=True, seed=0, transforms=[ToDtype(torch.float32, scale=True)]
    )
    name = f"LMDB, lmdbloader.Loader, {ours.num_threads} threads"
    rates = measure_readers({**loaders, name: ours})
    for label, rate in rates.items():
        print(f"   {label:42} {rate:10,.0f} pairs/s")
    print(
        f"   ratio to the faster of the PNG readers     {rates[name] / max(rates[label] for label in loaders):10.1f} x"
    )
