"""What a conversion is to do: its options checked, its inputs listed, before any image is read."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from lmdbloader.base.arguments import number, optional, whole
from lmdbloader.conversion.pairs import SCALES
from lmdbloader.conversion.pool import check_workers, choose_workers
from lmdbloader.conversion.selection import choose_subset, with_classes
from lmdbloader.conversion.sources import Layout, Listing, list_sources, locate
from lmdbloader.conversion.storage import make_storage, pixels_only
from lmdbloader.conversion.tasks import Recipe
from lmdbloader.conversion.trial import find_scale, make_fields
from lmdbloader.errors import OptionError
from lmdbloader.format.codecs import check_codec
from lmdbloader.format.digests import DigestName, check_digest
from lmdbloader.images.decode import DecodePolicy


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion is to do.

    Attributes:
        recipe: For every source; its fields, and the scale of given pairs, are not settled yet.
        listing: The sources.
        codec: Of pixels, as asked for.
        digest: The algorithm of the dataset's digests.
        folders: Local ones that the sources lie in.
        num_workers: Worker processes.
    """

    recipe: Recipe
    listing: Listing
    codec: str
    digest: DigestName
    folders: tuple[Path, ...]
    num_workers: int


def make_plan(
    src: str | os.PathLike[str] | None,
    *,
    layout: Layout | Literal["auto"],
    hr: str | os.PathLike[str] | None,
    lr: str | os.PathLike[str] | None,
    patch_size: int | None,
    stride: int | None,
    scale: int | None,
    bicubic: Literal["matlab", "pillow"],
    alpha: Literal["refuse", "drop", "white"],
    max_pixels: int,
    codec: str | None,
    write_mode: str | None,
    max_resolution: int | None,
    jpeg_quality: int | None,
    compress_probability: float | None,
    smart_threshold: int | None,
    digest: str,
    subset: int | None,
    seed: int | None,
    classes: Sequence[str] | None,
    on_error: Literal["stop", "skip"],
    min_pair_psnr: float,
    workers: int | None,
) -> Plan:
    """Return what a conversion with these options, which are those of `convert`, is to do.

    Raises:
        OptionError: Options that make no sense.
        SourceError: No folder, no images, or pairs that do not match.
    """
    places = [None if p is None else locate(p) for p in (src, hr, lr)]
    patch_size, stride = optional(whole, "patch_size", patch_size), optional(whole, "stride", stride)
    scale, max_pixels = optional(whole, "scale", scale), whole("max_pixels", max_pixels)
    subset, seed = optional(whole, "subset", subset), optional(whole, "seed", seed)
    min_pair_psnr, workers = number("min_pair_psnr", min_pair_psnr), optional(whole, "workers", workers)
    recipe = _make_recipe(patch_size, stride, scale, bicubic, DecodePolicy(alpha, max_pixels), on_error, min_pair_psnr)
    prefer_images = patch_size is not None or scale is not None
    storage, codec = make_storage(
        write_mode,
        codec,
        is_cut=prefer_images,
        max_resolution=max_resolution,
        jpeg_quality=jpeg_quality,
        compress_probability=compress_probability,
        smart_threshold=smart_threshold,
        seed=seed,
        seed_is_used=subset is not None,
    )
    check_codec(codec)
    name = check_digest(digest)
    check_workers(workers)
    listing = list_sources(places[0], layout=layout, hr=places[1], lr=places[2], prefer_images=prefer_images)
    if listing.layout == "pairs" or scale is not None:
        storage = pixels_only(storage, write_mode)
    if subset is not None:
        listing = choose_subset(listing, subset, seed or 0)
    if classes is not None:
        listing = with_classes(listing, classes)
    num_workers = choose_workers(1 if listing.in_process else workers, int(listing.sources.nbytes.sum()))
    folders = tuple(place for place in places if isinstance(place, Path))
    return Plan(replace(recipe, storage=storage), listing, codec, name, folders, num_workers)


def settle_scale(plan: Plan) -> Recipe:
    """Return the recipe with the scale that given pairs have, and with fields; their codecs are still to be chosen.

    Raises:
        ImageError: The first pair (or, where the recipe skips, each) cannot be used.
        OptionError: Patch size or stride do not go with the scale.
    """
    recipe = plan.recipe
    if plan.listing.layout == "pairs":
        recipe = replace(recipe, scale=find_scale(recipe, plan.listing.sources))
        _check_sides(recipe)
    return replace(recipe, fields=make_fields(recipe, plan.listing.fields, plan.codec))


def _make_recipe(
    patch_size: int | None,
    stride: int | None,
    scale: int | None,
    bicubic: str,
    policy: DecodePolicy,
    on_error: str,
    min_pair_psnr: float,
) -> Recipe:
    if patch_size is None and stride is not None:
        raise OptionError("--stride without --patch-size: whole images have no stride")
    for name, value in (("patch size", patch_size), ("stride", stride)):
        if value is not None and value < 1:
            raise OptionError(f"{name} {value}: expected at least 1")
    if scale is not None and scale not in SCALES:
        raise OptionError(f"scale {scale}: expected {SCALES.start} to {SCALES.stop - 1}")
    if not math.isfinite(min_pair_psnr):
        raise OptionError(f"min_pair_psnr {min_pair_psnr}: expected a number of dB; 0 accepts every pair")
    if bicubic not in ("matlab", "pillow"):
        raise OptionError(f"bicubic {bicubic!r}: expected matlab or pillow")
    if on_error not in ("stop", "skip"):
        raise OptionError(f"on_error {on_error!r}: expected stop or skip")
    recipe = Recipe(
        fields=(),
        patch_size=patch_size,
        stride=stride or patch_size or 1,
        scale=scale,
        bicubic=cast(Literal["matlab", "pillow"], bicubic),
        policy=policy,
        min_pair_psnr=min_pair_psnr,
        on_error=cast(Literal["stop", "skip"], on_error),
    )
    _check_sides(recipe)
    return recipe


def _check_sides(recipe: Recipe) -> None:
    if recipe.scale and recipe.patch_size and (recipe.patch_size % recipe.scale or recipe.stride % recipe.scale):
        raise OptionError(
            f"patch size {recipe.patch_size} and stride {recipe.stride}: expected multiples of the scale "
            f"{recipe.scale}, so that the low-resolution patch is exactly aligned"
        )
