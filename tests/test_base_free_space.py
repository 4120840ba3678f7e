"""Free space: unknown where a file system states no size."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmdbloader.base.free_space import free_nbytes, taken_nbytes


def test_a_file_system_that_states_no_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_nbytes(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=2**30, free=0))
    assert free_nbytes(tmp_path) == 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=0, free=0))
    assert free_nbytes(tmp_path) is None


def test_holes_take_no_space(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    assert taken_nbytes(path) == 0
    with open(path, "wb") as file:
        file.truncate(2**24)
        file.write(b"x" * 2**16)
        file.flush()
        os.fsync(file.fileno())
    assert 2**16 <= taken_nbytes(path) < 2**20
