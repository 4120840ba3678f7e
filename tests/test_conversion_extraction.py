"""Extraction: the same pixels, only inside its folder, and the same dataset when it is converted again."""

from __future__ import annotations

import io
import json
import os
import unicodedata
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, features

import lmdbloader
from lmdbloader.conversion.extraction import FILE_SUFFIXES, encode_png, extract, safe_stem, unique_stems
from lmdbloader.errors import CorruptError, DestinationError, OptionError
from lmdbloader.images.decode import decode_image
from lmdbloader.store import Reader, read_manifest

HOSTILE = ["", ".", "..", "/", "../../x", "/etc/passwd", "a/../../b.png", "a//b", "a\0b.png", "a/.", "x" * 300 + ".png"]
HOSTILE += ["ü" * 200, "/".join("d" * 90 for _ in range(60)), "samples.jsonl/a.png", "a.png/b.png", "a.jpg", "a.png"]
HOSTILE += ["extracted.json", "\x1b[2J.png", "~2", "a~2.png", ".png", "..png", "a/..png", "\\..\\x"]

# --- PNG ---


@given(
    st.sampled_from([np.uint8, np.uint16]).flatmap(
        lambda dtype: arrays(dtype, st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])))
    )
)
def test_every_image_decodes_to_itself(image: np.ndarray) -> None:
    found = decode_image(encode_png(image))
    assert found.dtype == image.dtype
    assert (found == image).all()


def test_an_image_of_several_parts_decodes_to_itself_and_is_read_by_pillow() -> None:
    rows, columns = np.mgrid[:1500, :1100]
    image = np.stack([rows % 256, columns % 256, (rows + columns) % 251], axis=2).astype(np.uint8)
    data = encode_png(image)
    assert (decode_image(data) == image).all()
    assert len(data) < image.nbytes / 20  # the differences of rows are small
    with Image.open(io.BytesIO(data)) as picture:
        assert (np.asarray(picture) == image).all()


# --- Names ---

sources = st.lists(
    st.sampled_from(HOSTILE) | st.text("aAb/.~2_\\é\0", max_size=12) | st.text(max_size=8)
    | st.tuples(st.sampled_from(["a", "b/c"]), st.sampled_from([".png", ".jpg", ".PNG", "~2.png", ""])).map("".join),
    max_size=12,
)  # fmt: skip


@given(st.sampled_from(HOSTILE) | st.text(max_size=400))
def test_a_stem_is_a_relative_path_that_stays_inside(source: str) -> None:
    stem = safe_stem(source)
    parts = stem.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert all(len(part.encode()) <= 200 for part in parts)
    assert len(stem.encode()) <= 1300
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in stem)
    assert not any(part.lower().endswith(FILE_SUFFIXES) for part in parts[:-1])
    assert os.path.normpath(os.path.join("/out", stem)).startswith("/out/")


@given(sources)
@example(["a.jpg", "a.png", "a.jpg", "a.jpg.png", "a~2.png"])
@example(["a.png/b.png", "a.png_/b.png", "a.jpg", "a.png"])
def test_no_two_files_and_no_file_and_folder_get_one_path(names: list[str]) -> None:
    stems = unique_stems(names)
    files = [f"{stem}{suffix}" for stem in stems for suffix in (".png", ".npy")]
    assert len(set(files)) == len(files) == 2 * len(names)
    folders = {str(parent) for file in files for parent in PurePosixPath(file).parents}
    assert folders.isdisjoint(files)
    assert folders.isdisjoint({"samples.jsonl"})
    assert stems == unique_stems(names)


# --- Folders ---


def table_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text("utf-8").splitlines()]


def images_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole images in folders below one another: 8 and 16 bits, gray and RGB, one of them in tiles."""
    noise = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("sixteen") / "images"
    for number, (dtype, channels, side) in enumerate(
        [(np.uint8, 1, 20), (np.uint8, 3, 350), (np.uint16, 1, 33), (np.uint16, 3, 25)]
    ):
        path = folder / ("sub" if number % 2 else "") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(noise.integers(0, np.iinfo(dtype).max + 1, (side, side + 1, channels), dtype)))
    return folder


def test_whole_images_come_back_pixel_by_pixel_and_convert_to_the_same_content(sixteen: Path, tmp_path: Path) -> None:
    lmdbloader.convert(sixteen, tmp_path / "db", layout="images", workers=1)
    done = extract(tmp_path / "db", tmp_path / "files")
    assert (done.num_samples, done.num_files) == (4, 4)
    assert images_in(tmp_path / "files") == images_in(sixteen)
    for name in images_in(sixteen):
        assert (
            decode_image((tmp_path / "files" / name).read_bytes()) == decode_image((sixteen / name).read_bytes())
        ).all()
    lmdbloader.convert(tmp_path / "files", tmp_path / "again", layout="images", workers=1)
    assert read_manifest(tmp_path / "again").content_digest == read_manifest(tmp_path / "db").content_digest


def test_pairs_of_whole_images_and_class_folders_convert_to_the_same_content(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "pairs", layout="images", scale=2, workers=1)
    for number, path in enumerate(sorted(photos.iterdir())[:4]):
        (tmp_path / "src" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / "ab"[number % 2] / path.name).write_bytes(path.read_bytes())
    lmdbloader.convert(tmp_path / "src", tmp_path / "classes", workers=1)
    for name in ("pairs", "classes"):
        extract(tmp_path / name, tmp_path / f"{name} files")
        lmdbloader.convert(tmp_path / f"{name} files", tmp_path / f"{name} again", workers=1)
        first, again = read_manifest(tmp_path / name), read_manifest(tmp_path / f"{name} again")
        assert again.content_digest == first.content_digest
        assert again.classes == first.classes
    table = table_of(tmp_path / "classes files")
    assert [(line["label"], line["label.class"]) for line in table] == [(0, "a"), (0, "a"), (1, "b"), (1, "b")]


def test_patches_are_named_after_source_and_position(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "db", patch_size=96, stride=96, scale=2, workers=1)
    extract(tmp_path / "db", tmp_path / "files", samples=[1, 5, -1])
    assert images_in(tmp_path / "files") == [
        f"{side}/{name}.png"
        for side in ("hr", "lr")
        for name in ("astronaut_r00000_c00096", "astronaut_r00096_c00192", "rocket_r00096_c00192")
    ]
    reader = Reader(tmp_path / "db")
    for line in table_of(tmp_path / "files"):
        for side in ("lr", "hr"):
            found = decode_image((tmp_path / "files" / line[side]).read_bytes())
            assert (np.moveaxis(found, 2, 0) == reader.read_image(side, line["sample"])).all()
    whole = decode_image((photos / "rocket.png").read_bytes())
    patch = decode_image((tmp_path / "files" / "hr/rocket_r00096_c00192.png").read_bytes())
    assert (patch == whole[96:192, 192:288]).all()


def test_every_other_kind_of_value_comes_back(tmp_path: Path) -> None:
    jpeg = b"\xff\xd8\xff what follows is not looked at"
    samples = [
        {"image": np.full((4, 5), i, np.uint8), "array": np.arange(i, dtype=np.complex64), "text": "ä\n", "label": i,
         "score": [0.1, float("nan"), float("-inf")][i], "note": {"i": [i, None]}, "blob": [b"", b"\0x", jpeg][i]}
        for i in range(3)
    ]  # fmt: skip
    lmdbloader.write(samples, tmp_path / "db")
    extract(tmp_path / "db", tmp_path / "files")
    table = table_of(tmp_path / "files")
    assert [line["image"] for line in table] == [f"image/{i:06d}.png" for i in range(3)]
    assert [line["blob"] for line in table] == ["blob/000000.bin", "blob/000001.bin", "blob/000002.jpg"]
    assert [line["score"] for line in table] == [0.1, "nan", "-inf"]
    for i, (line, sample) in enumerate(zip(table, samples, strict=True)):
        assert (line["text"], line["label"], line["note"]) == (sample["text"], i, sample["note"])
        array = np.load(tmp_path / "files" / line["array"], allow_pickle=False)
        assert array.dtype == np.complex64 and (array == sample["array"]).all()
        assert (tmp_path / "files" / line["blob"]).read_bytes() == sample["blob"]


def test_chosen_fields_and_samples_alone_are_written(sixteen: Path, tmp_path: Path) -> None:
    lmdbloader.write([{"image": np.zeros((4, 4), np.uint8), "label": i} for i in range(5)], tmp_path / "db")
    extract(tmp_path / "db", tmp_path / "files", fields=["image"], samples=[3, 1, 3])
    assert images_in(tmp_path / "files") == ["000001.png", "000003.png"]
    assert table_of(tmp_path / "files") == [{"sample": i, "image": f"{i:06d}.png"} for i in (1, 3)]
    extract(tmp_path / "db", tmp_path / "labels", fields=["label"])
    assert [p.name for p in (tmp_path / "labels").iterdir()] == ["samples.jsonl"]
    for options, message in (
        ({"fields": ["depth"]}, "no field 'depth'; it has image, label"),
        ({"fields": []}, "no field to extract"),
        ({"samples": [5]}, "sample 5 of a dataset of 5"),
        ({"samples": []}, "no sample to extract"),
    ):
        with pytest.raises(OptionError, match=message):
            extract(tmp_path / "db", tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def write_with_sources(names: list[str], path: Path, *, tops: list[int] | None = None) -> None:
    """Make a dataset whose index says these sources, as only a hostile one would."""
    from lmdbloader.format.codecs import encode_many
    from lmdbloader.format.layout import make_field
    from lmdbloader.format.manifest import Description
    from lmdbloader.store import Chunk, Work, encode_blocks, join

    fields = (make_field("image", "image", "raw"),)
    count = len(names)
    pixels = encode_many(np.arange(count, dtype=np.uint8), np.ones(count, np.int64), "raw")
    columns = {"source": names, "top": np.array(tops or [0] * count), "left": np.zeros(count, np.int64)}
    columns |= {f"image.{k}": np.full(count, v) for k, v in (("height", 1), ("width", 1), ("channels", 1), ("bits", 8))}
    chunk = Chunk(count, {"image": pixels}, columns)
    work, description = Work(path), Description(fields, True, {}, {})
    work.begin({})
    with work.part(0, description, map_nbytes=2**20) as writer:
        writer.add(chunk, encode_blocks(chunk, fields, with_source=True))
        facts = work.complete(0, writer, {})
    join(work, [facts], description)


def test_hostile_source_names_stay_inside_and_lose_no_sample(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    write_with_sources(HOSTILE, tmp_path / "inside" / "db")
    extract(tmp_path / "inside" / "db", tmp_path / "inside" / "files")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inside"]
    assert sorted(p.name for p in (tmp_path / "inside").iterdir()) == ["db", "files"]
    table = table_of(tmp_path / "inside" / "files")
    assert [line["source"] for line in table] == HOSTILE
    assert len({line["image"] for line in table}) == len(HOSTILE)
    for value, line in enumerate(table):
        assert decode_image((tmp_path / "inside" / "files" / line["image"]).read_bytes()).item() == value


def test_whole_samples_of_one_source_are_numbered(tmp_path: Path) -> None:
    write_with_sources(["b.png", "a.png", "c.png", "a.png"], tmp_path / "db")
    extract(tmp_path / "db", tmp_path / "files")
    assert [line["image"] for line in table_of(tmp_path / "files")] == ["b.png", "a.png", "c.png", "a~2.png"]
    values = [decode_image((tmp_path / "files" / f"{stem}.png").read_bytes()).item() for stem in ("b", "a", "c", "a~2")]
    assert values == [0, 1, 2, 3]


def test_two_patches_of_one_place_are_refused_rather_than_lost(tmp_path: Path) -> None:
    write_with_sources(["b.png", "a.png", "a.png"], tmp_path / "db", tops=[5, 0, 0])
    with pytest.raises(DestinationError, match=r"two samples have this file name.*sample 2 \(from a\.png\)"):
        extract(tmp_path / "db", tmp_path / "files", workers=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    lmdbloader.write([{"image": np.full((4, 4), i, np.uint8)} for i in range(3)], tmp_path / "db", codec="raw")
    return tmp_path / "db"


def test_what_exists_is_not_replaced(small: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for name in ("empty", "link", "file", "db", "db/files", ".", "absent/files"):
        with pytest.raises(DestinationError):
            extract(small, tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db", "empty", "file", "link"]


def test_a_folder_that_another_extraction_fills_is_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "files.partial").mkdir()
    (tmp_path / "files.partial" / "theirs").touch()
    with pytest.raises(DestinationError, match=r"files\.partial: exists\. Another extraction"):
        extract(small, tmp_path / "files")
    assert (tmp_path / "files.partial" / "theirs").exists()


def test_a_damaged_sample_is_named_and_nothing_is_left(small: Path, tmp_path: Path) -> None:
    extract(small, tmp_path / "old", samples=[0])
    offset = int(Reader(small).index.arrays["image.offset"][2])
    with open(small / "data.mdb", "r+b") as file:
        file.seek(offset)
        file.write(b"\xff")
    with pytest.raises(CorruptError, match="sample 2"):
        extract(small, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db", "old"]
    assert images_in(tmp_path / "old") == ["000000.png"]
    extract(small, tmp_path / "sound", samples=[0, 1])


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """A folder of files of every kind, kept as they are, and the dataset of them."""
    source = tmp_path / "src"
    source.mkdir()
    shades = Image.fromarray((np.mgrid[:40, :60].sum(0) % 256).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    shades.save(source / "a.jpg", quality=90)
    shades.convert("RGB").save(source / "turned.jpeg", exif=exif)
    shades.save(source / "progressive.jpg", progressive=True)
    for suffix in ("png", "gif", "bmp", "tif", "pgm", *(("webp",) if features.check("webp") else ())):
        shades.save(source / f"{suffix}.{suffix}")
    lmdbloader.convert(source, tmp_path / "db", write_mode="original", workers=1)
    return source


def test_files_that_were_kept_come_back_byte_by_byte(originals: Path, tmp_path: Path) -> None:
    extract(tmp_path / "db", tmp_path / "files")
    found = {p.name: p.read_bytes() for p in (tmp_path / "files").iterdir() if p.suffix not in (".json", ".jsonl")}
    expected = {p.name: p.read_bytes() for p in originals.iterdir()}
    expected["turned.jpg"] = expected.pop("turned.jpeg")
    assert found == expected
    extract(tmp_path / "db", tmp_path / "pixels", image_format="png")
    for row, name in enumerate(sorted(p.name for p in originals.iterdir())):
        pixels = decode_image((tmp_path / "pixels" / Path(name).with_suffix(".png")).read_bytes())
        np.testing.assert_array_equal(
            np.moveaxis(lmdbloader.LMDBDataset(tmp_path / "db")[row].image.numpy(), 0, 2), pixels
        )
    with pytest.raises(OptionError, match="image_format='jpg': expected one of stored, png"):
        extract(tmp_path / "db", tmp_path / "other", image_format="jpg")  # type: ignore[arg-type]
