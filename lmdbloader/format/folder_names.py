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
_TARGETS = re.compile(r"(depths?|normals|edges|targets?)([_-].*)?", re.IGNORECASE)
# What the name of a mask may have in addition to that of its image.
_MASK_SUFFIX = re.compile(rb"[_-](masks?|seg(mentation)?|labels?|gt|annotations?)$", re.IGNORECASE)
_HIGH = re.compile(r"(hr|gt|gtmod|high_?res)([_-]?x?[0-9]+)?([_-].*)?", re.IGNORECASE)
_LOW = re.compile(r"(lr|lq|lrbic|low_?res)([_-]?x?[0-9]+)?([_-].*)?", re.IGNORECASE)
# Words in the names of halves of pairs, for super-resolution and other restoration, and in the folders of both.
_HIGH_WORDS = {
    "clean", "clear", "groundtruth", "gt", "high", "hq", "hr", "norain", "normal", "original", "sharp", "target",
    "targets",
}  # fmt: skip
_LOW_WORDS = {
    "bic", "bicubic", "blur", "blurred", "blurry", "compressed", "degraded", "haze", "hazy", "input", "inputs", "low",
    "lq", "lr", "noise", "noisy", "rain", "rainy",
}  # fmt: skip
_BOTH_WORDS = {"data", "image", "images"}
_WORD = re.compile(
    r"(?P<word>hr|gt|hq|lr|lq)(?:bic)?(?:x?[1-8])?(?![a-z0-9])|(?P<scale>x[2-8]|[2-8]x)(?![a-z0-9])|[a-z]+|[0-9]+"
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


def is_of_targets(name: str) -> bool:
    """Return whether a folder is named like one of masks, or of other targets as large as their images."""
    return is_of_masks(name) or _TARGETS.fullmatch(name) is not None


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
    """Return whether a folder is named like the low-resolution half of pairs: LQ, LRbicx4."""
    return _LOW.fullmatch(name) is not None


def half_of(stem: str) -> tuple[str, str]:
    """Return which half of a pair a file is by the words in its path, "high", "low" or "", and what names the pair.

    >>> half_of("train_sharp/000/01"), half_of("train_sharp_bicubic/X4/000/01")
    (('high', '000 01'), ('low', '000 01'))
    >>> half_of("2/Canon_001_HR"), half_of("2/Canon_001_LR2"), half_of("cat/1")
    (('high', '2 canon 001'), ('low', '2 canon 001'), ('', 'cat 1'))
    """
    halves: set[str] = set()
    rest: list[str] = []
    *folders, file = stem.split("/")
    for folder in folders:
        words, found = _words_and_halves(folder)
        halves |= found
        # The whole name of such a folder is that of a half.
        rest += [] if found or not set(words) - _BOTH_WORDS else words
    words, found = _words_and_halves(file)
    halves |= found
    return next((half for half in ("low", "high") if half in halves), ""), " ".join([*rest, *words])


def _words_and_halves(name: str) -> tuple[list[str], set[str]]:
    """Return the words of a name that are not about halves, and the halves that the others name."""
    words, halves = [], set()
    for found in _WORD.finditer(_CAPITAL.sub(" ", name).lower()):
        word = found["word"] or found[0]
        if word in _HIGH_WORDS or word in _LOW_WORDS:
            halves.add("high" if word in _HIGH_WORDS else "low")
        elif not found["scale"]:
            words.append(word)
    return words, halves
