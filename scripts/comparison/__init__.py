"""The comparison of training from image files and from a dataset: material, arms, runs, statistics and report."""
