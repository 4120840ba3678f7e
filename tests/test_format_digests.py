"""Digests of each algorithm, for bytes in any pieces, and the names at the start of their text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.format.codecs import checksum
from lmdbloader.format.digests import (
    DIGESTS,
    DigestName,
    digest_of_file,
    digest_of_text,
    name_of,
    new_file_digest,
    new_text_digest,
    read_digest,
)

# Of so many bytes 0, 1 ... 250, 0, 1 ...: the published ones.
BLAKE3 = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    3072: "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2",
    16384: "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
    31744: "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


@pytest.mark.parametrize("nbytes", BLAKE3)
def test_blake3_is_blake3(nbytes: int) -> None:
    data = bytes(i % 251 for i in range(nbytes))
    assert digest_of_file(data, "blake3") == digest_of_text(data, "blake3") == f"blake3:{BLAKE3[nbytes]}"


@pytest.mark.parametrize("data", [b"", b"abc", bytes(200_000)])
def test_the_others_are_those_of_hashlib_and_of_the_checksum(data: bytes) -> None:
    sha256 = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert digest_of_file(data, "sha256") == digest_of_text(data, "sha256") == sha256
    assert digest_of_file(data, "xxh64") == f"xxh64:{checksum(data):016x}"
    assert digest_of_text(data, "xxh64") == f"blake2b:{hashlib.blake2b(data, digest_size=16).hexdigest()}"


sizes = st.integers(0, 200) | st.sampled_from([1023, 1024, 1025, 65_535, 65_536, 65_537, 131_072, 200_000])


@given(st.sampled_from(DIGESTS), st.lists(sizes, max_size=6), st.integers(0, 2**32))
def test_pieces_have_the_digest_of_all(name: DigestName, nbytes: list[int], seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, sum(nbytes), np.uint8)
    of_file, of_text = new_file_digest(name), new_text_digest(name)
    for piece in np.split(data, np.cumsum(nbytes)[:-1]) if nbytes else []:
        of_file.update(piece)
        of_text.update(piece.tobytes())
        str(of_file)  # asking in between changes nothing
    assert str(of_file) == str(of_file) == digest_of_file(data, name)
    assert str(of_text) == digest_of_text(data.tobytes(), name)


@pytest.mark.parametrize("name", DIGESTS)
def test_any_bit_counts(name: DigestName) -> None:
    data = bytearray(150_000)
    seen = {digest_of_file(data, name)}
    places = (0, 63, 64, 1023, 1024, 65_535, 65_536, 131_071, 131_072, 149_999)
    for at in places:
        data[at] ^= 1
        seen.add(digest_of_file(data, name))
    assert len(seen) == 1 + len(places)
    assert digest_of_file(bytes(1000), name) != digest_of_file(bytes(1001), name)


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("nbytes", [0, 1, 100_001, 2**22, 2**22 + 1])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path, name: DigestName, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes()
    (tmp_path / "f").write_bytes(data)
    with open(tmp_path / "f", "rb") as file:
        file.read(10)  # where the file stands does not matter
        assert read_digest(file.fileno(), name) == digest_of_file(data, name)


@pytest.mark.parametrize("name", DIGESTS)
def test_a_digest_tells_its_algorithm(name: DigestName) -> None:
    assert name_of(digest_of_text(b"abc", name)) == name


@pytest.mark.parametrize(
    "digest", ["", ":", "sha256", "sha256 00", "SHA256:00", "md5:00", "xxh64:00", None, 3, ["sha256:00"]]
)
def test_text_that_is_not_a_digest_of_a_description_has_no_algorithm(digest: object) -> None:
    assert name_of(digest) is None


@pytest.mark.parametrize("name", ["md5", "SHA256", "", "blake2b", None])
def test_another_name_is_refused_with_the_choices(name: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"^digest={name!r}: expected xxh64, sha256 or blake3"):
        lmdbloader.write([{"label": 1}], tmp_path / "out", digest=name)
    assert not list(tmp_path.iterdir())
