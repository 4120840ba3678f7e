"""Super-resolution on lmdbloader datasets: two networks, and a training loop."""

from __future__ import annotations

from superresolution.models import SRCNN, ResidualSR, build_model
from superresolution.training import cosine_rate, train_epoch, train_step

__all__ = ["SRCNN", "ResidualSR", "build_model", "cosine_rate", "train_epoch", "train_step"]
