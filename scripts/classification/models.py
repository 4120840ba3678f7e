"""Residual networks for classification, and anti-aliased strides for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODEL_NAMES", "BlurPool", "ModelName", "ResNet", "blur_pool", "build_model"]

ModelName = Literal["tiny", "resnet18", "resnet50"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
# Fewer channels than this are colors or nearly so: blurring them would lose detail of the image.
_LEAST_BLURRED_CHANNELS = 16


class ResNet(nn.Module):
    """A residual network (He et al. 2016); layers are named as torchvision names them, so its weights can be loaded.

    The last normalization of every block starts at zero (Goyal et al. 2017), so that training starts with identities.

    Attributes:
        small_images: Whether the stem keeps the resolution, for images of about 32 x 32 pixels, instead of quartering.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        bottleneck: bool = False,
        small_images: bool = False,
    ) -> None:
        """Build it with random weights.

        Args:
            num_classes: Outputs.
            blocks: Residual blocks of each of the four stages; every stage after the first halves the resolution.
            width: Channels of the first stage; each stage doubles them.
            bottleneck: Whether blocks are 1x1, 3x3, 1x1 with four times the channels outside, as in ResNet-50.
            small_images: See the attribute.
        """
        super().__init__()
        self.small_images = small_images
        stem = nn.Conv2d(3, width, 3, padding=1, bias=False) if small_images else _stem(width)
        self.conv1, self.bn1 = stem, nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        block = _Bottleneck if bottleneck else _Basic
        channels, stages = width, []
        for stage, num_blocks in enumerate(blocks):
            layers: list[nn.Module] = []
            for number in range(num_blocks):
                layers.append(block(channels, width << stage, stride=2 if stage and not number else 1))
                channels = (width << stage) * block.expansion
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _Basic | _Bottleneck):
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, 3, H, W)."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def _stem(width: int) -> nn.Conv2d:
    return nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)


def _conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(channels: int, out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(_conv(channels, out, 1, stride), nn.BatchNorm2d(out))


class _Basic(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, features: Tensor) -> Tensor:
        kept = features if self.downsample is None else self.downsample(features)
        features = self.relu(self.bn1(self.conv1(features)))
        features = self.bn2(self.conv2(features))
        output: Tensor = self.relu(features + kept)
        return output


class _Bottleneck(nn.Module):
    """1x1, 3x3 (which strides) and 1x1 convolutions."""

    expansion = 4

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1, self.bn1 = _conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, out, 1), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, out, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, features: Tensor) -> Tensor:
        kept = features if self.downsample is None else self.downsample(features)
        features = self.relu(self.bn1(self.conv1(features)))
        features = self.relu(self.bn2(self.conv2(features)))
        features = self.bn3(self.conv3(features))
        output: Tensor = self.relu(features + kept)
        return output


def build_model(name: ModelName, num_classes: int, *, small_images: bool = False) -> ResNet:
    """Return an untrained model: "tiny" (0.3 million weights, trains on a CPU), "resnet18" or "resnet50".

    Args:
        name: Of `MODEL_NAMES`.
        num_classes: Outputs.
        small_images: Whether images have about 32 x 32 pixels: the stem then keeps their resolution.

    >>> sum(p.numel() for p in build_model("resnet18", 1000).parameters())
    11689512
    """
    if name == "tiny":
        return ResNet(num_classes, blocks=(1, 1, 1, 1), width=16, small_images=small_images)
    if name == "resnet18":
        return ResNet(num_classes, small_images=small_images)
    return ResNet(num_classes, blocks=(3, 4, 6, 3), bottleneck=True, small_images=small_images)


class BlurPool(nn.Module):
    """Blurs each channel with the binomial filter 1 2 1, across and down, and keeps every `stride`-th pixel."""

    kernel: Tensor

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        line = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("kernel", (line[:, None] * line).repeat(channels, 1, 1, 1), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, C, ceil(H / stride), ceil(W / stride)) of (B, C, H, W)."""
        kernel = self.kernel.to(features.dtype)
        return functional.conv2d(features, kernel, stride=self.stride, padding=1, groups=len(kernel))


def blur_pool(model: nn.Module) -> int:
    """Blur before every stride, in place (Zhang 2019): a picture moved by a pixel then gives nearly the same features.

    Strided convolutions of at least 16 channels get a blurred input; a strided maximum is taken at every pixel, then
    blurred and strided. The names of their weights get another level.

    Returns:
        How many strides were treated.
    """
    treated = 0
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Conv2d) and child.stride == (2, 2) and child.in_channels >= _LEAST_BLURRED_CHANNELS:
            at_once = child.kernel_size == (1, 1)  # it drops the pixels between, so the blur need not compute them
            if at_once:
                child.stride = (1, 1)
            replacement = nn.Sequential(BlurPool(child.in_channels, 2 if at_once else 1), child)
        elif isinstance(child, nn.MaxPool2d) and child.stride == 2 and isinstance(model, ResNet):
            pool = nn.MaxPool2d(child.kernel_size, stride=1, padding=child.padding)
            replacement = nn.Sequential(pool, BlurPool(model.bn1.num_features, 2))
        else:
            treated += blur_pool(child)
            continue
        setattr(model, name, replacement)
        treated += 1
    return treated
