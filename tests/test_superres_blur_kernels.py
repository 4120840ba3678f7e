"""Blur kernels equal the published formulas, and their parameters have the published distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmdbloader.superres.blur_kernels import FAMILIES, Kernel, KernelDraws, draw_final, pulse

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")
SIZES = range(7, 22, 2)
DRAWS = 10_000


@pytest.mark.parametrize("size", [3, 7, 21])
@pytest.mark.parametrize("sigma", [(0.2, 0.2), (0.7, 3.0)])
@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_gaussians_and_plateaus_equal_their_formulas(size: int, sigma: tuple[float, float], beta: float) -> None:
    angle, half = 0.7, size // 2
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    inverse = np.linalg.inv(turn @ np.diag(np.square(sigma)) @ turn.T)
    x, y = np.meshgrid(np.arange(-half, half + 1), np.arange(-half, half + 1))
    at = np.stack([x, y], -1).astype(float)
    q = np.einsum("...i,ij,...j", at, inverse, at)
    for family, expected in (("generalized_aniso", np.exp(-0.5 * q**beta)), ("plateau_aniso", 1 / (1 + q**beta))):
        found = Kernel(family, size, sigma, angle, beta).weights()
        pad = 10 - half
        assert np.abs(found - np.pad(expected / expected.sum(), pad)).max() < 1e-6


@pytest.mark.parametrize("size", [3, 7, 21])
@pytest.mark.parametrize("cutoff", [math.pi / 5, 2.0, math.pi])
def test_sincs_equal_their_formula(size: int, cutoff: float) -> None:
    y, x = np.mgrid[-(size // 2) : size // 2 + 1, -(size // 2) : size // 2 + 1]
    radius = np.hypot(x, y)
    with np.errstate(invalid="ignore"):
        expected = cutoff * special.j1(cutoff * radius) / (2 * math.pi * radius)
    expected[size // 2, size // 2] = cutoff**2 / (4 * math.pi)
    found = Kernel("sinc", size, (0.0, 0.0), 0.0, cutoff).weights()
    assert np.abs(found - np.pad(expected / expected.sum(), 10 - size // 2)).max() < 1e-6
    assert pulse().sum() == pulse()[10, 10] == 1


def test_parameters_are_drawn_from_the_ranges_of_the_options() -> None:
    random, shares = np.random.default_rng(0), [0.45, 0.25, 0.12, 0.03, 0.12, 0.03]
    draws = KernelDraws(SIZES, 0.1, FAMILIES, shares, (0.2, 3), (0.5, 4), (1, 2))
    found = [draws.draw(random) for _ in range(DRAWS)]
    final = [kernel for _ in range(DRAWS) if (kernel := draw_final(random, SIZES, 0.8)) is not None]

    def shapes(start: str) -> list[float]:
        return [kernel.shape for kernel in found if kernel.family.startswith(start)]

    others = [kernel for kernel in found if kernel.family != "sinc"]
    turned = [kernel for kernel in found if kernel.family.endswith("aniso")]
    sincs = [kernel for kernel in found if kernel.family == "sinc"]
    families = [kernel.family for kernel in found]
    betas = [beta for beta in shapes("plateau") if beta != 1]
    generalized = np.array(shapes("generalized"))
    uniform = (  # values, from, to
        ([kernel.sigma[0] for kernel in others], 0.2, 3),
        ([kernel.sigma[1] for kernel in turned], 0.2, 3),
        ([kernel.angle for kernel in turned], -math.pi, math.pi),
        ([kernel.shape for kernel in sincs if kernel.size < 13], math.pi / 3, math.pi),
        ([kernel.shape for kernel in sincs if kernel.size >= 13], math.pi / 5, math.pi),
        ([kernel.shape for kernel in final], math.pi / 3, math.pi),
        (betas, 1, 2),
        (generalized[generalized < 1], 0.5, 1),
        (generalized[generalized > 1], 1, 4),
    )
    counted = (  # how often, of how many, and the share
        *((families.count(name), DRAWS, 0.9 * share) for name, share in zip(FAMILIES, shares, strict=True)),
        *((sum(kernel.size == size for kernel in [*found, *final]), DRAWS + len(final), 1 / 8) for size in SIZES),
        (len(sincs), DRAWS, 0.1), (len(final), DRAWS, 0.8), (len(betas), len(shapes("plateau")), 0.5),
        (int((generalized < 1).sum()), len(generalized), 0.5),
    )  # fmt: skip
    least = 0.01 / (len(uniform) + len(counted))
    for values, low, high in uniform:
        assert stats.kstest(values, "uniform", (low, high - low)).pvalue > least, (low, high)
    for count, total, share in counted:
        assert stats.binomtest(count, total, share).pvalue > least, (count, total, share)
    assert all(kernel.sigma[0] == kernel.sigma[1] and kernel.angle == 0 for kernel in others if kernel not in turned)
