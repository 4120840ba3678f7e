"""The options of a Loader: their checks, and their values on this machine and in this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base import system
from lmdbloader.base.arguments import flag, listed, shown, whole
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.batch.pipeline import check_seed
from lmdbloader.errors import OptionError
from lmdbloader.loader.orders import Orders, SeededOrders
from lmdbloader.transforms.base import SeveralViews, Transform
from lmdbloader.transforms.functions import BatchFunction, described

if TYPE_CHECKING:
    from lmdbloader.loader.classes import ClassBatches, Classes
    from lmdbloader.loader.mixtures import Mixture
    from lmdbloader.loader.quasi_random import Order
    from lmdbloader.store import IO
    from lmdbloader.transforms.resolution import ProgressiveResize
    from lmdbloader.transforms.views import Views

    # Sample numbers, as a list, or a function that returns the list of an epoch.
    Numbers = Sequence[int] | npt.NDArray[np.int64]
    Given = Order | Numbers | Callable[[int], Numbers]
    BatchesGiven = Iterable[Sequence[int]] | ClassBatches
    Weights = Sequence[float] | npt.NDArray[np.float64] | Literal["balanced"]

# Samples of a batch, or batches: far more than any memory holds, and their products still fit 64 bits.
_MOST = 2**31 - 1
_PROBED_PLACES = 16
Shard = tuple[int, int] | Literal["auto"] | None


def seed_for(dataset: LMDBDataset, seed: Any) -> int | None:
    """Return the seed of a Loader: the given one, or that of the view; None if there is none.

    Raises:
        OptionError: It is not a seed, or differs from that of the view.
    """
    of_view = None if dataset._draws is None else dataset._draws.seed
    if seed is None:
        return of_view
    if of_view not in (None, check_seed(seed)):
        raise OptionError(f"seed={seed}: the dataset is a view with seed={of_view}. Leave one of them out.")
    return check_seed(seed)


def check_numbers(batch_size: Any, prefetch: Any, num_threads: Any) -> tuple[int, int, int | Literal["auto"]]:
    """Return the numbers as ints; raise OptionError if one is not a whole number, or out of range."""
    if not isinstance(num_threads, str) or num_threads != "auto":
        num_threads = whole("num_threads", num_threads, 1)
    return whole("batch_size", batch_size, 1, _MOST), whole("prefetch", prefetch, 0, _MOST), num_threads


def orders_of(
    num_samples: int,
    *,
    order: Given | None,
    shuffle: bool | None,
    weights: Weights | None,
    draws: int | None,
    repeat: int,
    mixture: Mixture | None = None,
    batch_sampler: Any = None,
    classes: Callable[[str], Classes] | None = None,
) -> Orders:
    """Return the orders of all epochs of a Loader.

    Args:
        num_samples: The number of samples of the dataset.
        order, shuffle, weights, repeat: The Loader's arguments.
        draws: The Loader's `num_samples`.
        mixture: The mixture that is read; None for a single dataset.
        batch_sampler: The Loader's argument.
        classes: Returns the samples of each class; its argument is the text in messages.

    Raises:
        OptionError: One of them is invalid, or two of them set the order.
    """
    repeat = whole("repeat", repeat, 1, max(2**62 // max(num_samples, 1), 1))
    setting = {"order": order, "shuffle": shuffle, "weights": weights}
    given = [name for name, value in setting.items() if value is not None]
    if len(given) > 1:
        raise OptionError(f"{', '.join(given)}: each of them sets the order. Leave out all but one.")
    kind: Any = "sequential" if order is None else order
    if shuffle is not None:
        kind = "random" if flag("shuffle", shuffle) else "sequential"
    if batch_sampler is not None:
        from lmdbloader.loader.batches import batch_orders_of

        return batch_orders_of(num_samples, batch_sampler, classes)
    if mixture is not None:
        from lmdbloader.loader.mixtures import orders_of_mixture

        return orders_of_mixture(mixture, order=kind, weights=weights, draws=draws, repeat=repeat)
    if weights is not None:
        if repeat != 1:
            raise OptionError(f"weights, repeat={repeat}: write num_samples, the number of draws of an epoch, instead.")
        return _weighted(num_samples, weights, draws, classes)
    if draws is not None:
        raise OptionError(
            f"num_samples={shown(draws)}: it is the number of draws by weight, with no effect without weights"
        )
    if isinstance(kind, str) and kind in ("random", "sequential"):
        return SeededOrders(num_samples, kind, repeat)
    from lmdbloader.loader.quasi_random import QuasiOrders, QuasiRandom, check_order

    if isinstance(kind, str | QuasiRandom):
        return QuasiOrders(num_samples, check_order(kind), repeat)
    from lmdbloader.loader.choices import ListedOrders

    return ListedOrders(num_samples, kind, repeat)


def _weighted(
    num_samples: int, weights: Weights, draws: int | None, classes: Callable[[str], Classes] | None
) -> Orders:
    if isinstance(weights, str):
        from lmdbloader.loader.classes import BalancedOrders

        if weights != "balanced" or classes is None:
            raise OptionError(f"weights={shown(weights)}: expected 'balanced', or a number for each sample")
        return BalancedOrders(classes("weights='balanced'"), draws)
    from lmdbloader.loader.choices import WeightedOrders

    return WeightedOrders(num_samples, weights, draws)


def compiled_and_functions(
    transforms: Sequence[Transform | Callable[[Any], Any]],
) -> tuple[list[Transform], list[Callable[[Any], Any]]]:
    """Return the transforms for compiled code, and the functions after them.

    Raises:
        OptionError: One is neither, or a function comes before a transform.
    """
    transforms = _with_values_in_degradation(transforms)
    compiled = [t for t in transforms if isinstance(t, Transform)]
    functions = [t for t in transforms if not isinstance(t, Transform)]
    for t in functions:
        if isinstance(t, type) and issubclass(t, Transform):
            raise OptionError(f"transforms: {t.__name__} is a class; expected an instance: {t.__name__}(...)")
        if not callable(t):
            raise OptionError(f"transforms: {t!r} is neither a transform of lmdbloader.transforms nor a function")
    last = max((k for k, t in enumerate(transforms) if isinstance(t, Transform)), default=0)
    early = [t for t in transforms[:last] if not isinstance(t, Transform)]
    if early:
        raise OptionError(
            f"transforms: {described(early[0])} comes before {type(transforms[last]).__name__}. Functions, compiled "
            "or not, come after the built-in transforms."
        )
    for function in functions:
        _refuse_compiled_inside(function)
        _warn_of_one_draw(function)
    return compiled, functions


def _refuse_compiled_inside(function: Any) -> None:
    """Raise OptionError if torchvision's Compose, RandomApply or the like holds compiled transforms."""
    from lmdbloader.transforms.of_torchvision import parts_of

    for part in parts_of(function):
        inner, name = getattr(part, "transforms", None), type(part).__name__
        compiled = [t for t in inner if isinstance(t, Transform)] if isinstance(inner, list | tuple) else []
        if compiled:
            has_ours = name in ("RandomApply", "RandomChoice", "RandomOrder")
            line = f"lmdbloader.transforms.{name}([{compiled[0]}, ...])" if has_ours else "them without it"
            raise OptionError(f"transforms: {name} of torchvision cannot call {compiled[0]}. Write {line}.")


def with_views(transforms: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Views | None]:
    """Return the transforms of a Loader as it keeps them, those without its views, and the views, if any.

    Raises:
        OptionError: They are no list, or do not suit each other.
    """
    found = (transforms,) if isinstance(transforms, SeveralViews) else listed("transforms", transforms)
    if not any(isinstance(t, SeveralViews | list | tuple) for t in found):
        return found, found, None
    from lmdbloader.transforms.views import split_views

    return split_views(found)


def _with_values_in_degradation(transforms: Sequence[Any]) -> Sequence[Any]:
    """Return transforms with those of values after a Degradation as its own.

    Raises:
        OptionError: One after it is another, or a function is before it, or there are two.
    """
    places = [k for k, t in enumerate(transforms) if isinstance(t, BatchFunction) and t.makes_pairs]
    if not places:
        return transforms
    place = places[0]
    if len(places) > 1:
        raise OptionError(f"transforms: {transforms[places[1]]} comes after another degradation. Leave one out.")
    end = place + 1
    while end < len(transforms) and isinstance(transforms[end], Transform):
        end += 1
    return [*transforms[:place], transforms[place].followed_by(transforms[place + 1 : end]), *transforms[end:]]


def _warn_of_one_draw(function: Any) -> None:
    """Warn of transforms of torchvision that draw one number for all samples of a batch."""
    from lmdbloader import transforms
    from lmdbloader.transforms.of_torchvision import random_parts

    names = sorted({type(part).__name__ for part in random_parts(function)})
    if names:
        compiled = [name for name in names if name in dir(transforms)]
        own = f" lmdbloader.transforms.{compiled[0]} is compiled, and draws for each sample." if compiled else ""
        warnings.warn(
            f"transforms: torchvision's {', '.join(names)} draws once for a whole batch, so all of its samples change "
            f"in the same way. For a draw for each sample, in Python: LMDBDataset(path, transform=v2.{names[0]}(...))."
            f"{own}",
            stacklevel=5,
        )


def check_schedule(resolution: Any) -> ProgressiveResize | None:
    """Return a schedule of sizes, or None; raise OptionError for anything else."""
    if resolution is None or hasattr(type(resolution), "size_at"):
        return resolution  # type: ignore[no-any-return]
    raise OptionError(f"resolution={shown(resolution)}: expected a schedule, as ProgressiveResize(num_epochs=90)")


def is_channels_last(memory_format: torch.memory_format) -> bool:
    """Return whether images are (H, W, C) in memory; raise OptionError if they cannot have this format."""
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise OptionError(
            f"memory_format={shown(memory_format)}: expected torch.contiguous_format or torch.channels_last"
        )
    return memory_format == torch.channels_last


def resolve_pin_memory(pin_memory: Any, device: str | int | torch.device | None) -> bool:
    """Return whether batches are in pinned memory.

    Args:
        pin_memory: True, False or "auto".
        device: The Loader's argument.

    Raises:
        OptionError: It is something else, or False although batches are copied to a device.
    """
    if not isinstance(pin_memory, bool) and not (isinstance(pin_memory, str) and pin_memory == "auto"):
        raise OptionError(f"pin_memory={pin_memory!r}: expected True, False or 'auto'")
    # A number means a GPU.
    stays = device is None or (not isinstance(device, int) and torch.device(device).type == "cpu")
    if not pin_memory and not stays:
        name = str(device)
        raise OptionError(
            f"pin_memory=False, device={name!r}: copies that overlap with a step need pinned memory. Use Loader(..., "
            f"device={name!r}), or Loader(..., pin_memory=False) and images.to({name!r}) in the loop."
        )
    if not torch.cuda.is_available():
        return False
    return pin_memory if isinstance(pin_memory, bool) else device is None or not stays


def check_shard(shard: Any) -> Shard:
    """Return 'auto', None, or a rank and a world size that fit each other; raise OptionError for anything else."""
    if shard is None or (isinstance(shard, str) and shard == "auto"):
        return None if shard is None else "auto"
    expected = "expected 'auto', None, or (rank, world_size) with a rank from 0 to world_size - 1"
    try:
        rank, world_size = (whole("shard", number, 0) for number in shard)
    except (TypeError, ValueError, OptionError) as error:
        raise OptionError(f"shard={shown(shard)}: {expected}") from error
    if rank >= world_size:
        raise OptionError(f"shard={shown(shard)}: {expected}")
    return rank, world_size


def suitable_io(dataset: LMDBDataset) -> IO | None:
    """Return "pread" if the samples are neither in memory nor fit into what is free of it; else None.

    With too little memory, random order through a map reads up to twice as many bytes from the disk.
    """
    reader = dataset.reader
    file, free = reader.data_file, system.free_memory()
    if file.remote is not None or free is None:
        return None
    share = min(len(dataset) / max(len(reader), 1), 1)
    places = (file.nbytes * (2 * k + 1) // (2 * _PROBED_PLACES) for k in range(_PROBED_PLACES))
    # Of a dataset in /dev/shm, and of one that the system has kept, all pages are in memory.
    return None if file.nbytes * share <= free or all(map(file.is_cached, places)) else "pread"


def resolve_shard(shard: Shard) -> tuple[int, int]:
    """Return (rank, world_size) in this process, as it is now.

    Args:
        shard: Of `check_shard`.

    Raises:
        OptionError: torch.distributed is not initialized yet.
    """
    if shard is None:
        return 0, 1
    if shard != "auto":
        return shard
    num_processes = count_processes()
    if num_processes is not None:
        return torch.distributed.get_rank(), num_processes
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError(
            "shard='auto': this is one of several processes (WORLD_SIZE is set), but torch.distributed is not "
            "initialized yet. Call torch.distributed.init_process_group before the first iteration or len(loader), or "
            "give shard=(rank, world_size)."
        )
    return 0, 1


def count_processes() -> int | None:
    """Return the world size of torch.distributed; None before it is initialized."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else None
