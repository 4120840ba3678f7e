"""Digests of files and descriptions, for bytes in any pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.format.digests import Digest, digest_of, read_digest


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_pieces_have_the_digest_of_all(pieces: list[bytes]) -> None:
    digest = Digest()
    for piece in pieces:
        digest.update(np.frombuffer(piece, np.uint8))
        str(digest)  # asking in between changes nothing
    data = b"".join(pieces)
    assert str(digest) == digest_of(data) == f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize("nbytes", [0, 1, 100_001, 2**22, 2**22 + 1])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()
    (tmp_path / "f").write_bytes(data)
    with open(tmp_path / "f", "rb") as file:
        file.read(10)  # where the file stands does not matter
        assert read_digest(file.fileno()) == digest_of(data)
