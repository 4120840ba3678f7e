"""`recode` makes of a dataset the one that a conversion with its options would make; no pixel changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, cli, fields
from lmdbloader.conversion import combining
from lmdbloader.errors import DestinationError, OptionError
from lmdbloader.format.layout import CODEC_JPEG
from lmdbloader.store import Work


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEG files, one of them turned, one progressive, and a PNG file of more than one tile."""
    folder = tmp_path_factory.mktemp("recoding") / "photos"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("astronaut", "coffee", "chelsea"):
        photograph = Image.fromarray(getattr(skimage.data, name)())
        kind = {"coffee": {"exif": exif, "progressive": True}, "chelsea": {"progressive": True}}.get(name, {})
        photograph.save(folder / f"{name}.jpg", quality=92, **kind)
    photograph.save(folder / "whole.png")
    photograph.crop((0, 0, 100, 80)).save(folder / "small.png")
    return folder


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"jpeg_code": "fast"}, {"jpeg_code": "file"}),
        ({"jpeg_code": "file"}, {"jpeg_code": "fast"}),
        ({"codec": "raw"}, {"codec": "delta"}),
        ({"codec": "delta"}, {"codec": "lz4"}),
        ({"codec": "lz4"}, {"codec": "raw"}),
    ],
)
def test_the_result_is_that_of_a_conversion(
    folder: Path, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    lmdbloader.convert(folder, tmp_path / "before", layout="images", **before)
    lmdbloader.convert(folder, tmp_path / "expected", layout="images", **after)
    made = lmdbloader.recode(tmp_path / "before", tmp_path / "made", **after)
    expected = LMDBDataset(tmp_path / "expected")
    assert made.content_digest == expected.reader.manifest.content_digest
    assert LMDBDataset(tmp_path / "made").reader.manifest.fields == expected.reader.manifest.fields
    for a, b in zip(LMDBDataset(tmp_path / "before"), LMDBDataset(tmp_path / "made"), strict=True):
        np.testing.assert_array_equal(a.image, b.image)
    assert not lmdbloader.verify(tmp_path / "made").advice
    assert lmdbloader.recode(tmp_path / "before", tmp_path / "made", **after).was_finished
    with pytest.raises(DestinationError):
        lmdbloader.recode(tmp_path / "before", tmp_path / "made", codec="lz4", jpeg_code="file")


def test_files_come_back_after_recoding(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmdbloader.convert(folder, tmp_path / "file", write_mode="original", layout="images", jpeg_code="file")
    assert cli.main(["recode", str(tmp_path / "file"), str(tmp_path / "fast"), "--jpeg-code", "fast"]) == 0
    assert "5 samples" in capsys.readouterr().out
    lmdbloader.extract(tmp_path / "fast", tmp_path / "files")
    for file in folder.iterdir():
        assert (tmp_path / "files" / file.name).read_bytes() == file.read_bytes()


def test_what_was_left_out_stays_known_and_the_options_are_those_of_the_result(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bad.jpg").write_bytes(b"no image")
    (tmp_path / "src" / "good.jpg").write_bytes((folder / "chelsea.jpg").read_bytes())
    lmdbloader.convert(tmp_path / "src", tmp_path / "files", jpeg_code="file", on_error="skip", workers=1)
    lmdbloader.recode(tmp_path / "files", tmp_path / "fast", jpeg_code="fast")
    assert (tmp_path / "fast" / "skipped.tsv").read_bytes() == (tmp_path / "files" / "skipped.tsv").read_bytes()
    before, after = (LMDBDataset(tmp_path / name).reader.manifest.made_by for name in ("files", "fast"))
    assert before["options"]["storage"]["jpeg_code"] == "file" and after["options"]["storage"]["jpeg_code"] == "fast"
    assert after["inputs"]["datasets"][0]["made_by"]["options"] == before["options"]


def test_calls_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    lmdbloader.write([{"number": 1}], tmp_path / "numbers")
    for options in ({}, {"codec": "auto"}, {"jpeg_code": "slow"}, {"codec": "lz4"}):
        with pytest.raises(OptionError):
            lmdbloader.recode(tmp_path / "numbers", tmp_path / "made", **options)  # type: ignore[arg-type]


def test_an_interrupted_call_is_not_finished_with_another_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdbloader.convert(folder, tmp_path / "file", write_mode="original", layout="images", jpeg_code="file")
    complete = Work.complete

    def stop(work: Work, *arguments: Any) -> None:
        complete(work, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(combining, "PART_NBYTES", 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(Work, "complete", stop)
        with pytest.raises(KeyboardInterrupt):
            lmdbloader.recode(tmp_path / "file", tmp_path / "made", jpeg_code="fast")
    with pytest.raises(DestinationError, match="another dataset is unfinished there: jpeg_code fast, now file"):
        lmdbloader.recode(tmp_path / "file", tmp_path / "made", jpeg_code="file")
    lmdbloader.recode(tmp_path / "file", tmp_path / "made", jpeg_code="fast")
    reader = LMDBDataset(tmp_path / "made").reader
    jpegs = np.flatnonzero(reader.index.columns["image.codec"] == CODEC_JPEG).tolist()
    assert [bytes(reader.stored_bytes("image", row)[-4:]) for row in jpegs] == 3 * [b"FAST"]


def test_views_that_are_no_dataset_are_refused(tmp_path: Path) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    sample = {"image": image, "other": image[:4], "boxes": np.zeros((1, 4), np.float32)}
    lmdbloader.write([sample], tmp_path / "all", fields={"boxes": fields.Boxes(image="image")})
    for view in (LMDBDataset(tmp_path / "all", fields=["other", "boxes"]), LMDBDataset(tmp_path / "all").select([])):
        with pytest.raises(OptionError, match=r"which is left out|has no sample"):
            lmdbloader.recode(view, tmp_path / "made", codec="raw")
