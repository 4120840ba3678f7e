"""The containers: lists of transforms of which a draw applies all or none, one, or all in a random order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any

from lmdbloader.base.arguments import shown
from lmdbloader.errors import OptionError
from lmdbloader.transforms.arguments import Kind, Probability
from lmdbloader.transforms.base import Branch, Container


def _weights(of: Any, name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    count = len(of.transforms)
    if len(numbers) != count or not all(0 <= n < math.inf for n in numbers) or not sum(numbers):
        raise OptionError(
            f"{type(of).__name__}({name}={shown(value)}): expected {count} numbers of at least 0, one for each of its "
            "transforms, with a sum above 0"
        )
    return numbers


@dataclass(frozen=True, slots=True, repr=False)
class RandomApply(Container):
    """Apply all transforms of a list with probability p, else none.

    Attributes:
        transforms: Transforms that move or change pixels, containers of them, or lists.
        p: Probability.

    >>> from lmdbloader.transforms import RandomSolarize
    >>> RandomApply([RandomSolarize(128)], p=0.1)
    RandomApply(transforms=(RandomSolarize(threshold=128.0, p=0.5),), p=0.1)
    """

    p: Probability = 0.5

    @property
    def steps(self) -> list[list[Branch]]:
        """One branch."""
        return [[Branch(self.transforms, 0.0, self.p)]]

    @property
    def skips(self) -> bool:
        """Whether p is less than 1."""
        return self.p < 1


@dataclass(frozen=True, slots=True, repr=False)
class RandomChoice(Container):
    """Apply one of several transforms.

    Attributes:
        transforms: The alternatives: transforms, containers, or lists, whose transforms come one after the other. An
            empty list changes nothing.
        p: Weights of the alternatives, whose sum need not be 1; None for equal ones.
    """

    p: Annotated[Sequence[float] | None, Kind(_weights, is_shown=False)] = None

    @property
    def steps(self) -> list[list[Branch]]:
        """A branch for each alternative."""
        weights = self.p or (1.0,) * len(self.transforms)
        ends = [0.0, *(end / sum(weights) for end in accumulate(weights))]
        ends = [2.0 if end == ends[-1] else end for end in ends]  # nothing is lost by rounding
        return [[Branch([t], *between) for t, between in zip(self.transforms, pairwise(ends), strict=True)]]


@dataclass(frozen=True, slots=True, repr=False)
class RandomOrder(Container):
    """Apply all transforms of a list in a random order.

    Attributes:
        transforms: Transforms, containers, or lists, whose transforms stay together in their order.
    """

    @property
    def steps(self) -> list[list[Branch]]:
        """A step for each place, with a branch for each transform."""
        count, items = len(self.transforms), list(enumerate(self.transforms))
        return [[Branch([t], 0, 0, place, count, item) for item, t in items] for place in range(count)]
