"""Scores a classifier: top-1 accuracy and loss, of one view of each image or of the mean over several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classification.precision import Precision

__all__ = ["Accuracy", "Views", "evaluate", "five_crops", "mirrored"]

Views = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Scores of a model on some images.

    Attributes:
        num_images: How many.
        num_correct: Of them, those whose highest logit is the label's.
        loss: Sum of the cross-entropies.
    """

    num_images: int
    num_correct: int
    loss: float

    @property
    def top1(self) -> float:
        """Share of the images that are classified correctly, 0 to 1."""
        return self.num_correct / self.num_images if self.num_images else 0.0


def mirrored(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return images (B, C, H, W), and their mirror images."""
    return images, images.flip(-1)


def five_crops(images: Tensor, size: int) -> list[Tensor]:
    """Return the windows in the middle and in the four corners of images, and the mirror images of all five.

    These are the ten views of Krizhevsky et al. (2012).

    Args:
        images: (B, C, H, W).
        size: Height and width of a window, at most those of the images.

    >>> [tuple(view.shape) for view in five_crops(torch.zeros(2, 3, 9, 9), 8)][:2]
    [(2, 3, 8, 8), (2, 3, 8, 8)]
    """
    down, across = (side - size for side in images.shape[-2:])
    places = [(round(down / 2), round(across / 2)), *((y, x) for y in (0, down) for x in (0, across))]
    windows = [images[..., y : y + size, x : x + size] for y, x in places]
    return [view for window in windows for view in mirrored(window)]


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Iterable[Any], *, precision: Precision, views: Views | None = None) -> Accuracy:
    """Score a model on every batch; it is left in the mode that it was in.

    Args:
        model: On the precision's device.
        batches: Yields (images, labels): (B, 3, H, W) floating point and normalized, (B,) int64; on any device.
        precision: Of the forward pass.
        views: Makes several views of a batch's images, for test-time augmentation: the class probabilities of an image
            are then the mean over its views. None takes the images as they are.
    """
    was_training = model.training
    model.eval()
    num_images = 0
    # Summed on the device: copying a number every step would make it wait.
    correct = torch.zeros((), dtype=torch.int64, device=precision.device)
    loss = torch.zeros((), dtype=torch.float64, device=precision.device)
    for images, labels in batches:
        labels = labels.to(precision.device, non_blocking=True)
        images = images.to(precision.device, non_blocking=True)
        seen = (images,) if views is None else views(images)
        logs = []
        for view in seen:
            with precision.autocast():
                logs.append(model(view).float().log_softmax(dim=1))
        log_mean = torch.stack(logs).logsumexp(dim=0) - math.log(len(logs)) if len(logs) > 1 else logs[0]
        correct += (log_mean.argmax(dim=1) == labels).sum()
        loss += functional.nll_loss(log_mean, labels, reduction="sum")
        num_images += len(labels)
    model.train(was_training)
    return Accuracy(num_images, int(correct), float(loss))
