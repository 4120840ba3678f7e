"""Tars behind URLs: what a listing requests, and that it finds what it finds in a local file."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from faults.tarmakers import MAKERS, header, member, write_tar
from hypothesis import given
from hypothesis import strategies as st
from s3_server import NoRanges, serve
from tars import png, save_tar, tar_bytes

import lmdbloader
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


class SaysNoRanges(NoRanges):
    """Whole files only, and every answer says so."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "none")
        super().end_headers()


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


def overhead(kind: Kind, nbytes: int) -> int:
    """Return the most bytes but headers: at both ends, and in search of the first headers in later parts of a tar."""
    return 32 * 1024 + (nbytes // 40 if kind is AtOnce else 0)


def sparse_tar(path: Path, num_samples: int, nbytes: int) -> Path:
    """Write a tar of images that are holes of `nbytes` bytes, each with a label."""
    pieces: list[bytes | int] = []
    for i in range(num_samples):
        pieces += [header(b"%06d.png" % i, nbytes), -(-nbytes // 512) * 512, member(b"%06d.cls" % i, b"7")]
    write_tar(path, pieces, ends=True)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_samples", "nbytes"), [(1000, 27_000), (400, 1_000_000), (40, 27_000)])
def test_a_listing_requests_headers_only(kind: Kind, num_samples: int, nbytes: int, tmp_path: Path) -> None:
    """A header of 512 bytes for each image, and a header and 512 bytes for each label; one request for both."""
    path = kind.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", num_samples, nbytes)
    found = listed(kind)
    assert facts(found) == facts(list_sources(path))
    assert requested(kind) <= num_samples * 3 * 512 + overhead(kind, path.stat().st_size)
    assert len(kind.requests) <= 1.1 * num_samples + 10


@pytest.mark.parametrize("kind", KINDS)
def test_small_members_are_read_through(kind: Kind) -> None:
    """A request takes more time than a few kilobytes."""
    whole = tar_bytes(
        [(f"{i:05}.{e}", bytes(3000) if e == "png" else b"1") for i in range(2000) for e in ("png", "cls")]
    )
    kind.objects["a.tar"] = whole
    assert len(listed(kind).sources) == 2000
    assert len(kind.requests) <= 20
    assert requested(kind) <= len(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_attached_values_are_not_read_for_the_listing(kind: Kind) -> None:
    members = [(f"{i:04}.{e}", bytes(60_000)) for i in range(50) for e in ("json", "png", "txt")]
    kind.objects["a.tar"] = tar_bytes(members)
    assert [name for name, _ in listed(kind).fields] == ["json", "text"]
    assert requested(kind) <= 150 * 1024 + overhead(kind, 150 * 60_000)


@pytest.mark.parametrize("kind", KINDS)
def test_few_bytes_are_requested_if_sizes_vary(kind: Kind, tmp_path: Path) -> None:
    """The images of less than 16 KiB, or a request more for each, and little else."""
    sizes = np.random.default_rng(5).integers(0, 80_000, 1500).tolist()
    path = kind.objects["a.tar"] = tmp_path / "a.tar"
    pieces = [(header(b"%06d.png" % i, nbytes), -(-nbytes // 512) * 512) for i, nbytes in enumerate(sizes)]
    write_tar(path, itertools.chain(*pieces), ends=True)
    assert facts(listed(kind)) == facts(list_sources(path))
    small = [nbytes for nbytes in sizes if nbytes < 16 * 1024]
    assert requested(kind) <= 1024 * len(sizes) + 2 * sum(small) + overhead(kind, path.stat().st_size)
    assert len(kind.requests) <= 1.1 * len(sizes)


class Link:
    """A connection whose requests take time by a clock of its own."""

    counted, time = 0, 0.0

    def __init__(self, kind: Kind, seconds: float, nbytes_per_second: float) -> None:
        self.kind, self.seconds, self.rate = kind, seconds, nbytes_per_second
        self.lock = threading.Lock()

    def now(self) -> float:
        """Return the time at which all requests so far are answered, one after the other."""
        with self.lock:
            new = self.kind.requests[self.counted :]
            self.counted += len(new)
            self.time += len(new) * self.seconds + sum(nbytes for _, _, nbytes in new) / self.rate
            return self.time


@pytest.mark.parametrize(
    ("link", "least", "most"),
    [
        (Link(AtOnce, 0.01, 1e9), 0.5, 1.0),  # a request takes as long as 10 MB
        (Link(AtOnce, 0.01, 3e6), 0.0, 0.5),  # and as long as 30 kB: once 32 MiB were read, headers only again
        (Link(AtOnce, 0.0001, 1e9), 0.0, 0.1),  # all headers came within 3 s
        (Link(OneByOne, 0.1, 1e8), 0.9, 1.0),
    ],
)
def test_a_long_listing_reads_on_where_this_is_measured_to_be_faster(
    link: Link, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = link.kind.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", 6000, 27_000)
    monkeypatch.setattr("lmdbloader.conversion.sources.pace.perf_counter", link.now)
    assert facts(listed(link.kind)) == facts(list_sources(path))
    assert least <= requested(link.kind) / path.stat().st_size <= most


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_tars_are_read_or_refused_as_from_a_disk(kind: Kind, tmp_path: Path) -> None:
    good, path = member(b"good.png", png(1)), tmp_path / "a.tar"
    words = set()
    for number in range(10 * len(MAKERS)):
        rng = random.Random(f"remote hostile tar {number}")
        name = list(MAKERS)[number % len(MAKERS)]
        pieces = MAKERS[name](rng, good)
        write_tar(path, pieces, ends=rng.random() < 0.9)
        kind.objects["a.tar"] = path
        expected = outcome(path)
        assert outcome(f"{kind.protocol}://a.tar") == expected, (number, name)
        words.add(isinstance(expected, tuple) and expected[0] == "SourceError")
    assert words == {True, False}


@st.composite
def _tars(draw: st.DrawFn) -> list[bytes]:
    """Members of 0 to 60 kB, some of which are tars themselves."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    usual = draw(st.sampled_from([20_000, 30_000, 60_000]))
    inner = b"".join(member(b"inner%d.png" % i, bytes(700)) for i in range(rng.randrange(1, 40)))
    pieces = []
    for i in range(draw(st.integers(100, 400))):
        nbytes = rng.choice((usual, usual, rng.randrange(60_000)))
        content = inner[: nbytes // 512 * 512].ljust(nbytes, b"\0") if rng.random() < 0.3 else bytes(nbytes)
        kind = rng.choice((b"0", b"0", b"0", b"x"))
        pieces += [member(b"%06d.png" % i, content)] if kind == b"0" else [
            member(b"p", b"19 path=%06d.png\n" % i, b"x"), member(b"cut", content)
        ]  # fmt: skip
    if draw(st.booleans()):
        pieces[rng.randrange(len(pieces))] = bytes(512 * rng.randrange(3))
    if draw(st.booleans()):
        pieces.insert(rng.randrange(len(pieces)), b"x" * 512)
    return [*pieces, bytes(1024)]


@given(_tars())
def test_requests_ahead_of_the_reader_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    """Tars in tars look like members, and damage may be anywhere."""
    path = tmp_path_factory.getbasetemp() / "ahead.tar"
    path.write_bytes(b"".join(pieces))
    AtOnce.objects["a.tar"] = path
    assert outcome("together://a.tar") == outcome(path)


def test_later_parts_of_one_tar_are_requested_before_earlier_ones(tmp_path: Path) -> None:
    """Four requests wait for each other, which a reader that waits for each answer would never do."""
    AtOnce.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", 1000, 27_000)
    nbytes = (tmp_path / "a.tar").stat().st_size
    barrier, met = threading.Barrier(4), itertools.count(1)

    def meet(path: str, start: int) -> None:
        if start > nbytes // 10 and next(met) <= 4:
            barrier.wait(timeout=60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtOnce, "before", staticmethod(meet))
        assert len(listed(AtOnce).sources) == 1000
    assert not barrier.broken


def test_nothing_is_taken_from_a_tar_that_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests are the reader's own, one after the other; services refuse those for the file that is gone."""
    AtOnce.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", 1000, 27_000)
    facts, times = AtOnce.facts, itertools.count()
    monkeypatch.setattr(AtOnce, "facts", lambda self, path: {**facts(self, path), "created": next(times)})
    assert len(listed(AtOnce).sources) == 1000
    assert next(times) > 10
    starts = [start for _, start, _ in AtOnce.requests]
    assert starts == sorted(starts)


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
    with pytest.raises(SourceError, match=r"together://set/03\.tar: is compressed, .* Use gzip -d"):
        listed(AtOnce, "set")


def test_a_file_that_has_become_shorter_is_not_read_as_another_tar(tmp_path: Path) -> None:
    OneByOne.objects["a.tar"] = sparse_tar(tmp_path / "a.tar", 100, 30_000)

    def shorten(path: str, start: int) -> None:
        if start > 10**6:
            OneByOne.objects["a.tar"] = bytes(100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneByOne, "before", staticmethod(shorten))
        with pytest.raises(SourceError, match=r"a\.tar: cannot be listed .* bytes arrived instead of .*was changed"):
            listed(OneByOne)


def test_a_service_without_sizes_is_refused() -> None:
    OneByOne.objects["a.tar"] = tar_bytes([("a.png", b"x")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneByOne, "facts", lambda self, path: {"name": path, "size": None, "type": "file"})
        with pytest.raises(SourceError, match=r"a\.tar: the server gives no size for it\. Copy it to a disk first"):
            listed(OneByOne)


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
    nbytes = sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found)
    assert nbytes <= 2 * (120 * 3 * 512 + overhead(AtOnce, path.stat().st_size))
    assert sum(found is None for found in ranges) <= 5  # none asks for a file, or for facts that the folder's list has


@pytest.mark.parametrize("handler", [NoRanges, SaysNoRanges])
def test_a_server_that_sends_whole_files_only_is_refused_at_once(handler: type[NoRanges]) -> None:
    """A conversion would ask for the whole tar again and again, in vain."""
    pytest.importorskip("aiohttp")
    whole = tar_bytes([(f"{i:03}.png", b"%d" % i * 10_000) for i in range(100)])
    with serve({"files": {"x.tar": whole}}, handler) as (url, requests):
        with pytest.raises(SourceError, match=r"x\.tar: .* does not send parts of files: copy it to a disk first"):
            list_sources(locate(f"{url}/x.tar"))
        assert requests.count("GET /x.tar") <= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_requests_each_member_once(kind: Kind, tmp_path: Path) -> None:
    """In addition to those that are tried for the codec and the size, at most 32."""
    members = [(f"{i:03}.{e}", png(i, 100) if e == "png" else b"%d" % i) for i in range(120) for e in ("png", "cls")]
    kind.objects["a.tar"] = tar_bytes(members)
    save_tar(tmp_path / "a.tar", *members)
    list_sources(locate(f"{kind.protocol}://a.tar"))
    of_listing = requested(kind)
    kind.requests.clear()
    lmdbloader.convert(f"{kind.protocol}://a.tar", tmp_path / "remote")
    asked = requested(kind) - of_listing
    whole = sum(1024 + len(data) + 512 for _, data in members)
    assert asked <= whole * (1 + 32 / 120)
    lmdbloader.convert(tmp_path / "a.tar", tmp_path / "local")
    for name in ("data.mdb", "index.arrow"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
