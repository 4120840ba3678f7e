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
from policy_replay import replay
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_perspective_coeffs
from torchvision_cases import CASES, EPOCH, SEED, Case
from transform_reference import PERMUTATIONS, TONES, below, erased_box, normals, resized_crop_box, uniform, unit, words

from lmdbloader import transforms as T
from lmdbloader.kernels import entries

HERE = Path(__file__).parent
POLICIES = T.RandAugment | T.TrivialAugmentWide | T.AutoAugment | T.AugMix
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
        default = (
            [] if parameter.default is parameter.empty else [getattr(parameter.default, "value", parameter.default)]
        )
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
        if name == "AutoAugment":
            args = tuple(map(v2.AutoAugmentPolicy, args))
        theirs = getattr(v2, name)(*args, **keywords)
        if isinstance(ours, POLICIES):
            at = number
            image = replay(ours, theirs, image, lambda slot, block, at=at: words(SEED, EPOCH, sample, at + slot, block))
            number += ours.num_operations
            continue
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
    if isinstance(ours, T.RandomRotation | T.RandomAffine):
        return affine(ours, draw, height, width)
    if isinstance(ours, T.RandomPerspective):
        return perspective(ours, draw, height, width) if unit(w0) < ours.p else None
    if isinstance(ours, T.ElasticTransform):
        noise = np.zeros(-(-2 * height * width // 256) * 256, np.float32)
        entries.fill_uniform(noise, w0 >> 11, w1 >> 11, 0)
        fields = iter(torch.from_numpy(noise[: 2 * height * width]).view(2, 1, 1, height, width))
        with patch("torch.rand", lambda *shape: next(fields)):
            params: dict[str, Any] = theirs.make_params([image])
        return params
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


def affine(ours: Any, draw: Any, height: int, width: int) -> dict[str, Any]:
    """Return the parameters of RandomRotation or RandomAffine."""
    (w0, w1, w2, w3), (more, last, _, _), r = draw(0), draw(1), ours.real_numbers
    angle = uniform(w0, *r[:2])
    if isinstance(ours, T.RandomRotation):
        return {"angle": -angle}
    shifts = [round(uniform(w, -share, share)) for w, share in ((w1, r[2] * width), (w2, r[3] * height))]
    shear = [uniform(more, *r[6:8]), uniform(last, *r[8:10])]
    return {"angle": angle, "translate": shifts, "scale": uniform(w3, *r[4:6]), "shear": shear}


def perspective(ours: Any, draw: Any, height: int, width: int) -> dict[str, Any]:
    """Return the parameters of RandomPerspective."""
    a, b, c, d, e, f, g, h = (*draw(1), *draw(2))
    down, across = (int(ours.distortion_scale * (side // 2)) + 1 for side in (height, width))
    right, bottom = width - across, height - down
    ends = [
        [below(a, across), below(b, down)], [right + below(c, across), below(d, down)],
        [right + below(e, across), bottom + below(f, down)], [below(g, across), bottom + below(h, down)],
    ]  # fmt: skip
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return {"coefficients": _get_perspective_coeffs(starts, ends)}


if __name__ == "__main__":
    main()
