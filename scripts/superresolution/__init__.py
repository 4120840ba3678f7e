"""Super-resolution on lmdbloader datasets: networks after the papers, and a training loop."""

from __future__ import annotations

from superresolution.luma_models import ESPCN, SRCNN
from superresolution.models import build_model
from superresolution.residual_models import EDSR, RCAN, SRVGG
from superresolution.swinir import SwinIR
from superresolution.training import cosine_rate, train_epoch, train_step

__all__ = [
    "EDSR",
    "ESPCN",
    "RCAN",
    "SRCNN",
    "SRVGG",
    "SwinIR",
    "build_model",
    "cosine_rate",
    "train_epoch",
    "train_step",
]
