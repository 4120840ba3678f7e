"""`stage` to a URL: a copy that opens, is complete or refused, continues, and never has files of two datasets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import flip
from part_sets import tree
from remote_store import Server, objects_of, same, serving, write_parts

from lmdbloader import LMDBDataset, errors, stage
from lmdbloader.cli import main
from lmdbloader.store.remote.service import Service

URL = "s3://bucket/train.lmdb"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_parts(tmp_path_factory.mktemp("local") / "train.lmdb", [30, 100, 20])
    (path / "skipped.tsv").write_text("name\treason\n")
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose files have the same lengths."""
    return write_parts(tmp_path_factory.mktemp("other") / "train.lmdb", [30, 100, 20], seed=1)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({}) as found:
        yield found


def puts(server: Server) -> list[str]:
    """Return the names of the files that were uploaded, in order."""
    lines = [line.partition("?")[0] for line in server.requests if line.startswith("PUT /bucket/train.lmdb/")]
    return [line.rpartition("/")[2] for line in lines]


def stop_at(server: Server, name: str, url: str = URL) -> None:
    """Let the upload of a file be refused."""
    server.refusal = lambda request: 403 * request.startswith(f"PUT /bucket/{url.rpartition('/')[2]}/{name}")


def test_a_copy_is_equal_and_made_once(server: Server, local: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    assert stage(local, "s3://bucket/", log=lines.append) == URL
    assert server.objects == objects_of(local)
    assert puts(server)[0] == "manifest.upload.json" and puts(server)[-1] == "manifest.json"
    assert all(same(a, b) for a, b in zip(LMDBDataset(URL, cache_dir=tmp_path), LMDBDataset(local), strict=True))
    count = len(puts(server))
    assert stage(local, URL, log=lines.append) == URL
    assert lines[-1] == f"{URL}: staged already" and len(puts(server)) == count


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_other_kinds_of_urls_have_the_same_rules(scheme: str, local: Path, other: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'lmdbloader[remote]'")
    url = f"{scheme}://{tmp_path}/copy.lmdb"
    for _ in range(2):
        assert stage(local, url) == url
    with pytest.raises(errors.DestinationError, match=r"a dataset is there already.*overwrite=True"):
        stage(other, url)
    stage(other, url, overwrite=True)
    back = stage(url, tmp_path / "back")
    assert tree(Path(back)) == tree(other)


def test_an_upload_that_was_killed_continues(server: Server, local: Path, other: Path, tmp_path: Path) -> None:
    kill = {"pid": 0}

    def refusal(request: str) -> int:
        if kill["pid"] and request.startswith("PUT /bucket/train.lmdb/data-00001.mdb"):
            os.kill(kill["pid"], signal.SIGKILL)
            return 403
        return 0

    server.refusal = refusal
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.stdin.read(); import lmdbloader; lmdbloader.stage({str(local)!r}, {URL!r})",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        kill["pid"] = process.pid
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(errors.NotFoundError, match=r"there is no dataset: it has no manifest\.json"):
        LMDBDataset(URL, cache_dir=tmp_path)
    with pytest.raises(errors.DestinationError, match="a part of another dataset is there"):
        stage(other, URL)
    kill["pid"], before = 0, len(puts(server))
    stage(local, URL)
    assert [n for n in puts(server)[before:] if n.endswith((".mdb", ".arrow"))] == ["data-00001.mdb", "data-00002.mdb"]
    assert server.objects == objects_of(local)


def test_files_of_another_dataset_with_the_same_lengths_are_not_kept(server: Server, local: Path, other: Path) -> None:
    sizes = {name: len(content) for name, content in tree(local).items() if name.endswith(".mdb")}
    assert sizes == {name: len(content) for name, content in tree(other).items() if name.endswith(".mdb")}
    stop_at(server, "data-00002.mdb")
    with pytest.raises(errors.DiskError, match="access denied"):
        stage(other, URL)
    server.refusal = lambda request: 0
    stage(local, URL, overwrite=True)
    assert server.objects == objects_of(local)


@pytest.mark.parametrize(
    "at", ["DELETE manifest.json", "DELETE data.mdb", "PUT manifest.upload.json", "PUT data-00001"]
)
def test_a_dataset_is_replaced_only_when_asked_and_is_never_a_mixture(
    server: Server, local: Path, other: Path, tmp_path: Path, at: str
) -> None:
    stage(other, URL)
    with pytest.raises(errors.DestinationError, match=r"a dataset is there already.*overwrite=True"):
        stage(local, URL)
    assert server.objects == objects_of(other)
    method, name = at.split()
    server.refusal = lambda request: 403 * request.startswith(f"{method} /bucket/train.lmdb/{name}")
    with pytest.raises(errors.DiskError, match="access denied"):
        stage(local, URL, overwrite=True)
    if "manifest" in at:
        assert all(same(a, b) for a, b in zip(LMDBDataset(URL, cache_dir=tmp_path), LMDBDataset(other), strict=True))
    else:
        assert "train.lmdb/manifest.json" not in server.objects
    server.refusal = lambda request: 0
    stage(local, URL, overwrite=True)
    assert server.objects == objects_of(local)


def test_only_the_new_parts_of_a_grown_dataset_are_uploaded(server: Server, local: Path, tmp_path: Path) -> None:
    stage(local, URL)
    grown = write_parts(tmp_path / "grown.lmdb", [30, 100, 20, 10])
    before = len(puts(server))
    stage(grown, URL)
    assert [name for name in puts(server)[before:] if name.endswith(".mdb")] == ["data-00003.mdb"]
    assert server.objects == objects_of(grown)


@pytest.mark.parametrize("how", ["cut", "missing", "changed"])
def test_a_damaged_copy_is_made_again(server: Server, local: Path, how: str) -> None:
    stage(local, URL)
    key = "train.lmdb/data-00001.mdb"
    data = server.objects.pop(key)
    if how != "missing":
        server.objects[key] = data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1])
    lines: list[str] = []
    before = len(puts(server))
    stage(local, URL, check=how == "changed", log=lines.append)
    assert any("damaged; it is uploaded again" in line for line in lines)
    assert [name for name in puts(server)[before:] if name.endswith(".mdb")] == ["data-00001.mdb"]
    assert server.objects == objects_of(local)


def test_other_things_are_never_replaced(server: Server, local: Path) -> None:
    server.objects["train.lmdb/thesis.txt"] = b"mine"
    with pytest.raises(errors.DestinationError, match=r"holds 'thesis\.txt'"):
        stage(local, URL, overwrite=True)
    assert server.objects == {"train.lmdb/thesis.txt": b"mine"}
    server.objects.clear()
    for name, content in (("data.mdb", b"an LMDB of another program"), ("manifest.json", b"of a web page")):
        server.objects[f"train.lmdb/{name}"] = content
        with pytest.raises(errors.DestinationError, match=r"holds 'data\.mdb', which is of no dataset"):
            stage(local, URL, overwrite=True)
        assert server.objects[f"train.lmdb/{name}"] == content


def test_a_damaged_note_about_an_upload_is_of_no_other_program(server: Server, local: Path, other: Path) -> None:
    stop_at(server, "data-00002.mdb")
    with pytest.raises(errors.DiskError, match="access denied"):
        stage(other, URL)
    server.objects["train.lmdb/manifest.upload.json"] = b"{"
    stop_at(server, "data.mdb")
    with pytest.raises(errors.DiskError, match="access denied"):
        stage(local, URL, overwrite=True)
    server.refusal = lambda request: 0
    stage(local, URL)
    assert server.objects == objects_of(local)


def test_a_damaged_source_is_refused_and_replaces_nothing(server: Server, local: Path, tmp_path: Path) -> None:
    stage(local, URL)
    path = write_parts(tmp_path / "train.lmdb", [30, 20])
    flip(path, 9000, "data-00001.mdb")
    with pytest.raises(errors.CorruptError, match=r"data-00001\.mdb: its digest is"):
        stage(path, URL, overwrite=True)
    assert server.objects == objects_of(local)


def test_a_large_file_is_sent_in_pieces_and_a_piece_again(
    server: Server, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 2**17)
    failures = iter([503, 503])
    server.refusal = lambda request: next(failures, 0) if "partNumber=2" in request else 0
    stage(local, URL)
    assert server.objects == objects_of(local)
    assert sum("partNumber=1&" in line for line in server.requests) == 3, "each file was sent once"


def test_what_another_process_has_removed_is_no_error() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'lmdbloader[remote]'")
    Service("memory://nothing/train.lmdb").remove("manifest.upload.json")


def test_another_process_may_finish_the_same_upload(server: Server, local: Path) -> None:
    def refusal(request: str) -> int:
        if request.startswith("PUT /bucket/train.lmdb/skipped.tsv"):
            server.objects["train.lmdb/manifest.json"] = server.objects.pop("train.lmdb/manifest.upload.json")
        return 0

    server.refusal = refusal
    assert stage(local, URL) == URL
    assert server.objects == objects_of(local)


def test_a_source_that_is_replaced_meanwhile_is_found(server: Server, local: Path, other: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(local, tmp_path / "train.lmdb"))

    def refusal(request: str) -> int:
        if request.startswith("PUT /bucket/train.lmdb/data.mdb"):
            shutil.copytree(other, source, dirs_exist_ok=True)
        return 0

    server.refusal = refusal
    with pytest.raises(errors.DestinationError, match="was changed by another process meanwhile"):
        stage(source, URL)
    assert "train.lmdb/manifest.json" not in server.objects
    stage(source, URL, overwrite=True)
    assert server.objects == objects_of(source)


def test_two_uploads_at_once_are_found(server: Server, local: Path, other: Path) -> None:
    def refusal(request: str) -> int:
        if request.startswith("PUT /bucket/train.lmdb/data-00002.mdb"):
            server.objects["train.lmdb/manifest.upload.json"] = (other / "manifest.json").read_bytes()
        return 0

    server.refusal = refusal
    with pytest.raises(errors.DestinationError, match="another process has begun"):
        stage(local, URL)
    assert "train.lmdb/manifest.json" not in server.objects


def test_places_that_cannot_be_written_are_refused_with_the_reason(
    server: Server, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.DestinationError, match="its bucket or folder does not exist"):
        stage(local, "s3://none/train.lmdb")
    with pytest.raises(errors.DestinationError, match="its bucket or folder does not exist"):
        stage(local, f"file://{tmp_path}/none/train.lmdb")
    with pytest.raises(errors.OptionError, match="a web server takes no files"):
        stage(local, "https://host/train.lmdb")
    for url in ("s3://", "memory:///", "file:///"):
        with pytest.raises(errors.OptionError, match="names nothing"):
            stage(local, url)
    with pytest.raises(errors.OptionError, match="is uploaded from a disk"):
        stage(URL, "s3://bucket/copy.lmdb")
    server.refusal = lambda request: 403
    with pytest.raises(errors.DiskError, match=r"access denied.*Check the keys"):
        stage(local, URL)
    assert server.objects == {}


def test_the_command_prints_the_url_and_nothing_else(server: Server, local: Path, capsys: Capture) -> None:
    assert main(["stage", str(local), URL]) == 0
    out, err = capsys.readouterr()
    assert out == f"{URL}\n" and "uploading " in err
    assert main(["stage", str(local), URL, "--quiet"]) == 0
    assert capsys.readouterr() == (f"{URL}\n", "")
