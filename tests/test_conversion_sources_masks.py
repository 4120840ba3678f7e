"""Folders of images and of masks become one dataset: matched by name, with every label as it is in the file."""

from __future__ import annotations

import shlex
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image, ImageFilter

import lmdbloader
from lmdbloader.cli import main
from lmdbloader.conversion.sources.layouts import list_sources
from lmdbloader.errors import ImageError, OptionError, SourceError
from lmdbloader.images import png
from lmdbloader.images.decode import decode_labels

SIZES = [(30, 40), (50, 20), (64, 64)]


def labels(height: int, width: int, most: int = 21) -> np.ndarray:
    rng = np.random.default_rng(height)
    return rng.integers(0, most, (-(-height // 2), -(-width // 2)), np.uint8).repeat(2, 0).repeat(2, 1)[:height, :width]


def save_mask(path: Path, mask: np.ndarray) -> None:
    """Write a PNG with a palette of other colors than its numbers, as Pascal VOC's."""
    image = Image.fromarray(mask)
    if mask.dtype == np.uint8:
        image.putpalette([(255 - 11 * i) % 256 for i in range(768)])
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with images/ and masks/: two JPEGs, one in a folder, and a PNG."""
    src = tmp_path / "src"
    for i, (name, (height, width)) in enumerate(zip(("a.jpg", "b.png", "deep/c.jpg"), SIZES, strict=True)):
        (src / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        y, x, c = np.ogrid[:height, :width, :3]
        Image.fromarray((y * 3 + x * 2 + c * 40 + i).astype(np.uint8)).save(src / "images" / name)
        stem = name.rpartition(".")[0]
        save_mask(src / "masks" / (f"{stem}_mask.png" if i == 1 else f"{stem}.png"), labels(height, width))
    return src


def test_images_and_masks_make_one_dataset(folder: Path, tmp_path: Path) -> None:
    report = lmdbloader.convert(folder, tmp_path / "out", layout="masks")
    assert (report.layout, report.num_samples, report.stored_as) == ("masks", 3, {"lz4": 1, "jpeg": 2})
    assert lmdbloader.verify(tmp_path / "out").is_sound
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert [(f.name, f.kind) for f in dataset.fields.values()] == [("image", "image"), ("mask", "mask")]
    for sample, size in zip(dataset, SIZES, strict=True):
        assert sample.image.shape == (3, *size)
        np.testing.assert_array_equal(sample.mask.numpy(), labels(*size))
    assert dataset.table["source"].to_pylist() == ["a.jpg", "b.png", "deep/c.jpg"]
    again = lmdbloader.convert(folder, tmp_path / "out", layout="masks")
    assert again.was_finished


def test_the_folder_of_the_masks_may_be_named(folder: Path, tmp_path: Path) -> None:
    (folder / "masks").rename(tmp_path / "SegmentationClass")
    named = {"masks": tmp_path / "SegmentationClass"}
    lmdbloader.convert(folder / "images", tmp_path / "out", **named)
    assert lmdbloader.LMDBDataset(tmp_path / "out").fields["mask"].kind == "mask"
    found = lmdbloader.estimate(folder / "images", **named)
    assert (found.layout, found.num_sources) == ("masks", 3)
    line = ["convert", str(folder / "images"), str(tmp_path / "other"), "--masks", str(named["masks"])]
    assert main(line) == 0 and lmdbloader.LMDBDataset(tmp_path / "other").fields["mask"].kind == "mask"


@pytest.mark.parametrize("write_mode", [None, "raw", "jpg", "original"])
def test_masks_are_cut_and_shrunk_with_their_images(folder: Path, tmp_path: Path, write_mode: Any) -> None:
    lmdbloader.convert(folder, tmp_path / "small", layout="masks", max_resolution=20, write_mode=write_mode)
    for sample, (height, width) in zip(lmdbloader.LMDBDataset(tmp_path / "small"), SIZES, strict=True):
        assert sample.image.shape[1:] == sample.mask.shape and max(sample.mask.shape) == 20
        assert set(np.unique(sample.mask.numpy())) <= set(np.unique(labels(height, width)))
    if write_mode == "original":
        return
    lmdbloader.convert(folder, tmp_path / "cut", layout="masks", patch_size=16, stride=8, write_mode=write_mode)
    dataset = lmdbloader.LMDBDataset(tmp_path / "cut")
    sizes = dict(zip(("a.jpg", "b.png", "deep/c.jpg"), SIZES, strict=True))
    for sample, row in zip(dataset, dataset.table.to_pylist(), strict=True):
        whole = labels(*sizes[row["source"]])
        expected = whole[row["top"] : row["top"] + 16, row["left"] : row["left"] + 16]
        np.testing.assert_array_equal(sample.mask.numpy(), expected)
    assert lmdbloader.verify(tmp_path / "cut").is_sound


def test_only_a_folder_that_holds_images_is_one_of_masks(folder: Path, tmp_path: Path) -> None:
    (folder / "images").rename(folder / "JPEGImages")
    (folder / "masks").rename(folder / "SegmentationClass")
    (folder / "Annotations").mkdir()
    (folder / "Annotations" / "a.xml").write_text("<boxes/>")
    assert lmdbloader.convert(folder, tmp_path / "out", layout="masks").num_samples == 3
    save_mask(folder / "SegmentationObject" / "a.png", labels(*SIZES[0]))
    with pytest.raises(SourceError, match=r"SegmentationClass/, SegmentationObject/.*masks"):
        lmdbloader.convert(folder, tmp_path / "again", layout="masks")
    lmdbloader.convert(folder / "JPEGImages", tmp_path / "again", masks=folder / "SegmentationClass")
    assert len(lmdbloader.LMDBDataset(tmp_path / "again")) == 3


def test_masks_of_8_and_16_bits_do_not_mix(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full(SIZES[1], 300, np.uint16)).save(folder / "masks" / "b_mask.png")
    for options in ({}, {"on_error": "skip"}, {"parts": 3}):
        with pytest.raises(SourceError, match=r"8 bits in a\.jpg and 16 bits in b\.png"):
            lmdbloader.convert(folder, tmp_path / "out", layout="masks", restart=True, **options)
    (folder / "masks" / "b_mask.png").write_bytes(b"damaged")  # which is left out, whatever its bits are
    assert lmdbloader.convert(folder, tmp_path / "out", layout="masks", on_error="skip", restart=True).num_samples == 2


def test_images_without_a_mask_are_named_or_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "masks" / "a.png").unlink()
    with pytest.raises(SourceError, match=r"images: no mask in .*masks for a\.jpg\. .*a_mask\.png.*on_error='skip'"):
        lmdbloader.convert(folder, tmp_path / "out", layout="masks")
    report = lmdbloader.convert(folder, tmp_path / "out", layout="masks", on_error="skip")
    assert report.num_samples == 2
    assert [name for name, reason in report.ignored if "has no mask" in reason] == ["a.jpg"]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        ("masks/z.png", r"masks: no image in .* for z\.png\. Remove it, or add its image\. .*lmdbloader\.write"),
        ("masks/a_mask.png", r"masks: a\.png and a_mask\.png have the same stem"),
        ("images/a.png", r"images: a\.jpg and a\.png have the same stem"),
        ("labels/a.png", r"holds images/, labels/, masks/; expected one folder of images and one of masks"),
    ],
)
def test_what_does_not_match_is_named(folder: Path, tmp_path: Path, add: str, message: str) -> None:
    save_mask(folder / add, labels(4, 4))
    with pytest.raises(SourceError, match=message):
        lmdbloader.convert(folder, tmp_path / "out", layout="masks")


def test_absent_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds deep/; expected one folder of images"):
        list_sources(folder / "images", layout="masks")
    with pytest.raises(SourceError, match="there is no such folder"):
        list_sources(folder / "images", masks=folder / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty: no images in it"):
        list_sources(folder / "images", masks=tmp_path / "empty")


def test_one_folder_twice_is_refused_however_it_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("link").symlink_to("src/masks")
    both = "each image would be its own mask"
    for src, masks in (("src/masks", "src/images/../masks/"), ("src/masks", "link"), ("link", str(folder / "masks"))):
        with pytest.raises(SourceError, match=both):
            list_sources(Path(src), masks=Path(masks))
    Path("src/both").symlink_to("masks")
    shutil.rmtree("src/images")
    Path("src/both").rename("src/images")
    with pytest.raises(SourceError, match=both):
        lmdbloader.convert("src", tmp_path / "out", layout="masks")


def test_masks_and_images_behind_urls(folder: Path, tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(folder / "masks"), "/one-url/masks", recursive=True)
    url = "memory://one-url/masks"
    for other in (url, f"{url}/"):
        with pytest.raises(SourceError, match="each image would be its own mask"):
            lmdbloader.convert(url, tmp_path / "out", masks=other)
    filesystem.put(f"{folder / 'images'}/", "/one-url/", recursive=True)
    names = list_sources("memory://one-url", masks=url).sources.names
    assert [*names] == [b"a.jpg", b"b.png", b"deep/c.jpg"]


def test_masks_in_the_folder_of_the_images_are_no_images(folder: Path, tmp_path: Path) -> None:
    (folder / "masks").rename(folder / "images" / "my masks")
    report = lmdbloader.convert(folder / "images", tmp_path / "out", masks=folder / "images" / "my masks")
    assert lmdbloader.LMDBDataset(tmp_path / "out").table["source"].to_pylist() == ["a.jpg", "b.png", "deep/c.jpg"]
    assert ("my masks/", "the folder of the masks") in report.ignored
    (tmp_path / "none").mkdir()
    (folder / "images" / "my masks").rename(tmp_path / "none" / "masks")
    with pytest.raises(SourceError, match=r"none: no images in it"):
        list_sources(tmp_path / "none", masks=tmp_path / "none" / "masks")


def test_options_that_masks_exclude_are_refused(folder: Path, tmp_path: Path) -> None:
    pair = {"hr": folder / "images", "lr": folder / "masks"}
    for given, message in (
        ({"layout": "masks", "scale": 2}, "scale=2 with masks"),
        ({"layout": "classes", "masks": folder / "masks"}, "layout='classes' with masks"),
        ({"layout": "masks", "classes": ["a"]}, "expected class folders"),
    ):
        with pytest.raises(OptionError, match=message):
            lmdbloader.convert(folder, tmp_path / "out", **given)
    with pytest.raises(OptionError, match="masks with hr and lr"):
        lmdbloader.convert(None, tmp_path / "out", masks=folder / "masks", **pair)


def test_a_mask_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    save_mask(folder / "masks" / "a.png", labels(40, 30))
    swapped = (
        r"a\.jpg: its mask has 30x40 pixels, the image 40x30; .*\. Height and width are swapped: turn or transpose"
    )
    with pytest.raises(ImageError, match=swapped):
        lmdbloader.convert(folder, tmp_path / "out", layout="masks")
    report = lmdbloader.convert(folder, tmp_path / "out", layout="masks", on_error="skip", restart=True)
    assert report.num_samples == 2 and report.skipped[0][0] == "a.jpg"


def save_turned(path: Path, orientation: int, height: int = 24, width: int = 24) -> None:
    """Write a JPEG with EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(path, exif=exif)


def test_a_mask_that_is_not_turned_as_its_image_is_refused(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for name in ("a", "b"):
        save_turned(src / "images" / f"{name}.jpg", 6, 30, 40)
        save_mask(src / "masks" / f"{name}.png", labels(*((30, 40) if name == "a" else (40, 30))))
    with pytest.raises(
        ImageError, match=r"40x30 pixels, the image 30x40; .* turned by its EXIF or XMP data, and the mask is"
    ):
        lmdbloader.convert(src, tmp_path / "out", layout="masks")
    report = lmdbloader.convert(src, tmp_path / "out", layout="masks", on_error="skip")
    assert (report.num_samples, report.notes) == (1, ())  # the size of b's mask says that it is upright


@pytest.mark.parametrize("options", [{}, {"patch_size": 8}, {"parts": 2}, {"write_mode": "original"}], ids=str)
def test_turned_images_whose_masks_may_not_fit_are_counted(tmp_path: Path, options: Any) -> None:
    for name, orientation in (("a", 1), ("b", 3), ("c", 6), ("d", 8)):
        save_turned(tmp_path / "src" / "images" / f"{name}.jpg", orientation)
        save_mask(tmp_path / "src" / "masks" / f"{name}.png", labels(24, 24))
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.fromarray(labels(24, 24)).save(tmp_path / "src" / "masks" / "d.png", exif=exif)  # turned as its image
    said: list[str] = []
    report = lmdbloader.convert(tmp_path / "src", tmp_path / "out", layout="masks", log=said.append, **options)
    assert len(report.notes) == 1
    assert report.notes[0].startswith(
        "2 images, such as b.jpg, are turned by their EXIF or XMP data, and their masks are stored"
    )
    assert said[-1] == f"note: {report.notes[0]}."
    line = shlex.split(report.notes[0].partition("Look at them: ")[2].strip("`"))
    assert line[:2] == ["lmdbloader", "preview"] and main([*line[1:-1], str(tmp_path / "sheet.png")]) == 0
    assert (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("suffix", ["jpg", "ppm", "png"])
def test_masks_of_colors_are_refused(folder: Path, tmp_path: Path, suffix: str) -> None:
    (folder / "masks" / "a.png").unlink()
    Image.new("L" if suffix == "jpg" else "RGB", (40, 30)).save(folder / "masks" / f"a.{suffix}")
    with pytest.raises(ImageError, match=r"a\.jpg: its mask: .*expected one label for each pixel: save it as a PNG"):
        lmdbloader.convert(folder, tmp_path / "out", layout="masks")


def grey_png(numbers: np.ndarray, bits: int) -> bytes:
    """Return a gray PNG file of so many bits a pixel."""
    lines = np.unpackbits(numbers[:, :, None].astype(np.uint8), axis=2)[:, :, 8 - bits :]
    rows = np.packbits(lines.reshape(len(numbers), -1), axis=1)
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    header = png.struct.pack(">IIBBBBB", numbers.shape[1], numbers.shape[0], bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(body)), (b"IEND", b""))
    return png.SIGNATURE + b"".join(png._chunk(kind, content) for kind, content in chunks)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_numbers_of_few_bits_are_not_scaled(bits: int) -> None:
    numbers = labels(9, 13, 2**bits)
    np.testing.assert_array_equal(decode_labels(grey_png(numbers, bits))[:, :, 0], numbers)


@pytest.mark.parametrize("suffix", ["png", "gif", "bmp", "tif"])
@pytest.mark.parametrize("mode", ["L", "P"])
def test_every_kind_of_file_gives_its_numbers(tmp_path: Path, suffix: str, mode: str) -> None:
    numbers = labels(9, 13, 5)
    image = Image.fromarray(numbers)
    if mode == "P":
        image.putpalette([(255 - 11 * i) % 256 for i in range(768)])
    image.save(tmp_path / f"a.{suffix}", **({"optimize": False} if suffix == "gif" else {}))
    np.testing.assert_array_equal(decode_labels((tmp_path / f"a.{suffix}").read_bytes())[:, :, 0], numbers)


def test_masks_of_0_and_255_are_refused_until_255_becomes_1(folder: Path, tmp_path: Path) -> None:
    for path in sorted((folder / "masks").rglob("*.png")):
        shown = np.array(Image.open(path)) % 2 * 255
        Image.fromarray(shown.astype(np.uint8)).save(path)
    with pytest.raises(SourceError, match=r"0 and 255 only \(3 of 3 were read\).* binary_masks=True stores 1 for it"):
        lmdbloader.convert(folder, tmp_path / "out", layout="masks")
    assert not (tmp_path / "out").exists()
    line = ["convert", str(folder), str(tmp_path / "out"), "--layout", "masks", "--binary-masks", "--patch-size", "8"]
    assert main(line) == 0
    dataset = lmdbloader.LMDBDataset(tmp_path / "out")
    assert sorted({int(value) for sample in dataset for value in sample.mask.unique()}) == [0, 1]
    assert dataset.reader.manifest.made_by["options"]["binary_masks"] is True
    whole = labels(*SIZES[0]) % 2
    np.testing.assert_array_equal(dataset[0].mask.numpy(), whole[:8, :8])
    save_mask(folder / "masks" / "a.png", np.full(SIZES[0], 7, np.uint8))
    with pytest.raises(ImageError, match=r"a\.jpg: its mask has 7; expected 0 and 255 only, with binary_masks=True"):
        lmdbloader.convert(folder, tmp_path / "seven", layout="masks", binary_masks=True)


def disc(side: int = 48, radius: int = 14) -> np.ndarray:
    y, x = np.ogrid[:side, :side]
    return np.where((y - side // 2) ** 2 + (x - side // 2) ** 2 < radius**2, 255, 0).astype(np.uint8)


def soft_disc() -> np.ndarray:
    return np.array(Image.fromarray(disc()).filter(ImageFilter.GaussianBlur(1)))


def soft_dots() -> np.ndarray:
    """Return a mask most of which is edges."""
    dots = Image.fromarray(np.where(np.random.default_rng(0).random((24, 24)) < 0.4, 255, 0).astype(np.uint8))
    return np.array(dots.resize((48, 48), Image.Resampling.BILINEAR))


def save_set(folder: Path, masks: Sequence[np.ndarray | Image.Image], suffix: str = ".png") -> Path:
    """Save images and their masks, in a folder."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, mask in enumerate(masks):
        image = mask if isinstance(mask, Image.Image) else Image.fromarray(mask)
        image.save(folder / "masks" / f"{i:03}{suffix}")
        Image.new("RGB", image.size, (i, 0, 0)).save(folder / "images" / f"{i:03}.png")
    return folder


def with_pixel(mask: np.ndarray, value: int) -> np.ndarray:
    """Return a mask with one more value, at the edge of its disc."""
    mask = mask.copy()
    mask[24, int(np.flatnonzero(mask[24])[0])] = value
    return mask


EMPTY = np.zeros((48, 48), np.uint8)
NO_LABELS = [
    ([disc()] * 2 + [soft_disc()], "soft edges of"),
    ([soft_disc()] * 3, "soft edges of"),
    ([soft_dots()] * 3, "soft edges of"),
    ([disc(), with_pixel(disc(), 37)] + [disc()] * 38, "0 and 255 only"),
    ([disc()] * 5 + [with_pixel(disc(), 128)], "soft edges of 1 numbers"),
    ([EMPTY] * 30 + [disc()] + [EMPTY] * 30, "0 and 255 only"),
    ([np.maximum(np.minimum(disc(), 128), disc(radius=8))] * 3, "the shades 0, 128, 255 only"),
]


@pytest.mark.parametrize(("masks", "found"), NO_LABELS)
def test_255_for_the_objects_is_refused_whatever_few_masks_have(
    tmp_path: Path, masks: list[np.ndarray], found: str
) -> None:
    src = save_set(tmp_path / "src", masks)
    with pytest.raises(SourceError, match=f"the masks have .*{found}.*which losses leave out"):
        lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1)
    if "shades" in found:
        return
    report = lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1, binary_masks=True)
    for sample, mask in zip(lmdbloader.LMDBDataset(tmp_path / "out"), masks, strict=True):
        np.testing.assert_array_equal(sample.mask.numpy(), mask > 127)
    assert any("soft edges" in note for note in report.notes) == ("soft" in found)


def test_labels_with_255_for_pixels_without_one_are_kept_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    many = rng.integers(0, 182, (12, 12), np.uint8).repeat(4, 0).repeat(4, 1)
    many[rng.random((48, 48)) < 0.1] = 255
    scribbles = np.full((48, 48), 255, np.uint8)
    scribbles[5:8, 4:40], scribbles[20:23, 4:40], scribbles[30:33, 9] = 0, 1, 15
    voc = disc(radius=18)
    voc[disc(radius=15) == 255] = 15
    src = save_set(tmp_path / "src", [many, scribbles, voc, disc(), np.zeros((48, 48), np.uint8)])
    assert lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1).notes == ()
    for number, mask in enumerate([many, scribbles, voc]):
        np.testing.assert_array_equal(lmdbloader.LMDBDataset(tmp_path / "out")[number].mask.numpy(), mask)


def test_a_soft_mask_among_masks_with_labels_is_refused_by_name(tmp_path: Path) -> None:
    src = save_set(tmp_path / "src", [np.minimum(disc(), 1)] * 40)
    Image.fromarray(soft_disc()).save(src / "masks" / "029.png")
    with pytest.raises(ImageError, match=r"029\.png: its mask has 0, 255 and \d+ numbers between them, which are soft"):
        lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1)
    report = lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1, on_error="skip")
    assert [name for name, _ in report.skipped] == ["029.png"] and report.num_samples == 39


def colored(*colors: tuple[int, int, int], used: Sequence[int] = (0, 1)) -> Image.Image:
    mask = np.zeros((8, 8), np.uint8)
    mask[2:, 2:] = used[-1]
    image = Image.fromarray(mask)
    image.putpalette([value for color in colors for value in color])
    return image


BLACK, RED, GREEN = (0, 0, 0), (255, 0, 0), (0, 255, 0)


@pytest.mark.parametrize("suffix", [".png", ".gif", ".bmp", ".tif"])
@pytest.mark.parametrize("at", [1, 37])
def test_a_number_with_two_colors_stands_for_two_classes(tmp_path: Path, suffix: str, at: int) -> None:
    masks = [colored(BLACK, RED)] * 40
    if suffix != ".gif":  # Pillow leaves unused colors out
        save_set(tmp_path / "same", [*masks, colored(BLACK, RED, GREEN, used=(0, 2))], suffix)
        assert lmdbloader.convert(tmp_path / "same", tmp_path / "kept", layout="masks", workers=1).num_samples == 41
    src = save_set(tmp_path / "src", [*masks[:at], colored(BLACK, GREEN), *masks[at:]], suffix)
    message = r"the palettes of the masks differ: 1 has the color .* in .*\.png and .* in .*\.png"
    with pytest.raises(SourceError, match=message):
        lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1)
    assert not (tmp_path / "out").exists()
    for path in (src / "masks").iterdir():  # as the error says
        with Image.open(path) as image:
            mask = np.asarray(image)
        path.unlink()
        Image.fromarray(mask).save(path.with_suffix(".png"))
    lmdbloader.convert(src, tmp_path / "out", layout="masks", workers=1)
    assert lmdbloader.LMDBDataset(tmp_path / "out")[at].mask.unique().tolist() == [0, 1]
