"""`lmdbloader.ray` without Ray: what is refused before it is needed, and the error that says how to install it."""

from __future__ import annotations

import importlib.util
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import LMDBDataset
from lmdbloader.conversion.options import RunOptions
from lmdbloader.conversion.part_writers import convert_parts
from lmdbloader.errors import OptionError
from lmdbloader.ray import read_lmdb, write_lmdb
from lmdbloader.ray.cluster import connected
from lmdbloader.transforms import RandomHorizontalFlip, ToDtype

without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "d.lmdb"
    lmdbloader.write(({"image": np.full((8, 8, 3), i, np.uint8), "label": i % 3} for i in range(6)), path)
    return path


@without_ray
def test_without_ray_the_error_says_how_to_install_it(path: Path) -> None:
    with pytest.raises(OptionError, match=r"^read_lmdb needs Ray with ray\.data, .*pip install 'lmdbloader\[ray\]'"):
        read_lmdb(path)


def own(sample: Any) -> Any:
    return sample


class Subclass(LMDBDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ["image", "mask"]}, "no field 'mask'; it has image, label"),
        ({"include_sources": True}, "include_sources=True: .* has no sources"),
        ({"override_num_blocks": 0}, "expected a whole number of at least 1"),
    ],
)
def test_arguments_are_checked_before_ray_is_needed(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_lmdb(path, **options)


def test_datasets_whose_samples_are_no_rows_are_refused(path: Path) -> None:
    with pytest.raises(OptionError, match=r"a function in Python. Write read_lmdb\(path\)\.map\(function\)"):
        read_lmdb(LMDBDataset(path, transform=own))
    with pytest.raises(OptionError, match=r"a function in Python. Write read_lmdb\(path\)\.map\(function\)"):
        read_lmdb(Subclass(path))
    with pytest.raises(OptionError, match=r"rows are dicts of the fields\. Leave as_ out"):
        read_lmdb(LMDBDataset(path, as_={"pixel_values": "image"}))
    with pytest.raises(OptionError, match="bfloat16, which NumPy and Arrow do not have"):
        read_lmdb(LMDBDataset(path).transformed([RandomHorizontalFlip(), ToDtype(torch.bfloat16, True)]))
    with pytest.raises(OptionError, match="the dataset was opened without 'label'; it has image"):
        read_lmdb(LMDBDataset(path, ["image"]), ["label"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write_mode": "proportion"}, 'Write write_mode="smart" or "jpg"'),
        ({"min_rows_per_part": 0}, "expected a whole number of at least 1"),
    ],
)
def test_arguments_of_writing_are_checked_before_ray_is_needed(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write_lmdb(None, tmp_path / "d.lmdb", **options)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize("how", ["argument", "variable"])
def test_an_address_where_nothing_listens_is_refused_at_once(
    host: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"{host}:{taken.getsockname()[1]}"
        ray = SimpleNamespace(is_initialized=lambda: False)  # its `init` would be called next
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if how == "variable":
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(OptionError, match=rf"no Ray cluster answers at {re.escape(address)}") as raised:
            connected(ray, address if how == "argument" else None, None).__enter__()
        assert ("RAY_ADDRESS" in str(raised.value)) == (how == "variable")


def test_inputs_in_the_memory_of_this_process_are_refused(photos: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for photo in sorted(photos.iterdir())[:2]:
        memory.pipe(f"/ray/{photo.name}", photo.read_bytes())
    with pytest.raises(OptionError, match="only this process can see the inputs"):
        convert_parts("memory://ray", tmp_path / "d.lmdb", RunOptions(parts=2), engine=lambda *_: iter(()))
