"""Times degradations in a Loader with one thread, and in torch on one thread, with the same draws.

torch does it in two ways: by `on_device`, and for Real-ESRGAN's chain by its own operators.

Patches of photographs, stored raw, are cropped, mirrored, turned, degraded and converted to float32. All ways take
turns in one process, so that the machine's other work meets each; the figures are medians of processor time. torch
starts from float32 images in memory: it reads, crops and converts nothing. GaussianBlur and GaussianNoise are compared
with torchvision's operations on images of 8 bits in memory. Then SRCNN and ESPCN train on the Loader's batches; ESPCN
takes so little time that the Loader must be fast.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_turns, print_sections, table
from own_functions import write_images
from torch import Tensor
from torch.nn import functional

from lmdbloader import LMDBDataset, Loader
from lmdbloader.kernels.degrade import blur, modes, steps
from lmdbloader.superres import StepTimer, degradations, upscale
from lmdbloader.superres.degradations import Degradation
from lmdbloader.transforms import GaussianBlur, GaussianNoise, RandomCrop, RandomDihedral, ToDtype

SCALE, BATCH = 4, 16
SECTIONS = ["speed", "filters", "training"]
PRESETS: dict[str, Callable[[int], Degradation]] = {
    "real_esrgan": degradations.real_esrgan, "neosr": degradations.neosr, "bsrgan": degradations.bsrgan,
    "bsrgan_plus": degradations.bsrgan_plus, "trainner_redux": degradations.trainner_redux,
    "first_order": degradations.first_order,
}  # fmt: skip
NAMES = {modes.AREA: "area", modes.BILINEAR: "bilinear", modes.BICUBIC: "bicubic"}
TO_YCC = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
TO_RGB = torch.tensor([[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]])
# Of equal cost to those of JPEG.
TABLES = torch.stack([torch.full((8, 8), 20.0), torch.full((8, 8), 40.0), torch.full((8, 8), 40.0)])
DCT = torch.cos((2 * torch.arange(8) + 1) * torch.arange(8)[:, None] * math.pi / 16) / 2
DCT[0] /= math.sqrt(2)


def make_kernel(drawn: Any) -> Tensor:
    """Return a blur kernel."""
    shape, size, first, second, angle, beta = (float(v) for v in drawn[1:7])
    place = np.arange(size) - size // 2
    down, across = np.meshgrid(place, place, indexing="ij")
    if shape == blur.SINC:
        r = np.hypot(down, across)
        found = first * torch.special.bessel_j1(torch.from_numpy(first * r)).numpy() / (2 * math.pi * np.where(r, r, 1))
        found[r == 0] = first**2 / (4 * math.pi)
    else:
        c, s = math.cos(angle), math.sin(angle)
        q = ((c * across + s * down) / first) ** 2 + ((c * down - s * across) / second) ** 2
        found = 1 / (1 + q**beta) if shape == blur.PLATEAU else np.exp(-(q**beta) / 2)
    return torch.from_numpy(found / found.sum()).float()


def filtered(image: Tensor, kernel: Tensor) -> Tensor:
    """Correlate an image (3, H, W) with a kernel, as `filter2D` of BasicSR."""
    padded = functional.pad(image[:, None], [kernel.shape[0] // 2] * 4, mode="reflect")
    return functional.conv2d(padded, kernel[None, None])[:, 0]


def sharpened(image: Tensor, kernel: Tensor) -> Tensor:
    """Sharpen as `USMSharp` of BasicSR, whose kernel has two dimensions."""
    residual = image - filtered(image, kernel)
    mask = filtered((residual.abs() * 255 > 10).float(), kernel)
    return mask * (image + 0.5 * residual).clamp(0, 1) + (1 - mask) * image


def noisy(image: Tensor, drawn: Any) -> Tensor:
    """Add Gaussian or Poisson noise."""
    sigma, gray = float(drawn[steps.SIGMA]), drawn[steps.COLORS] == steps.GRAY
    if drawn[steps.KIND] == steps.GAUSSIAN:
        noise = torch.randn(image[:1].shape if gray else image.shape) * sigma
    else:
        base = torch.tensordot(torch.tensor([[0.2989, 0.587, 0.114]]), image, 1) if gray else image
        base = (base * 255).round().clamp(0, 255) / 255
        photons = 2.0 ** math.ceil(math.log2(max(len(base.unique()), 1)))
        noise = (torch.poisson(base * photons) / photons - base) * sigma
    return (image + noise).clamp(0, 1)


def compressed(image: Tensor, quality: float) -> Tensor:
    """Compress as DiffJPEG."""
    _, height, width = image.shape
    factor = 50 / quality if quality < 50 else 2 - quality / 50
    padded = functional.pad(image.clamp(0, 1), (0, -width % 16, 0, -height % 16)) * 255
    ycc = torch.tensordot(TO_YCC, padded, 1)
    planes = [ycc[:1] - 128, functional.avg_pool2d(ycc[1:], 2)]
    for k, part in enumerate(planes):
        count, h, w = part.shape
        steps_of = (TABLES[0] if k == 0 else TABLES[1:, None, None]) * factor
        blocks = DCT @ part.reshape(count, h // 8, 8, w // 8, 8).transpose(2, 3) @ DCT.T
        blocks = DCT.T @ ((blocks / steps_of).round() * steps_of) @ DCT
        planes[k] = blocks.transpose(2, 3).reshape(count, h, w)
    color = planes[1].repeat_interleave(2, 1).repeat_interleave(2, 2)
    found = torch.tensordot(TO_RGB, torch.cat([planes[0] + 128, color]), 1).clamp(0, 255) / 255
    return found[:, :height, :width]


def resized(image: Tensor, drawn: Any) -> Tensor:
    """Resize as a drawn step says."""
    options: dict[str, Any] = {"mode": NAMES[int(drawn[steps.MODE])]}
    if drawn[steps.FACTOR]:
        options["scale_factor"] = float(drawn[steps.FACTOR])
    else:
        options["size"] = (int(drawn[steps.HEIGHT]), int(drawn[steps.WIDTH]))
    return functional.interpolate(image[None], **options)[0]


def with_torch(images: Tensor, degradation: Degradation, epoch: int) -> None:
    """Degrade images (N, 3, H, W) one after the other."""
    chains, orders, _ = degradation.draw(np.arange(len(images)), *images.shape[2:], epoch=epoch)
    usm = make_kernel([1, blur.GAUSSIAN, 51, 8.0, 8.0, 0.0, 1.0]) if degradation.sharpens else None
    codes = [step[steps.CODE] for step in degradation.variants[0].steps]
    for image, chain, order in zip(images, chains, orders, strict=True):
        low = image if usm is None else sharpened(image, usm)
        for number in (n for n in order if chain[n, steps.DONE]):
            drawn, code = chain[number], codes[number]
            if code == steps.BLUR:
                low = filtered(low, make_kernel(drawn))
            elif code == steps.RESIZE:
                low = resized(low, drawn)
            elif code == steps.NOISE:
                low = noisy(low, drawn)
            else:
                low = compressed(low, float(drawn[steps.QUALITY]))
        (low.clamp(0, 1) * 255).round()


def ways(path: Path, options: argparse.Namespace) -> dict[str, Callable[[int], int]]:
    """Return what degrades an epoch in each way, given its number, and returns the number of samples."""

    def epoch(loader: Loader, _: int) -> int:
        return sum(len(batch.lr) for batch in loader)

    def by_torch(images: Tensor, degradation: Degradation, number: int) -> int:
        with_torch(images, degradation, number)
        return len(images)

    def on_device(images: Tensor, degradation: Degradation, number: int) -> int:
        return len(degradation.on_device(images, range(len(images)), seed=0, epoch=number)[0])

    found: dict[str, Callable[[int], int]] = {}
    for name, preset in PRESETS.items():
        transforms = [RandomCrop(options.size), RandomDihedral(), preset(SCALE), ToDtype(torch.float32, scale=True)]
        loader = Loader(path, BATCH, shuffle=True, seed=0, transforms=transforms, num_threads=1)
        found[name] = partial(epoch, loader)
    dataset = LMDBDataset(path)
    images = (
        torch.stack([dataset[k].image[:, : options.size, : options.size] for k in range(options.torch_images)]) / 255
    )
    for name, preset in PRESETS.items():
        found[f"{name}, on_device"] = partial(on_device, images, preset(SCALE))
    for name in ("real_esrgan", "neosr"):
        found[f"{name}, torch"] = partial(by_torch, images, PRESETS[name](SCALE))
    return found


def speed(path: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Measure every way in turn."""
    torch.set_num_threads(1)
    epochs = ways(path, options)
    times = in_turns(epochs, options.turns)
    medians = {name: statistics.median(found) for name, found in times.items()}
    rows = []
    for name in PRESETS:
        others = [medians.get(f"{name}, {way}") for way in ("on_device", "torch")]
        compared = [[f"{1 / t:.1f}", f"{t / medians[name]:.1f}"] if t else ["-", "-"] for t in others]
        rows.append([name, f"{1 / medians[name]:.0f}", *compared[0], *compared[1]])
    header = ["degradation", "samples/s of a core", "on_device", "times as fast", "own operators", "times as fast"]
    title = f"Degradations of {options.size} x {options.size} pixels, scale {SCALE}"
    return title, {name: 1 / found for name, found in medians.items()}, table(header, rows, markdown=options.markdown)


def blurred(size: int, images: Tensor) -> None:
    """Blur images (N, 3, H, W) one by one, as torchvision v2's GaussianBlur does."""
    reach = (size - 1) / (2 * math.sqrt(2))
    for image in images:
        sigma = torch.empty(1).uniform_(0.1, 2.0).item()
        row = torch.softmax(-((torch.linspace(-reach, reach, size) / sigma) ** 2), 0)
        kernel = (row[:, None] * row).expand(3, 1, size, size)
        padded = functional.pad(image[None].float(), [size // 2] * 4, mode="reflect")
        functional.conv2d(padded, kernel, groups=3).round_().to(torch.uint8)


def with_noise(images: Tensor) -> None:
    """Add noise to images (N, 3, H, W) one by one, as torchvision v2's GaussianNoise does."""
    for image in images:
        noise = (torch.randn_like(image, dtype=torch.float32) * (0.1 * 255)).to(torch.int16)
        torch.clamp(image + noise, 0, 255).to(torch.uint8)


def filters(path: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Compare blur and noise in a Loader, which reads and crops too, with torchvision's on images in memory."""
    torch.set_num_threads(1)
    size = min(options.size, 224)
    others = {
        "GaussianBlur(3)": (GaussianBlur(3), partial(blurred, 3)),
        "GaussianBlur(9)": (GaussianBlur(9), partial(blurred, 9)),
        "GaussianBlur(23)": (GaussianBlur(23), partial(blurred, 23)),
        "GaussianNoise()": (GaussianNoise(), with_noise),
    }
    loaders = {name: Loader(path, BATCH, seed=0, shuffle=True, transforms=[RandomCrop(size), t], num_threads=1)
               for name, (t, _) in others.items()}  # fmt: skip
    loaders["the crop alone"] = Loader(path, BATCH, seed=0, shuffle=True, transforms=[RandomCrop(size)], num_threads=1)
    images = LMDBDataset(path)[: 4 * options.torch_images]
    stack = torch.stack([sample.image[:, :size, :size] for sample in images])
    times: dict[str, list[float]] = {}
    for turn in range(options.turns + 1):
        for name, loader in loaders.items():
            began = time.process_time()
            count = sum(len(batch.image) for batch in loader)
            times.setdefault(name, []).append((time.process_time() - began) / count)
            if turn and name in others:
                began = time.process_time()
                others[name][1](stack)
                times.setdefault(f"{name}, torch", []).append((time.process_time() - began) / len(stack))
    medians = {name: 1e3 * statistics.median(found[len(found) > options.turns :]) for name, found in times.items()}
    rows = [[name, f"{medians[name]:.3f} ms", "-", "-"] for name in ("the crop alone",)]
    for name in others:
        other = medians[f"{name}, torch"]
        rows.append([name, f"{medians[name]:.3f} ms", f"{other:.3f} ms", f"{other / medians[name]:.1f}"])
    header = ["transform", "Loader", "torchvision's", "times as fast"]
    title = f"Blur and noise, {size} x {size} pixels of 8 bits"
    return title, medians, table(header, rows, markdown=options.markdown)


class Srcnn(torch.nn.Module):
    """SRCNN (9-1-5) on luma, which works in the size of its result: much arithmetic for a batch."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 64, 9), (64, 32, 1), (32, 1, 5))
        convolutions = [torch.nn.Conv2d(c, n, side, padding=side // 2) for c, n, side in sizes]
        self.first, self.second, self.third = convolutions

    def forward(self, small: Tensor) -> Tensor:
        """Return images SCALE times larger."""
        return self.third(self.second(self.first(upscale(small, SCALE)).relu()).relu())


class Espcn(torch.nn.Module):
    """ESPCN (5-3-3) on luma, which works in the size of the LR image: little arithmetic for a batch."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 64, 5), (64, 32, 3), (32, SCALE**2, 3))
        convolutions = [torch.nn.Conv2d(c, n, side, padding=side // 2) for c, n, side in sizes]
        self.first, self.second, self.third = convolutions

    def forward(self, small: Tensor) -> Tensor:
        """Return images SCALE times larger."""
        return functional.pixel_shuffle(self.third(self.second(self.first(small).tanh()).tanh()), SCALE)


def train(loader: Loader, model: torch.nn.Module, steps: int) -> StepTimer:
    """Train on luma, and return the times of the steps after the first two."""
    optimizer, timer, done = torch.optim.Adam(model.parameters()), StepTimer(), 0
    while True:
        timer.start()
        for batch in loader:
            timer.lap("data")
            loss = functional.l1_loss(model(batch.lr[:, 1:2]), batch.hr[:, 1:2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            timer.lap("update")
            done += 1
            if done == 2:
                timer.clear()
            if done == steps + 2:
                return timer


def training(path: Path, options: argparse.Namespace) -> tuple[str, Any, str]:
    """Train two networks with batches of each degradation, and measure how long they wait for them."""
    torch.set_num_threads(options.train_threads)
    rows, figures = [], {}
    for model, steps_of in ((Srcnn, options.steps), (Espcn, 10 * options.steps)):
        for name in ("real_esrgan", "bsrgan"):
            transforms = [RandomCrop(options.size), PRESETS[name](SCALE), ToDtype(torch.float32, scale=True)]
            loader = Loader(path, BATCH, shuffle=True, seed=0, transforms=transforms)
            timer = train(loader, model(), steps_of)
            waited, total = timer.seconds["data"], sum(timer.seconds.values())
            figures[f"{model.__name__}, {name}"] = waited / total
            step = f"{total / timer.num_steps:.2f} s"
            rows.append([model.__name__.upper(), name, step, f"{100 * waited / total:.1f} %"])
    header = ["model", "degradation", f"step, batch of {BATCH}", "waiting for data"]
    return "Training", figures, table(header, rows, markdown=options.markdown)


def run(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any, str]]:
    """Yield the title, figures and text of each section."""
    # An epoch of training has as many samples as DIV2K, so that one step in 50 waits for the first batch of an epoch.
    few, many = options.images, options.images * 5
    sections = {"speed": (speed, few), "filters": (filters, few), "training": (training, many)}
    for name in options.sections:
        section, count = sections[name]
        path = folder / f"{name}.lmdb"
        if not path.exists():
            write_images(path, options.size + 32, count)
        yield section(path, options)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where datasets are written; default: a temporary folder")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--size", type=int, default=256, help="side of the patches")
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--torch-images", type=int, default=16, help="images that torch degrades in a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of training")
    parser.add_argument("--train-threads", type=int, default=2, help="threads of torch in training")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, help="file for every figure")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    options = parser.parse_args()
    if options.quick:
        options.size, options.images, options.torch_images, options.turns, options.steps = 64, 32, 2, 1, 2
    torch.manual_seed(0)
    print_sections(partial(run, options=options), "Degradations made by compiled code in a Loader", options)


if __name__ == "__main__":
    main()
