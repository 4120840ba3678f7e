"""The libraries that decode, resize and train, and the threads that each of them starts."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass, field
from typing import Literal

# Each is read when the library is first loaded; OMP_NUM_THREADS counts for torch and for OpenCV built with OpenMP, too.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is installed.

    Attributes:
        pillow: Which package is PIL: "Pillow" or "pillow-simd".
        pillow_version: Its version.
        libjpeg_turbo: Version of libjpeg-turbo in it; None where it has another libjpeg, which is slower.
        simplejpeg: Version of simplejpeg, which has a libjpeg-turbo of its own.
        torch: Version of torch.
        torch_cuda: Version of CUDA (or "ROCm ...") that torch was built for; None for a build without accelerator.
        sees_accelerator: Whether torch finds a GPU that it can use.
        visible_devices: CUDA_VISIBLE_DEVICES, which hides GPUs from torch; None where it is not set.
    """

    pillow: Literal["Pillow", "pillow-simd"]
    pillow_version: str
    libjpeg_turbo: str | None
    simplejpeg: str | None
    torch: str
    torch_cuda: str | None
    sees_accelerator: bool
    visible_devices: str | None = None


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """Threads that libraries start in this process, beside those of a Loader.

    Attributes:
        torch: Threads of one torch operation on the CPU.
        torch_interop: Torch operations at the same time.
        opencv: Threads of OpenCV; None where nobody has imported it.
        environment: Those of OMP_NUM_THREADS, MKL_NUM_THREADS ... that are set, as they are.
    """

    torch: int
    torch_interop: int
    opencv: int | None
    environment: dict[str, str] = field(default_factory=dict)


def describe_libraries() -> Libraries:
    """Return what is installed; this imports torch and Pillow."""
    import PIL
    import torch
    from PIL import features

    hip = getattr(torch.version, "hip", None)
    # pillow-simd's versions are those of Pillow with a ".post".
    is_simd = ".post" in PIL.__version__ or (not _version("pillow") and _version("pillow-simd") is not None)
    return Libraries(
        "pillow-simd" if is_simd else "Pillow",
        PIL.__version__,
        features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None,
        _version("simplejpeg"),
        torch.__version__,
        f"ROCm {hip}" if hip else torch.version.cuda,
        torch.cuda.is_available(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def describe_thread_pools() -> ThreadPools:
    """Return how many threads libraries start in this process; this imports torch."""
    import torch

    cv2 = sys.modules.get("cv2")
    return ThreadPools(
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        None if cv2 is None else int(cv2.getNumThreads()),
        {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
