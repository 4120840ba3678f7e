"""Transformed views: the same compiled transforms under torch's own DataLoader, in any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.batch.collate import collate
from lmdbloader.transforms import CenterCrop, RandomCrop, RandomDihedral, ToDtype

COUNT = 40
RANDOM = (RandomCrop(8), RandomDihedral(), ToDtype(torch.float32, scale=True))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transformed") / "d.lmdb"
    rng = np.random.default_rng(0)
    shapes = ({"lr": (8, 8, 3), "hr": (16, 16, 3)} for _ in range(COUNT))
    lmdbloader.write(
        ({name: rng.integers(0, 256, s).astype(np.uint8) for name, s in shape.items()} for shape in shapes), path
    )
    return path


@pytest.fixture
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path)


def images(loader: Any) -> tuple[torch.Tensor, torch.Tensor]:
    lr, hr = zip(*loader, strict=True)
    return torch.cat(lr), torch.cat(hr)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_dataloader_gives_the_batches_of_the_loader(ds: LMDBDataset, num_workers: int) -> None:
    view = ds.transformed(RANDOM, seed=9)
    loader = lmdbloader.dataloader(view, batch_size=8, num_workers=num_workers)
    native = Loader(ds, 8, order="sequential", transforms=RANDOM, seed=9)
    epochs = []
    for epoch in range(3):
        view.set_epoch(epoch)  # seen by the worker processes that live on
        found, expected = images(loader), images(native)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        epochs.append(found[1])
    assert not torch.equal(epochs[0], epochs[1])


def _is_shared(batch: Any) -> tuple[bool, bool, torch.Tensor]:
    return batch.lr.is_shared(), batch.hr.is_shared(), batch.hr


class ReportSharing:
    """Collates, and returns whether the batch was in shared memory before it was sent."""

    def __call__(self, samples: Any) -> Any:
        return _is_shared(collate(samples))


@pytest.mark.parametrize(
    ("transforms", "context"), [((), "fork"), (RANDOM, "spawn"), ((ToDtype(torch.bfloat16, scale=True),), "fork")]
)
def test_a_workers_batch_is_written_in_shared_memory(ds: LMDBDataset, transforms: Any, context: str) -> None:
    view = ds.transformed(transforms, seed=0)
    loader = DataLoader(view, 10, num_workers=1, collate_fn=ReportSharing(), multiprocessing_context=context)
    parts = []
    for lr_shared, hr_shared, hr in loader:
        assert lr_shared
        assert hr_shared
        parts.append(hr)
    assert torch.equal(torch.cat(parts), torch.stack([sample.hr for sample in view]))


def test_views_of_views_keep_their_transforms_and_number_their_own_samples(ds: LMDBDataset) -> None:
    view = ds.transformed([CenterCrop(12)]).transformed([CenterCrop(8)])
    assert torch.equal(view[3].hr, ds[3].hr[:, 4:12, 4:12])
    assert torch.equal(view[3].lr, ds[3].lr[:, 2:6, 2:6])
    part = view[10:]
    assert torch.equal(part[0].hr, view[10].hr)
    # Random choices belong to the number in the view that is asked.
    chosen = ds.select([5] * 8).transformed([RandomCrop(2)])
    first, *others = (sample.hr for sample in chosen._many(list(range(8))))
    assert not all(torch.equal(first, other) for other in others)
