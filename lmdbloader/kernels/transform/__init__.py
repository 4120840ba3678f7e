"""Transforms in compiled code: random choices, windows of images, values and colors."""
