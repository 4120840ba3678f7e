"""Samples are named tuples that pickle; batches give views of one read."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from lmdbloader.batch.sample import Batch, sample_type
from lmdbloader.errors import OptionError


def test_a_sample_is_a_named_tuple_that_pickles_with_its_uint16_pixels() -> None:
    pixels = torch.arange(12, dtype=torch.int32).to(torch.uint16).reshape(1, 3, 4)
    sample = sample_type(("lr", "label"), (), ())(pixels, 3)
    again = pickle.loads(pickle.dumps(sample))
    assert type(again) is type(sample)
    assert again._fields == ("lr", "label")
    assert again.lr.dtype == torch.uint16
    assert again.lr.tolist() == pixels.tolist()
    assert again.label == 3


def test_torch_takes_a_sample_apart_in_all_its_releases() -> None:
    sample = sample_type(("image", "label"), (), ())(torch.zeros(2), 3)
    values, structure = tree_flatten(sample)
    assert values[0] is sample.image and values[1:] == [3]
    assert type(tree_unflatten(values, structure)) is type(sample)
    assert type(sample).__bases__ == (tuple,)  # how those up to 2.4 know a named tuple


def test_samples_of_a_batch_are_views_of_it() -> None:
    column = torch.zeros(4, 3, 2, 2)
    batch = Batch({"hr": column, "label": [7, 8, 9, 10]}, 4, sample_type(("hr", "label"), (), ()))
    column[2] = 5
    assert batch[2].hr.sum() == 60
    assert batch[-1].label == 10
    assert [sample.label for sample in batch] == [7, 8, 9, 10]
    assert [sample.label for sample in batch[1:3]] == [8, 9]
    assert len(batch) == 4
    for index in (4, -5):
        with pytest.raises(IndexError, match="of a batch of 4"):
            batch[index]


def test_a_field_can_be_read_by_its_name_as_in_a_dict() -> None:
    sample = sample_type(("lr", "hr"), (), ())(1, 2)
    assert (sample["lr"], sample["hr"], sample[0], sample[-1], sample[:]) == (1, 2, 1, 2, (1, 2))
    assert pickle.loads(pickle.dumps(sample))["hr"] == 2
    with pytest.raises(OptionError, match="no field 'image'; expected one of lr, hr"):
        sample["image"]
    with pytest.raises(IndexError):
        sample[2]
