"""`return_params`: with the numbers that a batch carries, its images can be made again from the stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_reference import blur, jitter

import lmdbloader
from lmdbloader import Clips, LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.superres.degradations import bsrgan
from lmdbloader.transforms.base import leaves

COUNT = 16


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    """Return a dataset of pairs and masks of noise, in which a wrong pixel shows."""
    rng, out = np.random.default_rng(0), tmp_path_factory.mktemp("params") / "d"
    samples = [
        {
            "hr": torch.from_numpy(rng.integers(0, 256, (3, 48, 60), np.uint8)),
            "lr": torch.from_numpy(rng.integers(0, 256, (3, 24, 30), np.uint8)),
            "mask": torch.from_numpy(rng.integers(0, 256, (48, 60), np.uint8)),
            "clip": "a", "frame": k,
        }
        for k in range(COUNT)
    ]  # fmt: skip
    declared = {"hr": fields.Image(), "lr": fields.Image(), "mask": fields.Mask(ignore_index=200)}
    lmdbloader.write(samples, out, fields=declared)
    return LMDBDataset(out)


def first_batch(dataset: Any, transforms: Any, seed: int = 0, **more: Any) -> Any:
    loader = Loader(dataset, COUNT, shuffle=False, seed=seed, transforms=transforms, return_params=True, **more)
    return next(iter(loader))


def taken(stored: np.ndarray, matrix: torch.Tensor, size: Any, fill: int) -> np.ndarray:
    """Return the pixels of (C, H, W) at the places that a matrix carries to the middles of the result's pixels."""
    y, x = np.indices(size) + 0.5
    places = np.linalg.inv(matrix.double().numpy()) @ np.stack([x, y, np.ones(size)]).reshape(3, -1)
    columns, rows = np.floor(places[:2] / places[2]).astype(int)
    found = np.full((len(stored), columns.size), fill, stored.dtype)
    inside = (rows >= 0) & (rows < stored.shape[1]) & (columns >= 0) & (columns < stored.shape[2])
    found[:, inside] = stored[:, rows[inside], columns[inside]]
    return found.reshape(-1, *size)


MOVES = [
    T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomCrop(20), T.RandomDihedral(), T.CenterCrop((16, 12)),
    T.RandomTranslate(4, fill=200), T.RandomCrop(24, padding=(2, 4, 6, 8), fill=200), T.RandomSolarize(0, 0.0),
    T.RandomApply([T.RandomTranslate(2, fill=200), T.RandomVerticalFlip(1.0)]), T.RandomHorizontalFlip(fields=("lr",)),
]  # fmt: skip


def redone(dataset: LMDBDataset, batch: Any) -> Iterator[tuple[dict[str, Any], Any, Any]]:
    """Yield the places of each image, its pixels (C, H, W) taken from the stored image by the matrix, and its own."""
    for name in ("hr", "lr", "mask"):
        images = getattr(batch, name)
        for k in range(COUNT):
            places = {part: value[k] for part, value in batch.params[name].items()}
            stored = dataset[k][name].numpy().reshape(-1, *dataset[k][name].shape[-2:])
            expected = taken(stored, places["matrix"], images.shape[-2:], 200)
            yield places, expected, images[k].numpy().reshape(-1, *images.shape[-2:])


@settings(max_examples=60)
@given(st.lists(st.sampled_from(MOVES), max_size=5), st.integers(0, 2))
def test_the_matrix_finds_every_pixel(dataset: LMDBDataset, moves: Any, seed: int) -> None:
    sizes = [t.size if isinstance(t.size, tuple) else (t.size,) * 2 for t in moves if hasattr(t, "size")]
    for first, then in pairwise(sizes):
        moves = moves if first[0] >= then[0] and first[1] >= then[1] else []
    if T.RandomDihedral() in moves:
        moves = [T.CenterCrop(48), *moves] if (16, 12) not in sizes else []
    for _, expected, found in redone(dataset, first_batch(dataset, moves, seed)):
        # A part that has left the image is filled when it comes back.
        is_filled = (found == 200) & (sum(hasattr(t, "size") or hasattr(t, "fill") for t in leaves(moves)) > 1)
        np.testing.assert_array_equal(np.where(is_filled, 200, expected), found)


WARPS = [
    [T.RandomRotation(40, fill=200)],
    [T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, fill=200), T.RandomHorizontalFlip(1.0)],
    [T.RandomPerspective(0.4, 0.7, "nearest", 200), T.CenterCrop(40)],
    [
        T.CenterCrop((40, 44)),
        T.RandomVerticalFlip(),
        T.RandomRotation((60, 120), expand=True, fill=200),
        T.CenterCrop(32),
    ],
    [T.RandomChoice([T.RandomRotation(40, fill=200), T.RandomPerspective(0.4, 1.0, "nearest", 200), []])],
]


@pytest.mark.parametrize("warps", WARPS, ids=range(len(WARPS)))
def test_the_matrix_follows_warps(dataset: LMDBDataset, warps: Any) -> None:
    batch = first_batch(dataset, [T.CenterCrop(48), T.RandomDihedral(), *warps])
    for places, expected, found in redone(dataset, batch):
        # Near a quarter turn, many pixels are as near to another one; some were outside of the first crop.
        assert (np.where(found == 200, 200, expected) == found).mean() > 0.9
        assert (found == expected).mean() > 0.8
        corners = np.linalg.inv(places["matrix"].double().numpy()) @ [[0], [0], [1]]
        window = places["window"].double().numpy()
        assert (window[:2] - 1e-3 <= (corners[:2] / corners[2]).ravel()).all()
    assert all(entry["applied"].any() for name, entry in batch.params.items() if name.startswith("Random"))


def test_the_window_and_the_flips_make_the_image_again(dataset: LMDBDataset) -> None:
    crop = T.RandomResizedCrop((24, 16), scale=(0.2, 1.0))
    batch = first_batch(dataset, [crop, T.RandomHorizontalFlip(), T.RandomVerticalFlip()])
    assert list(batch._fields) == [*dataset.fields, "params"] and list(batch.params) == ["hr", "lr", "mask"]
    for k in range(COUNT):
        for name in ("hr", "lr"):
            places = {key: value[k] for key, value in batch.params[name].items()}
            left, top, right, bottom = places["window"].round().int().tolist()
            torch.testing.assert_close(places["window"].round(), places["window"], atol=1e-4, rtol=0)
            part = dataset[k][name][None, :, top:bottom, left:right].float()
            size = getattr(batch, name).shape[2:]
            part = torch.nn.functional.interpolate(part, size, mode="bilinear", antialias=True)[0]
            part = part.flip([axis for axis, flips in zip((2, 1), places["flipped"].tolist(), strict=True) if flips])
            assert (part - getattr(batch, name)[k].float()).abs().max() <= 1
    assert batch.params["hr"]["matrix"].dtype == batch.params["hr"]["window"].dtype == torch.float32
    assert 0 < batch.params["hr"]["flipped"].float().mean() < 1 and torch.equal(
        batch.params["hr"]["window"], batch.params["mask"]["window"]
    )
    torch.testing.assert_close(batch.params["hr"]["window"], batch.params["lr"]["window"] * 2)


def test_the_numbers_of_colors_make_the_image_again(dataset: LMDBDataset) -> None:
    dataset = LMDBDataset(dataset.path, fields=["hr"])
    changes = [T.ColorJitter(0.4, 0.4, (0.5, 2), 0.1), T.GaussianBlur(5)]
    seldom = T.RandomApply(changes[:1], 0.5)
    for transforms in (changes, [seldom], [T.RandomOrder([seldom])], changes[1:]):
        batch = first_batch(dataset, transforms)
        for k in range(COUNT):
            expected = dataset[k].hr.double().numpy()
            of = {name: {key: v[k] for key, v in batch.params[name].items()} for name in list(batch.params)[1:]}
            if "ColorJitter" in of:
                drawn = of["ColorJitter"]
                factors = [float(drawn[name]) for name in ("brightness", "contrast", "saturation")]
                order = drawn["order"].tolist()
                assert drawn["applied"] or (factors, drawn["hue"], order) == ([1] * 3, 0, [0, 1, 2, 3])
                number = 4 * [*permutations(range(3))].index(tuple(step for step in order if step < 3)) + order.index(3)
                expected = jitter(expected, factors, float(drawn["hue"]), number, 255)
            if "GaussianBlur" in of:
                assert of["GaussianBlur"]["applied"]
                expected = blur(expected, 5, 5, float(of["GaussianBlur"]["sigma"]))
            assert np.abs(expected - batch.hr[k].double().numpy()).max() <= 1


def test_each_transform_of_values_has_its_entry(dataset: LMDBDataset) -> None:
    dataset = LMDBDataset(dataset.path, fields=["hr"])
    stored = torch.stack([dataset[k].hr for k in range(COUNT)])
    choice = T.RandomChoice([T.RandomSolarize(0, 1.0), T.RandomSolarize(128, 1.0), T.RandomGrayscale(1.0), []])
    batch = first_batch(dataset, [choice, T.RandomErasing(value=7)])
    assert list(batch.params) == ["hr", "RandomSolarize", "RandomSolarize_2", "RandomGrayscale"]
    applied = torch.stack([batch.params[name]["applied"] for name in list(batch.params)[1:]])
    assert applied.dtype == torch.bool and (applied.sum(0) <= 1).all() and applied.any(1).all()
    boxes = batch.params["hr"]["erased"]
    assert boxes.shape == (COUNT, 1, 4) and boxes.dtype == torch.float32
    for k, (left, top, right, bottom) in enumerate(boxes[:, 0].int().tolist()):
        image = 255 - stored[k] if applied[0, k] else stored[k].clone()
        image[:, top:bottom, left:right] = 7
        if not applied[1:, k].any():
            assert torch.equal(batch.hr[k], image)
    permuted = first_batch(dataset, [T.RandomChannelPermutation()])
    order = permuted.params["RandomChannelPermutation"]["permutation"]
    assert torch.equal(
        permuted.hr, torch.stack([image[channels] for image, channels in zip(stored, order, strict=True)])
    )


def test_params_are_like_any_field(dataset: LMDBDataset, tmp_path: Path) -> None:
    transforms = [T.RandomCrop(24), T.RandomHorizontalFlip()]
    named = first_batch(dataset, transforms)
    assert torch.equal(
        first_batch(dataset, transforms, as_="dict")["params"]["hr"]["matrix"], named.params["hr"]["matrix"]
    )
    renamed = first_batch(dataset, transforms, as_={"x": "hr", "drawn": "params"})
    assert torch.equal(renamed["drawn"]["hr"]["window"], named.params["hr"]["window"])
    # Whatever the batches and threads: it depends on the sample.
    loader = Loader(dataset, 3, shuffle=False, seed=0, transforms=transforms, return_params=True, num_threads=2)
    windows = torch.cat([batch.params["hr"]["window"] for batch in loader])
    assert torch.equal(windows, named.params["hr"]["window"])
    seen = first_batch(dataset, [*transforms, lambda batch: batch._replace(hr=batch.params["hr"]["window"])])
    assert torch.equal(seen.hr, windows)
    mixed = first_batch(lmdbloader.mix([dataset, dataset]), transforms)
    assert mixed.params["hr"]["matrix"].shape == (COUNT, 3, 3)
    degraded = first_batch(LMDBDataset(dataset.path, fields=["hr"]), [*transforms, bsrgan(2)])
    alone = first_batch(LMDBDataset(dataset.path, fields=["hr"]), transforms)
    assert degraded._fields == ("lr", "hr", "params")
    assert torch.equal(degraded.params["hr"]["window"], alone.params["hr"]["window"])
    frames = first_batch(Clips(dataset, 3), transforms).params["hr"]["window"]
    assert frames.shape == (COUNT - 2, 3, 4) and (frames == frames[:, :1]).all()
    still = first_batch(dataset, []).params["lr"]
    assert torch.equal(still["matrix"], torch.eye(3).expand(COUNT, 3, 3)) and still["window"][0].tolist() == [
        0,
        0,
        30,
        24,
    ]


def test_what_cannot_have_params_is_refused(dataset: LMDBDataset, tmp_path: Path) -> None:
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8), "params": 1}], tmp_path / "d")
    with pytest.raises(OptionError, match=r"has a field 'params'. Leave it out: .*fields=\['image'\]"):
        Loader(tmp_path / "d", return_params=True)
    with pytest.raises(OptionError, match="sample by sample"):
        Loader(LMDBDataset(dataset.path, transform=lambda sample: sample), return_params=True)
    late = LMDBDataset(dataset.path)
    loader = Loader(late, 4, return_params=True)
    late.transform = lambda sample: sample
    with pytest.raises(OptionError, match="sample by sample"):
        next(iter(loader))
    labeled = [{"image": np.zeros((8, 8, 3), np.uint8), "label": k} for k in range(2)]
    lmdbloader.write(labeled, tmp_path / "labeled")
    mixed = Loader(tmp_path / "labeled", 2, shuffle=True, transforms=[T.MixUp(1.0, 2)], return_params=True)
    with pytest.raises(OptionError, match=r"Leave it out: Loader\(..., return_params=False\)"):
        next(iter(mixed))
    sizes = [{"image": np.zeros((side, 8, 3), np.uint8)} for side in (8, 9)]
    lmdbloader.write(sizes, tmp_path / "sizes")
    with pytest.raises(OptionError, match="images of different sizes"):
        Loader(tmp_path / "sizes", return_params=True)
    with pytest.raises(OptionError, match="return_params=1"):
        Loader(dataset, return_params=1)  # type: ignore[arg-type]
