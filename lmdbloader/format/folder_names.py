"""What the names of folders and files of images usually mean: splits, images and their masks, halves of pairs."""

from __future__ import annotations

import re

#: Names of splits. One of a folder's folders must have one, or class folders could be taken for splits.
SPLITS = frozenset(
    {"train", "training", "trainval", "val", "valid", "validation", "test", "testing", "dev", "eval", "evaluation"}
)
# CycleGAN's trainA, COCO's train2017 and DIV2K_train_HR are names of splits too.
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(sorted(SPLITS))})[ab]?(?![a-z])")
_IMAGES = re.compile(r"(jpeg|color_?|left)?(images?|imgs?|img8bit)|photos?|rgb|inputs?", re.IGNORECASE)
_MASKS = re.compile(
    r"(masks?|labels?|annotations?|annots?|anns?|seg(mentation)?s?(class|object)?|ground_?truths?|gts?(fine|coarse)?"
    r"|trimaps?)([_-].*)?",
    re.IGNORECASE,
)
# What the name of a mask may have in addition to that of its image.
_MASK_SUFFIX = re.compile(rb"[_-](masks?|seg(mentation)?|labels?|gt|annotations?)$", re.IGNORECASE)
_HIGH = re.compile(r"(hr|gt|gtmod|high_?res)([_-]?x?[0-9]+)?([_-].*)?", re.IGNORECASE)
_SCALE = re.compile(r"x[2-8]|[2-8]x", re.IGNORECASE)
_LOW = re.compile(r"(lr|lq|lrbic|b[id](?=x)|low_?res)([_-]?x?[0-9]+)?([_-].*)?", re.IGNORECASE)
# Words in the paths of halves of pairs, for super-resolution and other restoration.
_HIGH_WORDS = {
    "hr", "hq", "gt", "high", "sharp", "clean", "clear", "norain", "normal", "target", "targets", "original",
}  # fmt: skip
_LOW_WORDS = {
    "lr", "lq", "low", "bic", "bicubic", "blur", "blurred", "blurry", "noise", "noisy", "rain", "rainy", "haze", "hazy",
    "degraded", "input", "inputs",
}  # fmt: skip
_BOTH_WORDS = {"data", "image", "images"}
_WORD = re.compile(
    r"(?P<half>hr|gt|hq|lr|lq)(?:bic)?(?:x?[1-8])?(?![a-z0-9])|(?P<scale>x[2-8]|[2-8]x)(?![a-z0-9])|[a-z]+|[0-9]+"
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def is_split(name: str) -> bool:
    """Return whether a folder's name is that of a split.

    >>> [is_split(name) for name in ("train", "val2017", "testA", "DIV2K_valid_HR", "trains", "cats")]
    [True, True, True, True, False, False]
    """
    return _SPLIT.search(name.lower()) is not None


def is_of_training(name: str) -> bool:
    """Return whether the name of a split is that of training data."""
    found = _SPLIT.search(name.lower())
    return found is not None and found[1].startswith("train")


def is_of_images(name: str) -> bool:
    """Return whether a folder is named like one of images that have something in another folder: images, JPEGImages."""
    return _IMAGES.fullmatch(name) is not None


def is_of_masks(name: str) -> bool:
    """Return whether a folder is named like one of masks.

    >>> [is_of_masks(name) for name in ("masks", "SegmentationClass", "gtFine", "masks_old", "depth", "classes")]
    [True, True, True, True, False, False]
    """
    return _MASKS.fullmatch(name) is not None


def without_mask_suffix(stem: bytes) -> bytes:
    """Return the name of the image that a mask belongs to by its name.

    >>> without_mask_suffix(b"a/1_mask"), without_mask_suffix(b"a/1")
    (b'a/1', b'a/1')
    """
    return _MASK_SUFFIX.sub(b"", stem)


def is_high(name: str) -> bool:
    """Return whether a folder is named like the high-resolution half of pairs: GT, HR_sub."""
    return _HIGH.fullmatch(name) is not None


def is_low(name: str) -> bool:
    """Return whether a folder is named like the low-resolution half of pairs: LQ, LRbicx4, BDx4."""
    return _LOW.fullmatch(name) is not None


def is_of_scale(name: str) -> bool:
    """Return whether a folder is named like one of images of a scale of super-resolution: X2, 4x."""
    return _SCALE.fullmatch(name) is not None


def half_of(stem: str) -> tuple[str, str]:
    """Return which half of a pair a file is by the words in its path, "high", "low" or "", and the other words.

    >>> half_of("train_HR/0001"), half_of("train_LR_bicubic/X4/0001x4")
    (('high', 'train 0001'), ('low', 'train 0001'))
    >>> half_of("2/Canon_001_HR"), half_of("2/Canon_001_LR2"), half_of("cat/1")
    (('high', '2 canon 001'), ('low', '2 canon 001'), ('', 'cat 1'))
    """
    half, rest = "", []
    for found in _WORD.finditer(_CAPITAL.sub(" ", stem).lower()):
        word = found["half"] or found[0]
        if word in _LOW_WORDS:
            half = "low"
        elif word in _HIGH_WORDS:
            half = half or "high"
        elif not found["scale"] and word not in _BOTH_WORDS:
            rest.append(word)
    return half, " ".join(rest)
