"""The Loader: epochs of batches that threads assemble with compiled code from the data file."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from lmdbloader.base.arguments import flag, shown
from lmdbloader.base.cores import count_cores
from lmdbloader.base.stage_times import StageTimes, Stopwatch
from lmdbloader.base.text import plain
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.dataset import LMDBDataset, check_images
from lmdbloader.batch.memory import BatchMemory, FieldMemories
from lmdbloader.batch.pipeline import Pipeline, check_epoch, check_seed
from lmdbloader.batch.sample import PARAMS, Form, check_form
from lmdbloader.errors import OptionError
from lmdbloader.loader.epoch import Batches, EpochRun, Plan, deliver, plan_groups
from lmdbloader.loader.options import (
    Shard,
    check_numbers,
    check_schedule,
    check_shard,
    compiled_and_functions,
    count_processes,
    is_channels_last,
    orders_of,
    resolve_pin_memory,
    resolve_shard,
    seed_for,
    suitable_io,
    with_views,
)
from lmdbloader.loader.orders import BatchOrders, Layout, Share, described, on_rank
from lmdbloader.loader.state import Coming, Place, epoch_in, identity, place_of, state_of
from lmdbloader.loader.threads import Threads
from lmdbloader.transforms import Transform
from lmdbloader.transforms.compilation import is_random
from lmdbloader.transforms.functions import is_compiled

if TYPE_CHECKING:
    from lmdbloader.batch.clips import Clips
    from lmdbloader.batch.kept import Kept
    from lmdbloader.loader.buckets import Buckets, Shapes
    from lmdbloader.loader.classes import Classes
    from lmdbloader.loader.device import Copies
    from lmdbloader.loader.device_images import DeviceImages
    from lmdbloader.loader.mixing import Mix
    from lmdbloader.loader.options import BatchesGiven, Given, Weights
    from lmdbloader.loader.samplers import LoaderBatches, LoaderSampler
    from lmdbloader.loader.seeds import DrawnSeed
    from lmdbloader.store import IO, Damage
    from lmdbloader.transforms.resolution import ProgressiveResize
    from lmdbloader.transforms.views import Views

_logger = logging.getLogger("lmdbloader")


def _copies_when_rebuilt(init: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` that takes arguments of torch, and copies a Loader if it gets its batch sampler."""

    signature = inspect.signature(init)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        original: Any = None
        if options.get("batch_sampler") is not None:
            from lmdbloader.loader.samplers import original_of

            original = original_of(options["batch_sampler"])
        if options.keys() - signature.parameters.keys():
            from lmdbloader.loader.torch_names import without_torchs

            options = options if original is not None else without_torchs(options)
        if original is None:
            init(self, *args, **options)
        else:
            state: tuple[Any, ...] = (*original._state(), original._coming)
            _fill(init, self, *state)

    # Lightning adds the arguments of a sampler only to a signature that takes any.
    foreign = inspect.Parameter("foreign", inspect.Parameter.VAR_KEYWORD)
    __init__.__signature__ = signature.replace(parameters=[*signature.parameters.values(), foreign])  # type: ignore[attr-defined]
    return __init__


class Loader(DataLoader[Any]):
    """Iterates over batches of a dataset; every iteration is the next epoch.

    Batches are named tuples of the dataset's fields, or have the form `as_`: images as tensors (B, C, H, W), numbers as
    tensors (B,), text and bytes as lists. Threads read ahead; a batch that is still referred to never changes. A
    pickled loader continues at the same position.

    It is a subclass of torch's DataLoader, so that frameworks accept it, but it has no worker processes. If a framework
    builds another DataLoader from its parts, that gives the Loader's batches, or there is an error with the line to
    write.

    >>> loader = Loader(dataset, 16, shuffle=True, transforms=[RandomCrop(64), RandomDihedral()])  # doctest: +SKIP
    >>> for lr, hr in loader:  # doctest: +SKIP
    ...     train(lr, hr)

    Attributes:
        transforms: The compiled transforms of images, the dataset's own before the loader's.
        views: The Views that come after them, or None.
        memory_format: The order of the images in memory: torch.contiguous_format or torch.channels_last.
        device: Of the batches: the CPU without CUDA, even if another was asked for.
    """

    transforms: tuple[Transform, ...]
    views: Views | None
    memory_format: torch.memory_format
    device: torch.device
    # What DataLoader's own constructor would set; samplers and the collate function are properties.
    dataset: LMDBDataset
    batch_size: int | None
    num_workers = 0
    prefetch_factor = None
    persistent_workers = False
    pin_memory_device = ""
    timeout = 0.0
    worker_init_fn = None
    generator = None
    multiprocessing_context = None
    in_order = True
    _dataset_kind = 0  # a map-style dataset
    _iterator = None
    _IterableDataset_len_called = None

    @_copies_when_rebuilt
    def __init__(
        self,
        dataset: LMDBDataset | Clips | Mix | Dataset[Any] | str | os.PathLike[str],
        batch_size: int = 1,
        *,
        shuffle: bool | None = None,
        order: Given | None = None,
        weights: Weights | None = None,
        num_samples: int | None = None,
        repeat: int = 1,
        batch_sampler: BatchesGiven | None = None,
        buckets: Buckets | Literal["size"] | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        pad: bool | None = None,
        transforms: Sequence[Transform | Callable[[Any], Any] | Views | Sequence[Transform]] | Views = (),
        num_threads: int | Literal["auto"] = "auto",
        prefetch: int = 2,
        device: str | int | torch.device | None = None,
        on: Literal["cpu", "device"] = "cpu",
        pin_memory: bool | Literal["auto"] = "auto",
        memory_format: torch.memory_format = torch.contiguous_format,
        as_: Form = None,
        return_params: bool = False,
        shard: Shard = None,
        resolution: ProgressiveResize | None = None,
        keep: Literal["memory", "device"] | None = None,
        keep_fraction: float = 0.5,
        io: IO | None = None,
        verify: bool = True,
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Prepare to load; nothing is read yet.

        Arguments of torch's DataLoader that change nothing here are taken too, such as `sampler=None`.

        Args:
            dataset: The dataset to read, or its path; what `lmdbloader.mix` returns; `lmdbloader.Clips`, whose samples
                are windows; or torch's Subset or ConcatDataset of datasets. A `transform` of its own is called sample
                by sample, which is slow. Or a folder of images, or torchvision's ImageFolder, whose files are then
                read as they are, as a conversion would (docs/how-to/migrate.md).
            batch_size: Samples in a batch of this rank. With 1 and no transforms, images may differ in size.
            shuffle: True is `order="random"`, as training needs it; False is `order="sequential"`, and so is None
                without an `order`, as in torch's DataLoader.
            order: "sequential" (that of the dataset), "random" (a new permutation in every epoch),
                "quasi_random" (blocks of neighboring samples in random order, many of them mixed at a time, for
                datasets larger than memory; a `QuasiRandom` sets the sizes). Or a list of sample numbers, of any length
                and with repeats (negative ones count from the end), which is copied; or a function that gets the number
                of an epoch and returns such a list, called once for an epoch, with the same list in every process. None
                is as `shuffle` says.
            weights: Of each sample, (len(dataset),) numbers of at least 0, of any real type: samples are drawn by them
                with replacement, as torch's WeightedRandomSampler does. They are copied. Or "balanced": all classes
                have equally many draws in an epoch, to within one, and within a class all samples.
            num_samples: Draws of an epoch by weight, at least 1; None is len(dataset).
            repeat: How many times each sample comes in an epoch, each time with random choices of its own. All of them
                are shuffled together, as with BasicSR's `dataset_enlarge_ratio`; a list is read so many times.
            batch_sampler: Lists of sample numbers, one for each batch; an object that gives such lists whenever it is
                iterated, as torch's; or `ClassBatches(...)`. An object is iterated once for each epoch, after its
                `set_epoch`. Ranks take turns with the batches; states count batches.
            buckets: Batches of one shape each, of images of many: "size" puts images together that are stored with one
                shape, and `Buckets(...)` resizes each image to the nearest of some shapes. States count
                batches, of this batch size and number of ranks.
            seed: Of the order and of every random choice, which depend only on it, the epoch and the sample's number.
                None takes that of the view, `dataset.transformed(..., seed=3)`. If it has none, a seed is drawn from
                torch's random numbers, which follow `torch.manual_seed`: an epoch number that comes again is then a new
                epoch, all ranks use the seed of rank 0, through torch.distributed, and states carry it.
            drop_last: Whether to leave out the last batches if they are short.
            pad: Whether to fill the last batches up with samples from the beginning of the epoch, so that every rank
                has the same number of batches, of the same sizes; each rank then reads ceil(samples / ranks). None pads
                with `shard="auto"`, as torch's DistributedSampler does, unless the last batches are left out.
            transforms: Of `lmdbloader.transforms`, carried out by compiled code on all image fields together; after
                them any functions, each called with the whole batch; also a `CompiledFunction`. `Views`, or a list for
                each view, make several images of each sample.
            num_threads: Threads that read, at most one for each core that this process may use. "auto" is the number
                that `lmdbloader.lab.tune` found, else one for each core.
            prefetch: Batches to have ready beyond those that the threads are working on; small batches are read, and
                counted, in groups of 64 samples (up to 256 with more than 4 threads) or 16 MiB. If all these batches
                would take more than 1 GiB, there are fewer, at least two, and the threads share the work on each.
            device: "cuda" copies batches there during the step before; without CUDA it has no effect. With None or
                "cpu" they stay in the computer's memory.
            on: Where transforms are carried out: "cpu", by compiled code, or "device", by torch: then pixels are copied
                to the device as they are stored. Leading crops and resizes stay on the CPU. What moves pixels is equal
                bit for bit, and colors to within one level. With device="cpu" torch does it there.
            pin_memory: Whether images are in page-locked memory, from which CUDA copies during a step; without CUDA
                none are. "auto" pins if there is CUDA and the device is not "cpu". A copy that torch has started may
                still read a batch that the loop no longer holds; for other copies see the page on loading.
            memory_format: torch.contiguous_format or torch.channels_last, of the images.
            as_: The form of batches: "tuple", "dict", or a dict from new names to fields, such as
                {"pixel_values": "image", "labels": "label"}, or to views, such as {"x1": "image[0]", "crops":
                "image.local"}; None keeps that of the dataset. Functions among the transforms get named tuples.
            return_params: Whether batches have a last field `params`: a dict of what was drawn for each sample, see the
                how-to on transforms; a list of them with views.
            shard: (rank, world_size) reads this rank's share of one common order; "auto" takes them from
                torch.distributed whenever an iteration begins, so processes may be started after the loader was made.
            resolution: A schedule of sizes, from small ones to that of the transforms; see `set_resolution`.
            keep: "device" copies all images to the device once, during the first epoch, and transforms them there, as
                on="device" does; images must have one size before the first random transform. "memory" keeps decoded
                copies of JPEGs and other compressed images in the computer's memory, each decoded whole at its first
                read, as many as fit; batches are the same bit for bit. See the page on loading.
            keep_fraction: The share of the memory that is free at the first batch, of the device or of the computer, to
                use for that: above 0 and at most 0.95. Processes of torchrun on one machine divide the computer's, as
                each has copies of its own.
            io: "mmap" reads through a memory map; "pread" reads copies, which costs some speed and avoids the map's
                rare risks (see docs/concepts/reliability.md). By default as the dataset was opened, but "pread" if it
                is larger than the free memory: from the disk this is faster.
            verify: Whether to verify every payload's checksum before it is used.
            on_corrupt: "raise" ends the iteration with CorruptError at a damaged sample; "skip" leaves it out of its
                batch, logs it and lists it in `corrupt`.

        Raises:
            OptionError: An option is out of range, or a transform does not suit the images.

        Warns:
            UserWarning: Transforms are random, as in training, and neither `shuffle` nor `order` was given.
        """
        given, mixture, clips = dataset, None, None
        transforms, others, self.views = with_views(transforms)
        if isinstance(dataset, str | bytes | os.PathLike):
            from lmdbloader.loader.image_files import open_path

            dataset = open_path(os.fsdecode(dataset))
        elif type(dataset) is not LMDBDataset:
            from lmdbloader.loader.mixing import opened

            dataset, mixture, clips = opened(dataset)
        self._given = dataset if mixture is None and clips is None else given
        self._clips, num_samples_in = clips, len(dataset if clips is None else clips)
        batch_size, prefetch, num_threads = check_numbers(batch_size, prefetch, num_threads)
        drop_last, verify = flag("drop_last", drop_last), flag("verify", verify)
        self._returns_params = flag("return_params", return_params)
        pad, shard = None if pad is None else flag("pad", pad), check_shard(shard)
        if on_corrupt not in ("raise", "skip"):
            raise OptionError(f"on_corrupt={on_corrupt!r}: expected 'raise' or 'skip'")
        if drop_last and pad:
            raise OptionError("drop_last=True, pad=True: the last short batches are left out or filled up. Choose one.")
        if batch_sampler is not None:
            from lmdbloader.loader.batches import check_alone

            setting = {"shuffle": shuffle or None, "order": order, "weights": weights, "num_samples": num_samples}
            setting |= {"batch_size": None if batch_size == 1 else batch_size, "drop_last": drop_last or None}
            check_alone(setting | {"repeat": None if repeat == 1 else repeat, "a mixture": mixture})
        self._orders = orders_of(
            num_samples_in, order=order, shuffle=shuffle, weights=weights, draws=num_samples, repeat=repeat,
            mixture=mixture, batch_sampler=batch_sampler, classes=partial(_classes_of, dataset, clips),
        )  # fmt: skip
        self._shapes: Shapes | None = None
        if buckets is not None:
            from lmdbloader.loader.buckets import bucketed

            if clips is not None or resolution is not None:
                raise OptionError("buckets: images keep their shapes, so Clips and resolution do not go with them.")
            if pad is False and not drop_last and shard is not None:
                raise OptionError(
                    "buckets, pad=False: all ranks have batches of one shape and size in each step, so the last ones "
                    "are filled up or left out. Leave pad out, or write drop_last=True."
                )
            pad = not drop_last if pad is None else pad
            self._orders, self._shapes = bucketed(self._orders, dataset, buckets, batch_size, drop_last=drop_last)
        self._options = {
            **self._orders.options, "seed": seed, "drop_last": drop_last, "pad": pad, "transforms": transforms,
            "num_threads": num_threads, "prefetch": prefetch, "device": device, "on": on, "pin_memory": pin_memory,
            "as_": as_, "return_params": return_params, "shard": shard, "resolution": resolution, "keep": keep,
            "keep_fraction": keep_fraction, "io": io, "verify": verify, "on_corrupt": on_corrupt,
        }  # fmt: skip
        self.dataset, self.drop_last = dataset, drop_last
        self.batch_size = batch_size if batch_sampler is None else None  # as in torch
        self._usual_size = self._orders.batch_size if isinstance(self._orders, BatchOrders) else batch_size
        self.order = self._orders.shown
        self._shard, self._has_warned = shard, False
        self._pad = (shard == "auto" and not drop_last) if pad is None else pad
        self._has_warned_of_epoch = False
        self._share: Share | None = None  # of the iterator that was made last
        self.prefetch = prefetch
        seed_given = seed_for(dataset, seed)
        self._drawn: DrawnSeed | None = None
        is_drawn = seed_given is None
        if seed_given is None:
            from lmdbloader.loader.seeds import DrawnSeed, draw_seed

            seed_given = draw_seed()
            self._drawn = DrawnSeed(seed_given, f"{dataset.reader.manifest.content_digest} {num_samples_in}", shard)
        self._coming = Coming(seed_given, is_drawn)
        # The iterator that has begun last, and what comes if it has failed before its first batch.
        self._place: Place | None = None
        self._before = self._coming
        self._identity: tuple[int, dict[str, Any]] | None = None  # of an epoch
        self._skips = on_corrupt == "skip"
        self._corrupt: dict[tuple[int, str], Damage] = {}
        self._copies: Copies | None = None
        self._is_on_device = False
        if device is not None or on != "cpu" or keep == "device":
            from lmdbloader.loader.device import copies_for

            self._copies, self._is_on_device = copies_for(device, on, keep)
        self.device = torch.device("cpu") if self._copies is None else self._copies.device
        self.pin_memory = resolve_pin_memory(pin_memory, device)
        compiled, functions = compiled_and_functions(others)
        if compiled or self.views is not None:
            check_images(dataset, f"Loader(..., transforms={list(transforms)})")
        self.transforms, self._functions = (*dataset.all_transforms, *compiled), functions
        if is_drawn and (fixed := [f for f in functions if is_compiled(f) and getattr(f, "fixed", False)]):
            raise OptionError(f"{fixed[0]}: another run would draw another seed. Write Loader(..., seed=0).")
        if num_threads == "auto":
            from lmdbloader.loader.tuning_cache import case_of, recall_threads

            sized = [*compiled, *chain.from_iterable(self.views or ())]
            num_threads = recall_threads(case_of(dataset, self._usual_size, sized, functions))
        self.num_threads = min(num_threads, count_cores())  # waiting for the disk is done in the background
        self._channels_last, self.memory_format = is_channels_last(memory_format), memory_format
        names = None if functions or dataset.has_own_transform else self._names()
        self._form = dataset._form if as_ is None else check_form(as_, names)
        self._verify = verify
        io = suitable_io(dataset) if io is None else io
        self._read_from = dataset if io is None else dataset.with_io(io)
        self._schedule = check_schedule(resolution)
        self._size: tuple[int, int] | None = None
        if resolution is not None:
            from lmdbloader.transforms.resolution import full_size, with_resolution

            self._check_one_view("resolution=...")
            full = full_size(self.transforms)
            with_resolution(self.transforms, full)
        self._kept: Kept | None = None
        if keep is not None or keep_fraction != 0.5:
            from lmdbloader.batch.kept import kept_in

            self._kept = kept_in(keep, self._read_from, keep_fraction, verify=verify)
        self._stopwatch = Stopwatch()
        self._layout = Layout(num_samples_in, partial(_extents, self._read_from, clips))
        self._batcher_seed = self._coming.seed
        self._batcher, self._plan, self._batcher_of = self._open(self.transforms, self._batcher_seed)
        if keep is not None and not self._batcher.pipeline.fields:
            raise OptionError(
                f"keep={keep!r}: no images of {dataset.path} are of one size or transformed. Leave it out."
            )
        if resolution is not None:  # a size that does not suit is an error now, and not after many epochs
            for size in {resolution.size_at(epoch, full) for epoch in range(resolution.num_epochs)} - {full}:
                self._open(with_resolution(self.transforms, size), self._batcher_seed)
        makes_choices = self._batcher.pipeline.program.is_random or any(
            is_compiled(function) and is_random(function) for function in functions
        )
        if all(value is None for value in (order, shuffle, weights, batch_sampler)) and makes_choices:
            warnings.warn(
                "Loader(...): its transforms are random, as in training, and samples come in the dataset's own order. "
                "Write Loader(..., shuffle=True) to shuffle them in every epoch, Loader(..., shuffle=False) to keep "
                "their order.",
                stacklevel=3,
            )
        # Neither asks a function of the user for its order, nor how many processes there are: both come later.
        if self.drop_last and not self._orders.changes and 0 < (count := self._orders.length(0)) < batch_size:
            warnings.warn(
                f"Loader(..., drop_last=True): {count} samples make no whole batch of {batch_size}, and epochs "
                "are empty. Use a smaller batch_size, or repeat=.",
                stacklevel=3,
            )
        self._threads = Threads(self.num_threads, "lmdbloader")
        self._own_names = frozenset(vars(self))

    def _open(
        self, transforms: Sequence[Transform], seed: int
    ) -> tuple[Batcher, Plan, Callable[[int], Batcher] | None]:
        """Return what reads the batches, how they are read ahead, and what reads those of a kind, if there are several.

        Raises:
            OptionError: A transform, which may be the dataset's own, or a function does not suit the images.
        """
        # It must not refer to this Loader, whose deletion ends the threads.
        dataset, owner, batch_size, shapes = self._read_from, self.dataset, self._usual_size, self._shapes
        rows, channels = dataset.stored_rows, {}
        images = [name for name, f in dataset.fields.items() if f.has_pixels]
        # Images of different sizes are read without the pipeline if nothing compiled changes them.
        if not transforms and self.views is None and (shapes is None or not shapes.resizes):
            if owner.has_own_transform:  # it may crop them to one size
                images = dataset.uniform_images()
            elif self.batch_size in (1, None) and len(rows) and shapes is None:
                alike = dataset.uniform_images(rows, of_any_channels=True)
                others = [name for name in images if name not in alike]
                channels = {name: dataset.reader.extremes(name, "channels", rows)[1] for name in others}
                images = alike
        kind: Callable[..., Pipeline] = Pipeline
        if self._is_on_device:
            from lmdbloader.loader.device_images import check_on_device, device_images_of

            kind = check_on_device(self._options, owner, self._functions, has_buckets=shapes is not None)
        pipeline_of = partial(
            kind, dataset.reader, images, views=self.views, seed=seed, channels_last=self._channels_last,
            as_planes=any(getattr(function, "makes_pairs", False) for function in self._functions), verify=self._verify,
            kept=self._kept,
        )  # fmt: skip
        pipeline = pipeline_of(transforms, rows=rows) if shapes is None else shapes.largest(pipeline_of, transforms)
        others = [name for name, f in dataset.fields.items() if f.is_payload and name not in images]
        nbytes = int(sum(dataset.reader.mean_nbytes(name, "raw_nbytes", rows) for name in others))
        nbytes += sum(output.nbytes for output in pipeline.reading.outputs)
        num_rows = batch_size if self._clips is None else batch_size * self._clips.frames
        plan = plan_groups(num_rows, nbytes, self.num_threads, self.prefetch)
        if isinstance(self._orders, BatchOrders):  # their sizes and shapes may differ
            plan = replace(plan, batches_at_once=1)
        keep = plan.ahead + 2
        memory: Callable[..., Any] = partial(FieldMemories, BatchMemory)
        if self.pin_memory or shapes is not None:
            from lmdbloader.batch.memory_kinds import PinnedMemory, Rooms

            rooms = Rooms(keep * plan.batches_at_once * max(len(images), 1))
            memory = PinnedMemory if self.pin_memory else partial(FieldMemories, rooms.memory)
        batcher_of = partial(
            Batcher, fields=dataset.fields, rows=rows, memory=memory, keep=keep, source=owner,
            functions=self._functions, form=self._form, channels=channels, repeats=self._orders.repeats,
            clips=self._clips,
        )  # fmt: skip
        if self._returns_params:
            from lmdbloader.batch.params import with_params

            batcher_of = partial(with_params, batcher_of, owner)
        if self._is_on_device:
            device_images_of(pipeline, rows, self._options, self._device_images)
        if plan.outgrows_caches:
            pipeline.reading.stream()
        if shapes is None:
            return batcher_of(pipeline), plan, None
        return batcher_of(pipeline), plan, shapes.batchers(pipeline_of, transforms, batcher_of, plan)

    @property
    def _device_images(self) -> DeviceImages | None:
        """The images that are kept on the device."""
        return None if "_batcher" not in self.__dict__ else self._batcher.pipeline.device_images

    def set_resolution(self, size: int | tuple[int, int] | None) -> None:
        """Change the size of images from the next iteration on; running iterators keep theirs.

        The last transform with a size (RandomResizedCrop, CenterCrop, RandomCrop or Resize to a height and a width)
        gets this one; those before it change in proportion. Threads, order and random choices stay the same. This ends
        a schedule that was given as `resolution`.

        Args:
            size: Of both sides, or (height, width); None means that of the transforms.

        Raises:
            OptionError: The size is out of range, no transform has one, or images are too small for it.
        """
        self._check_one_view("set_resolution")
        sides = (size, size) if isinstance(size, int) else size
        if self._shapes is not None:
            raise OptionError(
                "set_resolution: buckets set the sizes of images. Make another Loader, with other Buckets."
            )
        if sides is not None and (len(sides) != 2 or min(sides) < 1):
            raise OptionError(f"set_resolution({size}): expected a size of at least 1, (height, width), or None")
        self._use(sides, self._batcher_seed)
        self._schedule = None

    def _names(self) -> list[str]:
        """Return what `as_` may name: fields, and the views of those that have several."""
        fields = self.dataset.fields.values()
        views = self.views
        params = [PARAMS][: self._returns_params]
        several = [*(f.name for f in fields if f.has_views), *params]
        found = [] if views is None else [views.names_of(name) for name in several]
        return [*(f.name for f in fields), *params, *chain.from_iterable(found)]

    def _check_one_view(self, what: str) -> None:
        """Raise OptionError if there are several views, whose sizes may differ."""
        if self.views is not None:
            raise OptionError(f"{what}: the transforms have Views. Make a Loader with other sizes in their lists.")

    def _use(self, size: tuple[int, int] | None, seed: int) -> None:
        if (size, seed) == (self._size, self._batcher_seed):
            return
        transforms: Sequence[Transform] = self.transforms
        if size is not None:
            from lmdbloader.transforms.resolution import with_resolution

            transforms = with_resolution(transforms, size)
        self._batcher, self._plan, self._batcher_of = self._open(transforms, seed)
        self._size, self._batcher_seed = size, seed

    def _prepare(self, place: Place) -> None:
        """Use the seed of a place and the schedule's size for its epoch."""
        size = self._size
        if self._schedule is not None:
            from lmdbloader.transforms.resolution import full_size

            size = self._schedule.size_at(place.epoch, full_size(self.transforms))
        self._use(size, place.seed)

    @property
    def batches_at_once(self) -> int:
        """Batches that a thread reads at once, at least one: they have 64 to 256 samples or 16 MiB together."""
        return self._plan.batches_at_once

    @property
    def groups_ahead(self) -> int:
        """Groups of `batches_at_once` batches that are being read or ready: num_threads + prefetch, less if large."""
        return self._plan.ahead

    @property
    def rank(self) -> int:
        """The number of this process among those that share the order."""
        return self._resolved().rank

    @property
    def world_size(self) -> int:
        """The number of processes that share the order."""
        return self._resolved().world_size

    def _resolved(self) -> Share:
        """Return the share of this process, as it is now."""
        rank, world_size = resolve_shard(self._shard)
        batch_size = 1 if isinstance(self._orders, BatchOrders) else self._usual_size
        return Share(batch_size, rank, world_size, self.drop_last, self._pad)

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch, also if an epoch continues in the middle.

        With `on_corrupt="skip"` there may be fewer: a batch of only damaged samples is left out. If a function gives
        the order, it is the epoch that is being read, else the next one.
        """
        share = self._resolved()
        return share.num_batches(self._length(self._current_epoch(), share))

    def _num_samples(self) -> int:
        """Return the number of samples of this rank in a whole epoch."""
        share = self._resolved()
        return self._orders.among(share.world_size).samples_on(self._current_epoch(), share)

    def _length(self, epoch: int, share: Share) -> int:
        """Return the number of positions of an epoch that ranks share."""
        return self._orders.among(share.world_size).length(epoch)

    def _current_epoch(self) -> int:
        """Return the epoch that is being read, else the next one; their lengths may differ."""
        place = self._place
        return self._coming.epoch if place is None or place.is_ended else place.epoch

    @property
    def seed(self) -> int:
        """The seed of the order and of every random choice; if it was drawn, rank 0's, for which other ranks wait."""
        self._settle(if_possible=True)
        return self._coming.seed

    def _settle(self, *, if_possible: bool = False) -> None:
        """Agree on a seed that was drawn; `if_possible` leaves it if this process cannot ask rank 0.

        Raises:
            OptionError: The ranks cannot agree.
        """
        if self._drawn is not None and (self._drawn.can_agree or not if_possible):
            orders, world_size = self._orders.follow_the_seed, self._resolved().world_size
            self._coming.seed = self._drawn.agreed(self._coming.seed, world_size, orders=orders)

    @property
    def sampler(self) -> LoaderSampler:  # type: ignore[override]
        """The order, for frameworks: its types, its length and `set_epoch`. Only the Loader itself iterates it."""
        from lmdbloader.loader.samplers import sampler_of

        is_sequential = isinstance(self.order, str) and self.order == "sequential"
        return sampler_of(self, is_sequential=is_sequential, is_shard=self._shard is not None)

    @property
    def batch_sampler(self) -> LoaderBatches:  # type: ignore[override]
        """The batches of the next epoch; a DataLoader that a framework builds with them gives the Loader's batches."""
        from lmdbloader.loader.samplers import LoaderBatches

        return LoaderBatches(self.sampler, self.batch_size, self.drop_last)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:  # type: ignore[override]
        """The collate function of such DataLoaders; `lmdbloader.collate` stacks samples."""
        from lmdbloader.loader.samplers import unpack

        return unpack

    @property
    def corrupt(self) -> tuple[Damage, ...]:
        """The damaged samples that `on_corrupt="skip"` left out of the batches given so far, each once."""
        return tuple(self._corrupt.values())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, which begins with its first batch; the one after it is epoch + 1.

        The epoch starts at its beginning. A place that `load_state_dict` has restored is kept if the number is that of
        its epoch or lower: a framework may count from 0 again, and its next number then means the next epoch.

        Without a seed, a number that is not higher than the last one gives a new epoch: another order, other choices.

        Raises:
            OptionError: It is negative, or does not fit into 63 bits.
        """
        epoch, place = check_epoch(epoch), self._place
        if place is not None and place.is_ended:
            if place.num_steps == 0 and not place.is_complete:  # it has failed before its first batch
                self._coming = self._before
            self._place = None
        self._coming.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return this loader's place as whole numbers and text, for torch.save, JSON and the like.

        It is the place of the iterator that has begun last, even of an unfinished one after `set_epoch`, as long as
        something refers to that iterator. It counts the batches that the loop has got, not those that are read ahead.
        All ranks are at the same place after the same number of steps.
        """
        self._settle()
        place = self._here().saved()
        return state_of(place, self._identity_in(place.epoch))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the place of a loader: the next iteration is the rest of its epoch, then comes the next epoch.

        The remaining samples are the same with another batch size, other threads or another number of ranks, among
        which they are divided again. No sample is read only to be skipped. Running iterators stay as they are.
        A loader whose seed was drawn takes that of the state.

        Args:
            state_dict: Returned by `state_dict` of a loader with the same dataset, order, seed and transforms.

        Raises:
            OptionError: It is something else, of a newer release, or of another dataset, order or seed.

        Warns:
            UserWarning: The state was saved with other transforms.
        """
        seed = self._coming.seed
        if self._drawn is not None and isinstance(state_dict, dict):
            seed = state_dict.get("seed", seed)
        place = place_of(state_dict, {**self._identity_in(epoch_in(state_dict)), "seed": seed})
        self._replace_drawn(place.seed)
        self._coming.restore(place)
        self._place = None

    def _replace_drawn(self, seed: int) -> None:
        """Use a seed, which all ranks have, in place of one that was drawn."""
        if self._drawn is not None:
            self._coming.seed = check_seed(seed)
            self._drawn.settle()

    def _here(self) -> Coming:
        """Return what comes next if the loop ends here."""
        place = self._place
        if place is None or place.is_complete or self._share is None:
            return self._coming
        length = self._length(place.epoch, self._share)
        return self._coming.at(place, self._share.position_after(place.num_steps, length, place.start))

    def _identity_in(self, epoch: int) -> dict[str, Any]:
        """Return what determines the order of an epoch, but for the seed."""
        orders = self._orders.among(self._resolved().world_size if self._shapes is not None else 1)
        key = epoch if orders.changes else 0
        if self._identity is None or self._identity[0] != key:
            text = orders.text(epoch, self._layout) + ("" if self._clips is None else f", {self._clips._text}")
            transforms = (*self.dataset.all_transforms, *self._options["transforms"])
            self._identity = key, identity(self._read_from, text, orders.length(epoch), transforms)
        return self._identity[1]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Return an iterator over the batches of the next epoch, or over the rest of a restored one."""
        return self._iterate()

    def _num_coming(self) -> int:
        """Return the number of batches of the next iteration on this rank."""
        share = self._resolved()
        return share.num_batches(self._length(self._coming.epoch, share) - self._coming.start)

    def _iterate(self, step: int = 0) -> Iterator[Any]:
        """Return an iterator without the first `step` batches, which are not read."""
        self._resolved()  # an error of the share comes here
        if self.dataset._source is not None:
            self.dataset._source.check()
        shares = self._shard is not None or getattr(self._orders, "shards", False)
        if not self._has_warned and not shares and (count_processes() or 1) > 1:
            self._has_warned = True
            warnings.warn(
                f"torch.distributed has {count_processes()} processes, and each of them reads all samples. Give each "
                "its share: Loader(..., shard='auto'). If each must read all samples: Loader(..., shard=(0, 1)).",
                stacklevel=3,
            )
        last, coming = self.dataset._last_set, self._coming
        if last is not None and last[0] != coming.epoch - coming.shift and not self._has_warned_of_epoch:
            self._has_warned_of_epoch = True
            warnings.warn(
                f"the dataset's set_epoch({last[0]}) has no effect on a Loader, which begins epoch {coming.epoch}. "
                f"Write loader.set_epoch({last[0]}).",
                stacklevel=3,
            )
        return Batches(partial(self._start, step), self._note)

    def _start(self, step: int) -> tuple[Place, Iterator[Any]]:
        """Begin the next iteration `step` batches after its place; return its place and the items of `Batches`."""
        self._settle()
        if self._returns_params:  # the dataset's own transform may be set at any time
            from lmdbloader.batch.params import check_params

            check_params(self._batcher.pipeline, self.dataset)
        share, place = self._resolved(), self._coming.place()
        if step:
            place.start = share.position_after(step, self._length(place.epoch, share), place.start)
        self._prepare(place)
        order = self._orders.among(share.world_size).of(place.epoch, self._layout, place.seed)
        copies = None if self._copies is None else self._copies.begin()
        if self._is_on_device and self.dataset.has_own_transform:  # it may be set at any time
            from lmdbloader.loader.device_images import check_on_device

            check_on_device(self._options, self.dataset, (), has_buckets=False)
        if self._device_images is not None:
            self._device_images.begin(self.device if copies is None else copies.device)
        run = EpochRun(
            self._batcher, place.epoch, order, on_rank(order, share, place.start), self._plan,
            batcher_of=self._batcher_of, mean_nbytes=self._layout.mean_nbytes, skips=self._skips,
            may_lack=share.world_size == 1, stopwatch=self._stopwatch,
            copies=copies,
        )  # fmt: skip
        items = deliver(run, self._threads, self.groups_ahead)
        self._before = replace(self._coming)
        self._coming.begin()
        self._share, self._place = share, place
        return place, items

    def _note(self, damage: Damage) -> None:
        if (damage.sample, damage.field) not in self._corrupt:
            self._corrupt[damage.sample, damage.field] = damage
            _logger.warning("lmdbloader: left out: %s", plain(damage.reason))

    def time_stages(self, on: bool = True) -> bool:
        """Start timing the stages of the threads from zero, or stop it; see `stage_times`.

        Groups of batches that threads are reading at that moment count when timing stops, and do not when it starts. If
        timing is already on, or off, nothing changes.

        Returns:
            Whether timing was on before.
        """
        return self._stopwatch.switch(on)

    def stage_times(self) -> StageTimes:
        """Return the time of each stage in all threads since `time_stages`, including batches that are read ahead.

        >>> loader.time_stages()  # doctest: +SKIP
        >>> before = loader.stage_times()  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     train(batch)
        >>> (loader.stage_times() - before).decode  # doctest: +SKIP
        """
        return self._stopwatch.times()

    def close(self) -> None:
        """End the threads; a later iteration starts new ones."""
        self._threads.close()
        for other in (self._device_images, self._copies):
            if other is not None:
                other.threads.close()

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets `worker_init_fn` on every loader, for worker processes.
        is_theirs = name == "worker_init_fn" and "lightning" in getattr(getattr(value, "func", None), "__module__", "")
        if "_own_names" in self.__dict__ and name in _FIXED and not is_theirs:
            raise OptionError(f"loader.{name} = {shown(value)}: it cannot change. Make another Loader.")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        self._settle(if_possible=True)
        # What a subclass adds; frameworks set attributes of their own on a Loader, which need not pickle.
        added = {name: value for name, value in vars(self).items() if name not in self._own_names}
        return _open_loader, (type(self), *self._state(), self._here()), added if type(self) is not Loader else None

    def _state(self) -> tuple[Any, ...]:
        """Return the arguments of `_fill`, without a place."""
        options = {**self._options, "resolution": self._schedule}
        size = None if self._schedule is not None else self._size
        # The memory format as a bool: cloudpickle, of Ray, cannot pickle torch's.
        return self._given, self.batch_size or 1, options, self._channels_last, size, self._drawn

    def __repr__(self) -> str:
        given = f"{self.batch_size}, order={described(self.order)}"
        if self.batch_size is None:
            given = f"batch_sampler={self.order if isinstance(self.order, str) else described(self.order)}"
        elif self._shapes is not None:
            given += f", buckets={self._options['buckets']!r}"
        return (
            f"Loader({self._given!r}, {given}, seed={self._coming.seed}, "
            f"num_threads={self.num_threads}, shard={self._shard or (0, 1)!r}"
            f"{f', repeat={times}' if (times := self._options.get('repeat', 1)) != 1 else ''}"
            f"{', pin_memory=True' if self.pin_memory else ''})"
        )


def _open_loader(kind: type[Loader], *state: Any) -> Loader:
    loader = kind.__new__(kind)
    _fill(Loader.__init__, loader, *state)
    return loader


def _fill(
    init: Callable[..., None],
    loader: Loader,
    dataset: LMDBDataset | Clips | Mix,
    batch_size: int,
    options: dict[str, Any],
    channels_last: bool,
    size: tuple[int, int] | None,
    drawn: DrawnSeed | None,
    coming: Coming,
) -> None:
    """Make a loader what another one was when it was pickled."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    given = {**options, "seed": options["seed"] if drawn is None else coming.seed}  # without a new draw
    init(loader, dataset, batch_size, memory_format=memory_format, **given)
    loader._options, loader._drawn, loader._coming = options, copy.copy(drawn), replace(coming)
    if size is not None:
        loader.set_resolution(size)


def _classes_of(dataset: LMDBDataset, clips: Clips | None, call: str) -> Classes:
    """Return the samples of each class; raise OptionError if there are none."""
    from lmdbloader.loader.classes import classes_of

    if clips is not None:
        raise OptionError(f"{call}: the samples are windows of Clips, which have no classes.")
    return classes_of(dataset, call)


_OF_LOADERS = {name for kind in (Loader, DataLoader) for name in inspect.signature(kind.__init__).parameters}
_FIXED = _OF_LOADERS - {"self", "foreign"} | {"epoch"}


def _extents(
    dataset: LMDBDataset, clips: Clips | None, first: int, end: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offset of samples in the file, and their bytes there, (n,) each; of windows, of the middle frames."""
    rows = dataset.stored_rows[first:end] if clips is None else dataset.rows_of(clips._middle_frames(first, end))
    return dataset.reader.extents(tuple(dataset.fields), rows)
