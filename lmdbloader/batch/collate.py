"""`collate`: makes batches of samples, for torch's DataLoader and for transforms that change sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_with
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from lmdbloader.batch.sample import Batch, Form, JsonName, ListName, in_form, marks_of, stacked
from lmdbloader.batch.shared_memory import in_shared_memory, is_plain, shared_like
from lmdbloader.errors import OptionError


class Formed(list[Any]):
    """Samples in a form after a dataset's own transform; `collate` makes a batch of them as they were before.

    A plain tuple does not say which of its fields are lists in a batch.

    Attributes:
        plain: The samples, as the transform returned them.
        form: Of the samples, and of the batch.
    """

    def __init__(self, plain: list[Any], form: Form) -> None:
        super().__init__(in_form(sample, form) for sample in plain)
        self.plain, self.form = plain, form

    def __reduce__(self) -> tuple[Any, ...]:
        return Formed, (self.plain, self.form)


def collate(samples: Sequence[Any]) -> Any:
    """Return samples as one batch; those that a dataset has read at once need no copy.

    Images and arrays become tensors (B, ...), ints int64, floats float64 and bools bool tensors (B,); text, bytes and
    other JSON values stay lists. The batch is a named tuple, or has the form of its samples: `LMDBDataset(...,
    as_="dict")` gives dicts. Other samples (of a transform, or of another dataset) go through torch's own collate
    function; so do plain tuples that were read one by one, whose boxes are stacked if all samples have as many.

    Args:
        samples: A list of samples, or what a dataset has read at once.

    Raises:
        OptionError: Images of one batch differ in shape, or a sample is None.
    """
    in_worker = get_worker_info() is not None
    if isinstance(samples, Formed):
        return in_form(collate(samples.plain), samples.form, is_batch=True)
    if isinstance(samples, Batch):
        batch = samples.type(*map(stacked, samples.columns, samples.columns.values()))
        batch = in_form(batch, samples.form, is_batch=True)
    elif any(sample is None for sample in samples):
        raise OptionError(
            "a sample is None: the dataset's transform returned nothing for it. End it with `return sample`. To leave "
            "samples out, select the others first: dataset.select(numbers)."
        )
    elif marks := marks_of(samples[0]):
        first, columns = samples[0], {}
        for name in getattr(first, "_fields", first):
            values, mark = [sample[name] for sample in samples], marks.get(name)
            if mark is JsonName and not any(isinstance(value, torch.Tensor) for value in values):
                columns[str(name)] = stacked(name, values)
            else:
                columns[str(name)] = values if mark is ListName else _collated(values, in_worker)
        batch = columns if isinstance(first, dict) else type(first)(**columns)
    else:
        batch = _collated(samples, in_worker)
    # Tensors that are not shared yet would be when they are sent: in /dev/shm, which may be full.
    return in_shared_memory(batch) if in_worker else batch


def _collated(samples: Sequence[Any], in_worker: bool) -> Any:
    """Return a batch of torch's own collate function."""
    if in_worker:
        return collate_with(list(samples), collate_fn_map={**default_collate_fn_map, torch.Tensor: _stacked_shared})
    return default_collate(list(samples))


def _stacked_shared(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Return tensors as one (B, ...) in shared memory, as torch does, but not in /dev/shm if that can be avoided."""
    first = tensors[0]
    if not all(type(t) is torch.Tensor and is_plain(t) and t.dtype == first.dtype for t in tensors):
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
    return torch.stack(list(tensors), out=shared_like(first, (len(tensors), *first.shape)))
