"""Scores a classifier: top-1 accuracy and loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from classification.precision import Precision

__all__ = ["Accuracy", "evaluate"]


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


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Iterable[Any], *, precision: Precision) -> Accuracy:
    """Score a model on every batch; it is left in the mode that it was in.

    Args:
        model: On the precision's device.
        batches: Yields (images, labels): (B, 3, H, W) floating point and normalised, (B,) int64; on any device.
        precision: Of the forward pass.
    """
    was_training = model.training
    model.eval()
    num_images = 0
    # Summed on the device: copying a number every step would make it wait.
    correct = torch.zeros((), dtype=torch.int64, device=precision.device)
    loss = torch.zeros((), dtype=torch.float64, device=precision.device)
    for images, labels in batches:
        labels = labels.to(precision.device, non_blocking=True)
        with precision.autocast():
            logits = model(images.to(precision.device, non_blocking=True)).float()
        correct += (logits.argmax(dim=1) == labels).sum()
        loss += functional.cross_entropy(logits, labels, reduction="sum")
        num_images += len(labels)
    model.train(was_training)
    return Accuracy(num_images, int(correct), float(loss))
