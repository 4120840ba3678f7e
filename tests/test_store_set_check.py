"""verify of sets: faults of parts with the set's sample numbers, and of the set's own files against the parts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip, index_batch, put_index
from part_sets import forge, join, make_set, tree

import lmdbloader
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.format.layout import DATA_FILE, MANIFEST_FILE, part_name
from lmdbloader.store import Reader, read_manifest, verify

COUNTS = (10, 10, 4)
INDEX = "index-00003.arrow"


def make_sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    return {
        "blob": rng.integers(0, 9, 3000, np.uint8).tobytes(),
        "mask": np.full((i % 3, 2), i, np.float32),
        "caption": "long " * 40 if i == 21 else f"ü{i}",
        "n": i,
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [make_sample(i) for i in range(sum(COUNTS))]
    parts = [samples[:10], samples[10:20], samples[20:]]
    return make_set(tmp_path_factory.mktemp("set") / "set", parts, [{"codec": c} for c in ("lz4", "raw", "lz4")])


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "set"))


def write_index(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change columns of the set's index, and sign it."""
    batch = index_batch(path)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    change(columns)
    put_index(path, pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema))


def test_a_sound_set_is_sound_and_counted_once(path: Path) -> None:
    before, counts = tree(path), list[int]()
    found = verify(path, progress=counts.append)
    assert (found.is_sound, found.num_samples, found.problems, found.advice) == (True, 24, (), "")
    assert sum(counts) == 24
    assert tree(path) == before


def test_other_files_are_no_fault(path: Path) -> None:
    (path / "skipped.tsv").write_text("name\treason\n")
    (path / "index-00002.arrow").write_bytes(b"of a smaller set")
    shutil.copytree(path / "part-00001", path / "part-00003")  # of an append that has not ended
    (path / "part-00004.partial").mkdir()
    assert verify(path).is_sound


def test_damaged_samples_have_the_numbers_of_the_set(path: Path) -> None:
    for name, row in (("part-00001", 3), ("part-00002", 0)):
        reader = Reader(path / name)
        flip(path / name, int(reader.index.arrays["blob.offset"][row]) + 100)
    found = verify(path)
    assert [(d.sample, d.field) for d in found.damaged] == [(13, "blob"), (20, "blob")]
    assert found.files == ("part-00001/data.mdb", "part-00002/data.mdb")
    assert all(problem.startswith(("part-00001/data.mdb: its digest", "part-00002/")) for problem in found.problems)
    assert f"`lmdbloader repair {path} OUT`" in found.advice


def test_a_cut_part_is_damaged_where_it_ends(path: Path) -> None:
    part = path / "part-00001"
    os.truncate(part / DATA_FILE, int(Reader(part).index.arrays["blob.offset"][6]) // 4096 * 4096)
    found = verify(path)
    assert [d.sample for d in found.damaged] and {d.sample for d in found.damaged} <= set(range(10, 20))
    assert any(problem.startswith("part-00001/data.mdb: ") and "cut short" in problem for problem in found.problems)
    assert f"repair {path} OUT" in found.advice


@pytest.mark.parametrize(("name", "samples"), [(part_name(0), "0 to 9"), (part_name(2), "20 to 23")])
def test_a_missing_part_is_named_with_its_samples(path: Path, name: str, samples: str) -> None:
    shutil.rmtree(path / name)
    found = verify(path)
    assert found.problems == (f"{name}: is missing, with samples {samples}",)
    assert found.files == (f"{name}/data.mdb",)
    assert found.advice.startswith(f"Restore {name} from a copy") and f"repair {path} OUT" in found.advice


def test_lines_to_paste_are_quoted_for_a_shell(path: Path, tmp_path: Path) -> None:
    moved = path.rename(tmp_path / "my set.lmdb")
    (moved / "part-00001" / "data.mdb").unlink()
    assert f"`lmdbloader repair '{moved}' OUT` writes" in verify(moved).advice
    with pytest.raises(CorruptError, match=f"`lmdbloader verify '{moved}'` suggests"):
        Reader(moved)


@pytest.mark.parametrize("name", ["data.mdb", "index.arrow", MANIFEST_FILE])
def test_a_missing_file_of_a_part_is_named(path: Path, name: str) -> None:
    (path / "part-00001" / name).unlink()
    found = verify(path)
    assert found.problems == (f"part-00001/{name}: is missing",)
    assert found.files == (f"part-00001/{name}",)
    expected = "OUT` writes" if name == "data.mdb" else f"{path}` rebuilds part-00001/{name}"
    assert expected in found.advice


def test_parts_that_were_exchanged_are_recognised(path: Path) -> None:
    os.rename(path / "part-00000", path / "x")
    os.rename(path / "part-00001", path / "part-00000")
    os.rename(path / "x", path / "part-00001")
    found = verify(path)
    assert found.problems == (
        "part-00000: holds part-00001: the folders were exchanged",
        "part-00001: holds part-00000: the folders were exchanged",
    )
    assert found.advice == "Exchange the names of part-00000 and part-00001, and verify it again."


@pytest.mark.parametrize("others", [10, 5])
def test_a_part_that_was_replaced_by_another_dataset_is_found(path: Path, others: int) -> None:
    shutil.rmtree(path / "part-00001")
    lmdbloader.write([make_sample(100 + i) for i in range(others)], path / "part-00001", codec="raw")
    found = verify(path)
    assert len(found.problems) == 1 and found.problems[0].startswith("part-00001: ")
    assert "is not the dataset that belongs" in found.problems[0] or "has 5 samples" in found.problems[0]
    assert found.advice.startswith("Put back the part that was replaced; or, ")


def test_a_part_with_other_fields_is_found(path: Path) -> None:
    nbytes = (path / "part-00001" / DATA_FILE).stat().st_size
    shutil.rmtree(path / "part-00001")
    lmdbloader.write(({"x": i} for i in range(10)), path / "part-00001")
    assert (path / "part-00001" / DATA_FILE).stat().st_size != nbytes
    assert not verify(path).is_sound


def test_a_set_as_a_part_is_a_fault(path: Path, written: Path) -> None:
    shutil.rmtree(path / "part-00001")
    shutil.copytree(written, path / "part-00001")
    assert any("is a set of parts itself" in problem for problem in verify(path).problems)


def test_a_damaged_index_of_the_set_is_named(path: Path) -> None:
    flip(path, 300, INDEX)
    found = verify(path)
    assert len(found.problems) == 1 and found.problems[0].startswith(f"{INDEX}: its digest is")
    assert found.files == (INDEX,) and found.num_samples == 24
    assert f"`lmdbloader repair {path}` rebuilds {INDEX}" in found.advice
    (path / INDEX).unlink()
    assert verify(path).problems == (f"{INDEX}: is missing",)


def change_number(name: str, row: int, by: int) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        values = columns[name].to_numpy().copy()
        values[row] += by
        columns[name] = pa.array(values)

    return change


@pytest.mark.parametrize(
    ("change", "column", "part"),
    [
        (change_number("n", 12, 1), "column 'n'", 1),
        (change_number("blob.checksum", 0, 1), "column 'blob.checksum'", 0),
        (change_number("caption.checksum", 3, 1), "columns of 'caption'", 0),
        (change_number("caption.offset", 19, 1), "columns of 'caption'", 1),
        (change_number("caption.offset", 23, 1), "column 'caption.offset'", 2),
    ],
)
def test_an_index_that_is_not_that_of_the_parts_is_found(path: Path, change: Any, column: str, part: int) -> None:
    write_index(path, change)
    found = verify(path)
    assert f"{INDEX}: its {column} differ" in found.problems[0]
    assert f"from {part_name(part)}'s" in found.problems[0]
    assert INDEX in found.files
    if not column.endswith("offset'") and "caption" not in column:
        assert any("the content digest is" in problem for problem in found.problems)


def test_a_manifest_that_states_another_content_is_found(path: Path) -> None:
    forge(path, content_digest="poly61:" + "0" * 32)
    assert any("the content digest is" in problem for problem in verify(path).problems)


def test_the_manifest_states_each_part(path: Path) -> None:
    text = json.loads((path / MANIFEST_FILE).read_text())
    digest = text["parts"][1]["manifest_digest"]
    parts = read_manifest(path).parts
    forge(path, parts=(parts[0], type(parts[1])(parts[1].name, 10, parts[1].data_nbytes, digest[:-1] + "?"), parts[2]))
    found = verify(path)
    assert found.problems == ("manifest.json: states another manifest of part-00001, which has the same samples",)
    assert f"`lmdbloader repair {path}` rebuilds manifest.json" in found.advice


@pytest.mark.parametrize("how", ["missing", "damaged", "white space"])
def test_a_lost_manifest_leaves_the_parts(path: Path, how: str) -> None:
    if how == "missing":
        (path / MANIFEST_FILE).unlink()
    elif how == "damaged":
        flip(path, 60, MANIFEST_FILE)
    else:
        text = (path / MANIFEST_FILE).read_text()
        (path / MANIFEST_FILE).write_text(text.replace('"num_samples": 24', '"num_samples":  24'))
    counts = list[int]()
    found = verify(path, progress=counts.append)
    assert found.files == (MANIFEST_FILE,) and len(found.problems) == 1
    assert sum(counts) == found.num_samples == 24
    assert f"`lmdbloader repair {path}` rebuilds manifest.json" in found.advice


def test_without_a_manifest_the_index_says_how_many_parts_there_were(path: Path) -> None:
    (path / MANIFEST_FILE).unlink()
    shutil.rmtree(path / "part-00002")
    found = verify(path)
    assert found.problems == ("manifest.json: is missing", "part-00002: is missing")


def test_an_unfinished_set_is_no_dataset(path: Path) -> None:
    with pytest.raises(FormatError, match="unfinished"):
        verify(path.rename(path.with_name("set.partial")))


def test_an_appended_part_is_checked_too(path: Path) -> None:
    lmdbloader.write([make_sample(50)], path / "part-00003", codec="lz4")
    join(path, 4)
    assert verify(path).num_samples == 25
    (path / "index-00003.arrow").unlink()  # of the smaller set
    assert verify(path).is_sound
