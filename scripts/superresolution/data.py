"""What a training run reads: pairs as they are stored, or photographs that are degraded on the fly."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

import lmdbloader
from lmdbloader.base.text import counted, extent, plain
from lmdbloader.errors import OptionError
from lmdbloader.superres import degradations
from lmdbloader.superres.evaluation import PairDataset, pair_scale
from lmdbloader.transforms import RandomDihedral, RandomHorizontalFlip, RandomVerticalFlip, Transform

# Images that an error names.
SHOWN = 5
PRESETS = ("real_esrgan", "bsrgan", "bsrgan_plus", "first_order", "neosr", "trainner_redux")


def find_degradation(text: str, scale: int | None, *, fixed: bool = False) -> degradations.Degradation:
    """Return one of PRESETS, with arguments or without, or that of an option file; for x4, or the file's scale.

    Raises:
        OptionError: There is neither, or the file or an argument does not suit.
    """
    if Path(text).is_file():
        return degradations.from_yaml(text, scale=scale, fixed=fixed)
    found = degradations.named(text, 4 if scale is None else scale)
    return replace(found, fixed=fixed or found.fixed)


def open_images(path: Path) -> lmdbloader.LMDBDataset:
    """Open a dataset to be degraded, with only its image field; of pairs, only hr.

    Raises:
        OptionError: It has no field hr, and not exactly one image field.
    """
    dataset = lmdbloader.LMDBDataset(path)
    names = image_fields(dataset)
    names = ["hr"] if "hr" in names else names
    if len(names) != 1:
        raise OptionError(
            f"{path}: --degradation makes lr from hr; expected a dataset with one image field, found "
            f"{', '.join(names) or 'none'}. Convert without --scale: lmdbloader convert PHOTOS hr.lmdb"
        )
    return lmdbloader.LMDBDataset(path, fields=names)


def open_pairs(path: Path, scale: int | None) -> lmdbloader.LMDBDataset:
    """Open a dataset of pairs; from one with several scales, the pairs of one scale.

    Raises:
        OptionError: The dataset does not have this scale, or has several and none is chosen.
    """
    dataset, low = lmdbloader.LMDBDataset(path), f"lr{scale}"
    scales = [name[2:] for name in dataset.fields if name.startswith("lr") and name != "lr"]
    if scale is None and scales:
        raise OptionError(f"{path}: has the scales {', '.join(scales)}. Choose one: --scale {scales[-1]}")
    if len(image_fields(dataset)) == 1:
        raise OptionError(
            f"{path}: a sample must be a pair (lr, hr) of images; found one image. To make lr while training, write "
            "--degradation real_esrgan; to store it, convert with --scale."
        )
    if low in dataset.fields:
        dataset = lmdbloader.LMDBDataset(path, fields=[low, "hr"])
    if scale is not None and pair_scale(dataset) != scale:
        raise OptionError(f"--scale {scale}: {path} has scale {pair_scale(dataset)}. Leave out --scale.")
    return dataset


def image_fields(dataset: lmdbloader.LMDBDataset) -> list[str]:
    """Return the names of the fields that are images."""
    return [name for name, field in dataset.fields.items() if field.kind == "image"]


def check_pixels(dataset: PairDataset) -> None:
    """Check that the models can take the images.

    Raises:
        OptionError: They are floats, or have bands.
    """
    for image in dataset[0]:
        if image.is_floating_point() or len(image) not in (1, 3):
            raise OptionError(
                f"{getattr(dataset, 'path', 'the dataset')}: images of {image.dtype} with "
                f"{counted(len(image), 'channel')}; this script trains on uint8 or uint16 with 1 "
                "or 3. Train on others in a loop of your own: docs/how-to/train-sr.md"
            )


class DegradedImages:
    """Whole images of a dataset as (lr, hr) pairs, cropped to multiples of the scale; every read is the same."""

    def __init__(self, dataset: lmdbloader.LMDBDataset, degradation: degradations.Degradation) -> None:
        """Take a dataset with one image field, and a degradation with fixed=True."""
        self.path = dataset.path
        self._dataset, self._degradation = dataset, degradation

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return (C, h, w) and (C, h * scale, w * scale)."""
        view = self._dataset.select([index])
        batch = next(iter(lmdbloader.Loader(view, 1, seed=index, num_threads=1, transforms=[self._degradation])))
        return batch.lr[0], batch.hr[0]


def augmentation(dataset: lmdbloader.LMDBDataset, crop: int | None) -> list[Transform]:
    """Return random flips and, for square crops or patches, quarter turns."""
    height, width = (crop, crop) if crop else dataset[0][-1].shape[-2:]
    return [RandomDihedral()] if height == width else [RandomHorizontalFlip(), RandomVerticalFlip()]


def check_crop(dataset: lmdbloader.LMDBDataset, crop: int, scale: int) -> None:
    """Check that a crop can be cut from every image, before an epoch meets the one that is too small.

    Raises:
        OptionError: It is not a multiple of the scale, or images or patches are smaller.
    """
    if crop % scale:
        below = crop // scale * scale
        near = f"{below} or {below + scale}" if below else str(scale)
        raise OptionError(
            f"--crop {crop}: expected a multiple of {scale}, the scale of {dataset.path}, so that lr has the same "
            f"window. Use --crop {near}."
        )
    heights, widths = sides(dataset)
    shorter = np.minimum(heights, widths)
    small = np.flatnonzero(shorter < crop)
    if not small.size:
        return
    patch = dataset.reader.manifest.made_by.get("options", {}).get("patch_size")
    if patch is not None:
        raise OptionError(
            f"--crop {crop}: {dataset.path} has patches of {patch} x {patch} pixels, which are smaller. Train on them "
            "without --crop, or convert whole images, without --patch-size: lmdbloader convert PHOTOS whole.lmdb "
            f"--scale {scale}"
        )
    examples = [
        f"{plain(dataset.reader.source(row) or f'sample {row}')} ({widths[row]} x {heights[row]})"
        for row in small[:SHOWN].tolist()
    ]
    remedy = f"Use --crop {int(shorter.min()) // scale * scale} or less"
    if len(small) < len(dataset):
        hr = list(dataset.fields)[-1]
        remedy += (
            f", or leave them out: lmdbloader subset {shlex.quote(str(dataset.path))} "
            f"'{hr}.height >= {crop} and {hr}.width >= {crop}' -o large.lmdb"
        )
    raise OptionError(
        f"--crop {crop}: {len(small):,} of {counted(len(dataset), 'image')} in {dataset.path} "
        f"{'is' if len(small) == 1 else 'are'} smaller: {', '.join(examples)}{', ...' * (len(small) > SHOWN)}. {remedy}"
    )


def check_patches(dataset: lmdbloader.LMDBDataset, batch_size: int) -> None:
    """Check that samples fit into one batch without a crop.

    Raises:
        OptionError: They differ in size.
    """
    heights, widths = sides(dataset)
    if batch_size > 1 and (np.ptp(heights) or np.ptp(widths)):
        raise OptionError(
            f"{dataset.path}: its images have different shapes, hr of {extent((int(widths.min()), int(widths.max())))} "
            f"by {extent((int(heights.min()), int(heights.max())))} pixels, which do not fit into one batch. Train on "
            "random windows of them: --crop 96"
        )


def sides(dataset: lmdbloader.LMDBDataset) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the heights and widths of all hr images, (len(dataset),) in pixels, from the index: no pixel is read."""
    larger = list(dataset.fields)[-1]
    columns = dataset.reader.index.arrays
    return columns[f"{larger}.height"].astype(np.int64), columns[f"{larger}.width"].astype(np.int64)


def made_from_same(dataset: lmdbloader.LMDBDataset, other: lmdbloader.LMDBDataset) -> bool:
    """Return whether two datasets were made from the same files, cut or not."""
    manifests = dataset.reader.manifest, other.reader.manifest
    if manifests[0].content_digest == manifests[1].content_digest:
        return True
    inputs = [manifest.made_by.get("inputs") or {} for manifest in manifests]
    return inputs[0].get("content") is not None and inputs[0] == inputs[1]


def default_repeat(dataset: lmdbloader.LMDBDataset, crop: int) -> int:
    """Return how many windows of crop x crop pixels the mean image has, at least 1."""
    heights, widths = sides(dataset)
    return max(round(float((heights * widths).mean()) / crop**2), 1)
