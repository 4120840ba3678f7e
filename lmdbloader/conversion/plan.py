"""The plan of a conversion: its options checked, its inputs listed, and a few inputs tried."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmdbloader.base.option_names import option
from lmdbloader.base.progress import watched
from lmdbloader.base.text import counted
from lmdbloader.base.units import show_nbytes
from lmdbloader.conversion.degrading import settled
from lmdbloader.conversion.doubts import refuse_mistaken, refuse_swapped_halves, splits_as_classes
from lmdbloader.conversion.mask_numbers import check_numbers
from lmdbloader.conversion.options import ConvertOptions, shared
from lmdbloader.conversion.pairs import common_text, find_scales, show_same_picture
from lmdbloader.conversion.pool import WorkerPool, choose_workers
from lmdbloader.conversion.sampling import Sample, draw_sample
from lmdbloader.conversion.selection import choose_subset, shuffle, with_classes
from lmdbloader.conversion.sources.clips import refuse_options
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Listing, Source, Sources
from lmdbloader.conversion.sources.remote import locate_all
from lmdbloader.conversion.storage import make_storage, pixels_only
from lmdbloader.conversion.tasks import Part, Recipe, decode_pairs, read_files
from lmdbloader.conversion.trial import Tried, data_nbytes, make_guess
from lmdbloader.errors import ImageError, OptionError, SourceError
from lmdbloader.format.codecs import LEAST_SAVING, check_codec, check_prefer, codec_for
from lmdbloader.format.layout import MAX_NAMES, Field, Kind, make_field
from lmdbloader.format.manifest import Description
from lmdbloader.store import estimate_map_nbytes, map_nbytes_of

_TRIAL_SOURCES = 8
# So many inputs, and bytes of files, are tried with delta too, to say what it would save.
_COMPARED, _COMPARED_NBYTES = 4, 16 * 2**20
# At most so many pairs of one size are compared, until one agrees.
_PAIRS_COMPARED = 8
_TRIAL_NBYTES = 16 * 2**20
# Of this many sources, so many are drawn for the size of the dataset if they are at most this share of all bytes.
_MANY_SOURCES, _SAMPLED, _TRIAL_SHARE = 160, 24, 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a conversion.

    Attributes:
        options: As given.
        recipe: For every source; its fields, and the scale of given pairs, are not settled yet.
        listing: The sources.
        codec: Of pixels, with the default of the write mode.
        folders: Local folders of the sources.
        num_workers: Worker processes.
        notes: Sentences about what was left out or changed in the sources.
    """

    options: ConvertOptions
    recipe: Recipe
    listing: Listing
    codec: str
    folders: tuple[Path, ...]
    num_workers: int
    notes: tuple[str, ...]


def make_plan(src: str | os.PathLike[str] | None, options: ConvertOptions) -> Plan:
    """Return the plan of a conversion with checked options.

    Raises:
        OptionError: Options that contradict each other, or more names of classes than a dataset can have.
        SourceError: No folder, no images, or pairs that do not match.
    """
    options = settled(options)
    names = ("hr", "lr", "masks", "annotations")
    places = [locate_all(src, "source"), *(locate_all(getattr(options, name), name) for name in names)]
    if options.patch_size is None and options.stride is not None:
        raise OptionError(f"{option('stride')} without {option('patch_size')}: whole images have no stride")
    if options.scale is None and options.bicubic != "matlab":
        raise OptionError(f"{option('bicubic', options.bicubic)} has no effect without {option('scale')}")
    _check_sides(options)
    _refuse_moves(options)
    prefer_images = options.patch_size is not None or options.scale is not None
    storage, codec = make_storage(options, is_cut=prefer_images)
    check_codec(codec)
    check_prefer(options.prefer, [codec])
    listing = list_sources(
        places[0],
        layout=options.layout,
        hr=places[1],
        lr=places[2],
        masks=places[3],
        annotations=places[4],
        classes=options.classes,
        prefer_images=prefer_images,
        skip=options.on_error == "skip",
    )
    if listing.layout == "masks" and options.scale is not None:
        raise OptionError(f"{option('scale', options.scale)} with masks: leave it out, or convert the images alone")
    if options.binary_masks and listing.layout != "masks":
        raise OptionError(f"{option('binary_masks', True)} has no effect without masks: give {option('masks')}")
    if listing.layout == "pairs" or options.scale is not None:
        storage = pixels_only(storage, options.write_mode)
    notes = listing.notes
    if listing.layout == "masks":
        notes += check_numbers(listing.sources, is_binary=options.binary_masks)
    if places[0] is not None and options.layout in ("auto", "clips") and options.classes is None:
        refuse_mistaken(places[0], listing)
    notes += splits_as_classes(listing.classes)
    _check_pairs(options, listing.layout)
    if options.subset is not None:
        listing = choose_subset(listing, options.subset, options.seed or 0)
    if options.shuffle is not None:
        listing = shuffle(listing, options.shuffle)
    if options.classes is not None and listing.layout != "yolo":
        listing = with_classes(listing, options.classes)
    _refuse_many(listing.sources)
    if listing.classes:
        Description((), True, {"labels": tuple(listing.classes)}, {}).to_json()  # refuses very many names
    num_workers = choose_workers(1 if listing.in_process else options.workers, int(listing.sources.nbytes.sum()))
    folders = _folders(places[:4])
    # Every task carries the recipe, and class names can be many.
    recipe = Recipe((), replace(shared(options), classes=None), storage)
    return Plan(options, recipe, listing, codec, folders, num_workers, notes)


def _folders(places: Sequence[Any]) -> tuple[Path, ...]:
    """Return the local ones among places and lists of places."""
    flat = [each for place in places for each in (place if isinstance(place, list) else [place])]
    return tuple(place for place in flat if isinstance(place, Path))


def _check_pairs(options: ConvertOptions, layout: str) -> None:
    if options.degradation is not None and layout == "pairs":
        raise OptionError(
            f"{option('degradation', options.degradation)} with given pairs: it makes lr. Give the folder of HR images "
            "as SRC."
        )
    if options.crop_to_scale and layout != "pairs":
        raise OptionError(
            f"{option('crop_to_scale', True)} is only for pairs of given images. {option('scale')} always crops images "
            "to a multiple of the scale"
        )


def _refuse_many(sources: Sources) -> None:
    """Refuse more sources than an index can number, before any of them is converted.

    Raises:
        OptionError: There are too many.
    """
    if len(sources) > MAX_NAMES:
        raise OptionError(
            f"{len(sources):,} sources, and one dataset holds at most {MAX_NAMES:,}. Make several datasets, of other "
            f"folders or with {option('subset')}."
        )


def settle_scale(plan: Plan) -> Recipe:
    """Return the recipe with the scale of the given pairs, and with fields, whose codecs are not settled yet.

    Raises:
        ImageError: The first pair cannot be used; with on_error="skip", no pair can be used.
        OptionError: Patch size or stride do not go with the scale.
        SourceError: The halves of pairs of one size seem to be swapped, or do not belong together.
    """
    recipe = plan.recipe
    if plan.listing.layout == "pairs":
        recipe = recipe.changed(scale=find_scale(recipe, plan.listing.sources))
        _check_sides(recipe.options)
        if recipe.options.scale == 1:
            refuse_swapped_halves(plan.options.hr, plan.options.lr)
            _refuse_other_pictures(recipe, plan.listing.sources)
    return replace(recipe, fields=make_fields(recipe, plan.listing.fields, plan.codec))


def _refuse_moves(options: ConvertOptions) -> None:
    """Refuse options that would move the pixels of images, but not the boxes in them, or tear clips apart."""
    if options.layout == "clips":
        refuse_options(options)
    if options.annotations is None and options.layout not in ("coco", "yolo"):
        return
    for name in ("patch_size", "scale", "max_resolution"):
        if (value := getattr(options, name)) is not None:
            raise OptionError(
                f"{option(name, value)} with boxes: images would change without them. Leave it out, and crop or resize "
                "both when they are loaded: Loader(dataset, batch_size, transforms=[...])."
            )


def _check_sides(options: ConvertOptions) -> None:
    scales = options.low_scales.values()
    common = math.lcm(*scales)
    sides = {"patch_size": options.patch_size, "stride": options.stride}
    if any(side is not None and side % common for side in sides.values()):
        given = " and ".join(option(name, side) for name, side in sides.items() if side is not None)
        raise OptionError(
            f"{given}: expected multiples of {common_text(scales)}, so that the low-resolution patch is exactly aligned"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """What a few inputs have settled.

    Attributes:
        fields: The fields of the dataset, with their codecs.
        scale: The scale of pairs, or their scales.
        map_nbytes: Size of LMDB's maps, all parts together: the estimated size of the data files with a quarter to
            spare, or the upper end of its interval if that is more.
        data_nbytes: The estimated size of the data files; None if none of the inputs that were tried can be used.
        least_nbytes: The lower end of its interval; None likewise.
        delta_saves: The share of the bytes of pixels that prefer="size" would save with delta; None if that is little,
            or the codec is not chosen by speed.
    """

    fields: tuple[Field, ...]
    scale: int | Sequence[int] | None
    map_nbytes: int
    data_nbytes: int | None = None
    least_nbytes: int | None = None
    delta_saves: float | None = None


def find_scale(recipe: Recipe, sources: Sequence[Source]) -> int | list[int]:
    """Return the scale of the first readable pair, or its scales, which all others must have too.

    Raises:
        ImageError: The first pair cannot be used; with on_error="skip", no pair can be used.
    """
    error: ImageError | None = None
    for source in sources:
        try:
            return find_scales(*decode_pairs(recipe, source, *read_files(source)), recipe.options, source.name)
        except ImageError as problem:
            error = error or problem
        if recipe.options.on_error == "stop":
            break
    raise error or SourceError("there are no pairs")


def _refuse_other_pictures(recipe: Recipe, sources: Sequence[Source]) -> None:
    """Refuse pairs of one size if none of a few shows the same picture twice."""
    if recipe.options.min_pair_psnr is not None:
        return
    num_compared = 0
    for number in sorted({number * len(sources) // _PAIRS_COMPARED for number in range(_PAIRS_COMPARED)}):
        with suppress(ImageError):  # the conversion names it
            hr, lows = decode_pairs(recipe, sources[number], *read_files(sources[number]))
            if hr.shape != lows[0].shape or show_same_picture(hr, lows[0]):
                return
            num_compared += 1
    if num_compared > 3:  # one in four blurred patches does not agree either
        raise SourceError(
            f"{sources[0].name}: its HR and LR images seem to show different pictures, as do those of every pair that "
            f"was compared ({num_compared} of {len(sources):,}). Do equal names mean the same picture in both halves? "
            f"{option('min_pair_psnr', 0)} accepts every pair."
        )


def make_fields(recipe: Recipe, others: Sequence[tuple[str, Kind]], codec: str) -> tuple[Field, ...]:
    """Return the fields of a dataset: images and others; codec "auto" gives lz4 until a few inputs are tried."""
    names = (*sorted(recipe.options.low_scales), "hr") if recipe.options.scale else ("image",)
    images: list[tuple[str, Kind]] = [(name, "image") for name in names]
    chosen = "lz4" if codec == "auto" else codec
    return tuple(make_field(name, kind, codec_for(kind, chosen)) for name, kind in (*images, *others))


def try_out(recipe: Recipe, sources: Sources, pool: WorkerPool, codec: str) -> tuple[Trial, str]:
    """Encode some inputs, drawn at random by size, to choose the codecs and to estimate the map size.

    Returns:
        What they settle, and the sizes and codecs as a line of text.
    """
    drawn = _draw(recipe, sources)
    # The conversion itself will report inputs that cannot be used.
    tried = try_sources(recipe, [sources[row] for row in drawn.rows.tolist()], pool)
    fields, used, saves = recipe.fields, "", None
    if codec == "auto" and tried.has_pixels:
        prefers_size = recipe.options.prefer == "size"
        few = int((sources.nbytes[drawn.rows[:_COMPARED]].cumsum() <= _COMPARED_NBYTES).sum())
        some = drawn.rows if prefers_size else drawn.rows[: max(1, few)]
        packed = tuple(replace(f, codec=codec_for(f.kind, "delta")) if f.codec else f for f in fields)
        small = try_sources(replace(recipe, fields=packed), [sources[row] for row in some.tolist()], pool)
        fields = tried.choose_codecs(fields, small if prefers_size else None)
        if not prefers_size and small.saving >= LEAST_SAVING:
            saves = small.saving
            used = f" ({option('prefer', 'size')}: about {saves:.0%} fewer bytes of pixels, with the codec delta)"
    scale, used = recipe.options.scale, f"codec: {tried.describe_codecs(fields)}{used}"
    if not tried.num_samples.any():
        map_nbytes = estimate_map_nbytes(int(sources.nbytes.sum()), len(sources))
        text = f"map size: {show_nbytes(map_nbytes)}, from the size of the files; {used}"
        return Trial(fields, scale, map_nbytes, delta_saves=saves), text
    data = data_nbytes(drawn.estimate_total(tried.stored_nbytes), drawn.estimate_total(tried.num_samples))
    map_nbytes = map_nbytes_of(data.value, data.high)
    text = (
        f"data: about {show_nbytes(data.value)} ({show_nbytes(data.low)} to {show_nbytes(data.high)}), estimated "
        f"from {len(drawn.rows)} of {counted(len(sources), 'input')}; map size: {show_nbytes(map_nbytes)}; {used}"
    )
    return Trial(fields, scale, map_nbytes, int(data.value), int(data.low), saves), text


def try_sources(
    recipe: Recipe, sources: Sequence[Source], pool: WorkerPool, use: Callable[[Part], None] = lambda part: None
) -> Tried:
    """Return what some sources take that are converted one by one, and call `use` with each part of the result.

    Sources that cannot be used are left out.
    """
    tried = Tried(len(sources))
    parts = pool.convert(recipe.changed(on_error="skip"), [[source] for source in sources])
    for part in watched("trying images", parts, len(sources), lambda part: part.num_sources):
        tried.add(part)
        use(part)
    return tried


def _draw(recipe: Recipe, sources: Sources) -> Sample:
    """Return inputs whose conversion takes little of the time of all."""
    guess = make_guess(recipe, sources)
    nbytes = sources.nbytes
    if len(sources) >= _MANY_SOURCES:
        drawn = draw_sample(nbytes, _SAMPLED, 0, guess=guess)
        if nbytes[drawn.rows].sum() <= max(_TRIAL_NBYTES, _TRIAL_SHARE * nbytes.sum()):
            return drawn
    return draw_sample(nbytes, _TRIAL_SOURCES, 0, guess=guess)
