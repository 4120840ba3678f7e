"""Names of transforms of other libraries, and objects of torchvision: what to write for them here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from torch import nn

from lmdbloader.base.arguments import listed
from lmdbloader.errors import OptionError
from lmdbloader.transforms import operations

_TENSORS = "Leave it out: images are tensors (C, H, W) already, in batches (B, C, H, W)"
_SCALED = "ToDtype(torch.float32, scale=True)"
_CONTAINER = "a list of transforms; most take a probability p, as in ColorJitter(0.4, p=0.8)"

# What to write instead of a name; "" where only the other library's own does it, in Python.
INSTEAD: dict[str, str] = {
    # torchvision: types
    **dict.fromkeys(("ToImage", "PILToTensor", "ToPureTensor", "ToPILImage", "ToImageTensor", "ToImagePIL"), _TENSORS),
    "ToTensor": f"{_SCALED}; leave FFCV's ToTensor out",
    "ConvertImageDtype": _SCALED,
    "ConvertDtype": _SCALED,
    "ConvertImage": _SCALED,
    "RGB": "Leave it out: in a dataset with colours, grey images come out with three equal channels",
    "Identity": "Leave it out",
    "InterpolationMode": "'bilinear' or 'bicubic'; torchvision's InterpolationMode is accepted too",
    # torchvision: containers
    "Compose": "a list of transforms, as in Loader(..., transforms=[RandomCrop(64), RandomHorizontalFlip()])",
    **dict.fromkeys(("RandomApply", "RandomChoice", "RandomOrder"), _CONTAINER),
    "Lambda": "the function itself, after the compiled transforms; it is called with whole batches",
    # torchvision: what the compiled ones can do
    "Grayscale": "RandomGrayscale(1), which gives three equal channels",
    "RandomInvert": "RandomSolarize(0, p), which inverts all values",
    "RandomSizedCrop": "RandomResizedCrop(size)",
    "Scale": "Resize(size)",
    "Pad": "RandomCrop(size, padding, fill=fill), which pads and crops",
    "FiveCrop": "CenterCrop(size), or a loader for each crop",
    "TenCrop": "CenterCrop(size), or a loader for each crop",
    "SanitizeBoundingBoxes": "SanitizeBoxes('boxes', 'labels'), the names of the fields, after the others",
    **dict.fromkeys(("Letterbox", "LetterBox"), "Resize((height, width)), which changes the aspect ratio"),
    # torchvision: the others
    **dict.fromkeys(
        (
            "AugMix", "AutoAugment", "AutoAugmentPolicy", "ElasticTransform", "GaussianBlur", "GaussianNoise", "JPEG",
            "LinearTransformation", "RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomAutocontrast",
            "RandomChannelPermutation", "RandomEqualize", "RandomIoUCrop", "RandomPerspective",
            "RandomPhotometricDistort", "RandomPosterize", "RandomResize", "RandomRotation", "RandomShortestSize",
            "RandomZoomOut", "ScaleJitter", "TrivialAugmentWide", "ClampBoundingBoxes", "ClampKeyPoints",
            "ConvertBoundingBoxFormat", "SanitizeKeyPoints", "UniformTemporalSubsample",
            "functional", "v2",
        ),
        "",
    ),
    # albumentations
    "HorizontalFlip": "RandomHorizontalFlip(p)",
    "VerticalFlip": "RandomVerticalFlip(p)",
    **dict.fromkeys(("D4", "SquareSymmetry", "Flip"), "RandomDihedral()"),
    **dict.fromkeys(("RandomRotate90", "Transpose"), "RandomDihedral(), which also mirrors"),
    "RandomFlip": "RandomHorizontalFlip(p), RandomVerticalFlip(p), or RandomDihedral() for both and quarter turns",
    "RandomScale": "RandomResizedCrop(size, scale), which scales and crops",
    "CoarseDropout": "Cutout(size, value, p) for one rectangle of one size, or RandomErasing(p)",
    "PadIfNeeded": "RandomCrop(size, pad_if_needed=True)",
    "SmallestMaxSize": "Resize(size)",
    "ColorJiggle": "ColorJitter(brightness, contrast, saturation, hue)",
    "RandomBrightnessContrast": "ColorJitter(brightness, contrast, p=p)",
    "HueSaturationValue": "ColorJitter(saturation=saturation, hue=hue, p=p)",
    "ToGray": "RandomGrayscale(p)",
    "Solarize": "RandomSolarize(threshold, p), with the threshold in units of the stored pixels",
    "InvertImg": "RandomSolarize(0, p), which inverts all values",
    "ToFloat": _SCALED,
    "ToTensorV2": _TENSORS,
    **dict.fromkeys(("OneOf", "SomeOf", "Sequential"), _CONTAINER),
    # FFCV
    "RandomResizedCropRGBImageDecoder": "RandomResizedCrop(size, scale, ratio)",
    "CenterCropRGBImageDecoder": "Resize(round(size / ratio)), CenterCrop(size)",
    "NormalizeImage": "ToDtype(torch.float16, scale=True), Normalize([m / 255 for m in mean], [s / 255 for s in std])",
    "Convert": "ToDtype(dtype)",
    "ToDevice": "Loader(..., device='cuda')",
    "ToTorchImage": f"{_TENSORS}; Loader(..., memory_format=torch.channels_last) for the order of the memory",
    **dict.fromkeys(
        ("Squeeze", "View", "IntDecoder", "FloatDecoder", "NDArrayDecoder", "BytesDecoder", "SimpleRGBImageDecoder"),
        "Leave it out: every field is decoded, labels are tensors (B,)",
    ),
    "RandomBrightness": "ColorJitter(magnitude, p=p)",
    "RandomContrast": "ColorJitter(contrast=magnitude, p=p)",
    "RandomSaturation": "ColorJitter(saturation=magnitude, p=p)",
    **dict.fromkeys(("ImageMixup", "LabelMixup", "MixupToOneHot"), "MixUp(alpha, num_classes), for images and labels"),
    "ModuleWrapper": "the module itself, after the compiled transforms; it is called with whole batches",
    # timm, BasicSR
    "Mixup": "MixUp(alpha, num_classes) or CutMix(alpha, num_classes), after LabelSmoothing(smoothing, num_classes)",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop(size, scale, ratio, 'bicubic')",
    "ToNumpy": _TENSORS,
    "augment": "RandomDihedral()",
    "paired_random_crop": "RandomCrop(gt_size), which cuts lr and hr at one place",
}  # fmt: skip

# Transforms of torchvision that do not draw in `make_params`.
_CHOOSING = ("AugMix", "AutoAugment", "RandAugment", "RandomChoice", "RandomOrder", "TrivialAugmentWide")
# Those that take floats for pixels from 0 to 1: they clamp, round or invert them.
_OF_PIXELS = frozenset({
    "AugMix", "AutoAugment", "ColorJitter", "GaussianNoise", "JPEG", "RandAugment", "RandomAdjustSharpness",
    "RandomAutocontrast", "RandomEqualize", "RandomInvert", "RandomPhotometricDistort", "RandomPosterize",
    "RandomSolarize", "ToPILImage", "TrivialAugmentWide",
})  # fmt: skip
_CHANGING_VALUES = frozenset({"ConvertImageDtype", "Lambda", "LinearTransformation", "Normalize", "ToDtype"})
# Those made for batches.
_FOR_BATCHES = {"MixUp", "CutMix"}


def instead_of(name: str) -> str | None:
    """Return the message for a name of another library; None if it is not a known one.

    >>> instead_of("HorizontalFlip")
    'lmdbloader.transforms has no HorizontalFlip. Write RandomHorizontalFlip(p).'
    """
    return f"lmdbloader.transforms has no {name}. {_line(name)}" if name in INSTEAD else None


def advice_for(transform: object) -> str:
    """Return what to do with an object of torchvision in the wrong place, as sentences; "" for any other object."""
    if not is_torchvision(transform):
        return ""
    name = type(transform).__name__
    if name == "Compose":
        return " Give the list of transforms of lmdbloader.transforms itself, without Compose."
    if name in operations.__all__:
        return f" lmdbloader.transforms.{name} is compiled and takes the same arguments: import it from there."
    return f" {_line(name)}"


def listed_transforms(transforms: Any) -> tuple[Any, ...]:
    """Return the transforms in a list; none for None.

    Raises:
        OptionError: It is not a list but one transform, or torchvision's Compose.
    """
    if is_torchvision(transforms) and (line := ported(transforms)):
        raise OptionError(f"transforms={type(transforms).__name__}(...): expected a list. {line}")
    return listed("transforms", transforms)


def ported(transforms: object) -> str:
    """Return the list to write for transforms of torchvision, alone, in a list or in Compose; "" if there are none.

    >>> ported([print])
    ''
    """
    given = transforms if isinstance(transforms, list | tuple) else [transforms]
    parts = [part for each in given for part in _unpacked(each)]
    names = [type(part).__name__ for part in parts]
    if not any(map(is_torchvision, parts)):
        return ""
    lines = {name: f"{name}(...)" for name in operations.__all__} | {"ToTensor": _SCALED, "ConvertImageDtype": _SCALED}
    written = ", ".join(lines[name] for name in names if name in lines)
    others = [_line(name) for name in names if name not in lines and not INSTEAD.get(name, "").startswith("Leave")]
    line = f"Write transforms=[{written}] with those of lmdbloader.transforms, which take the same arguments."
    return " ".join([line, *dict.fromkeys(others)])


def _unpacked(transform: Any) -> Iterator[Any]:
    """Yield the transforms in a Compose or nn.Sequential, else the transform itself."""
    if type(transform).__name__ in ("Compose", "Sequential"):
        for part in getattr(transform, "transforms", None) or transform.children():
            yield from _unpacked(part)
    else:
        yield transform


def _line(name: str) -> str:
    """Return what to write for a name, as a sentence."""
    instead = INSTEAD.get(name, "")
    if instead:
        return f"{instead}." if instead.startswith("Leave") else f"Write {instead}."
    what = "v2.Compose([...])" if name in ("functional", "v2") else f"v2.{name}(...)"
    return f"Use torchvision's own, in Python, for every sample: LMDBDataset(path, transform={what})."


def is_torchvision(transform: object) -> bool:
    """Return whether an object is a transform of torchvision, v1 or v2, or of a class derived from one."""
    cls: Any = type(transform)
    return _is_derived(cls, "torchvision.transforms")


def is_v2(transform: object) -> bool:
    """Return whether an object is a transform of torchvision v2, or of a class derived from one."""
    cls: Any = type(transform)
    return _is_derived(cls, "torchvision.transforms.v2")


@cache  # it is asked for every sample
def _is_derived(cls: Any, module: str) -> bool:
    return any(base.__module__.startswith(module) for base in cls.__mro__)


def parts_of(transform: Any) -> Iterator[Any]:
    """Yield a transform and those inside it: of Compose, RandomApply, nn.Sequential and the like."""
    yield transform
    inner = getattr(transform, "transforms", None) if is_torchvision(transform) else None
    if isinstance(inner, (list, tuple, nn.ModuleList)):
        children = list(inner)
    else:
        children = list(transform.children()) if isinstance(transform, nn.Module) else []
    for child in children:
        yield from parts_of(child)


def check_pixels(functions: Iterable[Any], limits: Mapping[str, tuple[float, float]]) -> None:
    """Check that torchvision's transforms get pixels that they take.

    Args:
        functions: In their order; those after one that may change the pixels' range are not checked.
        limits: The least and the largest float of each field of images.

    Raises:
        OptionError: One would take floats for pixels from 0 to 1, and they are others.
    """
    outside = next((name for name, (low, high) in limits.items() if low < -0.01 or high > 1.01), None)
    for part in chain.from_iterable(map(parts_of, functions)) if outside else ():
        name = type(part).__name__
        if name in _CHANGING_VALUES or not (is_torchvision(part) or type(part) is nn.Sequential):
            return
        if name in _OF_PIXELS and getattr(part, "clip", True):
            low, high = limits[str(outside)]
            raise OptionError(
                f"torchvision's {name} gets the pixels of {outside!r} from {low:.3g} to {high:.3g}; expected bytes, or "
                "floats from 0 to 1. Leave ToDtype and Normalize out of the compiled list, and write "
                f"LMDBDataset(path, transform=v2.Compose([v2.{name}(...), v2.ToDtype(torch.float32, scale=True), "
                "v2.Normalize(mean, std)]))."
            )


def is_stateless(transform: Any) -> bool:
    """Return whether a transform and all its parts are torchvision's own, which change nothing when they are called."""
    is_known = is_torchvision(transform) or type(transform) is nn.Sequential
    return is_known and all(map(_is_own, parts_of(transform)))


def _is_own(part: Any) -> bool:
    """Return whether an object is a transform of torchvision that calls no function of the user."""
    cls: Any = type(part)
    if cls is nn.Sequential:
        return True
    is_own = cls.__module__.startswith("torchvision.transforms.") and cls.__name__ != "Lambda"
    return is_own and not callable(getattr(part, "labels_getter", None))


def random_parts(transform: Any) -> list[Any]:
    """Return the transforms of torchvision v2 inside one that make one random choice for a whole batch."""
    return [part for part in parts_of(transform) if is_v2(part) and _draws(part)]


def _draws(part: Any) -> bool:
    name, p = type(part).__name__, getattr(part, "p", None)
    inner = [type(other).__name__ for other in parts_of(part)][1:]
    if name in _FOR_BATCHES or (inner and _FOR_BATCHES.issuperset(inner)):  # as in RandomChoice([MixUp(), CutMix()])
        return False
    if name in _CHOOSING or (isinstance(p, int | float) and 0 < p < 1):
        return True
    if name == "RandomGrayscale":  # its parameters are not random
        return False
    return any(
        {"make_params", "_get_params"} & vars(cls).keys() for cls in type(part).__mro__ if cls.__name__ != "Transform"
    )
