"""The service behind a URL: what is asked of it, for how long, and what each of its errors becomes."""

from __future__ import annotations

import pickle
import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from endless_server import endless_server
from remote_store import Server, serving
from s3_server import Handler, NoRanges, serve

from lmdbloader import LMDBDataset, errors
from lmdbloader.store.remote import service as service_module
from lmdbloader.store.remote.service import Facts, Service

DATA = bytes(range(256)) * 40


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({"train.lmdb/data.mdb": DATA, "train.lmdb/manifest.json": b"{}"}) as found:
        yield found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(service_module, "_LONGEST_PAUSE_SECONDS", 0.05)


def test_ranges_arrive_as_they_are(server: Server) -> None:
    service = Service("s3://bucket/train.lmdb/")
    facts = service.facts("data.mdb")
    assert facts.nbytes == len(DATA)
    assert facts.version.startswith('ETag "')
    assert service.get("data.mdb", 100, 777, facts.version) == DATA[100:777]
    assert service.get("manifest.json", 0, 2) == b"{}"
    assert server.requests[-2:] == [
        "GET /bucket/train.lmdb/data.mdb bytes=100-776", "GET /bucket/train.lmdb/manifest.json bytes=0-1"
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_another_version_is_an_error_at_once(server: Server, scheme: str) -> None:
    service = Service("s3://bucket/train.lmdb" if scheme == "s3" else f"{server.url}/bucket/train.lmdb")
    version = service.facts("data.mdb").version
    server.objects["train.lmdb/data.mdb"] = DATA[::-1]
    count = len(server.requests)
    with pytest.raises(errors.CorruptError, match="was replaced since it was opened"):
        service.get("data.mdb", 0, 10, version)
    assert len(server.requests) <= count + 1


def test_a_server_that_ignores_conditions_is_found_out_by_its_answer() -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    with serve({"bucket": {"d/data.mdb": DATA}}) as (url, _):  # it knows no If-Match
        service = Service(f"{url}/bucket/d")
        assert service.get("data.mdb", 0, 10, service.facts("data.mdb").version) == DATA[:10]
        with pytest.raises(errors.CorruptError, match="was replaced"):
            service.get("data.mdb", 0, 10, 'ETag "another"')


def test_a_server_without_ranges_is_refused_and_its_file_not_loaded() -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    with serve({"files": {"d/data.mdb": DATA}}, NoRanges) as (url, requests):
        with pytest.raises(errors.DiskError, match="sends the whole file instead of a range"):
            Service(f"{url}/d").get("data.mdb", 0, 10)
        assert len(requests) == 1


@pytest.mark.parametrize(("fault", "told"), [("503", "SlowDown|503"), ("cut", ""), ("short", "bytes arrived")])
def test_faults_that_stay_are_an_error_after_several_attempts(
    server: Server, soon: None, fault: str, told: str
) -> None:
    server.fault = lambda number, start: fault
    state = random.getstate()
    with pytest.raises(errors.DiskError, match=rf"data\.mdb: cannot be read: .*({told}).*tried [3-9] times"):
        Service("s3://bucket/train.lmdb").get("data.mdb", 0, 1000)
    assert server.num_data >= 3
    assert random.getstate() == state  # a program that has seeded it draws the same numbers as without faults


def test_a_missing_file_is_an_error_at_once(server: Server) -> None:
    start = time.monotonic()
    for url in ("s3://bucket/none", f"{server.url}/bucket/none", "memory://none"):
        with pytest.raises(errors.NotFoundError, match="nothing is there"):
            Service(url).facts("data.mdb")
    assert time.monotonic() - start < 20  # nothing was tried for half a minute


@pytest.mark.parametrize("url", ["s3://bucket/train.lmdb", "http://127.0.0.1:9/train.lmdb"])
def test_nobody_there_is_an_error_that_names_the_server(url: str, soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    for name, value in (("ENDPOINT_URL", "http://127.0.0.1:9"), ("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(errors.DiskError, match=r"127\.0\.0\.1:9") as caught:
        Service(url).facts("data.mdb")
    assert "FileNotFoundError" not in str(caught.value)  # which fsspec raises for whatever a web server does


def test_a_pickle_has_the_server_and_no_keys(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(Service("s3://bucket/train.lmdb"))
    assert b"secret" not in data and server.url.encode() in data
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert pickle.loads(data).facts("data.mdb").nbytes == len(DATA)


def test_without_an_etag_the_time_tells_versions_apart(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/versions/data.mdb", DATA)
    (tmp_path / "data.mdb").write_bytes(DATA)
    for url in ("memory://versions", f"file://{tmp_path}"):
        assert Service(url).facts("data.mdb").version not in ("", Facts(0, "").version)
        assert Service(url).get("data.mdb", 3, 9) == DATA[3:9]


def test_a_url_that_nobody_knows_is_an_option_error() -> None:
    with pytest.raises(errors.OptionError, match="nosuch"):
        Service("nosuch://bucket/x").facts("data.mdb")


class NoETags(Handler):
    """A web server that states times only, and may answer with another range."""

    modified, shift = "Mon, 01 Jan 2024 00:00:00 GMT", 0

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        headers = {name: value for name, value in headers.items() if name != "ETag"}
        if "Content-Range" in headers:
            first, last = (int(text) + self.shift for text in headers["Content-Range"].split()[1][:-6].split("-"))
            headers["Content-Range"] = f"bytes {first}-{last}/{len(DATA)}"
            body = DATA[first : last + 1]
        super()._send(status, body, {**headers, "Last-Modified": self.modified})


def test_a_web_server_without_etags_that_replaced_a_file_is_found_out(soon: None) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    handler = type("Own", (NoETags,), {})
    with serve({"bucket": {"d/data.mdb": DATA}}, handler) as (url, _):
        service = Service(f"{url}/bucket/d")
        version = service.facts("data.mdb").version
        assert service.get("data.mdb", 0, 10, version) == DATA[:10]
        handler.modified = "Tue, 02 Jan 2024 00:00:00 GMT"
        with pytest.raises(errors.CorruptError, match=r"was replaced since it was opened .*Tue, 02"):
            service.get("data.mdb", 0, 10, version)


def test_another_range_than_the_requested_one_is_no_answer(soon: None) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    handler = type("Own", (NoETags,), {"shift": 256})
    told = "bytes 356-456/10240 arrived instead of bytes 100-200"
    with serve({"bucket": {"d/data.mdb": DATA}}, handler) as (url, _), pytest.raises(errors.DiskError, match=told):
        Service(f"{url}/bucket/d").get("data.mdb", 100, 201)


@pytest.mark.parametrize("sends_ranges", [True, False])
def test_an_answer_without_an_end_is_an_error_and_is_not_kept(tmp_path: Path, sends_ranges: bool) -> None:
    with endless_server(3000, sends_ranges=sends_ranges) as url:
        tracemalloc.start()
        try:
            with pytest.raises(
                errors.DiskError, match=r"manifest\.json: the server sends (more than the 3000|the whole)"
            ):
                LMDBDataset(f"{url}/train.lmdb", cache_dir=tmp_path)
            assert tracemalloc.get_traced_memory()[1] < 30e6
        finally:
            tracemalloc.stop()
