"""The threads that fetch pieces: what readers get from an error in one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmdbloader.errors import CorruptError
from lmdbloader.store.remote.cache import Cache
from lmdbloader.store.remote.parts import OneFile
from lmdbloader.store.remote.pieces import Pieces
from lmdbloader.store.remote.service import Service, replaced

MIB = 2**20


def test_an_error_names_the_dataset_in_every_read_that_fails(tmp_path: Path) -> None:
    class Replaced(Service):
        def get(self, name: str, start: int, stop: int, version: str = "") -> bytes:
            raise replaced(self.url, name, "for a test")

    service = Replaced("memory://bucket/d")
    cache = Cache(Pieces(tmp_path, 2 * MIB), lambda: OneFile(service, "data.mdb", ""), 2 * MIB)
    for _ in range(2):
        with pytest.raises(CorruptError, match="was replaced since it was opened") as caught:
            cache.hold(np.array([0]), np.array([1]))
        assert caught.value.path == service.url
