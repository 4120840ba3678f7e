"""Facts about an iterable of batches before a step is timed: who makes the batches, and from which data."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from lmdbloader.base.cores import count_own_cores
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.errors import OptionError
from lmdbloader.lab.machine.description import describe_memory
from lmdbloader.lab.stored import FOR_THE_CACHE, codec_shares, column, has_slow_jpegs, image_sizes
from lmdbloader.loader import Loader
from lmdbloader.loader.device_images import free_on
from lmdbloader.loader.quasi_random import QuasiRandom
from lmdbloader.transforms import Geometry
from lmdbloader.transforms.base import leaves

# Of what is free there, the share that a Loader may use for images that it keeps, by default.
_KEPT = 0.5
# Where batches are made: by a Loader's threads, by worker processes, or by the thread that asks for them.
BatchMaker = Literal["loader", "workers", "main"]


@dataclass(frozen=True, slots=True)
class StoredImages:
    """The payloads of a dataset, mean values a sample, all fields together.

    Attributes:
        codecs: Codec -> share of the stored bytes, the largest first: raw, lz4, delta, jpeg ....
        stored_nbytes: As stored in the file.
        raw_nbytes: As pixels.
        side: Longer side of the largest field's images, the median, in pixels.
        is_resized: Whether the transforms make images of another size of them by a resize, not by a crop alone.
        fits_raw: Whether the pixels of all samples fit in the free memory, or it is not known.
        are_slow_jpegs: Whether they are JPEG files that can be recoded to decode faster.
        fits_decoded: Whether decoded copies of all samples, for every process of this machine, fit in half of the free
            memory.
        fits_device: Whether the images of a field are all of one size, and the pixels of all samples fit in half of
            the free memory of the Loader's CUDA device.
    """

    codecs: dict[str, float]
    stored_nbytes: float
    raw_nbytes: float
    side: int
    is_resized: bool
    fits_raw: bool = True
    are_slow_jpegs: bool = False
    fits_decoded: bool = False
    fits_device: bool = False


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """Facts about an iterable of batches.

    Attributes:
        name: Its class.
        kind: "loader" (threads of a Loader), "workers" (processes) or "main" (the thread of the training loop).
        num_threads: Threads or processes that load.
        num_cores: Cores that this process may use, or its share of them.
        order: Of a Loader: "random", "quasi_random" or "sequential"; "chosen" for numbers or weights of the user.
        path: Of the dataset; None unless it is an LMDBDataset.
        period: Steps after which the way in which batches arrive, several at a time, repeats itself.
        warmup: Steps until the batches that were ready at the beginning are used up.
        images: The stored images; None unless it is an LMDBDataset with images.
        device: To which a Loader copies its batches, None if they come in the computer's memory.
        moves_there: Whether on="device" would have the device change pixels, which it does not do yet.
        keep: What a Loader keeps: images on the "device", decoded ones in "memory", or None.
    """

    name: str
    kind: BatchMaker
    num_threads: int
    num_cores: int
    order: str | None
    path: str | None
    period: int
    warmup: int
    images: StoredImages | None
    device: str | None = None
    moves_there: bool = False
    keep: str | None = None

    def has_copied_to(self, device: torch.device) -> bool:
        """Return whether batches are on a device already when the loop gets them; cuda is any one of CUDA's."""
        if self.device is None:
            return device.type == "cpu"
        own = torch.device(self.device)
        return own.type == device.type and (None in (own.index, device.index) or own.index == device.index)


def loader_in(batches: Any) -> Loader | None:
    """Return the Loader that something is, or has as its attribute `loader` as a wrapper would; None without one."""
    if isinstance(batches, Loader):
        return batches
    inner = getattr(batches, "loader", None)
    return inner if isinstance(inner, Loader) else None


def _kind_of(order: object) -> str:
    if isinstance(order, QuasiRandom):
        return "quasi_random"
    return order if isinstance(order, str) and order != "weighted" else "chosen"


def facts_of(batches: Any) -> LoaderFacts:
    """Return facts about an iterable of batches."""
    loader = loader_in(batches)
    cores = count_own_cores()
    if loader is not None:
        at_once = loader.batches_at_once
        return LoaderFacts(
            "Loader",
            "loader",
            loader.num_threads,
            cores,
            _kind_of(loader.order),
            loader.dataset.path,
            min(loader.num_threads, loader.groups_ahead) * at_once,
            (loader.groups_ahead + 1) * at_once,
            _stored(loader),
            None if loader.device.type == "cpu" else str(loader.device),
            _moves_there(loader),
            loader._options["keep"],
        )
    # Of another iterable it is not known whether any of this process's children work for it.
    workers = batches.num_workers if isinstance(batches, DataLoader) else 0
    dataset = getattr(batches, "dataset", None)
    ours = dataset if isinstance(dataset, LMDBDataset) else None
    return LoaderFacts(
        type(batches).__name__,
        "workers" if workers else "main",
        workers or 1,
        cores,
        None,
        None if ours is None else ours.path,
        workers or 1,
        (getattr(batches, "prefetch_factor", None) or 0) * workers + 2,
        None if ours is None else _stored(ours),
    )


def _stored(of: Loader | LMDBDataset) -> StoredImages | None:
    dataset = of.dataset if isinstance(of, Loader) else of
    transforms = [*of.transforms, *chain.from_iterable(of.views or ())] if isinstance(of, Loader) else of.all_transforms
    fields = [name for name, f in dataset.fields.items() if f.kind == "image"]
    if not fields or not len(dataset):
        return None
    shares, total = codec_shares((column(dataset, n, "codec"), column(dataset, n, "stored_nbytes")) for n in fields)
    raw = sum(int(column(dataset, name, "raw_nbytes").sum(dtype=np.int64)) for name in fields)
    memory = describe_memory()
    sizes = {name: image_sizes(dataset, name) for name in fields}
    fits_device = isinstance(of, Loader) and of.device.type == "cuda" and raw <= _KEPT * free_on(of.device)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    most = 1.5 * raw * (int(ranks) if ranks.isdecimal() else 1)  # of JPEGs as planes, in all processes
    return StoredImages(
        shares,
        total / len(dataset),
        raw / len(dataset),
        max(int(np.median(found.max(axis=1))) for found in sizes.values()),
        any(isinstance(t, Geometry) and t.resizes for t in leaves(transforms)),
        not memory.usable_nbytes or raw <= FOR_THE_CACHE * memory.free_nbytes,
        shares.get("jpeg", 0.0) > 0.5 and any(has_slow_jpegs(dataset, name) for name in fields),
        most <= _KEPT * memory.free_nbytes,
        isinstance(of, Loader) and fits_device and _with(of, keep="device") is not None,
    )


def _with(loader: Loader, **more: Any) -> Loader | None:
    """Return a Loader with other options, None if it cannot have them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # With its own seed: another would be drawn from torch's random numbers, which are the training's.
            options = {**loader._options, "seed": loader._coming.seed, "memory_format": loader.memory_format, **more}
            return Loader(loader._given, loader.batch_size or 1, **options)
    except OptionError:
        return None


def _moves_there(loader: Loader) -> bool:
    if not torch.cuda.is_available() or loader._is_on_device:
        return False
    there = _with(loader, on="device", device="cuda" if loader.device.type == "cpu" else loader.device)
    return there is not None and bool(there._batcher.pipeline.changes_pixels)
