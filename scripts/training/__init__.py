"""Shared by the training scripts: options, checkpoints, and the parts of a command other than training."""
