"""Super-resolution on lmdbloader datasets: the usual metrics, two models, and a small training loop."""

from __future__ import annotations

from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.loader.checkpoints import load_checkpoint, save_checkpoint
from lmdbloader.superres.evaluation import Evaluation, Scores, bicubic, evaluate, predict, score
from lmdbloader.superres.metrics import luma, psnr, ssim
from lmdbloader.superres.models import SRCNN, ResidualSR, build_model, upscale
from lmdbloader.superres.tensors import merge_luma
from lmdbloader.superres.training import train_epoch, train_step

__all__ = [
    "SRCNN",
    "Evaluation",
    "ResidualSR",
    "Scores",
    "StepTimer",
    "bicubic",
    "build_model",
    "evaluate",
    "load_checkpoint",
    "luma",
    "merge_luma",
    "predict",
    "psnr",
    "save_checkpoint",
    "score",
    "ssim",
    "train_epoch",
    "train_step",
    "upscale",
]
