"""The key `source` of the samples of `write`: the names of the files that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from breaking_samples import COUNT, sample

import lmdbloader
from lmdbloader import LMDBDataset, fields
from lmdbloader.errors import DestinationError, OptionError

pytestmark = pytest.mark.usefixtures("small_steps")


def named(number: int, source: Any) -> dict[str, Any]:
    return {**sample(number), "source": source}


class Named:
    """Samples of files, two of each; the dataset can break."""

    def __init__(self, breaks_at: int = -1, name: str = "scans/ü{}.png") -> None:
        self.breaks_at, self.name = breaks_at, name

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.breaks_at:
            raise RuntimeError("a bad sample")
        return named(index, self.name.format(index // 2))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def sources(path: Path) -> list[str]:
    return LMDBDataset(path).table["source"].to_pylist()


def test_extracted_files_are_named_after_the_sources_and_converted_again(out: Path, tmp_path: Path) -> None:
    names = ["b/two.tif", "a/one.png", "a/three.png"]
    lmdbloader.write([{"image": sample(i)["image"], "source": name} for i, name in enumerate(names)], out)
    assert list(LMDBDataset(out).reader.fields) == ["image"] and sources(out) == names
    lmdbloader.extract(out, tmp_path / "files")
    found = sorted(p.relative_to(tmp_path / "files").as_posix() for p in (tmp_path / "files").rglob("*.png"))
    assert found == ["a/one.png", "a/three.png", "b/two.png"]
    lmdbloader.convert(tmp_path / "files", tmp_path / "again", layout="images")
    assert sources(tmp_path / "again") == found
    assert (LMDBDataset(tmp_path / "again")[0].image == LMDBDataset(out)[1].image).all()


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "threads": True}])
def test_workers_change_nothing(out: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    expected = lmdbloader.write((Named()[i] for i in range(COUNT)), tmp_path / "of_iterator")
    assert lmdbloader.write(Named(), out, **options).content_digest == expected.content_digest
    assert sources(out) == [f"scans/ü{i // 2}.png" for i in range(COUNT)]
    assert lmdbloader.verify(out).is_sound


def test_samples_of_one_source_stay_on_one_side_of_a_split(out: Path) -> None:
    lmdbloader.write([named(i, f"patient-{i % 7}") for i in range(40)], out)
    parts = [set(part.table["source"].to_pylist()) for part in LMDBDataset(out).split([0.5, 0.5])]
    assert all(parts) and not parts[0] & parts[1]


def test_an_interrupted_write_continues_with_its_sources(out: Path, tmp_path: Path) -> None:
    expected = lmdbloader.write(Named(), tmp_path / "whole")
    with pytest.raises(RuntimeError, match="a bad sample"):
        lmdbloader.write(Named(200), out)
    with pytest.raises(DestinationError, match="unfinished there"):
        lmdbloader.write([sample(i) for i in range(COUNT)], out)
    with pytest.raises(DestinationError, match="sample 0: its 'source' differs"):
        lmdbloader.write(Named(name="{}"), out)
    done: list[int] = []
    assert lmdbloader.write(Named(), out, progress=done.append).content_digest == expected.content_digest
    assert 0 < sum(done) < COUNT


def test_datasets_made_of_it_keep_the_sources(out: Path, tmp_path: Path) -> None:
    lmdbloader.write([named(i, f"{i}.png") for i in range(4)], out)
    lmdbloader.write([named(i, f"{i}.png") for i in range(4, 6)], tmp_path / "more")
    lmdbloader.merge([out, tmp_path / "more"], tmp_path / "merged")
    assert sources(tmp_path / "merged") == [f"{i}.png" for i in range(6)]
    lmdbloader.append(out, [tmp_path / "more"])
    assert sources(out) == [f"{i}.png" for i in range(6)]
    lmdbloader.subset(out, tmp_path / "some", names=["5.png", "1.png"])
    assert sources(tmp_path / "some") == ["5.png", "1.png"]


def test_tuples_name_it_and_fields_need_not(out: Path, tmp_path: Path) -> None:
    pairs = [(sample(i)["image"], f"{i}.png") for i in range(3)]
    lmdbloader.write(pairs, out, fields=("image", "source"))
    assert sources(out) == ["0.png", "1.png", "2.png"]
    with pytest.raises(OptionError, match="the source of a sample is always text"):
        lmdbloader.write([named(0, "a")], tmp_path / "other", fields={"source": fields.Text()})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (named(1, 3), "sample 1: its source is 3: expected str"),
        (named(1, None), "sample 1: its source is None: expected str"),
        (named(1, Path("a.png")), r"sample 1: its source is .*a\.png'\): expected str.* Write str\(path\)"),
        (named(1, ""), "sample 1: its source is '': expected 1 to 4,096 bytes"),
        (named(1, "a\0"), "sample 1: its source .* without NUL"),
        (named(1, "ü" * 2049), "sample 1: its source .* expected 1 to 4,096 bytes"),
        (named(1, "\ud800"), "sample 1: its source is text that is not valid Unicode"),
        (sample(1), "sample 1 has the fields image, label, weight, name; the first one had .*, source"),
    ],
)
def test_a_source_that_is_not_the_name_of_a_file_is_refused(out: Path, second: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        lmdbloader.write([named(0, "a.png"), second], out)
    with pytest.raises(OptionError, match=r"sample 1 has the fields .*, source; the first one had"):
        lmdbloader.write([sample(0), named(1, "b.png")], out)


def test_a_sample_of_a_source_alone_is_refused(out: Path) -> None:
    with pytest.raises(OptionError, match="sample 0 has only a source"):
        lmdbloader.write([{"source": "a.png"}], out)
