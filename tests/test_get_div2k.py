"""Fetching DIV2K: broken, continued, changed and refused transfers from a local server, and hostile archives."""

from __future__ import annotations

import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loading_scripts import load_script

get_div2k = load_script("get_div2k")


@dataclass
class Site:
    """The server's files and its misbehavior.

    Attributes:
        files: Path -> content.
        etag: Sent with every file and compared with If-Range; "" sends none.
        break_after: Bytes after which each answer's connection breaks, one entry per answer, None for a whole answer.
        ranges: Whether Range is honored.
        failures: Answers of 503 before anything is served.
        requests: The Range header of every request so far.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    break_after: list[int | None] = field(default_factory=list)
    ranges: bool = True
    failures: int = 0
    requests: list[str | None] = field(default_factory=list)
    url: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        asked = self.headers["Range"]
        site.requests.append(asked)
        if site.failures:
            site.failures -= 1
            return self.send_error(503)
        if self.path not in site.files:
            return self.send_error(404)
        content = site.files[self.path]
        start = 0
        if asked and site.ranges and self.headers["If-Range"] in (None, site.etag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if site.etag:
            self.send_header("ETag", site.etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        limit = site.break_after.pop(0) if site.break_after else None
        self.wfile.write(content[start:] if limit is None else content[start : start + limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield site
        server.shutdown()
        thread.join()


def archive_of(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return content.getvalue()


BYTES = bytes(range(256)) * 400


def fetch(site: Site, folder: Path, *, attempts: int = 3) -> Path:
    site.files.setdefault("/file.zip", BYTES)
    destination = folder / "file.zip"
    get_div2k.download(f"{site.url}/file.zip", destination, timeout=5, attempts=attempts, pause=0)
    return destination


def test_a_download_arrives_whole_and_leaves_nothing_else(site: Site, tmp_path: Path) -> None:
    assert fetch(site, tmp_path).read_bytes() == BYTES
    assert [path.name for path in tmp_path.iterdir()] == ["file.zip"]


def test_a_broken_connection_is_continued_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.break_after = [1000, 500, None]

    assert fetch(site, tmp_path).read_bytes() == BYTES
    assert site.requests == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_call_resumes_an_earlier_download(site: Site, tmp_path: Path) -> None:
    site.break_after = [1000, 0]
    with pytest.raises(get_div2k.DownloadError, match=r"1,000 bytes are kept; run the same command again"):
        fetch(site, tmp_path, attempts=1)
    assert (tmp_path / "file.zip.part").stat().st_size == 1000
    assert not (tmp_path / "file.zip").exists()

    assert fetch(site, tmp_path).read_bytes() == BYTES
    assert site.requests == [None, "bytes=1000-", "bytes=1000-"]


def test_a_file_that_changed_meanwhile_starts_over(site: Site, tmp_path: Path) -> None:
    site.break_after = [1000, 0]
    with pytest.raises(get_div2k.DownloadError):
        fetch(site, tmp_path, attempts=1)
    site.etag, site.files["/file.zip"] = '"two"', BYTES[::-1]

    assert fetch(site, tmp_path).read_bytes() == BYTES[::-1]


@pytest.mark.parametrize("etag", ['"one"', "", 'W/"weak"'])
def test_a_server_without_ranges_or_a_usable_version_starts_over(site: Site, tmp_path: Path, etag: str) -> None:
    site.etag, site.ranges, site.break_after = etag, False, [1000]

    assert fetch(site, tmp_path).read_bytes() == BYTES
    assert site.requests[1] == ("bytes=1000-" if etag == '"one"' else None)


# --- The command ---


def run(site: Site, out: Path, *options: str) -> int:
    status = get_div2k.main([str(out), "--base-url", site.url + "/", "--timeout", "5", *options])
    assert isinstance(status, int)
    return status


def test_the_command_fetches_and_unpacks_the_chosen_parts(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.files["/DIV2K_valid_HR.zip"] = archive_of({"DIV2K_valid_HR/0801.png": b"hr"})
    for scale in (2, 3):
        member = f"DIV2K_valid_LR_bicubic/X{scale}/0801x{scale}.png"
        site.files[f"/DIV2K_valid_LR_bicubic_X{scale}.zip"] = archive_of({member: b"lr"})
    parts = ("--parts", "valid_hr", "valid_x2", "valid_x3")

    assert run(site, tmp_path, *parts) == 0
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "DIV2K_valid_HR/0801.png",
        "DIV2K_valid_LR_bicubic/X2/0801x2.png",
        "DIV2K_valid_LR_bicubic/X3/0801x3.png",
    ]
    assert str(tmp_path / "DIV2K_valid_LR_bicubic" / "X2") in capsys.readouterr().out

    asked = len(site.requests)
    assert run(site, tmp_path, *parts) == 0
    assert len(site.requests) == asked


def test_a_damaged_archive_is_fetched_again_by_the_next_call(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = archive_of({"DIV2K_valid_HR/0801.png": b"hr" * 1000})
    site.files["/DIV2K_valid_HR.zip"] = whole[: len(whole) // 2]

    assert run(site, tmp_path, "--parts", "valid_hr") == 1
    assert "the archive was damaged" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

    site.files["/DIV2K_valid_HR.zip"] = whole
    assert run(site, tmp_path, "--parts", "valid_hr") == 0


@pytest.mark.parametrize(
    "name",
    ["../outside.png", "DIV2K_valid_HR/../../outside.png", "/tmp/outside.png", "..\\outside.png", "C:\\outside.png"],
)
def test_an_archive_that_leads_out_of_the_folder_is_refused_whole(
    name: str, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.files["/DIV2K_valid_HR.zip"] = archive_of({"DIV2K_valid_HR/0801.png": b"hr", name: b"evil"})

    assert run(site, tmp_path / "out", "--parts", "valid_hr") == 1
    assert "leads out of the folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["DIV2K_valid_HR.zip"]


def test_an_archive_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "large.zip"
    archive.write_bytes(archive_of({"folder/large.png": b"12345"}))
    monkeypatch.setattr(get_div2k.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4, "total": 9})())

    with pytest.raises(get_div2k.DownloadError, match="unpacking needs"):
        get_div2k.unpack(archive, "folder", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["large.zip"]
