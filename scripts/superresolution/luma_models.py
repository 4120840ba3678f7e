"""The networks on luma only: SRCNN, which sharpens a bicubic enlargement, and ESPCN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmdbloader.errors import OptionError
from lmdbloader.superres import upscale
from superresolution.upscaling import check_scale

__all__ = ["ESPCN", "SRCNN"]

# What ESPCN multiplies values by on their way through tanh.
SMALL = 0.1


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


class ESPCN(nn.Module):
    """The three-layer network of Shi et al. (2016): luma in, larger luma out, by pixel shuffle.

    The layers are the paper's: 5 x 5 to 64 features, 3 x 3 to 32, 3 x 3 to scale x scale channels, tanh between. One
    path through the layers starts as the filters of bicubic and the rest near zero, so training starts from bicubic
    instead of black; tanh is nearly linear for the small values on that path.
    """

    channels = 1
    upscales = True

    def __init__(self, scale: int) -> None:
        """Build the network with fresh weights, for a scale of 2, 3 or 4."""
        super().__init__()
        check_scale(self, scale)
        self.scale = scale
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2, padding_mode="replicate"),
            nn.Tanh(),
            nn.Conv2d(64, 32, 3, padding=1, padding_mode="replicate"),
            nn.Tanh(),
            nn.Conv2d(32, scale**2, 3, padding=1, padding_mode="replicate"),
            nn.PixelShuffle(scale),
        )
        self._start_as_bicubic()

    def forward(self, images: Tensor) -> Tensor:
        """Return upscaled `images`: (B, 1, h, w) floating point luma in 0..1 to (B, 1, h * scale, w * scale)."""
        output: Tensor = self.layers(images)
        return output

    @torch.no_grad()
    def _start_as_bicubic(self) -> None:
        first, second, last = (layer for layer in self.layers if isinstance(layer, nn.Conv2d))
        for layer in (first, second, last):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.xavier_normal_(first.weight)
        nn.init.xavier_normal_(second.weight)
        pulse = torch.zeros(1, 1, 9, 9)
        pulse[0, 0, 4, 4] = 1
        filters = functional.pixel_unshuffle(upscale(pulse, self.scale), self.scale)[0, :, 2:7, 2:7].flip(1, 2)
        for channel in range(count := self.scale**2):
            first.weight[channel, 0] = filters[channel] * SMALL
            second.weight[channel] = 0
            second.weight[channel, channel, 1, 1] = 1
        nn.init.normal_(last.weight, std=1e-3)
        last.weight[:, :count] = 0
        last.weight[range(count), range(count), 1, 1] = 1 / SMALL
