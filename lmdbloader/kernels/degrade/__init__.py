"""Degradations of images in float32, as super-resolution trains on them: blur, resize, noise, JPEG."""
