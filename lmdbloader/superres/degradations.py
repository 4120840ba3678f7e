"""Degradations that super-resolution is trained on, made by compiled code while batches are read.

Each preset makes `lr` from `hr`, as the named project does; its arguments have the names and the defaults of that
project's option files. `from_yaml` reads such a file.
"""

from __future__ import annotations

import ast
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.base.arguments import flag
from lmdbloader.errors import OptionError
from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import modes, steps
from lmdbloader.superres.option_files import read_options
from lmdbloader.transforms.degradation import Degradation, Step, Variant

__all__ = ["Degradation", "bsrgan", "bsrgan_plus", "first_order", "from_yaml", "neosr", "real_esrgan", "trainner_redux"]

Range = Sequence[float]
FAMILIES = ("iso", "aniso", "generalized_iso", "generalized_aniso", "plateau_iso", "plateau_aniso")
_KERNEL_PROB = (0.45, 0.25, 0.12, 0.03, 0.12, 0.03)
_SIZES = (7, 21)
_MOST_FACTOR = 16  # the memory of an image that is so much larger
_MODES = {"area": modes.AREA, "bilinear": modes.BILINEAR, "bicubic": modes.BICUBIC}
_CV2_MODES = {"linear": modes.BILINEAR, "cubic": modes.BICUBIC, "area": modes.AREA_OF_PARTS}
_REDUX_MODES = {
    "bilinear": modes.BILINEAR, "bicubic": modes.BICUBIC, "nearest-exact": modes.NEAREST_EXACT, "lanczos": modes.REDUX,
}  # fmt: skip
# The arguments of Real-ESRGAN's option files; those of its second stage end in 2.
_STAGE = {
    "kernel_range": _SIZES, "kernel_list": FAMILIES, "kernel_prob": _KERNEL_PROB, "sinc_prob": 0.1,
    "betag_range": (0.5, 4.0), "betap_range": (1.0, 2.0), "gray_noise_prob": 0.4, "jpeg_prob": 1.0,
}  # fmt: skip
_REAL_ESRGAN: dict[str, Any] = {
    **_STAGE, **{f"{name}2": value for name, value in _STAGE.items()},
    "blur_prob": 1.0, "second_blur_prob": 0.8, "blur_sigma": (0.2, 3.0), "blur_sigma2": (0.2, 1.5),
    "resize_prob": (0.2, 0.7, 0.1), "resize_range": (0.15, 1.5), "gaussian_noise_prob": 0.5, "noise_range": (1.0, 30.0),
    "poisson_scale_range": (0.05, 3.0), "jpeg_range": (30.0, 95.0),
    "resize_prob2": (0.3, 0.4, 0.3), "resize_range2": (0.3, 1.2), "gaussian_noise_prob2": 0.5,
    "noise_range2": (1.0, 25.0), "poisson_scale_range2": (0.05, 2.5), "jpeg_range2": (30.0, 95.0),
    "final_kernel_range": _SIZES, "final_sinc_prob": 0.8,
    **{f"resize_mode_{what}{n}": value for n in ("", "2", "3")
       for what, value in (("list", tuple(_MODES)), ("prob", (1 / 3, 1 / 3, 1 / 3)))},
}  # fmt: skip
_NEOSR: dict[str, Any] = {
    **_REAL_ESRGAN,
    "resize_prob": (0.3, 0.4, 0.3), "resize_range": (0.5, 1.5), "gaussian_noise_prob": 0.2, "noise_range": (0.0, 2.0),
    "poisson_scale_range": (0.05, 0.25), "gray_noise_prob": 0.1, "jpeg_range": (40.0, 95.0), "second_blur_prob": 0.4,
    "resize_range2": (0.3, 1.5), "gaussian_noise_prob2": 0.2, "noise_range2": (0.0, 2.0),
    "poisson_scale_range2": (0.05, 0.1), "gray_noise_prob2": 0.1, "jpeg_range2": (35.0, 95.0),
}  # fmt: skip
_REDUX: dict[str, Any] = {
    **_REAL_ESRGAN,
    **dict.fromkeys(("kernel_range", "kernel_range2", "final_kernel_range"), (5, 17)),
    **dict.fromkeys(("blur_prob", "blur_prob2", "sinc_prob", "sinc_prob2", "final_sinc_prob"), 0.0),
    "blur_sigma": (0.2, 2.0), "blur_sigma2": (0.2, 1.0), "resize_range": (0.4, 1.5), "resize_range2": (0.6, 1.2),
    "resize_prob": (0.2, 0.7, 0.1),
    **dict.fromkeys(("noise_range", "noise_range2", "poisson_scale_range", "poisson_scale_range2"), (0.0, 0.0)),
    **dict.fromkeys(("gaussian_noise_prob", "gaussian_noise_prob2", "gray_noise_prob", "gray_noise_prob2"), 0.0),
    "jpeg_range": (75.0, 95.0), "jpeg_range2": (75.0, 95.0),
    **{f"resize_mode_{what}{n}": value for n in ("", "2", "3")
       for what, value in (("list", tuple(_REDUX_MODES)), ("prob", (0.25,) * 4))},
}  # fmt: skip
del _REDUX["second_blur_prob"]  # `blur_prob2` there


def _options(of: str, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all arguments of a preset, and those that are not the default.

    Raises:
        OptionError: One is unknown, or not a value that it can have.
    """
    for name in given:
        if name not in defaults:
            raise OptionError(f"{of}({name}=...): no such argument; there are {', '.join(sorted(defaults))}")
    found = {**defaults, **{name: _checked(of, name, value, defaults[name]) for name, value in given.items()}}
    for name in (name for name in found if name.startswith(("kernel_list", "resize_mode_list"))):
        chances = found[name.replace("list", "prob")]
        if len(chances) != len(found[name]):
            raise OptionError(
                f"{of}({name}={found[name]}): expected as many names as there are probabilities, {chances}"
            )
    return found, {name: found[name] for name in given if found[name] != defaults[name]}


def _checked(of: str, name: str, value: Any, default: Any) -> Any:
    """Return a value of an argument, lists as tuples."""
    where = f"{of}({name}={value!r})"
    if isinstance(default, float):
        if not _is_number(value) or not 0 <= value <= 1:
            raise OptionError(f"{where}: expected a probability from 0 to 1")
        return float(value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"{where}: expected a list, such as {list(default)}")
    if "_list" in name:
        known = FAMILIES if name.startswith("kernel") else tuple(_MODES | _REDUX_MODES)
        if not value or any(v not in known for v in value):
            raise OptionError(f"{where}: expected names out of {', '.join(known)}")
        return tuple(value)
    if not all(map(_is_number, value)):
        raise OptionError(f"{where}: expected numbers, such as {list(default)}")
    value = [int(v) if isinstance(v, numbers.Integral) else float(v) for v in value]
    if "_prob" in name:
        if len(value) != len(default) and name.startswith("resize_prob"):
            raise OptionError(f"{where}: expected three probabilities, to enlarge, to shrink and to keep the size")
        if min(value, default=-1) < 0 or not sum(value):
            raise OptionError(f"{where}: expected probabilities of at least 0, not all of them 0")
        return tuple(value)
    if len(value) != 2 or not 0 <= value[0] <= value[1]:
        raise OptionError(f"{where}: expected (least, most), such as {tuple(default)}")
    if name.startswith("beta") and not value[0] <= 1 <= value[1]:
        raise OptionError(f"{where}: expected (least, most) with 1 between them")
    if "kernel_range" in name and (value[0] % 2 != 1 or value[1] % 2 != 1 or value[1] > 51):
        raise OptionError(f"{where}: expected odd sides of at most 51 pixels")
    is_whole = of.startswith("bsrgan")
    if is_whole and (value[1] > 255 or any(v != int(v) for v in value)):
        raise OptionError(f"{where}: expected whole numbers of at most 255, such as {tuple(map(int, default))}")
    if name.startswith("resize_range") and value[1] > _MOST_FACTOR:
        raise OptionError(f"{where}: expected factors of at most {_MOST_FACTOR}")
    if name.startswith("jpeg_range") and (value[0] < 1 or value[1] > 100 or (value[0] == 100 and not is_whole)):
        raise OptionError(f"{where}: expected qualities from 1 to 100; DiffJPEG has none of exactly 100")
    return tuple(value)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _cumulative(first: int, chances: Sequence[float]) -> dict[int, float]:
    total, found = 0.0, {}
    for k, p in enumerate(chances):
        total += p / sum(chances)
        found[first + k] = total
    return found


def _blur(o: Mapping[str, Any], n: str, p: float) -> Step:
    chances = [0.0] * steps.NUM_FAMILIES
    for name, share in zip(o[f"kernel_list{n}"], o[f"kernel_prob{n}"], strict=True):
        chances[FAMILIES.index(name)] += share
    low, high = o[f"blur_sigma{n}"]
    return {
        steps.CODE: steps.BLUR, steps.P: p,
        steps.LEAST_SIZE: o[f"kernel_range{n}"][0], steps.MOST_SIZE: o[f"kernel_range{n}"][1],
        steps.SINC_P: o[f"sinc_prob{n}"], steps.LEAST_OMEGA: math.pi / 3, steps.LEAST_OMEGA_OF_LARGE: math.pi / 5,
        **_cumulative(steps.FAMILIES, chances),
        steps.LEAST_SIGMA: low, steps.MOST_SIGMA: high, steps.LEAST_ISO: low, steps.MOST_ISO: high,
        steps.LEAST_ANGLE: -math.pi, steps.MOST_ANGLE: math.pi,
        steps.LEAST_GENERALIZED: o[f"betag_range{n}"][0], steps.MOST_GENERALIZED: o[f"betag_range{n}"][1],
        steps.LEAST_PLATEAU: o[f"betap_range{n}"][0], steps.MOST_PLATEAU: o[f"betap_range{n}"][1],
    }  # fmt: skip


def _low_pass(o: Mapping[str, Any]) -> Step:
    return {
        steps.CODE: steps.BLUR, steps.P: o["final_sinc_prob"], steps.SINC_P: 1.0,
        steps.LEAST_SIZE: o["final_kernel_range"][0], steps.MOST_SIZE: o["final_kernel_range"][1],
        steps.LEAST_OMEGA: math.pi / 3, steps.LEAST_OMEGA_OF_LARGE: math.pi / 3,
    }  # fmt: skip


def _resize(o: Mapping[str, Any], n: str, **others: float) -> Step:
    """Return a resize by a drawn factor; that of stage 3 is to the size of the result."""
    chances = [0.0] * steps.NUM_MODES
    for name, share in zip(o[f"resize_mode_list{n}"], o[f"resize_mode_prob{n}"], strict=True):
        chances[(_MODES | _REDUX_MODES)[name]] += share
    chances_of_factors = o.get(f"resize_prob{n}", (0.0, 0.0, 1.0))
    up, down, _ = (p / sum(chances_of_factors) for p in chances_of_factors)
    low, high = o.get(f"resize_range{n}", (1.0, 1.0))
    named = {getattr(steps, name): value for name, value in others.items()}
    return {
        steps.CODE: steps.RESIZE, steps.P: 1.0, steps.UP_P: up, steps.DOWN_P: down,
        steps.LEAST_UP: 1.0, steps.MOST_UP: high, steps.LEAST_DOWN: low, steps.MOST_DOWN: 1.0,
        steps.OF: steps.OF_RESULT if n else steps.OF_IMAGE, **_cumulative(steps.MODES, chances), **named,
    }  # fmt: skip


def _noise(o: Mapping[str, Any], n: str) -> Step:
    gaussian = o[f"gaussian_noise_prob{n}"]
    return {
        steps.CODE: steps.NOISE, steps.P: 1.0, steps.GAUSSIAN_P: gaussian, steps.POISSON_P: 1 - gaussian,
        steps.GRAY_P: o[f"gray_noise_prob{n}"],
        steps.LEAST_NOISE: o[f"noise_range{n}"][0], steps.MOST_NOISE: o[f"noise_range{n}"][1],
        steps.LEAST_SCALE: o[f"poisson_scale_range{n}"][0], steps.MOST_SCALE: o[f"poisson_scale_range{n}"][1],
    }  # fmt: skip


def _jpeg(quality: Range, p: float = 1.0, *, libjpeg: bool = False) -> Step:
    return {
        steps.CODE: steps.JPEG, steps.P: p, steps.LEAST_QUALITY: quality[0], steps.MOST_QUALITY: quality[1],
        steps.IS_WHOLE_QUALITY: libjpeg, steps.ARITHMETIC: steps.LIBJPEG if libjpeg else steps.DIFFJPEG,
    }  # fmt: skip


def _two_stages(o: Mapping[str, Any], of_first: Mapping[str, float], **resizes: float) -> tuple[Variant]:
    """Return Real-ESRGAN's chain: two stages, and a last low-pass filter before or after the second JPEG.

    Args:
        o: Options.
        of_first: What holds for the first resize only.
        resizes: What holds for all resizes.
    """
    first = [_blur(o, "", o["blur_prob"]), _resize(o, "", **of_first, **resizes), _noise(o, "")]
    first.append(_jpeg(o["jpeg_range"], o["jpeg_prob"]))
    second = [_blur(o, "2", o.get("blur_prob2", o.get("second_blur_prob"))), _resize(o, "2", **resizes), _noise(o, "2")]
    second.append(_jpeg(o["jpeg_range2"], o["jpeg_prob2"]))
    chain = [*first, *second, _resize(o, "3", **{**resizes, "KEEPS": 0}), _low_pass(o)]
    return (Variant(tuple(chain), [(7, 10, 0.5, steps.FIRST_LAST)]),)


def _scale(of: str, scale: Any, known: tuple[int, ...] = (1, 2, 3, 4, 8)) -> int:
    if scale not in known or isinstance(scale, bool):
        raise OptionError(f"{of}({scale!r:.40}): expected a scale of {', '.join(map(str, known))}")
    return int(scale)


def real_esrgan(
    scale: int = 4,
    *,
    gt_usm: bool = True,
    lq_usm: bool = True,
    fixed: bool = False,
    field: str | None = None,
    **options: Any,
) -> Degradation:
    """Return the degradation of Real-ESRGAN (Wang et al., 2021): two stages of blur, resize, noise and JPEG.

    Args:
        scale: How many times smaller `lr` is.
        gt_usm: Whether `hr` is sharpened, as Real-ESRGAN's losses compare with sharpened images.
        lq_usm: Whether `lr` is made of a sharpened image, as it must be if `hr` is; RealESRNet without `gt_usm` has
            neither.
        fixed: Whether a sample is degraded in the same way in every epoch, as for validation.
        field: The name of the image field; None if there is only one.
        options: Arguments of its option files by name, `resize_prob` ... `final_sinc_prob`.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.

    >>> real_esrgan(2, jpeg_range=[50, 95])
    real_esrgan(scale=2, jpeg_range=(50, 95))
    """
    found, changed = _options("real_esrgan", _REAL_ESRGAN, options)
    gt_usm, lq_usm = flag("real_esrgan: gt_usm", gt_usm), flag("real_esrgan: lq_usm", lq_usm)
    if gt_usm and not lq_usm:
        raise OptionError("real_esrgan(lq_usm=False): expected gt_usm=False with it, as `lr` is made of `hr`")
    off = {name: False for name, value in (("gt_usm", gt_usm), ("lq_usm", lq_usm)) if not value}
    return Degradation(
        "real_esrgan", _scale("real_esrgan", scale), _two_stages(found, {"BY_FACTOR": 1}), {**off, **changed},
        sharpens="both" if gt_usm else "lr" if lq_usm else "", fixed=fixed, field=field,
    )  # fmt: skip


def neosr(scale: int = 4, *, fixed: bool = False, field: str | None = None, **options: Any) -> Degradation:
    """Return the degradation of neosr's `otf` datasets, with the values of its template `train_span_otf.toml`.

    It is that of `real_esrgan` with other values, and without sharpening. Arguments are those of `[degradations]`.

    Args:
        scale: How many times smaller `lr` is.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.
        options: Arguments by name.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.
    """
    found, changed = _options("neosr", _NEOSR, options)
    variants = _two_stages(found, {"BY_FACTOR": 1})
    return Degradation("neosr", _scale("neosr", scale), variants, changed, fixed=fixed, field=field)


def trainner_redux(scale: int = 4, *, fixed: bool = False, field: str | None = None, **options: Any) -> Degradation:
    """Return the degradation of traiNNer-redux's `high_order_degradation`, with its default values.

    Blur and noise are off by default, and resizes are antialiased.

    Args:
        scale: How many times smaller `lr` is.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.
        options: Arguments by name.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.
    """
    found, changed = _options("trainner_redux", _REDUX, options)
    variants = _two_stages(found, {"ROUNDS": 1}, ANTIALIAS=1, KEEPS=1, CLIPS=1)
    return Degradation("trainner_redux", _scale("trainner_redux", scale), variants, changed, fixed=fixed, field=field)


def _blur_of_bsrgan(scale: int) -> Step:
    return {
        steps.CODE: steps.BLUR, steps.P: 1.0, steps.LEAST_SIZE: 7, steps.MOST_SIZE: 25,
        **_cumulative(steps.FAMILIES, (0.5, 0.5, 0.0, 0.0, 0.0, 0.0)),
        steps.LEAST_SIGMA: 0.0, steps.MOST_SIGMA: 4.0 + scale, steps.IS_VARIANCE: 1,
        steps.LEAST_ISO: 0.0, steps.MOST_ISO: 2.0 + 0.2 * scale, steps.LEAST_ANGLE: 0.0, steps.MOST_ANGLE: math.pi,
    }  # fmt: skip


def _resize_of_cv2(**others: float) -> Step:
    chances = [0.0] * steps.NUM_MODES
    for mode in _CV2_MODES.values():
        chances[mode] = 1 / 3
    named = {getattr(steps, name): value for name, value in others.items()}
    return {steps.CODE: steps.RESIZE, steps.P: 1.0, **_cumulative(steps.MODES, chances), **named}


def _noise_of_bsrgan(level: Range = (2, 25)) -> Step:
    return {
        steps.CODE: steps.NOISE, steps.P: 1.0, steps.GAUSSIAN_P: 1.0, steps.GRAY_P: 0.4, steps.CORRELATED_P: 0.2,
        steps.LEAST_NOISE: level[0], steps.MOST_NOISE: level[1], steps.IS_WHOLE: 1,
    }  # fmt: skip


def _options_of_bsrgan(of: str, given: Mapping[str, Any], **more: float) -> tuple[dict[str, Any], dict[str, Any]]:
    return _options(of, {"noise_level": (2.0, 25.0), "jpeg_range": (30.0, 95.0), **more}, given)


def bsrgan(scale: int = 4, *, fixed: bool = False, field: str | None = None, **options: Any) -> Degradation:
    """Return the degradation of BSRGAN (Zhang et al., 2021): blurs, resizes, noise and JPEG in a random order.

    The camera model of the paper is left out, as in BSRGAN's own code.

    Args:
        scale: How many times smaller `lr` is.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.
        options: `noise_level`, `jpeg_range`, `jpeg_prob` of the JPEG among the shuffled steps, and `scale2_prob` of a
            first step that halves the image, for a scale of 4.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.
    """
    found, changed = _options_of_bsrgan("bsrgan", options, jpeg_prob=0.9, scale2_prob=0.25)
    scale = _scale("bsrgan", scale)
    halves = found["scale2_prob"] if scale == 4 else 0.0
    matlab = {steps.CODE: steps.RESIZE, steps.P: 1.0, **_cumulative(steps.MODES + modes.MATLAB, (1.0,))}
    half = {steps.DOWN_P: 1.0, steps.LEAST_DOWN: 0.5, steps.MOST_DOWN: 0.5, steps.CLIPS: 1}
    firsts: tuple[tuple[float, int, Step], ...] = ((1 - halves, scale, {}),)
    if halves:
        firsts += ((halves / 2, 2, {**_resize_of_cv2(), **half}), (halves / 2, 2, {**matlab, **half}))
    variants = []
    for p, left, first in firsts:
        down = _resize_of_cv2(
            DOWN_P=1, LEAST_DOWN=1, MOST_DOWN=2 * left, DIVIDES=1, CLIPS=1,
            EVERY_P=0.25, EVERY=left, LEAST_EVERY=0.1, MOST_EVERY=0.6 * left,
        )  # fmt: skip
        shuffled = (
            _blur_of_bsrgan(left), _blur_of_bsrgan(left), down, _resize_of_cv2(OF=steps.OF_RESULT, CLIPS=1),
            _noise_of_bsrgan(found["noise_level"]), _jpeg(found["jpeg_range"], found["jpeg_prob"], libjpeg=True),
        )  # fmt: skip
        rules = [(1, 7, 1.0, steps.SHUFFLE), (3, 4, 1.0, steps.KEEP_ORDER)]
        variants.append(Variant((first, *shuffled, _jpeg(found["jpeg_range"], libjpeg=True)), rules, p))
    return Degradation("bsrgan", scale, tuple(variants), changed, fixed=fixed, field=field)


def bsrgan_plus(
    scale: int = 4, *, use_sharp: bool = False, fixed: bool = False, field: str | None = None, **options: Any
) -> Degradation:
    """Return the degradation "bsrgan_plus" of KAIR, which joins those of BSRGAN and Real-ESRGAN.

    The camera model is left out, as without a model in KAIR's own code.

    Args:
        scale: How many times smaller `lr` is.
        use_sharp: Whether both images are sharpened first; KAIR's option files say no, its function yes.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.
        options: `noise_level`, `jpeg_range`, `shuffle_prob` (that all steps are shuffled), `poisson_prob`,
            `speckle_prob`.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.
    """
    found, changed = _options_of_bsrgan("bsrgan_plus", options, shuffle_prob=0.1, poisson_prob=0.1, speckle_prob=0.1)
    noise, jpeg = _noise_of_bsrgan(found["noise_level"]), _jpeg(found["jpeg_range"], libjpeg=True)
    poisson = {
        steps.CODE: steps.NOISE, steps.P: found["poisson_prob"], steps.POISSON_P: 1.0, steps.GRAY_P: 0.5,
        steps.LEAST_SCALE: 1.0, steps.MOST_SCALE: 1.0, steps.LEAST_VALUES: 2.0, steps.MOST_VALUES: 4.0,
    }  # fmt: skip
    speckle = {**noise, steps.P: found["speckle_prob"], steps.GAUSSIAN_P: 0.0}
    scale = _scale("bsrgan_plus", scale)
    least = 0.5 / scale
    resize = _resize_of_cv2(UP_P=0.2, DOWN_P=0.7, LEAST_UP=1, MOST_UP=2, LEAST_DOWN=least, MOST_DOWN=1, CLIPS=1)
    stage = (_blur_of_bsrgan(scale), resize, noise, poisson, speckle)
    chain = (*stage, jpeg, *stage)
    rules = [
        (2, 5, 1.0, steps.SHUFFLE), (8, 11, 1.0, steps.SHUFFLE), (0, 11, found["shuffle_prob"], steps.SHUFFLE),
    ]  # fmt: skip
    variant = Variant((*chain, _resize_of_cv2(OF=steps.OF_RESULT, CLIPS=1), jpeg), rules)
    use_sharp = flag("bsrgan_plus: use_sharp", use_sharp)
    changed = {"use_sharp": True, **changed} if use_sharp else changed
    sharpens = "both" if use_sharp else ""
    return Degradation("bsrgan_plus", scale, (variant,), changed, sharpens=sharpens, fixed=fixed, field=field)


def first_order(scale: int = 4, *, fixed: bool = False, field: str | None = None, **options: Any) -> Degradation:
    """Return one stage: blur, a resize to the size of `lr`, noise and JPEG, with the ranges of `real_esrgan`.

    Args:
        scale: How many times smaller `lr` is.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.
        options: Those of the first stage of `real_esrgan`, except `resize_prob` and `resize_range`.

    Raises:
        OptionError: An argument is unknown, or not a value that it can have.
    """
    names = [n for n in _REAL_ESRGAN if n[-1] not in "23" and n.split("_")[0] not in ("second", "final")]
    defaults = {name: _REAL_ESRGAN[name] for name in names if name not in ("resize_prob", "resize_range")}
    found, changed = _options("first_order", defaults, options)
    chain = (
        _blur(found, "", found["blur_prob"]), _resize({**found}, "", OF=steps.OF_RESULT), _noise(found, ""),
        _jpeg(found["jpeg_range"], found["jpeg_prob"]),
    )  # fmt: skip
    return Degradation(
        "first_order", _scale("first_order", scale), (Variant(chain),), changed, fixed=fixed, field=field
    )


def from_yaml(
    file: str | os.PathLike[str], *, scale: int | None = None, fixed: bool = False, field: str | None = None
) -> Degradation:
    """Return the degradation of an option file: `real_esrgan`, `neosr` or `trainner_redux` with its values.

    Args:
        file: YAML of Real-ESRGAN, BasicSR or traiNNer-redux (needs PyYAML), or TOML of neosr (needs Python 3.11).
        scale: How many times smaller `lr` is; None: the file's `scale`.
        fixed: As for `real_esrgan`.
        field: As for `real_esrgan`.

    Raises:
        OptionError: The file cannot be read, a key about degradations is not supported, or a value is not valid.
    """
    path = Path(file)
    presets = {"real_esrgan": _REAL_ESRGAN, "neosr": _NEOSR, "trainner_redux": _REDUX}
    makers: dict[str, Callable[..., Degradation]] = {
        "real_esrgan": real_esrgan, "neosr": neosr, "trainner_redux": trainner_redux,
    }  # fmt: skip
    name, own_scale, options = read_options(path, presets)
    if scale is None and own_scale is None:
        raise OptionError(f"{path}: no `scale`. Write from_yaml({str(path)!r}, scale=4).")
    try:
        return makers[name](own_scale if scale is None else scale, fixed=fixed, field=field, **options)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error


def named(text: str, scale: int) -> Degradation:
    """Return the degradation that a text names: a preset, with or without arguments, or an option file.

    Args:
        text: The text of a Degradation, such as "bsrgan(jpeg_range=[50, 95])", or a path to .yml, .yaml or .toml.
        scale: How many times smaller `lr` is than `hr`.

    Raises:
        OptionError: The preset is unknown, an argument is not valid, or the text has another scale.

    >>> named("bsrgan(jpeg_range=[50, 95])", 2)
    bsrgan(scale=2, jpeg_range=(50, 95))
    """
    if Path(text).suffix in (".yml", ".yaml", ".toml"):
        return from_yaml(text, scale=scale)
    makers: dict[str, Callable[..., Degradation]] = {
        maker.__name__: maker for maker in (real_esrgan, bsrgan, bsrgan_plus, neosr, trainner_redux, first_order)
    }
    try:
        found: Any = ast.parse(text.strip(), mode="eval").body
        name, given = (found.id, []) if isinstance(found, ast.Name) else (found.func.id, [*found.args, *found.keywords])
        options = {str(each.arg): ast.literal_eval(each.value) for each in given}
        maker = makers[name]
    except (SyntaxError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise OptionError(
            f"degradation {text!r:.200}: expected {', '.join(makers)}, with arguments as in "
            "'bsrgan(jpeg_range=[50, 95])' or without, or an option file (.yml, .yaml, .toml)"
        ) from error
    if options.pop("scale", scale) != scale:
        raise OptionError(f"degradation {text!r:.200}: its scale is not {scale}. Leave scale out of the text.")
    return maker(scale, **options)


class BlurKernels:
    """The random blur kernels of Real-ESRGAN and its descendants, without the other steps.

    Models that degrade images themselves ask their dataset for three of them.
    """

    SIDE = 21
    NAMES = tuple(
        f"{name}{n}"
        for n in ("", "2")
        for name in ("kernel_list", "kernel_prob", "sinc_prob", "blur_sigma", "betag_range", "betap_range")
    )

    def __init__(self, of: str, options: Mapping[str, Any]) -> None:
        """Check the options.

        Args:
            of: What they belong to, for errors.
            options: Those of NAMES and `final_sinc_prob`, and perhaps `kernel_range`, `kernel_range2` and
                `final_kernel_range`; others are not looked at.

        Raises:
            OptionError: One is missing, or not a value that it can have.
        """
        for name in (*self.NAMES, "final_sinc_prob"):
            if name not in options:
                raise OptionError(f"{of}: the option {name} is missing")
        known = (*self.NAMES, "final_sinc_prob", "kernel_range", "kernel_range2", "final_kernel_range")
        found, _ = _options(of, _REAL_ESRGAN, {name: options[name] for name in known if name in options})
        for name in known[-3:]:
            if found[name][1] > self.SIDE:
                raise OptionError(f"{of}, {name}: {found[name]}: expected odd sides of at most {self.SIDE} pixels")
        chain = (_blur(found, "", 1.0), _blur(found, "2", 1.0), _low_pass(found))
        self._degradation = Degradation("kernels", 1, (Variant(chain),))

    def draw(self, seed: int, epoch: int, draw: int) -> list[npt.NDArray[np.float32]]:
        """Return the kernels of both stages and the last one, (SIDE, SIDE) each, whose sum is 1.

        The last one may be a pulse, which changes nothing.

        Args:
            seed: Of the random choices.
            epoch: From 0 on.
            draw: Its number in the epoch.
        """
        drawn, _, _ = self._degradation.draw(np.array([draw]), self.SIDE, self.SIDE, seed=seed, epoch=epoch)
        found = []
        for step in drawn[0]:
            kernel = np.zeros((self.SIDE, self.SIDE), np.float32)
            found.append(kernel)
            if not step[steps.DONE]:
                kernel[self.SIDE // 2, self.SIDE // 2] = 1
                continue
            size, weights = int(step[steps.SIZE]), np.empty(steps.KERNEL_ROOM, np.float32)
            numbers = (float(step[k]) for k in (steps.FIRST, steps.SECOND, steps.ANGLE, steps.BETA))
            is_row = entries.make_blur_kernel(int(step[steps.SHAPE]), size, *numbers, weights)
            length, first = -(-size // steps.TAPS) * steps.TAPS, (self.SIDE - size) // 2
            whole = (
                np.outer(weights[:size], weights[:size]) if is_row else weights[: size * length].reshape(size, length)
            )
            kernel[first : first + size, first : first + size] = whole[:, :size]
        return found
