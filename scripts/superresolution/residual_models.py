"""The networks of 3 x 3 convolutions on RGB: EDSR, RCAN with its channel attention, and SRVGG without skips."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from superresolution.upscaling import Upscaler, check_scale, conv

__all__ = ["EDSR", "RCAN", "SRVGG"]


class Skip(nn.Module):
    """x + layers(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Add the layers' output to their input."""
        output: Tensor = images + self.layers(images)
        return output


class EDSR(Upscaler):
    """The network of Lim et al. (2017): residual blocks without batch normalization.

    The default is the paper's baseline. It adds bicubic at the end, as `Upscaler` describes.
    """

    def __init__(self, scale: int, *, num_features: int = 64, num_blocks: int = 16) -> None:
        """Build the network with fresh weights, for a scale of 2, 3 or 4."""
        blocks = (
            Skip(conv(num_features, num_features), nn.ReLU(inplace=True), conv(num_features, num_features))
            for _ in range(num_blocks)
        )
        super().__init__(scale, nn.Sequential(*blocks, conv(num_features, num_features)), num_features=num_features)


class ChannelAttention(nn.Module):
    """Multiplies each channel by a number from 0 to 1 that depends on the means of all channels."""

    def __init__(self, num_features: int, reduction: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(num_features, num_features // reduction, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_features // reduction, num_features, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, F, H, W) weighted by channel."""
        output: Tensor = images * self.layers(images)
        return output


class RCAN(Upscaler):
    """The network of Zhang et al. (2018): residual groups, each with a skip, of blocks with channel attention.

    The default is smaller than the paper's 10 groups of 20 blocks. It adds bicubic at the end, as `Upscaler` describes.
    """

    def __init__(
        self, scale: int, *, num_groups: int = 3, num_blocks: int = 6, num_features: int = 64, reduction: int = 16
    ) -> None:
        """Build the network with fresh weights.

        Args:
            scale: 2, 3 or 4.
            num_groups: Groups.
            num_blocks: Residual blocks of each group.
            num_features: Channels inside the network.
            reduction: The factor by which channel attention reduces the channels.
        """

        def block() -> Skip:
            first, second = (conv(num_features, num_features) for _ in range(2))
            return Skip(first, nn.ReLU(inplace=True), second, ChannelAttention(num_features, reduction))

        groups = (
            Skip(*(block() for _ in range(num_blocks)), conv(num_features, num_features)) for _ in range(num_groups)
        )
        super().__init__(scale, nn.Sequential(*groups, conv(num_features, num_features)), num_features=num_features)


class SRVGG(nn.Module):
    """Real-ESRGAN's SRVGGNetCompact (Wang et al. 2021): convolutions with PReLU, and a nearest-neighbor skip.

    Each pixel of the input, repeated, is added to the output. The last layer starts at zero, so the untrained network
    returns the nearest enlargement.
    """

    channels = 3
    upscales = True

    def __init__(self, scale: int, *, num_convs: int = 32, num_features: int = 64) -> None:
        """Build the network with fresh weights, with `num_convs` convolutions between the first and the last one."""
        super().__init__()
        check_scale(self, scale)
        self.scale = scale
        self.head = nn.Sequential(conv(3, num_features), nn.PReLU(num_features))
        self.body = nn.Sequential(
            *(layer for _ in range(num_convs) for layer in (conv(num_features, num_features), nn.PReLU(num_features)))
        )
        self.tail = conv(num_features, 3 * scale**2)
        nn.init.zeros_(self.tail.weight)
        nn.init.zeros_(self.tail.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Return upscaled `images`: (B, 3, h, w) float RGB in 0..1 to (B, 3, h * scale, w * scale), not clamped."""
        detail = functional.pixel_shuffle(self.tail(self.body(self.head(images))), self.scale)
        return detail + functional.interpolate(images, scale_factor=self.scale, mode="nearest")
