"""Errors about a path that is not a dataset say what is there, and the line to write."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader, lab
from lmdbloader.cli import main
from lmdbloader.errors import (
    FormatError,
    LmdbloaderError,
    NotFoundError,
    OptionError,
    SourceError,
    SourceNotFoundError,
)

READERS: dict[str, Callable[[Any, Path], Any]] = {
    "LMDBDataset": lambda path, out: LMDBDataset(path),
    "Loader": lambda path, out: Loader(path, 4, shuffle=True),
    "dataloader": lambda path, out: lmdbloader.dataloader(path, 4),
    "info": lambda path, out: lmdbloader.info(path),
    "verify": lambda path, out: lmdbloader.verify(path),
    "repair": lambda path, out: lmdbloader.repair(path, out),
    "preview": lambda path, out: lmdbloader.preview(path),
    "extract": lambda path, out: lmdbloader.extract(path, out),
    "stage": lambda path, out: lmdbloader.stage(path, out),
    "doctor": lambda path, out: lab.doctor(path),
    "tune": lambda path, out: lab.tune(path, 4),
}
SOURCES: dict[str, Callable[[Any, Path], Any]] = {
    "convert": lambda path, out: lmdbloader.convert(path, out),
    "estimate": lambda path, out: lmdbloader.estimate(path),
    "find_splits": lambda path, out: lmdbloader.find_splits(path),
    "pairs": lambda path, out: lmdbloader.convert(None, out, hr=path, lr=path),
    "lmdb": lambda path, out: lmdbloader.convert(path, out, layout="lmdb"),
    "tar": lambda path, out: lmdbloader.convert(path, out, layout="tar"),
}


def draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((16, 24, 3), np.uint8)).save(path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the datasets that `convert --split` makes."""
    monkeypatch.chdir(tmp_path)
    for name in ("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png"):
        draw(tmp_path / "pieces" / name)
    assert main(["convert", "pieces", "pieces.lmdb", "--split", "--workers", "1"]) == 0
    return tmp_path


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"something")
    return path


@pytest.mark.parametrize("name", READERS)
def test_a_missing_dataset_is_an_error_of_both_kinds(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.lmdb: there is no such folder; expected a dataset") as caught:
        READERS[name](tmp_path / "none.lmdb", tmp_path / "out")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, LmdbloaderError)


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_source_is_an_error_of_both_kinds(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"none: there is no such (folder|LMDB|tar)") as caught:
        SOURCES[name](tmp_path / "none", tmp_path / "out")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, SourceError)


@pytest.mark.parametrize("name", READERS)
def test_the_datasets_of_a_folder_with_splits_are_named(name: str, here: Path) -> None:
    with pytest.raises(FormatError, match=r"holds the datasets train\.lmdb, val\.lmdb\. Write '(.*)'\.") as caught:
        READERS[name]("pieces.lmdb", here / "out")
    assert "'pieces.lmdb/train.lmdb'" in str(caught.value)
    assert len(LMDBDataset("pieces.lmdb/train.lmdb")) == 2


def test_the_command_names_the_datasets_of_a_folder_with_splits(here: Path, capsys: Any) -> None:
    assert main(["info", "pieces.lmdb"]) == 1
    assert "holds the datasets train.lmdb, val.lmdb. Write 'pieces.lmdb/train.lmdb'" in capsys.readouterr().err


@pytest.mark.parametrize("name", READERS)
def test_a_folder_of_images_gets_the_line_that_converts_it(name: str, here: Path) -> None:
    draw(here / "my photos" / "deeper" / "a.JPG")
    with pytest.raises(FormatError, match="it holds images") as caught:
        READERS[name]("my photos", here / "out")
    line = str(caught.value).split("`")[1]
    assert line == "lmdbloader convert 'my photos' 'my photos.lmdb'"
    assert main([*shlex.split(line)[1:], "--workers", "1"]) == 0
    assert len(LMDBDataset("my photos.lmdb")) == 1


def test_a_folder_of_splits_gets_the_line_that_converts_each(here: Path) -> None:
    with pytest.raises(FormatError, match=r"`lmdbloader convert pieces pieces\.lmdb --split`"):
        LMDBDataset("pieces")


def test_an_lmdb_of_another_project_gets_the_line_that_converts_it(here: Path) -> None:
    draw(here / "a.png")
    for name, is_folder in (("gt.lmdb", True), ("flat.lmdb", False)):
        with lmdb.open(name, map_size=2**24, subdir=is_folder) as env, env.begin(write=True) as transaction:
            transaction.put(b"a", (here / "a.png").read_bytes())
        with pytest.raises(FormatError, match="is an LMDB that lmdbloader did not write") as caught:
            LMDBDataset(name)
        line = str(caught.value).split("`")[1]
        assert main([*shlex.split(line)[1:], "--workers", "1"]) == 0
        out = shlex.split(line)[-1]
        assert out != name and len(LMDBDataset(out)) == 1
        os.rename(out, f"done-{name}")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.beton", "`lmdbloader convert IMAGES train.lmdb`"),
        ("shard.tar", "`lmdbloader convert shard.tar shard.lmdb`"),
        ("photos.zip", "`lmdbloader convert FOLDER photos.lmdb`"),
        ("photos.tar.gz", "`lmdbloader convert FOLDER photos.tar.lmdb`"),
        ("x.h5", "h5py.File('x.h5')"),
        ("x.HDF5", "'x.lmdb'"),
        ("x.npy", "numpy.load('x.npy')"),
        ("x.parquet", "datasets.load_dataset(\"parquet\", data_files='x.parquet', split=\"train\"), 'x.lmdb')"),
        ("x.arrow", "lmdbloader.write(datasets.Dataset.from_file('x.arrow'), 'x.lmdb')"),
        ("x.tfrecord", "lmdbloader.write(samples, 'x.lmdb')"),
        ("x.pkl", "lmdbloader.write(samples, 'x.lmdb')"),
        ("photo.jpg", "`lmdbloader convert . train.lmdb`"),
        ("pieces.lmdb/val.lmdb/data.mdb", "LMDBDataset('pieces.lmdb/val.lmdb')"),
        ("pieces.lmdb/val.lmdb/manifest.json", "LMDBDataset('pieces.lmdb/val.lmdb')"),
    ],
)  # fmt: skip
def test_a_file_is_recognised(name: str, line: str, here: Path) -> None:
    if not Path(name).exists():
        touch(here / name)
    with pytest.raises(FormatError, match="is a file, not a dataset folder; it is a") as caught:
        LMDBDataset(name)
    assert line in str(caught.value)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_the_line_for_a_file_of_arrays_works(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.arange(3 * 16 * 16 * 3, dtype=np.uint8).reshape(3, 16, 16, 3)
    if suffix == ".npy":
        np.save("x.npy", images)
    else:
        np.savez("x.npz", images=images)
    with pytest.raises(FormatError) as caught:
        LMDBDataset(f"x{suffix}")
    exec(str(caught.value).partition("Write its samples: ")[2].rstrip("."), {"lmdbloader": lmdbloader, "numpy": np})
    assert [sample.image.permute(1, 2, 0).tolist() for sample in LMDBDataset("x.lmdb")] == images.tolist()


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["dataset_info.json", "state.json", "data-0.arrow"], "write(datasets.load_from_disk('x'), 'x.lmdb')"),
        (["dataset_dict.json"], "for name, split in datasets.load_from_disk('x').items(): lmdbloader.write(split, "),
        (["index.json", "shard.00000.mds"], "streaming.StreamingDataset(local='x', batch_size=1), 'x.lmdb')"),
        (["a-000.tar", "a-001.tar"], "`lmdbloader convert x x.lmdb`"),
        (["train.beton"], "it holds train.beton, which is a dataset of FFCV"),
        (["notes.txt"], "Make one with `lmdbloader convert`"),
        ([], "Make one with `lmdbloader convert`"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_folder_is_recognised(files: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in files:
        touch(tmp_path / "x" / name)
    with pytest.raises(FormatError, match=r"x: has no manifest\.json, so it is not a dataset") as caught:
        LMDBDataset("x")
    assert line in str(caught.value)


@pytest.mark.parametrize("name", ["x.zip", "x.h5", "x.beton", "x.parquet"])
def test_convert_recognises_files_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is not a folder; it is a.*lmdbloader"):
        lmdbloader.convert(touch(tmp_path / name), tmp_path / "out")


def test_convert_recognises_folders_too(here: Path) -> None:
    touch(here / "x" / "state.json")
    with pytest.raises(SourceError, match=r"no images in it .*; it is a dataset of Hugging Face\. Write its samples: "):
        lmdbloader.convert("x", "out")
    with pytest.raises(SourceError, match=r"no images in it .*; it holds the datasets train\.lmdb, val\.lmdb"):
        lmdbloader.convert("pieces.lmdb", "out")


def test_folders_are_looked_at_for_a_moment_only(tmp_path: Path) -> None:
    for number in range(300):
        touch(tmp_path / f"{number:03}" / "deep" / "deeper" / "notes.txt")
    with pytest.raises(FormatError, match="Make one with"):
        LMDBDataset(tmp_path)


def test_an_unfinished_conversion_gets_the_line_that_resumes_it(tmp_path: Path) -> None:
    (tmp_path / "d.lmdb.partial").mkdir()
    for name in ("d.lmdb", "d.lmdb.partial"):
        with pytest.raises(FormatError, match=rf"`lmdbloader convert SRC {tmp_path / 'd.lmdb'}` resumes it"):
            LMDBDataset(tmp_path / name)


@pytest.mark.parametrize("name", sorted(READERS))
def test_an_unfinished_conversion_in_parts_gets_the_lines_that_finish_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "d.lmdb.partial" / "shares").mkdir(parents=True)
    for path in (tmp_path / "d.lmdb", tmp_path / "d.lmdb.partial"):
        with pytest.raises(FormatError, match="It is made in parts: ") as caught:
            READERS[name](path, tmp_path / "out")
        assert f"`lmdbloader join {tmp_path}/d.lmdb` names those" in str(caught.value)
        assert f"`lmdbloader convert SRC {tmp_path}/d.lmdb --part I/N`" in str(caught.value)


@pytest.mark.parametrize("name", ["verify", "repair"])
def test_a_url_gets_the_line_that_copies_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a URL; expected a dataset on a disk") as caught:
        READERS[name]("s3://bucket/sets/train.lmdb", tmp_path / "out")
    assert "`lmdbloader stage s3://bucket/sets/train.lmdb .`, and write 'train.lmdb'" in str(caught.value)
    assert "lmdbloader convert URL OUT" in str(caught.value)
    with pytest.raises(OptionError, match=r"Write '/data/d\.lmdb'"):
        READERS[name]("file:///data/d.lmdb", tmp_path / "out")


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"verify", "repair"}))
def test_a_url_without_a_dataset_is_an_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'lmdbloader[remote]'")
    with pytest.raises(NotFoundError, match=r"memory://sets/train\.lmdb: there is no dataset: it has no"):
        READERS[name]("memory://sets/train.lmdb", tmp_path / "out")


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset, out: lmdbloader.convert("pieces", out),
        lambda dataset, out: lmdbloader.write([{"label": 1}], out),
        lambda dataset, out: lmdbloader.extract(dataset, out),
        lambda dataset, out: lmdbloader.stage(dataset, out),
        lambda dataset, out: lmdbloader.preview(dataset, out),
        lambda dataset, out: lmdbloader.repair(dataset, out),
    ],
)
def test_nothing_is_written_to_a_url(make: Any, here: Path) -> None:
    before = sorted(here.rglob("*"))
    with pytest.raises(OptionError, match=r"s3://bucket/out: is a URL, and output goes to a disk only"):
        make("pieces.lmdb/val.lmdb", "s3://bucket/out")
    assert sorted(here.rglob("*")) == before


def test_a_path_with_a_wrong_name_gets_the_right_one(here: Path) -> None:
    with pytest.raises(NotFoundError, match=r"Did you mean 'pieces\.lmdb/train\.lmdb'\?"):
        LMDBDataset("pieces.lmdb/train.lmbd")
    with pytest.raises(NotFoundError, match=r"Did you mean 'pieces\.lmdb/val\.lmdb'\?"):
        LMDBDataset("pieces.lmdb/val")
    with pytest.raises(SourceNotFoundError, match=r"Did you mean 'pieces'\?"):
        lmdbloader.convert("piece", "out")


def test_only_a_shell_knows_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    with pytest.raises(NotFoundError, match=r"Only a shell expands ~: write '/home/me/train\.lmdb'"):
        LMDBDataset("~/train.lmdb")
    with pytest.raises(SourceNotFoundError, match=r"Only a shell expands ~: write '/home/me/photos'"):
        lmdbloader.convert("~/photos", "out")


@pytest.mark.parametrize("given", ["s3:/bucket/train.lmdb", Path("s3://bucket/train.lmdb")])
def test_a_url_that_lost_a_slash_is_written_out(given: str | Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=r"A URL has two slashes, .*: write the text 's3://bucket/train\.lmdb'"):
        LMDBDataset(given)


# The others take datasets of other libraries too, or no path.
@pytest.mark.parametrize("name", [name for name in READERS if name not in ("dataloader", "tune", "doctor")])
@pytest.mark.parametrize("path", [None, 3, 1.5, b"a\0b", ""], ids=repr)
def test_a_value_that_is_not_a_path_is_refused(name: str, path: Any, tmp_path: Path) -> None:
    with pytest.raises(LmdbloaderError, match="expected"):
        READERS[name](path, tmp_path / "out")


def test_an_empty_path_is_often_a_variable_that_is_not_set() -> None:
    with pytest.raises(OptionError, match=r"path='': .* it is empty\. Is its environment variable set\?"):
        LMDBDataset("")


def test_several_paths_get_the_line_that_joins_them() -> None:
    with pytest.raises(OptionError, match=r"write lmdbloader\.mix\(paths\), and read it with Loader"):
        LMDBDataset(["a.lmdb", "b.lmdb"])  # type: ignore[arg-type]


@pytest.mark.parametrize("spelled", [str, Path, os.fsencode])
def test_a_path_may_be_text_bytes_or_a_path(spelled: Any, here: Path) -> None:
    assert len(LMDBDataset(spelled(here / "pieces.lmdb" / "val.lmdb"))) == 2
    assert lmdbloader.info(spelled(here / "pieces.lmdb" / "val.lmdb")).num_samples == 2
    assert lmdbloader.verify(spelled(here / "pieces.lmdb" / "val.lmdb")).is_sound
