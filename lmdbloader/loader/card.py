"""The card of a Loader in a notebook: fields of a batch, options, and the next samples after the transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lmdbloader.base.text import counted
from lmdbloader.batch.batcher import Batcher
from lmdbloader.batch.dataset import LMDBDataset
from lmdbloader.fields import kind_named
from lmdbloader.format.layout import Field, parse_array_type
from lmdbloader.loader.orders import described
from lmdbloader.show.card import MAX_SIDE_BY_SIDE, Card, Pixels, Shown, num_shown, place_of
from lmdbloader.show.dataset_card import READ_ERRORS, check_whole, reason
from lmdbloader.show.labels import in_colors

I64 = npt.NDArray[np.int64]


class _Loader(Protocol):
    """The attributes of a Loader that its card shows."""

    dataset: LMDBDataset
    batch_size: int
    num_threads: int
    pin_memory: bool

    @property
    def seed(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def order(self) -> object: ...

    @property
    def prefetch(self) -> int: ...

    @property
    def corrupt(self) -> Sequence[object]: ...

    def __len__(self) -> int: ...


def loader_card(
    loader: _Loader,
    reader: Batcher,
    following: I64,
    place: tuple[int, int],
    functions: Sequence[Callable[[Any], Any]],
    device: object,
) -> Card:
    """Return the card of a loader; samples that cannot be read are marked, and nothing is raised.

    Args:
        loader: The Loader.
        reader: Of its batches.
        following: (n,) numbers of the samples of its next batch.
        place: Its epoch, and its position there.
        functions: Called with batches after the transforms.
        device: Of the batches.
    """
    dataset, (epoch, start) = loader.dataset, place
    outputs = {o.name: o for o in reader.pipeline.outputs}
    images = list(outputs)[:MAX_SIDE_BY_SIDE]
    count = num_shown(len(images)) if images else 0
    samples = [_shown(dataset, reader, sample, epoch, images) for sample in following[:count].tolist()]
    own = ["the dataset's own transform"] if dataset.has_own_transform else []
    later = [*own, *map(_name_of, functions)]
    order = loader.order if isinstance(loader.order, str) else described(loader.order)
    facts = [
        (
            "Order",
            f"{order}, seed {loader.seed}, next is epoch {epoch}" + (f" from {start:,} on" if start else ""),
        ),
        ("Threads", f"{loader.num_threads}, prefetch {loader.prefetch}"),
        ("Transforms", ", ".join(map(repr, reader.pipeline.transforms)) or "none"),
    ]
    if later:
        facts.append(("Then", ", ".join(later)))
    if loader.pin_memory:
        facts.append(("Memory", "pinned"))
    if loader.world_size > 1:
        facts.append(("Share", f"rank {loader.rank} of {loader.world_size}"))
    if loader.corrupt:
        facts.append(("Left out", counted(len(loader.corrupt), "damaged sample")))
    rows = [(f.name, _gives(dataset, f, outputs.get(f.name), loader.batch_size)) for f in dataset.fields.values()]
    notes = ["The pictures are the next samples after the transforms" + (", before these functions." if later else ".")]
    batches = f"{len(loader):,} batches" if len(loader) != 1 else "1 batch"
    headline = f"{batches} of {loader.batch_size:,} from {counted(len(dataset), 'sample')}, on {device}"
    return Card(
        "Loader",
        place_of(dataset.path),
        headline,
        samples,
        facts,
        ("field", "of a batch"),
        rows,
        notes if samples else [],
    )


def _shown(dataset: LMDBDataset, reader: Batcher, sample: int, epoch: int, images: Sequence[str]) -> Shown:
    pictures: Mapping[str, Pixels | str]
    try:
        check_whole(dataset.reader)
        pictures = {
            name: _pixels(tensor, dataset.fields[name]) for name, tensor in reader.images_of(sample, epoch).items()
        }
    except READ_ERRORS as error:
        pictures = dict.fromkeys(images, f"damaged: {reason(error)}")
    return Shown([(name, pictures[name]) for name in images], str(int(reader.samples_of(np.array(sample)))))


def _pixels(image: torch.Tensor, f: Field) -> Pixels:
    """Return an image as a NumPy array, which has no bfloat16; a mask in colours."""
    if f.kind == "mask":
        return in_colors(image.numpy(), f.ignore_index)
    return (image.float() if image.dtype == torch.bfloat16 else image).numpy()


def _gives(dataset: LMDBDataset, f: Field, output: Any, batch_size: int) -> str:
    """Return a description of a field's values in a batch."""
    if output is not None:
        laid_out = ", channels last" if output.channels_last and not output.is_mask else ""
        return f"{_dtype(output.values.dtype)} {(batch_size, *output.batched_shape)}{laid_out}"
    if f.has_pixels:
        return f"{f.kind}s of different sizes"
    if f.kind != "array":
        kind = kind_named(f.kind)
        return f"list of {kind.in_batch}" if kind.in_batch else f"{kind.column} ({batch_size},)"
    first = dataset.rows_of(np.zeros(min(1, len(dataset)), np.int64))
    try:
        dtype, shape = parse_array_type(dataset.reader.index.text(f"{f.name}.type", int(first[0])))
    except (IndexError, *READ_ERRORS):
        return "tensors"
    return f"{dtype} {(batch_size, *shape)}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _name_of(function: Any) -> str:
    """Return the name of a function, or of its type if it has none."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
