"""The random choices of transformed views under every DataLoader: new ones in every epoch, or those of the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.collate import collate
from lmdbloader.errors import OptionError
from lmdbloader.transforms import RandomCrop, RandomHorizontalFlip

COUNT, EPOCHS = 462, 5
# 512 choices a sample: of 5 epochs the Loader's crops are 99 % different ones.
RANDOM = (RandomCrop(8), RandomHorizontalFlip())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draws") / "d.lmdb"
    rng = np.random.default_rng(0)
    lmdbloader.write(({"hr": rng.integers(0, 256, (23, 23, 3)).astype(np.uint8)} for _ in range(COUNT)), path)
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


class Wrapping(Dataset[Any]):
    """A dataset as people write it, around a view."""

    def __init__(self, view: LMDBDataset) -> None:
        self.views = {"train": view}

    def __len__(self) -> int:
        return len(self.views["train"])

    def __getitem__(self, index: int) -> Any:
        return {"hr": self.views["train"][index].hr}


class Plain:
    """A dataset of no class of torch's: a length and numbered samples are all that its DataLoader asks for."""

    def __init__(self, view: LMDBDataset) -> None:
        self.view = [view]

    def __len__(self) -> int:
        return len(self.view[0])

    def __getitem__(self, index: Any) -> Any:
        return self.view[0][index]


WAYS: dict[str, Callable[[LMDBDataset], Dataset[Any]]] = {
    "view": lambda ds: ds.transformed(RANDOM),
    "subset": lambda ds: Subset(ds.transformed(RANDOM), range(COUNT)),
    "concatenation": lambda ds: ConcatDataset([ds[:200].transformed(RANDOM), ds[200:].transformed(RANDOM)]),
    "own dataset": lambda ds: Wrapping(ds.transformed(RANDOM)),
}
LOADERS: dict[str, dict[str, Any]] = {
    "0 workers": {"num_workers": 0},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True},
}


def images(loader: Any) -> torch.Tensor:
    return torch.cat([batch["hr"] if isinstance(batch, dict) else batch.hr for batch in loader])


def num_distinct(loader: Any, epochs: int = EPOCHS) -> int:
    return len({image.numpy().tobytes() for _ in range(epochs) for image in images(loader)})


@pytest.fixture(scope="module")
def of_the_loader(path: Path) -> int:
    """The distinct crops that the Loader gives in all epochs."""
    found = num_distinct(Loader(LMDBDataset(path), 66, order="random", transforms=RANDOM))
    assert found > 0.98 * COUNT * EPOCHS
    return found


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_plain_dataloader_draws_new_choices_in_every_epoch(
    ds: LMDBDataset, way: Callable[[LMDBDataset], Dataset[Any]], options: dict[str, Any], of_the_loader: int
) -> None:
    loader = DataLoader(way(ds), 66, shuffle=True, collate_fn=collate, **options)
    assert num_distinct(loader) >= 0.99 * of_the_loader


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_torchs_seed_gives_the_same_run_again(
    ds: LMDBDataset, way: Callable[[LMDBDataset], Dataset[Any]], options: dict[str, Any]
) -> None:
    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        loader = DataLoader(way(ds), 66, shuffle=True, collate_fn=collate, **options)
        return torch.cat([images(loader), images(loader)])

    first = run(5)
    assert torch.equal(run(5), first)
    assert not torch.equal(run(6), first)


def test_without_a_seed_a_sample_has_new_choices_at_every_read(ds: LMDBDataset) -> None:
    view = ds.transformed(RANDOM)
    assert len({view[3].hr.numpy().tobytes() for _ in range(20)}) > 10
    torch.manual_seed(1)
    first = [view[3].hr for _ in range(3)]
    torch.manual_seed(1)
    assert all(torch.equal(view[3].hr, image) for image in first)


def test_with_a_seed_a_sample_is_the_same_until_the_epoch_changes(ds: LMDBDataset) -> None:
    view = ds.transformed(RANDOM, seed=3)
    first = view[3].hr
    assert torch.equal(view[3].hr, first)
    assert torch.equal(view._many([3, 3])[1].hr, first)
    assert torch.equal(view.transformed([]).select([0, 1, 2, 3])[3].hr, first)  # a view of a view keeps the seed
    view.set_epoch(1)
    assert not torch.equal(view[3].hr, first)
    view.set_epoch(0)
    assert torch.equal(view[3].hr, first)


def expected_at(ds: LMDBDataset, seed: int, epoch: int) -> torch.Tensor:
    loader = Loader(ds, 66, order="sequential", transforms=RANDOM, seed=seed)
    loader.set_epoch(epoch)
    return images(loader)


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("make", [DataLoader, lmdbloader.dataloader], ids=["torch's", "ours"])
def test_once_an_epoch_is_set_choices_are_those_of_the_loader(
    ds: LMDBDataset, make: Any, options: dict[str, Any]
) -> None:
    view = ds.transformed(RANDOM, seed=3)
    loader = make(Wrapping(view), 66, collate_fn=collate, **options)
    for epoch in (4, 0, 4):
        view.set_epoch(epoch)
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))


@pytest.mark.parametrize("way", [*(way for way in WAYS if way != "subset"), "plain"])
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_our_dataloader_advances_the_epoch_of_views_with_a_seed(
    ds: LMDBDataset, way: str, options: dict[str, Any]
) -> None:
    view = ds.transformed(RANDOM, seed=3)
    parts: dict[str, Any] = {"own dataset": Wrapping(view), "plain": Plain(view)}
    parts["concatenation"] = ConcatDataset([ds[:0].transformed(RANDOM, seed=1), view])
    loader = lmdbloader.dataloader(parts.get(way, view), 66, **options)
    for epoch in range(2):
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))
    next(iter(loader))  # epoch 2, left early
    assert torch.equal(images(loader), expected_at(ds, 3, 3))
    view.set_epoch(7)
    for epoch in (7, 8):
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))
    # Another DataLoader over the view begins where the view is.
    assert torch.equal(images(lmdbloader.dataloader(view, 66, num_workers=0)), expected_at(ds, 3, 8))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_many_passes_with_the_same_choices_are_worth_one_warning(ds: LMDBDataset, num_workers: int) -> None:
    """A seed without an epoch is what people copy; a training loop would have the same crops for ever."""
    view = ds[:66].transformed(RANDOM, seed=3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(4):
            images(DataLoader(view, 66, collate_fn=collate))
    assert found == []
    if num_workers:  # torch hands a worker's error over, here the warning
        with pytest.raises(UserWarning, match=r"set_epoch\(epoch\) before each epoch"):
            images(DataLoader(view, 66, collate_fn=collate, num_workers=1))
    else:
        with pytest.warns(UserWarning, match=r"seed=3\).*set_epoch\(epoch\) before each epoch, or leave out the seed"):
            view[0]
    for _ in range(6):
        images(DataLoader(view, 66, collate_fn=collate))


@pytest.mark.parametrize("is_transformed", [False, True])
def test_an_epoch_that_only_the_dataset_knows_is_worth_a_warning_of_the_loader(
    ds: LMDBDataset, is_transformed: bool
) -> None:
    view = ds.transformed([RandomCrop(8)], seed=3) if is_transformed else ds.select(slice(None))
    loader = Loader(view, 4, order="random")
    view.set_epoch(2)
    with pytest.warns(
        UserWarning, match=r"set_epoch\(2\) has no effect on a Loader, which begins epoch 0. Write loader"
    ):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)  # once
        other = Loader(view, 4, order="random")
        other.set_epoch(2)
        list(other)


def test_parts_of_a_view_with_a_seed_that_would_share_its_epoch_are_refused(ds: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"view\.select"):
        lmdbloader.dataloader(Subset(ds.transformed(RANDOM, seed=3), range(66)), 11)


DERIVED: dict[str, Callable[[LMDBDataset], LMDBDataset]] = {
    "select": lambda view: view[:200],
    "where": lambda view: view.where("hr.height == 23"),
    "a view of a view": lambda view: view[:300].with_io("pread")[100:],
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("epoch", [None, 4])
def test_a_pass_over_one_view_leaves_the_epoch_of_the_others(
    ds: LMDBDataset, derive: Callable[[LMDBDataset], LMDBDataset], num_workers: int, epoch: int | None
) -> None:
    """Validation in the middle of an epoch of training, both on views of one seeded view."""
    view = ds.transformed(RANDOM, seed=3)
    if epoch is not None:
        view.set_epoch(epoch)
    train, val = view[:66], derive(view)
    loader = lmdbloader.dataloader(train, 11, num_workers=num_workers, persistent_workers=False)
    for passed in range(2):
        found = []
        for batch in loader:
            found.append(batch.hr)
            if len(found) == 2:
                list(lmdbloader.dataloader(val, 66, num_workers=0))
                list(lmdbloader.dataloader(view, 66, num_workers=0))
                val.set_epoch(9)
        assert torch.equal(torch.cat(found), expected_at(ds[:66], 3, (epoch or 0) + passed))


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_set_epoch_reaches_the_views_of_a_view(
    ds: LMDBDataset, derive: Callable[[LMDBDataset], LMDBDataset], options: dict[str, Any]
) -> None:
    view = ds.transformed(RANDOM, seed=3)
    derived = derive(view)
    images(lmdbloader.dataloader(derived, 66, num_workers=0))  # has an epoch of its own
    loader = DataLoader(derived, 66, collate_fn=collate, **options)
    for epoch in (5, 0):
        view.set_epoch(epoch)
        expected = Loader(derived, 66, order="sequential")
        expected.set_epoch(epoch)
        assert torch.equal(images(loader), images(expected))
