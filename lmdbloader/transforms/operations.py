"""The transforms of geometry and colors: each with its arguments and its numbers for the kernels.

A new one gets its class here, its number in `lmdbloader.kernels.transform.opcodes`, and its branch in
`lmdbloader.kernels.transform`: in `program` if it moves pixels, in `color` or `tones` if it changes colors.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from lmdbloader.kernels.transform import opcodes
from lmdbloader.transforms.arguments import (
    DTYPES,
    Antialias,
    Bits,
    Clip,
    Deviation,
    Factor,
    Fill,
    Hue,
    Interpolation,
    KernelSize,
    Mean,
    Padding,
    Probability,
    RareFlag,
    Ratio,
    Share,
    Sharpness,
    Shift,
    Sigma,
    Size,
    Threshold,
)
from lmdbloader.transforms.base import Geometry
from lmdbloader.transforms.values import Normalize, ToDtype
from lmdbloader.transforms.warps import ElasticTransform, RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "DTYPES",
    "CenterCrop",
    "ColorJitter",
    "Cutout",
    "ElasticTransform",
    "GaussianBlur",
    "GaussianNoise",
    "Normalize",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomCrop",
    "RandomDihedral",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
]

_NEVER = -1.0  # a threshold that inverts no pixels


@dataclass(frozen=True, slots=True, repr=False)
class RandomCrop(Geometry):
    """Crop a window at a random place, from the image with `padding` pixels of `fill` around it.

    Attributes:
        size: Of the window, as an int or (height, width).
        padding: Pixels around the image: an int for each side, (left and right, top and bottom), or (left, top, right,
            bottom).
        pad_if_needed: Whether an image that is still too small is padded on both sides by what it lacks.
        fill: The value of padding: a number, or one for each channel, in the units of the stored pixels.

    >>> RandomCrop(96).size_numbers
    (96, 96)
    """

    size: Size
    padding: Padding = None
    pad_if_needed: RareFlag = False
    fill: Fill = 0

    code = opcodes.RANDOM_CROP
    sets_size = True


@dataclass(frozen=True, slots=True, repr=False)
class CenterCrop(Geometry):
    """Crop the window in the middle.

    Attributes:
        size: Of the window, as an int or (height, width).
    """

    size: Size

    code = opcodes.CENTER_CROP
    sets_size = True


@dataclass(frozen=True, slots=True, repr=False)
class RandomResizedCrop(Geometry):
    """Crop a window with a random share of the area and a random ratio of its sides, and resize it with antialiasing.

    The window is drawn as in torchvision's RandomResizedCrop.

    Attributes:
        size: Of the result, as an int or (height, width).
        scale: Least and most share of the area.
        ratio: Least and most width over height.
        interpolation: "bilinear" or "bicubic"; torchvision's and Pillow's constants are accepted too.
        antialias: True.
    """

    size: Size
    scale: Share = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: Antialias = True

    code = opcodes.RANDOM_RESIZED_CROP
    sets_size = resizes = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """CROP_SCALE_LOW ... CROP_RATIO_HIGH."""
        return (*self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Resize(Geometry):
    """Resize with antialiasing.

    Attributes:
        size: (height, width), or an int for the shorter side, with the ratio of the sides kept.
        interpolation: "bilinear" or "bicubic", as in Pillow; torchvision's and Pillow's constants are accepted too.
        antialias: True.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    antialias: Antialias = True

    code = opcodes.RESIZE
    sets_size = resizes = True

    @property
    def size_numbers(self) -> tuple[int, int]:
        """Height and width of the result; or its shorter side, and 0."""
        return self.size if isinstance(self.size, tuple) else (self.size, 0)


@dataclass(frozen=True, slots=True, repr=False)
class RandomHorizontalFlip(Geometry):
    """Mirror left and right with probability p."""

    p: Probability = 0.5

    code = opcodes.HORIZONTAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """FLIP_P."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomVerticalFlip(Geometry):
    """Mirror top and bottom with probability p."""

    p: Probability = 0.5

    code = opcodes.VERTICAL_FLIP

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """FLIP_P."""
        return (self.p,)


@dataclass(frozen=True, slots=True, repr=False)
class RandomDihedral(Geometry):
    """Apply one of the eight flips and quarter turns of a square image, all equally likely."""

    code = opcodes.DIHEDRAL


@dataclass(frozen=True, slots=True, repr=False)
class RandomTranslate(Geometry):
    """Move the image by up to `padding` pixels in each direction, and fill the rest with `fill`."""

    padding: Shift
    fill: Fill = 0

    code = opcodes.RANDOM_CROP


def _around(middle: float, value: float | tuple[float, float] | None) -> tuple[float, float]:
    """Return the range of an argument of ColorJitter."""
    if isinstance(value, tuple):
        return value
    return (middle, middle) if value is None else (middle - value, middle + value)


@dataclass(frozen=True, slots=True, repr=False)
class ColorJitter(Geometry):
    """Change brightness, contrast, saturation and hue by random amounts, in random order, as torchvision does.

    The results are those of torchvision for tensors of 8 and 16 bits, except that single values may differ by one
    level. At 16 bits, a change of the hue in torchvision turns some 65535 into 0; here they stay. A gray image has no
    saturation and no hue.

    Attributes:
        brightness: A number x for factors from max(0, 1 - x) to 1 + x, or (least, most); None or 0 for no change.
        contrast: The same.
        saturation: The same.
        hue: A number from 0 to 0.5 for turns from -hue to hue, as a share of the whole circle, or (least, most).
        p: Probability of a change.

    >>> ColorJitter(0.4, 0.4, 0.4, 0.1)
    ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=1.0)
    """

    brightness: Factor = None
    contrast: Factor = None
    saturation: Factor = None
    hue: Hue = None
    _: KW_ONLY
    p: Probability = 1.0

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """The range of each factor, JITTER_P ... JITTER_HUE_HIGH."""
        found: list[float] = []
        for value in (self.brightness, self.contrast, self.saturation):
            low, high = _around(1.0, value)
            found += [max(0.0, low), high]
        return (*found, self.p, _NEVER, *_around(0.0, self.hue))


@dataclass(frozen=True, slots=True, repr=False)
class RandomGrayscale(Geometry):
    """Make an image gray with probability p, in three channels, as torchvision's RandomGrayscale does."""

    p: Probability = 0.1

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of a saturation of 0."""
        return (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, self.p, _NEVER)


@dataclass(frozen=True, slots=True, repr=False)
class RandomSolarize(Geometry):
    """Invert the values of at least `threshold` with probability p, as torchvision's RandomSolarize does.

    Attributes:
        threshold: In the units of the stored pixels: 128 is the middle of 8 bits; 0 inverts all values.
        p: Probability.
    """

    threshold: Threshold
    p: Probability = 0.5

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of factors of 1, and a threshold."""
        return (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, self.p, self.threshold)


@dataclass(frozen=True, slots=True, repr=False)
class RandomInvert(Geometry):
    """Invert all values with probability p, as torchvision's RandomInvert does: 0 becomes 255, or 65535 at 16 bits."""

    p: Probability = 0.5

    code = opcodes.JITTER

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """Those of RandomSolarize, with a threshold of 0."""
        return (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, self.p, 0.0)


class _Tone(Geometry):
    __slots__ = ()

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """TONE_AMOUNT, which is the only argument before p, and TONE_P."""
        amount, p = (0.0, *(getattr(self, name) for name in self.kinds if name != "fields"))[-2:]
        return amount, p


@dataclass(frozen=True, slots=True, repr=False)
class RandomPosterize(_Tone):
    """Keep the upper bits of each value with probability p, as torchvision's RandomPosterize does; the others become 0.

    Attributes:
        bits: How many are kept, from 0 to 8, of 8 or 16.
        p: Probability.
    """

    bits: Bits
    p: Probability = 0.5

    code = opcodes.POSTERIZE


@dataclass(frozen=True, slots=True, repr=False)
class RandomEqualize(_Tone):
    """Even out the histogram of each channel with probability p, as torchvision's RandomEqualize does.

    As in torchvision, an image of 16 bits is reduced to its upper 8 bits for this: the result has at most 256 levels,
    multiples of 256.
    """

    p: Probability = 0.5

    code = opcodes.EQUALIZE


@dataclass(frozen=True, slots=True, repr=False)
class RandomAutocontrast(_Tone):
    """Stretch each channel until it has black and white, with probability p, as torchvision's RandomAutocontrast does.

    Channels are stretched on their own, and a channel of one value stays.
    """

    p: Probability = 0.5

    code = opcodes.AUTOCONTRAST


@dataclass(frozen=True, slots=True, repr=False)
class RandomAdjustSharpness(_Tone):
    """Smooth or sharpen with probability p, as torchvision's RandomAdjustSharpness does.

    The outermost pixels stay, and so does an image of at most two rows or columns.

    Attributes:
        sharpness_factor: 0 for smoothed by a kernel of 3 x 3, 1 for no change, 2 for twice the sharpness.
        p: Probability.
    """

    sharpness_factor: Sharpness
    p: Probability = 0.5

    code = opcodes.SHARPNESS


@dataclass(frozen=True, slots=True, repr=False)
class RandomChannelPermutation(Geometry):
    """Put the three channels in random order, as torchvision's RandomChannelPermutation does; a gray image stays."""

    code = opcodes.PERMUTE


@dataclass(frozen=True, slots=True, repr=False)
class GaussianBlur(Geometry):
    """Blur with a Gaussian kernel of random width with probability p, as torchvision's GaussianBlur does.

    All images of a sample get the same sigma, in their own pixels. The border is mirrored; after a crop, that is the
    border of the crop. The results are those of torchvision, except that single values may differ by one level.

    Attributes:
        kernel_size: The side of the kernel in pixels, odd, as an int or (across, down).
        sigma: The standard deviation in pixels, as (min, max) or one number.
        p: The probability of the blur; torchvision has RandomApply for it.
    """

    kernel_size: KernelSize
    sigma: Sigma = (0.1, 2.0)
    _: KW_ONLY
    p: Probability = 1.0

    code = opcodes.BLUR

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """BLUR_LOW ... BLUR_P."""
        low, high = self.sigma if isinstance(self.sigma, tuple) else (self.sigma, self.sigma)
        across, down = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,) * 2
        return low, high, across, down, self.p


@dataclass(frozen=True, slots=True, repr=False)
class GaussianNoise(Geometry):
    """Add Gaussian noise with probability p, as torchvision's GaussianNoise does.

    Every value of every image and frame gets its own noise. As in torchvision, the noise of 8-bit images is truncated
    towards 0 to an integer. So is that of 16-bit images, which torchvision does not take.

    Attributes:
        mean: The mean of the noise, where 1 is white: 255 for 8 bits, 65535 for 16 bits.
        sigma: The standard deviation of the noise, in the same unit.
        clip: True.
        p: The probability of the noise; torchvision has RandomApply for it.
    """

    mean: Mean = 0.0
    sigma: Deviation = 0.1
    clip: Clip = True
    _: KW_ONLY
    p: Probability = 1.0

    code = opcodes.NOISE

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """NOISE_MEAN ... NOISE_P."""
        return self.mean, self.sigma, self.p


@dataclass(frozen=True, slots=True, repr=False)
class RandomErasing(Geometry):
    """Fill a random rectangle with probability p, drawn as in torchvision's RandomErasing.

    Attributes:
        p: Probability.
        scale: Least and most share of the area.
        ratio: Least and most height over width.
        value: The fill, in the units that pixels have at this place in the list, after any ToDtype and Normalize
            before it.
    """

    p: Probability = 0.5
    scale: Share = (0.02, 0.33)
    ratio: Ratio = (0.3, 3.3)
    value: Fill = 0

    code = opcodes.ERASE
    erases = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """ERASE_P ... ERASE_RATIO_HIGH."""
        return (self.p, *self.scale, *self.ratio)


@dataclass(frozen=True, slots=True, repr=False)
class Cutout(Geometry):
    """Fill a rectangle of one size, anywhere inside the image: DeVries and Taylor, "Cutout" (2017), as in FFCV.

    Attributes:
        size: Of the rectangle; an int for a square.
        value: The fill, in the units that pixels have at this place in the list.
        p: Probability.
    """

    size: Size
    value: Fill = 0
    p: Probability = 1.0

    code = opcodes.ERASE
    erases = True

    @property
    def real_numbers(self) -> tuple[float, ...]:
        """ERASE_P."""
        return (self.p,)
