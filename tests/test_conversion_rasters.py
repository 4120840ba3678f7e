"""Folders of images with many channels, 16 bits or floats: converted, read, trained on and extracted without loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_images_rasters import dicom, exr, needs, noise, npy, tif

import lmdbloader
from lmdbloader import Loader
from lmdbloader.errors import ImageError, OptionError, SourceError
from lmdbloader.images.downscale import downscale, psnr_between
from lmdbloader.store import open_reader
from lmdbloader.transforms import Normalize, RandomCrop, ToDtype

DTYPES = ("uint8", "uint16", "float16", "float32")


def save(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def many(count: int, *shape: int, dtype: str = "uint16") -> list[Any]:
    """Return images that differ."""
    return list(noise(count, *shape, dtype=dtype))


def stored(out: Path, field: str = "image") -> list[Any]:
    """Return the images of a dataset as (H, W, C)."""
    reader = open_reader(out)
    return [np.moveaxis(reader.read_image(field, row), 0, 2) for row in range(len(reader))]


def check(out: Path, expected: list[Any], field: str = "image") -> None:
    found = stored(out, field)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [tif, npy])
def test_images_of_any_type_are_stored_as_they_are(kind: Callable[..., bytes], dtype: str, tmp_path: Path) -> None:
    images = [*many(3, 30, 40, 5, dtype=dtype), *many(1, 300, 280, 5, dtype=dtype)]  # the last one in tiles
    src = save(tmp_path / "src", {f"{i}.{kind.__name__}": kind(image) for i, image in enumerate(images)})
    for codec in (None, "raw", "lz4"):
        out = tmp_path / str(codec)
        lmdbloader.convert(src, out, codec=codec, workers=2)
        check(out, images)
        assert lmdbloader.verify(out).problems == ()
    lmdbloader.convert(src, tmp_path / "patches", patch_size=16, stride=8)
    tops, lefts = range(0, 15, 8), range(0, 25, 8)
    cut = [images[0][t : t + 16, x : x + 16] for t, x in itertools.product(tops, lefts)]
    assert all(np.array_equal(a, b) for a, b in zip(stored(tmp_path / "patches"), cut, strict=False))


@needs("OpenEXR")
@needs("pydicom")
def test_exr_and_dicom_are_stored_as_they_are(tmp_path: Path) -> None:
    image = noise(20, 30, 3, dtype="float16")
    lmdbloader.convert(save(tmp_path / "a", {"1.exr": exr({"RGB": image})}), tmp_path / "exr")
    check(tmp_path / "exr", [image])
    plane = noise(20, 30)
    lmdbloader.convert(save(tmp_path / "b", {"1.dcm": dicom(plane)}), tmp_path / "dicom")
    check(tmp_path / "dicom", [plane[:, :, None]])


@pytest.mark.parametrize("mode", ["original", "jpg", "smart"])
def test_write_modes_keep_every_value(mode: Any, tmp_path: Path) -> None:
    images = many(3, 30, 40, 5, dtype="uint8")
    src = save(tmp_path / "src", {f"{i}.tif": tif(image) for i, image in enumerate(images)})
    options = {"smart_threshold": 10} if mode == "smart" else {}
    report = lmdbloader.convert(src, tmp_path / "out", write_mode=mode, **options)
    check(tmp_path / "out", images)
    assert report.stored_as == ({"file": 3} if mode == "original" else {"raw": 3})


def test_bands_with_masks_are_read_as_batches(tmp_path: Path) -> None:
    """Satellite images: crops of the bands and of the mask are from one place, and numbers are those of the files."""
    images, labels = many(8, 90, 80, 5), [mask % 19 for mask in many(8, 90, 80, dtype="uint8")]
    save(tmp_path / "images", {f"{i}.tif": tif(image, compression="zlib") for i, image in enumerate(images)})
    (tmp_path / "masks").mkdir()
    for i, mask in enumerate(labels):
        Image.fromarray(mask).save(tmp_path / f"masks/{i}.png")
    lmdbloader.convert(tmp_path / "images", tmp_path / "out", masks=tmp_path / "masks", workers=2)
    check(tmp_path / "out", images)
    mean, std = [0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.6, 0.7, 0.8, 0.9]
    steps = [RandomCrop(32), ToDtype(torch.float32, scale=True), Normalize(mean, std)]
    batches = list(Loader(lmdbloader.LMDBDataset(tmp_path / "out"), 4, transforms=steps, shuffle=False, seed=3))
    assert batches[0].image.shape == (4, 5, 32, 32)
    for number, (image, mask) in enumerate((i, m) for b in batches for i, m in zip(b.image, b.mask, strict=True)):
        whole = labels[number]
        places = itertools.product(range(90 - 31), range(80 - 31))
        top, left = next(p for p in places if np.array_equal(whole[p[0] :, p[1] :][:32, :32], mask.squeeze()))
        cut = images[number][top : top + 32, left : left + 32].astype(np.float64) / 65535
        assert np.allclose(np.moveaxis((cut - mean) / std, 2, 0), image.numpy(), atol=1e-5)


def test_arrays_are_masks_and_classes(tmp_path: Path) -> None:
    images, labels = many(4, 20, 30, 4, dtype="float32"), [mask % 9 for mask in many(4, 20, 30, dtype="uint8")]
    src = save(tmp_path / "a", {f"images/{i}.npy": npy(image) for i, image in enumerate(images)})
    save(src, {f"masks/{i}_mask.npy": npy(mask) for i, mask in enumerate(labels)})
    lmdbloader.convert(src, tmp_path / "masks", layout="masks")
    check(tmp_path / "masks", [mask[:, :, None] for mask in labels], "mask")
    src = save(tmp_path / "b", {f"{'ab'[i % 2]}/{i}.npy": npy(image) for i, image in enumerate(images)})
    lmdbloader.convert(src, tmp_path / "classes")
    assert lmdbloader.LMDBDataset(tmp_path / "classes").classes == ("a", "b")
    check(tmp_path / "classes", [images[i] for i in (0, 2, 1, 3)])


def blurred(height: int, width: int, channels: int, dtype: str) -> Any:
    """Return a smooth image: its LR image agrees with it."""
    waves = np.sin(np.arange(height) / 9)[:, None, None] * np.cos(np.arange(width) / 7)[:, None] + np.arange(channels)
    return (waves * 1000 + 2000).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint16", "float16", "float32"])
@pytest.mark.parametrize("scale", [2, 3])
def test_bands_are_scaled(scale: int, dtype: str, tmp_path: Path) -> None:
    image = blurred(61, 75, 5, dtype)
    src = save(tmp_path / "src", {"1.npy": npy(image)})
    lmdbloader.convert(src, tmp_path / "out", scale=scale)
    hr = image[: 61 - 61 % scale, : 75 - 75 % scale]
    check(tmp_path / "out", [hr], "hr")
    (lr,) = stored(tmp_path / "out", "lr")
    exact = downscale((hr.astype(np.float64) * 8).round().astype(np.uint16), scale) / 8  # rounded to an eighth
    most = {"uint16": 1.1, "float16": 2.2, "float32": 0.2}[dtype]
    assert lr.dtype == dtype and np.abs(lr.astype(np.float64) - exact).max() < most


def test_pairs_of_floats_are_compared(tmp_path: Path) -> None:
    hr = blurred(64, 80, 5, "float32")
    lr = downscale(hr, 2)
    assert psnr_between(lr, lr) == np.inf and psnr_between(lr, lr + 1) > 60
    folders = {"hr": tmp_path / "hr", "lr": tmp_path / "lr"}
    save(folders["hr"], {"1.npy": npy(hr)})
    save(folders["lr"], {"1x2.npy": npy(lr)})
    lmdbloader.convert(None, tmp_path / "out", **folders)
    check(tmp_path / "out", [lr], "lr")
    for number, other in enumerate((lr[::-1].copy(), np.full_like(lr, np.nan), lr.astype(np.float16), lr[:, :, :4])):
        save(folders["lr"], {"1x2.npy": npy(other)})
        with pytest.raises(ImageError, match=r"dB|channels of"):
            lmdbloader.convert(None, tmp_path / str(number), **folders)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bands_are_shrunk(dtype: str, tmp_path: Path) -> None:
    image = (blurred(60, 80, 5, "float64") / (50 if dtype == "uint8" else 1)).astype(dtype)
    lmdbloader.convert(save(tmp_path / "src", {"1.npy": npy(image)}), tmp_path / "out", max_resolution=40)
    (found,) = stored(tmp_path / "out")
    expected = downscale(image, 2).astype(np.float64)[3:-3, 3:-3]
    assert found.shape == (30, 40, 5) and found.dtype == dtype
    assert np.abs(found[3:-3, 3:-3] - expected).max() < {"float16": 2.1, "float32": 0.01}.get(dtype, 1.1)


@pytest.mark.parametrize("workers", [1, 2])
def test_images_that_fit_no_batch_are_refused_by_name(workers: int, tmp_path: Path) -> None:
    images = many(12, 20, 30, 4)
    files = {f"{i:02}.tif": tif(image) for i, image in enumerate(images)}
    src = save(tmp_path / "channels", files | {"11.tif": tif(images[11][:, :, :3], photometric="rgb")})
    with pytest.raises(SourceError, match=r"4 channels in \d\d\.tif and .*RGB in 11\.tif|RGB in 11.*4 channels"):
        lmdbloader.convert(src, tmp_path / "out", workers=workers, part_size="16K")
    src = save(tmp_path / "types", files | {"00.tif": tif(images[0].astype(np.float32))})
    with pytest.raises(SourceError, match=r"float32 with 4 channels in 00\.tif"):
        lmdbloader.convert(src, tmp_path / "out", workers=workers, part_size="16K", restart=True)


def test_files_that_cannot_be_used_are_left_out_on_request(tmp_path: Path) -> None:
    image = noise(20, 30, 5, dtype="float32")
    src = save(
        tmp_path / "src", {"1.npy": npy(image), "2.npy": npy(image.astype(np.float64)), "3.npy": npy(image)[:99]}
    )
    with pytest.raises(ImageError, match=r'2\.npy: values of float64.*\.astype\("float32"\)'):
        lmdbloader.convert(src, tmp_path / "out")
    report = lmdbloader.convert(src, tmp_path / "out", on_error="skip")
    assert [name for name, _ in report.skipped] == ["2.npy", "3.npy"]
    check(tmp_path / "out", [image])


def test_delta_codes_no_floats(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"1.npy": npy(noise(20, 30, 5, dtype="float32"))})
    with pytest.raises(OptionError, match="encodes integers only"):
        lmdbloader.convert(src, tmp_path / "out", codec="delta")
    lmdbloader.convert(src, tmp_path / "small", prefer="size")


def test_pillow_scales_no_bands(tmp_path: Path) -> None:
    src = save(tmp_path / "src", {"1.npy": npy(noise(20, 30, 5, dtype="uint8"))})
    with pytest.raises(ImageError, match="5 channels of uint8"):
        lmdbloader.convert(src, tmp_path / "out", scale=2, bicubic="pillow")


def test_the_size_is_estimated_from_headers(tmp_path: Path) -> None:
    images = many(30, 64, 64, 5)
    src = save(tmp_path / "src", {f"{i}.tif": tif(image, compression="zlib") for i, image in enumerate(images)})
    found = lmdbloader.estimate(src, write_mode="raw")
    report = lmdbloader.convert(src, tmp_path / "out", write_mode="raw")
    assert abs(found.data_nbytes.value / report.sizes["data_nbytes"] - 1) < 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_extracted_bands_are_converted_to_the_same_dataset(dtype: str, tmp_path: Path) -> None:
    images = many(3, 20, 30, 5, dtype=dtype)
    src = save(tmp_path / "src", {f"a/{i}.npy": npy(image) for i, image in enumerate(images)})
    lmdbloader.convert(src, tmp_path / "out")
    lmdbloader.extract(tmp_path / "out", tmp_path / "files")
    assert np.array_equal(np.load(tmp_path / "files/a/1.npy"), images[1])
    lmdbloader.convert(tmp_path / "files", tmp_path / "again")
    check(tmp_path / "again", images)
    with pytest.raises(OptionError, match="cannot be a PNG file"):
        lmdbloader.extract(tmp_path / "out", tmp_path / "png", image_format="png")
    assert not (tmp_path / "png").exists()


def test_samples_from_python_may_be_such_files(tmp_path: Path) -> None:
    image, mask = noise(20, 30, 5, dtype="float32"), noise(20, 30, dtype="uint8")
    save(tmp_path, {"1.npy": npy(image), "1.tif": tif(image), "mask.npy": npy(mask)})
    fields = {"image": lmdbloader.fields.Image(), "mask": lmdbloader.fields.Mask()}
    for name in ("1.npy", "1.tif"):
        sample = {"image": tmp_path / name, "mask": tmp_path / "mask.npy"}
        lmdbloader.write([sample], tmp_path / f"{name}.lmdb", fields=fields)
        check(tmp_path / f"{name}.lmdb", [image])
        check(tmp_path / f"{name}.lmdb", [mask[:, :, None]], "mask")


@pytest.mark.parametrize("kind", ["tif", "npy", "exr", "dcm"])
def test_kept_files_are_read_and_extracted(kind: str, tmp_path: Path) -> None:
    """With write_mode="original", the Loader decodes the files themselves."""
    images = many(4, 20, 30, 3, dtype="float32") if kind != "dcm" else many(4, 20, 30, 1)
    make = {"tif": tif, "npy": npy, "exr": lambda i: exr({"RGB": i.copy()}), "dcm": lambda i: dicom(i[:, :, 0])}[kind]
    src = save(tmp_path / "src", {f"{i}.{kind}": make(image) for i, image in enumerate(images)})
    lmdbloader.convert(src, tmp_path / "out", write_mode="original")
    check(tmp_path / "out", images)
    steps = [RandomCrop(16), ToDtype(torch.float32)]
    (batch,) = Loader(lmdbloader.LMDBDataset(tmp_path / "out"), 4, transforms=steps, shuffle=False)
    for image, crop in zip(images, batch.image.numpy(), strict=True):
        places = itertools.product(range(5), range(15))
        assert any(np.array_equal(np.moveaxis(image[t:, x:][:16, :16], 2, 0), crop) for t, x in places)
    lmdbloader.extract(tmp_path / "out", tmp_path / "files")
    assert (tmp_path / f"files/1.{kind}").read_bytes() == (src / f"1.{kind}").read_bytes()
