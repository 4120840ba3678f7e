"""Image classification on lmdbloader datasets: residual networks, recipes for small and large images, training."""

from __future__ import annotations

from classification.evaluation import Accuracy, evaluate, five_crops, mirrored
from classification.models import ResNet, blur_pool, build_model
from classification.recipes import RECIPES, Recipe
from classification.training import EpochResult, learning_rate, parameter_groups, train_epoch

__all__ = [
    "RECIPES",
    "Accuracy",
    "EpochResult",
    "Recipe",
    "ResNet",
    "blur_pool",
    "build_model",
    "evaluate",
    "five_crops",
    "learning_rate",
    "mirrored",
    "parameter_groups",
    "train_epoch",
]
