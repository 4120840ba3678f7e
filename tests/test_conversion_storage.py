"""Write modes: how each image is stored, refusals, and the same result for any number of workers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from skimage import data as photographs

import lmdbloader
from lmdbloader.conversion import pool
from lmdbloader.conversion.storage import Storage, decode_to_size, draw, nearest, shrink
from lmdbloader.errors import DestinationError, ImageError, OptionError
from lmdbloader.format.codecs import unpack_jpeg
from lmdbloader.format.layout import CODEC_NAMES
from lmdbloader.images.decode import DecodePolicy, decode_image
from lmdbloader.images.downscale import psnr_between

PHOTOGRAPH = photographs.astronaut()[:120, :160]


def save(path: Path, pixels: np.ndarray, **options: Any) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path.read_bytes()


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """A folder with a JPEG, a rotated one, a progressive one, a CMYK one, PNGs of 8 and 16 bits and one with alpha."""
    folder = tmp_path / "src"
    exif = Image.Exif()
    exif[0x0112] = 6
    save(folder / "a.jpg", PHOTOGRAPH, quality=85)
    save(folder / "b.jpg", PHOTOGRAPH, quality=85, exif=exif)
    save(folder / "c.jpg", PHOTOGRAPH, quality=85, progressive=True)
    Image.fromarray(PHOTOGRAPH).convert("CMYK").save(folder / "d.jpg", quality=85)
    save(folder / "e.png", PHOTOGRAPH)
    save(folder / "f.png", np.dstack([PHOTOGRAPH, np.full((120, 160), 9, np.uint8)]))
    save(folder / "g.jpg", PHOTOGRAPH[:, :, 0], quality=85)
    return folder


def convert(src: Path, out: Path, **options: Any) -> lmdbloader.LMDBDataset:
    lmdbloader.convert(src, out, **{"workers": 1, "alpha": "drop", **options})
    return lmdbloader.LMDBDataset(out)


def stored_as(dataset: lmdbloader.LMDBDataset) -> dict[str, str]:
    """How each source's image is stored."""
    codes = dataset.reader.index.arrays["image.codec"]
    return {str(dataset.reader.source(i))[0]: CODEC_NAMES[code] for i, code in enumerate(codes.tolist())}


def check_pixels(dataset: lmdbloader.LMDBDataset, src: Path) -> None:
    """Every image reads back as its file decodes."""
    for i, sample in enumerate(dataset):
        path = src / str(dataset.reader.source(i))
        data = path.read_bytes()
        expected = decode_image(data, DecodePolicy("drop"))
        if path.name == "b.jpg":
            expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        np.testing.assert_array_equal(np.moveaxis(sample.image.numpy(), 0, 2), expected, err_msg=path.name)


def test_by_default_jpegs_stay_as_they_are(src: Path, tmp_path: Path) -> None:
    dataset = convert(src, tmp_path / "out")
    assert stored_as(dataset) == {
        "a": "jpeg", "b": "jpeg", "c": "jpeg", "d": "file", "e": "raw", "f": "raw", "g": "jpeg",
    }  # fmt: skip
    check_pixels(dataset, src)
    assert dataset[1].image.shape == (3, 160, 120)
    for i, name in ((0, "a.jpg"), (1, "b.jpg"), (2, "c.jpg"), (6, "g.jpg")):
        assert unpack_jpeg(dataset.reader.stored_bytes("image", i)) == (src / name).read_bytes()
    assert dataset.reader.stored_bytes("image", 3) == (src / "d.jpg").read_bytes()
    assert lmdbloader.verify(tmp_path / "out").is_sound


def test_original_keeps_all_files_without_transparency(src: Path, tmp_path: Path) -> None:
    dataset = convert(src, tmp_path / "out", write_mode="original")
    assert stored_as(dataset) == {
        "a": "jpeg", "b": "jpeg", "c": "jpeg", "d": "file", "e": "file", "f": "raw", "g": "jpeg",
    }  # fmt: skip
    check_pixels(dataset, src)


@pytest.mark.parametrize("options", [{"codec": "raw"}, {"write_mode": "raw"}, {"codec": "lz4"}])
def test_pixels_are_stored_on_request(src: Path, tmp_path: Path, options: Any) -> None:
    dataset = convert(src, tmp_path / "out", **options)
    assert set(stored_as(dataset).values()) <= {"raw", "lz4"}
    check_pixels(dataset, src)


def test_jpg_encodes_all_at_the_quality_asked_for(src: Path, tmp_path: Path) -> None:
    small, large = (convert(src, tmp_path / f"{q}", write_mode="jpg", jpeg_quality=q) for q in (30, 95))
    for dataset in (small, large):
        assert set(stored_as(dataset).values()) == {"jpeg"}
        file = unpack_jpeg(dataset.reader.stored_bytes("image", 4))
        np.testing.assert_array_equal(np.moveaxis(dataset[4].image.numpy(), 0, 2), simplejpeg.decode_jpeg(file))
        assert file.count(b"\xff\xd0") + file.count(b"\xff\xd1") >= 2, "it has restart markers"
    assert 2 * small.reader.manifest.sizes["payload_nbytes"] < large.reader.manifest.sizes["payload_nbytes"]
    off = np.abs(np.moveaxis(large[4].image.numpy(), 0, 2).astype(int) - PHOTOGRAPH)
    assert off.mean() < 3


def test_smart_goes_by_the_bytes_of_the_pixels(tmp_path: Path) -> None:
    for width in (20, 21):
        save(tmp_path / "src" / f"{width}.png", PHOTOGRAPH[:10, :width])
    report = lmdbloader.convert(tmp_path / "src", tmp_path / "out", write_mode="smart", smart_threshold=600, workers=1)
    assert report.stored_as == {"raw": 1, "jpeg": 1}
    codes = lmdbloader.LMDBDataset(tmp_path / "out").reader.index.arrays["image.codec"]
    assert [CODEC_NAMES[c] for c in codes.tolist()] == ["raw", "jpeg"]


def test_proportion_depends_on_the_seed_and_on_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "TASK_SOURCES", 60)  # so that there is something for two workers to do
    for i in range(200):
        save(tmp_path / "src" / f"{i}.png", PHOTOGRAPH[i % 50 : i % 50 + 9, i % 99 : i % 99 + 12])
    options: Any = {"write_mode": "proportion", "compress_probability": 0.3}
    made = [
        convert(tmp_path / "src", tmp_path / f"{k}", workers=workers, seed=seed, **options).reader
        for k, (workers, seed) in enumerate([(1, 0), (2, 0), (1, 1)])
    ]
    assert made[0].manifest.content_digest == made[1].manifest.content_digest != made[2].manifest.content_digest
    for name in ("data.mdb", "index.arrow", "manifest.json"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    shares = [(reader.index.arrays["image.codec"] == CODEC_NAMES.index("jpeg")).sum() for reader in made]
    assert all(35 <= share <= 85 for share in shares)  # four standard deviations around 60
    assert 150 <= sum(draw(0, str(i)) < 0.2 for i in range(1000)) <= 250


def test_large_images_shrink_and_small_ones_stay_as_they_are(src: Path, tmp_path: Path) -> None:
    save(src / "h.jpg", photographs.coffee()[:50, :64], quality=85)
    dataset = convert(src, tmp_path / "out", write_mode="original", max_resolution=80)
    assert stored_as(dataset) == {
        "a": "jpeg", "b": "jpeg", "c": "jpeg", "d": "jpeg", "e": "raw", "f": "raw", "g": "jpeg", "h": "jpeg",
    }  # fmt: skip
    shapes = [tuple(sample.image.shape[1:]) for sample in dataset]
    assert shapes == [(60, 80), (80, 60), *[(60, 80)] * 5, (50, 64)]
    assert unpack_jpeg(dataset.reader.stored_bytes("image", 7)) == (src / "h.jpg").read_bytes()
    expected = np.asarray(Image.fromarray(PHOTOGRAPH).resize((80, 60), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(np.moveaxis(dataset[4].image.numpy(), 0, 2) - expected).max() <= 2


def test_an_outlier_among_photographs(tmp_path: Path) -> None:
    outlier = np.tile(photographs.coffee(), (8, 8, 1))[:2848, :4288]
    data = save(tmp_path / "a.jpg", outlier, quality=90)
    storage = Storage(max_resolution=384)
    found = decode_to_size(storage, data, DecodePolicy(), "a.jpg")
    # Decoded to half its size or less first, it looks as if shrunk from all of it.
    whole = shrink(np.asarray(Image.open(tmp_path / "a.jpg")), 255, 384)
    assert found.shape == whole.shape == (255, 384, 3)
    assert psnr_between(found, whole) > 38
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = save(tmp_path / "b.jpg", outlier, quality=90, exif=exif)
    upright = decode_to_size(storage, turned, DecodePolicy(), "b.jpg")
    assert psnr_between(upright, np.ascontiguousarray(np.rot90(found, -1))) > 45
    assert shrink(np.zeros((1, 900, 1), np.uint16), 1, 100).shape == (1, 100, 1)
    damaged = data[: len(data) // 2] + data[len(data) // 2 + 100 :]
    with pytest.raises(ImageError, match=r"^c\.jpg: the JPEG data is damaged"):
        decode_to_size(storage, damaged, DecodePolicy(), "c.jpg")


def test_what_no_jpeg_can_hold_stays_pixels(tmp_path: Path) -> None:
    for side in (65500, 65501):
        save(tmp_path / "src" / f"{side}.png", np.zeros((1, side), np.uint8))
    dataset = convert(tmp_path / "src", tmp_path / "out", write_mode="jpg")
    assert [CODEC_NAMES[c] for c in dataset.reader.index.arrays["image.codec"].tolist()] == ["jpeg", "lz4"]
    assert [sample.image.shape for sample in dataset] == [(1, 1, 65500), (1, 1, 65501)]


def test_sixteen_bits_are_never_jpeg(tmp_path: Path) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (20, 30)).astype(np.uint16)
    save(tmp_path / "src" / "deep.png", deep)
    dataset = convert(tmp_path / "src", tmp_path / "out", write_mode="jpg")
    assert stored_as(dataset) == {"d": "raw"}
    np.testing.assert_array_equal(dataset[0].image.numpy()[0], deep)


def test_a_damaged_jpeg_is_noticed_when_it_is_converted(src: Path, tmp_path: Path) -> None:
    whole = (src / "a.jpg").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-2]):
        (src / "a.jpg").write_bytes(damaged)
        with pytest.raises(ImageError, match=r"a\.jpg"):
            convert(src, tmp_path / "out")
        assert not (tmp_path / "out").exists()


REFUSED = [
    ({"write_mode": "jpeg"}, "write_mode='jpeg': expected raw, jpg"),
    ({"write_mode": "original", "patch_size": 8}, "whole files: it cannot be combined with patches"),
    ({"write_mode": "smart"}, "give the limit with smart_threshold"),
    ({"write_mode": "raw", "jpeg_quality": 80}, "jpeg_quality has no effect without write_mode='jpg'"),
    ({"write_mode": "raw", "seed": 1}, "seed has no effect without write_mode='proportion'"),
    ({"write_mode": "jpg", "jpeg_quality": 0}, "jpeg_quality=0: expected a whole number from 1 to 100"),
    ({"max_resolution": 0}, "max_resolution=0: expected a whole number from 1 to 65500"),
    ({"jpeg_quality": 80}, "jpeg_quality has no effect"),
    ({"write_mode": "smart", "smart_threshold": 5, "seed": 1}, "seed has no effect"),
    ({"write_mode": "jpg", "scale": 2}, "write_mode='jpg' with pairs"),
    ({"max_resolution": 50, "scale": 2}, "max_resolution with pairs"),
    ({"subset": 0}, "subset=0 of 7 sources: expected 1 to 7"),
    ({"classes": ["a"]}, "the layout is 'images': expected class folders"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_make_no_sense_are_refused(src: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        convert(src, tmp_path / "out", **options)
    assert not list(tmp_path.glob("out*"))


def test_a_subset_is_a_part_of_a_larger_one_and_in_order(tmp_path: Path) -> None:
    for i in range(30):
        save(tmp_path / "src" / f"{'ab'[i % 2]}" / f"{i:02}.png", PHOTOGRAPH[i : i + 5, i : i + 6])

    def names(count: int, seed: int) -> list[Any]:
        out = tmp_path / f"{count}-{seed}"
        lmdbloader.convert(tmp_path / "src", out, subset=count, seed=seed, workers=1)
        dataset = lmdbloader.LMDBDataset(out)
        assert [s.label for s in dataset] == [int(str(dataset.reader.source(i))[0] == "b") for i in range(count)]
        return [dataset.reader.source(i) for i in range(count)]

    few, more, other = names(8, 0), names(15, 0), names(8, 1)
    assert few == sorted(few) and set(few) < set(more)
    assert few != other
    assert len(names(30, 0)) == 30


def test_shuffling_changes_only_the_order(tmp_path: Path) -> None:
    for i in range(40):
        save(tmp_path / "src" / f"{'ab'[i // 20]}" / f"{i:02}.png", PHOTOGRAPH[i : i + 5 + i % 3, i : i + 6])

    def stored(name: str, **options: Any) -> list[tuple[Any, int, bytes]]:
        lmdbloader.convert(tmp_path / "src", tmp_path / name, workers=1, **options)
        dataset = lmdbloader.LMDBDataset(tmp_path / name)
        return [(dataset.reader.source(i), s.label, s.image.numpy().tobytes()) for i, s in enumerate(dataset)]

    plain, mixed, other = stored("plain"), stored("mixed", shuffle=3), stored("other", shuffle=4)
    assert plain == sorted(plain)
    assert sorted(mixed) == sorted(other) == plain
    assert mixed != plain and mixed != other
    assert stored("again", shuffle=3) == mixed
    # With the same seed a subset is the beginning; others keep their order when images are removed.
    assert sorted(stored("few", subset=9, seed=3)) == sorted(mixed[:9])
    (tmp_path / "src" / mixed[5][0]).unlink()
    assert stored("fewer", shuffle=3) == mixed[:5] + mixed[6:]
    assert {label for _, label, _ in mixed[:10]} == {0, 1}
    with pytest.raises(DestinationError, match="a dataset is there already"):
        lmdbloader.convert(tmp_path / "src", tmp_path / "plain", shuffle=3, workers=1)


def test_labels_follow_given_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        save(tmp_path / "src" / name / "1.png", PHOTOGRAPH[:5, :6])
    out = tmp_path / "out"
    lmdbloader.convert(tmp_path / "src", out, classes=["dog", "emu", "cat"], workers=1)
    dataset = lmdbloader.LMDBDataset(out)
    assert [s.label for s in dataset] == [2, 0]
    assert dataset.reader.manifest.classes == {"label": ("dog", "emu", "cat")}
    again = lmdbloader.convert(tmp_path / "src", out, classes=["dog", "emu", "cat"], workers=1)
    assert again.was_finished
    with pytest.raises(DestinationError):  # with other labels it is another dataset
        lmdbloader.convert(tmp_path / "src", out, classes=["cat", "dog"], workers=1)
    with pytest.raises(OptionError, match="class folder 'dog' is not among the 1 classes given"):
        lmdbloader.convert(tmp_path / "src", tmp_path / "other", classes=["cat"])


# --- samples made in Python ---


def made(path: Path, samples: Any, **options: Any) -> tuple[lmdbloader.LMDBDataset, dict[str, list[str]]]:
    """Write samples; return the dataset, and how the images of each field are stored."""
    lmdbloader.write(samples, path, **options)
    dataset = lmdbloader.LMDBDataset(path)
    arrays = dataset.reader.index.arrays
    names = [f.name for f in dataset.reader.manifest.fields if f.is_payload]
    return dataset, {name: [CODEC_NAMES[c] for c in arrays[f"{name}.codec"].tolist()] for name in names}


def test_samples_from_python_have_the_same_modes_field_by_field(tmp_path: Path) -> None:
    mask = np.tile(np.arange(160, dtype=np.uint8), (120, 1))
    samples = [{"image": PHOTOGRAPH, "mask": mask, "caption": {"a": 1}, "label": i} for i in range(3)]
    dataset, stored = made(tmp_path / "a", samples, write_mode={"image": "jpg"}, jpeg_quality=40, max_resolution=80)
    assert stored["image"] == ["jpeg"] * 3 and set(stored["mask"]) <= {"raw", "lz4"}
    assert dataset[0].image.shape == (3, 60, 80) and dataset[0].label == 0
    np.testing.assert_array_equal(dataset[0].mask.numpy()[0], mask)
    size = dataset.reader.manifest.sizes["payload_nbytes"]
    better, _ = made(tmp_path / "b", samples, write_mode={"image": "jpg"}, max_resolution=80)
    assert better.reader.manifest.sizes["payload_nbytes"] > 1.3 * size


def test_samples_from_python_of_every_mode(tmp_path: Path) -> None:
    samples = [{"image": PHOTOGRAPH[:10, : 20 + i % 2]} for i in range(200)]
    _, stored = made(tmp_path / "smart", samples, write_mode="smart", smart_threshold=600)
    assert stored["image"] == ["raw", "jpeg"] * 100
    shares = [
        made(tmp_path / f"{k}", iter(samples), write_mode="proportion", compress_probability=0.3, seed=seed)[1]["image"]
        for k, seed in enumerate((0, 0, 1))
    ]
    assert shares[0] == shares[1] != shares[2]
    assert set(shares[0]) == {"raw", "jpeg"} and 35 <= shares[0].count("jpeg") <= 85
    assert set(made(tmp_path / "raw", samples, write_mode="raw")[1]["image"]) == {"raw"}


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_a_shrunk_mask_has_the_labels_of_pillow_s_nearest(height: int, width: int, data: Any) -> None:
    new = [data.draw(st.integers(1, side)) for side in (height, width)]
    labels = np.arange(height * width, dtype=np.uint16).reshape(height, width)
    expected = np.array(Image.fromarray(labels.astype(np.int32)).resize((new[1], new[0]), Image.Resampling.NEAREST))
    # Pillow adds up float64 steps, so where a center is exactly between two labels its rounding errors decide.
    down, across = (
        (2 * np.arange(few) + 1) * many % (2 * few) != 0 for few, many in zip(new, labels.shape, strict=True)
    )
    found = nearest(labels[:, :, None], *new)[:, :, 0]
    np.testing.assert_array_equal(found[down][:, across], expected[down][:, across])
