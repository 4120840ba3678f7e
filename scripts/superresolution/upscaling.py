"""What the networks on RGB share: a head, a body, pixel shuffle, and the bicubic enlargement added at the end."""

from __future__ import annotations

from torch import Tensor, nn

from lmdbloader.errors import OptionError
from lmdbloader.superres import upscale

__all__ = ["Upscaler", "check_scale", "conv"]


def check_scale(model: nn.Module, scale: int) -> None:
    """Raise OptionError if a scale is not 2, 3 or 4."""
    if scale not in (2, 3, 4):
        raise OptionError(f"{type(model).__name__} upscales by 2, 3 or 4; found scale {scale}.")


def conv(num_in: int, num_out: int) -> nn.Conv2d:
    """Return a 3 x 3 convolution that keeps the size."""
    return nn.Conv2d(num_in, num_out, 3, padding=1)


class Upscaler(nn.Module):
    """RGB in, larger RGB out: a convolution, a body with a skip around it, and pixel shuffle.

    The bicubic enlargement of the input is added at the end, where the papers add a mean color. The last layer starts
    at zero, so the untrained network returns exactly bicubic. The number of weights is that of the papers.

    Attributes:
        channels: 3, for RGB.
        scale: The upscaling factor.
        upscales: True: its input is the small image.
    """

    channels = 3
    upscales = True

    def __init__(self, scale: int, body: nn.Module, *, num_features: int, is_direct: bool = False) -> None:
        """Build the network with fresh weights.

        Args:
            scale: 2, 3 or 4.
            body: (B, num_features, h, w) to the same.
            num_features: Channels inside the network.
            is_direct: Whether one convolution and one pixel shuffle make the pixels, as in light networks; else
                features are upscaled first, x4 in two steps.

        Raises:
            OptionError: The scale is not 2, 3 or 4.
        """
        super().__init__()
        check_scale(self, scale)
        self.scale = scale
        self.head = conv(3, num_features)
        self.body = body
        stages: list[nn.Module] = []
        for factor in () if is_direct else (2, 2) if scale == 4 else (scale,):
            stages += [conv(num_features, num_features * factor**2), nn.PixelShuffle(factor)]
        self.upsampler = nn.Sequential(*stages)
        self.tail = conv(num_features, 3 * scale**2 if is_direct else 3)
        self.shuffle = nn.PixelShuffle(scale if is_direct else 1)
        nn.init.zeros_(self.tail.weight)
        nn.init.zeros_(self.tail.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Return upscaled `images`: (B, 3, h, w) float RGB in 0..1 to (B, 3, h * scale, w * scale), not clamped."""
        features = self.head(images)
        features = features + self.body(features)
        detail: Tensor = self.shuffle(self.tail(self.upsampler(features)))
        return detail + upscale(images, self.scale)
