"""Arguments and attributes of other libraries mean the same here, or are an error with the line to write."""

from __future__ import annotations

import enum
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.base.foreign_names import ATTRIBUTES, MODULE, SAMPLE, TABLES
from lmdbloader.base.suggestions import nearest
from lmdbloader.errors import LmdbloaderError, OptionError
from lmdbloader.loader import torch_loader
from lmdbloader.loader.tuning_cache import Workers

COUNT = 12


class OrderOption(enum.Enum):
    """FFCV's, which need not be installed."""

    SEQUENTIAL = 1
    RANDOM = 2
    QUASI_RANDOM = 3


class LastBatchPolicy(enum.Enum):
    """That of NVIDIA DALI."""

    DROP = 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "d.lmdb"
    samples = ({"image": np.full((8, 8, 3), i, np.uint8), "label": i % 3} for i in range(COUNT))
    lmdbloader.write(samples, path, classes={"label": ["ant", "bee", "cat"]})
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def images(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch.image[:, 0, 0, 0]]


SAME = {
    "shuffle": [({"shuffle": True}, {"order": "random"}), ({"shuffle": False}, {"order": "sequential"})],
    "numpy": [({"shuffle": np.True_}, {"order": "random"}), ({"shuffle": np.False_}, {"order": "sequential"})],
    "order": [({"order": member}, {"order": member.name.lower()}) for member in OrderOption],
    "nothing": [
        ({name: value}, {})
        for name, value in {
            "sampler": None, "batch_sampler": None, "collate_fn": None, "worker_init_fn": None, "generator": None,
            "timeout": 0, "multiprocessing_context": None, "prefetch_factor": None, "pin_memory_device": "",
            "persistent_workers": True, "in_order": True, "os_cache": True, "distributed": False, "indices": None,
            "pipelines": {}, "custom_fields": {}, "recompile": False, "auto_reset": True, "transform": None,
        }.items()
    ],
}  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), [pair for pairs in SAME.values() for pair in pairs], ids=repr)
def test_a_loader_takes_what_means_the_same(ds: LMDBDataset, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    loader, expected = Loader(ds, 4, seed=3, **theirs), Loader(ds, 4, seed=3, **ours)
    assert loader.order == expected.order
    assert images(loader) == images(expected)
    assert images(pickle.loads(pickle.dumps(loader))) == images(expected)


def test_torchvisions_line_for_a_sampler_or_none_works(ds: LMDBDataset) -> None:
    sampler = None
    assert Loader(ds, batch_size=4, shuffle=(sampler is None), sampler=sampler, pin_memory=True).order == "random"


def test_the_batch_size_of_a_loader_is_torchs_by_default(ds: LMDBDataset) -> None:
    assert Loader(ds).batch_size == DataLoader(ds).batch_size == 1


@pytest.mark.parametrize("theirs", [{"streaming": False}, {"download": False}, {"readonly": True, "lock": False}])
def test_a_dataset_takes_what_means_the_same(path: Path, theirs: dict[str, Any]) -> None:
    assert len(LMDBDataset(path, **theirs)) == COUNT


def test_a_dataloader_takes_what_means_the_same(ds: LMDBDataset) -> None:
    assert isinstance(lmdbloader.dataloader(ds, 4, num_workers=0, order="random").sampler, RandomSampler)
    assert isinstance(lmdbloader.dataloader(ds, 4, num_workers=0, order="sequential").sampler, SequentialSampler)


def test_a_dataloader_opens_a_path(path: Path) -> None:
    assert images(lmdbloader.dataloader(path, 5, num_workers=0)) == list(range(COUNT))


# A habit, and arguments of ours that its error says to write; they are tried.
LOADER_HABITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"num_workers": 1}, {"num_threads": 1}),
    ({"num_workers": 0}, {"num_threads": 1}),
    ({"num_worker_per_gpu": 1}, {"num_threads": 1}),
    ({"prefetch_factor": 4}, {"prefetch": 4}),
    ({"batches_ahead": 3}, {"prefetch": 3}),
    ({"prefetch_queue_depth": 2}, {"prefetch": 2}),
    ({"generator": torch.Generator().manual_seed(7)}, {"seed": 7}),
    ({"shuffle_seed": 5}, {"seed": 5}),
    ({"random_seed": 5}, {"seed": 5}),
    ({"worker_init_fn": print}, {"seed": 0}),
    ({"os_cache": False}, {"order": "quasi_random"}),
    ({"distributed": True}, {"shard": "auto"}),
    ({"sampler": DistributedSampler(range(4), 1, 0)}, {"shuffle": True, "shard": "auto"}),
    ({"sampler": DistributedSampler(range(4), 1, 0, shuffle=False)}, {"shuffle": False, "shard": "auto"}),
    ({"sampler": RandomSampler(range(4))}, {"order": "random"}),
    ({"sampler": SequentialSampler(range(4))}, {"order": "sequential"}),
    ({"sampler": DistributedSampler(range(4), 1, 0, seed=6)}, {"shuffle": True, "shard": "auto", "seed": 6}),
    (
        {"sampler": DistributedSampler(range(4), 1, 0, drop_last=True)},
        {"shuffle": True, "shard": "auto", "drop_last": True},
    ),
    ({"sampler": RandomSampler(range(4), generator=torch.Generator().manual_seed(5))}, {"order": "random", "seed": 5}),
    ({"bs": 4}, {"batch_size": 4}),
    ({"batch_size_per_gpu": 4}, {"batch_size": 4}),
    ({"drop_remainder": True}, {"drop_last": True}),
    ({"handler": print}, {"on_corrupt": "skip"}),
    ({"device_id": 0}, {"device": "cuda:0"}),
    ({"random_shuffle": True}, {"shuffle": True}),
    ({"last_batch_policy": LastBatchPolicy.DROP}, {"drop_last": True}),
    ({"pad_last_batch": True}, {"pad": True}),
    ({"batchsize": 4}, {"batch_size": 4}),
    ({"batchSize": 4}, {"batch_size": 4}),
    ({"drop_lst": True}, {"drop_last": True}),
]


@pytest.mark.parametrize(("theirs", "ours"), LOADER_HABITS, ids=lambda value: "-".join(value))
def test_a_loader_says_which_arguments_to_write(ds: LMDBDataset, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^Loader\({name}=.*[Ww]rite |Did you mean ") as caught:
        Loader(ds, **theirs)
    for ours_name, value in ours.items():
        assert any(f"{ours_name}={text}" in str(caught.value) for text in (repr(value), f'"{value}"'))
    Loader(ds, **ours)


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"sampler": SubsetRandomSampler([1, 2])}, "Loader(dataset.select(indices), ..., shuffle=True)"),
        ({"sampler": RandomSampler([1, 2], replacement=True)}, "weights=[1] * len(dataset), num_samples=2."),
        ({"sampler": RandomSampler([1, 2], num_samples=5)}, "repeat=k"),
        (
            {"sampler": WeightedRandomSampler([0.5] * 4, 4, generator=torch.Generator().manual_seed(5))},
            "weights=sampler.weights, num_samples=4, seed=5",
        ),
        (
            {"sampler": WeightedRandomSampler([0.5] * 4, 4, replacement=False)},
            "lmdbloader.dataloader(dataset, batch_size, sampler=...)",
        ),
        ({"sampler": BatchSampler([1, 2], 1, False)}, "order=lambda epoch: list(sampler)"),
        ({"batch_sampler": [[1], [2]]}, "lmdbloader.dataloader(dataset, batch_sampler=...)"),
        ({"collate_fn": print}, "lmdbloader.dataloader(dataset, batch_size, collate_fn=...)"),
        ({"persistent_workers": False}, "loader.close()"),
        ({"timeout": 30}, "Leave it out"),
        ({"num_workers": -1}, "one for each core. Leave it out."),
        ({"multiprocessing_context": "spawn"}, "Leave it out"),
        ({"in_order": False}, "Leave it out"),
        (
            {"pipelines": {"image": [print], "label": None}},
            "transforms=[RandomResizedCrop(224), Random",
        ),
        ({"indices": [1, 2]}, "Loader(dataset.select(indices), ...)"),
        ({"custom_fields": {"image": int}}, "Leave it out"),
        ({"recompile": True}, "Leave it out"),
        ({"fname": "train.beton"}, "Loader('train.beton', batch_size, ...)"),
        ({"transform": print}, "LMDBDataset(path, transform=...)"),
        ({"rank": 1}, "shard=(rank, world_size)"),
        ({"num_shards": 8}, "shard=(rank, world_size)"),
        ({"num_worker": 8}, "num_threads=8"),
        ({"colour": 1}, "there is no such option; expected one of "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_loader_says_which_line_to_write(ds: LMDBDataset, theirs: dict[str, Any], line: str) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^Loader\({name}=") as caught:
        Loader(ds, 4, **theirs)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("third", "line"),
    [(True, "shuffle=True"), (np.False_, "shuffle="), (8, "num_threads=8"), ("random", "order='random'")],
)
def test_a_loader_names_the_third_argument(ds: LMDBDataset, third: Any, line: str) -> None:
    with pytest.raises(OptionError, match=rf"only dataset, batch_size can be positional\. Write {re.escape(line)}"):
        Loader(ds, 4, third)  # type: ignore[misc]


def test_two_names_for_one_option_are_refused(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"^shuffle=True, order='random': both set the order"):
        Loader(ds, 4, shuffle=True, order="random")
    with pytest.raises(OptionError, match=r"shuffle is given too"):
        lmdbloader.dataloader(ds, 4, order="random", shuffle=True)


def test_batches_of_none_are_samples_one_by_one(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"for sample in dataset.*lmdbloader\.dataloader\(dataset, batch_size=None\)"):
        Loader(ds, batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"root": "data"}, "LMDBDataset('data')"),
        ({"train": True}, 'LMDBDataset("OUT/train.lmdb")'),
        ({"train": False}, 'LMDBDataset("OUT/val.lmdb")'),
        ({"split": "test"}, 'LMDBDataset("OUT/test.lmdb")'),
        ({"download": True}, "lmdbloader.convert(folder, path)"),
        ({"target_transform": int}, "sample._replace(label=function(sample.label))"),
        ({"transforms": [1]}, "Loader(dataset, batch_size, transforms=[...])"),
        ({"transforms": print}, "LMDBDataset(path, transform=function)"),
        ({"loader": print}, "Leave it out"),
        ({"is_valid_file": print}, "Leave it out"),
        ({"columns": ["image"]}, "fields=['image']"),
        ({"streaming": True}, "lmdbloader stage DB FOLDER"),
        ({"keep_in_memory": True}, "lmdbloader stage DB FOLDER"),
        ({"shuffle": True}, "Loader(dataset, batch_size, shuffle=True)"),
        ({"batch_size": 8}, "Loader(dataset, batch_size=8)"),
        ({"map_size": 2**30}, "Leave it out"),
        ({"readahead": True}, "Leave it out"),
        ({"feilds": ["image"]}, "Did you mean fields=['image']?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_dataset_says_which_line_to_write(path: Path, theirs: dict[str, Any], line: str) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^LMDBDataset\({name}=") as caught:
        LMDBDataset(path, **theirs)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"fields": print}, "LMDBDataset(path, transform=...)"),
        ({"fields": 3}, "expected a list of names"),
        ({"fields": "image"}, "expected a list of names, such as ['image']"),
        ({"transform": [lmdbloader.transforms.RandomCrop(4)]}, "dataset.transformed([...])"),
        ({"transform": lmdbloader.transforms.RandomCrop(4)}, "Loader(dataset, batch_size, transforms=[...])"),
    ],
    ids=repr,
)
def test_arguments_in_the_wrong_place_are_recognised(path: Path, arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError, match=re.escape(line)):
        LMDBDataset(path, **arguments)


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"order": "quasi_random"}, "lmdbloader.Loader(dataset, batch_size, order='quasi_random')"),
        ({"num_threads": 2}, "num_workers=2"),
        ({"prefetch": 2}, "prefetch_factor=2"),
        ({"transforms": []}, "dataset.transformed([...])"),
        ({"seed": 4}, "generator=torch.Generator().manual_seed(4)"),
        ({"shard": "auto"}, "sampler=torch.utils.data.DistributedSampler(dataset)"),
        ({"device": "cuda"}, "batch.image.to('cuda')"),
        ({"io": "pread"}, "LMDBDataset(path, io='pread')"),
        ({"pad": True}, "lmdbloader.Loader(dataset, batch_size, pad=True)"),
        ({"shufle": True}, "Did you mean shuffle=True?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_dataloader_says_which_line_to_write(ds: LMDBDataset, theirs: dict[str, Any], line: str) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^dataloader\({name}=") as caught:
        lmdbloader.dataloader(ds, 4, **theirs)
    assert line in str(caught.value)


def test_a_dataloader_names_the_third_argument(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match="Write shuffle=True"):
        lmdbloader.dataloader(ds, 4, True)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [lmdbloader.convert, lmdbloader.write])
@pytest.mark.parametrize("name", ["shuffle", "compression", "hashes"])
def test_what_writers_leave_out_is_taken(function: Callable[..., Any], name: str, tmp_path: Path) -> None:
    value = False if name == "shuffle" else None
    with pytest.raises(LmdbloaderError, match=r"no such folder|expected an iterable|nothing to write"):
        function(tmp_path / "none" if function is lmdbloader.convert else [], tmp_path / "out", **{name: value})


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"num_workers": 8}, "workers=8"),
        ({"num_proc": 8}, "workers=8"),
        ({"n_thread": 8}, "workers=8"),
        ({"crop_size": 480}, "patch_size=480"),
        ({"step": 240}, "stride=240"),
        ({"max_size": 256}, "max_resolution=256"),
        ({"quality": 90}, "jpeg_quality=90"),
        ({"split": True}, "lmdbloader.find_splits(src)"),
        ({"shuffle_indices": True}, "shuffle=0"),
        ({"map_size": 2**40}, "Leave it out"),
        ({"compression": "zstd"}, 'codec="lz4"'),
        ({"patchsize": 96}, "Did you mean patch_size=96?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_convert_says_what_to_write(tmp_path: Path, theirs: dict[str, Any], line: str) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^convert\({name}=") as caught:
        lmdbloader.convert(tmp_path, tmp_path / "out", **theirs)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"features": {"image": 1}}, "fields={'image': lmdbloader.fields.Image()"),
        ({"column_names": ["image"]}, "fields=['image']"),
        ({"class_names": ["a"]}, "classes={'label': ['a']}"),
        ({"indices": [1]}, "Subset(samples, [1])"),
        ({"transform": len}, "prepare=..., a function that gets and returns the whole sample"),
        ({"function": len}, "prepare=<built-in function len>. It returns the whole sample"),
        ({"num_threads": 8}, "workers=8, threads=True"),
        ({"chunksize": 100}, "Leave it out"),
        ({"batch_size": 8}, "Loader(dataset, batch_size=8)"),
        ({"resume": False}, "the same call resumes"),
        ({"max_shard_size": "1GB"}, "Leave it out"),
        ({"hashes": ["sha1"]}, 'digest="sha256"'),
        ({"over_write": True}, "Did you mean overwrite=True?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_write_says_what_to_write(tmp_path: Path, theirs: dict[str, Any], line: str) -> None:
    (name,) = theirs
    with pytest.raises(OptionError, match=rf"^write\({name}=") as caught:
        lmdbloader.write([], tmp_path / "out", **theirs)
    assert line in str(caught.value)


def test_a_number_of_threads_is_their_number(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"threads=8: expected True or False\. For 8 threads write workers=8 and threads=T"
    ):
        lmdbloader.write([{"n": 1}], tmp_path / "out", threads=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_an_attribute_of_other_datasets_says_what_to_write(ds: LMDBDataset, name: str) -> None:
    assert not hasattr(ds, name)
    assert getattr(ds, name, 3) == 3
    with pytest.raises(AttributeError, match=rf"^LMDBDataset\.{name}: .*([wW]rite |Leave it out)") as caught:
        getattr(ds, name)
    assert isinstance(caught.value, LmdbloaderError)


@pytest.mark.parametrize("name", sorted(SAMPLE))
def test_an_attribute_of_dicts_and_tensors_says_what_to_write(ds: LMDBDataset, name: str) -> None:
    for value in (ds[0], next(iter(Loader(ds, 4)))):
        assert not hasattr(value, name)
        with pytest.raises(AttributeError, match=rf"a named tuple of image, label has no '{name}': write ") as caught:
            getattr(value, name)
        assert isinstance(caught.value, LmdbloaderError)
    with pytest.raises(AttributeError, match=r"a named tuple of image, label has no 'colour'$"):
        _ = ds[0].colour


def test_a_column_by_name_says_what_to_write(ds: LMDBDataset) -> None:
    for name, line in (
        ("label", "dataset.table['label'].to_pylist()"),
        ("image", "[sample.image for sample in dataset]"),
        ("train", "There is no field 'train' either; fields and columns are image, label, image.height"),
    ):
        with pytest.raises(OptionError, match=re.escape(f"dataset['{name}']: ")) as caught:
            ds[name]
        assert line in str(caught.value)


def test_a_list_of_transforms_may_be_none_but_not_one_transform(ds: LMDBDataset) -> None:
    crop = lmdbloader.transforms.RandomCrop(4)
    assert Loader(ds, 4, transforms=None).transforms == ds.transformed(None).all_transforms == ()  # type: ignore[arg-type]
    for make in (lambda: Loader(ds, 4, transforms=crop), lambda: ds.transformed(crop)):  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"expected a list\. Write transforms=\[RandomCrop\("):
            make()


@pytest.mark.parametrize(
    ("fractions", "line"),
    [
        (0.8, "Write [0.8, 0.2]"),
        ([COUNT - 4, 4], "torch.utils.data.random_split(dataset, lengths)"),
        ("train", "as [0.8, 0.2]"),
        ({"train": 0.8}, "as [0.8, 0.2]"),
        ([0.8, 0.1], "Write [0.8, 0.2]"),
        (2, "Write [0.8, 0.2]"),
    ],
    ids=repr,
)
def test_a_split_of_other_libraries_says_what_to_write(ds: LMDBDataset, fractions: Any, line: str) -> None:
    with pytest.raises(OptionError, match=r"^fractions=") as caught:
        ds.split(fractions)
    assert line in str(caught.value)


def test_the_workers_of_a_dataloader_may_be_auto(ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loader, "tuned_workers", lambda *arguments: Workers(0))
    assert lmdbloader.dataloader(ds, 4, num_workers="auto").num_workers == 0


def test_a_condition_by_arguments_says_what_to_write(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r'only condition can be positional\. Write where\("label == 3"\)'):
        ds.where("label", 3)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r'where\(label=3\): there is no such option\. Write where\("label == 3"\)'):
        ds.where(label=3)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="Did you mean condition='label == 3'"):
        ds.where(conditon="label == 3")  # type: ignore[call-arg]


def test_several_transforms_or_fractions_are_a_list(ds: LMDBDataset) -> None:
    turn = lmdbloader.transforms.RandomDihedral()
    with pytest.raises(OptionError, match=r"Write a list: transformed\(\[\.\.\.\]\)"):
        ds.transformed(turn, turn)  # type: ignore[call-arg, arg-type]
    with pytest.raises(OptionError, match=r"Write a list: split\(\[0\.8, 0\.2\]\)"):
        ds.split(0.8, 0.2)  # type: ignore[call-arg, arg-type]
    with pytest.raises(OptionError, match=r"split\(test_size=0\.2\): there is no such option; expected one of by, fra"):
        ds.split(test_size=0.2)  # type: ignore[call-arg]


def test_an_unknown_attribute_is_pythons_error(ds: LMDBDataset) -> None:
    with pytest.raises(AttributeError, match="'LMDBDataset' object has no attribute 'colour'"):
        _ = ds.colour  # type: ignore[attr-defined]


def test_a_subclass_may_have_such_an_attribute(path: Path) -> None:
    class Filtered(LMDBDataset):
        root = ""

        def filter(self) -> int:
            return 3

        @property
        def samples(self) -> int:
            raise AttributeError("my own")

    dataset = Filtered(path)
    dataset.root = "here"
    assert (dataset.filter(), dataset.root) == (3, "here")
    with pytest.raises(AttributeError, match="my own"):
        _ = dataset.samples


@pytest.mark.parametrize("name", sorted(MODULE))
def test_a_class_of_other_libraries_says_what_to_write(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^lmdbloader\.{name}: write "):
        getattr(lmdbloader, name)
    with pytest.raises(ImportError, match=rf"^lmdbloader\.{name}: write "):
        exec(f"from lmdbloader import {name}")


def test_a_mistyped_class_gets_the_right_name() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'LmdbDataset'\. Did you mean LMDBDataset\?"):
        _ = lmdbloader.LmdbDataset  # type: ignore[attr-defined]
    assert not hasattr(lmdbloader, "__file_of__")


# The functions around a dataset


@pytest.mark.parametrize(
    ("call", "options", "line"),
    [
        (lmdbloader.extract, {"out": "files", "num_workers": 4}, "workers=4"),
        (lmdbloader.extract, {"out": "files", "indices": [0]}, r"samples=\[0\]"),
        (lmdbloader.extract, {"out": "files", "image_fromat": "png"}, "Did you mean image_format='png'"),
        (lmdbloader.preview, {"num_samples": 8}, "count=8"),
        (lmdbloader.preview, {"nrow": 8}, "columns=8"),
        (lmdbloader.stage, {"directory": "ram", "force": True}, "overwrite=True"),
        (lmdbloader.stage, {"directory": "ram", "overwite": True}, "Did you mean overwrite=True"),
        (lmdbloader.info, {"verbose": True}, "expected one of path$"),
        (lmdbloader.verify, {"progres": print}, "Did you mean progress="),
        (lmdbloader.repair, {"output": "sound"}, "write out='sound'"),
        (lmdbloader.find_splits, {"layuot": "flat"}, "Did you mean layout='flat'"),
        (lmdbloader.lab.doctor, {"batchsize": 4}, "Did you mean batch_size=4"),
        (lmdbloader.lab.profile, {"step": 4}, "Did you mean steps=4"),
        (lmdbloader.lab.tune, {"batch_size": 4, "num_workers": 2}, "tune.*finds"),
        (lmdbloader.lab.tune, {"batch_size": 4, "crop_size": 8}, "crop=8"),
    ],
)
def test_a_wrong_name_is_an_error_with_the_right_one(
    path: Path, call: Callable[..., Any], options: dict[str, Any], line: str
) -> None:
    with pytest.raises(OptionError, match=rf"^{call.__name__}\(.*{line}"):
        call(path, **options)


@pytest.mark.parametrize(
    ("call", "others", "line"),
    [
        (lmdbloader.preview, ("sheet.png", 8), "Write count=8"),
        (lmdbloader.lab.tune, (4, 0.1), "Write step_seconds=0.1"),
        (lmdbloader.stage, ("ram", True), "only db, directory can be positional"),
        (lmdbloader.verify, (print,), "only path can be positional"),
        (lmdbloader.extract, (), "missing a required argument: 'out'"),
        (lmdbloader.lab.plan, (), "arguments are given by name"),
    ],
)
def test_a_wrong_number_of_arguments_is_an_error_with_the_name(
    path: Path, call: Callable[..., Any], others: tuple[Any, ...], line: str
) -> None:
    with pytest.raises(OptionError, match=rf"^{call.__name__}\(.*{line}"):
        call(path, *others)


LONG = "/datasets/of/the/whole/group/imagenet/train.lmdb"


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (lambda: LMDBDataset(root=LONG), f"LMDBDataset({LONG!r})"),
        (lambda: LMDBDataset(root=Path(LONG)), f"LMDBDataset({LONG!r})"),
        (lambda: LMDBDataset(pth=LONG), f"path={LONG!r}?"),
        (lambda: lmdbloader.stage("d", out=LONG), f"stage(db, {LONG!r})"),
        (
            lambda: lmdbloader.extract(
                "d", "out", columns=["image", "label", "score", "caption", "left", "top", "name"]
            ),
            "fields=['image', 'label', 'score', 'caption', 'left', 'top', 'name']",
        ),
    ],
)
def test_a_line_to_paste_has_the_whole_value(write: Callable[[], Any], line: str) -> None:
    with pytest.raises(OptionError) as caught:
        write()
    assert line in str(caught.value)


@pytest.mark.parametrize("condition", ["label == 3", lambda sample: sample.label == 3])
def test_a_condition_for_select_gets_the_line(ds: LMDBDataset, condition: Any) -> None:
    with pytest.raises(OptionError, match=r'^select\(.*write ds\.where\("label == 3"\)'):
        ds.select(condition)


def test_a_crop_in_torchvisions_way_gets_the_line(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"Write crop\(index, top=0, left=0, height=64, width=64\)"):
        ds.crop(0, 0, 0, 4, 4)  # type: ignore[misc]


# Every row of the tables


def names_of(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


OURS = {
    "classes", "fields",
    *names_of(Loader), *names_of(LMDBDataset), *names_of(lmdbloader.convert), *names_of(lmdbloader.write),
    *names_of(lmdbloader.extract), *names_of(lmdbloader.preview), *names_of(lmdbloader.repair),
    *names_of(lmdbloader.stage), *names_of(lmdbloader.lab.tune), *names_of(lmdbloader.merge),
    *names_of(lmdbloader.subset), *names_of(lmdbloader.mix),
    *names_of(lmdbloader.ray.read_lmdb), *names_of(lmdbloader.ray.write_lmdb), *names_of(lmdbloader.append),
    *names_of(DataLoader), "data_files", "split", "seed", "label", "shuffle", "as_",
}  # fmt: skip


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, rows in TABLES.items() for name in rows])
def test_a_row_names_arguments_that_exist(table: str, name: str) -> None:
    entry = TABLES[table][name]
    advice = entry.advice(8)
    assert entry.of
    assert not advice or re.search(r"[wW]rite |[lL]eave it out|expected |Make|converted|accepted", advice)
    assert set(re.findall(r"\b(\w+)=(?!=)", advice)) <= OURS


FUNCTIONS: dict[str, Any] = {
    "LMDBDataset": LMDBDataset, "Loader": Loader, "convert": lmdbloader.convert, "write": lmdbloader.write,
    "extract": lmdbloader.extract, "preview": lmdbloader.preview, "repair": lmdbloader.repair,
    "stage": lmdbloader.stage, "merge": lmdbloader.merge, "subset": lmdbloader.subset, "mix": lmdbloader.mix,
    "tune": lmdbloader.lab.tune, "append": lmdbloader.append,
    "ray.read_lmdb": lmdbloader.ray.read_lmdb, "ray.write_lmdb": lmdbloader.ray.write_lmdb,
}  # fmt: skip


@pytest.mark.parametrize("call", FUNCTIONS)
def test_no_row_hides_an_argument_of_ours(call: str) -> None:
    ours = names_of(FUNCTIONS[call])
    assert [name for name in TABLES[call] if name in ours] == (["order"] if call == "Loader" else [])


def test_every_argument_of_torchs_dataloader_has_a_row_or_is_ours() -> None:
    assert names_of(DataLoader) - names_of(Loader) - set(TABLES["Loader"]) == set()


# FFCV's, as of 1.0.
FFCV = "fname batch_size num_workers os_cache order distributed seed indices pipelines custom_fields drop_last \
batches_ahead recompile"


def test_every_argument_of_ffcvs_loader_has_a_row_or_is_ours() -> None:
    assert set(FFCV.split()) - names_of(Loader) - set(TABLES["Loader"]) == set()


@pytest.mark.parametrize("name", ["ImageFolder", "DatasetFolder", "CIFAR10", "MNIST", "ImageNet", "FakeData"])
def test_every_argument_of_torchvisions_datasets_has_a_row_or_is_ours(name: str) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    made_up = {"size", "image_size", "num_classes", "random_offset", "kwargs"}
    names = names_of(getattr(datasets, name)) - made_up
    assert names - names_of(LMDBDataset) - set(TABLES["LMDBDataset"]) == set()


@given(data=st.data())
def test_a_name_with_one_letter_missing_is_found(data: st.DataObject) -> None:
    names = sorted({*names_of(Loader), *TABLES["Loader"]})
    name = data.draw(st.sampled_from([name for name in names if len(name.replace("_", "")) >= 7]))
    at = data.draw(st.integers(0, len(name) - 1))
    mistyped = name[:at] + name[at + 1 :]
    assert nearest(mistyped, names) == (mistyped if mistyped in names else name)  # transform is a name, too
