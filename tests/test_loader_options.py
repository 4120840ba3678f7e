"""Options of the Loader: values out of range are refused by name; benchmark, shard and device."""

from __future__ import annotations

import pickle
import re
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
import lmdbloader.base.cores
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import CenterCrop, RandomCrop

COUNT = 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "d.lmdb"
    shades = (np.full((16, 16, 3), i, np.uint8) for i in range(COUNT))
    lmdbloader.write(({"lr": hr[:8, :8], "hr": hr, "number": i} for i, hr in enumerate(shades)), path)
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def numbers(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.number.tolist()]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": None}, {"shuffle": False}, {"order": None}, {"order": "sequential"}]
)
def test_without_shuffle_every_epoch_has_the_order_of_the_dataset(ds: LMDBDataset, options: dict[str, Any]) -> None:
    loader = Loader(ds, 4, **options)
    assert loader.order == "sequential"
    assert numbers(loader) == numbers(loader) == numbers(pickle.loads(pickle.dumps(loader))) == list(range(len(ds)))


def test_shuffle_is_the_random_order(ds: LMDBDataset) -> None:
    loader, expected = Loader(ds, 4, shuffle=True, seed=3), Loader(ds, 4, order="random", seed=3)
    epochs = [numbers(loader) for _ in range(2)]
    assert epochs == [numbers(expected) for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(len(ds)))


@pytest.mark.parametrize("order", ["random", "sequential", "quasi_random"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_shuffle_and_an_order_are_too_much(ds: LMDBDataset, order: Any, shuffle: bool) -> None:
    with pytest.raises(OptionError, match=f"shuffle={shuffle}, order='{order}': both set the order. Leave one"):
        Loader(ds, 4, shuffle=shuffle, order=order)


def test_random_transforms_in_the_order_of_the_dataset_need_a_word(ds: LMDBDataset) -> None:
    steps = [RandomCrop(8)]
    for dataset, transforms in ((ds, steps), (ds.transformed(steps, seed=0), [])):
        with pytest.warns(
            UserWarning, match=r"transforms are random.*shuffle=True\) .* Loader\(..., shuffle=False\)"
        ) as found:
            loader = Loader(dataset, 4, transforms=transforms)
        assert [warning.filename for warning in found] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for options in ({"shuffle": True}, {"shuffle": False}, {"order": "sequential"}, {"order": "random"}):
                Loader(dataset, 4, transforms=transforms, **options)
            pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("transforms", [[], [CenterCrop(8)], [CenterCrop(8), np.asarray]])
def test_other_transforms_need_no_word(ds: LMDBDataset, transforms: list[Any]) -> None:
    Loader(ds, 4, transforms=transforms)  # a warning is an error here


@pytest.mark.parametrize(
    ("name", "value"),
    [*product(("shuffle", "drop_last", "pad", "verify"), ("no", 0)), ("drop_last", None), ("verify", None)],
)
def test_flags_are_true_or_false(ds: LMDBDataset, name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"{name}={re.escape(repr(value))}: expected True or False"):
        Loader(ds, 4, **{name: value})


def test_more_threads_than_cores_are_warned_of_and_work(ds: LMDBDataset) -> None:
    with pytest.warns(UserWarning, match=r"num_threads=1000, but this process may use") as warned:
        Loader(ds, 4, order="random", num_threads=1000)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loader = Loader(ds, 4, order="random", num_threads=999)
    assert loader.num_threads == lmdbloader.base.cores.count_cores()
    assert sorted(numbers(loader)) == list(range(COUNT))


def test_benchmark_measures_and_leaves_the_epoch(ds: LMDBDataset) -> None:
    loader = Loader(ds, 8, order="random", seed=4)
    found = loader.benchmark(seconds=0.05)
    assert found.samples_per_s > 0
    assert 0 < found.p50_seconds <= found.p99_seconds
    assert found.num_batches >= 1
    assert numbers(loader) == numbers(Loader(ds, 8, order="random", seed=4))
    with pytest.raises(OptionError, match="no batch"):
        Loader(ds[:3], 8, order="random", drop_last=True).benchmark(0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number from 1 to"),
        *(
            ({name: value}, rf"{name}={re.escape(repr(value))}: expected a whole number")
            for name in ("batch_size", "prefetch", "num_threads")
            for value in (True, 2.0, "4", None, np.float64(4))
        ),
        ({"batch_size": 2**63}, f"batch_size={2**63}: expected a whole number from 1 to"),
        ({"prefetch": 2**63}, f"prefetch={2**63}"),
        ({"num_threads": "all"}, "num_threads='all': expected a whole number of at least 1, or 'auto'"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"order": "shuffled"}, "order='shuffled'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"seed": 1.5}, r"seed=1\.5: expected a whole number"),
        ({"seed": "1"}, "seed='1'"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"io": "direct"}, "io='direct'"),
        ({"memory_format": torch.preserve_format}, "memory_format"),
        ({"transforms": [3]}, "3 is neither"),
        ({"transforms": [RandomCrop]}, r"RandomCrop is a class; expected an instance: RandomCrop\(...\)"),
        ({"transforms": [len, RandomCrop(4)]}, "comes before RandomCrop"),
        ({"transforms": [RandomCrop(98)]}, "a crop or a Cutout is larger than the image"),
    ],
)
def test_options_out_of_range_are_refused_by_name(ds: LMDBDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Loader(ds, **{"batch_size": 4, **options})


def test_numbers_of_numpy_are_taken(ds: LMDBDataset) -> None:
    loader = Loader(ds, np.int64(4), prefetch=np.uint8(1), num_threads=np.int32(1), order="sequential")
    assert (type(loader.batch_size), type(loader.prefetch), type(loader.num_threads)) == (int, int, int)
    assert numbers(loader) == numbers(Loader(ds, 4, order="sequential"))


def test_other_datasets_and_other_getitems_are_refused(ds: LMDBDataset, path: Path) -> None:
    with pytest.raises(OptionError, match="expected an LMDBDataset"):
        Loader(torch.utils.data.TensorDataset(torch.zeros(3)), 1)  # type: ignore[arg-type]

    class Other(LMDBDataset):
        def __getitem__(self, index: Any) -> Any:
            return 0

    with pytest.raises(OptionError, match="overrides __getitem__"):
        Loader(Other(path), 1)


def test_auto_shard_asks_torch_distributed(ds: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        Loader(ds, 4, order="random", shard="auto").rank,
        Loader(ds, 4, order="random", shard="auto").world_size,
    ) == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="init_process_group"):
        iter(Loader(ds, 4, order="random", shard="auto"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    loader = Loader(ds, 4, order="random", seed=0, shard="auto")
    assert (loader.rank, loader.world_size) == (1, 2)


def test_a_device_that_is_not_there_leaves_batches_on_the_cpu(ds: LMDBDataset, caplog: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    loader = Loader(ds, 4, order="random", device="cuda")
    assert "no CUDA device" in caplog.text
    assert next(iter(loader)).hr.device.type == "cpu"


@pytest.mark.parametrize("resolution", [224, (224, 224), "224", lmdbloader.ProgressiveResize], ids=str)
def test_a_resolution_that_is_not_a_schedule_is_an_error_with_the_line(ds: LMDBDataset, resolution: Any) -> None:
    with pytest.raises(OptionError, match=r"^resolution=.*expected a schedule, as ProgressiveResize\(num_epochs=90\)"):
        Loader(ds, 4, transforms=[CenterCrop(8)], resolution=resolution)


@pytest.mark.parametrize("shard", [np.array([1, 2]), torch.tensor([1, 2]), [1, 2], (np.int8(1), torch.tensor(2))])
def test_a_shard_is_any_two_whole_numbers(shard: Any, ds: LMDBDataset) -> None:
    loader = Loader(ds, 4, shuffle=False, shard=shard)
    assert (loader.rank, loader.world_size) == (1, 2) and "shard=(1, 2)" in repr(loader)
    assert pickle.loads(pickle.dumps(loader)).rank == 1
    assert len(loader) == len(Loader(ds, 4, shuffle=False, shard=(1, 2)))


@pytest.mark.parametrize(
    "shard",
    [
        np.array([0, 1, 2]),
        np.array([0.0, 2.0]),
        torch.zeros(2, 2),
        "02",
        (0.5, 2),
        (0, 2.0),
        (0, "2"),
        "x",
        (0, 1, 2),
        3,
        (2, 2),
        (-1, 2),
        (True, 2),
    ],
)
def test_a_shard_of_another_type_or_range_is_refused(shard: Any, ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"^shard=.*: expected 'auto', None, or \(rank, world_size\)"):
        Loader(ds, 4, shard=shard)
