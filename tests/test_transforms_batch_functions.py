"""MixUp, CutMix and label smoothing: their definitions, and random numbers that depend on no thread."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.functions import call

Batch = namedtuple("Batch", "image label name")


def batch(count: int = 6, num_classes: int = 4, dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(count)
    images = torch.rand((count, 3, 10, 12), generator=generator)
    images = (images * 255).to(torch.uint8) if dtype == torch.uint8 else images.to(dtype)
    return Batch(images, torch.arange(count) % num_classes, ["x"] * count)


MULTI_LABEL = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]])


def test_smoothing_spreads_a_share_evenly() -> None:
    soft = T.LabelSmoothing(0.2, num_classes=4)(batch(3)).label
    expected = torch.full((3, 4), 0.05)
    expected[[0, 1, 2], [0, 1, 2]] = 0.85
    torch.testing.assert_close(soft, expected)
    given_, labels = torch.randn(3, 4), torch.arange(3)
    ours = torch.nn.functional.cross_entropy(given_, soft)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(given_, labels, label_smoothing=0.2))


@given(st.integers(1, 9), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40))
def test_mixup_blends_with_the_sample_before(count: int, seed: int, epoch: int, sample: int) -> None:
    plain = batch(count)
    mixed = call(T.MixUp(0.4, num_classes=4), plain, seed=seed, epoch=epoch, position=sample)
    torch.testing.assert_close(mixed.label.sum(1), torch.ones(count))
    if count > 1:
        share = mixed.label[1, 1]  # sample 0 has another label
        torch.testing.assert_close(mixed.image, plain.image * share + plain.image.roll(1, 0) * (1 - share))
    again = call(T.MixUp(0.4, num_classes=4), plain, seed=seed, epoch=epoch, position=sample)
    assert torch.equal(mixed.image, again.image)
    assert mixed.name is plain.name


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_mixup_rounds_whole_numbers_to_the_nearest(dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    images = torch.tensor([0, top, 1, top - 1, top // 2, 7], dtype=torch.int32).to(dtype)[:, None, None, None]
    plain = batch()._replace(image=images.expand(6, 3, 4, 5).contiguous())
    for epoch in range(30):
        mixed = call(
            T.MixUp(0.8, num_classes=6), plain._replace(label=torch.arange(6)), seed=0, epoch=epoch, position=0
        )
        share = float(mixed.label[0, 0])
        exact = images.to(torch.float64) * share + images.to(torch.float64).roll(1, 0) * (1 - share)
        assert mixed.image.dtype == dtype
        off = (mixed.image.to(torch.float64) - exact).abs().max()
        assert off <= 0.5 + 1e-6 * top


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_cutmix_pastes_a_rectangle_and_weighs_the_labels_by_its_area(dtype: torch.dtype) -> None:
    for epoch in range(60):
        plain = batch(dtype=dtype)
        mixed = call(T.CutMix(1.0, num_classes=4), plain, seed=0, epoch=epoch, position=0)
        pasted = (mixed.image != plain.image).any(1).any(0)
        same = (mixed.image == plain.image.roll(1, 0)).all(1).all(0)
        rows, columns = pasted.any(1).nonzero().ravel(), pasted.any(0).nonzero().ravel()
        if len(rows):
            assert same[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        share = 1 - float(pasted.sum()) / 120
        assert float(mixed.label[0, 0]) == pytest.approx(share)
        torch.testing.assert_close(mixed.label.sum(1), torch.ones(6))
    assert plain.image is not mixed.image


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.MixUp(0, num_classes=3), "alpha of more than 0"),
        (lambda: T.CutMix(float("nan"), num_classes=3), "alpha of more than 0, and finite"),
        (lambda: T.MixUp("0.2", num_classes=3), "alpha='0.2': expected a number"),
        (lambda: T.CutMix(1, num_classes=0), "num_classes=0: expected a whole number of at least 1"),
        (lambda: T.MixUp(1, num_classes=True), "num_classes=True: expected a whole number"),
        (lambda: T.MixUp(1, num_classes=3, label=1), "found 1; expected the name of a field"),
        (lambda: T.LabelSmoothing(0.1, num_classes=None), "num_classes=None: expected a whole number"),
        (lambda: T.LabelSmoothing(float("nan"), num_classes=3), "smoothing of at least 0 and less than 1"),
        (lambda: T.LabelSmoothing(1, num_classes=3), "smoothing of at least 0 and less than 1"),
        (
            lambda: T.LabelSmoothing(0.1, 4)(batch()._replace(label=MULTI_LABEL)),
            r"add up to 0 to 2; expected .*\* 0.9 \+ 0.05",
        ),
        (lambda: T.LabelSmoothing(0.1, 4)(batch()._replace(label=MULTI_LABEL * float("nan"))), "add up to nan"),
        (lambda: T.MixUp(num_classes=4, image="label")(batch()), r"torch.int64 \(6,\); expected images \(B, C, H, W\)"),
        (lambda: T.MixUp(1, num_classes=4)(batch()._replace(image=[1])), "'image' is a list; expected one of"),
        (lambda: T.MixUp(num_classes=4, image="hr")(batch()), "'hr' is not a field of the batch"),
        (lambda: T.CutMix(num_classes=4, label="y")(batch()), "'y' is not a field of the batch"),
        (lambda: T.CutMix()(batch()), r"CutMix\(..., num_classes=len\(dataset.classes\)\)"),
        (lambda: T.MixUp(1, num_classes=3)(batch()._replace(label=torch.rand(6, 4))), r"probabilities \(B, 3\)"),
        (lambda: T.MixUp(1, num_classes=3)(batch()), "labels from 0 to 3; expected 0 to 2"),
        (lambda: T.MixUp(1, num_classes=4)(batch()._replace(label=torch.rand(6))), "expected whole numbers"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


class Words(T.BatchFunction):
    """Keeps the random words of each batch, by its sample numbers, and as many as it was made for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: list[tuple[tuple[int, ...], Any]] = []

    def apply(self, batch: Any, random: np.random.Generator) -> Any:
        self.found.append((tuple(batch.number.tolist()), random.integers(0, 2**64, self.count, np.uint64)))
        return batch


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    path = tmp_path_factory.mktemp("numbers") / "d"
    lmdbloader.write(({"number": i} for i in range(1000)), path)
    return lmdbloader.LMDBDataset(path)


def words_of(dataset: Any, batch_size: int, count: int, functions: int = 1, epoch: int = 0, **options: Any) -> Any:
    """Return for each function what it found in an epoch."""
    found = [Words(count) for _ in range(functions)]
    loader = lmdbloader.Loader(dataset, batch_size, transforms=found, **options)
    loader.set_epoch(epoch)
    for _ in loader:
        pass
    return [words.found for words in found]


@pytest.mark.parametrize(
    "options",
    [
        {"order": "sequential", "repeat": 5},
        {"order": [7] * 300},
        {"weights": [1.0] + [0.0] * 999},
        {"order": "random", "pad": True, "shard": (0, 7)},
        {"order": "sequential", "drop_last": True},
    ],
)
def test_batches_of_equal_samples_have_different_words(numbers: Any, options: Any) -> None:
    found = words_of(numbers, 3, 4, seed=1, **options)[0]
    if world_size := options.get("shard", (0, 0))[1]:
        for rank in range(1, world_size):
            found += words_of(numbers, 3, 4, seed=1, **{**options, "shard": (rank, world_size)})[0]
    words = np.concatenate([words for _, words in found])
    assert len(found) > 90 and len(np.unique(words)) == len(words)


def test_words_are_the_same_with_other_threads_and_after_a_resume(numbers: Any) -> None:
    whole = dict(words_of(numbers, 32, 5, shuffle=True, seed=4, num_threads=1)[0])
    again = dict(words_of(numbers, 32, 5, shuffle=True, seed=4, num_threads=2)[0])
    first, rest = Words(5), Words(5)
    loader = lmdbloader.Loader(numbers, 32, shuffle=True, seed=4, transforms=[first])
    batches = iter(loader)
    for _ in range(11):
        next(batches)
    other = lmdbloader.Loader(numbers, 32, shuffle=True, seed=4, transforms=[rest])
    other.load_state_dict(loader.state_dict())
    assert sum(1 for _ in other) == 21
    for batch, words in again.items():
        assert (whole[batch] == words).all()
    assert len(dict(rest.found)) == 21 and all((whole[batch] == words).all() for batch, words in rest.found)


def test_a_tuple_of_all_fields_gets_their_names_again() -> None:
    def plain(function: Any) -> Any:
        return call(function, batch(), seed=0, epoch=0, position=0)

    assert plain(tuple)._fields == Batch._fields
    assert type(plain(lambda b: (b.image, b.label))) is tuple
    assert type(plain(list)) is list
    with pytest.raises(OptionError, match=r"MixUp\(.* comes after a function that returned a list"):
        call(T.MixUp(1, num_classes=4), list(batch()), seed=0, epoch=0, position=0)


def test_a_transform_of_samples_that_returns_nothing_is_an_error(tmp_path: Path) -> None:
    lmdbloader.write(({"number": i} for i in range(9)), tmp_path / "d")

    class Mine(lmdbloader.LMDBDataset):
        def transform(self, sample: Any) -> Any:
            return None if sample.number == 5 else sample

    for dataset in (Mine(tmp_path / "d"), lmdbloader.LMDBDataset(tmp_path / "d", transform=returns_nothing)):
        for loader in (lmdbloader.Loader(dataset, 3), lmdbloader.dataloader(dataset, 3, num_workers=1)):
            with pytest.raises(OptionError, match="a sample is None: the dataset's transform returned nothing"):
                list(loader)


def returns_nothing(sample: Any) -> None:
    pass
