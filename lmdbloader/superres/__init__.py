"""Super-resolution on lmdbloader datasets: bicubic upscaling, blur kernels, metrics, and the scores of models."""

from __future__ import annotations

from lmdbloader.base.stopwatch import StepTimer
from lmdbloader.superres import degradations
from lmdbloader.superres.evaluation import Evaluation, Scores, bicubic, evaluate, predict, score
from lmdbloader.superres.metrics import luma, psnr, ssim
from lmdbloader.superres.tensors import merge_luma, upscale

__all__ = [
    "Evaluation",
    "Scores",
    "StepTimer",
    "bicubic",
    "degradations",
    "evaluate",
    "luma",
    "merge_luma",
    "predict",
    "psnr",
    "score",
    "ssim",
    "upscale",
]
