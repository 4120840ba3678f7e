"""Times Pillow against pillow-simd: two interpreters, each with its own PIL, take turns on the same 2K photographs.

python benchmarks/pillow.py PYTHON_WITH_PILLOW PYTHON_WITH_PILLOW_SIMD

The interpreter that runs the script needs numpy, Pillow and scikit-image; the two that are timed need only their PIL.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WIDTH, HEIGHT = 2040, 1356  # the usual size of a DIV2K photograph
OPERATIONS = ("decode PNG", "decode JPEG", "bicubic x1/2", "encode PNG")


def write_photographs(folder: Path, count: int) -> None:
    """Write `count` 2K photographs as PNG and as JPEG: scikit-image's photographs side by side, not enlarged."""
    import numpy as np
    import skimage.data
    from PIL import Image

    photographs = [getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")]
    for number in range(count):
        canvas = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        turn = number
        for top in range(0, HEIGHT, 300):
            left = 0
            while left < WIDTH:
                piece = photographs[turn % len(photographs)][:300]
                piece = piece[: HEIGHT - top, : WIDTH - left]
                canvas[top : top + piece.shape[0], left : left + piece.shape[1]] = piece
                left += piece.shape[1]
                turn += 1
        image = Image.fromarray(canvas)
        image.save(folder / f"{number}.png")
        image.save(folder / f"{number}.jpg", quality=95)


def seconds_of(job: Callable[[], object]) -> float:
    """Return the CPU seconds that one call of `job` takes, so that other programs' turns do not count."""
    start = time.process_time()
    job()
    return time.process_time() - start


def time_here(folder: Path) -> dict[str, object]:
    """Return this interpreter's PIL version and the median seconds of each operation over the folder's photographs."""
    import PIL
    from PIL import Image

    seconds: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    for path in sorted(folder.glob("*.png")):
        png, jpeg = path.read_bytes(), path.with_suffix(".jpg").read_bytes()
        image = Image.open(io.BytesIO(png))
        image.load()
        half = (image.width // 2, image.height // 2)
        for _ in range(3):
            seconds["decode PNG"].append(seconds_of(lambda data=png: Image.open(io.BytesIO(data)).load()))
            seconds["decode JPEG"].append(seconds_of(lambda data=jpeg: Image.open(io.BytesIO(data)).load()))
            seconds["bicubic x1/2"].append(
                seconds_of(lambda image=image, half=half: image.resize(half, Image.Resampling.BICUBIC))
            )
        seconds["encode PNG"].append(seconds_of(lambda image=image: image.save(io.BytesIO(), "PNG", compress_level=1)))
    return {"version": PIL.__version__, "seconds": {name: statistics.median(found) for name, found in seconds.items()}}


def main() -> None:
    """Print the milliseconds of both interpreters and their ratio, the median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="two interpreters, timed in turns")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each interpreter (default 5)")
    parser.add_argument("--photographs", type=int, default=4, help="photographs of 2040 x 1356 (default 4)")
    parser.add_argument("--time", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        print(json.dumps(time_here(options.time)))
        return
    if len(options.pythons) != 2:
        parser.error(f"expected two interpreters, found {len(options.pythons)}")

    versions = ["", ""]
    rounds: list[list[dict[str, float]]] = [[], []]
    with tempfile.TemporaryDirectory() as name:
        write_photographs(Path(name), options.photographs)
        for _ in range(options.rounds):
            for which, python in enumerate(options.pythons):
                child = subprocess.run([python, __file__, "--time", name], check=True, capture_output=True, text=True)
                result = json.loads(child.stdout)
                versions[which] = result["version"]
                rounds[which].append(result["seconds"])

    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(
        f"{options.photographs} photographs of {WIDTH} x {HEIGHT}, CPU ms, medians of {options.rounds} rounds in turns"
    )
    print(f"{'':14}{versions[0]:>14}{versions[1]:>14}{'ratio':>8}")
    for operation in OPERATIONS:
        first, second = ([round_[operation] * 1000 for round_ in found] for found in rounds)
        ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
        print(f"{operation:14}{statistics.median(first):14.2f}{statistics.median(second):14.2f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
