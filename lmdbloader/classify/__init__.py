"""Image classification on lmdbloader datasets: residual networks, recipes for small and large images, training."""

from __future__ import annotations

from lmdbloader.classify.evaluation import Accuracy, evaluate
from lmdbloader.classify.models import ResNet, blur_pool, build_model
from lmdbloader.classify.recipes import RECIPES, Recipe
from lmdbloader.classify.training import EpochResult, learning_rate, parameter_groups, train_epoch

__all__ = [
    "RECIPES",
    "Accuracy",
    "EpochResult",
    "Recipe",
    "ResNet",
    "blur_pool",
    "build_model",
    "evaluate",
    "learning_rate",
    "parameter_groups",
    "train_epoch",
]
