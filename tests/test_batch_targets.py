"""What is set on a dataset acts or is refused: labels, classes, and attributes of torchvision's datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.errors import OptionError

LABELS = [k % 3 for k in range(12)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("targets") / "d.lmdb"
    samples = ({"image": np.full((4, 4, 3), i, np.uint8), "label": label} for i, label in enumerate(LABELS))
    lmdbloader.write(samples, made, classes={"label": ["a", "b", "c"]})
    return made


OPTIONS = ("as_", "cache_dir", "cache_fraction", "io", "fields", "reader")
OF_OTHERS = ("data", "imgs", "indices", "labels", "loader", "samples", "target_transform", "transforms")


@pytest.mark.parametrize("name", [*OPTIONS, *OF_OTHERS])
def test_what_would_have_no_effect_is_refused(path: Path, name: str) -> None:
    class Named(LMDBDataset):
        """Makes the samples that its base makes."""

    for dataset in (LMDBDataset(path), Named(path), LMDBDataset(path)[2:]):
        with pytest.raises(OptionError, match=rf"dataset\.{name} = "):
            setattr(dataset, name, [1] * len(dataset))
        assert dataset[0].label in LABELS and list(dataset.fields) == ["image", "label"]


def test_a_subclass_has_attributes_of_its_own(path: Path) -> None:
    class Mine(LMDBDataset):
        def transform(self, sample: Any) -> Any:
            return self.target_transform(sample)

    mine: Any = Mine(path)
    mine.target_transform = lambda sample: sample.label + 100
    assert mine[2] == LABELS[2] + 100
