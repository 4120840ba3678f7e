"""Writes what tests compare with torchvision: its signatures, its names, and its results on lmdbloader's draws.

It needs an environment with torchvision, and is run from the root of the repository:
PYTHONPATH=.:tests python tests/data/torchvision/make_torchvision.py
"""

from __future__ import annotations

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torchvision
from torchvision.transforms import v2
from torchvision_cases import CASES, EPOCH, SEED, Case
from transform_reference import PERMUTATIONS, TONES, below, erased_box, normals, resized_crop_box, uniform, unit, words

from lmdbloader import transforms as T

HERE = Path(__file__).parent
ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def main() -> None:
    """Write both files."""
    names = [name for name in dir(v2) if inspect.isclass(getattr(v2, name))]
    shared = [name for name in names if name in T.__all__ and name != "Transform"]
    described = {
        "version": torchvision.__version__.partition("+")[0],
        "names": names,
        "signatures": {name: signature(getattr(v2, name)) for name in shared},
    }
    (HERE / "signatures.json").write_text(json.dumps(described, indent=1) + "\n")
    np.savez_compressed(HERE / "results.npz", **{case.name: results(case) for case in CASES})


def signature(cls: Any) -> list[list[Any]]:
    """Return (name, whether it is positional, its default in a list or an empty list) of each argument."""
    found: list[list[Any]] = []
    for parameter in inspect.signature(cls).parameters.values():
        default = [] if parameter.default is parameter.empty else [parameter.default]
        found.append([parameter.name, parameter.kind is parameter.POSITIONAL_OR_KEYWORD, default])
    return found


def results(case: Case) -> np.ndarray:
    """Return torchvision's results (NUM_SAMPLES, C, H, W)."""
    return np.stack([result(case, sample, image) for sample, image in enumerate(case.images())])


def result(case: Case, sample: int, stored: np.ndarray) -> np.ndarray:
    """Return torchvision's result for one image, by the numbers that lmdbloader draws for it."""
    image, number = torch.from_numpy(stored), 0
    for ours, (name, args, keywords) in zip(case.ours(), case.calls, strict=True):
        draw = partial(words, SEED, EPOCH, sample, number)
        theirs = getattr(v2, name)(*args, **keywords)
        params = drawn(ours, theirs, image, lambda block=0, draw=draw: draw(block))
        if params is not None:
            noise = torch.from_numpy(normals(draw(), 0, image.numel())).view(image.shape)
            with patch("torch.randn_like", lambda image, noise=noise, **keywords: noise):
                image = theirs.transform(image, params)
        number += isinstance(ours, T.Geometry)
    return image.numpy()


def drawn(ours: Any, theirs: Any, image: torch.Tensor, draw: Any) -> dict[str, Any] | None:
    """Return the parameters of a transform of torchvision; None if it changes nothing."""
    w0, w1, w2, w3 = draw(0)
    channels, height, width = image.shape
    if isinstance(ours, T.RandomHorizontalFlip | T.RandomVerticalFlip):
        return {} if unit(w0) < ours.p else None
    if isinstance(ours, T.ColorJitter):
        ranges = ours.real_numbers
        factors = [uniform(w, *ranges[2 * k : 2 * k + 2]) for k, w in enumerate((w0, w1, w2))]
        order = list(ORDERS[below(w3, 24) // 4])
        order.insert(below(w3, 24) % 4, 3)
        values = dict(zip(("brightness", "contrast", "saturation"), factors, strict=True))
        values["hue"] = uniform(draw(1)[1], *ranges[8:10])
        given = {f"{name}_factor": getattr(theirs, name) and value for name, value in values.items()}
        return {"fn_idx": torch.tensor(order), **given}
    if isinstance(ours, T.RandomChannelPermutation):
        return {"permutation": list(PERMUTATIONS[below(w0, 6)])}
    if isinstance(ours, T.RandomGrayscale | T.RandomSolarize | T.RandomInvert | TONES):
        return {"num_input_channels": channels} if unit(draw(1)[0]) < ours.p else None
    if isinstance(ours, T.GaussianBlur):
        return {"sigma": [uniform(w0, *ours.real_numbers[:2])] * 2} if unit(draw(1)[0]) < ours.p else None
    if isinstance(ours, T.RandomErasing):
        box = erased_box(draw, height, width, ours)
        fill = torch.tensor(theirs.value)[:, None, None]
        return box and dict(zip("ijhw", box, strict=True), v=fill)
    if isinstance(ours, T.RandomResizedCrop):
        box = resized_crop_box(draw, height, width, ours)
        return dict(zip(("top", "left", "height", "width"), box, strict=True))
    if isinstance(ours, T.RandomCrop):
        # Whatever it draws itself, except for the place.
        params = theirs.make_params([image])
        left, top, right, bottom = params["padding"]
        down, across = height + top + bottom - params["height"], width + left + right - params["width"]
        return {**params, "top": below(w0, down + 1), "left": below(w1, across + 1)}
    return {}


if __name__ == "__main__":
    main()
