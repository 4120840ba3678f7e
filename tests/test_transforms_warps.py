"""Rotations, affine, perspective and elastic warps in batches: sizes, pairs, masks, boxes and points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.transforms.resolution import with_resolution

HEIGHT, WIDTH = 24, 36
DECLARED = {"mask": fields.Mask(ignore_index=9), "boxes": fields.Boxes(), "points": fields.Points()}
WARPS = (
    T.RandomRotation(60, fill=255),
    T.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), 20, fill=255),
    T.RandomPerspective(0.5, 1.0, "nearest", 255),
    T.ElasticTransform(20, 4, "nearest", 255),
)
POLICIES = T.RandAugment(1, 20), T.TrivialAugmentWide()


def sample_of(k: int) -> dict[str, Any]:
    """Return an image that is 200 in a box and 50 around it, its mask, its box, and the box's first and last pixels."""
    rng = np.random.default_rng(k)
    (left, right), (top, bottom) = (np.sort(rng.choice(side, 2, replace=False)) for side in (WIDTH, HEIGHT))
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[top : bottom + 1, left : right + 1] = 1
    points = np.array([[left, top], [right, bottom]], np.float32)
    boxes = np.array([[left, top, right + 1, bottom + 1]], np.float32)
    image = np.repeat((50 + 150 * mask)[..., None], 3, -1)
    return {"image": image, "mask": mask, "boxes": boxes, "points": points}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lmdbloader.LMDBDataset:
    path = tmp_path_factory.mktemp("warps") / "d"
    lmdbloader.write((sample_of(k) for k in range(8)), path, fields=DECLARED)
    return lmdbloader.LMDBDataset(path)


def read(dataset: lmdbloader.LMDBDataset, *transforms: Any, seed: int = 0) -> Any:
    return next(iter(lmdbloader.Loader(dataset, 8, order="sequential", transforms=transforms, seed=seed)))


@pytest.mark.parametrize("warp", [*WARPS, *POLICIES], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("more", [(), (T.RandomCrop((20, 32)), T.RandomHorizontalFlip(1.0), T.Resize((40, 64)))])
def test_masks_boxes_and_points_follow(dataset: lmdbloader.LMDBDataset, warp: Any, more: Any) -> None:
    for seed in range(4):
        batch = read(dataset, warp, *more, seed=seed)
        if not more and warp not in POLICIES:  # labels are where the pixels are, and ignored where the fill is
            expected = torch.where(batch.image[:, 0] == 200, 1, torch.where(batch.image[:, 0] == 255, 9, 0))
            assert torch.equal(batch.mask.to(torch.int64), expected)
        plain = read(dataset, warp, seed=seed)
        scale = 2.0 if more else 1.0
        for k in range(8):
            rows, columns = torch.nonzero(batch.mask[k] == 1).unbind(1)
            left, top, right, bottom = batch.boxes[k][0].tolist()
            slack = scale * (2.0 if isinstance(warp, T.ElasticTransform) else 1.0)
            height, width = batch.mask[k].shape
            assert 0 <= left <= right <= width and 0 <= top <= bottom <= height
            if len(rows):  # the box around the moved corners holds all of it
                assert left - slack <= columns.min() and columns.max() + 1 <= right + slack
                assert top - slack <= rows.min() and rows.max() + 1 <= bottom + slack
            if not more:
                continue
            (x, y), shift = plain.points[k][0].tolist(), batch.points[k] / 2
            # The same crop moves both points, mirrored, whatever the warp did.
            other = plain.points[k][1] - plain.points[k][0]
            np.testing.assert_allclose((shift[1] - shift[0]).numpy(), other.numpy() * (-1, 1), atol=1e-3)
            assert np.isfinite((x, y)).all()


def test_a_box_that_a_crop_has_cut_off_gets_no_area_again(dataset: lmdbloader.LMDBDataset) -> None:
    batch = read(dataset, T.CenterCrop(4), T.RandomRotation((45, 45)))
    cut = [k for k in range(8) if not (read(dataset, T.CenterCrop(4)).mask[k] == 1).any()]
    assert cut
    for k in cut:
        left, top, right, bottom = batch.boxes[k][0].tolist()
        assert (left, top) == (right, bottom)


def test_a_size_that_depends_on_the_angle_needs_a_size_after_it(dataset: lmdbloader.LMDBDataset) -> None:
    expands = T.RandomRotation(30, expand=True)
    for wrong in ([expands], [expands, T.Resize(20)], [expands, T.RandomTranslate(2)], [T.CenterCrop(9), expands]):
        with pytest.raises(OptionError, match=r"RandomRotation\(expand=True\) draws. Add a crop or Resize"):
            read(dataset, *wrong)
    with pytest.raises(OptionError, match="random sizes already"):
        read(dataset, expands, T.Resize(20), expands, T.CenterCrop(9))
    with pytest.raises(OptionError, match="larger than the image"):  # at an angle that perhaps nobody draws
        read(dataset, T.RandomRotation((0, 90), expand=True), T.CenterCrop((HEIGHT, WIDTH)))
    assert read(dataset, T.RandomRotation((90, 90), expand=True)).image.shape == (8, 3, WIDTH, HEIGHT)
    assert read(dataset, T.RandomRotation((30, 30), expand=True)).image.shape[1:] == (3, 40, 44)
    for angle in (10, 180):  # working memory suffices at every angle
        turned = [T.RandomRotation(angle, "bilinear", True), T.Resize(20), T.RandomResizedCrop(20)]
        for seed in range(30):
            assert read(dataset, *turned, seed=seed).image.shape == (8, 3, 20, 20)


@pytest.mark.parametrize("ratio", [2, 3])
@pytest.mark.parametrize("warp", WARPS, ids=lambda t: type(t).__name__)
def test_pairs_move_in_step(tmp_path: Path, warp: Any, ratio: int) -> None:
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    small = np.stack([4 * x, 6 * y, 4 * x], -1)
    y, x = np.mgrid[: HEIGHT * ratio, : WIDTH * ratio] + 0.5
    large = np.stack([4 * x, 6 * y, 4 * x], -1) / ratio
    path = tmp_path / "d"
    lmdbloader.write([{"lr": small.astype(np.uint8), "hr": large.astype(np.uint8)}] * 8, path)
    batch = read(lmdbloader.LMDBDataset(path), warp)
    shrunk = batch.hr.view(8, 3, HEIGHT, ratio, WIDTH, ratio).float()
    inside = (shrunk != 255).all(5).all(3) & (batch.lr != 255)  # a ramp says where a pixel has been
    off = (shrunk.mean((3, 5)) - batch.lr)[inside].abs()
    assert inside.float().mean() > 0.3 and off.max() < 9 and off.mean() < 3


def test_a_fill_before_a_warp_stays(dataset: lmdbloader.LMDBDataset) -> None:
    image = read(
        dataset, T.RandomCrop((HEIGHT + 8, WIDTH), (0, 4), fill=7), T.RandomRotation((180, 180), fill=99)
    ).image
    assert (image[:, :, :4] == 7).all() and (image != 99).all()
    image = read(dataset, T.RandomPerspective(0.5, 0.0, fill=99), T.RandomCrop(HEIGHT, (0, 4), fill=7)).image
    assert (image == 7).any() and (image != 99).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomRotation(-5), "degrees.*at least 0, or"),
        (lambda: T.RandomRotation((5, -5)), "degrees"),
        (lambda: T.RandomRotation(5, "bicubic"), "'nearest' or 'bilinear'"),  # type: ignore[arg-type]
        (lambda: T.RandomRotation(5, fill=None), "finite number"),  # type: ignore[arg-type]
        (lambda: T.RandomAffine(None), "degrees"),  # type: ignore[arg-type]
        (lambda: T.RandomAffine(5, (0.5, 2)), "shares of the sides"),
        (lambda: T.RandomAffine(5, scale=(0, 2)), "factors above 0"),
        (lambda: T.RandomAffine(5, shear=(1, 2, 3)), "shear"),
        (lambda: T.RandomAffine(5, center=(1,)), "center"),  # type: ignore[arg-type]
        (lambda: T.RandomPerspective(2), "distortion_scale"),
        (lambda: T.ElasticTransform(sigma=(5, 0)), "sigma"),
        (lambda: T.ElasticTransform(sigma=500), "up to 128"),
        (lambda: T.ElasticTransform("a"), "alpha"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_centers_follow_the_resolution() -> None:
    scaled = with_resolution([T.Resize((8, 8)), T.RandomRotation(9, center=(2, 4)), T.CenterCrop((8, 6))], (4, 6))
    assert scaled[1].center == (2, 2)
