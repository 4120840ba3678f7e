"""Times several views of one image, policies, loose files and buckets, next to torchvision v2 where it is installed.

- views: DINO's 2 crops of 224 and 8 of 96 pixels with all its augmentation, from JPEGs of about 500 pixels: a Loader,
  ten Loaders with a view each, and torch's DataLoader with two workers.
- transforms: one transform after a crop of 224 pixels, in a Loader with one thread, beyond the crop alone; and
  torchvision's on images in memory, with one thread.
- files: class folders of JPEGs in a Loader without conversion, the converted dataset, and torch's DataLoader.
- buckets: batches by aspect ratio against batches of equal sizes, of as many pixels.

torchvision gets its fastest path: JPEGs decoded by libjpeg-turbo into uint8 tensors in channels-last memory, and v2 on
them. All ways of a section take turns in one process. The figures are medians: processor time of all processes, and
images of a second of the clock.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import simplejpeg
import torch
from common import in_turns, print_sections, table
from own_functions import write_images
from photos import MEAN, STD, Folder, write_photos
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import lmdbloader
from lmdbloader import Loader, transforms

SECTIONS = ("views", "transforms", "files", "buckets")
SIDE, CROP, BATCH, WORKERS = 256, 224, 32, 2
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
# Lines that mean the same in lmdbloader.transforms and in torchvision.transforms.v2.
LINES = (
    "GaussianBlur(23)",
    "RandomRotation(30, BILINEAR)",
    "RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, BILINEAR)",
    "RandomPerspective(p=1)",
    "ElasticTransform()",
    "RandomEqualize(p=1)",
    "RandomAutocontrast(p=1)",
    "RandomAdjustSharpness(2, p=1)",
    "RandomPosterize(4, p=1)",
    "RandomInvert(p=1)",
    "RandAugment(2, 9)",
    "RandAugment(2, 9, interpolation=BILINEAR)",
    "TrivialAugmentWide()",
    "AutoAugment()",
    "AugMix()",
)
CROP_ALONE = "the crop alone"
VIEWS, SEPARATE, TORCHVISION = "one Loader, 10 views", "10 Loaders, 1 view each", "DataLoader, torchvision v2"
FILES, CONVERTED, PILLOW = "Loader over the files", "Loader over the dataset", "DataLoader, Pillow"
EQUAL, BUCKETS = "equal sizes", "buckets"


def torchvision() -> Any:
    """Return torchvision.transforms.v2, or None where torchvision is not installed."""
    try:
        from torchvision.transforms import v2
    except ImportError:
        return None
    return v2


def dino(module: Any) -> list[list[Any]]:
    """Return DINO's transforms of its two large views and of a small one, of one of the two modules of transforms."""
    t = module

    def view(size: int, scale: tuple[float, float], blur: float, solarize: float = 0) -> list[Any]:
        return [
            t.RandomResizedCrop(size, scale=scale, interpolation=BICUBIC),
            t.RandomHorizontalFlip(),
            t.RandomApply([t.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            t.RandomGrayscale(0.2),
            t.RandomApply([t.GaussianBlur(9, sigma=(0.1, 2.0))], p=blur),
            *([t.RandomSolarize(128, p=solarize)] if solarize else []),
            t.ToDtype(torch.float32, scale=True),
            t.Normalize(MEAN, STD),
        ]

    return [view(CROP, (0.4, 1.0), 1.0), view(CROP, (0.4, 1.0), 0.1, 0.2), view(96, (0.05, 0.4), 0.5)]


class Files(Dataset[Any]):
    """JPEG files, decoded as torchvision's `decode_jpeg` does, and transformed by its v2."""

    def __init__(self, folder: Path, views: Sequence[Callable[[Any], Any]]) -> None:
        self._paths = sorted(folder.rglob("*.jpg"))
        self._views = views

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        image = torch.from_numpy(simplejpeg.decode_jpeg(self._paths[number].read_bytes())).permute(2, 0, 1)
        return [view(image) for view in self._views], number


def used() -> float:
    """Return the CPU seconds of this process and of those that it started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def epoch(batches: Any) -> int:
    """Read an epoch; return the number of its samples. Worker processes end with it."""
    return sum(len(batch[-1]) for batch in batches)


def take_turns(ways: Mapping[str, Any], turns: int) -> dict[str, dict[str, float]]:
    """Return for each loader the medians of the CPU seconds and of the clock's seconds of a sample."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, batches in ways.items():
            began = time.perf_counter(), used()
            count = epoch(batches)
            spent = (used() - began[1]) / count, (time.perf_counter() - began[0]) / count
            if turn:  # the first one fills caches and memory
                found[name].append(spent)
    return {
        name: dict(zip(("cpu", "clock"), map(statistics.median, zip(*spent, strict=True)), strict=True))
        for name, spent in found.items()
    }


def rows_of(figures: Mapping[str, Mapping[str, float]], base: str, unit: float) -> list[list[str]]:
    """Return a row for each way, with its ratios to one of them."""
    rows = []
    for name, found in figures.items():
        row = [name, f"{found['cpu'] * unit:.2f}", f"{found['cpu'] / figures[base]['cpu']:.2f}"]
        clock = [f"{1 / found['clock']:,.0f}", f"{figures[base]['clock'] / found['clock']:.2f}"]
        rows.append([*row, *(clock if found["clock"] else ["-", "-"])])
    return rows


HEADER = ["", "CPU ms an image", "of the first", "images/s", "times the first"]


def prepare(folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """Return class folders of JPEGs of 500 x 375 pixels, and a dataset of the same files."""
    photos, path = folder / "photos", folder / "photos.lmdb"
    if not path.exists():
        write_photos(photos, options.images)
        lmdbloader.convert(photos, path, layout="classes")
    return photos, path


def views(folder: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Time DINO's ten views, of JPEGs and of the same images stored as pixels, which need no decoding."""
    photos, path = prepare(folder, options)
    raw = folder / "pixels.lmdb"
    if not raw.exists():
        lmdbloader.convert(photos, raw, layout="classes", write_mode="raw", codec="raw")
    first, second, small = dino(transforms)
    ways: dict[str, Any] = {}
    for name, source in {"": path, ", pixels": raw}.items():
        lists = {VIEWS: transforms.Views(global_=[first, second], local=8 * [small]), "first": first, "second": second,
                 "small": small}  # fmt: skip
        for way, steps in lists.items():
            ways[way + name] = Loader(source, BATCH, shuffle=True, seed=0, transforms=steps, num_threads=WORKERS)
    v2 = torchvision()
    if v2 is not None:
        large, other, little = (v2.Compose(steps) for steps in dino(v2))
        dataset = Files(photos, [large, other, *8 * [little]])
        ways[TORCHVISION] = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS)
    figures = take_turns(ways, options.turns)
    for name in ("", ", pixels"):
        each = [figures[f"{way}{name}"] for way in ("first", "second", *8 * ["small"])]
        figures[SEPARATE + name] = {key: sum(one[key] for one in each) for key in ("cpu", "clock")}
    one, ten = ({key: figures[way][key] - figures[f"{way}, pixels"][key] for key in ("cpu", "clock")}
                for way in (VIEWS, SEPARATE))  # fmt: skip
    shown = {name: figures[name] for name in (VIEWS, SEPARATE, TORCHVISION) if name in figures}
    text = table(HEADER, rows_of(shown, VIEWS, 1e3), markdown=options.markdown)
    title = f"Views: DINO's 2 x {CROP} + 8 x 96 from JPEGs of 500 x 375 pixels"
    return title, figures, (
        f"{text}\n\nDecoding, beyond what the same images take that are stored as pixels: {1e3 * one['cpu']:.2f} ms "
        f"in one Loader, {one['cpu'] / ten['cpu']:.2f} of that in ten."
    )  # fmt: skip


def made(line: str, module: Any) -> Any:
    """Return the transform that a line makes with the names of a module."""
    return eval(line, {"BILINEAR": BILINEAR, line.partition("(")[0]: getattr(module, line.partition("(")[0])})


def each_line(folder: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Time one transform after the other."""
    path = folder / "squares.lmdb"
    if not path.exists():
        write_images(path, SIDE, options.images)
    v2, crop = torchvision(), transforms.RandomCrop(CROP)
    stack = torch.stack([s.image[:, 16 : 16 + CROP, 16 : 16 + CROP] for s in lmdbloader.LMDBDataset(path)])

    def ours(loader: Loader, _: int) -> int:
        return epoch(loader)

    def theirs(transform: Any, turn: int) -> int:
        count = min(options.torch_images, len(stack))
        for number in range(count):
            transform(stack[(turn * count + number) % len(stack)])
        return count

    runs: dict[str, Callable[[int], int]] = {}
    for name in (CROP_ALONE, *options.lines):
        steps = [crop, *([] if name == CROP_ALONE else [made(name, transforms)])]
        runs[name] = partial(ours, Loader(path, BATCH, shuffle=True, seed=0, transforms=steps, num_threads=1))
        if v2 is not None and name != CROP_ALONE:
            runs[f"{name}, torchvision"] = partial(theirs, made(name, v2))
    medians = {name: 1e6 * statistics.median(found) for name, found in in_turns(runs, options.turns).items()}
    rows = []
    for name in options.lines:
        above, other = medians[name] - medians[CROP_ALONE], medians.get(f"{name}, torchvision")
        compared = ["-", "-"] if other is None else [f"{other:.0f}", f"{other / above:.1f}"]
        rows.append([f"`{name}`", f"{above:.0f}", *compared])
    header = ["transform", "us above the crop", "torchvision v2, us", "times as fast"]
    return f"Transforms of {CROP} x {CROP} pixels of 8 bits", medians, table(header, rows, markdown=options.markdown)


def files(folder: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Time the usual transforms of a classifier over files that are not converted."""
    photos, path = prepare(folder, options)

    def steps(t: Any) -> list[Any]:
        crop = t.RandomResizedCrop(CROP)
        return [crop, t.RandomHorizontalFlip(), t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD)]

    how: dict[str, Any] = {"shuffle": True, "seed": 0, "transforms": steps(transforms), "num_threads": WORKERS}
    ways: dict[str, Any] = {FILES: Loader(photos, BATCH, **how), CONVERTED: Loader(path, BATCH, **how)}
    ways[PILLOW] = DataLoader(Folder(photos, CROP), BATCH, shuffle=True, num_workers=WORKERS)
    v2 = torchvision()
    if v2 is not None:
        dataset = Files(photos, [v2.Compose(steps(v2))])
        ways[TORCHVISION] = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS)
    figures = take_turns(ways, options.turns)
    title = f"Files: RandomResizedCrop({CROP}) and a flip from JPEGs of 500 x 375 pixels"
    return title, figures, table(HEADER, rows_of(figures, FILES, 1e3), markdown=options.markdown)


def buckets(folder: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Time batches of images that keep their shapes."""
    _, path = prepare(folder, options)
    floats = [transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
    how: dict[str, Any] = {"shuffle": True, "seed": 0, "num_threads": WORKERS}
    equal = [transforms.Resize((CROP, CROP)), transforms.RandomHorizontalFlip(), *floats]
    shapes = lmdbloader.Buckets(CROP * CROP, multiple_of=16)
    ways = {
        EQUAL: Loader(path, BATCH, transforms=equal, **how),
        BUCKETS: Loader(path, BATCH, transforms=equal[1:], buckets=shapes, **how),
    }
    figures = take_turns(ways, options.turns)
    title = f"Buckets: whole images of about {CROP * CROP:,} pixels, of JPEGs of 500 x 375 and 375 x 500"
    return title, figures, table(HEADER, rows_of(figures, EQUAL, 1e3), markdown=options.markdown)


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, figures and text of each section."""
    torch.set_num_threads(1)
    sections = {"views": views, "transforms": each_line, "files": files, "buckets": buckets}
    for name in options.sections:
        yield sections[name](folder, options)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where datasets are written; default: a temporary folder")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--lines", nargs="+", metavar="LINE", default=LINES, help="transforms, as lines of code")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--torch-images", type=int, default=16, help="images that torchvision transforms in a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="file for every figure")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.images, options.torch_images, options.turns = 16, 2, 1
    torch.manual_seed(0)
    print_sections(partial(run, options=options), "Views, policies, files and buckets", options)


if __name__ == "__main__":
    main()
