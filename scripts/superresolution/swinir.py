"""SwinIR: attention within windows of 8 x 8 pixels, which every second block shifts by half."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from superresolution.upscaling import Upscaler, conv

__all__ = ["SwinIR"]


class WindowAttention(nn.Module):
    """Self-attention within windows, with a relative position bias."""

    distances: Tensor

    def __init__(self, num_features: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(num_features, 3 * num_features)
        self.proj = nn.Linear(num_features, num_features)
        self.distance_weights = nn.Parameter(torch.zeros((2 * window - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.distance_weights, std=0.02)
        places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        distances = places[:, None] - places[None] + window - 1  # (N, N, 2)
        self.register_buffer("distances", distances[..., 0] * (2 * window - 1) + distances[..., 1], persistent=False)

    def forward(self, windows: Tensor, seen: Tensor | None) -> Tensor:
        """Return (B, W, N, F) windows; `seen` (W, 1, N, N) says which pixels see each other, None: all of a window."""
        batch, count, length, features = windows.shape
        qkv = self.qkv(windows).view(batch, count, length, 3, self.num_heads, -1)
        query, key, value = qkv.permute(3, 0, 1, 4, 2, 5)
        weights = self.distance_weights[self.distances].permute(2, 0, 1)  # (heads, N, N)
        if seen is not None:
            weights = weights.masked_fill(~seen, -torch.inf)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=weights.to(query.dtype))
        output: Tensor = self.proj(found.transpose(2, 3).reshape(batch, count, length, features))
        return output


class Block(nn.Module):
    """Attention in windows, then two layers for each pixel, both with a skip: (B, H, W, F) to the same."""

    def __init__(self, num_features: int, num_heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(num_features)
        self.attention = WindowAttention(num_features, num_heads, window)
        self.norm2 = nn.LayerNorm(num_features)
        self.mlp = nn.Sequential(
            nn.Linear(num_features, 2 * num_features), nn.GELU(), nn.Linear(2 * num_features, num_features)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return images whose sides are multiples of the window."""
        height, width = images.shape[1:3]
        features, seen = self.norm1(images), None
        if self.shift:
            features = features.roll((-self.shift, -self.shift), (1, 2))
            # After the cyclic shift, the last rows and columns are not neighbors of the others.
            rows, columns = (torch.arange(side, device=images.device) >= side - self.shift for side in (height, width))
            parts = self._cut((rows[:, None] * 2 + columns)[None, ..., None])[0, :, :, 0]  # (W, N)
            seen = (parts[:, :, None] == parts[:, None])[:, None]
        windows = self.attention(self._cut(features), seen)
        side = self.window
        features = windows.view(len(images), height // side, width // side, side, side, -1).transpose(2, 3)
        features = features.reshape(images.shape)
        if self.shift:
            features = features.roll((self.shift, self.shift), (1, 2))
        images = images + features
        output: Tensor = images + self.mlp(self.norm2(images))
        return output

    def _cut(self, images: Tensor) -> Tensor:
        """Return the windows of images, (B, H, W, F) to (B, W, N, F)."""
        (batch, height, width, features), side = images.shape, self.window
        cut: Tensor = images.view(batch, height // side, side, width // side, side, features).transpose(2, 3)
        return cut.reshape(batch, -1, side * side, features)


class Group(nn.Module):
    """Blocks and a convolution, with a skip around them: (B, H, W, F) to the same."""

    def __init__(self, num_features: int, num_heads: int, window: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(Block(num_features, num_heads, window, (number % 2) * window // 2) for number in range(num_blocks))
        )
        self.conv = conv(num_features, num_features)

    def forward(self, images: Tensor) -> Tensor:
        """Add the layers' output to their input."""
        features: Tensor = self.conv(self.blocks(images).permute(0, 3, 1, 2))
        return images + features.permute(0, 2, 3, 1)


class Body(nn.Module):
    """All groups between two normalizations, and a convolution: (B, F, h, w) to the same."""

    def __init__(self, num_features: int, num_heads: int, window: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.window = window
        self.first_norm, self.last_norm = nn.LayerNorm(num_features), nn.LayerNorm(num_features)
        self.groups = nn.Sequential(*(Group(num_features, num_heads, window, depth) for depth in depths))
        self.conv = conv(num_features, num_features)

    def forward(self, images: Tensor) -> Tensor:
        """Pad to whole windows, and cut the result."""
        height, width = images.shape[-2:]
        more = (0, -width % self.window, 0, -height % self.window)
        images = functional.pad(images, more, mode="replicate")
        features = self.first_norm(images.permute(0, 2, 3, 1))
        features = self.last_norm(self.groups(features)).permute(0, 3, 1, 2)
        output: Tensor = self.conv(features[..., :height, :width])
        return output


class SwinIR(Upscaler):
    """The network of Liang et al. (2021), by default its light form; without the paper's stochastic depth.

    It adds bicubic at the end, as `Upscaler` describes. The paper's number of weights does not count the relative
    position biases: 32,400 in the light form.
    """

    def __init__(
        self,
        scale: int,
        *,
        num_features: int = 60,
        depths: tuple[int, ...] = (6, 6, 6, 6),
        num_heads: int = 6,
        window: int = 8,
    ) -> None:
        """Build the network with fresh weights.

        Args:
            scale: 2, 3 or 4.
            num_features: Channels inside the network, a multiple of num_heads.
            depths: Blocks of each group.
            num_heads: Heads of the attention.
            window: Side of a window in pixels; images of other sizes are padded to whole windows.
        """
        body = Body(num_features, num_heads, window, depths)
        super().__init__(scale, body, num_features=num_features, is_direct=True)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
