"""Digests of files and descriptions, for bytes in any pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import FileDigest, TextDigest, digest_of_file, digest_of_text, read_digest


@pytest.mark.parametrize("data", [b"", b"abc", bytes(200_000)])
def test_digests_are_those_of_hashlib_and_of_the_checksum(data: bytes) -> None:
    assert digest_of_text(data) == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert digest_of_file(data) == f"xxh64:{checksum(data):016x}"


sizes = st.integers(0, 200) | st.sampled_from([1023, 1024, 1025, 65_535, 65_536, 65_537, 131_072, 200_000])


@given(st.lists(sizes, max_size=6), st.integers(0, 2**32))
def test_pieces_have_the_digest_of_all(nbytes: list[int], seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, sum(nbytes), np.uint8)
    of_file, of_text = FileDigest(), TextDigest()
    for piece in np.split(data, np.cumsum(nbytes)[:-1]) if nbytes else []:
        of_file.update(piece)
        of_text.update(piece.tobytes())
        str(of_file)  # asking in between changes nothing
    assert str(of_file) == str(of_file) == digest_of_file(data)
    assert str(of_text) == digest_of_text(data.tobytes())


@pytest.mark.parametrize("nbytes", [0, 1, 100_001, 2**22, 2**22 + 1])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()
    (tmp_path / "f").write_bytes(data)
    with open(tmp_path / "f", "rb") as file:
        file.read(10)  # where the file stands does not matter
        assert read_digest(file.fileno()) == digest_of_file(data)
