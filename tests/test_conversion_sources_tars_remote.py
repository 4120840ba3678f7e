"""Tars behind URLs: what a listing requests, and that it finds what it finds in a local file."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.tarmakers import MAKERS, header, member, write_tar
from s3_server import serve
from tars import png

from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Listing
from lmdbloader.conversion.sources.remote import locate
from lmdbloader.errors import SourceError

pytest.importorskip("fsspec")
from counted import KINDS, AtOnce, OneByOne, register

Kind = type[OneByOne] | type[AtOnce]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    yield
    register()


def listed(kind: Kind, place: str = "a.tar") -> Listing:
    return list_sources(locate(f"{kind.protocol}://{place}"), layout="tar")


def facts(listing: Listing) -> object:
    """What a user sees of a listing, and the places of the bytes."""
    spans = listing.sources.spans
    assert spans is not None
    attached = {
        name: (places.start.tolist(), places.nbytes.tolist()) for name, places in listing.sources.attached.items()
    }
    return (
        list(listing.sources.names),
        listing.sources.nbytes.tolist(),
        spans.which.tolist(),
        spans.start.tolist(),
        spans.nbytes.tolist(),
        attached,
        listing.fields,
        listing.ignored,
    )


def outcome(place: Path | str) -> object:
    """The facts of a listing, or its error without the place."""
    try:
        return facts(list_sources(locate(str(place)), layout="tar"))
    except SourceError as error:
        return type(error).__name__, str(error).replace(str(place), "PLACE")


def requested(kind: Kind) -> int:
    """Return the number of bytes that were requested."""
    return sum(count for _, _, count in kind.requests)


def sparse_tar(path: Path, num_samples: int, nbytes: int) -> Path:
    """Write a tar of images that are holes of `nbytes` bytes, each with a label."""
    pieces: list[bytes | int] = []
    for i in range(num_samples):
        pieces += [header(b"%06d.png" % i, nbytes), -(-nbytes // 512) * 512, member(b"%06d.cls" % i, b"7")]
    write_tar(path, pieces, ends=True)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_samples", "nbytes"), [(1000, 300), (1000, 27_000), (20, 10_000_000)])
def test_a_listing_requests_no_byte_twice_and_passes_over_large_members(
    kind: Kind, num_samples: int, nbytes: int, tmp_path: Path
) -> None:
    path = kind.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", num_samples, nbytes)
    found = listed(kind)
    assert facts(found) == facts(list_sources(path))
    size = path.stat().st_size
    # But for the block after the end, where nothing else may be.
    assert requested(kind) <= min(size, 1.1 * 2**20 * (num_samples + 1)) + 2**20
    assert len(kind.requests) <= min(size // 2**20, num_samples) + 5


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_tars_are_read_or_refused_as_from_a_disk(kind: Kind, tmp_path: Path) -> None:
    good, path = member(b"good.png", png(1)), tmp_path / "a.tar"
    words = set()
    for number in range(2 * len(MAKERS)):
        rng = random.Random(f"remote hostile tar {number}")
        name = list(MAKERS)[number % len(MAKERS)]
        pieces = MAKERS[name](rng, good)
        write_tar(path, pieces, ends=rng.random() < 0.9)
        kind.objects["a.tar"] = path
        expected = outcome(path)
        assert outcome(f"{kind.protocol}://a.tar") == expected, (number, name)
        words.add(isinstance(expected, tuple) and expected[0] == "SourceError")
    assert words == {True, False}


def test_several_tars_are_listed_at_once_and_in_order(tmp_path: Path) -> None:
    for i in range(40):
        AtOnce.objects[f"set/{i:02}.tar"] = sparse_tar(tmp_path / f"{i:02}.tar", 3, 30_000 + i)
    barrier, met = threading.Barrier(8), itertools.count(1)
    lock, running, most = threading.Lock(), [0], [0]

    def meet(path: str, start: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if next(met) <= 8:
            barrier.wait(timeout=60)
        with lock:
            running[0] -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtOnce, "before", staticmethod(meet))
        found = listed(AtOnce, "set")
    assert facts(found) == facts(list_sources(tmp_path))
    assert 8 <= most[0] <= 16
    assert facts(listed(AtOnce, "set/{00..39}.tar")) == facts(list_sources(tmp_path))


def test_the_error_is_of_the_first_tar_that_has_one(tmp_path: Path) -> None:
    for i in range(20):
        AtOnce.objects[f"set/{i:02}.tar"] = sparse_tar(tmp_path / "a.tar", 2, 30_000).read_bytes()
    AtOnce.objects["set/07.tar"] = b"what" * 400
    AtOnce.objects["set/03.tar"] = gzip.compress(bytes(5000))
    with pytest.raises(SourceError, match=r"together://set/03\.tar: is not a tar"):
        listed(AtOnce, "set")


def test_a_listing_from_s3_requests_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    path = sparse_tar(tmp_path / "a.tar", 120, 27_000)
    with serve({"bucket": {"set/a.tar": path.read_bytes(), "set/b.tar": path.read_bytes()}}) as (url, requests):
        for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        try:
            found = list_sources(locate("s3://bucket/set"), layout="tar")
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
    assert found.sources.nbytes.tolist() == 2 * list_sources(path).sources.nbytes.tolist()
    ranges = [re.search(r"/set/.* bytes=(\d+)-(\d+)$", request) for request in requests]
    assert sum(found is not None for found in ranges) >= 6
    assert sum(found is None for found in ranges) <= 5  # none asks for a file, or for facts that the folder's list has
