"""Other libraries' names for our arguments: which values mean the same here, and what to write for the others.

`understands` applies a table to a function: an argument of another library then works, or is an error that says what to
write.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from lmdbloader.base.option_names import shown
from lmdbloader.base.suggestions import nearest
from lmdbloader.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")
Says = str | Callable[[Any], str]
_MOST_PASTED = 200


@dataclass(frozen=True, slots=True)
class Foreign:
    """An argument of other libraries, or another library's value for an argument of ours.

    Attributes:
        of: The libraries.
        says: What to write here, as sentences in which `{value}` stands for the given value; or a function of the value
            that returns them.
        same: Returns our arguments that mean the same as a value, or None if there are none.
    """

    of: str
    says: Says
    same: Callable[[Any], Mapping[str, Any] | None] = lambda value: None

    def advice(self, value: Any) -> str:
        """Return the advice for a value."""
        return self.says.replace("{value}", _to_paste(value)) if isinstance(self.says, str) else self.says(value)


def _to_paste(value: Any) -> str:
    """Return a value as it is written in Python: texts, paths and short lists in full.

    >>> _to_paste("/data/of/the/whole/group/train.lmdb"), _to_paste(["image", "label", "score", "caption"])
    ("'/data/of/the/whole/group/train.lmdb'", "['image', 'label', 'score', 'caption']")
    """
    if isinstance(value, str | os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple) and len(text := repr(value)) <= _MOST_PASTED:
        return text
    return shown(value)


Table = Mapping[str, Foreign]


def understands(
    table: Table,
    *,
    also: Iterable[str] = (),
    positional: Callable[[Any], str] = lambda value: "",
    unknown: Callable[[str, Any], str] = lambda name, value: "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator with which a function, or `__init__`, understands the names in a table.

    Every other wrong name, and a wrong number of arguments, is an OptionError.

    Args:
        table: The foreign names.
        also: Names that the function takes as `**options`.
        positional: Returns the advice for the first argument too many.
        unknown: Returns the advice for a name, with its value, that is similar to none.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        call = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def translated(*args: P.args, **keywords: P.kwargs) -> R:
            own = in_our_words(
                call, signature, table, args, keywords, also=also, positional=positional, unknown=unknown
            )
            return function(*args, **own)  # `signature` fits them

        return translated

    return decorate


def in_our_words(
    call: str,
    signature: inspect.Signature,
    table: Table,
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    also: Iterable[str] = (),
    positional: Callable[[Any], str] = lambda value: "",
    unknown: Callable[[str, Any], str] = lambda name, value: "",
) -> dict[str, Any]:
    """Return the keyword arguments of a call in our own names.

    Args:
        call: The function's name, for messages.
        signature: The function's.
        table: The foreign names that it understands.
        args: As given.
        keywords: As given.
        also, positional, unknown: As for `understands`.

    Raises:
        OptionError: A name or a value means something else here, or nothing; or the number of arguments is wrong.
    """
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    own = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} | {*also}
    found = {}
    for name, value in keywords.items():
        entry = table.get(name)
        same = None if entry is None else entry.same(value)
        if same is None and name not in own:
            raise OptionError(_refusal(call, name, value, own, table, unknown))
        for ours, meant in {name: value}.items() if same is None else same.items():
            if ours in found or (ours != name and ours in keywords):
                raise OptionError(f"{call}({name}={shown(value)}): {ours} is given too. Leave one of them out.")
            found[ours] = meant
    most = sum(p.kind is not p.KEYWORD_ONLY for p in parameters if p.kind is not p.VAR_KEYWORD)
    given = args[1:] if "self" in signature.parameters else args
    if len(given) > most:
        first = ", ".join(p.name for p in parameters[:most])
        expected = f"only {first} can be positional" if first else "arguments are given by name"
        advice = f" {positional(given[most])}".rstrip()
        raise OptionError(f"{call}({'..., ' if most else ''}{shown(given[most])}): {expected}.{advice}")
    try:
        signature.bind(*args, **found)
    except TypeError as error:
        raise OptionError(f"{call}(): {error}") from None
    return found


def _refusal(
    call: str, name: str, value: Any, own: Iterable[str], table: Table, unknown: Callable[[str, Any], str]
) -> str:
    """Return the message for a name that is not ours, or a foreign value that means something else here."""
    given = f"{call}({name}={shown(value)})"
    if name in table:
        return f"{given}: {table[name].advice(value)}"
    meant = nearest(name, [*own, *table])
    if meant is not None and meant in table:
        return f"{given}: there is no such option. {meant}: {table[meant].advice(value)}"
    if meant is not None:
        return f"{given}: there is no such option. Did you mean {meant}={_to_paste(value)}?"
    if advice := unknown(name, value):
        return f"{given}: there is no such option. {advice}"
    return f"{given}: there is no such option; expected one of {', '.join(sorted(own))}"


def _either(*pairs: tuple[Any, Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any] | None]:
    """Return a `Foreign.same` that finds a value among those of some pairs."""

    def find(value: Any) -> Mapping[str, Any] | None:
        return next((meant for known, meant in pairs if _is(value, known)), None)

    return find


def _is(value: Any, known: Any) -> bool:
    if isinstance(known, bool):  # NumPy's too
        return type(value).__name__ in ("bool", "bool_") and bool(value) is known
    return value is known or (type(value) is type(known) and bool(value == known))


_NOTHING: Mapping[str, Any] = {}
_ONLY_NONE = _either((None, _NOTHING))
_ONLY_TRUE = _either((True, _NOTHING))
_ONLY_FALSE = _either((False, _NOTHING))
_TORCH, _FFCV, _HF, _WDS, _DALI = "torch's DataLoader", "FFCV", "Hugging Face datasets", "WebDataset", "NVIDIA DALI"
_TORCHVISION, _BASICSR, _STREAMING = "torchvision", "BasicSR", "MosaicML Streaming"


# Loader


def _order_option(value: Any) -> Mapping[str, Any] | None:
    """Return the order that a member of FFCV's OrderOption names, without importing FFCV."""
    return {"order": value.name.lower()} if type(value).__name__ == "OrderOption" else None


def _threads(value: Any) -> str:
    none_or_all = isinstance(value, int) and value < 1  # DataLoader's 0 is the main process, FFCV's -1 all cores
    line = "" if none_or_all and value < 0 else f", or write num_threads={1 if none_or_all else shown(value)}"
    return f"a Loader reads with threads, not worker processes; by default one for each core. Leave it out{line}."


def _same_sampler(value: Any) -> Mapping[str, Any] | None:
    """Return the arguments for a list of numbers, and for torch's draws by weight from its own random state."""
    if value is None:
        return _NOTHING
    if isinstance(value, list | tuple | range) or type(value).__name__ in ("ndarray", "Tensor"):
        return {"order": value}
    if type(value).__name__ == "WeightedRandomSampler" and value.replacement and value.generator is None:
        return {"weights": value.weights, "num_samples": value.num_samples}
    return None


def _sampler(value: Any) -> str:
    name, replaces = type(value).__name__, getattr(value, "replacement", False)
    seed = f", seed={value.generator.initial_seed()}" if getattr(value, "generator", None) is not None else ""
    of_ranks = ", drop_last=True" if getattr(value, "drop_last", False) else ""
    of_ranks += f", seed={own}" if (own := getattr(value, "seed", 0)) else ""
    lines = {
        "DistributedSampler": f'shuffle={getattr(value, "shuffle", True)}, shard="auto"{of_ranks}',
        "RandomSampler": f'order="random"{seed}',
        "SequentialSampler": 'order="sequential"',
        "SubsetRandomSampler": "Loader(dataset.select(indices), ..., shuffle=True)",
    }
    if name == "RandomSampler" and replaces:
        lines[name] = f"weights=[1] * len(dataset), num_samples={value.num_samples}{seed}"
    elif name == "RandomSampler" and value.num_samples != len(value.data_source):
        lines[name] = 'order="random", with repeat=k for k times the samples, or a loop over the first batches'
    elif name == "WeightedRandomSampler" and replaces:
        lines[name] = f"weights=sampler.weights, num_samples={value.num_samples}{seed}"
    if name in lines:
        return f"a Loader makes its own order. Write {lines[name]}."
    return (
        "a Loader makes its own order. Write lmdbloader.dataloader(dataset, batch_size, sampler=...), or "
        "order=lambda epoch: list(sampler) if it gives the same numbers in all processes."
    )


def _generator(value: Any) -> str:
    seed = getattr(value, "initial_seed", lambda: 0)()
    return f"the order and random choices depend on a seed. Write seed={seed}."


def _numbered(value: Any) -> str:
    return f'write device="cuda:{value}".' if isinstance(value, int) else 'write device="cuda".'


def third_argument(value: Any) -> str:
    """Return the advice for a third argument: DataLoader's `shuffle`, FFCV's `num_workers`, or an order."""
    name = (
        "shuffle" if type(value).__name__ in ("bool", "bool_") else "num_threads" if isinstance(value, int) else "order"
    )
    return f"Write {name}={_to_paste(value)}."


_PARTS_OF_SHARD = 'write shard=(rank, world_size), or shard="auto" after torch.distributed.init_process_group.'
_NO_WORKERS = "a Loader reads with threads, not worker processes. Leave it out."
_RENAMED_SEED = "write seed={value}."


def _caches(line: str) -> dict[str, Foreign]:
    """Return the entries of what only LMDBDataset has, from the line in which `{name}` stands for the argument."""
    says = "only a dataset at a URL has a cache. Write "
    return {
        name: Foreign("lmdbloader.LMDBDataset", f"{says}{line.replace('{name}', name)}.", _ONLY_NONE)
        for name in ("cache_dir", "cache_fraction")
    }


LOADER: dict[str, Foreign] = {
    **_caches("Loader(LMDBDataset(URL, {name}={value}), batch_size)"),
    "order": Foreign(_FFCV, "members of OrderOption are accepted.", _order_option),
    "num_workers": Foreign(f"{_TORCH}, {_FFCV}", _threads),
    "persistent_workers": Foreign(
        _TORCH, "threads live as long as the loader. Leave it out, or call loader.close() after an epoch.", _ONLY_TRUE
    ),
    "prefetch_factor": Foreign(
        _TORCH,
        "it counts the batches of each worker process. Write prefetch={value}, which counts those of all threads.",
        _ONLY_NONE,
    ),
    "collate_fn": Foreign(
        _TORCH,
        "batches are assembled by compiled code. Write transforms=[function] for a function of the whole batch, "
        "or lmdbloader.dataloader(dataset, batch_size, collate_fn=...).",
        _ONLY_NONE,
    ),
    "sampler": Foreign(_TORCH, _sampler, _same_sampler),
    "replacement": Foreign(
        f"{_TORCH} (WeightedRandomSampler)",
        "draws by weight are with replacement; without weights each sample comes once. Leave it out.",
    ),
    "class_weights": Foreign("Keras", "write weights=[{value}[label] for label in dataset.targets]."),
    "sample_weights": Foreign("Keras", "write weights={value}."),
    "batch_sampler": Foreign(
        _TORCH,
        "a Loader makes its own order. Write lmdbloader.dataloader(dataset, batch_sampler=...).",
        _ONLY_NONE,
    ),
    "worker_init_fn": Foreign(
        _TORCH,
        "a Loader reads with threads, and random choices depend only on the seed, the epoch and the sample. Leave it "
        "out, and write seed=0.",
        _ONLY_NONE,
    ),
    "generator": Foreign(_TORCH, _generator, _ONLY_NONE),
    "timeout": Foreign(
        _TORCH,
        "errors in threads are raised in the loop at once. Leave it out.",
        _either((0, _NOTHING), (0.0, _NOTHING)),
    ),
    "multiprocessing_context": Foreign(_TORCH, _NO_WORKERS, _ONLY_NONE),
    "pin_memory_device": Foreign(_TORCH, "write device={value}.", _either(("", _NOTHING), (None, _NOTHING))),
    "in_order": Foreign(_TORCH, "batches always come in order. Leave it out.", _ONLY_TRUE),
    "transform": Foreign(
        _TORCHVISION,
        "write transforms=[...] with those of lmdbloader.transforms; Python functions in it are called with the whole "
        "batch. For a function of one sample write LMDBDataset(path, transform=...).",
        _ONLY_NONE,
    ),
    "fname": Foreign(_FFCV, "write Loader({value}, batch_size, ...) with a dataset of lmdbloader."),
    "os_cache": Foreign(
        _FFCV,
        "a Loader always uses the page cache, which frees memory when other programs need it. Write "
        'order="quasi_random" for a dataset larger than memory.',
        _ONLY_TRUE,
    ),
    "distributed": Foreign(
        f"{_FFCV}, timm", 'write shard="auto": all ranks get the same number of batches.', _ONLY_FALSE
    ),
    "indices": Foreign(_FFCV, "write Loader(dataset.select(indices), ...).", _ONLY_NONE),
    "pipelines": Foreign(
        _FFCV,
        "write one list for all image fields, as transforms=[RandomResizedCrop(224), RandomHorizontalFlip(), "
        "ToDtype(torch.float16, scale=True), Normalize(mean, std)]; fields are decoded without being named.",
        _either(({}, _NOTHING), (None, _NOTHING)),
    ),
    "custom_fields": Foreign(
        _FFCV, "the dataset knows its fields. Leave it out.", _either(({}, _NOTHING), (None, _NOTHING))
    ),
    "batches_ahead": Foreign(_FFCV, "write prefetch={value}."),
    "recompile": Foreign(_FFCV, "kernels come compiled. Leave it out.", _ONLY_FALSE),
    "dataset_enlarge_ratio": Foreign(_BASICSR, "write repeat={value}."),
    "batch_size_per_gpu": Foreign(_BASICSR, "write batch_size={value}, the batch size of each rank."),
    "num_worker_per_gpu": Foreign(_BASICSR, _threads),
    "bs": Foreign("fastai", "write batch_size={value}."),
    "num_parallel_calls": Foreign("tf.data", _threads),
    "workers": Foreign("Keras, timm", _threads),
    "max_queue_size": Foreign("Keras", "write prefetch={value}."),
    "use_multiprocessing": Foreign("Keras", _NO_WORKERS, _ONLY_FALSE),
    "is_training": Foreign("timm", "write shuffle={value} and drop_last={value}."),
    "use_prefetcher": Foreign("timm", 'write device="cuda".', _ONLY_FALSE),
    "input_size": Foreign("timm", "write transforms=[RandomResizedCrop(224), ...] with the size."),
    "drop_remainder": Foreign("tf.data", "write drop_last={value}."),
    "handler": Foreign(_WDS, 'write on_corrupt="skip" to leave out damaged samples, which loader.corrupt lists.'),
    "device_id": Foreign(_DALI, _numbered),
    "prefetch_queue_depth": Foreign(_DALI, "write prefetch={value}."),
    "random_shuffle": Foreign(_DALI, "write shuffle={value}."),
    "last_batch_policy": Foreign(
        _DALI, "write drop_last=True for DROP, pad=True for FILL; by default the last batch is short (PARTIAL)."
    ),
    "pad_last_batch": Foreign(_DALI, "write pad={value}."),
    "auto_reset": Foreign(_DALI, "every iteration is the next epoch. Leave it out.", _ONLY_TRUE),
    "shard_id": Foreign(_DALI, _PARTS_OF_SHARD),
    "num_shards": Foreign(f"{_DALI}, {_HF}", _PARTS_OF_SHARD),
    "rank": Foreign(f"{_TORCH} (DistributedSampler)", _PARTS_OF_SHARD),
    "world_size": Foreign(f"{_TORCH} (DistributedSampler)", _PARTS_OF_SHARD),
    "num_replicas": Foreign(f"{_TORCH} (DistributedSampler)", _PARTS_OF_SHARD),
    "shuffle_seed": Foreign(_STREAMING, _RENAMED_SEED),
    "random_seed": Foreign("Keras, fastai", _RENAMED_SEED),
}

# LMDBDataset


def _split(value: Any) -> str:
    """Return the line for a split: a name, or True or False for torchvision's `train`."""
    name = {True: "train", False: "val"}[value] if isinstance(value, bool) else str(value).partition("[")[0]
    return (
        "each split is a separate dataset, which `lmdbloader convert SRC OUT --split` makes. "
        f'Write LMDBDataset("OUT/{name}.lmdb").'
    )


_READS_ONLY = "datasets are opened read-only, without locks. Leave it out."
_ON_DISK = "datasets are read from a disk. Leave it out; `lmdbloader stage DB FOLDER` copies one to a faster disk."

DATASET: dict[str, Foreign] = {
    "root": Foreign(_TORCHVISION, "write LMDBDataset({value})."),
    "train": Foreign(_TORCHVISION, _split),
    "split": Foreign(f"{_TORCHVISION}, {_HF}", _split, _ONLY_NONE),
    "download": Foreign(
        _TORCHVISION,
        "nothing is downloaded. Make the dataset once: lmdbloader.convert(folder, path), or "
        "lmdbloader.write(torchvision_dataset, path, fields=('image', 'label')).",
        _ONLY_FALSE,
    ),
    "target_transform": Foreign(
        _TORCHVISION,
        "a transform gets the whole sample. Write LMDBDataset(path, "
        "transform=lambda sample: sample._replace(label=function(sample.label))), with the name of your field.",
        _ONLY_NONE,
    ),
    "transforms": Foreign(
        _TORCHVISION,
        "write Loader(dataset, batch_size, transforms=[...]) or dataset.transformed([...]) for those of "
        "lmdbloader.transforms, LMDBDataset(path, transform=function) for a function of the sample.",
        _ONLY_NONE,
    ),
    "loader": Foreign(_TORCHVISION, "images are decoded by compiled code. Leave it out."),
    "is_valid_file": Foreign(_TORCHVISION, "files are chosen at conversion. Leave it out.", _ONLY_NONE),
    "extensions": Foreign(_TORCHVISION, "files are chosen at conversion. Leave it out.", _ONLY_NONE),
    "allow_empty": Foreign(
        _TORCHVISION, "classes are chosen at conversion. Write lmdbloader.convert(..., classes=[...]).", _ONLY_FALSE
    ),
    "columns": Foreign(_HF, "write fields={value}."),
    "streaming": Foreign(_HF, _ON_DISK, _ONLY_FALSE),
    "keep_in_memory": Foreign(_HF, _ON_DISK, _either((None, _NOTHING), (False, _NOTHING))),
    "data_dir": Foreign(_HF, "write LMDBDataset({value})."),
    "data_files": Foreign(_HF, "write LMDBDataset(path) with the folder that lmdbloader made."),
    "name": Foreign(_HF, "write LMDBDataset(path) with the folder that lmdbloader made."),
    "num_proc": Foreign(_HF, "the Loader has threads: Loader(dataset, batch_size, num_threads={value}). Leave it out."),
    "features": Foreign(_HF, "the dataset knows its fields. Leave it out.", _ONLY_NONE),
    "revision": Foreign(_HF, _ON_DISK, _ONLY_NONE),
    "token": Foreign(_HF, _ON_DISK, _ONLY_NONE),
    "shardshuffle": Foreign(_WDS, 'write Loader(dataset, batch_size, order="quasi_random").'),
    "nodesplitter": Foreign(_WDS, 'write Loader(dataset, batch_size, shard="auto").', _ONLY_NONE),
    "resampled": Foreign(
        _WDS,
        'write Loader(dataset, batch_size, shuffle=True, shard="auto") for ranks with the same number of batches.',
        _ONLY_FALSE,
    ),
    "urls": Foreign(_WDS, "write LMDBDataset(path). `lmdbloader convert SHARDS OUT` makes a dataset of tar shards."),
    "local": Foreign(_STREAMING, "write LMDBDataset({value})."),
    "remote": Foreign(_STREAMING, _ON_DISK, _ONLY_NONE),
    "shuffle": Foreign(_STREAMING, "write Loader(dataset, batch_size, shuffle={value}).", _ONLY_FALSE),
    "batch_size": Foreign(_STREAMING, "write Loader(dataset, batch_size={value})."),
    "readonly": Foreign("lmdb", _READS_ONLY, _ONLY_TRUE),
    "lock": Foreign("lmdb", _READS_ONLY, _ONLY_FALSE),
    "readahead": Foreign("lmdb", "a Loader reads ahead in its own order. Leave it out.", _ONLY_FALSE),
    "meminit": Foreign("lmdb", _READS_ONLY, _ONLY_FALSE),
    "map_size": Foreign("lmdb", _READS_ONLY),
    "max_readers": Foreign("lmdb", _READS_ONLY),
}

# dataloader

_OF_LOADER = "is an option of Loader. Write lmdbloader.Loader(dataset, batch_size, {name}={value})."


def _in_loader(name: str) -> Foreign:
    return Foreign("lmdbloader.Loader", _OF_LOADER.replace("{name}", name))


DATALOADER: dict[str, Foreign] = {
    **_caches("lmdbloader.dataloader(LMDBDataset(URL, {name}={value}), batch_size)"),
    "order": Foreign(
        "lmdbloader.Loader",
        "torch's DataLoader has shuffle=True and shuffle=False. For other orders write "
        "lmdbloader.Loader(dataset, batch_size, order={value}).",
        _either(("random", {"shuffle": True}), ("sequential", {"shuffle": False})),
    ),
    "num_workers": Foreign("lmdbloader.Loader", "expected a whole number.", _either(("auto", {"num_workers": None}))),
    "num_threads": Foreign("lmdbloader.Loader", "torch's DataLoader reads with processes. Write num_workers={value}."),
    "prefetch": Foreign("lmdbloader.Loader", "write prefetch_factor={value}, which counts batches of each worker."),
    "transforms": Foreign("lmdbloader.Loader", "write lmdbloader.dataloader(dataset.transformed([...]), batch_size)."),
    "seed": Foreign("lmdbloader.Loader", "write generator=torch.Generator().manual_seed({value})."),
    "shard": Foreign("lmdbloader.Loader", "write sampler=torch.utils.data.DistributedSampler(dataset).", _ONLY_NONE),
    "weights": Foreign(
        "lmdbloader.Loader",
        "write sampler=torch.utils.data.WeightedRandomSampler(weights, num_samples).",
        _ONLY_NONE,
    ),
    "num_samples": Foreign(
        _TORCH, "write sampler=torch.utils.data.RandomSampler(dataset, num_samples={value}).", _ONLY_NONE
    ),
    "device": Foreign("lmdbloader.Loader", "write batch.image.to({value}) in the loop.", _ONLY_NONE),
    "io": Foreign("lmdbloader.Loader", "write LMDBDataset(path, io={value}).", _ONLY_NONE),
    **{name: _in_loader(name) for name in ("pad", "repeat", "memory_format", "resolution", "verify", "on_corrupt")},
}

# convert and write

_WORKERS = "write workers={value}."
_SHUFFLED_LATER = "the Loader shuffles in every epoch: Loader(dataset, batch_size, shuffle=True). Leave it out."
_ONE_FILE = "a dataset is one file of any size. Leave it out."
_PART_SIZE = "write part_size={value}."
_GROWS = "the LMDB map grows as needed. Leave it out."
_RESIZED_LATER = (
    "write max_resolution=N to limit the longer side of the images that are stored. For one size, or for the shorter "
    "side, resize when loading: Loader(dataset, batch_size, shuffle=True, transforms=[RandomResizedCrop(N)]) to train, "
    "transforms=[Resize(N), CenterCrop(N)] to evaluate."
)

CONVERT: dict[str, Foreign] = {
    "num_workers": Foreign(f"{_FFCV}, {_TORCH}", _WORKERS),
    "num_proc": Foreign(_HF, _WORKERS),
    "n_thread": Foreign(_BASICSR, _WORKERS),
    "input_folder": Foreign(_BASICSR, "write convert({value}, out, ...)."),
    "save_folder": Foreign(_BASICSR, "write convert(src, {value}, ...)."),
    "crop_size": Foreign(_BASICSR, "write patch_size={value}."),
    "step": Foreign(_BASICSR, "write stride={value}."),
    "compression_level": Foreign(_BASICSR, 'write codec="lz4" for compressed pixels, write_mode="original" for files.'),
    "quality": Foreign("Pillow", 'write jpeg_quality={value}, with write_mode="jpg".'),
    "format": Foreign("img2dataset", "write write_mode={value}."),
    "force": Foreign("other programs", "write overwrite={value}."),
    "limit": Foreign("other programs", "write subset={value}."),
    "max_size": Foreign(_TORCHVISION, "write max_resolution={value}."),
    "resize": Foreign("other programs", _RESIZED_LATER),
    "image_size": Foreign("img2dataset", _RESIZED_LATER),
    "transform": Foreign(
        _TORCHVISION,
        "transforms are applied when samples are loaded. Write Loader(dataset, batch_size, transforms=[...]).",
        _ONLY_NONE,
    ),
    "batch_size": Foreign(
        _TORCH, "batches are made when samples are loaded. Write Loader(dataset, batch_size={value})."
    ),
    "labels": Foreign(
        "other programs",
        "labels come from class folders, from .cls, .json and .txt files in tars, and with boxes from COCO's and "
        "YOLO's files (annotations=FILE, layout='yolo'). Write samples with other labels: "
        "lmdbloader.write(samples, out).",
    ),
    **{
        name: Foreign(
            f"{_TORCHVISION}, pycocotools", "write annotations={value}.", lambda value: {"annotations": value}
        )
        for name in ("annFile", "ann_file", "annotation_file")
    },
    "recursive": Foreign("other programs", "folders below the source are always read. Leave it out.", _ONLY_TRUE),
    "indices": Foreign(_FFCV, "write lmdbloader.write((dataset[i] for i in indices), out) for samples in Python."),
    "shuffle_indices": Foreign(_FFCV, "write shuffle=0 for a stored order drawn from seed 0.", _ONLY_FALSE),
    "split": Foreign(
        _HF,
        "each split is a separate dataset. Write `for split in lmdbloader.find_splits(src): "
        'lmdbloader.convert(split.path, f"{out}/{split.name}.lmdb", classes=split.classes)`, or '
        "`lmdbloader convert SRC OUT --split`.",
    ),
    "map_size": Foreign("lmdb", _GROWS),
    "page_size": Foreign(_FFCV, _ONE_FILE),
    "maxcount": Foreign(_WDS, _ONE_FILE),
    "maxsize": Foreign(_WDS, _PART_SIZE),
    "size_limit": Foreign(_STREAMING, _PART_SIZE),
    "max_shard_size": Foreign(_HF, _PART_SIZE),
    "num_shards": Foreign(_HF, "write parts={value}."),
    "compression": Foreign(_STREAMING, 'write codec="lz4".', _ONLY_NONE),
    "hashes": Foreign(_STREAMING, "every dataset has digests. Leave it out.", _ONLY_NONE),
}

WRITE: dict[str, Foreign] = {
    "num_workers": Foreign(f"{_FFCV}, {_TORCH}", "write workers={value}.", lambda value: {"workers": value}),
    "num_proc": Foreign(_HF, "write workers={value}.", lambda value: {"workers": value}),
    "features": Foreign(_HF, "write fields={'image': lmdbloader.fields.Image(), 'label': lmdbloader.fields.Int()}."),
    "column_names": Foreign(_HF, "write fields={value}."),
    "columns": Foreign(
        _STREAMING, "write fields={'image': lmdbloader.fields.Image(), 'label': lmdbloader.fields.Int()}."
    ),
    "out": Foreign(_STREAMING, "write lmdbloader.write(samples, {value})."),
    "class_names": Foreign(_TORCHVISION, "write classes={'label': {value}}."),
    "quality": CONVERT["quality"],
    "transform": Foreign(
        _TORCHVISION, "write prepare=..., a function that gets and returns the whole sample.", _ONLY_NONE
    ),
    "function": Foreign(_HF, "write prepare={value}. It returns the whole sample: other columns are not kept."),
    "indices": Foreign(_FFCV, "write lmdbloader.write(torch.utils.data.Subset(samples, {value}), out)."),
    "n_jobs": Foreign("joblib", "write workers={value}.", lambda value: {"workers": value}),
    "num_threads": Foreign("other programs", "write workers={value}, threads=True."),
    "chunksize": Foreign(_FFCV, "workers get tasks of a size that suits the samples. Leave it out."),
    "batch_size": CONVERT["batch_size"],
    "resume": Foreign("other programs", "the same call resumes an interrupted write. Leave it out.", _ONLY_TRUE),
    "verbose": Foreign("other programs", "write progress={value}.", lambda value: {"progress": value}),
    "shuffle": Foreign(_STREAMING, _SHUFFLED_LATER, _ONLY_FALSE),
    "shuffle_indices": Foreign(_FFCV, _SHUFFLED_LATER, _ONLY_FALSE),
    **{name: Foreign(_HF, _ONE_FILE) for name in ("max_shard_size", "num_shards")},
    "maxsize": Foreign(_WDS, _ONE_FILE),
    "size_limit": Foreign(_STREAMING, _ONE_FILE),
    **{name: CONVERT[name] for name in ("map_size", "page_size", "maxcount", "compression", "hashes")},
}  # fmt: skip

# extract, preview, repair, stage, merge, append, subset and tune

_OUTPUT = Foreign("lmdbloader.preview", "write out={value}.")
_FOUND = "it is what `tune` finds. Leave it out."

EXTRACT: dict[str, Foreign] = {
    **{name: CONVERT[name] for name in ("num_workers", "num_proc", "n_thread", "force")},
    "output": _OUTPUT,
    "columns": Foreign(_HF, "write fields={value}."),
    "indices": Foreign(_FFCV, "write samples={value}."),
    "limit": Foreign("other programs", "write samples=range({value})."),
    "format": Foreign("img2dataset", 'write image_format="png" or image_format="stored".'),
}

PREVIEW: dict[str, Foreign] = {
    "out": Foreign("lmdbloader.extract", "write output={value}."),
    "nrow": Foreign(f"{_TORCHVISION} (make_grid)", "write columns={value}."),
    "n": Foreign("pandas", "write count={value}."),
    "num_samples": Foreign(_TORCH, "write count={value}."),
}

REPAIR: dict[str, Foreign] = {"output": _OUTPUT}

STAGE: dict[str, Foreign] = {
    "force": CONVERT["force"],
    "path": Foreign("lmdbloader.verify", "write stage({value}, directory)."),
    "out": Foreign("lmdbloader.extract", "write stage(db, {value})."),
    "cache_dir": Foreign(_HF, "write stage(db, {value})."),
    "local": Foreign(_STREAMING, "write stage(db, {value})."),
    "remote": Foreign(_STREAMING, "write stage({value}, directory)."),
    "verify": Foreign("lmdbloader.Loader", "write check={value}."),
}

MERGE: dict[str, Foreign] = {
    **{name: CONVERT[name] for name in ("num_workers", "num_proc", "force")},
    "dsets": Foreign(_HF, "write merge({value}, out)."),
    "output": _OUTPUT,
    "columns": Foreign(_HF, "write fields={value}."),
    "axis": Foreign(_HF, "samples are put one after the other. Leave it out.", _either((0, _NOTHING))),
    "shuffle": Foreign(_TORCH, _SHUFFLED_LATER, _ONLY_FALSE),
}

APPEND: dict[str, Foreign] = {
    **{name: CONVERT[name] for name in ("num_workers", "num_proc")},
    "dsets": Foreign(_HF, "write append(db, {value})."),
    "out": Foreign(
        "lmdbloader.merge", "the first dataset grows. Write append({value}, [...]), or merge for a new one."
    ),
    "overwrite": Foreign("lmdbloader.merge", "the samples that are there stay. Leave it out."),
    "columns": Foreign(_HF, "write fields={value}."),
}

MIX: dict[str, Foreign] = {
    **_caches("mix([LMDBDataset(URL, {name}={value}), ...])"),
    "dsets": Foreign(_HF, "write mix({value})."),
    "probabilities": Foreign(_HF, "write weights={value}."),
    "proportion": Foreign(_STREAMING, "write weights={value}."),
    "ratios": Foreign("other programs", "write weights={value}."),
    "stopping_strategy": Foreign(
        _HF, "a dataset that ends is shuffled again, until the epoch has `length` draws. Leave it out."
    ),
    "seed": Foreign(_HF, "the Loader has it: Loader(mixed, batch_size, shuffle=True, seed={value}). Leave it out."),
    "shuffle": Foreign(_TORCH, "the Loader has it: Loader(mixed, batch_size, shuffle={value}). Leave it out."),
    "num_samples": Foreign(_TORCH, "write length={value}."),
    "out": Foreign(
        "lmdbloader.merge", "nothing is written. Write lmdbloader.merge(datasets, {value}) for one dataset."
    ),
}

SUBSET: dict[str, Foreign] = {
    **{name: CONVERT[name] for name in ("num_workers", "num_proc", "force")},
    "output": _OUTPUT,
    "columns": Foreign(_HF, "write fields={value}."),
    "condition": Foreign("lmdbloader.LMDBDataset.where", "write where={value}."),
    "filter": Foreign("pyarrow", "write where={value}."),
    "function": Foreign(_HF, 'write where="label == 3", a condition on the columns of LMDBDataset(path).table.'),
    "samples": Foreign("lmdbloader.extract", "write indices={value}."),
    "subset": Foreign("lmdbloader.convert", "write limit={value}."),
    "num_samples": Foreign(_TORCH, "write limit={value}."),
    "n": Foreign("pandas", "write limit={value}."),
    "frac": Foreign("pandas", "write fraction={value}."),
    "random_state": Foreign("pandas", "write seed={value}."),
}

# ray.data

_RAY = "ray.data"

READ_LMDB: dict[str, Foreign] = {
    **_caches("read_lmdb(LMDBDataset(URL, {name}={value}))"),
    "columns": Foreign(_RAY, "write fields={value}."),
    "include_paths": Foreign(_RAY, "write include_sources={value}: the column is called source."),
    "parallelism": Foreign(_RAY, "write override_num_blocks={value}."),
    "num_gpus": Foreign(_RAY, "images are decoded on CPUs. Leave it out.", _either((None, _NOTHING), (0, _NOTHING))),
    "paths": Foreign(_RAY, "write read_lmdb({value}), with one dataset."),
    "size": Foreign(_RAY, "write read_lmdb(LMDBDataset(path).transformed([Resize({value})])).", _ONLY_NONE),
    "mode": Foreign(_RAY, "images have the channels that were stored. Leave it out.", _ONLY_NONE),
    "shuffle": Foreign(
        _RAY, "write read_lmdb(path).random_shuffle(), or .randomize_block_order().", _either((None, _NOTHING))
    ),
    "batch_size": Foreign(_RAY, "write read_lmdb(path).iter_batches(batch_size={value})."),
    "transform": Foreign(_TORCHVISION, "write read_lmdb(path).map(function), where rows are dicts.", _ONLY_NONE),
}

_SAVE_MODES = {
    "append": "to add rows to a dataset, write them to a folder of their own, then append that: "
    "lmdbloader.append(dataset, [folder]), or `lmdbloader append DATASET FOLDER`.",
    "ignore": "to keep a dataset that is there, ask first: if not os.path.exists(path): write_lmdb(data, path).",
}


def _save_mode(value: Any) -> str:
    """Return the name of a mode that is one, or ray.data's SaveMode, which is a text too; "" for others."""
    return str(getattr(value, "value", value)) if isinstance(value, str) else ""


WRITE_LMDB: dict[str, Foreign] = {
    "columns": Foreign(_RAY, "write fields={value}."),
    "column": Foreign(_RAY, "write fields=[{value}]."),
    "file_format": Foreign(_RAY, 'images are stored as write_mode says: write write_mode="jpg" for JPEG.'),
    "mode": Foreign(
        _RAY,
        lambda value: _SAVE_MODES.get(_save_mode(value), 'write overwrite=True to replace a dataset, as "overwrite".'),
        lambda value: {"overwrite": {"overwrite": True}, "error": {}, "create": {}}.get(_save_mode(value)),
    ),
    "min_rows_per_file": Foreign(_RAY, "write min_rows_per_part={value}.", lambda value: {"min_rows_per_part": value}),
    "num_rows_per_file": Foreign(_RAY, "write min_rows_per_part={value}."),
    "filename_provider": Foreign(_RAY, "parts are numbered. Leave it out.", _ONLY_NONE),
    "try_create_dir": Foreign(_RAY, "the folder is made. Leave it out.", _ONLY_TRUE),
    "filesystem": Foreign(_RAY, "datasets are written to a folder that all nodes share. Leave it out.", _ONLY_NONE),
    "num_workers": Foreign(_TORCH, "write concurrency={value}."),
    "num_proc": Foreign(_HF, "write concurrency={value}."),
}

TUNE: dict[str, Foreign] = {
    "num_workers": Foreign(_TORCH, _FOUND),
    "num_threads": Foreign("lmdbloader.Loader", _FOUND),
    "pin_memory": Foreign(_TORCH, _FOUND),
    "prefetch_factor": Foreign(_TORCH, "prefetching stays as it is by default. Leave it out."),
    "shuffle": Foreign(_TORCH, "samples are read in random order. Leave it out.", _ONLY_TRUE),
    "crop_size": Foreign(_BASICSR, "write crop={value}."),
    "input_size": Foreign("timm", "write crop={value}."),
}

# Attributes of samples and batches, which are named tuples.

_AS_DICT = 'write Loader(dataset, batch_size, as_="dict") or LMDBDataset(path, as_="dict") for dicts.'
_MOVED = 'write Loader(dataset, batch_size, device="cuda"), or batch.image.to("cuda") for one field.'

_OF_IMAGE = (
    "write sample.image, a tensor (C, H, W). A transform gets and returns the whole sample: "
    "LMDBDataset(path, transform=lambda sample: (function(sample.image), sample.label))."
)

SAMPLE: dict[str, Foreign] = {
    **{name: Foreign(f"dicts, as of {_HF}", _AS_DICT) for name in ("keys", "values", "items", "get", "pop", "update")},
    "to": Foreign("Hugging Face Transformers", _MOVED),
    "cuda": Foreign("torch's tensors", _MOVED),
    "shape": Foreign("torch's tensors", "write sample.image.shape."),
    "size": Foreign("torch's tensors", "write sample.image.size()."),
    **{name: Foreign("Pillow", _OF_IMAGE) for name in ("convert", "crop", "mode", "resize", "rotate", "transpose")},
    **{name: Foreign("torch's tensors", _OF_IMAGE) for name in ("float", "div", "dtype", "flip", "permute")},
}

# Attributes of other datasets that LMDBDataset lacks.

_AS_TRANSFORM = "write LMDBDataset(path, transform=function), or dataset.transformed([...]) for compiled transforms."
_AS_FIELDS = "write LMDBDataset(path, fields=[...])."
_AS_LOADER = "write Loader(dataset, batch_size)."
_IS_TENSORS = "samples are named tuples of tensors. Leave it out."
_AS_ROWS = 'write list(zip(dataset.table["source"].to_pylist(), dataset.targets)); paths are those in the source.'

ATTRIBUTES: dict[str, Foreign] = {
    "samples": Foreign(_TORCHVISION, _AS_ROWS),
    "imgs": Foreign(_TORCHVISION, _AS_ROWS),
    "loader": Foreign(_TORCHVISION, "images are decoded by compiled code; write dataset[0].image."),
    "root": Foreign(_TORCHVISION, "write dataset.path."),
    "data": Foreign(_TORCHVISION, "write torch.stack([sample.image for sample in dataset])."),
    "labels": Foreign(_TORCHVISION, "write dataset.targets."),
    "target_transform": Foreign(_TORCHVISION, _AS_TRANSFORM),
    "transforms": Foreign(_TORCHVISION, "write dataset.all_transforms."),
    "num_classes": Foreign(
        "timm", "write len(dataset.classes). Masks have no classes: take the largest label other than 255, plus 1."
    ),
    "random_split": Foreign("torch", "write train, test = dataset.split([0.8, 0.2], seed=0)."),
    "filename": Foreign("timm", 'write dataset.table["source"][index].as_py().'),
    "indices": Foreign("torch's Subset", "write dataset.rows_of(numpy.arange(len(dataset)))."),
    "dataset": Foreign("torch's Subset", "a view is itself a dataset; write dataset."),
    "filter": Foreign(_HF, 'write dataset.where("label == 3").'),
    "map": Foreign(_HF, _AS_TRANSFORM),
    "with_transform": Foreign(_HF, _AS_TRANSFORM),
    "set_transform": Foreign(_HF, _AS_TRANSFORM),
    "with_format": Foreign(_HF, _IS_TENSORS),
    "set_format": Foreign(_HF, _IS_TENSORS),
    "shuffle": Foreign(f"{_HF}, {_WDS}", "write Loader(dataset, batch_size, shuffle=True, seed=0)."),
    "train_test_split": Foreign(_HF, "write train, test = dataset.split([0.8, 0.2], seed=0)."),
    "shard": Foreign(
        _HF, "write dataset[index::num_shards], or Loader(dataset, batch_size, shard=(rank, world_size))."
    ),
    "take": Foreign(_HF, "write dataset[:n]."),
    "skip": Foreign(_HF, "write dataset[n:]."),
    "sort": Foreign(_HF, "write dataset.select(numpy.argsort(dataset.targets))."),
    "unique": Foreign(_HF, 'write dataset.table["label"].unique().to_pylist().'),
    "iter": Foreign(_HF, _AS_LOADER),
    "batch": Foreign(_HF, _AS_LOADER),
    "to_iterable_dataset": Foreign(_HF, _AS_LOADER),
    "to_tf_dataset": Foreign(_HF, _AS_LOADER),
    "features": Foreign(_HF, "write dataset.fields."),
    "column_names": Foreign(_HF, "write list(dataset.fields)."),
    "num_rows": Foreign(_HF, "write len(dataset)."),
    "to_pandas": Foreign(_HF, "write dataset.table.to_pandas()."),
    "to_dict": Foreign(_HF, "write dataset.table.to_pydict()."),
    "to_list": Foreign(_HF, "write dataset.table.to_pylist()."),
    "select_columns": Foreign(_HF, _AS_FIELDS),
    "remove_columns": Foreign(_HF, _AS_FIELDS),
    "num_columns": Foreign(_HF, "write len(dataset.fields)."),
    **{
        name: Foreign(_HF, "datasets cannot be changed. Write lmdbloader.write(samples, path) for a new one.")
        for name in ("add_column", "add_item", "cast", "cast_column", "class_encode_column", "rename_column")
    },
    "push_to_hub": Foreign(_HF, "write datasets to a disk, and upload the folder dataset.path."),
    "save_to_disk": Foreign(_HF, 'write lmdbloader.stage(dataset.path, "folder") for a copy of the whole dataset.'),
    "decode": Foreign(_WDS, "images are decoded when they are read. Leave it out."),
    "to_tuple": Foreign(_WDS, _AS_FIELDS),
    "batched": Foreign(_WDS, _AS_LOADER),
}

# Functions and classes of other libraries.

_AS_WRITE = "write lmdbloader.write(samples, path)."

MODULE: dict[str, Foreign] = {
    "DataLoader": Foreign("torch", "write lmdbloader.Loader, or lmdbloader.dataloader for torch's own."),
    "WebLoader": Foreign(_WDS, "write lmdbloader.Loader."),
    "concatenate_datasets": Foreign(_HF, "write lmdbloader.merge(datasets, out)."),
    "ConcatDataset": Foreign("torch", "write lmdbloader.mix(datasets), or torch.utils.data.ConcatDataset."),
    "interleave_datasets": Foreign(_HF, "write lmdbloader.mix(datasets, weights=[...])."),
    "OrderOption": Foreign(_FFCV, 'write order="random", "quasi_random" or "sequential".'),
    **{
        name: Foreign(of, "write lmdbloader.LMDBDataset(path).")
        for name, of in {
            "Dataset": f"torch, {_HF}", "ImageFolder": _TORCHVISION, "load_dataset": _HF, "load_from_disk": _HF,
            "WebDataset": _WDS, "StreamingDataset": _STREAMING, "PairedImageDataset": _BASICSR,
        }.items()
    },
    **{
        name: Foreign(of, _AS_WRITE)
        for name, of in {
            "DatasetWriter": _FFCV, "ShardWriter": _WDS, "TarWriter": _WDS, "MDSWriter": _STREAMING,
        }.items()
    },
}  # fmt: skip

TABLES: dict[str, Table] = {
    "LMDBDataset": DATASET, "Loader": LOADER, "dataloader": DATALOADER, "convert": CONVERT, "write": WRITE,
    "extract": EXTRACT, "preview": PREVIEW, "repair": REPAIR, "stage": STAGE, "tune": TUNE,
    "merge": MERGE, "append": APPEND, "mix": MIX, "subset": SUBSET,
    "ray.read_lmdb": READ_LMDB, "ray.write_lmdb": WRITE_LMDB,
    "attributes": ATTRIBUTES, "samples": SAMPLE, "lmdbloader": MODULE,
}  # fmt: skip
