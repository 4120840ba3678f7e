"""Degrades batches with torch, on any device, by the numbers that a Degradation draws for their samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import jpeg_tables, steps

F64 = npt.NDArray[np.float64]
_PEAKS = {torch.uint8: 255, torch.uint16: 65535, torch.float32: 255}
# A Gaussian kernel, as `make_blur_kernel` counts shapes. Real-ESRGAN's sharpening: side and standard deviation.
_GAUSSIAN, _SHARP_SIZE, _SHARP_SIGMA = 0, 51, 8.0
_SIDES = 16  # sides of a Fourier transform are multiples of this
_SIZE_OF_EVERY = 25  # the side of BSRGAN's kernel for a blur that keeps every n-th pixel
_GRAY = (0.2989, 0.587, 0.114), (0.299, 0.587, 0.114)  # of Real-ESRGAN, of BSRGAN
# The cosine transform: orthonormal; and libjpeg's in whole numbers, the left half of its rows.
_DCT = np.cos((2 * np.arange(8) + 1) * np.arange(8)[:, None] * math.pi / 16) / 2
_DCT[0] /= math.sqrt(2)
_HALF_ROWS = np.array(
    [
        [8192, 8192, 8192, 8192], [11363, 9633, 6437, 2260], [10703, 4433, -4433, -10703], [9633, -2259, -11362, -6436],
        [8192, -8192, -8192, 8192], [6437, -11362, 2261, 9633], [4433, -10704, 10704, -4433],
        [2260, -6436, 9633, -11363],
    ]
)  # fmt: skip
_WHOLE_DCT = np.hstack([_HALF_ROWS, _HALF_ROWS[:, ::-1] * np.array([1, -1] * 4)[:, None]]).astype(float)
_TABLES = np.stack([jpeg_tables.LUMINANCE, jpeg_tables.COLOR]).reshape(2, 8, 8)
# libjpeg's blue and red chroma in RGB, in 65536ths.
_TO_RGB_BITS = np.array([[0, 91881], [-22554, -46802], [116130, 0]], float)


def sample_numbers(samples: Any, count: int, where: str) -> npt.NDArray[np.int64]:
    """Return the numbers (count,) of the samples of a batch; `where` is the call, for errors.

    Raises:
        OptionError: They have a wrong type, shape or range.
    """
    numbers = samples.cpu().numpy() if isinstance(samples, Tensor) else np.asarray(samples)
    if (
        numbers.dtype.kind not in "iu"
        or numbers.shape != (count,)
        or not 0 <= int(numbers.min()) <= numbers.max() < 2**63
    ):
        shown = f"{numbers.dtype} {numbers.shape}"
        raise OptionError(f"{where}: samples is {shown}; expected the number of each of the {count} samples")
    return numbers.astype(np.int64)


def numbers_of(samples: Any, hr: Any, scale: int, where: str) -> npt.NDArray[np.int64]:
    """Return the samples' numbers (B,); `where` is the call, for errors.

    Raises:
        OptionError: The numbers or the images have a wrong type, shape or range.
    """
    if not isinstance(hr, Tensor) or hr.ndim != 4 or hr.shape[1] not in (1, 3) or hr.dtype not in _PEAKS or not len(hr):
        shown = f"{tuple(hr.shape)} of {hr.dtype}" if isinstance(hr, Tensor) else f"a {type(hr).__name__}"
        raise OptionError(f"{where}: hr is {shown}; expected a batch (B, 1 or 3, H, W) of uint8, uint16 or float32")
    height, width = hr.shape[2:]
    if height % scale or width % scale or not height * width:
        raise OptionError(f"{where}: images of {height}x{width} pixels; expected multiples of {scale}. Crop them.")
    if hr.is_floating_point() and not (hr.amin() >= 0 and hr.amax() <= 1):
        found = f"values from {hr.amin():.4g} to {hr.amax():.4g}"
        raise OptionError(f"{where}: hr has {found}; expected 0 to 1. Normalize lr and hr afterwards.")
    return sample_numbers(samples, len(hr), where)


@torch.no_grad()
def degrade(hr: Tensor, keys: Any, table: F64, drawn: F64, orders: Any, sharpens: str) -> tuple[Tensor, Tensor]:
    """Return `lr` and `hr`; see `Degradation.on_device`.

    Args:
        hr: (B, 1 or 3, H, W) uint8, uint16, or float32 from 0 to 1.
        keys: (B, 3) uint64, on which noise depends.
        table: (B, steps, NUM_STEP) of each sample's variant, see `steps`.
        drawn, orders: As `Degradation.draw` returns them.
        sharpens: As of a Degradation.
    """
    generator, lows = torch.Generator(hr.device), []
    with torch.autocast(hr.device.type, enabled=False):  # kernels and coefficients of 8 bits would be other ones
        images = hr.float() if hr.is_floating_point() else hr.float() / _PEAKS[hr.dtype]
        if sharpens:
            images = _sharpened(images.flatten(0, 1)).view_as(images)
        for k, low in enumerate(images):
            for number in (n for n in orders[k] if drawn[k, n, steps.DONE]):
                found, code = drawn[k, number], table[k, number, steps.CODE]
                if code == steps.BLUR:
                    low = _filtered(low, _kernel(found[steps.SHAPE : steps.BETA + 1], hr.device))
                elif code == steps.RESIZE:
                    low = _resized(low, found)
                    low = low.clamp(0, 1) if table[k, number, steps.CLIPS] else low
                elif code == steps.NOISE:
                    words = np.append(keys[k], np.uint64(number)).view("<u4")
                    low = _noisy(low, found, np.random.SeedSequence(words), generator)
                else:
                    is_own = found[steps.ARITHMETIC_OF] == steps.LIBJPEG
                    low = (_libjpeg if is_own else _diffjpeg)(low.clamp(0, 1), float(found[steps.QUALITY]))
            lows.append(low)
        return _rounded(torch.stack(lows), hr), _rounded(images, hr) if sharpens == "both" else hr


def _rounded(images: Tensor, like: Tensor) -> Tensor:
    peak = _PEAKS[like.dtype]
    levels = (images.clamp(0, 1) * peak).round()
    return levels / peak if like.is_floating_point() else levels.to(like.dtype)


def _kernel(numbers: Any, device: torch.device) -> Tensor:
    """Return a blur kernel (k, k) of SHAPE ... BETA."""
    weights, size = np.empty(steps.KERNEL_ROOM, np.float32), int(numbers[1])
    if entries.make_blur_kernel(int(numbers[0]), size, *map(float, numbers[2:]), weights):
        row = torch.from_numpy(weights[:size]).to(device)
        return torch.outer(row, row)
    length = -(-size // steps.TAPS) * steps.TAPS
    return torch.from_numpy(weights[: size * length].reshape(size, length)[:, :size].copy()).to(device)


def _filtered(planes: Tensor, kernel: Tensor) -> Tensor:
    """Filter planes (n, H, W); the border is mirrored without repeating the edge.

    Fourier transforms are many times as fast as convolutions of one channel, and exact to float32.
    """
    (_, height, width), half = planes.shape, len(kernel) // 2
    if half < min(height, width):
        planes = functional.pad(planes, [half] * 4, mode="reflect")
    else:  # mirrored several times
        for dim, size in ((1, height), (2, width)):
            period = max(2 * (size - 1), 1)
            at = torch.arange(-half, size + half, device=planes.device).abs() % period
            planes = planes.index_select(dim, torch.minimum(at, period - at))
    sides = [-(-side // _SIDES) * _SIDES for side in planes.shape[1:]]
    found = torch.fft.rfft2(planes, s=sides) * torch.fft.rfft2(kernel, s=sides).conj()
    result: Tensor = torch.fft.irfft2(found, s=sides)
    return result[:, :height, :width]


def _sharpened(planes: Tensor) -> Tensor:
    """Return planes (n, H, W) after BasicSR's unsharp masking."""
    kernel = _kernel((_GAUSSIAN, _SHARP_SIZE, _SHARP_SIGMA, _SHARP_SIGMA, 0, 1), planes.device)
    rest = planes - _filtered(planes, kernel)
    mask = _filtered((rest.abs() * 255 > 10).float(), kernel)
    return mask * (planes + 0.5 * rest).clamp(0, 1) + (1 - mask) * planes


def _resized(image: Tensor, found: F64) -> Tensor:
    """Resize an image (C, H, W) as a drawn step says."""
    size = int(found[steps.HEIGHT]), int(found[steps.WIDTH])
    if found[steps.MODE] == steps.EVERY_NTH:
        every = int(found[steps.FACTOR])
        spread, place = found[steps.SPREAD], np.arange(_SIZE_OF_EVERY)
        row = _kernel((_GAUSSIAN, _SIZE_OF_EVERY, spread, spread, 0, 1), torch.device("cpu")).sum(0).numpy()
        row = np.interp(place + 0.5 * (every - 1), place, row)[::-1]
        kernel = torch.from_numpy((row / row.sum()).astype(np.float32)).to(image.device)
        return _filtered(image, torch.outer(kernel, kernel))[:, ::every, ::every]
    shrinks = size[0] <= image.shape[1] and size[1] <= image.shape[2]
    for dim in (1, 2) if size[0] <= image.shape[1] else (2, 1):
        index, weights = (part.to(image.device) for part in _weights(image.shape[dim], size[dim - 1], found, shrinks))
        parts = image.index_select(dim, index.flatten())
        parts = parts.reshape(*image.shape[:dim], *index.shape, *image.shape[dim + 1 :])
        image = (parts * (weights[:, :, None] if dim == 1 else weights)).sum(dim + 1)
    return image


def _weights(size: int, out_size: int, found: F64, shrinks: bool) -> tuple[Tensor, Tensor]:
    """Return which values of a row each value of a resized one is the sum of, and their weights, (out_size, n) each."""
    lengths = entries.resample_room(size, size, out_size, out_size)
    bounds, weights, line = (np.zeros(n, t) for n, t in zip(lengths, (np.int32, np.float32, np.float32), strict=True))
    room = entries.weigh(
        size, out_size, float(found[steps.FACTOR]), int(found[steps.MODE]), bool(found[steps.IS_ANTIALIASED]), shrinks,
        bounds, weights, line,
    )  # fmt: skip
    first, count = bounds[: 2 * out_size].reshape(out_size, 2, 1).transpose(1, 0, 2)
    places = np.arange(count.max())
    table = weights[: out_size * room].reshape(out_size, room)[:, : len(places)] * (places < count)
    return torch.from_numpy(np.minimum(first + places, size - 1)), torch.from_numpy(table)


def _noisy(image: Tensor, found: F64, seed: np.random.SeedSequence, generator: torch.Generator) -> Tensor:
    """Add noise, which depends on the seed and the kind of device alone, to an image (C, H, W), and clip it."""
    kind, sigma, colors = (found[column] for column in (steps.KIND, steps.SIGMA, steps.COLORS))
    if sigma == 0:
        return image.clamp(0, 1)
    key, is_gray = seed.generate_state(3, np.uint64), bool(colors == steps.GRAY)
    generator.manual_seed(int(key[0]))
    if kind == steps.POISSON:
        return _with_poisson(image, sigma, found[steps.VALUES], is_gray, generator)
    image = image.clamp(0, 1) if kind == steps.SPECKLE else image
    is_correlated = bool(colors == steps.CORRELATED)
    shape = (3 if is_correlated else 1 if is_gray else len(image), *image.shape[1:])
    noise = torch.randn(shape, generator=generator, device=image.device, dtype=image.dtype)
    if is_correlated:
        entries.draw_mixture(float(sigma), int(key[1]), int(key[2]), mixture := np.zeros(21))
        noise = (_table(mixture[:9].reshape(3, 3)[: len(image)], noise).float() @ noise.flatten(1)).view_as(image)
    else:
        noise = noise * sigma
    return (image + (image * noise if kind == steps.SPECKLE else noise)).clamp(0, 1)


def _with_poisson(image: Tensor, scale: float, photons: float, is_gray: bool, generator: torch.Generator) -> Tensor:
    """Add Poisson noise; see `poisson` in `lmdbloader.kernels.degrade.noise`."""
    if photons:
        image = (image * 255).clamp(0, 255).round() / 255
    base = image
    if is_gray and len(image) == 3:
        base = sum(share * plane for share, plane in zip(_GRAY[int(photons > 0)], image[:, None], strict=True))
    levels = (base * 255).clamp(0, 255).round()
    base, number = levels / 255, torch.tensor(photons, dtype=torch.float32, device=image.device)
    if not photons:  # the number of levels, rounded up to a power of two, without waiting for the device
        present = torch.zeros(256, device=image.device).index_fill_(0, levels.long().flatten(), 1)
        powers = 2.0 ** torch.arange(9, device=image.device)
        number = powers[(powers < present.sum()).sum()]
    noise = torch.poisson(base * number, generator=generator) / number - base
    return (image + scale * noise).clamp(0, 1)


def _through_blocks(planes: Tensor, table: Tensor, *, is_whole: bool) -> Tensor:
    """Transform 8 x 8 values of planes (n, H, W) float64, quantize them, and transform them back.

    Whole numbers are rounded where libjpeg does it, and every sum is exact: the results are libjpeg's.
    """

    def passed(values: Tensor, bits: int) -> Tensor:
        return (values * 2.0**-bits + 0.5).floor() if is_whole else values

    count, height, width = planes.shape
    basis = _table(_WHOLE_DCT if is_whole else _DCT, planes)
    blocks = planes.reshape(count, height // 8, 8, width // 8, 8).transpose(2, 3)
    blocks = passed(basis @ passed(blocks @ basis.T, 11), 15)
    ratio = blocks / (8 * table if is_whole else table)
    blocks = (ratio.sign() * (ratio.abs() + 0.5).floor() if is_whole else ratio.round()) * table
    blocks = passed(passed(basis.T @ blocks, 11) @ basis, 18)
    return blocks.transpose(2, 3).reshape(count, height, width)


def _table(values: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(values.astype(float)).to(like.device)


def _to_ycc(image: Tensor, factors: Any) -> tuple[Tensor, Tensor]:
    """Return brightness (1, H, W) and colors (2, H, W) of gray or RGB pixels."""
    table = _table(factors, image)
    ycc: Tensor = torch.tensordot(table[:, :3], image.double().expand(3, -1, -1), 1) + table[:, 3, None, None]
    return ycc[:1], ycc[1:]


def _diffjpeg(image: Tensor, quality: float) -> Tensor:
    """Compress an image (C, H, W) as Real-ESRGAN's DiffJPEG: nothing but the coefficients is rounded."""
    channels, height, width = image.shape
    factor = 50 / quality if quality < 50 else 2 - quality / 50
    padded = functional.pad(image, (0, -width % 16, 0, -height % 16)) * 255
    luma, color = _to_ycc(padded, jpeg_tables.TO_YCC)
    # A row of its tables is a horizontal frequency.
    luma, color = (
        _through_blocks(planes, table.T * factor, is_whole=False)
        for planes, table in zip((luma, functional.avg_pool2d(color, 2)), _table(_TABLES, image), strict=True)
    )
    color = color.repeat_interleave(2, 1).repeat_interleave(2, 2)
    found: Tensor = luma + 128 + torch.tensordot(_table(jpeg_tables.TO_RGB[:channels], image), color, 1)
    return (found[:, :height, :width].clamp(0, 255) / 255).float()


def _libjpeg(image: Tensor, quality: float) -> Tensor:
    """Compress an image (C, H, W) as libjpeg with 4:2:0, in its whole numbers."""
    channels, height, width = image.shape
    percent = 5000 // int(quality) if quality < 50 else 200 - 2 * int(quality)
    pixels = functional.pad((image * 255).round(), (0, -width % 16, 0, height % 2), mode="replicate")
    luma, color = ((part / 65536).floor() for part in _to_ycc(pixels, jpeg_tables.TO_YCC_BITS))
    bias = 1 + torch.arange(color.shape[2] // 2, device=image.device) % 2
    color = (functional.avg_pool2d(color, 2) + bias / 4).floor()
    planes = []
    for part, table in zip((luma[:, :height], color), _table(_TABLES, image), strict=True):
        part = functional.pad(part, (0, 0, 0, -part.shape[1] % 8), mode="replicate")
        steps_of = ((table * percent + 50) / 100).floor().clamp(1, 255)
        planes.append((_through_blocks(part - 128, steps_of, is_whole=True) + 128).clamp(0, 255))
    luma, color = planes[0][:, :height, :width], planes[1][:, : (height + 1) // 2, : (width + 1) // 2]
    color = _interpolated(color)[:, :height, :width] - 128
    found: Tensor = luma + ((torch.tensordot(_table(_TO_RGB_BITS[:channels], image), color, 1) + 32768) / 65536).floor()
    return (found.clamp(0, 255) / 255).float()


def _interpolated(planes: Tensor) -> Tensor:
    """Enlarge planes (n, H, W) twice, 3/4 of the nearer value and 1/4 of the farther one, as libjpeg does."""
    if planes.shape[2] < 3:
        return planes.repeat_interleave(2, 1).repeat_interleave(2, 2)
    for dim in (1, 2):
        at = torch.arange(planes.shape[dim], device=planes.device)
        sides = (planes.index_select(dim, (at + k).clamp(0, len(at) - 1)) for k in (-1, 1))
        planes = torch.stack([3 * planes + side for side in sides], dim + 1).flatten(dim, dim + 1)
    return ((planes + 8 - torch.arange(planes.shape[2], device=planes.device) % 2) / 16).floor()
