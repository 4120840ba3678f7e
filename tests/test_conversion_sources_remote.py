"""Remote files as sources: memory://, a local S3 server, plain HTTP; and their errors."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from endless_server import endless_server
from hypothesis import given
from hypothesis import strategies as st
from s3_server import Buckets, NoRanges, serve
from tars import png, tar_bytes

import lmdbloader
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.conversion.sources.listing import Listing, Span
from lmdbloader.conversion.sources.reading import fetch, read
from lmdbloader.conversion.sources.remote import locate, read_remote
from lmdbloader.errors import ImageError, SourceError

fsspec = pytest.importorskip("fsspec")

OBJECTS = {
    **{f"set/{c}/{i}.png": png(10 * i + len(c)) for c in ("cat", "zebra") for i in range(4)},
    "set/notes.txt": b"no image",
    "set/__MACOSX/cat/._0.png": b"no image",
    "set/cat/._0.png": b"no image",
    "set/": b"",  # as a console makes an empty folder
    "ü/a b+c%41.png": png(7),
    "pairs/hr/1.png": png(1, 12),
    "pairs/lr/1x2.png": png(1),
    "tars/a.tar": tar_bytes([("0.png", png(0)), ("0.cls", b"4"), ("1.png", png(1)), ("1.cls", b"5")]),
    "tars/b.tar": tar_bytes([("0.png", png(2)), ("0.cls", b"6")]),
    "other/readme.md": b"nothing here",
}
BUCKETS: Buckets = {"bucket": OBJECTS, "empty": {}}


@pytest.fixture(scope="module")
def s3() -> Iterator[list[str]]:
    """The buckets behind s3://; the list is of the requests."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    with serve(BUCKETS) as (url, requests), pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield requests
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def memory() -> Iterator[None]:
    """The same files behind memory://."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()  # other modules of this process write there, too
    filesystem.pipe({f"/bucket/{key}": data for key, data in OBJECTS.items() if not key.endswith("/")})
    yield
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return f"{request.param}://bucket"


def contents(listing: Listing) -> dict[str, bytes]:
    fetched = fetch(listing.sources)
    found = {s.name: read(s.file, fetched) for s in listing.sources}
    assert found == {s.name: read(s.file) for s in listing.sources}
    return found


def test_a_url_is_listed_like_a_folder(bucket: str) -> None:
    for url in (f"{bucket}/set", f"{bucket}/set/"):
        listing = list_sources(locate(url))
        assert (listing.layout, listing.classes) == ("classes", ("cat", "zebra"))
        assert [s.name for s in listing.sources] == [f"{c}/{i}.png" for c in ("cat", "zebra") for i in range(4)]
        assert [s.label for s in listing.sources] == [0] * 4 + [1] * 4
        assert contents(listing) == {
            k[4:]: v for k, v in OBJECTS.items() if k.startswith("set/") and "._" not in k and ".png" in k
        }
        assert [name for name, _ in listing.ignored] == ["*.txt", "._*", "__MACOSX"]
        assert [s.nbytes for s in listing.sources] == [len(v) for v in contents(listing).values()]
    assert list_sources(locate(f"{bucket}/set/zebra")).layout == "images"


def test_pairs_behind_two_urls(bucket: str) -> None:
    listing = list_sources(None, hr=locate(f"{bucket}/pairs/hr"), lr=locate(f"{bucket}/pairs/lr"))
    (pair,) = listing.sources
    assert (pair.name, pair.lr_name) == ("1.png", b"1x2.png")
    fetched = fetch([pair])
    assert [read(f, fetched) for f in pair.files] == [png(1, 12), png(1)]


@pytest.mark.parametrize("place", ["tars", "tars/*.tar", "tars/{a,b}.tar"])
def test_tars_behind_a_url(bucket: str, place: str) -> None:
    listing = list_sources(locate(f"{bucket}/{place}"), layout="tar")
    assert contents(listing) == {"a.tar/0.png": png(0), "a.tar/1.png": png(1), "b.tar/0.png": png(2)}
    fetched = fetch(listing.sources)
    assert [read(s.files[1], fetched) for s in listing.sources] == [b"4", b"5", b"6"]


def test_members_close_together_come_by_one_request(s3: list[str]) -> None:
    listing = list_sources(locate("s3://bucket/tars"), layout="tar")
    s3.clear()
    fetch(listing.sources)
    assert sorted(request.partition(" bytes")[0] for request in s3) == [
        "GET /bucket/tars/a.tar",
        "GET /bucket/tars/b.tar",
    ]


def test_missing_remote_files(bucket: str) -> None:
    with pytest.raises(SourceError, match=r"nowhere: nothing is there"):
        list_sources(locate(f"{bucket}/nowhere"))
    with pytest.raises(SourceError, match=r"//other/set: nothing is there"):
        list_sources(locate(bucket.replace("bucket", "other") + "/set"))
    with pytest.raises(SourceError, match=r"c\.tar: nothing is there"):
        list_sources(locate(f"{bucket}/tars/{{a,c}}.tar"))


def test_what_was_removed_meanwhile_is_an_error_of_that_file(bucket: str) -> None:
    listing = list_sources(locate(f"{bucket}/set/cat"))
    gone, kept = listing.sources[0], listing.sources[1]
    gone = replace(gone, file=(gone.file if isinstance(gone.file, bytes) else b"") + b"x")
    fetched = fetch([gone, kept])
    assert read(kept.file, fetched) == OBJECTS["set/cat/1.png"]
    with pytest.raises(OSError, match="FileNotFoundError"):
        read(gone.file, fetched)


def test_what_only_this_process_sees_is_known(memory: None) -> None:
    assert list_sources(locate("memory://bucket/set")).in_process
    assert list_sources(None, hr=locate("memory://bucket/pairs/hr"), lr=locate("memory://bucket/pairs/lr")).in_process


def test_file_urls_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    assert locate(f"file://{tmp_path}") == tmp_path
    assert [s.name for s in list_sources(locate(f"file://{tmp_path}")).sources] == ["a.png"]
    assert locate("C:/x") == Path("C:/x")
    assert isinstance(locate("simplecache::s3://bucket/x"), str)


def test_plain_http_serves_folders_but_no_parts_of_files() -> None:
    pytest.importorskip("aiohttp")
    files = {"set/a/1.png": png(1), "set/b/2 3.png": png(2), "set/x.tar": tar_bytes([("0.png", png(0))])}
    with serve({"files": files}, NoRanges) as (url, _):
        listing = list_sources(locate(f"{url}/set"))
        assert listing.classes == ("a", "b")
        assert [read(s.file) for s in listing.sources] == [png(1), png(2)]
        assert [s.nbytes for s in listing.sources] == [len(png(1)), len(png(2))]
        assert listing.changed_ns is None
        tar = list_sources(locate(f"{url}/set/x.tar")).sources[0]
        with pytest.raises(OSError, match="does not send parts of files; copy it to a disk first"):
            read(tar.file)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300_000), st.integers(0, 90_000)), max_size=12))
def test_parts_of_files_are_right_whichever_of_them_come_together(parts: list[tuple[str, int, int]]) -> None:
    filesystem = fsspec.filesystem("memory")
    data = {name: np.random.default_rng(ord(name)).bytes(400_000) for name in "ab"}
    filesystem.pipe({f"/parts/{name}": value for name, value in data.items()})
    files = [Span(f"memory://parts/{name}".encode(), start, nbytes) for name, start, nbytes in parts]
    expected = [data[name][start : start + nbytes] for name, start, nbytes in parts]
    whole = b"memory://parts/a"
    assert read_remote([*files, whole], {whole: len(data["a"])}) == [*expected, data["a"]]


@pytest.mark.parametrize("sends_ranges", [True, False])
@pytest.mark.parametrize("place", ["photos", "a.tar"])
def test_an_answer_without_an_end_is_an_error_and_is_not_kept(tmp_path: Path, place: str, sends_ranges: bool) -> None:
    with endless_server(30_000, sends_ranges=sends_ranges) as url:
        tracemalloc.start()
        try:
            with pytest.raises((SourceError, ImageError), match=r"more than the|parts of files|no images in it"):
                lmdbloader.convert(f"{url}/{place}", tmp_path / "out", workers=1)
            assert tracemalloc.get_traced_memory()[1] < 30e6
        finally:
            tracemalloc.stop()
