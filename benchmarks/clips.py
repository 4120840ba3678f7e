"""Times a Loader of clips against one of their single frames: the same frames, crops and turns, one thread each.

Clips of 1280 x 720 frames, as those of REDS, slide over photographs. Windows of frames and single frames take turns in
one process; the figures are medians of processor time for each frame.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_turns, print_sections, table
from PIL import Image

import lmdbloader
from lmdbloader import Clips, LMDBDataset, Loader
from lmdbloader.transforms import RandomCrop, RandomDihedral, ToDtype

HEIGHT, WIDTH, BATCH = 720, 1280, 4
TO_FLOAT = ToDtype(torch.float32, scale=True)


def write_clips(path: Path, options: argparse.Namespace) -> None:
    """Write clips of frames that move by a few pixels over enlarged photographs."""
    import skimage.data

    def samples() -> Iterator[dict[str, Any]]:
        for clip in range(options.clips):
            photograph = Image.fromarray((skimage.data.astronaut, skimage.data.coffee)[clip % 2]()).convert("RGB")
            pixels = np.asarray(photograph.resize((1600, 1066), Image.Resampling.BICUBIC))
            for frame in range(options.length):
                top, left = frame + 5 * clip, 2 * frame + 3 * clip
                image = np.ascontiguousarray(pixels[top : top + HEIGHT, left : left + WIDTH])
                yield {"hr": image, "clip": f"{clip:03d}", "frame": frame}

    lmdbloader.write(samples(), path, codec=options.codec)


def epoch(loader: Loader, _: int) -> int:
    """Read an epoch, and return how many frames it had."""
    return sum(batch.hr.shape[:-3].numel() for batch in loader)


def speed(path: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Measure every way in turn."""
    torch.set_num_threads(1)
    dataset, runs = LMDBDataset(path, fields=["hr", "clip", "frame"]), dict[tuple[str, str], Callable[[int], int]]()
    for name, values in (("uint8", []), ("float32", [TO_FLOAT])):
        transforms = [RandomCrop(options.size), RandomDihedral(), *values]
        for frames in (0, *options.frames):
            samples: Any = Clips(dataset, frames, interval=[1, 2], random_reverse=True) if frames else dataset
            size = BATCH if frames else BATCH * options.frames[0]
            loader = Loader(samples, size, shuffle=True, seed=0, transforms=transforms, num_threads=1)
            runs[name, f"windows of {frames}" if frames else "single frames"] = partial(epoch, loader)
    times = in_turns(runs, options.turns)
    medians = {key: statistics.median(found) for key, found in times.items()}
    rows = []
    for (kind, samples), found in medians.items():
        ratios = [a / b for a, b in zip(times[kind, "single frames"], times[kind, samples], strict=True)]
        rows.append(
            [
                samples,
                kind,
                f"{1 / found:.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    header = ["samples", "batches", "frames/s of a core", "against single frames", "turns"]
    title = f"Crops of {options.size} x {options.size} pixels from clips stored as {options.codec}"
    figures = {", ".join(key): 1 / found for key, found in medians.items()}
    return title, figures, table(header, rows, markdown=options.markdown)


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, figures and text of the section."""
    path = folder / f"clips-{options.codec}.lmdb"
    if not path.exists():
        write_clips(path, options)
    yield speed(path, options)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where datasets are written; default: a temporary folder")
    parser.add_argument("--size", type=int, default=256, help="side of the crops")
    parser.add_argument("--frames", type=int, nargs="+", default=[5, 15], help="frames of a window")
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--length", type=int, default=50, help="frames of a clip")
    parser.add_argument("--codec", default="raw", choices=["raw", "lz4", "delta"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="file for every figure")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.size, options.clips, options.length, options.turns = 64, 2, 16, 1
    print_sections(partial(run, options=options), "Clips and single frames in a Loader", options)


if __name__ == "__main__":
    main()
