"""The networks: SRCNN on luma, and a small EDSR-like network on RGB."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.errors import OptionError
from lmdbloader.superres import upscale

__all__ = ["MODEL_NAMES", "SRCNN", "Model", "ModelName", "ResidualSR", "build_model"]

ModelName = Literal["srcnn915", "srcnn955", "residual"]
MODEL_NAMES: tuple[ModelName, ...] = ("srcnn915", "srcnn955", "residual")


class SRCNN(nn.Module):
    """The three-layer network of Dong et al. (2014): it sharpens a luma image that was upscaled by bicubic.

    The layers are the paper's: f1 x f1 to 64 features, f2 x f2 to 32, f3 x f3 to one, ReLU between, no residual. The
    convolutions are unpadded as in the paper; the input's border is repeated outwards first, so the output has the
    input's size. One path through the layers starts as the identity and the rest near zero: the untrained network
    returns its input, and training starts from bicubic instead of black.

    Attributes:
        channels: 1, for luma.
        scale: The factor that its input was upscaled by; the layers do not depend on it.
        upscales: False: its input has the size of its output.
    """

    channels = 1
    upscales = False

    def __init__(self, scale: int, *, kernel_sizes: tuple[int, int, int] = (9, 1, 5)) -> None:
        """Build the network with fresh weights.

        Args:
            scale: Upscaling factor, 1 or more.
            kernel_sizes: The odd sizes f1, f2, f3: (9, 1, 5), or (9, 5, 5), which is better and seven times slower.

        Raises:
            OptionError: A kernel size is even or below 1.
        """
        super().__init__()
        if len(kernel_sizes) != 3 or any(size < 1 or size % 2 == 0 for size in kernel_sizes):
            raise OptionError(f"kernel_sizes must be three odd numbers such as (9, 1, 5); found {kernel_sizes}.")
        self.scale = scale
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, kernel_sizes[0]),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 32, kernel_sizes[1]),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 1, kernel_sizes[2]),
        )
        self.margin = sum(kernel_sizes) // 2 - 1
        self._start_as_identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return sharpened `images`: (B, 1, H, W) floating point luma in 0..1 to (B, 1, H, W), not clamped."""
        output: Tensor = self.layers(functional.pad(images, [self.margin] * 4, mode="replicate"))
        return output

    @torch.no_grad()
    def _start_as_identity(self) -> None:
        first, second, last = (layer for layer in self.layers if isinstance(layer, nn.Conv2d))
        for layer in (first, second, last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            layer.weight[0] = 0
            layer.weight[0, 0, layer.kernel_size[0] // 2, layer.kernel_size[1] // 2] = 1


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(x))), without batch normalisation: (B, F, H, W) to (B, F, H, W)."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(num_features, num_features, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_features, num_features, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Add the layers' output to their input."""
        output: Tensor = images + self.layers(images)
        return output


class ResidualSR(nn.Module):
    """A small network after EDSR's baseline (Lim et al. 2017): RGB in, larger RGB out, upscaled by pixel shuffle.

    A head convolution, residual blocks without batch normalisation, and a convolution whose channels are shuffled into
    scale x scale pixels. The bicubic upscaling of the input is added at the end (EDSR adds a mean colour instead). The
    last layer starts at zero, so the untrained network returns exactly bicubic.

    Attributes:
        channels: 3, for RGB.
        scale: The upscaling factor.
        upscales: True: its input is the small image.
    """

    channels = 3
    upscales = True

    def __init__(self, scale: int, *, num_features: int = 64, num_blocks: int = 8) -> None:
        """Build the network with fresh weights.

        Args:
            scale: Upscaling factor: 2, 3 or 4.
            num_features: Channels inside the network.
            num_blocks: Residual blocks; EDSR's baseline has 16.

        Raises:
            OptionError: The scale is not 2, 3 or 4.
        """
        super().__init__()
        if scale not in (2, 3, 4):
            raise OptionError(f"ResidualSR upscales by 2, 3 or 4; found scale {scale}.")
        self.scale = scale
        self.head = nn.Conv2d(3, num_features, 3, padding=1)
        self.body = nn.Sequential(
            *(ResidualBlock(num_features) for _ in range(num_blocks)),
            nn.Conv2d(num_features, num_features, 3, padding=1),
        )
        # As in EDSR, x4 is x2 twice.
        factors = (2, 2) if scale == 4 else (scale,)
        stages: list[nn.Module] = []
        for factor in factors:
            stages += [nn.Conv2d(num_features, num_features * factor**2, 3, padding=1), nn.PixelShuffle(factor)]
        self.upsampler = nn.Sequential(*stages)
        self.tail = nn.Conv2d(num_features, 3, 3, padding=1)
        nn.init.zeros_(self.tail.weight)
        nn.init.zeros_(self.tail.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Return upscaled `images`: (B, 3, h, w) float RGB in 0..1 to (B, 3, h * scale, w * scale), not clamped."""
        features = self.head(images)
        features = features + self.body(features)
        detail: Tensor = self.tail(self.upsampler(features))
        return detail + upscale(images, self.scale)


Model = SRCNN | ResidualSR


def build_model(name: ModelName, scale: int) -> Model:
    """Return a fresh model by its name, on the CPU.

    Its weights are channels_last, which tensor cores need and which makes SRCNN twice as fast on the CPU.

    Args:
        name: "srcnn915" or "srcnn955" (SRCNN with these kernel sizes), or "residual".
        scale: Upscaling factor.

    Raises:
        OptionError: The name is unknown, or the model does not have this scale.

    >>> sum(weights.numel() for weights in build_model("srcnn915", 2).parameters())
    8129
    """
    model = _build(name, scale)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _build(name: ModelName, scale: int) -> Model:
    match name:
        case "srcnn915":
            return SRCNN(scale, kernel_sizes=(9, 1, 5))
        case "srcnn955":
            return SRCNN(scale, kernel_sizes=(9, 5, 5))
        case "residual":
            return ResidualSR(scale)
    raise OptionError(f"unknown model {name!r}; there are {', '.join(MODEL_NAMES)}.")
