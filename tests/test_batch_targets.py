"""What is set on a dataset acts or is refused: labels, classes, and attributes of torchvision's datasets."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import CenterCrop, WithIndices

LABELS = [k % 3 for k in range(12)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("targets") / "d.lmdb"
    samples = ({"image": np.full((4, 4, 3), i, np.uint8), "label": label} for i, label in enumerate(LABELS))
    lmdbloader.write(samples, made, classes={"label": ["a", "b", "c"]})
    return made


def put(targets: Any) -> None:
    targets[0] = 9


def delete(targets: Any) -> None:
    del targets[2:]


def add(targets: Any) -> None:
    targets += [1]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "item": put,
    "del": delete,
    "+=": add,
    "append": lambda targets: targets.append(1),
    "extend": lambda targets: targets.extend([1]),
    "insert": lambda targets: targets.insert(0, 1),
    "pop": lambda targets: targets.pop(),
    "remove": lambda targets: targets.remove(1),
    "clear": lambda targets: targets.clear(),
    "sort": lambda targets: targets.sort(),
    "reverse": lambda targets: targets.reverse(),
    "shuffle": lambda targets: random.shuffle(targets),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_targets_cannot_be_changed_in_place(path: Path, change: Callable[[Any], Any]) -> None:
    ds = LMDBDataset(path)
    with pytest.raises(OptionError, match=r"targets cannot be changed in place.*WithIndices"):
        change(ds.targets)
    assert ds.targets == LABELS


def test_targets_are_used_like_a_list(path: Path) -> None:
    targets = LMDBDataset(path).targets
    assert isinstance(targets, list) and targets == LABELS and targets == LABELS
    assert np.array(targets).tolist() == torch.tensor(targets).tolist() == sorted(targets, key=lambda k: 0) == LABELS
    assert Counter(targets) == Counter(LABELS) and targets.index(2) == 2 and targets.count(1) == 4
    assert targets + LABELS == LABELS * 2 and targets[2:5] == LABELS[2:5] and [*reversed(targets)] == LABELS[::-1]
    for plain in (list(targets), targets.copy(), copy.deepcopy(targets), pickle.loads(pickle.dumps(targets))):
        plain[0] = 5
        assert plain == [5, *LABELS[1:]]


def test_the_line_for_other_labels_works(path: Path) -> None:
    labels = torch.tensor([label + 10 for label in LABELS])
    step = WithIndices(lambda batch, i: batch._replace(label=labels[i]))
    assert [n for batch in Loader(path, 5, transforms=[step]) for n in batch.label.tolist()] == labels.tolist()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *((name, "WithIndices") for name in ("targets", "samples", "imgs", "labels", "data")),
        ("classes", "classes="),
        ("class_to_idx", "classes="),
        ("fields", r"fields=\[\.\.\.\]"),
        *((name, rf"LMDBDataset\(path, {name}=") for name in ("as_", "io", "cache_dir", "cache_fraction")),
        ("transforms", r"ds\.transform = function"),
        ("target_transform", r"ds\.transform = function"),
        ("loader", "no effect"),
        ("indices", r"ds\.select"),
    ],
)
def test_what_would_have_no_effect_is_refused(path: Path, name: str, line: str) -> None:
    class Named(LMDBDataset):
        """Makes the samples that its base makes."""

    for dataset in (LMDBDataset(path), Named(path), LMDBDataset(path)[2:]):
        with pytest.raises(OptionError, match=rf"{name} = .*{line}"):
            setattr(dataset, name, [1] * len(dataset))
        assert dataset[0].label in LABELS and list(dataset.fields) == ["image", "label"]


class Noisy(LMDBDataset):
    """Returns labels of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.targets = [label + 100 for label in self.targets]
        self.classes = ("x", "y", "z")

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)._replace(label=self.targets[index])


@pytest.mark.parametrize(
    "made",
    [
        copy.copy,
        copy.deepcopy,
        lambda ds: pickle.loads(pickle.dumps(ds)),
        lambda ds: ds.transformed([CenterCrop(2)]),
        lambda ds: ds.scaled(),
        lambda ds: ds.with_io("pread"),
        lambda ds: ds.select(range(12)),
    ],
)
def test_what_a_subclass_sets_is_kept(path: Path, made: Callable[[LMDBDataset], Any]) -> None:
    ds = made(Noisy(path))
    expected = [label + 100 for label in LABELS]
    for num_workers, context in ((0, None), (1, "fork"), (1, "spawn")):
        loader = DataLoader(ds, 12, num_workers=num_workers, multiprocessing_context=context)
        assert next(iter(loader)).label.tolist() == expected
    kept = getattr(ds, "dataset", ds)
    assert kept.targets == expected and kept.classes == ("x", "y", "z") and kept.class_to_idx["z"] == 2
    kept.targets[0] = 7
    assert next(iter(DataLoader(ds, 12))).label.tolist() == [7, *expected[1:]]


def test_a_view_has_the_targets_of_its_samples(path: Path) -> None:
    ds = LMDBDataset(path)
    assert ds.targets == LABELS  # kept there
    assert ds[4:8].targets == LABELS[4:8] and pickle.loads(pickle.dumps(ds)).targets == LABELS
    assert ds.where("label == 'b'").targets == [1] * 4
