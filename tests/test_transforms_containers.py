"""Containers of compiled transforms: equal to the plain definition, with torchvision's odds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transform_reference import apply_all

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.base import leaves
from lmdbloader.transforms.compilation import compile_program, is_random
from lmdbloader.transforms.resolution import full_size, with_resolution
from lmdbloader.transforms.values import ImageField

COUNT = 24
# Names of fields and the (height, width) of their images.
LAYOUTS = {
    "one": {"image": (24, 30)},
    "pair": {"lr": (12, 15), "hr": (24, 30)},
    "masked": {"image": (24, 30), "mask": (24, 30)},
}
FLIP, MIRROR = T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)
FIELD = ImageField("image", 3, torch.uint8)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LMDBDataset, Any]]:
    found, folder = {}, tmp_path_factory.mktemp("containers")
    for layout, sizes in LAYOUTS.items():
        rng = np.random.default_rng(0)
        planes = [
            {n: rng.integers(0, 256, (1 if n == "mask" else 3, *size)).astype(np.uint8) for n, size in sizes.items()}
            for _ in range(COUNT)
        ]
        declared = {n: fields.Mask(ignore_index=200) if n == "mask" else fields.Image() for n in sizes}
        samples = [{n: torch.from_numpy(a[0] if n == "mask" else a) for n, a in s.items()} for s in planes]
        lmdbloader.write(samples, folder / layout, fields=declared)
        found[layout] = LMDBDataset(folder / layout), planes
    return found


def read(dataset: LMDBDataset, transforms: Any, seed: int = 0, epochs: int = 1) -> dict[str, torch.Tensor]:
    loader = Loader(dataset, COUNT, shuffle=False, seed=seed, transforms=transforms, num_threads=1)
    batches = [batch._asdict() for _ in range(epochs) for batch in loader]
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def pieces(layout: str) -> st.SearchStrategy[Any]:
    """Return what keeps the size of images; what comes out differs by nothing from the plain definition."""
    images = tuple(n for n in LAYOUTS[layout] if n != "mask")
    p, some = st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([None, images[:1]])
    return st.one_of(
        st.builds(T.RandomHorizontalFlip, p, fields=some),
        st.builds(T.RandomVerticalFlip, p),
        st.builds(T.RandomTranslate, st.sampled_from([2, 4]), st.sampled_from([0, 7])),
        st.builds(T.RandomSolarize, st.integers(0, 256), p, fields=some),
        st.builds(T.GaussianNoise, sigma=st.sampled_from([0.1, 0.5]), p=p),
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items, weights = st.lists(inner, min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 3])
    several = st.lists(inner, max_size=2)
    some = st.lists(inner | several, min_size=1, max_size=3)
    weighted = some.flatmap(
        lambda found: st.builds(
            T.RandomChoice,
            st.just(found),
            st.none() | st.lists(weights, min_size=len(found), max_size=len(found)).filter(any),
        )
    )
    return st.builds(T.RandomApply, items, st.sampled_from([0.0, 0.3, 1.0])) | weighted | st.builds(T.RandomOrder, some)


def crops(size: tuple[int, int]) -> st.SearchStrategy[Any]:
    """Return choices of transforms with one size."""
    alternatives = [
        T.RandomCrop(size), T.RandomCrop(size, padding=2, fill=9), T.CenterCrop(size),
        (T.RandomTranslate(4), T.RandomCrop(size)), (T.RandomCrop((20, 22)), T.CenterCrop(size)),
    ]  # fmt: skip
    return st.builds(T.RandomChoice, st.lists(st.sampled_from(alternatives), min_size=1, max_size=4))


@settings(max_examples=120)
@given(st.data())
def test_nested_containers_equal_the_plain_definition(datasets: Any, data: st.DataObject) -> None:
    layout, seed = data.draw(st.sampled_from(sorted(LAYOUTS))), data.draw(st.integers(0, 3))
    dataset, planes = datasets[layout]
    anything = st.lists(st.recursive(pieces(layout), nested, max_leaves=6), max_size=3)
    transforms = [
        *data.draw(anything),
        *data.draw(st.lists(crops((16, 12)), max_size=1)),
        *data.draw(anything),
        *data.draw(st.lists(nested(st.builds(T.Cutout, st.just(2), st.integers(0, 255))), max_size=1)),
    ]
    found = read(dataset, transforms, seed)
    masks = {"mask": 200} if layout == "masked" else {}
    for k in range(COUNT):
        expected = apply_all(planes[k], transforms, seed, 0, k, columns_first=False, masks=masks)
        for name, images in found.items():
            got = images[k][None] if name == "mask" else images[k]
            np.testing.assert_array_equal(got.double().numpy(), expected[name].values)


def share(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the share of images that equal those expected, of several epochs."""
    return float((found.view(-1, *expected.shape) == expected).flatten(2).all(2).double().mean())


def test_the_odds_are_torchvisions(datasets: Any) -> None:
    dataset, _ = datasets["one"]
    stored = read(dataset, [])["image"]
    flipped, mirrored, both = stored.flip(-1), stored.flip(-2), stored.flip(-1, -2)
    epochs, room = 60, 4 * 0.5 / (60 * COUNT) ** 0.5

    def shares(transform: Any) -> list[float]:
        found = read(dataset, [transform], epochs=epochs)["image"]
        return [share(found, expected) for expected in (stored, flipped, mirrored, both)]

    assert shares(T.RandomApply([FLIP, MIRROR], 0.3)) == pytest.approx([0.7, 0, 0, 0.3], abs=room)
    assert shares(T.RandomApply([FLIP], 0)) == [1, 0, 0, 0] and shares(T.RandomApply([FLIP], 1)) == [0, 1, 0, 0]
    assert shares(T.RandomChoice([FLIP, MIRROR])) == pytest.approx([0, 0.5, 0.5, 0], abs=room)
    weighted = T.RandomChoice([[], FLIP, [FLIP, MIRROR], MIRROR], [1, 0, 2, 1])
    assert shares(weighted) == pytest.approx([0.25, 0, 0.25, 0.5], abs=room)
    inner = T.RandomApply([T.RandomChoice([FLIP, []]), T.RandomApply([MIRROR], 0.5)], 0.5)
    assert shares(inner) == pytest.approx([0.625, 0.125, 0.125, 0.125], abs=room)


def test_every_order_comes_equally_often(datasets: Any) -> None:
    dataset, _ = datasets["one"]
    # Each order of these three gives another image.
    steps = [T.RandomSolarize(100, 1.0), T.ColorJitter(brightness=(0.5, 0.5)), T.ColorJitter(contrast=(2, 2))]
    orders = [[steps[k] for k in order] for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))]
    found = read(dataset, [T.RandomOrder(steps)], epochs=60)["image"]
    shares = [share(found, read(dataset, order)["image"]) for order in orders]
    assert shares == pytest.approx([1 / 6] * 6, abs=4 * 0.37 / (60 * COUNT) ** 0.5)


def test_boxes_follow_the_draw(tmp_path: Path) -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    image[5:9, 3:21] = 255
    sample = {"image": image, "boxes": np.array([[3, 5, 21, 9]], np.float32)}
    lmdbloader.write([sample] * COUNT, tmp_path / "d", fields={"boxes": fields.Boxes("image")})
    transforms = [T.RandomChoice([[FLIP, T.RandomCrop(32)], [T.RandomDihedral(), T.CenterCrop(32)]])]
    batch = next(iter(Loader(tmp_path / "d", COUNT, shuffle=False, seed=1, transforms=transforms)))
    for shown, boxes in zip(batch.image, batch.boxes, strict=True):
        rows, columns = shown[0].nonzero(as_tuple=True)
        assert boxes[0].tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


SIZED = [
    (T.RandomApply([T.RandomCrop(8)]), "as stored, or 8x8"),
    (T.RandomChoice([T.Resize(8), T.CenterCrop(8)]), "a shorter side of 8, or 8x8"),
    (T.RandomChoice([T.CenterCrop(8), [T.CenterCrop(8), T.RandomApply([T.CenterCrop(4)])]]), "8x8, or 4x4"),
    (T.RandomOrder([T.CenterCrop(8), FLIP]), "8x8, or as stored"),
]


@pytest.mark.parametrize("container, sizes", SIZED)
def test_a_size_that_would_depend_on_the_draw_is_refused(container: Any, sizes: str) -> None:
    with pytest.raises(OptionError, match=f"would depend on the draw: {sizes}"):
        compile_program([container], [FIELD])
    compile_program(
        [T.CenterCrop(8), T.RandomApply([T.RandomResizedCrop(8)]), T.RandomApply([T.Resize((8, 8))])], [FIELD]
    )
    of_one = T.RandomChoice([T.CenterCrop(8), T.CenterCrop(8, fields=("image",))])
    known = ImageField("image", 3, torch.uint8, size=(8, 8))
    compile_program([T.RandomApply([T.RandomCrop(8, padding=4)])], [known])  # as of CIFAR
    with pytest.raises(OptionError, match="8x8, or 8x8 of some fields"):
        compile_program([of_one], [FIELD, ImageField("mask", 1, torch.uint8, is_mask=True)])


def test_what_a_seldom_branch_needs_is_known_at_once(datasets: Any) -> None:
    dataset, _ = datasets["one"]
    for seldom in ([T.CenterCrop(25), T.CenterCrop(8)], [T.RandomDihedral(), T.CenterCrop(8)]):
        with pytest.raises(OptionError, match=r"larger than the image|needs square images"):
            Loader(dataset, 4, shuffle=False, transforms=[T.RandomChoice([T.CenterCrop(8), seldom], [1, 1e-9])])
    # The memory of a thread is enough for it, and the smaller sizes of the other branch stay correct.
    large = T.RandomChoice([T.CenterCrop(8), [T.Resize((300, 400)), T.GaussianBlur(3), T.CenterCrop(8)]], [50, 1])
    assert read(dataset, [large], epochs=20)["image"].shape == (20 * COUNT, 3, 8, 8)


def test_what_does_not_fit_inside_is_refused() -> None:
    for wrong, line in [
        (T.ToDtype(torch.float32), r"Put it after: \[RandomApply\(\[...\]\), ToDtype"),
        (torch.nn.Sequential(), "a list, .*in place of Sequential"),
        (torch.nn.Identity(), r"a list, \[\], in place of Identity"),
        (
            type("ColorJitter", (), {"__module__": "torchvision.transforms.v2"})(),
            r"lmdbloader.transforms.ColorJitter\(",
        ),
        (T.ColorJitter, r"Write ColorJitter\(...\)"),
        (T.Views([FLIP]), r"into the lists of Views: Views\(\[RandomApply\("),
        (lambda batch: batch, r"Functions go to the end of Loader\(.*RandomApply"),
    ]:
        with pytest.raises(OptionError, match=line):
            T.RandomApply([FLIP, [wrong]])
    for wrong in ([], FLIP, None, "flip"):
        with pytest.raises(OptionError, match="expected a list of at least one transform"):
            T.RandomOrder(wrong)  # type: ignore[arg-type]
    for p in ([1], [0, 0], [1, -1], [1, float("nan")], 0.5):
        with pytest.raises(OptionError, match="expected 2 numbers of at least 0"):
            T.RandomChoice([FLIP, MIRROR], p)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="probability p from 0 to 1"):
        T.RandomApply([FLIP], 1.5)


def test_torchvisions_containers_cannot_hold_ours(datasets: Any) -> None:
    class RandomApply(torch.nn.Module):
        transforms = (FLIP,)

    RandomApply.__module__ = "torchvision.transforms.v2._container"
    with pytest.raises(OptionError, match=r"Write lmdbloader.transforms.RandomApply\(\[RandomHorizontalFlip\(p=1.0\)"):
        Loader(datasets["one"][0], 4, transforms=[RandomApply()])


def test_everything_that_looks_at_transforms_looks_inside(datasets: Any) -> None:
    crop = T.RandomChoice([T.RandomResizedCrop(16), [T.Resize(20), T.CenterCrop(16)]])
    transforms = [T.RandomApply([T.RandomTranslate(4)]), crop, T.RandomOrder([FLIP, MIRROR])]
    assert full_size(transforms) == (16, 16) and is_random(crop)
    smaller = with_resolution(transforms, (8, 8))
    assert [t.size_numbers for t in leaves(smaller)][1:4] == [(8, 8), (10, 0), (8, 8)]
    assert smaller[0].transforms[0].padding == 2  # type: ignore[attr-defined]
    schedule = lmdbloader.ProgressiveResize(4, 0.5)
    loader = Loader(datasets["masked"][0], COUNT, shuffle=False, transforms=transforms, resolution=schedule)
    assert [next(iter(loader)).mask.shape[-1] for _ in range(4)][::3] == [8, 16]
    assert "RandomChoice(transforms=(RandomResizedCrop(size=16" in loader.state_dict()["transforms"]
    named = T.RandomApply([T.RandomApply([FLIP]), MIRROR], fields=("hr",))
    assert {t.fields for t in leaves([named])} == {("hr",)}
    found = read(datasets["pair"][0], [T.RandomApply([FLIP], 1.0, fields=("hr",))])
    stored = read(datasets["pair"][0], [])
    assert torch.equal(found["lr"], stored["lr"]) and torch.equal(found["hr"], stored["hr"].flip(-1))
