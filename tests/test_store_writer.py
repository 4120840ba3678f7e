"""Writing: little waste, a map that grows, reproducible bytes, and no partial dataset on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from damage import flip
from part_sets import tree
from payloads import write_chunks

import lmdbloader
from lmdbloader.errors import CorruptError, DestinationError
from lmdbloader.format.codecs import encode_many
from lmdbloader.format.layout import make_field, parse_record_key
from lmdbloader.format.manifest import Description
from lmdbloader.images.downscale import downscale
from lmdbloader.store import Chunk, PartFacts, PartWriter, Work, encode_blocks, join, read_manifest
from lmdbloader.store.writing import work as work_module

FIELDS = [make_field("blob", "bytes")]
DESCRIPTION = Description(tuple(FIELDS), False, {}, {})
ROOT = Path(__file__).resolve().parent.parent
# LMDB's page waste and all that is not payload take at most 8 %.
MOST = 1.08


@cache
def photograph() -> np.ndarray:
    """Return one real photograph, 1411 x 1411 RGB."""
    import skimage.data

    return np.ascontiguousarray(skimage.data.retina())


def patches(size: int) -> Iterator[np.ndarray]:
    """Yield the patches of the photograph, about 1.2 MB of them and at least four."""
    image = photograph()
    places = [(y, x) for y in range(300, 1411 - size, size) for x in range(200, 1411 - size, size)]
    for y, x in places[: max(4, 1_200_000 // (3 * size * size))]:
        yield image[y : y + size, x : x + size]


def pair(patch: np.ndarray) -> dict[str, np.ndarray]:
    return {"lr": downscale(np.ascontiguousarray(patch), 2), "hr": patch}


MAKES: dict[str, tuple[str, Callable[[np.ndarray], dict[str, np.ndarray]]]] = {
    "rgb raw": ("raw", lambda patch: {"hr": patch}),
    "pairs raw": ("raw", pair),
    "pairs lz4": ("lz4", pair),
    "grey raw": ("raw", lambda patch: {"image": patch[:, :, 1]}),
    "grey lz4": ("lz4", lambda patch: {"image": patch[:, :, 1]}),
}


@pytest.mark.parametrize("size", [16, 32, 96, 192, 512])
@pytest.mark.parametrize("make", list(MAKES))
def test_the_file_is_at_most_8_percent_larger_than_its_payload(tmp_path: Path, size: int, make: str) -> None:
    codec, sample = MAKES[make]
    # As many gray ones as it takes for LMDB's few pages of its own not to count.
    many = [patch for patch in patches(size) for _ in range(3 if "grey" in make or codec == "lz4" else 1)]
    written = lmdbloader.write(map(sample, many), tmp_path / "d", codec=codec)
    sizes = written.sizes
    assert sizes["data_nbytes"] == (tmp_path / "d" / "data.mdb").stat().st_size
    assert sizes["index_nbytes"] == (tmp_path / "d" / "index.arrow").stat().st_size
    assert sizes["payload_nbytes"] <= sizes["data_nbytes"] <= MOST * sizes["payload_nbytes"]
    assert codec != "lz4" or sizes["payload_nbytes"] < 0.95 * sizes["raw_nbytes"]


def chunk_of(values: list[bytes]) -> Chunk:
    data = np.frombuffer(b"".join(values), np.uint8)
    return Chunk(len(values), {"blob": encode_many(data, np.array([len(v) for v in values], np.int64), "raw")}, {})


def blobs(path: Path) -> list[bytes]:
    return [sample.blob for sample in lmdbloader.LMDBDataset(path)]


@pytest.mark.parametrize("transaction_nbytes", [1, 2**20, 2**30])
def test_a_map_that_is_too_small_grows_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transaction_nbytes: int
) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.part.TRANSACTION_NBYTES", transaction_nbytes)
    rng = np.random.default_rng(0)
    values = [[rng.bytes(int(n)) for n in rng.integers(1, 200_000, 10)] for _ in range(6)]
    chunks = list(map(chunk_of, values))
    grown = write_chunks(tmp_path / "grown", FIELDS, chunks, map_nbytes=1)
    assert grown.sizes["data_nbytes"] > 2 * 2**20  # twice the least map
    assert blobs(tmp_path / "grown") == [value for chunk in values for value in chunk]
    assert lmdbloader.verify(tmp_path / "grown").is_sound
    roomy = write_chunks(tmp_path / "roomy", FIELDS, chunks, map_nbytes=2**26)
    assert roomy.content_digest == grown.content_digest
    assert grown.sizes["data_nbytes"] == roomy.sizes["data_nbytes"]


# --- parts, in OUT.partial ---


def add_part(work: Work, number: int, values: list[bytes]) -> PartFacts:
    with work.part(number, DESCRIPTION, map_nbytes=2**20) as writer:
        if values:
            chunk = chunk_of(values)
            writer.add(chunk, encode_blocks(chunk, FIELDS, with_source=False))
        return work.complete(number, writer, {"number": number})


def begun(out: Path) -> Work:
    work = Work(out)
    work.begin({"made_by": "test"})
    return work


PARTS = [[b"a", b"bb"], [], [b"c" * 5000], [b"d"]]


def test_parts_are_joined_in_order_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    work = begun(tmp_path / "d")
    for number in (3, 1, 0, 2):
        add_part(work, number, PARTS[number])
    found = [Work(tmp_path / "d").facts(number) for number in range(5)]
    assert found[4] is None and [facts.notes["number"] for facts in found[:4] if facts] == [0, 1, 2, 3]
    written = join(work, [facts for facts in found if facts], DESCRIPTION, notes={"skipped.tsv": b"name\treason\n"})
    assert written.num_samples == 4 and not work.folder.exists()
    assert blobs(tmp_path / "d") == [value for part in PARTS for value in part]
    names = ["data-00001.mdb", "data-00002.mdb", "data.mdb", "index.arrow", "manifest.json", "skipped.tsv"]
    assert sorted(tree(tmp_path / "d")) == names
    assert [part.num_samples for part in read_manifest(tmp_path / "d").parts] == [2, 1, 1]
    assert lmdbloader.verify(tmp_path / "d").is_sound
    with lmdb.open(str(tmp_path / "d" / "data-00001.mdb"), subdir=False, readonly=True, lock=False) as env:
        assert env.stat()["entries"] == 4  # one record, the schema, the progress, the description


def test_a_part_that_another_process_has_made_stays(tmp_path: Path) -> None:
    first, second = begun(tmp_path / "d"), begun(tmp_path / "d")
    made = add_part(first, 0, PARTS[0])
    before = tree(first.folder)
    assert add_part(second, 0, PARTS[0]) == made
    assert tree(first.folder) == before
    join(first, [made], DESCRIPTION)
    assert blobs(tmp_path / "d") == PARTS[0]


def test_a_part_of_another_plan_is_made_again(tmp_path: Path) -> None:
    add_part(begun(tmp_path / "d"), 0, [b"old"])
    work = Work(tmp_path / "d")
    work.begin({"made_by": "another"})
    assert work.facts(0) is None
    join(work, [add_part(work, 0, PARTS[0])], DESCRIPTION)
    assert blobs(tmp_path / "d") == PARTS[0]


def test_a_part_is_of_the_plan_that_its_process_follows(tmp_path: Path) -> None:
    first = begun(tmp_path / "d")
    second = Work(tmp_path / "d")
    second.begin({"made_by": "another"})
    made = add_part(first, 0, [b"old"])
    assert second.facts(0) is None
    facts = add_part(second, 0, PARTS[0])
    with pytest.raises(CorruptError, match=r"part-00000"):
        join(first, [made], DESCRIPTION)
    join(second, [facts], DESCRIPTION)
    assert blobs(tmp_path / "d") == PARTS[0]


def test_an_equal_plan_leaves_what_another_process_has_begun(tmp_path: Path) -> None:
    made = add_part(begun(tmp_path / "d"), 0, PARTS[0])
    assert begun(tmp_path / "d").facts(0) == made


def test_a_plan_and_parts_that_appear_meanwhile_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Work.plan

    def and_begin(work: Work) -> Any:
        found = plan(work)
        monkeypatch.undo()
        add_part(begun(tmp_path / "d"), 0, PARTS[0])
        return found

    monkeypatch.setattr(Work, "plan", and_begin)
    assert not Work(tmp_path / "d").continues({"the call": "test"})


def test_a_dataset_that_appears_while_one_is_put_in_place_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.write([{"x": 1}], tmp_path / "other")
    flush = work_module.system.flush_path

    def and_move(path: Path) -> None:
        flush(path)
        if path.name == "index.arrow":
            os.rename(tmp_path / "other", tmp_path / "d")

    work = begun(tmp_path / "d")
    facts = add_part(work, 0, PARTS[0])
    monkeypatch.setattr(work_module.system, "flush_path", and_move)
    with pytest.raises(DestinationError, match="a dataset is there already"):
        join(work, [facts], DESCRIPTION)
    assert lmdbloader.LMDBDataset(tmp_path / "d")[0].x == 1


def test_an_error_leaves_nothing_of_a_part(tmp_path: Path) -> None:
    work = begun(tmp_path / "d")
    with pytest.raises(ZeroDivisionError), work.part(0, DESCRIPTION, map_nbytes=2**20):
        raise ZeroDivisionError
    assert not work.has_parts()
    work.leave()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where this process was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(
    not hasattr(signal, "pthread_kill") or threading.current_thread() is not threading.main_thread(),
    reason="needs a signal to the main thread",
)
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_transaction_has_ended_before_its_file_is_closed_however_often_the_caller_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    commit, ended = PartWriter._commit, threading.Event()

    def slow(writer: PartWriter, *about: Any) -> None:
        for _ in range(2):
            threading.Event().wait(0.3)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(0.3)
        commit(writer, *about)
        ended.set()

    monkeypatch.setattr(PartWriter, "_commit", slow)
    monkeypatch.setattr("lmdbloader.store.writing.part.TRANSACTION_NBYTES", 1)
    work, chunk = begun(tmp_path / "d"), chunk_of([b"a"])
    with pytest.raises(KeyboardInterrupt), work.part(0, DESCRIPTION, map_nbytes=2**20) as writer:
        writer.add(chunk, encode_blocks(chunk, FIELDS, with_source=False))
        while is_interrupted:
            threading.Event().wait(0.01)
    assert ended.is_set() and not work.has_parts()


@pytest.mark.parametrize("name", ["rows.arrow", "facts.json", "data.mdb"])
def test_damage_to_a_complete_part_is_found(tmp_path: Path, name: str) -> None:
    work = begun(tmp_path / "d")
    facts = add_part(work, 0, PARTS[2])
    part = work.folder / "part-00000"
    flip(part, (part / name).stat().st_size // 2, name)
    if name == "facts.json":
        assert work.facts(0) is None  # the part is made again
        return
    with pytest.raises(CorruptError):
        join(work, [facts], DESCRIPTION)
        # The bytes of data files are compared by `verify` alone.
        if not lmdbloader.verify(tmp_path / "d").is_sound:
            raise CorruptError("found")


def test_other_files_are_never_taken_for_those_of_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "d.partial").mkdir()
    (tmp_path / "d.partial" / "mine.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"mine\.txt"):
        Work(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("mine")
    work = begun(tmp_path / "e")
    with pytest.raises(DestinationError, match="other things"):
        join(work, [add_part(work, 0, PARTS[0])], DESCRIPTION, overwrite=True)
    assert (tmp_path / "e" / "mine.txt").read_text() == "mine"


def mixed(count: int = 300) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(1)
    for i in range(count):
        yield {
            "image": rng.integers(0, 9, (10 + i % 7, 20, 3), np.uint8),
            "large": np.full((300, 310, 3), i % 256, np.uint8) if i % 100 == 0 else np.zeros((1, 1), np.uint8),
            "depth": np.full((2, i % 5), i, np.float32),
            "num_samples": i,
            "text": "ü" * (i % 4),
            "blob": bytes(i % 3),
            "extra": {"i": [i, None]},
        }


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    lmdbloader.write(mixed(), tmp_path / "d", codec="lz4")
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    for sample, expected in zip(dataset, mixed(), strict=True):
        np.testing.assert_array_equal(sample.image.numpy(), expected["image"].transpose(2, 0, 1))
        large = expected["large"] if expected["large"].ndim == 3 else expected["large"][:, :, None]
        np.testing.assert_array_equal(sample.large.numpy(), large.transpose(2, 0, 1))
        np.testing.assert_array_equal(sample.depth.numpy(), expected["depth"])
        assert sample[3:] == (expected["num_samples"], expected["text"], expected["blob"], expected["extra"])
    assert lmdbloader.verify(tmp_path / "d").is_sound


def test_plain_lmdb_and_arrow_open_a_dataset(tmp_path: Path) -> None:
    lmdbloader.write(mixed(), tmp_path / "d", codec="raw")
    with lmdb.open(str(tmp_path / "d"), readonly=True, lock=False) as env, env.begin() as transaction:
        entries = dict(transaction.cursor())
    schema = pa.ipc.read_schema(pa.py_buffer(entries.pop(b"schema")))
    assert entries.pop(b"progress") == b'{"num_samples": 300}'
    description = json.loads(entries.pop(b"description"))
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    assert {name: description[name] for name in description if name != "description_digest"} == {
        name: manifest[name] for name in ("fields", "with_source", "classes", "made_by")
    }
    batches = [pa.ipc.read_record_batch(entries[key], schema) for key in sorted(entries)]
    firsts = [parse_record_key(key)[0] for key in sorted(entries)]
    assert firsts == np.cumsum([0, *(b.num_rows for b in batches)])[:-1].tolist()
    assert pa.Table.from_batches(batches)["num_samples"].to_pylist() == list(range(300))


# Writes samples whose index is larger than their data, so that every file of a dataset meets the limit at some size.
LIMITED = """
import os, resource, sys
from pathlib import Path
import numpy as np
import lmdbloader
from lmdbloader.errors import DiskFullError
folder, limits = Path(sys.argv[1]), sys.argv[2:]
samples = [{"blob": bytes([i % 256])} for i in range(9000)] if "tiny" in limits else [
    {"image": np.random.default_rng(i).integers(0, 256, (64, 64, 3), np.uint8)} for i in range(40)]
lmdbloader.write(samples, folder / "warm-up")
for limit in limits[1:]:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), hard))
    try:
        lmdbloader.write(iter(samples), folder / "d", codec="raw")
        print("written", flush=True)
        os.rename(folder / "d", folder / ("written" + limit))
    except DiskFullError as error:
        assert str(folder / "d") in str(error) and "disk full" in str(error), error
        print("full", flush=True)
    assert not [name for name in os.listdir(folder) if name.startswith("d")], os.listdir(folder)
"""


@pytest.mark.parametrize(
    ("kind", "limits"),
    [("large", [0, 100, 5_000, 9_000, 100_000, 300_000, 490_000]), ("tiny", [50_000, 130_000, 200_000])],
)
def test_a_file_size_limit_is_a_full_disk_and_leaves_nothing(tmp_path: Path, kind: str, limits: list[int]) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path), kind, *map(str, limits), str(2**20)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["full"] * len(limits) + ["written"]


def test_progress_loses_its_name_on_the_disk_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, calls = Work(tmp_path / "out.lmdb"), []
    work.begin({})
    flush, remove = work_module.system.flush_path, work_module.shutil.rmtree

    def flushed(path: Path) -> None:
        calls.append((path, work.folder.exists()))
        flush(path)

    def removed(path: Path, **options: Any) -> None:
        calls.append("removed")
        remove(path, **options)

    monkeypatch.setattr(work_module.system, "flush_path", flushed)
    monkeypatch.setattr(work_module.shutil, "rmtree", removed)
    work.discard()
    assert calls[:2] == [(tmp_path, False), "removed"]
    assert os.listdir(tmp_path) == []
