"""Lists of transforms and images whose results torchvision has made, for tests that have no torchvision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lmdbloader import transforms as T

SEED, EPOCH = 7, 3
NUM_SAMPLES = 4


@dataclass(frozen=True)
class Case:
    """Calls of constructors, by one name in both libraries, and by how much results may differ.

    Attributes:
        name: Of the case.
        calls: (name of the transform, positional arguments, keywords) each.
        channels, dtype, height, width: Of the images.
        off: The largest difference of a value.
        share: The largest share of the values that differ at all.
    """

    name: str
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    channels: int = 3
    dtype: type = np.uint8
    height: int = 13
    width: int = 18
    off: float = 0
    share: float = field(default=1.0)

    def ours(self) -> list[T.Transform]:
        """Return the transforms of lmdbloader."""
        return [getattr(T, name)(*args, **keywords) for name, args, keywords in self.calls]

    def images(self) -> np.ndarray:
        """Return the images (NUM_SAMPLES, channels, height, width): random pixels, smooth ones, greys."""
        top = 250 if self.dtype == np.uint8 else 65000  # of 65535 torchvision's hue makes 0
        rng = np.random.default_rng(5)
        images = rng.integers(0, top + 1, (NUM_SAMPLES, self.channels, self.height, self.width))
        ramp = np.linspace(0, top, self.height)[:, None] + np.linspace(0, top, self.width)
        images[1] = np.stack([ramp, ramp[::-1], ramp[:, ::-1]])[: self.channels] / 2
        images[2] = images[2, :1]
        return images.astype(self.dtype)


def case(name: str, *calls: Any, **options: Any) -> Case:
    """Return a case; a call is a tuple (name, *positional arguments), or with a dict of keywords at its end."""
    split = [
        (call[0], call[1:-1], call[-1]) if isinstance(call[-1], dict) else (call[0], call[1:], {}) for call in calls
    ]
    return Case(name, tuple(split), **options)


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# One value in a hundred may be cut off to a neighboring level: torch adds a multiple in one rounding.
COLORS: dict[str, Any] = {"off": 1, "share": 0.01}
CASES = (
    case("crop", ("RandomCrop", 8)),
    case("crop of two sides", ("RandomCrop", [9, 5])),
    case("crop of one side in a list", ("RandomCrop", [9])),
    case("crop with padding", ("RandomCrop", (14, 20), 4, False, 7)),
    case("crop with two paddings", ("RandomCrop", 13, (3, 1), False, (1, 2, 3))),
    case("crop with four paddings", ("RandomCrop", 13, [0, 5, 2, 9])),
    case("crop with padding if needed", ("RandomCrop", (16, 25), None, True, 9)),
    case("crop with both", ("RandomCrop", 20, (1, 0, 0, 1), {"pad_if_needed": True})),
    case("center", ("CenterCrop", (8, 11))),
    case("center of one side", ("CenterCrop", (7,))),
    case("mirrored", ("RandomHorizontalFlip",), ("RandomVerticalFlip", 0.6)),
    case("always mirrored", ("RandomHorizontalFlip", 1.0)),
    # Two resizes may round a half either way.
    case("resized crop", ("RandomResizedCrop", 9), off=1),
    case("resized crop of two sides", ("RandomResizedCrop", [7, 12], (0.5, 1.0), (0.5, 2.0), "bicubic"), off=2),
    case("resized", ("Resize", (9, 7)), off=1),
    case("resized to a shorter side", ("Resize", [8], "bicubic", {"antialias": True}), off=2),
    case("resized up", ("Resize", 21), off=1),
    case("brightness", ("ColorJitter", 0.4), **COLORS),
    case("contrast", ("ColorJitter", 0, 0.4), **COLORS),
    case("saturation", ("ColorJitter", None, None, (0.5, 1.5)), **COLORS),
    case("hue", ("ColorJitter", 0, 0, 0, 0.5)),
    case("hue to one side", ("ColorJitter", {"hue": (-0.3, -0.1)})),
    case("hue of 16 bits", ("ColorJitter", 0, 0, 0, 0.5), dtype=np.uint16),
    case("hue of grey", ("ColorJitter", 0, 0, 0, 0.5), channels=1),
    case("everybody's jitter", ("ColorJitter", 0.4, 0.4, 0.4, 0.1), off=8, share=0.03),
    case("jitter of grey", ("ColorJitter", 0.4, 0.4, 0.4, 0.1), channels=1, **COLORS),
    case("grey", ("RandomGrayscale", 0.5)),
    case("grey by default", ("RandomGrayscale",)),
    case("solarized", ("RandomSolarize", 128, 0.6)),
    case("inverted", ("RandomInvert",)),
    case("posterized", ("RandomPosterize", 3, 0.8)),
    case("posterized in 16 bits", ("RandomPosterize", 5), dtype=np.uint16),
    case("equalized", ("RandomEqualize", 0.8), height=40),
    case("equalized in 16 bits", ("RandomEqualize", 1.0), dtype=np.uint16, channels=1, height=40),
    case("autocontrast", ("RandomAutocontrast", 0.8)),
    case("autocontrast of 16 bits", ("RandomAutocontrast",), dtype=np.uint16),
    case("sharpened", ("RandomAdjustSharpness", 1.7, 0.8)),
    case("smoothed grey", ("RandomAdjustSharpness", 0), channels=1),
    case("channels permuted", ("RandomChannelPermutation",)),
    case("blurred", ("GaussianBlur", 5), **COLORS),
    case("blurred across and down", ("GaussianBlur", (3, 7), (0.5, 3)), **COLORS),
    case("blurred by one number", ("GaussianBlur", [9], 1.5), channels=1, **COLORS),
    case("blurred in 16 bits", ("GaussianBlur", 5, (0.5, 2.0)), dtype=np.uint16, off=1, share=0.05),
    case("rotated", ("RandomRotation", 30)),
    case("rotated and expanded", ("RandomRotation", (30, 30), "bilinear", True, {"fill": (1, 2, 3)}), **COLORS),
    case("turned", ("RandomRotation", (90, 90), "bilinear", {"expand": True}), ("RandomRotation", [180, 180]), off=0),
    case("rotated about a corner", ("RandomRotation", 90, "bilinear", False, [0, 2.5], 9), **COLORS),
    case("affine", ("RandomAffine", 0, (0.3, 0.2)), ("RandomAffine", 45, None, (0.5, 2.0), 20)),
    case(
        "affine with all",
        ("RandomAffine", (-20, 80), (0.1, 0.3), (0.5, 1.5), [-10, 10, 5, 30], "bilinear", 200, [4, 4]),
        channels=1, **COLORS,
    ),
    case("affine in 16 bits", ("RandomAffine", 30, {"interpolation": "bilinear"}), dtype=np.uint16, off=1, share=0.1),
    case("affine of floats", ("RandomAffine", 30, {"interpolation": "bilinear"}), dtype=np.float32, off=0.2),
    case("perspective", ("RandomPerspective",), **COLORS),
    case("much perspective", ("RandomPerspective", 1.0, 1.0, "nearest", (9, 8, 7))),
    case("elastic", ("ElasticTransform", 50.0, 1.0), **COLORS),
    case("elastic across and down", ("ElasticTransform", [90.0, 9.0], [0.5, 0.8], "nearest", 255), share=0.01, off=255),
    case("elastic without smoothing", ("ElasticTransform", 5, 0), channels=1, **COLORS),
    case("noise", ("GaussianNoise",)),
    case("bright noise", ("GaussianNoise", 0.1, 0.3, True), channels=1),
    case("RandAugment", ("RandAugment",), height=20, **COLORS),
    case("RandAugment of grey", ("RandAugment", 4, 25, {"interpolation": "bilinear"}), channels=1, height=20, off=1),
    case("RandAugment with a fill", ("RandAugment", 3, 30, 31, "bilinear", [9, 80, 250]), height=20, off=2),
    case("TrivialAugmentWide", ("TrivialAugmentWide",), height=20, **COLORS),
    case("AutoAugment", ("AutoAugment",), height=20, **COLORS),
    case("AutoAugment of svhn", ("AutoAugment", "svhn", {"fill": 7}), height=20, **COLORS),
    case("AugMix", ("AugMix",), height=20, **COLORS),
    case("AugMix of grey", ("AugMix", 10, 2, 2, 0.5, False, "nearest"), channels=1, height=20, **COLORS),
    case(
        "a policy between padded crops", ("RandomCrop", 16, 4, False, 9), ("RandAugment", 3, 20, {"fill": 40}),
        ("RandomHorizontalFlip", 1.0), ("RandomCrop", 14, 3, False, 77), **COLORS,
    ),
    case("erased", ("RandomErasing",)),
    case("erased with a value", ("RandomErasing", 1.0, (0.1, 0.5), (0.5, 2), (9, 8, 7))),
    case("floats", ("ToDtype", torch.float32), height=5),
    case("scaled", ("ToDtype", torch.float32, True), height=5),
    case("scaled to 16 bits", ("ToDtype", torch.uint16, {"scale": True})),
    case("normalized", ("ToDtype", torch.float32, True), ("Normalize", *IMAGENET), off=2e-6, height=5),
    case(
        "normalized by one number", ("ToDtype", torch.float32), ("Normalize", [128.0], [64.0]), off=2e-6,
        height=5,
    ),
    case(
        "a training's", ("RandomResizedCrop", 8, (0.3, 1)), ("RandomHorizontalFlip",), ("ToDtype", torch.float32, True),
        ("Normalize", *IMAGENET), ("RandomErasing", 0.5, {"value": 0.25}), off=0.02,
    ),
)  # fmt: skip
