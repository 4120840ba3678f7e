"""What users of other libraries write means the same here, or is an error with the line to write."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from damage import flip_payload
from habits import HABITS, PAGE, Habit, with_table
from PIL import Image

import lmdbloader
from lmdbloader.base.cores import count_cores
from lmdbloader.cli import main
from lmdbloader.errors import LmdbloaderError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with datasets of 12 images of 32 x 32 in 3 classes, one damaged and one of pairs, images and tars."""
    folder = tmp_path_factory.mktemp("habits")
    rng = np.random.default_rng(0)
    # Of squares, so that each LR image is the mean of its HR image however that is turned.
    images = rng.integers(0, 256, (12, 4, 4, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    labels = [2, 0, 0, 1, 1, 0, 2, 1, 0, 2, 2, 1]
    samples = ({"image": image, "label": label} for image, label in zip(images, labels, strict=True))
    lmdbloader.write(samples, folder / "train.lmdb")
    pairs = ({"lr": np.ascontiguousarray(image[::2, ::2]), "hr": image} for image in images)
    lmdbloader.write(pairs, folder / "pairs.lmdb")
    for number, image in enumerate(images[:6]):
        for name, pixels in (
            (f"photos/{'cats' if number < 3 else 'dogs'}", image), ("hr", image), ("lr", image[::2, ::2])
        ):  # fmt: skip
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / name / f"{number}.png")
    for split in ("train", "val"):
        shutil.copytree(folder / "photos", folder / "imagenet" / split)
    (folder / "splits").mkdir()
    shutil.copytree(folder / "train.lmdb", folder / "splits" / "train.lmdb")
    shutil.copytree(folder / "train.lmdb", folder / "damaged.lmdb")
    flip_payload(folder / "damaged.lmdb", "image", 5)
    Image.fromarray(images[0]).save(folder / "photo.jpg")
    (folder / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"x-{shard}.tar", "w") as tar:
            for number in (2 * shard, 2 * shard + 1):
                tar.add(folder / "hr" / f"{number}.png", f"{number}.png")
                (folder / "label").write_text(str(number))
                tar.add(folder / "label", f"{number}.cls")
    return folder


@pytest.fixture
def names(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that a habit's code finds; it runs in a folder that holds the datasets of `place`."""
    for part in place.iterdir():
        (tmp_path / part.name).symlink_to(part)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"lmdbloader": lmdbloader, "np": np, "torch": torch, "copy": copy, "pickle": pickle}
    for module in (torch.utils.data, lmdbloader.transforms):
        found |= {name: getattr(module, name) for name in module.__all__}
    found |= {name: getattr(lmdbloader, name) for name in ("LMDBDataset", "Loader", "dataloader")}
    found["ds"] = lmdbloader.LMDBDataset("train.lmdb")
    found["pairs"] = lmdbloader.LMDBDataset("pairs.lmdb")
    found["damaged"] = lmdbloader.LMDBDataset("damaged.lmdb")
    found["images"] = np.zeros((2, 8, 8, 3), np.uint8)
    found |= {"enum": enum, "num_cores": count_cores()}
    yield found


def carry_out(code: str, names: dict[str, Any], capsys: Capture) -> None:
    """Run Python code, or a command and raise its error.

    Raises:
        LmdbloaderError: It is refused.
    """
    if not code.startswith("lmdbloader "):
        exec(code, names)
        return
    try:
        status: object = main(shlex.split(code)[1:])
    except SystemExit as error:  # wrong usage
        status = error.code
    if status != 0:
        raise LmdbloaderError(capsys.readouterr().err)


def holds(expression: str, names: dict[str, Any]) -> bool:
    """Whether an expression is true; not if a name or a dataset in it does not exist."""
    try:
        return bool(eval(expression, names))
    except (NameError, LmdbloaderError):
        return False


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_a_habit(habit: Habit, names: dict[str, Any], capsys: Capture) -> None:
    for package in habit.needs:
        pytest.importorskip(package)
    if habit.check is not None:
        carry_out(habit.code, names, capsys)
        habit.check(**{name: names[name] for name in inspect.signature(habit.check).parameters})
        return
    with pytest.raises((LmdbloaderError, ImportError)) as refusal:
        carry_out(habit.code, names, capsys)
    assert habit.says in str(refusal.value), "the error does not have the line to write"
    assert not holds(habit.then, names), "it is true already, so it does not show that the line works"
    carry_out(habit.instead, names, capsys)
    assert holds(habit.then, names), "the line does not do it"


def test_the_page_has_every_habit() -> None:
    assert len({habit.name for habit in HABITS}) == len(HABITS) >= 60
    text = PAGE.read_text("utf-8")
    assert with_table(text) == text, "run `python tests/habits.py`, which writes the tables"
