"""Inputs that change while a conversion is unfinished: it is refused, or it is as if they had always been so."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lmdbloader.store.writing.writer import Writer
from PIL import Image

import lmdbloader
from lmdbloader.errors import DestinationError
from lmdbloader.store import Reader

NUM_IMAGES = 6
CHANGES = ("grow", "rewrite", "rewrite with the same time", "touch", "remove", "add", "rename")


def save(path: Path, seed: int, side: int = 16) -> None:
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(path)


def change(path: Path, kind: str) -> None:
    """Change one image; its new pixels are always the same ones."""
    if not path.exists():
        return
    before = path.stat()
    if kind == "grow":
        save(path, 99, side=20)
    elif kind.startswith("rewrite"):
        with Image.open(path) as image:  # it may have grown
            side = image.width
        save(path, 98, side=side)
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(1, 1 if kind == "rewrite" else before.st_mtime_ns))
    elif kind == "touch":
        os.utime(path, ns=(2, 2))
    elif kind == "remove":
        path.unlink()
    elif kind == "add":
        shutil.copy(path, path.with_name(path.stem + "b.png"))
    else:
        path.rename(path.with_name(path.stem + "c.png"))


def convert(src: Path, out: Path, **options: Any) -> str:
    lmdbloader.convert(src, out, workers=1, codec="raw", **options)
    return Reader(out).manifest.content_digest


@contextmanager
def interrupted(num_done: int) -> Iterator[None]:
    """Let a conversion come as far as its first images, each of them in a transaction of its own."""
    add, seen = Writer.add, []

    def failing(self: Writer, *arguments: Any) -> None:
        if len(seen) == num_done:
            raise KeyboardInterrupt
        seen.append(1)
        add(self, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "add", failing)
        yield


@pytest.fixture(autouse=True, scope="module")
def small_transactions() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmdbloader.store.writing.writer.TRANSACTION_NBYTES", 1)
        patch.setattr("lmdbloader.conversion.pool.TASK_NBYTES", 1)
        yield


@example(num_done=3, changes=[(1, "rename")])
@example(num_done=3, changes=[(2, "rewrite with the same time"), (4, "remove")])
@example(num_done=2, changes=[(0, "touch"), (2, "add")])
@example(num_done=1, changes=[(0, "grow"), (0, "rewrite")])
@settings(max_examples=10)
@given(
    num_done=st.integers(1, NUM_IMAGES - 1),
    changes=st.lists(st.tuples(st.integers(0, NUM_IMAGES - 1), st.sampled_from(CHANGES)), max_size=2),
)
def test_a_change_is_refused_or_leaves_no_trace_of_the_former_content(
    num_done: int, changes: list[tuple[int, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        src, out = Path(folder, "src"), Path(folder, "out")
        src.mkdir()
        for i in range(NUM_IMAGES):
            save(src / f"{i}.png", seed=i)
        with interrupted(num_done):
            convert(src, out)
        done = [path.read_bytes() for path in sorted(src.iterdir())[:num_done]]
        names = sorted(path.name for path in src.iterdir())[:num_done]
        for number, kind in changes:
            change(src / f"{number}.png", kind)
        now = sorted(src.iterdir())[:num_done]
        is_same = [path.name for path in now] == names and [path.read_bytes() for path in now] == done
        # What has kept its size and time is noticed by its content only.
        unnoticed = any(kind == "rewrite with the same time" for _, kind in changes)
        if is_same:
            found = convert(src, out, check_content=unnoticed)
        else:
            with pytest.raises(DestinationError, match=r"have changed: .*restart=True"):
                convert(src, out, check_content=unnoticed)
            assert not out.exists()
            found = convert(src, out, restart=True)
        assert found == convert(src, Path(folder, "undisturbed"))
        assert sorted(os.listdir(folder)) == ["out", "src", "undisturbed"]


@pytest.mark.parametrize("half", ["hr", "lr"])
def test_either_half_of_a_pair_is_watched(tmp_path: Path, half: str) -> None:
    for i in range(NUM_IMAGES):
        for name, side in (("hr", 32), ("lr", 16)):
            (tmp_path / name).mkdir(exist_ok=True)
            save(tmp_path / name / f"{i}.png", seed=i, side=side)

    def pairs(out: Path, **options: Any) -> None:
        folders = {"hr": tmp_path / "hr", "lr": tmp_path / "lr"}
        lmdbloader.convert(None, out, **folders, workers=1, min_pair_psnr=0, **options)

    with interrupted(3):
        pairs(tmp_path / "out")
    path = tmp_path / half / "1.png"
    before = path.stat()
    save(path, seed=98, side=32 if half == "hr" else 16)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_mtime_ns,) * 2)
    with pytest.raises(DestinationError, match=r"1\.png has other content"):
        pairs(tmp_path / "out", check_content=True)
    os.utime(path, ns=(1, before.st_mtime_ns + 10**9))
    with pytest.raises(DestinationError, match=r"1\.png has other content"):
        pairs(tmp_path / "out")
    pairs(tmp_path / "out", restart=True)
    assert lmdbloader.verify(tmp_path / "out").is_sound
