"""torch's own DataLoader with settings that suit a dataset of ours, measured once per dataset and machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from lmdbloader.dataset import Batch, LMDBDataset, sample_type
from lmdbloader.errors import OptionError

# One more process must bring at least this much, or it is not worth its memory.
_WORTH_A_WORKER = 1.10
_TRIAL_SECONDS = 0.4
_TRIAL_BATCHES = 64


def collate(samples: Sequence[Any], *, dtype: torch.dtype | None = None) -> Any:
    """Return a batch as a named tuple of stacked values, taking one that was read whole as it is.

    Images and arrays become tensors (B, ...), ints int64 and floats float64 tensors (B,); text, bytes and JSON values
    stay lists. Other samples (of a transform, or of another dataset) go through torch's own collate function.

    Args:
        samples: A `Batch`, or a sequence of samples.
        dtype: float32, float16 or bfloat16: pixels, that is uint8 or uint16 tensors (B, 1 or 3, H, W), become numbers
            from 0 to 1 of this type. None leaves them.

    Raises:
        OptionError: Images of one batch differ in shape, or `dtype` is given and a transform returns no named tuple.
    """
    if isinstance(samples, Batch):
        batch = sample_type(tuple(samples.columns))(*[_stacked(n, column) for n, column in samples.columns.items()])
    else:
        batch = default_collate(list(samples))
    if dtype is None:
        return batch
    if not hasattr(batch, "_fields"):
        raise OptionError(f"dtype={dtype} with samples of type {type(batch).__name__}: convert them in the transform")
    return type(batch)(*[to_dtype(value, dtype) if _is_pixels(value) else value for value in batch])


def to_dtype(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return uint8 or uint16 pixels as numbers from 0 to 1, in one pass for float32.

    >>> to_dtype(torch.tensor([0, 51, 255], dtype=torch.uint8), torch.float32)
    tensor([0.0000, 0.2000, 1.0000])

    Raises:
        OptionError: Another type is asked for.
    """
    from lmdbloader.kernels.convert import scale_to_float32

    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise OptionError(f"dtype={dtype}: expected torch.float32, torch.float16 or torch.bfloat16")
    factor = np.float32(1 / (255 if pixels.dtype == torch.uint8 else 65535))
    out = torch.empty(pixels.shape, dtype=torch.float32)
    scale_to_float32(pixels.contiguous().numpy().reshape(-1), factor, out.numpy().reshape(-1))
    return out if dtype == torch.float32 else out.to(dtype)


def _is_pixels(value: Any) -> bool:
    is_image = isinstance(value, torch.Tensor) and value.dtype in (torch.uint8, torch.uint16)
    return is_image and value.ndim == 4 and value.shape[1] in (1, 3)


def _stacked(name: str, column: Any) -> Any:
    if isinstance(column, torch.Tensor) or not column:
        return column
    first = column[0]
    if isinstance(first, torch.Tensor):
        shapes = sorted({tuple(value.shape) for value in column})
        raise OptionError(
            f"field {name!r}: the images of one batch have different shapes ({shapes[0]} and {shapes[-1]} among them). "
            "Convert with --patch-size, crop them in a transform, or use batch_size=1."
        )
    if isinstance(first, int) and not isinstance(first, bool):
        return torch.tensor(column, dtype=torch.int64)
    return torch.tensor(column, dtype=torch.float64) if isinstance(first, float) else column


def dataloader(
    dataset: Dataset[Any], batch_size: int = 1, *, dtype: torch.dtype | None = None, **options: Any
) -> DataLoader[Any]:
    """Return a plain DataLoader, tuned where nothing was said.

    Args:
        dataset: An LMDBDataset, a view of one, or any map-style dataset over them.
        batch_size: Samples in a batch.
        dtype: torch.float32, float16 or bfloat16: pixels come as numbers from 0 to 1 of this type, which is faster here
            than on the batch. None leaves them uint8 or uint16.
        **options: `torch.utils.data.DataLoader`'s own. Where they are not given: `num_workers` is measured once for
            this dataset, batch size and machine and remembered in the user's cache folder; `pin_memory` is on only
            where there is an accelerator; `persistent_workers` is on with workers; `collate_fn` is `collate`.

    Returns:
        The DataLoader; batches of an LMDBDataset are named tuples of stacked tensors.
    """
    settings = dict(options)
    if dtype is not None and "collate_fn" in settings:
        raise OptionError("dtype and collate_fn: give one of them; lmdbloader.loading.collate takes a dtype")
    settings.setdefault("collate_fn", collate if dtype is None else functools.partial(collate, dtype=dtype))
    settings.setdefault(
        "pin_memory", torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available()
    )
    if settings.get("num_workers") is None:
        settings["num_workers"] = tuned_num_workers(dataset, batch_size, settings["collate_fn"])
    settings.setdefault("persistent_workers", settings["num_workers"] > 0)
    return DataLoader(dataset, batch_size, **settings)


def tuned_num_workers(dataset: Dataset[Any], batch_size: int, collate_fn: Any = collate) -> int:
    """Return the number of worker processes with which a dataset reads fastest here, measured or remembered.

    Measuring takes about a second for every number tried; 0 is kept unless processes bring 10 %.
    """
    key = _key(dataset, batch_size, collate_fn)
    remembered = _read_cache()
    if key in remembered:
        return remembered[key]
    best, best_speed = 0, _speed(dataset, batch_size, collate_fn, 0)
    for num_workers in _candidates():
        speed = _speed(dataset, batch_size, collate_fn, num_workers)
        if speed < best_speed * _WORTH_A_WORKER:
            break
        best, best_speed = num_workers, speed
    _write_cache({**remembered, key: best})
    return best


def cache_file() -> Path:
    """Return where measured settings are remembered; delete it to measure again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "lmdbloader" / "num_workers.json"


def _candidates() -> list[int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [n for n in (1, 2, 4, 8, 16, 32) if n <= cores]


def _key(dataset: Dataset[Any], batch_size: int, collate_fn: Any) -> str:
    parts = [platform.node(), str(_candidates()), torch.__version__, str(batch_size), str(len(dataset))]  # type: ignore[arg-type]
    parts += [getattr(collate_fn, "__qualname__", repr(getattr(collate_fn, "keywords", None)))]
    current: Any = dataset
    while current is not None:
        parts.append(f"{type(current).__module__}.{type(current).__qualname__}")
        if isinstance(current, LMDBDataset):
            transform: Any = current._transform
            parts += [
                current.reader.manifest.content_digest,
                *current.fields,
                getattr(transform, "__qualname__", str(type(transform))),
            ]
        current = getattr(current, "dataset", None)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _speed(dataset: Dataset[Any], batch_size: int, collate_fn: Any, num_workers: int) -> float:
    """Return samples per second over a short while, the start-up of worker processes not counted."""
    # A generator of its own: measuring must not move the user's random state.
    generator = torch.Generator().manual_seed(0)
    length = len(dataset)  # type: ignore[arg-type]
    count = min(length, batch_size * _TRIAL_BATCHES)
    order = torch.randperm(length, generator=generator)[:count].tolist()
    loader = DataLoader(
        dataset, batch_size, sampler=order, num_workers=num_workers, collate_fn=collate_fn, generator=generator
    )  # fmt: skip
    iterator = iter(loader)
    next(iterator, None)
    samples, began = 0, time.perf_counter()
    for _ in iterator:
        samples += batch_size
        if time.perf_counter() - began > _TRIAL_SECONDS:
            break
    return samples / (time.perf_counter() - began)


def _read_cache() -> dict[str, int]:
    try:
        found = json.loads(cache_file().read_bytes())
        return {str(k): int(v) for k, v in found.items() if 0 <= int(v) <= 1024}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write_cache(values: dict[str, int]) -> None:
    # A home that cannot be written to only means measuring again.
    with contextlib.suppress(OSError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(values, file)
        os.replace(file.name, path)
