"""Options of the Loader: values out of range are refused by name; benchmark, shard and device."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
import lmdbloader.base.cores
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop

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


def test_no_more_threads_than_cores_are_started(ds: LMDBDataset) -> None:
    loader = Loader(ds, 4, order="random", num_threads=999)
    assert loader.num_threads == lmdbloader.base.cores.count_cores()
    assert sorted(numbers(loader)) == list(range(COUNT))


@pytest.mark.parametrize(
    "options",
    [
        *({"batch_size": value} for value in (0, True, 2.0, "4", None, 2**63)),
        *({"prefetch": -1}, {"num_threads": 0}, {"num_threads": "all"}, {"order": "shuffled"}, {"seed": -1}),
        *({"seed": 2**64}, {"seed": 1.5}, {"io": "direct"}, {"memory_format": torch.preserve_format}),
        *({name: "no"} for name in ("shuffle", "drop_last", "pad", "verify")),
        *({"shard": shard} for shard in ((2, 2), (-1, 2), (0.5, 2), "x", 3, (0, 1, 2), (True, 2))),
        *({"resolution": 224}, {"resolution": lmdbloader.ProgressiveResize}, {"pin_memory": 1}),
        *({"transforms": [3]}, {"transforms": [RandomCrop]}, {"transforms": [len, RandomCrop(4)]}),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused_by_name(ds: LMDBDataset, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Loader(ds, **{"batch_size": 4, **options})


def test_contradictions_are_refused(ds: LMDBDataset) -> None:
    for options in ({"shuffle": True, "order": "random"}, {"drop_last": True, "pad": True}):
        with pytest.raises(OptionError, match=next(iter(options))):
            Loader(ds, 4, **options)  # type: ignore[arg-type]


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
