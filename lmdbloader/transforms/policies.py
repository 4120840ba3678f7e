"""The policies: transforms that draw one of several operations, as torchvision's do, with their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from lmdbloader.base.arguments import whole
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import opcodes
from lmdbloader.kernels.transform import policy_tables as tables
from lmdbloader.transforms.arguments import Concentration, Fill, Flag, Kind, WarpInterpolation
from lmdbloader.transforms.base import Geometry

_MOST = 1000


def _whole(least: int, most: int = _MOST) -> Kind:
    return Kind(lambda of, name, value: whole(f"{type(of).__name__}: {name}", value, least, most))


def _fill(of: object, name: str, fill: Any) -> Any:
    check: Kind = Fill.__metadata__[0]  # type: ignore[attr-defined]
    return None if fill is None else check.check(of, name, fill)


def _policy(of: object, name: str, value: Any) -> str:
    named = getattr(value, "value", value)  # torchvision's AutoAugmentPolicy
    if named not in tables.POLICIES:
        raise OptionError(f"{type(of).__name__}({name}={value!r}): expected one of {', '.join(tables.POLICIES)}")
    return str(named)


EdgeFill = Annotated[float | tuple[float, float, float] | None, Kind(_fill)]
Bins = Annotated[int, _whole(2)]


class _Policy(Geometry):
    """The base of policies: what they have in common for a program."""

    __slots__ = ()
    code = opcodes.POLICY
    warps = True

    @property
    def blends(self) -> int:
        """POLICY_BLENDS."""
        is_black = getattr(self, "fill", None) is None
        return (opcodes.TO_BLACK if is_black else 1) * (getattr(self, "interpolation", "") == "bilinear")


@dataclass(frozen=True, slots=True, repr=False)
class RandAugment(_Policy):
    """Apply several random operations of one magnitude: Cubuk et al., "RandAugment" (2020), as torchvision does.

    The operations are identity, shears, translations, rotation, brightness, saturation, contrast, sharpness,
    posterization, solarization, automatic contrast and equalization, with torchvision's magnitudes. The result of each
    is that of torchvision v2 on tensors of 8 bits, except that single values may differ by one level, which a later
    operation may enlarge. All images of a sample get the same operations. Masks, boxes and points follow the
    operations that move pixels; torchvision's policies refuse them. Images other than uint8 with 1 or 3 channels are
    an error.

    Attributes:
        num_ops: How many operations are drawn, one after the other.
        magnitude: The number of their magnitude, from 0 to num_magnitude_bins - 1.
        num_magnitude_bins: How many magnitudes there are; the last is the strongest.
        interpolation: "nearest" or "bilinear", of the operations that move pixels.
        fill: The value outside of the image: a number, or one for each channel; None is black. With "bilinear",
            0 darkens the edge more than None, as in torchvision. Masks get their field's `ignore_index`.

    >>> RandAugment(magnitude=7)
    RandAugment(num_ops=2, magnitude=7, num_magnitude_bins=31, interpolation='nearest', fill=None)
    """

    num_ops: Annotated[int, _whole(0)] = 2
    magnitude: Annotated[int, _whole(0)] = 9
    num_magnitude_bins: Bins = 31
    interpolation: WarpInterpolation = "nearest"
    fill: EdgeFill = None

    def __post_init__(self) -> None:
        Geometry.__post_init__(self)
        if self.magnitude >= self.num_magnitude_bins:
            raise OptionError(f"{self}: expected a magnitude below num_magnitude_bins")

    @property
    def num_operations(self) -> int:
        """As many as it draws."""
        return self.num_ops

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """POLICY_SPACE ... POLICY_BLENDS."""
        return tables.STANDARD, self.num_magnitude_bins, self.magnitude, -1, self.blends


@dataclass(frozen=True, slots=True, repr=False)
class TrivialAugmentWide(_Policy):
    """Apply one random operation of random magnitude: Mueller and Hutter, "TrivialAugment" (2021), as torchvision does.

    The operations are those of `RandAugment`, with wider magnitudes.

    Attributes:
        num_magnitude_bins: How many magnitudes there are, all equally likely.
        interpolation: As of `RandAugment`.
        fill: As of `RandAugment`.
    """

    num_magnitude_bins: Bins = 31
    interpolation: WarpInterpolation = "nearest"
    fill: EdgeFill = None

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """POLICY_SPACE ... POLICY_BLENDS."""
        return tables.WIDE, self.num_magnitude_bins, -1, -1, self.blends


@dataclass(frozen=True, slots=True, repr=False)
class AutoAugment(_Policy):
    """Apply one of 25 pairs of operations: Cubuk et al., "AutoAugment" (2019), as torchvision does.

    The operations are those of `RandAugment`, and inversion. Each of a pair has a probability and a magnitude.

    Attributes:
        policy: What the pairs were learned from: "imagenet", "cifar10", "svhn", or torchvision's AutoAugmentPolicy.
        interpolation: As of `RandAugment`.
        fill: As of `RandAugment`.
    """

    policy: Annotated[str, Kind(_policy)] = "imagenet"
    interpolation: WarpInterpolation = "nearest"
    fill: EdgeFill = None

    @property
    def num_operations(self) -> int:
        """Those of a pair."""
        return 2

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """POLICY_SPACE ... POLICY_BLENDS."""
        return tables.STANDARD, 10, -1, tables.POLICIES.index(self.policy), self.blends


@dataclass(frozen=True, slots=True, repr=False)
class AugMix(_Policy):
    """Mix an image with chains of random operations on it: Hendrycks et al., "AugMix" (2020), as torchvision does.

    The operations are those of `RandAugment`, without the identity. The weights of the chains have a Dirichlet
    distribution, and that of the image itself a Beta distribution. Datasets with masks, boxes or points are refused, as
    by torchvision: they cannot follow a mix of moved images.

    Attributes:
        severity: From 1 to 10: how many of ten magnitudes may be drawn, beginning with the weakest.
        mixture_width: The number of chains.
        chain_depth: The number of operations in a chain; 0 or less for a random one from 1 to 3.
        alpha: The parameter of both distributions.
        all_ops: Whether brightness, saturation, contrast and sharpness are among the operations.
        interpolation: As of `RandAugment`.
        fill: As of `RandAugment`.
    """

    severity: Annotated[int, _whole(1, 10)] = 3
    mixture_width: Annotated[int, _whole(1, opcodes.MOST_CHAINS)] = 3
    chain_depth: Annotated[int, _whole(-_MOST)] = -1
    alpha: Concentration = 1.0
    all_ops: Flag = True
    interpolation: WarpInterpolation = "bilinear"
    fill: EdgeFill = None

    code = opcodes.AUGMIX
    mixes = True

    @property
    def moves(self) -> bool:
        """True: some of its operations move pixels."""
        return True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """MIX_SEVERITY ... MIX_ALL."""
        return self.severity, self.mixture_width, max(self.chain_depth, 0), self.alpha, self.blends, self.all_ops
