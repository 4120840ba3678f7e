"""The numbers of the ways to resize, shared by Python and kernels."""

from __future__ import annotations

# Means of pixels: of those that a result touches, as torch; of their parts, as OpenCV's INTER_AREA. Bicubic as MATLAB's
# imresize. LANCZOS as Pillow; REDUX as traiNNer-redux's "lanczos": a filter at the pixels, then bicubic.
AREA, AREA_OF_PARTS, NEAREST_EXACT, BILINEAR, BICUBIC, MATLAB, LANCZOS, REDUX = range(8)
