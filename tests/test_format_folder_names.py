"""Names of folders mean what datasets in the wild use them for."""

from __future__ import annotations

import pytest

from lmdbloader.format.folder_names import is_high, is_low, is_of_images, is_of_masks, is_of_scale, is_split

KINDS = {
    "split": is_split,
    "images": is_of_images,
    "masks": is_of_masks,
    "high": is_high,
    "low": is_low,
    "scale": is_of_scale,
}


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ({"split"}, ["train", "Test", "val2017", "trainA", "DIV2K_train_HR", "dev"]),
        ({"images"}, ["images", "JPEGImages", "imgs", "leftImg8bit", "photo", "input", "rgb"]),
        ({"masks"}, ["mask", "Masks", "labels", "SegmentationClass", "SegmentationObject", "gtFine", "trimaps", "gts"]),
        ({"masks", "high"}, ["gt", "GT", "gt_sub"]),
        ({"high"}, ["HR", "hr_x2", "GTmod12", "highres"]),
        ({"low"}, ["LR", "lq", "LRbicx4", "low_res_x2"]),
        ({"scale"}, ["X2", "x4", "8x"]),
        (set(), ["X9", "x16", "cats", "trains", "values", "masked", "n01440764", "classes", "depth", "imagenet"]),
    ],
)
def test_what_a_name_means(kinds: set[str], names: list[str]) -> None:
    for name in names:
        assert {kind for kind, holds in KINDS.items() if holds(name)} == kinds, name
