"""The random choices of transformed views under every DataLoader: new ones in every epoch, or those of the epoch."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, SequentialSampler, Subset

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.collate import collate
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip

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


class Enlarged:
    """Gives every index several times in an epoch, as the EnlargedSampler of BasicSR does."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __iter__(self) -> Iterator[int]:
        return iter((torch.randperm(COUNT * self.times) % COUNT).tolist())

    def __len__(self) -> int:
        return COUNT * self.times


WAYS: dict[str, Callable[[LMDBDataset], Dataset[Any]]] = {
    "view": lambda ds: ds.transformed(RANDOM),
    "subset": lambda ds: Subset(ds.transformed(RANDOM), range(COUNT)),
    "concatenation": lambda ds: ConcatDataset([ds[:200].transformed(RANDOM), ds[200:].transformed(RANDOM)]),
    "own dataset": lambda ds: Wrapping(ds.transformed(RANDOM)),
}
LOADERS: dict[str, dict[str, Any]] = {
    "0 workers": {"num_workers": 0},
    "2 workers": {"num_workers": 2},
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


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_our_dataloader_gives_every_epoch_other_crops(
    ds: LMDBDataset, options: dict[str, Any], seed: int | None, of_the_loader: int
) -> None:
    loader = lmdbloader.dataloader(ds.transformed(RANDOM, seed=seed), 66, shuffle=True, **options)
    assert num_distinct(loader) >= 0.99 * of_the_loader


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [DataLoader, lmdbloader.dataloader], ids=["torch's", "ours"])
def test_an_index_that_comes_again_in_an_epoch_has_new_choices(
    ds: LMDBDataset, make: Any, num_workers: int, of_the_loader: int
) -> None:
    view = ds.transformed(RANDOM)
    loader = make(view, 66, sampler=Enlarged(EPOCHS), num_workers=num_workers, collate_fn=collate)
    assert num_distinct(loader, 1) >= 0.99 * of_the_loader
    twice = view._many([7] * 8)
    assert len({sample.hr.numpy().tobytes() for sample in twice}) > 1


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


def test_a_view_of_fixed_transforms_draws_nothing(ds: LMDBDataset) -> None:
    before = torch.get_rng_state()
    images(DataLoader(ds.transformed([CenterCrop(8)]), 66, collate_fn=collate, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


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


@pytest.mark.parametrize("way", [*WAYS, "plain"])
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_our_dataloader_advances_the_epoch_of_views_with_a_seed(
    ds: LMDBDataset, way: str, options: dict[str, Any]
) -> None:
    view = ds.transformed(RANDOM, seed=3)
    parts: dict[str, Any] = {"subset": Subset(view, range(COUNT)), "own dataset": Wrapping(view), "plain": Plain(view)}
    parts["concatenation"] = ConcatDataset([ds[:0].transformed(RANDOM, seed=1), view])
    loader = lmdbloader.dataloader(parts.get(way, view), 66, **options)
    for epoch in range(2):
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))
    next(iter(loader))  # epoch 2, left early
    assert torch.equal(images(loader), expected_at(ds, 3, 3))
    view.set_epoch(7)
    for epoch in (7, 8):
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))
    # Another DataLoader over the view begins where the view is; a Subset of it has an epoch of its own.
    reached = 7 if way == "subset" else 8
    assert torch.equal(images(lmdbloader.dataloader(view, 66, num_workers=0)), expected_at(ds, 3, reached))


@pytest.mark.parametrize("make", [DataLoader, lmdbloader.dataloader], ids=["torch's", "ours"])
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_without_a_seed_choices_are_new_whatever_epoch_is_set(
    ds: LMDBDataset, make: Any, options: dict[str, Any]
) -> None:
    view = ds.transformed(RANDOM)
    loader = make(Wrapping(view), 66, collate_fn=collate, **options)
    seen = []
    for epoch in (0, 0, 1, 1):
        view.set_epoch(epoch)
        seen.append(images(loader).numpy().tobytes())
    assert len({*seen}) == 4


def test_two_dataloaders_with_a_batch_sampler_begin_alike(ds: LMDBDataset) -> None:
    view = ds.transformed(RANDOM, seed=3)
    sampler = BatchSampler(SequentialSampler(view), 66, drop_last=False)
    for num_workers in (0, 1):
        found = images(lmdbloader.dataloader(view, batch_sampler=sampler, num_workers=num_workers))
        assert torch.equal(found, expected_at(ds, 3, 0))


def test_a_pickled_view_keeps_whether_it_has_a_seed(ds: LMDBDataset) -> None:
    unseeded, fixed = (pickle.loads(pickle.dumps(ds.transformed(RANDOM, seed=seed))) for seed in (None, 3))
    assert len({unseeded[3].hr.numpy().tobytes() for _ in range(20)}) > 10
    assert torch.equal(fixed[3].hr, ds.transformed(RANDOM, seed=3)[3].hr)
    assert torch.equal(images(DataLoader(fixed, 66, collate_fn=collate)), expected_at(ds, 3, 0))


@pytest.mark.parametrize(
    "copied", [lambda view: pickle.loads(pickle.dumps(view)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_set_epoch_of_a_copied_view_reaches_its_running_workers_alone(ds: LMDBDataset, copied: Any) -> None:
    view = ds.transformed(RANDOM, seed=3)
    other = copied(view)
    loader = DataLoader(other, 66, collate_fn=collate, num_workers=1, persistent_workers=True)
    for epoch in (1, 2):
        other.set_epoch(epoch)
        assert torch.equal(images(loader), expected_at(ds, 3, epoch))
    assert torch.equal(view[3].hr, expected_at(ds, 3, 0)[3])


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


def test_no_warning_where_the_same_choices_are_meant(ds: LMDBDataset) -> None:
    view = ds.transformed(RANDOM, seed=3)
    view.set_epoch(0)
    advanced = lmdbloader.dataloader(ds.transformed(RANDOM, seed=3), 66, num_workers=0)
    for _ in range(7):
        images(DataLoader(view, 66, collate_fn=collate))
        images(advanced)


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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_over_one_part_of_a_random_split_leaves_the_epoch_of_the_other(
    ds: LMDBDataset, num_workers: int
) -> None:
    view = ds.transformed(RANDOM, seed=3)
    train, val = (Subset(view, numbers) for numbers in (range(66), range(66, 132)))
    loader = lmdbloader.dataloader(train, 11, num_workers=num_workers)
    scored = lmdbloader.dataloader(val, 66, num_workers=num_workers)
    for epoch in (0, 1, 7):
        if epoch == 7:
            view.set_epoch(7)
        found = []
        for batch in loader:
            found.append(batch.hr)
            for _ in range(2 * (len(found) == 2)):
                list(scored)
        assert torch.equal(torch.cat(found), expected_at(ds, 3, epoch)[:66])
    assert loader.dataset.indices is train.indices and train.dataset is view


DERIVED: dict[str, Callable[[LMDBDataset], LMDBDataset]] = {
    "select": lambda view: view[:200],
    "split": lambda view: view.split([0.5, 0.5], by=None)[1],
    "where": lambda view: view.where("hr.height == 23"),
    "scaled": lambda view: view.scaled(),
    "io": lambda view: view.with_io("pread"),
    "a view of a view": lambda view: view[:300].scaled()[100:],
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


def test_set_epoch_reaches_views_that_were_pickled_with_the_view(ds: LMDBDataset) -> None:
    view = ds.transformed(RANDOM, seed=3)
    both = pickle.loads(pickle.dumps((view, view[:66])))
    both[0].set_epoch(2)
    view.set_epoch(7)
    assert torch.equal(both[1][5].hr, expected_at(ds, 3, 2)[5])
    both[1].set_epoch(4)
    assert torch.equal(both[1][5].hr, expected_at(ds, 3, 4)[5])
    assert torch.equal(both[0][5].hr, expected_at(ds, 3, 2)[5])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list open files")
def test_many_views_of_a_view_need_few_open_files(ds: LMDBDataset) -> None:
    """One view for each class, as samplers of balanced batches keep them."""
    view = ds.transformed(RANDOM, seed=3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    views = [view[i : i + 1] for i in range(200)]
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 8
    for i, each in enumerate(views):
        each.set_epoch(i)
    for i in (0, 63, 64, 199):
        assert torch.equal(views[i]._many([0])[0].hr, expected_at(ds[i : i + 1], 3, i)[0])
    del views, each
    assert view[:1].set_epoch(1) is None and torch.equal(view[:1][0].hr, expected_at(ds, 3, 0)[0])
