"""Drawn degradations have the distributions of the projects' own code: 10,000 draws of every number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from lmdbloader.kernels.degrade import blur, modes, steps
from lmdbloader.superres import degradations
from lmdbloader.superres.degradations import Degradation

COUNT, SIDE = 10_000, 40_000  # a side so long that sizes show the factors
Span = tuple[float, float]
FAMILIES = dict(zip([(shape, iso) for shape in range(3) for iso in (1, 0)], (45, 25, 12, 3, 12, 3), strict=True))


class Draws:
    """Draws of a degradation, and the p-values of what they are compared with.

    Attributes:
        of: The drawn numbers by step, (steps, COUNT, NUM_DRAWN); done: those of steps that are done.
        orders, variants: As `Degradation.draw` returns them.
        found: The p-values.
    """

    def __init__(self, degradation: Degradation) -> None:
        drawn, self.orders, self.variants = degradation.draw(np.arange(COUNT), SIDE, SIDE, seed=3, epoch=2)
        self.of, self.found = drawn.swapaxes(0, 1), list[tuple[str, float]]()
        self.done = [found[found[:, steps.DONE] == 1] for found in self.of]

    def uniform(self, name: str, values: NDArray[Any], low: float, high: float) -> None:
        assert len(values) > 100, name
        self.found.append((name, stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue))

    def shares(self, name: str, values: Iterable[Any], parts: dict[Any, float] | Iterable[Any]) -> None:
        parts, counts = parts if isinstance(parts, dict) else dict.fromkeys(parts, 1), Counter(values)
        assert set(counts) <= set(parts), name
        expected = np.array([*parts.values()]) / sum(parts.values()) * counts.total()
        self.found.append((name, stats.chisquare([counts[k] for k in parts], expected).pvalue))

    def likely(self, name: str, happened: NDArray[np.bool_], p: float) -> None:
        self.found.append((name, stats.binomtest(int(happened.sum()), len(happened), p).pvalue))

    def independent(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> None:
        self.found.append((name, stats.spearmanr(first, second).pvalue))

    def check(self) -> None:
        assert not [(name, p) for name, p in self.found if p < 0.01 / len(self.found)]


def check_blur(draws: Draws, number: int, sigma: Span) -> None:
    """Compare a blur of Real-ESRGAN's families."""
    found, name = draws.done[number], f"blur {number}"
    shape, size, first, second, angle, beta = found[:, 1:7].T
    draws.shares(f"{name}: size", size, range(7, 22, 2))
    is_sinc = shape == blur.SINC
    draws.likely(f"{name}: sinc", is_sinc, 0.1)
    draws.uniform(f"{name}: small omega", first[is_sinc & (size < 13)], math.pi / 3, math.pi)
    draws.uniform(f"{name}: large omega", first[is_sinc & (size >= 13)], math.pi / 5, math.pi)
    is_oblong = first != second
    draws.shares(f"{name}: family", zip(shape[~is_sinc], 1 - is_oblong[~is_sinc], strict=True), FAMILIES)
    draws.uniform(f"{name}: first", first[~is_sinc], *sigma)
    draws.uniform(f"{name}: second", second[is_oblong], *sigma)
    draws.independent(f"{name}: both", first[is_oblong], second[is_oblong])
    draws.uniform(f"{name}: angle", angle[is_oblong], -math.pi, math.pi)
    for kind, high in ((blur.GENERALIZED, 4), (blur.PLATEAU, 2)):
        mine = beta[shape == kind]
        draws.likely(f"{name}: beta of {kind}", mine <= 1, 0.5)
        draws.uniform(f"{name}: large beta of {kind}", mine[mine > 1], 1, high)
    draws.uniform(f"{name}: small beta", mine := beta[(shape == blur.GENERALIZED) & (beta <= 1)], 0.5, 1)
    assert len(mine) and set(beta[shape == blur.GAUSSIAN]) == {1.0}


def check_noise(draws: Draws, number: int, gaussian: float, level: Span, scale: Span, grey: float) -> None:
    """Compare Gaussian or Poisson noise."""
    kind, sigma, colors, values = draws.of[number][:, 1:5].T
    draws.likely(f"noise {number}: kind", kind == steps.GAUSSIAN, gaussian)
    draws.uniform(f"noise {number}: level", 255 * sigma[kind == steps.GAUSSIAN], *level)
    draws.uniform(f"noise {number}: scale", sigma[kind == steps.POISSON], *scale)
    draws.shares(f"noise {number}: colors", colors, {steps.GRAY: grey, steps.COLOR: 1 - grey})
    assert not values.any()


def check_resize(draws: Draws, number: int, base: float, chances: Sequence[float], span: Span, names: Any) -> None:
    """Compare factors and modes; a factor of 1 is to keep the size."""
    found, size = draws.done[number], draws.of[number][:, steps.HEIGHT]
    # A size that is cut shows a factor that is less than a pixel smaller.
    factor = np.where((draws.of[number][:, steps.DONE] == 0) | (size == base), 1.0, (size + 0.5) / base)
    draws.shares(f"resize {number}: which", np.sign(factor - 1), dict(zip((1.0, -1.0, 0.0), chances, strict=True)))
    draws.uniform(f"resize {number}: up", factor[factor > 1], 1, span[1])
    draws.uniform(f"resize {number}: down", factor[factor < 1], span[0], 1)
    draws.shares(f"resize {number}: mode", found[:, steps.MODE], names)


def check_two_stages(draws: Draws, blur_p: float) -> None:
    """Compare blurs, the last step and the order of Real-ESRGAN's chain."""
    check_blur(draws, 0, (0.2, 3.0))
    check_blur(draws, 4, (0.2, 1.5))
    draws.likely("second blur", draws.of[4][:, steps.DONE] == 1, blur_p)
    draws.likely("last: sinc", draws.of[9][:, steps.DONE] == 1, 0.8)
    draws.uniform("last: omega", draws.done[9][:, steps.FIRST], math.pi / 3, math.pi)
    draws.shares("last: size", draws.done[9][:, steps.SIZE], range(7, 22, 2))
    draws.shares("order", map(tuple, draws.orders.tolist()), [(*range(10),), (*range(7), 8, 9, 7)])
    levels, quality = draws.of[2][:, steps.SIGMA], draws.of[3][:, steps.QUALITY]
    draws.independent("levels", levels, draws.of[6][:, steps.SIGMA])
    draws.independent("level and quality", levels, quality)
    draws.independent("neighbors", quality[:-1], quality[1:])


@pytest.mark.parametrize("name", ["real_esrgan", "neosr", "trainner_redux"])
def test_real_esrgan_and_its_descendants(name: str) -> None:
    draws = Draws(getattr(degradations, name)(4))
    jpeg, spans = ((30, 95), (30, 95)), ((0.15, 1.5), (0.3, 1.2))
    chances, names = ((2, 7, 1), (3, 4, 3)), (modes.AREA, modes.BILINEAR, modes.BICUBIC)
    if name == "real_esrgan":
        check_noise(draws, 2, 0.5, (1, 30), (0.05, 3), 0.4)
        check_noise(draws, 6, 0.5, (1, 25), (0.05, 2.5), 0.4)
    elif name == "neosr":
        check_noise(draws, 2, 0.2, (0, 2), (0.05, 0.25), 0.1)
        check_noise(draws, 6, 0.2, (0, 2), (0.05, 0.1), 0.1)
        chances, spans, jpeg = ((3, 4, 3), (3, 4, 3)), ((0.5, 1.5), (0.3, 1.5)), ((40, 95), (35, 95))
    else:
        spans, jpeg = ((0.4, 1.5), (0.6, 1.2)), ((75, 95), (75, 95))
        names = (modes.BILINEAR, modes.BICUBIC, modes.NEAREST_EXACT, modes.REDUX)
        assert not draws.of[[0, 4, 9]][..., steps.DONE].any() and not draws.of[[2, 6]][..., steps.SIGMA].any()
    if name != "trainner_redux":
        check_two_stages(draws, 0.8 if name == "real_esrgan" else 0.4)
    for k in range(2):
        check_resize(draws, 1 + 4 * k, SIDE / (1, 4)[k], chances[k], spans[k], names)
        draws.uniform(f"jpeg {k}", draws.of[3 + 4 * k][:, steps.QUALITY], *jpeg[k])
    draws.check()


def check_blur_of_bsrgan(draws: Draws, number: int, scale: int, chosen: NDArray[np.bool_]) -> None:
    _, size, first, second, angle, _ = draws.of[number][chosen, 1:7].T
    is_oblong, name = first != second, f"blur {number} of {scale}"
    draws.likely(f"{name}: oblong", is_oblong, 0.5)
    draws.shares(f"{name}: size", size, range(7, 26, 2))
    draws.uniform(f"{name}: first", first[is_oblong] ** 2, 0, 4 + scale)
    draws.uniform(f"{name}: second", second[is_oblong] ** 2, 0, 4 + scale)
    draws.uniform(f"{name}: angle", angle[is_oblong], 0, math.pi)
    draws.uniform(f"{name}: round", first[~is_oblong], 0, 2 + 0.2 * scale)


def check_levels(draws: Draws, number: int) -> None:
    """Compare noise of BSRGAN: whole levels, and the greatest one where it is correlated."""
    _, sigma, colors, _ = draws.done[number][:, 1:5].T
    draws.shares(f"colors {number}", colors, {steps.COLOR: 2, steps.GRAY: 2, steps.CORRELATED: 1})
    level = (255 * sigma).round(6)
    draws.shares(f"level {number}", level[colors != steps.CORRELATED], range(2, 26))
    assert set(level[colors == steps.CORRELATED]) == {25.0}


def test_bsrgan() -> None:
    draws = Draws(degradations.bsrgan(4))
    draws.shares("variants", draws.variants, {0: 6, 1: 1, 2: 1})
    orders = [order for order in permutations(range(1, 7)) if order.index(3) < order.index(4)]
    draws.shares("orders", map(tuple, draws.orders[:, 1:7].tolist()), orders)
    assert (draws.orders[:, [0, 7]] == [0, 7]).all()
    for chosen, scale, side in ((draws.variants == 0, 4, SIDE), (draws.variants > 0, 2, SIDE // 2)):
        check_blur_of_bsrgan(draws, 1, scale, chosen)
        check_blur_of_bsrgan(draws, 2, scale, chosen)
        down = draws.of[3][chosen]
        is_every = down[:, steps.MODE] == steps.EVERY_NTH
        draws.likely(f"every of {scale}", is_every, 0.25)
        draws.uniform(f"spread of {scale}", down[is_every, steps.SPREAD], 0.1, 0.6 * scale)
        assert set(down[is_every, steps.FACTOR]) == {scale}
        draws.uniform(f"divisor of {scale}", side / down[~is_every, steps.HEIGHT], 1, 2 * scale)
        names = (modes.AREA_OF_PARTS, modes.BILINEAR, modes.BICUBIC)
        draws.shares(f"mode of {scale}", down[~is_every, steps.MODE], names)
    check_levels(draws, 5)
    draws.likely("jpeg", draws.of[6][:, steps.DONE] == 1, 0.9)
    for number in (6, 7):
        draws.shares(f"quality {number}", draws.done[number][:, steps.QUALITY], range(30, 96))
    draws.check()


def test_bsrgan_plus() -> None:
    draws = Draws(degradations.bsrgan_plus(4))
    kept = (draws.orders[:, [0, 1, 5, 6, 7]] == [0, 1, 5, 6, 7]).all(1)
    draws.likely("order", kept, 0.9)  # and few others
    for places in (range(2, 5), range(8, 11)):
        found = draws.orders[kept][:, places.start : places.stop]
        draws.shares(f"order of {places}", map(tuple, found.tolist()), permutations(places))
    for place in (0, 5, 10):
        draws.shares(f"place {place}", draws.orders[~kept, place], range(11))
    for first in (0, 6):
        noise = first + 2
        check_blur_of_bsrgan(draws, first, 4, np.ones(COUNT, bool))
        check_levels(draws, noise)
        for number in (noise + 1, noise + 2):
            draws.likely(f"noise {number}", draws.of[number][:, steps.DONE] == 1, 0.1)
        poisson = draws.done[noise + 1]
        draws.uniform(f"values of {first}", np.log10(poisson[:, steps.VALUES]), 2, 4)
        draws.likely(f"grey of {first}", poisson[:, steps.COLORS] == steps.GRAY, 0.5)
    draws.check()


def test_numbers_depend_on_seed_epoch_and_sample_only() -> None:
    degradation, every, chosen = degradations.real_esrgan(4), np.arange(50), [41, 7, 7]
    whole = degradation.draw(every, 256, 256, seed=1, epoch=3)
    for got, wanted in zip(degradation.draw(chosen, 256, 256, seed=1, epoch=3), whole, strict=True):
        np.testing.assert_array_equal(got, wanted[chosen])
    drawn = [degradation.draw(every, 256, 256, seed=s, epoch=e)[0][:, 3, steps.QUALITY] for s in (1, 2) for e in (3, 4)]
    assert len(np.unique(drawn)) == 200
    fixed = degradations.real_esrgan(4, fixed=True)
    np.testing.assert_array_equal(fixed.draw(every, 8, 8, epoch=1)[0], fixed.draw(every, 8, 8, epoch=9)[0])
