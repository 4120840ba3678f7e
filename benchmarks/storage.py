"""Compares the lossless codecs of pixels on real photographs: bytes, decoding, encoding, and pairs of a Loader.

Sizes are of 96-px patches, as shares of their pixels. Kernels decode and encode in one thread; the figures are medians
of the thread's own time. Pairs of 96 and 48 px are read in random order from the page cache, in turns of all codecs;
then with memory for half and a quarter of the raw dataset, and with a cold cache from disks of several speeds. FFCV
reads the same pairs and JPEG files where `peers/environment.py` has installed it.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import cut_pairs, photographs, print_sections, table, time_loader
from limited import Limit, pairs_per_s
from PIL import Image
from write import make_jpegs

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.format.codecs import encode_many
from lmdbloader.kernels import entries
from lmdbloader.transforms import RandomDihedral, RandomHorizontalFlip, RandomResizedCrop, ToDtype

HERE = Path(__file__).resolve().parent
CODECS = ("raw", "lz4", "delta")
WORKS = ("uint8", "turned, float32")
JPEG_CODES = ("file", "fast")
JPEG_WORKS = tuple((side, batch_size) for side in (224, 112) for batch_size in (64, 256))
SIDE = 96
Images = list[np.ndarray]


def patches(count: int, change: Callable[[Image.Image], Image.Image] = lambda image: image) -> Images:
    """Return patches (3, SIDE, SIDE) of all photographs, each changed as a whole before."""
    rng, found = np.random.default_rng(0), []
    wholes = [np.asarray(change(Image.fromarray(photograph))) for photograph in photographs()]
    for number in range(count):
        whole = wholes[number % len(wholes)]
        top, left = (int(rng.integers(size - SIDE + 1)) for size in whole.shape[:2])
        found.append(np.ascontiguousarray(whole[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1)))
    return found


def in_16_bits(images: Images) -> Images:
    """Return means of four pixels of each channel, with the bits that these have."""
    wide = [image.astype(np.uint16) for image in images]
    return [(w[:, :-1, :-1] + w[:, 1:, :-1] + w[:, :-1, 1:] + w[:, 1:, 1:]) * np.uint16(64) for w in wide]


def kinds(count: int) -> Iterator[tuple[str, Images]]:
    """Yield names and images (C, H, W)."""
    whole = patches(count)
    yield "as they are", whole
    yield "shrunk to half", patches(count, lambda image: image.resize((image.width // 2, image.height // 2)))
    yield "green alone", [image[1:2] for image in whole]
    yield "green in 16 bits", [image[1:2] for image in in_16_bits(whole)]


def stored_nbytes(images: Images, codec: str) -> int:
    """Return the bytes of images with a codec."""
    shape = (*images[0].shape[1:], images[0].shape[0], 8 * images[0].itemsize)
    data = np.concatenate([image.reshape(-1).view(np.uint8) for image in images])
    lengths = np.full(len(images), images[0].nbytes)
    return int(encode_many(data, lengths, codec, np.tile(shape, (len(images), 1))).stored_nbytes.sum())


def png_nbytes(images: Images) -> int:
    """Return the bytes of images as PNG files."""
    found = 0
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(file, "PNG")
        found += file.tell()
    return found


def kernels(images: Images) -> dict[str, Callable[[], None]]:
    """Return functions that decode all images, of lz4 and of delta, and one that encodes them with delta."""
    nbytes, data = images[0].nbytes, np.concatenate([image.reshape(-1) for image in images])
    lengths, shape = np.full(len(images), nbytes), (SIDE, SIDE, 3, 8)
    out, work = np.empty(nbytes, np.uint8), np.empty(entries.delta_room(nbytes, 3), np.uint8)
    target = np.empty(nbytes + 16, np.uint8)
    found: dict[str, Callable[[], None]] = {}
    for codec, kernel in (("lz4", entries.lz4_decompress), ("delta", entries.delta_decompress)):
        encoded = encode_many(data, lengths, codec, np.tile(shape, (len(images), 1)))
        ends = np.cumsum(encoded.stored_nbytes)
        places = list(zip((ends - encoded.stored_nbytes).tolist(), encoded.stored_nbytes.tolist(), strict=True))
        places = [place for place in places if place[1] < nbytes]
        base = encoded.data.ctypes.data
        call = kernel

        def decode(places: Any = places, base: int = base, call: Any = call, kept: Any = encoded) -> None:
            for at, length in places:
                call(base + at, out.ctypes.data, length, nbytes)

        decode.nbytes = nbytes * len(places)  # type: ignore[attr-defined]
        found[f"{codec}: decoding"] = decode

    def encode() -> None:
        for image in images:
            entries.delta_compress(image.reshape(-1), 3, SIDE, SIDE, 1, target, nbytes, work)

    encode.nbytes = data.nbytes  # type: ignore[attr-defined]
    found["delta: encoding"] = encode
    return found


def speeds(functions: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Return MB of pixels a second of each function, the median of interleaved turns."""
    turns: dict[str, list[float]] = {name: [] for name in functions}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not all(turns.values()):
        for name, function in functions.items():
            began = time.thread_time()
            function()
            turns[name].append(function.nbytes / 1e6 / max(time.thread_time() - began, 1e-9))  # type: ignore[attr-defined]
    return {name: statistics.median(found) for name, found in turns.items()}


class Ffcv:
    """FFCV, which another interpreter has.

    Attributes:
        program: That interpreter, and what it runs.
    """

    def __init__(self, env: Path) -> None:
        self.program = (env / "bin" / "python", HERE / "ffcv_turns.py")

    def why_not(self) -> str:
        """Return why it cannot be used; empty if it can."""
        python = self.program[0]
        if not python.exists():
            return f"{python} is missing: run python benchmarks/peers/environment.py"
        done = subprocess.run([python, "-c", "import ffcv"], capture_output=True, text=True)
        return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""

    def ask(self, folder: Path, task: str, **more: Any) -> Any:
        """Return its answer."""
        asked = json.dumps({"path": str(folder), "task": task, **more})
        return json.loads(subprocess.run([*self.program, asked], check=True, stdout=subprocess.PIPE).stdout)


def write(folder: Path, count: int, ffcv: Ffcv | None) -> dict[str, float]:
    """Write pairs with each codec, and a few to warm up; return the bytes of the files, of those of the pixels."""
    pairs = cut_pairs(count, patch_size=SIDE)
    samples = [{"lr": pairs.lr[i].transpose(1, 2, 0), "hr": pairs.hr[i].transpose(1, 2, 0)} for i in range(count)]
    for codec in CODECS:
        lmdbloader.write(samples, folder / codec, codec=codec)
    lmdbloader.write(samples[:256], folder / "warm-up")
    stored = {codec: sum(path.stat().st_size for path in (folder / codec).iterdir()) for codec in CODECS}
    if ffcv is not None:
        (folder / "FFCV").mkdir()
        np.savez(folder / "FFCV" / "pairs.npz", lr=pairs.lr, hr=pairs.hr)
        stored["FFCV"] = ffcv.ask(folder / "FFCV", "write")
        (folder / "FFCV" / "pairs.npz").unlink()
    return {name: nbytes / (pairs.lr.nbytes + pairs.hr.nbytes) for name, nbytes in stored.items()}


def loaders(folder: Path) -> dict[tuple[str, str], Loader]:
    """Return Loaders of pairs by codec and work."""
    turned = [RandomDihedral(), ToDtype(torch.float32, scale=True)]
    found = {}
    for codec in CODECS:
        for name, transforms in zip(WORKS, ([], turned), strict=True):
            found[codec, name] = Loader(LMDBDataset(folder / codec), 32, shuffle=True, transforms=transforms)
    return found


def time_loaders(
    found: dict[tuple[str, str], Loader], folder: Path, seconds: float, ffcv: Ffcv | None
) -> dict[tuple[str, str], float]:
    """Return pairs a second of each Loader, and of FFCV, medians of three turns."""
    turns: dict[tuple[str, str], list[float]] = {}
    for _ in range(3):
        for key, loader in found.items():
            turns.setdefault(key, []).append(time_loader(loader, seconds).samples_per_s)
        for work in WORKS if ffcv is not None else ():
            speed = pairs_per_s(folder / "FFCV", Limit("", is_warm=True), seconds, ffcv.program, work=work)
            turns.setdefault(("FFCV", work), []).append(speed)
    return {key: statistics.median(values) for key, values in turns.items()}


def within_limits(folder: Path, seconds: float, turns: int, ffcv: Ffcv | None) -> dict[str, dict[str, float]]:
    """Return pairs a second of each codec, and of FFCV, within each limit, medians of some turns."""
    programs = dict.fromkeys(CODECS, ()) | ({} if ffcv is None else {"FFCV": ffcv.program})
    nbytes = sum(path.stat().st_size for path in (folder / "raw").glob("data*.mdb"))
    own = 64 * 2**20  # batches, and what opening allocates
    limits = [
        Limit(f"memory for {name} of raw", nbytes // part + own) for name, part in (("half", 2), ("a quarter", 4))
    ]
    limits += [Limit(f"cold disk, {speed:,} MB/s", None, speed * 10**6) for speed in (50, 200, 1000)]
    limits.append(Limit("cold disk, as it is"))
    found: dict[str, dict[str, float]] = {}
    for limit in limits:
        speeds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(turns):
            for name, program in programs.items():
                speeds[name].append(pairs_per_s(folder / name, limit, seconds, program))
        found[limit.name] = {codec: statistics.median(all_turns) for codec, all_turns in speeds.items()}
    return found


def jpegs(folder: Path, count: int, seconds: float, turns: int, ffcv: Ffcv | None) -> dict[str, list[float]]:
    """Return for each question the figure of JPEG files as they are and of recoded ones, medians, and their ratio.

    FFCV's, if there is one, is the fourth; it encodes the pixels of the files again, with their quality.

    Conversions use all cores and count images a second; crops count images a second of processor time, in one thread.
    """
    make_jpegs(folder / "jpegs", count)
    nbytes = sum(path.stat().st_size for path in (folder / "jpegs").rglob("*.jpg"))
    found: dict[str, list[list[float]]] = {}
    for _ in range(turns):
        speeds = []
        for code in JPEG_CODES:
            began = time.perf_counter()
            lmdbloader.convert(folder / "jpegs", folder / f"jpeg-{code}", jpeg_code=code, overwrite=True, restart=True)
            speeds.append(count / (time.perf_counter() - began))
        found.setdefault("converting", []).append(speeds)
    opened = {}
    for side, batch_size in JPEG_WORKS:
        for code in JPEG_CODES:
            dataset = LMDBDataset(folder / f"jpeg-{code}")
            many = dataset.select(np.resize(np.arange(len(dataset)), 40 * len(dataset)))
            opened[code, side, batch_size] = iter(
                Loader(
                    many, batch_size, shuffle=True, num_threads=1,
                    transforms=[RandomResizedCrop(side), RandomHorizontalFlip()],
                )
            )  # fmt: skip
    for turn in range(turns):
        for side, batch_size in JPEG_WORKS:
            speeds = []
            for code in JPEG_CODES[:: 1 if turn % 2 else -1]:
                batches = opened[code, side, batch_size]
                for _ in range(4):
                    next(batches)
                images, cpu, began = 0, time.process_time(), time.perf_counter()
                while time.perf_counter() - began < seconds / 4:
                    images += len(next(batches)[0])
                speeds.append(images / (time.process_time() - cpu))
                time.sleep(0.2)  # its thread fills its queue
            found.setdefault(f"crops to {side}, batches of {batch_size}", []).append(speeds[:: 1 if turn % 2 else -1])
    stored = [LMDBDataset(folder / f"jpeg-{code}").reader.index.columns["image.stored_nbytes"] for code in JPEG_CODES]
    sizes = [int(column.sum(dtype=np.int64)) for column in stored]
    figures = {"bytes, of those of the files": [*(size / nbytes for size in sizes), sizes[1] / sizes[0]]}
    for name, pairs in found.items():
        before, after = zip(*pairs, strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        figures[name] = [statistics.median(before), statistics.median(after), ratio]
    if ffcv is not None:
        (folder / "FFCV").mkdir(exist_ok=True)
        stored = ffcv.ask(folder / "FFCV", "write", images=str(folder / "jpegs"))
        speeds = ffcv.ask(folder / "FFCV", "crops", works=JPEG_WORKS, turns=turns, seconds=seconds / 4)
        for name, figure in zip(figures, (stored / nbytes, None, *speeds), strict=True):
            figures[name] += [figure]
    return figures


def shown(figure: float | None) -> str:
    """Return a share or a speed as text; empty if it was not measured.

    >>> shown(0.99), shown(1234.5)
    ('0.990', '1,234')
    """
    return "" if figure is None else f"{figure:.3f}" if figure < 2 else f"{figure:,.0f}"


def progressive_jpegs(folder: Path, count: int, turns: int) -> dict[str, list[float]]:
    """Return the same of progressive files, with batches of 64: a turn is an epoch, as libjpeg decodes them slowly."""
    make_jpegs(folder / "progressive", count, progressive=True)
    nbytes = sum(path.stat().st_size for path in (folder / "progressive").rglob("*.jpg"))
    speeds: dict[str, dict[str, list[float]]] = {}
    sizes = {}
    for turn in range(turns):
        for code in JPEG_CODES[:: 1 if turn % 2 else -1]:
            out, began = folder / f"progressive-{code}", time.perf_counter()
            lmdbloader.convert(folder / "progressive", out, jpeg_code=code, overwrite=True, restart=True)
            speeds.setdefault("converting", {}).setdefault(code, []).append(count / (time.perf_counter() - began))
            dataset = LMDBDataset(out)
            sizes[code] = int(dataset.reader.index.columns["image.stored_nbytes"].sum(dtype=np.int64)) / nbytes
            for side in (224, 112):
                transforms = [RandomResizedCrop(side), RandomHorizontalFlip()]
                loader = Loader(dataset, 64, shuffle=True, num_threads=1, transforms=transforms)
                cpu = time.process_time()
                images = sum(len(batch[0]) for batch in loader)
                cpu = time.process_time() - cpu
                speeds.setdefault(f"crops to {side}", {}).setdefault(code, []).append(images / cpu)
                loader.close()
    figures = {"bytes, of those of the files": [sizes["file"], sizes["fast"], sizes["fast"] / sizes["file"]]}
    for name, found in speeds.items():
        ratio = statistics.median(b / a for a, b in zip(found["file"], found["fast"], strict=True))
        figures[name] = [statistics.median(found["file"]), statistics.median(found["fast"]), ratio]
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each turn (default 3)")
    parser.add_argument("--patches", type=int, default=360, help="of each kind (default 360)")
    parser.add_argument("--folder", type=Path, help="for datasets (default: a temporary folder)")
    parser.add_argument("--env", type=Path, default=HERE.parent / ".venv-peers", metavar="DIR", help="that has FFCV")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args(arguments)
    seconds, count = (0.05, 18) if options.quick else (options.seconds, options.patches)

    def run(folder: Path) -> Iterator[tuple[str, Any, str]]:
        sizes = {}
        for name, images in kinds(count):
            raw = sum(image.nbytes for image in images)
            sizes[name] = {codec: stored_nbytes(images, codec) / raw for codec in CODECS}
            sizes[name]["PNG"] = png_nbytes(images) / raw
        rows = [[name, *(f"{share:.3f}" for share in found.values())] for name, found in sizes.items()]
        yield "Bytes, of those of the pixels", sizes, table(["", *CODECS, "PNG"], rows, markdown=options.markdown)
        figures = speeds(kernels(patches(count)), seconds)
        rows = [[name, f"{speed:,.0f} MB/s"] for name, speed in figures.items()]
        yield "One thread", figures, table(["", "of pixels"], rows, markdown=options.markdown)
        ffcv: Ffcv | None = Ffcv(options.env)
        if reason := ffcv.why_not():
            yield "FFCV", {}, f"not measured: {reason}"
            ffcv = None
        stored = write(folder, 100 * count, ffcv)
        rows = [[f"{share:.3f}" for share in stored.values()]]
        yield "Bytes of files of pairs", stored, table([*stored], rows, markdown=options.markdown)
        found_loaders = loaders(folder)
        pairs = time_loaders(found_loaders, folder, seconds, ffcv)
        rows = [
            [f"{codec}, {work}", f"{speed:,.0f}", f"{speed / pairs['lz4', work]:.2f}"]
            for (codec, work), speed in pairs.items()
        ]
        header = ["Loader, in memory", "pairs/s", "of lz4's"]
        yield "Pairs of patches", pairs, table(header, rows, markdown=options.markdown)
        while found_loaders:  # their maps would keep pages in memory
            found_loaders.popitem()[1].close()
        gc.collect()
        try:
            limited = within_limits(folder, seconds, 1 if options.quick else 3, ffcv)
        except PermissionError as error:
            yield "Little memory, slow disks", {}, f"not measured: {error}"
        else:
            rows = [
                [name, *(f"{speed:,.0f}" for speed in f.values()), f"{f['delta'] / f['lz4']:.2f}"]
                for name, f in limited.items()
            ]
            header = ["Loader, pairs/s", *CODECS, *["FFCV"] * (ffcv is not None), "delta of lz4"]
            yield "Little memory, slow disks", limited, table(header, rows, markdown=options.markdown)

        turns = 1 if options.quick else 9
        for title, also, figures in (
            ("JPEG files", ffcv, jpegs(folder, 5 * count, seconds, turns, ffcv)),
            ("Progressive JPEG files", None, progressive_jpegs(folder, count, turns)),
        ):
            rows = [[name, *map(shown, [*f[:2], *f[3:]]), f"{f[2]:.2f}"] for name, f in figures.items()]
            header = ["", *JPEG_CODES, *["FFCV"] * (also is not None), "ratio"]
            yield title, figures, table(header, rows, markdown=options.markdown)

    gc.disable()
    print_sections(run, "Codecs of pixels, medians", options)


if __name__ == "__main__":
    sys.exit(main())
