"""Shared by the training scripts: options, and the parts of a command other than training."""
