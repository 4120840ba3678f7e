"""torchvision's policies, called with the random numbers that compiled policies draw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transform_reference import below, unit

from lmdbloader import transforms as T


def numbers_of(ours: Any, theirs: Any, draw: Any) -> Iterator[float]:
    """Yield what torchvision's policy draws, call by call: numbers below n of randint, and numbers from 0 to 1 of rand.

    Args:
        ours, theirs: The policy.
        draw: draw(slot, block) returns four words of one of its operations.
    """
    if isinstance(ours, T.RandAugment):
        names = list(theirs._AUGMENTATION_SPACE)
        for slot in range(ours.num_ops):
            w = draw(slot, 0)
            yield (which := below(w[0], len(names)))
            if theirs._AUGMENTATION_SPACE[names[which]][1]:
                yield unit(w[2])
    elif isinstance(ours, T.TrivialAugmentWide):
        w = draw(0, 0)
        yield below(w[0], len(theirs._AUGMENTATION_SPACE))
        yield below(w[1], ours.num_magnitude_bins)  # not asked for if it has no magnitudes
        yield unit(w[2])
    elif isinstance(ours, T.AutoAugment):
        yield (entry := below(draw(0, 1)[0], len(theirs._policies)))
        for slot, (name, p, _) in enumerate(theirs._policies[entry]):
            w = draw(slot, 0)
            yield unit(w[0])
            if unit(w[0]) <= p and theirs._AUGMENTATION_SPACE[name][1]:
                yield unit(w[2])
    else:
        yield from _of_chains(ours, theirs, draw)


def of_key(key0: int, key1: int, what: int, first: int, second: int) -> list[int]:
    """Return the words that AugMix draws for its key."""
    counter = (first | second << 64 | what << 128) - 1
    return np.random.Philox(counter=counter % 2**256, key=key0 | key1 << 64).random_raw(4).tolist()


def _key(draw: Any) -> Any:
    w = draw(0, 0)
    return partial(of_key, w[0] >> 11, w[1] >> 11)


def _of_chains(ours: Any, theirs: Any, draw: Any) -> Iterator[float]:
    space = theirs._AUGMENTATION_SPACE if ours.all_ops else theirs._PARTIAL_AUGMENTATION_SPACE
    names, key = list(space), _key(draw)
    for chain in range(ours.mixture_width):
        depth = ours.chain_depth
        if depth <= 0:
            yield (depth := 1 + below(key(1, chain, 0)[0], 3))
        for place in range(depth):
            w = key(2, chain, place)
            yield (which := below(w[0], len(names)))
            magnitudes, is_signed = space[names[which]]
            if magnitudes(10, 32, 32) is not None:
                yield below(w[1], ours.severity)
                if is_signed:
                    yield unit(w[2])


def _log_gamma(alpha: float, key: Any, place: int) -> float:
    """Return the logarithm of a number of the Gamma distribution: Marsaglia and Tsang (2000)."""
    d = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
    for attempt in itertools.count():
        u, turn, v, last = (unit(word) for word in key(0, place, attempt))
        x = math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * turn)
        cube = (1 + x / math.sqrt(9 * d)) ** 3
        if cube > 0 and math.log(1 - v) < 0.5 * x * x + d - d * cube + d * math.log(cube):
            return math.log(d * cube) + (math.log(1 - last) / alpha if alpha < 1 else 0)
    raise AssertionError


def dirichlet(alpha: float, key: Any, first: int, count: int) -> torch.Tensor:
    """Return a number of the Dirichlet distribution (1, count) for the places from a first one on."""
    logs = [_log_gamma(alpha, key, first + place) for place in range(count)]
    shares = np.exp(np.array(logs) - max(logs))
    return torch.from_numpy((shares / shares.sum()).astype(np.float32))[None]


def replay(ours: Any, theirs: Any, image: torch.Tensor, draw: Any) -> torch.Tensor:
    """Return what torchvision's policy makes of an image with the random numbers that the compiled one draws."""
    given = iter(numbers_of(ours, theirs, draw))
    if isinstance(ours, T.AugMix):
        firsts = iter((0, 2))
        theirs._sample_dirichlet = lambda alphas: dirichlet(ours.alpha, _key(draw), next(firsts), alphas.shape[-1])
    with (
        patch("torch.randint", lambda *args, **keywords: torch.tensor([next(given)])[0]),
        patch("torch.rand", lambda *args, **keywords: next(given)),
    ):
        changed: torch.Tensor = theirs(image)
    # TrivialAugmentWide draws all its numbers, used or not.
    assert isinstance(ours, T.TrivialAugmentWide) or next(given, None) is None, "torchvision draws fewer numbers"
    return changed
