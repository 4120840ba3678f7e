"""Sets of parts: equal to one dataset of the same samples, however they are read; wrong ones are refused."""

from __future__ import annotations

import copy
import json
import os
import pickle
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from part_sets import forge, join, make_set
from skimage import io as pictures
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.fields import Array, Boxes, Image, Int, Json, Mask, Text
from lmdbloader.format.codecs import checksum
from lmdbloader.format.layout import MANIFEST_FILE, PART_ALIGNMENT, part_name
from lmdbloader.format.manifest import part_begins
from lmdbloader.store import Reader, read_manifest, verify
from lmdbloader.store.writing.sets import write_set

COUNTS = (7, 1, 12)
COUNT = sum(COUNTS)
LONG = "long " * 60
FIELDS: dict[str, Any] = {
    "image": Image(),
    "mask": Mask(),
    "boxes": Boxes(),
    "array": Array(),
    "caption": Text(),
    "label": Int(),
    "extra": Json(),
}


def make_sample(i: int) -> dict[str, Any]:
    """Return the sample of a number; one text of the last part is long."""
    rng = np.random.default_rng(i)
    height, width = (24 + i, 300 if i == 9 else 20)
    return {
        "image": rng.integers(0, 256, (height, width, 3), np.uint8),
        "mask": rng.integers(0, 4, (height, width), np.uint8),
        "boxes": np.array([[2, 3, 12, 9 + i]] * (i % 3), np.float32).reshape(-1, 4),
        "array": rng.random((i % 4, 2), np.float32),
        "caption": LONG if i == 15 else f"ü{i}",
        "label": i % 5,
        "extra": {"i": i},
    }


def in_parts(samples: list[Any], counts: tuple[int, ...] = COUNTS) -> list[list[Any]]:
    ends = np.cumsum(counts).tolist()
    return [samples[end - count : end] for end, count in zip(ends, counts, strict=True)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one dataset of all samples."""
    path = tmp_path_factory.mktemp("whole") / "whole"
    lmdbloader.write([make_sample(i) for i in range(COUNT)], path, fields=FIELDS, codec="lz4")
    return path


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same samples as a set, whose parts have different codecs."""
    options = [{"fields": FIELDS, "codec": codec} for codec in ("lz4", "raw", "lz4")]
    return make_set(tmp_path_factory.mktemp("set") / "set", in_parts([make_sample(i) for i in range(COUNT)]), options)


@pytest.fixture
def path(joined: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(joined, tmp_path / "set"))


def plain(sample: Any) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in FIELDS}
    return {name: np.asarray(value).tolist() if hasattr(value, "shape") else value for name, value in values.items()}


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for i in range(len(expected)):
        assert plain(found[i]) == plain(expected[i]), i


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_set_reads_as_one_dataset(joined: Path, whole: Path, io: Any) -> None:
    found, expected = lmdbloader.LMDBDataset(joined, io=io), lmdbloader.LMDBDataset(whole)
    assert_equal(found, expected)
    assert [f.name for f in found.reader.manifest.fields] == list(FIELDS)
    assert found.reader.with_io("pread" if io == "mmap" else "mmap").read_bytes("image", COUNT - 1).tobytes() == (
        expected.reader.read_bytes("image", COUNT - 1).tobytes()
    )
    assert found.reader.read_crop("image", 9, top=1, left=200, height=5, width=9).tolist() == (
        expected.reader.read_image("image", 9)[:, 1:6, 200:209].tolist()
    )


def test_parts_of_one_codec_have_the_content_digest_of_one_dataset(whole: Path, tmp_path: Path) -> None:
    options = [{"fields": FIELDS, "codec": "lz4"}] * 3
    made = make_set(tmp_path / "set", in_parts([make_sample(i) for i in range(COUNT)]), options)
    found, expected = read_manifest(made), read_manifest(whole)
    assert found.content_digest == expected.content_digest
    assert found.column_digests == expected.column_digests
    assert [part.num_samples for part in found.parts] == list(COUNTS)
    assert found.sizes["raw_nbytes"] == expected.sizes["raw_nbytes"]
    assert "parts" in json.loads((made / MANIFEST_FILE).read_text())["requires"]
    # Only the last part has long text, so it is the set's places of the others' texts that are new.
    assert [read_manifest(made / part_name(k)).fields[4].codec for k in range(3)] == [None, None, "raw"]


def test_every_later_release_reads_the_golden_set() -> None:
    golden = Path(__file__).parent / "data" / "sets"
    dataset = lmdbloader.LMDBDataset(golden / "set.lmdb")
    assert dataset.reader.manifest.content_digest == "poly61:7e551dddfba844f453526e6ab9f1400d"
    assert dataset.reader.index.arrays["image.codec"].tolist() == [0, 0, 0, 1, 1]
    for sample, expected in zip(dataset, runpy.run_path(str(golden / "make_set.py"))["samples"](), strict=True):
        np.testing.assert_array_equal(sample.image.numpy(), expected["image"].transpose(2, 0, 1))
        assert sample[1:] == (expected["caption"], expected["label"])
    assert verify(golden / "set.lmdb").is_sound


def test_each_part_opens_alone(joined: Path, whole: Path) -> None:
    expected, first = lmdbloader.LMDBDataset(whole), 0
    for number, count in enumerate(COUNTS):
        part = lmdbloader.LMDBDataset(joined / part_name(number))
        assert [plain(part[i]) for i in range(count)] == [plain(expected[first + i]) for i in range(count)]
        first += count


def test_sources_keep_their_names_and_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("all", "one", "two"):
        (tmp_path / name / "cats").mkdir(parents=True)
    for i in range(6):
        pixels = rng.integers(0, 256, (40, 48, 3), np.uint8)
        for name in ("all", "one" if i < 4 else "two"):
            pictures.imsave(tmp_path / name / "cats" / f"{i}.png", pixels, check_contrast=False)
    (tmp_path / "set").mkdir()
    targets = {"all": tmp_path / "all.lmdb", "one": tmp_path / "set/part-00000", "two": tmp_path / "set/part-00001"}
    for name, target in targets.items():
        lmdbloader.convert(tmp_path / name, target, layout="classes", patch_size=20, codec="raw", workers=1)
    join(tmp_path / "set", 2)
    found, expected = Reader(tmp_path / "set"), Reader(tmp_path / "all.lmdb")
    assert [found.source(i) for i in range(len(found))] == [expected.source(i) for i in range(len(expected))]
    assert found.manifest.content_digest == expected.manifest.content_digest
    assert found.manifest.classes == {"label": ("cats",)}
    summary = lmdbloader.info(tmp_path / "set")
    assert (summary.num_sources, summary.num_parts) == (6, 2)


def batches(loader: Any) -> Iterator[tuple[Any, ...]]:
    for batch in loader:
        yield tuple(batch.label.tolist()), tuple(batch.image.flatten(1).sum(1).tolist())


def test_the_loader_gives_the_batches_of_one_dataset(tmp_path: Path) -> None:
    samples = [
        {"image": np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8), "label": i} for i in range(COUNT)
    ]
    made = make_set(tmp_path / "set", in_parts(samples))
    lmdbloader.write(samples, tmp_path / "whole")
    for io in ("mmap", "pread"):
        datasets = [lmdbloader.LMDBDataset(path, io=io) for path in (made, tmp_path / "whole")]  # type: ignore[arg-type]
        for order in ("random", "quasi_random", "sequential"):
            loaders = [lmdbloader.Loader(d, 6, order=order, seed=3) for d in datasets]  # type: ignore[arg-type]
            found, expected = (list(batches(loader)) for loader in loaders)
            assert found == expected
            for loader in loaders:
                loader.close()


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_payloads_of_all_parts_have_room_without_a_map(tmp_path: Path, codec: str) -> None:
    """A part's payload is copied and decompressed in memory of its own."""
    drawn = np.random.default_rng(0).integers(0, 256, (COUNT, 150, 30, 3), np.uint8)
    samples = [{"image": np.repeat(image, 5, 1), "label": i} for i, image in enumerate(drawn)]
    made = make_set(tmp_path / "set", in_parts(samples), [{"codec": codec}] * len(COUNTS))
    dataset = lmdbloader.LMDBDataset(made, io="pread")
    assert [(dataset[i].image == samples[i]["image"].transpose(2, 0, 1)).all() for i in range(COUNT)] == [True] * COUNT
    crops = [lmdbloader.transforms.CenterCrop(64)]
    with_map = lmdbloader.LMDBDataset(made)
    found, expected = (list(batches(lmdbloader.Loader(d, 6, transforms=crops))) for d in (dataset, with_map))
    assert found == expected


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_read_it(joined: Path, context: str) -> None:
    dataset = lmdbloader.LMDBDataset(joined, fields=["label"])
    assert dataset[0].label == 0  # opened before the fork
    loader = DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context=context)
    assert torch.cat([batch.label for batch in loader]).tolist() == [i % 5 for i in range(COUNT)]


def test_a_pickle_is_its_path_and_refuses_a_set_that_was_replaced(path: Path, joined: Path) -> None:
    dataset = lmdbloader.LMDBDataset(path)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 5000
    assert plain(pickle.loads(pickled)[COUNT - 1]) == plain(dataset[COUNT - 1])
    assert plain(copy.deepcopy(dataset)[8]) == plain(dataset[8])
    # The open files stay those of the old set.
    os.rename(path, path.with_name("old"))
    make_set(path, [[make_sample(0)], [make_sample(1)]], [{"fields": FIELDS}] * 2)
    assert plain(dataset[COUNT - 1]) == plain(lmdbloader.LMDBDataset(joined)[COUNT - 1])
    with pytest.raises(CorruptError, match="was replaced by another dataset"):
        pickle.loads(pickled)


def test_views_of_a_set(joined: Path, whole: Path) -> None:
    found, expected = lmdbloader.LMDBDataset(joined), lmdbloader.LMDBDataset(whole)
    assert [s.label for s in found.where("label == 3")] == [s.label for s in expected.where("label == 3")]
    assert len(found.where("label == 3")) == len(expected.where("label == 3")) > 0
    for ours, theirs in zip(found.split([0.5, 0.5]), expected.split([0.5, 0.5]), strict=True):
        assert [s.extra for s in ours] == [s.extra for s in theirs]
    columns = ["caption", "label", "image.height"]
    for column in columns:
        assert found.table.column(column).to_pylist() == expected.table.column(column).to_pylist()


def test_a_set_is_input_of_merge_subset_and_extract(joined: Path, whole: Path, tmp_path: Path) -> None:
    expected = lmdbloader.LMDBDataset(whole)
    lmdbloader.merge([joined, whole], tmp_path / "both")
    both = lmdbloader.LMDBDataset(tmp_path / "both")
    assert [plain(both[i]) for i in (0, 8, COUNT - 1, COUNT)] == [plain(expected[i]) for i in (0, 8, COUNT - 1, 0)]
    lmdbloader.subset(joined, tmp_path / "some", where="label == 1")
    assert_equal(lmdbloader.LMDBDataset(tmp_path / "some"), expected.where("label == 1"))
    assert verify(tmp_path / "both").is_sound and verify(tmp_path / "some").is_sound
    lmdbloader.extract(joined, tmp_path / "files", fields=["image"], samples=[0, COUNT - 1], image_format="png")
    assert len(list((tmp_path / "files").rglob("*.png"))) == 2


def test_commands_show_a_set(joined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(joined)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "20 samples in 3 parts" in shown
    assert "data files" in shown and "data.mdb" not in shown
    assert lmdbloader.info(joined).sizes["data_nbytes"] == sum(
        (joined / part_name(k) / "data.mdb").stat().st_size for k in range(3)
    )
    assert main(["preview", str(joined), "-o", str(tmp_path / "sheet.png")]) == 0
    assert main(["doctor", str(joined), "--json"]) in (0, 1)
    assert main(["verify", str(joined)]) == 0
    assert "sound, 20 samples" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["convert", "estimate"])
def test_a_set_is_not_converted_again(
    joined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    out = [str(tmp_path / "out")] if command == "convert" else []
    assert main([command, str(joined), *out]) == 1
    assert "set: is a dataset of lmdbloader already" in capsys.readouterr().err


def test_a_grown_set_replaces_nothing_that_is_read(path: Path) -> None:
    dataset = lmdbloader.LMDBDataset(path)
    index = (path / "index-00003.arrow").read_bytes()
    lmdbloader.write([make_sample(COUNT)], path / part_name(3), fields=FIELDS)
    join(path, 4)
    assert (path / "index-00003.arrow").read_bytes() == index
    assert len(dataset) == COUNT and plain(dataset[COUNT - 1])["extra"] == {"i": COUNT - 1}
    grown = lmdbloader.LMDBDataset(path)
    assert len(grown) == COUNT + 1 and grown[COUNT].extra == {"i": COUNT}


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([[{"a": 1}], [{"b": 1}]], [{}, {}], "its fields"),
        ([[{"a": 1}], [{"a": "x"}]], [{}, {}], "its fields"),
        ([[{"a": 1}], [{"a": 1}]], [{}, {"digest": "sha256"}], "its digest"),
        (
            [[{"a": 1}], [{"a": 1}]],
            [{"classes": {"a": ["x", "y"]}}, {"classes": {"a": ["y", "x"]}}],
            "its classes of a are",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path, samples: Any, options: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        make_set(tmp_path / "set", samples, options)
    assert not (tmp_path / "set" / MANIFEST_FILE).exists()


def test_a_set_is_no_part(joined: Path, tmp_path: Path) -> None:
    shutil.copytree(joined, tmp_path / "set" / part_name(0))
    with pytest.raises(FormatError, match="is a set of parts itself"):
        join(tmp_path / "set", 1)
    with pytest.raises(FormatError, match="expected part-00000 and so on"):
        write_set(joined, ["part-00001"], classes={}, made_by={})


def test_another_content_digest_than_expected_changes_nothing(path: Path) -> None:
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    with pytest.raises(CorruptError, match="the content digest of its parts is"):
        write_set(path, [part_name(k) for k in range(3)], classes={}, made_by={}, expected="poly61:00")
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_a_missing_or_cut_part_is_named(path: Path) -> None:
    os.truncate(path / "part-00001" / "data.mdb", 4096)
    with pytest.raises(CorruptError, match=r"part-00001/data\.mdb: 4096 bytes, expected .*`lmdbloader verify \S+/set`"):
        Reader(path)
    shutil.rmtree(path / "part-00001")
    with pytest.raises(CorruptError, match=r"part-00001/data\.mdb: is missing"):
        Reader(path)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_part_that_is_cut_while_it_is_read_is_named(path: Path, io: Any) -> None:
    dataset = lmdbloader.LMDBDataset(path, io=io)
    os.truncate(path / "part-00002" / "data.mdb", 4096)
    with pytest.raises(CorruptError, match=r"of sample 19: part-00002/data\.mdb was cut to 4096 bytes"):
        dataset[COUNT - 1]
    if io == "pread":
        assert plain(dataset[0])["extra"] == {"i": 0}


def change_part(path: Path, number: int, **changes: Any) -> None:
    """Change what a manifest states of one part, with a digest that fits."""
    text = json.loads((path / MANIFEST_FILE).read_text())
    text["parts"][number] |= changes
    sign(path, text)


def sign(path: Path, text: dict[str, Any]) -> None:
    from lmdbloader.format.manifest import _signed

    text.pop("manifest_digest", None)
    (path / MANIFEST_FILE).write_bytes(_signed(text, "manifest_digest"))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../part-00000"},
        {"name": "/etc"},
        {"name": "part-00007"},
        {"name": "part-0"},
        {"name": 3},
        {"num_samples": -1},
        {"num_samples": 0},
        {"num_samples": 2},
        {"num_samples": True},
        {"num_samples": 2**63},
        {"data_nbytes": -1},
        {"data_nbytes": 2**62},
        {"data_nbytes": 1.5},
        {"manifest_digest": None},
    ],
)
def test_hostile_parts_in_a_manifest_are_refused(path: Path, changes: dict[str, Any]) -> None:
    change_part(path, 1, **changes)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        Reader(path)


def test_parts_without_the_feature_and_the_reverse_are_refused(path: Path) -> None:
    text = json.loads((path / MANIFEST_FILE).read_text())
    sign(path, {**text, "requires": [name for name in text["requires"] if name != "parts"]})
    with pytest.raises(FormatError, match="with parts"):
        Reader(path)
    sign(path, {key: value for key, value in text.items() if key != "parts"})
    with pytest.raises(FormatError, match="without parts"):
        Reader(path)
    sign(path, {**text, "parts": []})
    with pytest.raises(FormatError, match="parts with the names"):
        Reader(path)


def test_another_length_of_all_files_is_refused(path: Path) -> None:
    text = json.loads((path / MANIFEST_FILE).read_text())
    sign(path, {**text, "sizes": {**text["sizes"], "data_nbytes": text["sizes"]["data_nbytes"] + 1}})
    with pytest.raises(FormatError, match="the sizes state"):
        Reader(path)


@pytest.mark.parametrize("place", ["gap", "end", "before", "behind"])
def test_payloads_that_are_not_within_one_part_are_refused(path: Path, place: str) -> None:
    manifest = read_manifest(path)
    lengths = [part.data_nbytes for part in manifest.parts]
    nbytes = lengths[0]
    assert nbytes < PART_ALIGNMENT
    at = {"gap": nbytes + 100, "end": nbytes - 5, "before": -8, "behind": part_begins(lengths)[-1] - 5}[place]
    index = path / manifest.index_file
    batch = pa.ipc.open_file(index.read_bytes()).get_batch(0)
    column = batch.schema.names.index("image.offset")
    offsets = batch.column(column).to_numpy().copy()
    offsets[3] = at
    columns = [*batch.columns[:column], pa.array(offsets), *batch.columns[column + 1 :]]
    changed = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    with pa.OSFile(str(index), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(changed)
    content = index.read_bytes()
    forge(path, index_digest=f"xxh64:{checksum(content):016x}", sizes={**manifest.sizes, "index_nbytes": len(content)})
    with pytest.raises(CorruptError, match=r"row 3.*does not fit one of the 3 parts' data\.mdb"):
        Reader(path)


def test_opening_a_part_of_the_files_gives_advice(path: Path) -> None:
    with pytest.raises(FormatError, match=r"a part of a set\. Open the set: LMDBDataset\('\S+/set'\), or this part"):
        lmdbloader.LMDBDataset(path / "part-00001" / "data.mdb")
    with pytest.raises(FormatError, match=r"a set of parts\. Open its folder: LMDBDataset\('\S+/set'\)"):
        lmdbloader.LMDBDataset(path / "index-00003.arrow")
    (path / MANIFEST_FILE).unlink()
    with pytest.raises(FormatError, match=r"the folder holds parts of a set\. `lmdbloader repair \S+/set` makes"):
        lmdbloader.LMDBDataset(path)
