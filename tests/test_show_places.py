"""Boxes and points on a contact sheet: around what they are around, in colors of their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdbloader
from lmdbloader import fields

GREY = (90, 90, 90)
DECLARED = {"boxes": fields.Boxes(), "points": fields.Points(), "labels": fields.Labels(), "mask": fields.Mask()}


def picture_of(path: Path, **values: Any) -> np.ndarray:
    """Return the image of a sample of 60 x 40 gray pixels, (160, 240, 3), as a sheet shows it: four times as large."""
    sample = {"image": np.full((40, 60, 3), GREY, np.uint8), **values}
    lmdbloader.write([sample], path, fields={name: DECLARED[name] for name in values})
    sheet = np.asarray(lmdbloader.preview(path).image)
    frame = (sheet == (216, 216, 216)).all(2)
    top = int(np.flatnonzero(frame.sum(1) > 240)[0]) + 1
    left = int(np.flatnonzero(frame[top - 1])[0]) + 1
    return sheet[top : top + 160, left : left + 240]


def drawn(picture: np.ndarray) -> np.ndarray:
    """Return which pixels are bright colors (H, W)."""
    found: np.ndarray = picture.max(2) == 255
    return found


def test_a_box_surrounds_its_object(tmp_path: Path) -> None:
    plain = picture_of(tmp_path / "plain", boxes=[])
    assert (plain == GREY).all()
    found = picture_of(tmp_path / "boxes", boxes=[[10, 5, 30, 25]])
    rows, columns = np.nonzero(drawn(found))
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (20, 100, 40, 120)
    assert (found[24:96, 44:116] == GREY).all() and (found[:19] == GREY).all()


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 2)])
def test_a_point_is_on_its_pixel(tmp_path: Path, shape: tuple[int, ...]) -> None:
    found = picture_of(tmp_path / "d", points=np.reshape([30, 20], shape))
    rows, columns = np.nonzero(drawn(found))
    assert (rows.mean(), columns.mean()) == (82, 122)


def test_places_outside_the_image_and_without_area_are_drawn_or_left_out(tmp_path: Path) -> None:
    far = 3e38
    boxes = [[-far, -far, far, far], [5, 5, 5, 9], [far, far, far, far]]
    found = picture_of(tmp_path / "d", boxes=boxes, points=[[far, far], [-far, 3]])
    assert drawn(found)[0].all() and drawn(found)[:, 0].all()
