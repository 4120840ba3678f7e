"""Random lists of transforms that suit given images, for hypothesis to find the one that goes wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from lmdbloader import transforms as T

WHATS = (
    "crop",
    "square",
    "pad",
    "center",
    "move",
    "rrc",
    "resize",
    "flip",
    "turn",
    "flip",
    "turn",
    "jitter",
    "grey",
    "invert",
    "blur",
    "noise",
    "tone",
    "warp",
)


@st.composite
def lists_of_transforms(
    draw: Any, layout: dict[str, tuple[int, int]], channels: int, dtype: Any, names_of: tuple[str, ...] = WHATS
) -> list[T.Transform]:
    """Draw a list that suits the images: geometry for all fields or some, of WHATS or some, then values."""
    names = list(layout)
    size = dict(layout)
    is_float = np.dtype(dtype).kind == "f"
    top = 255 if dtype == np.uint8 else 65535
    found: list[T.Transform] = []
    number = st.integers(-40, 40).map(lambda k: k / 4) if is_float else st.integers(0, top)
    fill = number | st.tuples(*[number] * 3) if channels == 3 else number
    colors = ("jitter", "grey", "invert", "tone") * (is_float or channels not in (1, 3))
    whats = [what for what in names_of if what not in (*colors, *("blur", "noise") * is_float)]
    is_resized = is_jittered = False
    for _ in range(draw(st.integers(0, 5))):
        chosen = tuple(draw(st.sets(st.sampled_from(names), min_size=1))) if draw(st.integers(0, 3)) == 0 else None
        concerned = chosen or names
        tall = max((size[n] for n in concerned), key=lambda s: s[0])
        ratios = [tall[0] // size[n][0] for n in concerned]
        if any((size[n][0] * r, size[n][1] * r) != tall for n, r in zip(concerned, ratios, strict=True)):
            chosen, concerned = (names[0],), [names[0]]
            tall, ratios = size[names[0]], [1]
        grid = math.lcm(*ratios)
        whole = st.integers(1, 3).map(lambda k, grid=grid: k * grid)
        inside = st.tuples(*[st.integers(1, side // grid).map(lambda k, grid=grid: k * grid) for side in tall])
        beyond = st.tuples(*[st.integers(1, side // grid + 4).map(lambda k, grid=grid: k * grid) for side in tall])
        square = all(size[n][0] == size[n][1] for n in concerned)
        what = draw(st.sampled_from(whats))
        new: T.Transform
        if what == "crop":
            new = T.RandomCrop(draw(inside), fields=chosen)
        elif what == "square" or (what == "turn" and not square):
            new = T.RandomCrop(draw(st.integers(1, min(tall) // grid)) * grid, fields=chosen)
        elif what == "center":
            new = T.CenterCrop(draw(inside), fields=chosen)
        elif what == "pad":
            sides = draw(st.sampled_from([(1,), (2,), (5,), (50,), (0, 3), (3, 0, 1, 20), (0, 0, 0, 1)]))
            padding = tuple(side * grid for side in sides)
            needed = draw(st.booleans())
            new = T.RandomCrop(draw(beyond if needed else inside), padding, needed, draw(fill), fields=chosen)
        elif what == "move":
            new = T.RandomTranslate(draw(whole | st.just(60 * grid)), draw(fill), fields=chosen)
        elif what in ("rrc", "resize") and not (is_resized or is_jittered):
            cls = T.RandomResizedCrop if what == "rrc" else T.Resize
            new = cls(draw(beyond), interpolation=draw(st.sampled_from(["bilinear", "bicubic"])), fields=chosen)
            is_resized = True
        elif what == "jitter" and not (is_resized or is_jittered):
            factors = draw(st.tuples(*[st.sampled_from([0, 0.5, (0.2, 2.5)])] * 3))
            hue = draw(st.sampled_from([0, 0.1, 0.5, (-0.3, -0.2)]))
            new = T.ColorJitter(*factors, hue, p=0.75, fields=chosen)
            is_jittered = True
        elif what in ("grey", "invert") and not (is_resized or is_jittered):
            p = draw(st.sampled_from([0.0, 0.5, 1.0]))
            new = T.RandomGrayscale(p, fields=chosen)
            if what == "invert":
                new = T.RandomSolarize(draw(st.integers(0, top + 1) | st.just(top / 2)), p, fields=chosen)
        elif what == "blur" and not (is_resized or is_jittered):
            sides = st.sampled_from([1, 3, 5, 21])
            sigma = draw(st.sampled_from([0.3, 2, (0.1, 2.0)]))
            new = T.GaussianBlur(draw(sides | st.tuples(sides, sides)), sigma, p=0.75, fields=chosen)
            is_resized = True
        elif what == "tone" and not (is_resized or is_jittered):
            new = draw(
                st.sampled_from([
                    T.RandomPosterize(draw(st.integers(0, 8)), fields=chosen), T.RandomInvert(fields=chosen),
                    T.RandomEqualize(fields=chosen), T.RandomAutocontrast(fields=chosen),
                    T.RandomAdjustSharpness(draw(st.sampled_from([0, 0.7, 2, 9])), fields=chosen),
                    T.RandomChannelPermutation(fields=chosen),
                ])
            )  # fmt: skip
        elif what == "noise":
            new = T.GaussianNoise(
                draw(st.sampled_from([0.0, 0.2])), draw(st.sampled_from([0.0, 0.1, 1.0])), fields=chosen
            )
        elif what == "warp":
            bilinear = draw(st.booleans())
            options = {"interpolation": ["nearest", "bilinear"][bilinear], "fill": draw(fill), "fields": chosen}
            center = draw(st.none() | st.just((1.5, 4.0)))
            new = [
                T.RandomRotation(90, center=center, **options),
                T.RandomAffine((-20, 70), (0.1, 0.3), (0.5, 1.5), 20, center=center, **options),
                T.RandomPerspective(0.6, 0.75, **options),
            ][draw(st.integers(0, 2))]
            is_jittered = is_jittered or bilinear
        elif what == "turn":
            new = T.RandomDihedral(fields=chosen)
        else:
            cls = draw(st.sampled_from([T.RandomHorizontalFlip, T.RandomVerticalFlip]))
            new = cls(draw(st.sampled_from([0.0, 0.5, 1.0])), fields=chosen)
        found.append(new)
        for n, r in zip(concerned, ratios, strict=True):
            result = getattr(new, "size_numbers", (0, 0))
            size[n] = (result[0] // r, result[1] // r) if result[0] else size[n]
    tall = max(size.values(), key=lambda s: s[0])
    aligned = all((s[0] * (tall[0] // s[0]), s[1] * (tall[0] // s[0])) == tall for s in size.values())
    return found + draw(lists_of_values([None, *names] if aligned else names, channels, is_float))


@st.composite
def lists_of_values(draw: Any, erased: list[str | None], channels: int, is_float: bool = False) -> list[T.Transform]:
    """Draw the transforms of pixel values: erasings between conversions; `is_float` is true of stored floats."""
    number = st.floats(-2, 2).map(lambda v: round(v, 2))
    several = st.tuples(*[number] * channels)
    dtypes = [dtype for dtype in T.DTYPES if dtype.is_floating_point or not is_float]
    positive = st.floats(0.6, 3).map(lambda v: round(v, 2))  # a smaller one would suit other units than some pixels'
    value = st.integers(0, 255)
    erasing = st.builds(
        T.RandomErasing,
        p=st.sampled_from([0.5, 1]),
        value=st.tuples(value, value, value) if channels == 3 else value,
        fields=st.sampled_from([name and (name,) for name in erased]),
    )
    found: list[T.Transform] = draw(st.lists(erasing, max_size=2))
    for _ in range(draw(st.integers(0, 3))):
        if is_float and draw(st.booleans()):
            found.append(T.Normalize(draw(number | several), draw(positive)))
        else:
            found.append(T.ToDtype(draw(st.sampled_from(dtypes)), draw(st.booleans())))
            is_float = found[-1].dtype.is_floating_point
            if len([t for t in found if isinstance(t, T.ToDtype)]) > 2:
                break
    return found + ([draw(erasing)] if is_float and draw(st.booleans()) else [])
