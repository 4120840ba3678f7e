"""Image files with many channels, 16 bits or floats: TIFF, EXR, NPY and DICOM, and what is refused of them."""

from __future__ import annotations

import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_images import DROP, REFUSE, WHITE, refusal, tiff

import lmdbloader
from lmdbloader.errors import ImageError, OptionError
from lmdbloader.images import rasters
from lmdbloader.images.decode import DecodePolicy, decode_image, decode_labels, glance, inspect_image, read_header

DTYPES = ("uint8", "uint16", "float16", "float32")


def needs(package: str) -> pytest.MarkDecorator:
    """Return a mark for tests of an optional package."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'lmdbloader[rasters]'")


def noise(*shape: int, dtype: str = "uint16") -> Any:
    rng = np.random.default_rng(0)
    if "float" in dtype:
        return rng.normal(0, 100, shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype)


def tif(array: Any, **options: Any) -> bytes:
    """Return a TIFF file of tifffile; (H, W, C) by default."""
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        array,
        **{"photometric": "minisblack", "planarconfig": "contig" if array.shape[-1] > 1 else None} | options,
    )
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def exr(channels: dict[str, Any], header: Any = None) -> bytes:
    openexr = pytest.importorskip("OpenEXR")
    head = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage} | (header or {})
    return written(openexr.File(head, channels))


def written(file: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file.write(f"{folder}/a.exr")
        return Path(f"{folder}/a.exr").read_bytes()


def dicom(array: Any, **values: Any) -> bytes:
    """Return a DICOM file of (H, W) or (H, W, 3), with other values of its tags."""
    pydicom = pytest.importorskip("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = (
        pydicom.uid.ExplicitVRLittleEndian,
        pydicom.uid.CTImageStorage,
    )
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    found = pydicom.Dataset()
    found.file_meta, found.preamble = meta, bytes(128)
    found.SOPClassUID, found.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
    found.Rows, found.Columns = array.shape[:2]
    found.SamplesPerPixel, found.PlanarConfiguration = (3, 0) if array.ndim == 3 else (1, None)
    if array.ndim == 2:
        del found.PlanarConfiguration
    bits = 8 * array.itemsize
    found.BitsAllocated, found.BitsStored, found.HighBit = bits, bits, bits - 1
    found.PixelRepresentation = int(array.dtype.kind == "i")
    found.PhotometricInterpretation = "RGB" if array.ndim == 3 else "MONOCHROME2"
    found.add_new(0x7FE00010, "OW", array.tobytes())
    for name, value in values.items():
        setattr(found, name, value)
    file = io.BytesIO()
    found.save_as(file)
    return file.getvalue()


def check(data: bytes, expected: Any, policy: DecodePolicy = REFUSE) -> None:
    """Check that a file becomes exactly such pixels (H, W, C), as its header promises."""
    header = inspect_image(data, policy)
    assert (*header.upright, header.channels) == expected.shape and header.dtype == expected.dtype
    found = decode_image(data, policy)
    assert found.dtype == expected.dtype and found.dtype.isnative and found.flags.c_contiguous
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 64])
def test_a_tiff_of_any_bands_and_dtype_is_read(channels: int, dtype: str) -> None:
    image = noise(7, 9, channels, dtype=dtype)
    check(tif(image), image)
    if channels > 1:
        check(tif(np.moveaxis(image, 2, 0), planarconfig="separate"), image)
    check(tif(image, byteorder=">", bigtiff=channels == 5), image)


@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "zstd", "packbits"])
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_a_compressed_tiff_is_read(compression: str | None, dtype: str) -> None:
    if compression not in (None, "zlib"):
        pytest.importorskip("imagecodecs")
    image = noise(70, 90, 5, dtype=dtype)
    predictor = compression in ("zlib", "lzw", "zstd") and importlib.util.find_spec("imagecodecs") is not None
    check(tif(image, compression=compression, predictor=predictor), image)
    check(tif(image, compression=compression, tile=(32, 48), predictor=predictor), image)


def test_colors_bands_and_alpha_of_a_tiff_are_told_apart() -> None:
    image = noise(5, 6, 5)
    rgb = {"photometric": "rgb"}
    check(tif(image[..., :3], **rgb), image[..., :3])
    near_infrared = tif(image[..., :4], **rgb, extrasamples=["unspecified"])
    check(near_infrared, image[..., :4])
    check(near_infrared, image[..., :3], DROP)
    check(near_infrared, image[..., :4], WHITE)
    transparent = tif(image[..., :4], **rgb, extrasamples=["unassalpha"])
    assert "alpha channel" in refusal(transparent)
    check(transparent, image[..., :3], DROP)
    white, alpha = 65535, image[..., 3:4].astype(np.int64)
    over = (image[..., :3] * alpha + white * (white - alpha) + white // 2) // white
    check(transparent, over.astype(np.uint16), WHITE)
    # Four bands, of which none is said to be alpha; and bands with alpha.
    check(tif(image[..., :4].astype(np.uint8)), image[..., :4].astype(np.uint8), WHITE)
    both = tif(image, **rgb, extrasamples=["unassalpha", "unspecified"])
    assert "alpha channel" in refusal(both) and "4 channels" in refusal(both, WHITE)
    check(both, image[..., :3], DROP)
    bands = tif(image, extrasamples=["unspecified"] * 3 + ["unassalpha"])
    check(bands, image[..., :4], DROP)


@needs("tifffile")
@pytest.mark.parametrize("extra", [[0], [0, 0]])
def test_bands_of_8_bits_beside_colors_are_kept_or_dropped(extra: list[int]) -> None:
    image = noise(5, 8, 3 + len(extra), dtype="uint8")
    data = tiff(8, 2, image, extra=[(338, 3, extra)])
    check(data, image)
    check(data, image[..., :3], DROP)


def test_the_orientation_of_a_tiff_is_applied() -> None:
    image = noise(5, 8, 5)
    check(tif(image, extratags=[(274, "H", 1, 6, True)]), np.rot90(image, -1))


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint32", "float64", "complex64"])
@pytest.mark.parametrize("kind", ["tif", "npy"])
def test_other_types_are_refused_with_the_line_that_converts_them(kind: str, dtype: str) -> None:
    image = np.ones((6, 7), dtype)
    why = refusal(tif(image) if kind == "tif" else npy(image))
    assert dtype in why and ("complex" in dtype or '.astype("float32")' in why)
    assert dtype == "float64" or "complex" in dtype or "mask" in why


@needs("tifffile")
def test_tiffs_that_are_not_one_image_are_refused() -> None:
    tifffile = pytest.importorskip("tifffile")
    assert "65 channels" in refusal(tif(noise(6, 7, 65)))
    assert 'planarconfig="contig") of an array (H, W, C)' in refusal(tif(noise(5, 70, 80), planarconfig=None))
    assert "70 frames" in refusal(tif(noise(70, 80, 5), planarconfig=None))
    assert "volume" in refusal(tif(noise(4, 32, 32), volumetric=True, tile=(2, 16, 16), planarconfig=None))
    assert "zero is white" in refusal(tif(noise(6, 7), photometric="miniswhite"))
    assert "MINISWHITE" in refusal(tif(noise(6, 7, dtype="float32"), photometric="miniswhite"))
    assert "SEPARATED" in refusal(tif(noise(6, 7, 4), photometric="separated"))
    assert "5 frames" in refusal(tif(noise(5, 70, 80), imagej=True, photometric=None, planarconfig=None))
    for subifds in (0, 1):
        file = io.BytesIO()
        with tifffile.TiffWriter(file) as writer:
            writer.write(noise(64, 64, 5), photometric="minisblack", planarconfig="contig", subifds=subifds)
            writer.write(noise(32, 32, 5), photometric="minisblack", planarconfig="contig", subfiletype=1)
        assert "pyramid" in refusal(file.getvalue())


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_is_read_in_any_order(dtype: str) -> None:
    image = noise(7, 9, 5, dtype=dtype)
    check(npy(image), image)
    check(npy(np.asfortranarray(image)), image)
    check(npy(image.astype(image.dtype.newbyteorder(">"))), image)
    check(npy(image[..., 0]), image[..., :1])
    with io.BytesIO() as file:
        np.lib.format.write_array(file, image, version=(2, 0))
        check(file.getvalue(), image)


def test_values_that_are_not_finite_are_kept() -> None:
    image = noise(4, 5, 2, dtype="float32")
    image[0, 0], image[1, 1] = np.nan, np.inf
    check(npy(image), image)
    check(tif(image), image)


@pytest.mark.parametrize("shape", [(3, 480, 640), (5, 64, 64), (3, 32, 32), (48, 32, 32), (8, 48, 64)])
def test_an_array_of_planes_is_refused(shape: tuple[int, ...]) -> None:
    assert "np.moveaxis" in refusal(npy(np.zeros(shape, np.uint8)))


@pytest.mark.parametrize("shape", [(5, 5, 30), (64, 64, 64), (40, 30, 3), (1, 9, 1), (9, 1, 1)])
def test_an_array_of_pixels_is_taken(shape: tuple[int, ...]) -> None:
    check(npy(noise(*shape)), noise(*shape))


def test_arrays_that_are_no_images_are_refused() -> None:
    why = refusal(npy(np.array([[{"a": 1}]], object), allow_pickle=True))
    assert "object" in why
    assert "expected an image" in refusal(npy(np.zeros(5, np.uint8)))
    assert "expected an image" in refusal(npy(np.zeros((2, 3, 4, 5), np.uint8)))
    assert "at least one" in refusal(npy(np.zeros((0, 5), np.uint8)))
    assert "65 channels" in refusal(npy(np.zeros((80, 90, 65), np.uint8)))
    assert '.astype("uint8")' in refusal(npy(np.zeros((4, 5), bool)))
    with pytest.warns(UserWarning, match="format 3.0"):
        assert "NPY header" in refusal(npy(np.zeros((4, 3), [("\u0391", "u1")])))
    assert "cut short" in refusal(npy(noise(6, 7))[:-1])
    bomb = npy(noise(6, 7)).replace(b"(6, 7)", b"(600000, 700000)")
    assert "420,000,000,000 pixels" in refusal(bomb)


def test_an_array_of_one_plane_has_labels() -> None:
    mask = noise(6, 7, dtype="uint8")
    assert np.array_equal(decode_labels(npy(mask)), mask[:, :, None])
    for other in (npy(noise(6, 7, dtype="float32")), npy(noise(6, 7, 3)), npy(mask.astype(np.int64))):
        with pytest.raises(ImageError, match=r"label|mask"):
            decode_labels(other)


@needs("OpenEXR")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_exr_has_its_channels_in_order(dtype: str) -> None:
    image = noise(7, 9, 5, dtype=dtype)
    r, g, b, a, z = np.moveaxis(image, 2, 0).copy()
    check(exr({"RGB": image[..., :3].copy()}), image[..., :3])
    check(exr({"Y": z}), image[..., 4:])
    colors = exr({"R": r, "G": g, "B": b, "A": a, "Z": z, "D": z})
    assert "alpha channel" in refusal(colors) and "over white" in refusal(colors, WHITE)
    check(colors, np.stack([r, g, b, z, z], 2), DROP)
    check(exr({"b.R": r, "a.G": g}), np.stack([g, r], 2))
    check(exr({"A": a}), image[..., 3:4])
    layers = {"V.Combined.R": r, "V.Combined.G": g, "V.Combined.B": b, "V.Combined.A": a, "V.Depth.Z": z}
    check(exr(layers), image)
    check(exr({"R": r, "G": g, "v.X": b, "u.Y": a, "Z": z}), np.stack([r, g, z, a, b], 2))


@needs("OpenEXR")
def test_exrs_that_are_not_one_image_are_refused() -> None:
    import OpenEXR

    plane, whole = noise(8, 8, dtype="float32"), noise(8, 8).astype(np.uint32)
    mixed = exr({"Y": plane, "Z": plane.astype(np.float16)})
    check(mixed, np.stack([plane, plane.astype(np.float16).astype(np.float32)], 2))
    assert "uint32" in refusal(exr({"id": whole, "Z": plane}))
    assert "croptofull" in refusal(exr({"Y": plane}, {"displayWindow": ((0, 0), (15, 15))}))
    parts = [OpenEXR.Part({"name": n, "type": OpenEXR.scanlineimage}, {"Y": plane}) for n in "ab"]
    assert "several parts" in refusal(written(OpenEXR.File(parts)))
    assert "65 channels" in refusal(exr({f"c{i:02}": plane for i in range(65)}))


@needs("pydicom")
def test_a_dicom_has_the_values_that_its_modality_means() -> None:
    image = noise(6, 7)
    check(dicom(image), image[:, :, None])
    check(dicom(image.astype(np.uint8)), image.astype(np.uint8)[:, :, None])
    units = (image.astype(np.float32) - 1024)[:, :, None]
    check(dicom(image, RescaleSlope="1", RescaleIntercept="-1024"), units)
    signed = image.astype(np.int16)
    check(dicom(signed), signed.astype(np.float32)[:, :, None])
    low = image % 4096
    inverse = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}
    check(dicom(low, **inverse), (4095 - low)[:, :, None])
    colors = noise(6, 8, 3, dtype="uint8")
    check(dicom(colors), colors)


@needs("pydicom")
def test_dicoms_that_could_mean_several_things_are_refused() -> None:
    image = noise(6, 8)
    assert "3 frames" in refusal(dicom(image, NumberOfFrames="3", Rows=2))
    both = {"PhotometricInterpretation": "MONOCHROME1", "RescaleIntercept": "-5", "RescaleSlope": "1"}
    assert "several things" in refusal(dicom(image, **both))
    assert "PALETTE COLOR" in refusal(dicom(image, PhotometricInterpretation="PALETTE COLOR"))
    assert "uint32" in refusal(dicom(image.astype(np.uint32)))
    assert "DICOM" in refusal(dicom(image)[:-20]) and "DICOM" in refusal(dicom(image)[:200])


def ugly() -> dict[str, bytes]:
    files = {"npy": npy(noise(20, 30, 5)), "tif": tif(noise(20, 30, 5), compression="zlib")}
    if importlib.util.find_spec("OpenEXR"):
        files["exr"] = exr({"RGB": noise(20, 30, 3, dtype="float32")})
    if importlib.util.find_spec("pydicom"):
        files["dcm"] = dicom(noise(20, 30))
    return files


@pytest.mark.parametrize("kind", ["npy", "tif", "exr", "dcm"])
def test_damaged_files_are_refused_or_give_pixels_of_the_promised_size(kind: str) -> None:
    data = ugly().get(kind) or pytest.skip("its package is not installed")
    rng = np.random.default_rng(1)
    for length in {*rng.integers(1, len(data), 40).tolist(), *range(1, 20)}:
        with pytest.raises(ImageError):
            decode_image(data[:length])
    for _ in range(150):
        changed = bytearray(data)
        for at in rng.integers(0, min(len(data), 600), rng.integers(1, 4)).tolist():
            changed[at] = rng.integers(256)
        try:
            header = inspect_image(changed, DecodePolicy("drop", 10**6))
            found = decode_image(changed, DecodePolicy("drop", 10**6))
        except ImageError:
            continue
        assert found.shape == (*header.upright, header.channels) and found.dtype == header.dtype


@pytest.mark.parametrize("kind", ["npy", "tif", "exr", "dcm"])
def test_a_huge_image_is_refused_before_it_is_decoded(kind: str) -> None:
    data = ugly().get(kind) or pytest.skip("its package is not installed")
    assert "600 pixels, more than the limit of 599" in refusal(data, DecodePolicy(max_pixels=599))


def test_the_size_is_known_from_the_first_bytes() -> None:
    assert glance(npy(noise(400, 300, 5, dtype="float32"))[:65536]) == (400, 300, 5, 4)
    assert glance(tif(noise(400, 300, 5))[:65536]) == (400, 300, 5, 2)


def test_a_missing_package_is_named_with_the_line_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    files = ugly()
    monkeypatch.setattr(rasters.importlib, "import_module", missing)
    for kind in files.keys() - {"npy"}:
        with pytest.raises(OptionError, match=r"pip install 'lmdbloader\[rasters\]'"):
            read_header(files[kind])
        assert glance(files[kind]) is None
    check(files["npy"], noise(20, 30, 5))


@needs("tifffile")
def test_refused_values_name_the_line_of_write() -> None:
    message = refusal(tif(np.zeros((8, 9), np.float64)))
    assert 'lmdbloader.write(({"image": tifffile.imread(path).astype("float32")} for path in paths), OUT' in message


def test_refusals_have_the_line_that_writes_the_pixels(tmp_path: Path) -> None:
    small = np.zeros((4, 6), np.uint16)
    both = {"PhotometricInterpretation": "MONOCHROME1", "RescaleIntercept": "-5", "RescaleSlope": "1"}
    frames = dicom(np.zeros((6, 4), np.uint16), NumberOfFrames="3", Rows=2)
    for number, (data, count) in enumerate([(dicom(small, **both), 1), (frames, 3)]):
        (tmp_path / f"{number}.dcm").write_bytes(data)
        line = refusal(data)
        line = line[line.index("lmdbloader.write(") :].partition("Image()})")
        out = str(tmp_path / f"{number}.lmdb")
        places = {"lmdbloader": lmdbloader, "pydicom": pytest.importorskip("pydicom"), "OUT": out}
        assert eval("".join(line[:2]), {**places, "paths": [tmp_path / f"{number}.dcm"]}).num_samples == count
