"""Sizes from epoch to epoch: the published schedule, transforms for another size, and a Loader that follows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import ProgressiveResize
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.resolution import full_size, with_resolution


def test_the_schedule_of_the_published_run() -> None:
    # 88 epochs at 224: 0.834 of it up to epoch 64, then growing, full from epoch 76.032 on, in multiples of 32.
    schedule = ProgressiveResize(
        88, initial_scale=0.834, delay_fraction=0.727, finetune_fraction=0.136, size_increment=32
    )
    sizes = [schedule.size_at(epoch, (224, 224))[1] for epoch in range(88)]
    assert sizes[0] == sizes[63] == 192  # 186.8, to the next multiple
    assert sizes[77:] == [224] * 11
    assert sizes == sorted(sizes)
    assert set(sizes) == {192, 224}
    assert schedule.scale_at(70) == pytest.approx(0.834 + 0.166 * (70 / 88 - 0.727) / 0.137)


def published_width(
    epoch: int, num_epochs: int, initial: float, delay: float, finetune: float, increment: int, width: int
) -> int:
    """Return the width as defined by Composer, which only makes images smaller."""
    elapsed, grown = epoch / num_epochs, 0.0
    if elapsed >= delay:
        growing = 1 - finetune - delay
        grown = min((elapsed - delay) / growing, 1.0) if growing > 0 else 1.0
    return round(width * (initial + (1 - initial) * grown) / increment) * increment


@given(
    st.integers(1, 50), st.floats(0.05, 1), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(1, 64),
    st.integers(1, 500), st.integers(1, 500),
)  # fmt: skip
def test_sizes_grow_and_end_full(
    num_epochs: int, initial: float, delay: float, finetune: float, increment: int, height: int, width: int
) -> None:
    schedule = ProgressiveResize(
        num_epochs, initial_scale=initial, delay_fraction=delay, finetune_fraction=finetune, size_increment=increment
    )
    scales = [schedule.scale_at(epoch) for epoch in range(num_epochs + 2)]
    assert scales == sorted(scales) and initial <= scales[0] and scales[-1] == pytest.approx(1)
    for epoch in range(num_epochs + 2):
        found = schedule.size_at(epoch, (height, width))
        expected = published_width(epoch, num_epochs, initial, delay, finetune, increment, width)
        is_over = epoch >= num_epochs * (1 - finetune)
        assert 1 <= found[1] <= width and 1 <= found[0] <= height
        if is_over or expected >= width:
            assert found == (height, width)
        elif expected:  # a width of 0 is not of this world
            assert found == (max(round(height * expected / width), 1), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"num_epochs": 0}, {"initial_scale": 0}, {"initial_scale": 1.1}, {"delay_fraction": -0.1},
        {"delay_fraction": 0.6, "finetune_fraction": 0.5}, {"size_increment": 0},
    ],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused(options: Any) -> None:
    with pytest.raises(OptionError, match="expected"):
        ProgressiveResize(**{"num_epochs": 10, **options})


def test_transforms_change_in_proportion() -> None:
    given_ = [T.Resize(256), T.CenterCrop(224), T.RandomHorizontalFlip(), len]
    assert full_size(given_) == (224, 224)
    assert with_resolution(given_, (112, 112)) == [
        T.Resize(128), T.CenterCrop((112, 112)), T.RandomHorizontalFlip(), len,
    ]  # fmt: skip
    assert with_resolution([T.RandomResizedCrop((60, 80))], (30, 40)) == [T.RandomResizedCrop((30, 40))]
    # Translations and cut-outs are scaled too.
    small = [T.Resize(32), T.RandomCrop(32, padding=4), T.RandomTranslate(2, 9), T.Cutout(8), T.Cutout((4, 6))]
    assert with_resolution(small, (16, 16)) == [
        T.Resize(16), T.RandomCrop((16, 16), padding=2), T.RandomTranslate(1, 9), T.Cutout(4), T.Cutout((2, 3)),
    ]  # fmt: skip
    # The same transform twice is not mistaken for the last.
    crop = T.RandomCrop(20)
    assert with_resolution([crop, T.RandomHorizontalFlip(), crop], (10, 10))[0] == T.RandomCrop(10)
    # A side never becomes too small for the crop that follows.
    resize, crop = with_resolution([T.Resize(100), T.CenterCrop((100, 50))], (20, 40))
    assert resize.size == 80 and crop.size == (20, 40)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("resolution") / "d"
    samples = ({"image": rng.integers(0, 256, (40 + i, 60, 3)).astype(np.uint8), "label": i} for i in range(20))
    lmdbloader.write(samples, path, codec="raw")
    return lmdbloader.LMDBDataset(path)


def shapes(batches: Any) -> set[tuple[int, ...]]:
    return {tuple(batch.image.shape[2:]) for batch in batches}


def test_a_loader_changes_its_resolution_between_epochs(dataset: lmdbloader.LMDBDataset) -> None:
    loader = lmdbloader.Loader(
        dataset, 8, shuffle=True, transforms=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()], seed=0
    )
    labels = [batch.label for batch in loader]
    assert shapes(loader) == {(32, 32)}
    under_way = iter(loader)
    next(under_way)
    loader.set_resolution(16)
    loader.set_epoch(0)
    again = list(loader)
    assert shapes(again) == {(16, 16)} and shapes(under_way) == {(32, 32)}
    assert all(torch.equal(a, b.label) for a, b in zip(labels, again, strict=True)), "the order stays"
    loader.set_resolution((8, 24))
    assert shapes(pickle.loads(pickle.dumps(loader))) == shapes(loader) == {(8, 24)}
    loader.set_resolution(None)
    assert shapes(loader) == {(32, 32)}
    other = lmdbloader.Loader(
        dataset, 8, shuffle=True, transforms=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()], seed=0
    )
    for a, b in zip(other, again, strict=True):
        torch.testing.assert_close(a.image, b.image, rtol=0, atol=0)


def test_a_loader_follows_a_schedule(dataset: lmdbloader.LMDBDataset) -> None:
    schedule = ProgressiveResize(6, initial_scale=0.5, delay_fraction=0.3, finetune_fraction=0.3, size_increment=2)
    loader = lmdbloader.Loader(
        dataset, 8, shuffle=True, transforms=[T.Resize(40), T.CenterCrop(32)], resolution=schedule
    )
    expected = [{schedule.size_at(epoch, (32, 32))} for epoch in range(8)]
    assert expected[0] == {(16, 16)} and expected[7] == {(32, 32)}
    assert [shapes(loader) for _ in range(8)] == expected
    loader.set_epoch(2)
    assert shapes(pickle.loads(pickle.dumps(loader))) == shapes(loader) == expected[2]
    loader.set_resolution(20)
    assert shapes(loader) == shapes(loader) == {(20, 20)}


def test_a_resolution_that_makes_no_sense_is_refused_and_changes_nothing(dataset: lmdbloader.LMDBDataset) -> None:
    loader = lmdbloader.Loader(dataset, 8, shuffle=True, transforms=[T.CenterCrop(32)])
    for size, message in ((0, "set_resolution"), ((3,), "set_resolution"), (50, "larger than the image")):
        with pytest.raises(OptionError, match=message):
            loader.set_resolution(size)  # type: ignore[arg-type]
    assert shapes(loader) == {(32, 32)}
    with pytest.raises(OptionError, match="resolution: expected transforms"):
        lmdbloader.Loader(dataset, 8, transforms=[T.Resize(9), T.Resize(32)], resolution=ProgressiveResize(3))
