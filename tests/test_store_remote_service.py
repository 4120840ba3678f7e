"""The service behind a URL: what is asked of it, for how long, and what each of its errors becomes."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from endless_server import endless_server
from remote_store import Server, serving
from s3_server import NoRanges, serve

from lmdbloader import LMDBDataset, errors
from lmdbloader.store.remote import service as service_module
from lmdbloader.store.remote.service import Service

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
    assert service.size("data.mdb") == len(DATA)
    assert service.get("data.mdb", 100, 777) == DATA[100:777]
    assert service.get("manifest.json", 0, 2) == b"{}"
    assert server.requests[-2:] == [
        "GET /bucket/train.lmdb/data.mdb bytes=100-776", "GET /bucket/train.lmdb/manifest.json bytes=0-1"
    ]  # fmt: skip


def test_a_server_without_ranges_is_refused_and_its_file_not_loaded() -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'lmdbloader[remote]'")
    with serve({"files": {"d/data.mdb": DATA}}, NoRanges) as (url, requests):
        with pytest.raises(errors.DiskError, match=r"data\.mdb: the server sends more than the 10 bytes"):
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
            Service(url).size("data.mdb")
    assert time.monotonic() - start < 20  # nothing was tried for half a minute


@pytest.mark.parametrize("sends_ranges", [True, False])
def test_an_answer_without_an_end_is_an_error_and_is_not_kept(tmp_path: Path, sends_ranges: bool) -> None:
    with endless_server(3000, sends_ranges=sends_ranges) as url:
        tracemalloc.start()
        try:
            with pytest.raises(errors.DiskError, match=r"manifest\.json: the server sends more than the 3000"):
                LMDBDataset(f"{url}/train.lmdb", cache_dir=tmp_path)
            assert tracemalloc.get_traced_memory()[1] < 30e6
        finally:
            tracemalloc.stop()
