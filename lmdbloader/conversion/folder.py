"""`lmdbloader.convert`: a folder of images to one dataset."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from tqdm import tqdm

from lmdbloader import __version__
from lmdbloader.codecs import check_codec, saves_enough
from lmdbloader.conversion.pool import convert_in_order, make_tasks
from lmdbloader.conversion.samples import refuse_inside
from lmdbloader.conversion.tasks import Part, Recipe, pair_scale
from lmdbloader.errors import FormatError, ImageError, OptionError, SourceError
from lmdbloader.format import Codec, Field, make_field
from lmdbloader.images import DecodePolicy, decode_image
from lmdbloader.sources import Layout, Listing, Source, list_sources
from lmdbloader.store import Written, check_destination, estimate_map_nbytes, is_dataset, open_writer, read_manifest

SKIPPED_FILE = "skipped.tsv"
_TRIAL_SOURCES = 8
_TRIAL_NBYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did.

    Attributes:
        path: Of the dataset.
        layout: How the source folder was read.
        num_sources: Images or pairs in the source.
        num_samples: Samples in the dataset.
        codecs: The codec of each image field.
        sizes: Bytes: payload_nbytes (stored), raw_nbytes (decoded), data_nbytes, index_nbytes.
        map_nbytes: The map size estimated before the first write.
        map_growths: How often that was too small.
        skipped: (name, reason) of sources left out (on_error="skip").
        ignored: (name, reason) of what looks like an image but is no regular file.
        was_finished: Whether the dataset was there already, so that nothing was done.
        seconds: The conversion took.
    """

    path: str
    layout: str
    num_sources: int
    num_samples: int
    codecs: Mapping[str, str]
    sizes: Mapping[str, int]
    map_nbytes: int = 0
    map_growths: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    was_finished: bool = False
    seconds: float = 0.0


def convert(
    src: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    layout: Layout | Literal["auto"] = "auto",
    hr: str | os.PathLike[str] | None = None,
    lr: str | os.PathLike[str] | None = None,
    patch_size: int | None = None,
    stride: int | None = None,
    scale: int | None = None,
    bicubic: Literal["matlab", "pillow"] = "matlab",
    alpha: Literal["refuse", "drop", "white"] = "refuse",
    max_pixels: int = 200_000_000,
    codec: str = "auto",
    on_error: Literal["stop", "skip"] = "stop",
    min_pair_psnr: float = 20.0,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Convert a folder of images into one dataset.

    Args:
        src: The folder; None with `hr` and `lr`.
        out: The dataset to make. An empty folder counts as absent.
        layout: "images", "pairs", "classes", or "auto" to look.
        hr: Folder of the high-resolution images of pairs.
        lr: Folder of their low-resolution images.
        patch_size: Cut square patches of this side (HR pixels); None stores whole images.
        stride: Distance between patches, `patch_size` by default.
        scale: Make a low-resolution field smaller by this factor; with pairs, the factor that they must have.
        bicubic: "matlab" (imresize, as in the literature) or "pillow".
        alpha: What to do with transparency: "refuse", "drop", or composite over "white".
        max_pixels: Larger images are refused before they are decoded.
        codec: "raw", "lz4", or "auto": lz4 where it saves 10 % of a sample of the inputs.
        on_error: "stop" at an image that cannot be used, or "skip" it and list it in skipped.tsv.
        min_pair_psnr: Given pairs whose downscaled HR image agrees with the LR image less than this (dB) are refused.
        workers: Worker processes; by default as many as this process may use cores. The result does not depend on it.
        overwrite: Replace the dataset that is at `out`, once the new one is complete.
        progress: Show a progress bar on a terminal.
        log: Called with lines of text for people.

    Returns:
        What was done.

    Raises:
        SourceError: No folder, no images, or pairs that do not match.
        ImageError: An image cannot be used (named, with the reason).
        OptionError: Options that make no sense.
        DestinationError: `out` is taken, locked, or inside the source.
        DiskFullError: No room left. Nothing half-written stays behind, whatever the error.
    """
    began = time.monotonic()
    target = Path(out)
    folders = [None if p is None else Path(p) for p in (src, hr, lr)]
    recipe = _make_recipe(patch_size, stride, scale, bicubic, DecodePolicy(alpha, max_pixels), on_error, min_pair_psnr)
    check_codec(codec)
    num_workers = _count_workers(workers)
    prefer_images = patch_size is not None or scale is not None
    listing = list_sources(folders[0], layout=layout, hr=folders[1], lr=folders[2], prefer_images=prefer_images)
    for folder in folders:
        if folder is not None:
            refuse_inside(target, folder)
    made_by = _describe(recipe, listing, codec)
    if (finished := _find_finished(target, made_by, listing)) is not None:
        return finished
    check_destination(target, overwrite=overwrite)
    log(
        f"{target}: {len(listing.sources)} {'pairs' if listing.layout == 'pairs' else 'images'}, layout {listing.layout}"
    )
    if listing.layout == "pairs":
        recipe = replace(recipe, scale=_find_scale(recipe, listing.sources))
        _check_sides(recipe)
    recipe = replace(recipe, fields=_fields(recipe, listing, codec))
    trial = _try_out(recipe, listing.sources, num_workers, codec)
    recipe = replace(recipe, fields=trial.fields)
    log(
        f"map size: {_mib(trial.map_nbytes)}, estimated from {trial.num_sources} of {len(listing.sources)} inputs; "
        f"codec: {', '.join(f'{f.name} {f.codec}' for f in trial.fields if f.codec)}"
    )
    skipped: list[tuple[str, str]] = []
    hashes = hashlib.blake2b(digest_size=16)
    tasks = [listing.sources[s] for s in make_tasks(listing.sources)]
    with open_writer(target, recipe.fields, with_source=True, map_nbytes=trial.map_nbytes) as writer:
        total = sum(s.nbytes for s in listing.sources)
        parts = convert_in_order(recipe, tasks, num_workers)
        for part in _show(parts, len(listing.sources), total, progress):
            if part.chunk is not None:
                writer.add(part.chunk, part.blocks)
            skipped += part.skipped
            hashes.update(b"".join(h.to_bytes(8, "little") for h in part.file_hashes))
        if not writer.num_samples:
            raise SourceError(
                f"{src or hr}: none of its {len(listing.sources)} images could be used; the first: {': '.join(skipped[0])}"
            )
        made_by["inputs"]["content"] = "blake2b:" + hashes.hexdigest()
        if skipped:
            rows = "".join(f"{name}\t{reason}\n" for name, reason in skipped)
            writer.add_file(SKIPPED_FILE, ("name\treason\n" + rows).encode("utf-8", "backslashreplace"))
        check_destination(target, overwrite=overwrite)  # somebody else may have made it meanwhile
        classes = {"label": listing.classes} if listing.layout == "classes" else {}
        written = writer.finish(classes=classes, made_by=made_by)
    return _report(target, listing, recipe, written, trial.map_nbytes, tuple(skipped), time.monotonic() - began)


def _report(
    target: Path,
    listing: Listing,
    recipe: Recipe,
    written: Written,
    map_nbytes: int,
    skipped: tuple[tuple[str, str], ...],
    seconds: float,
) -> Report:
    return Report(
        path=str(target),
        layout=listing.layout,
        num_sources=len(listing.sources),
        num_samples=written.num_samples,
        codecs={f.name: f.codec for f in recipe.fields if f.codec},
        sizes=written.sizes,
        map_nbytes=map_nbytes,
        map_growths=written.map_growths,
        skipped=skipped,
        ignored=listing.ignored,
        seconds=seconds,
    )


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
    for name, value, least in (("patch size", patch_size, 1), ("stride", stride, 1), ("scale", scale, 2)):
        if value is not None and value < least:
            raise OptionError(f"{name} {value}: expected at least {least}")
    if scale is not None and scale > 8:
        raise OptionError(f"scale {scale}: expected 2 to 8")
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
            f"patch size {recipe.patch_size} and stride {recipe.stride}: expected multiples of the scale {recipe.scale}, "
            "so that the low-resolution patch is exactly aligned"
        )


def _count_workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise OptionError(f"workers {workers}: expected at least 1")
    if workers is not None:
        return workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _describe(recipe: Recipe, listing: Listing, codec: str) -> dict[str, Any]:
    """Return how the dataset is made: nothing in it depends on the time, the machine or where the folders lie."""
    names = hashlib.blake2b(digest_size=16)
    for s in listing.sources:
        names.update(f"{s.name}\0{os.path.basename(s.lr_path or b'')!r}\0{s.nbytes}\0".encode())
    options = {key: value for key, value in asdict(recipe).items() if key != "fields"}
    options["codec"] = codec
    return {
        "lmdbloader": __version__,
        "layout": listing.layout,
        "options": options,
        "inputs": {"num_sources": len(listing.sources), "names_and_sizes": "blake2b:" + names.hexdigest()},
    }


def _find_finished(target: Path, made_by: Mapping[str, Any], listing: Listing) -> Report | None:
    """Return the report of a dataset that was made from the same inputs with the same options."""
    if not is_dataset(target):
        return None
    try:
        manifest = read_manifest(target)
    except FormatError:
        return None
    old = manifest.made_by
    inputs = old.get("inputs", {})
    same = {k: v for k, v in inputs.items() if k != "content"} == made_by["inputs"]
    # The release may differ: a dataset made by an older one is still made.
    same = same and all(old.get(key) == made_by[key] for key in ("layout", "options"))
    if not same or (_changed_since(target, listing) and _content(listing.sources) != inputs.get("content")):
        return None
    return Report(
        path=str(target),
        layout=listing.layout,
        num_sources=len(listing.sources),
        num_samples=manifest.num_samples,
        codecs={f.name: f.codec for f in manifest.fields if f.codec},
        sizes=manifest.sizes,
        ignored=listing.ignored,
        was_finished=True,
    )


def _changed_since(target: Path, listing: Listing) -> bool:
    """Return whether an input is newer than the dataset: then only its content can tell."""
    made = (target / "manifest.json").stat().st_mtime_ns
    paths = (p for s in listing.sources for p in (s.path, s.lr_path) if p is not None)
    return any(max((info := os.stat(p)).st_mtime_ns, info.st_ctime_ns) >= made for p in paths)


def _content(sources: Iterable[Source]) -> str:
    from lmdbloader.conversion.tasks import hash_files

    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(hash_files(source).to_bytes(8, "little"))
    return "blake2b:" + digest.hexdigest()


def _find_scale(recipe: Recipe, sources: Sequence[Source]) -> int:
    """Return the scale that the first readable pair has; every other one must have it too."""
    error: ImageError | None = None
    for source in sources:
        try:
            with open(source.path, "rb") as high, open(source.lr_path or b"", "rb") as low:
                images = [decode_image(f.read(), recipe.policy, name=source.name) for f in (high, low)]
            return pair_scale(images[0], images[1], recipe.scale, source.name)
        except OSError as problem:
            error = ImageError(source.name, f"cannot be read ({problem.strerror})")
        except ImageError as problem:
            error = problem
        if recipe.on_error == "stop":
            break
    raise error or SourceError("there are no pairs")


def _fields(recipe: Recipe, listing: Listing, codec: str) -> tuple[Field, ...]:
    names = ("lr", "hr") if recipe.scale else ("image",)
    # "auto" tries lz4 first and decides from what it saves.
    fields = [make_field(name, "image", "raw" if codec == "raw" else "lz4") for name in names]
    return (*fields, make_field("label", "int")) if listing.layout == "classes" else tuple(fields)


@dataclass(frozen=True, slots=True)
class _Trial:
    fields: tuple[Field, ...]
    map_nbytes: int
    num_sources: int = field(default=0)


def _try_out(recipe: Recipe, sources: Sequence[Source], num_workers: int, codec: str) -> _Trial:
    """Encode some inputs, evenly spread, to choose the codecs and to estimate the map size."""
    step = max(1, len(sources) // _TRIAL_SOURCES)
    chosen: list[Source] = []
    for source in sources[step // 2 :: step]:
        chosen.append(source)
        if len(chosen) >= 2 and sum(s.nbytes for s in chosen) >= _TRIAL_NBYTES:
            break
    trial = replace(recipe, on_error="skip")
    parts = list(convert_in_order(trial, [[s] for s in chosen], num_workers))
    chunks = [p.chunk for p in parts if p.chunk is not None]
    if not chunks:  # whatever is wrong with them, the conversion itself will say it
        return _Trial(recipe.fields, estimate_map_nbytes(sum(s.nbytes for s in sources), len(sources)))
    stored: float = 0
    fields = []
    for f in recipe.fields:
        if f.codec is None:
            fields.append(f)
            continue
        payloads = [chunk.payloads[f.name] for chunk in chunks]
        keep = codec != "auto" or _saves(payloads)
        stored += sum(int((p.stored_nbytes if keep else p.raw_nbytes).sum()) for p in payloads)
        fields.append(replace(f, codec=cast(Codec, f.codec if keep else "raw")))
    growth = sum(s.nbytes for s in sources) / max(sum(s.nbytes for s in chosen), 1)
    num_samples = sum(chunk.num_samples for chunk in chunks) * growth
    return _Trial(tuple(fields), estimate_map_nbytes(stored * growth, num_samples), len(chosen))


def _saves(payloads: Sequence[Any]) -> bool:
    from lmdbloader.codecs import join

    return saves_enough(join(payloads))


def _show(parts: Iterable[Part], num_sources: int, total_nbytes: int, progress: bool) -> Iterable[Part]:
    """Yield the parts while a bar shows images, MB/s of input and the time left."""
    shown = progress and sys.stderr.isatty()
    done, began = 0, time.monotonic()
    with tqdm(total=num_sources, unit=" images", disable=not shown, dynamic_ncols=True, smoothing=0.1) as bar:
        for part in parts:
            yield part
            done += part.nbytes
            speed = done / 1e6 / max(time.monotonic() - began, 1e-9)
            bar.set_postfix_str(f"{speed:.0f} MB/s, {done / 1e6:.0f} of {total_nbytes / 1e6:.0f} MB")
            bar.update(part.num_sources)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"
