"""What the training scripts share, and the parts of them that are no training."""
