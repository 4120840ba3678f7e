"""Image fields of 1 to 64 channels in four types: stored without loss, moved like any image, or clearly refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

import lmdbloader
from lmdbloader import LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.format.layout import TILED_ABOVE_NBYTES
from lmdbloader.superres import degradations

DTYPES = ("uint8", "uint16", "float16", "float32")
IMAGE = {"image": fields.Image()}


def picture(height: int, width: int, channels: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Return an image (H, W, C); floats have NaN, infinity, a zero with a sign, and the least number."""
    rng = np.random.default_rng([seed, height, width])
    if np.dtype(dtype).kind == "u":
        return rng.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)
    image = rng.normal(0, 30, (height, width, channels)).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).smallest_subnormal], dtype)
    image.reshape(-1)[: image.size // 2][: len(special)] = special[: image.size // 2]
    return image


def planes(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def same(found: torch.Tensor, expected: np.ndarray) -> None:
    """Check pixels bit for bit, so that NaN equals itself and a zero keeps its sign."""
    assert str(found.dtype) == f"torch.{expected.dtype}"
    assert found.shape == expected.shape
    assert found.numpy().tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("codec", ["auto", "raw", "lz4", "delta"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_comes_back(tmp_path: Path, dtype: str, codec: str) -> None:
    for channels in (1, 2, 3, 4, 5, 13, 64):
        for height, width in ((9, 9), (90, 110)):
            images = [picture(height, width, channels, dtype, seed) for seed in range(3)]
            samples = [{"image": torch.from_numpy(planes(images[0]))}, *({"image": image} for image in images[1:])]
            path = tmp_path / f"{channels}-{height}"
            if codec == "delta" and dtype.startswith("float"):
                with pytest.raises(OptionError, match="encodes integers only"):
                    lmdbloader.write(samples, path, fields=IMAGE, codec=codec)
                continue
            lmdbloader.write(samples, path, fields=IMAGE, codec=codec)
            for io in ("mmap", "pread"):
                ds = LMDBDataset(path, io=io)
                batches = list(Loader(ds, 2))
                for k, image in enumerate(images):
                    same(ds[k].image, planes(image))
                    same(batches[k // 2].image[k % 2], planes(image))
                if images[0].nbytes > TILED_ABOVE_NBYTES:
                    crop = ds.reader.read_crop("image", 1, top=3, left=5, height=70, width=66)
                    same(torch.from_numpy(crop), planes(images[1])[:, 3:73, 5:71])
            assert lmdbloader.verify(path).is_sound


@settings(max_examples=50)
@given(st.data())
def test_crops_flips_turns_and_padding_are_those_of_numpy(tmp_path_factory: Any, data: st.DataObject) -> None:
    dtype, channels = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 64))
    side, out = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 48))
    codec = data.draw(st.sampled_from(["raw", "lz4"]))
    image, mask = picture(side, side, channels, dtype), picture(side, side, 1, "uint8")[:, :, 0]
    path = tmp_path_factory.mktemp("d") / "d"
    kinds = IMAGE | {"mask": fields.Mask()}
    lmdbloader.write([{"image": image, "mask": mask}], path, fields=kinds, codec=codec)
    fill = data.draw(st.integers(-9, 9)) / 4 if dtype.startswith("float") else data.draw(st.integers(0, 255))
    flips = [T.RandomDihedral(), T.RandomHorizontalFlip(1), T.RandomVerticalFlip(1)]
    steps: list[T.Transform] = [T.CenterCrop(side), *data.draw(st.lists(st.sampled_from(flips), max_size=3))]
    if out <= side:
        steps.append(T.CenterCrop(out))
    else:
        steps.append(T.RandomCrop(out, pad_if_needed=True, fill=fill))
    last = data.draw(st.booleans())
    form = torch.channels_last if last else torch.contiguous_format
    batch = next(iter(Loader(LMDBDataset(path), 1, shuffle=False, transforms=steps, memory_format=form, seed=5)))
    assert batch.image[0].dtype == getattr(torch, dtype)
    found, label = batch.image[0].numpy(), batch.mask[0].numpy()
    # A mark in the mask says which of the eight turns was drawn, and where it was put.
    numbered = planes(image)
    candidates = []
    for turn in range(8):
        a, m = (np.rot90(v, turn % 4, (-2, -1)) for v in (numbered, mask[None]))
        a, m = (v[:, :, ::-1] if turn > 3 else v for v in (a, m))
        if out <= side:
            at = round((side - out) / 2)
            candidates.append((a[:, at : at + out, at : at + out], m[:, at : at + out, at : at + out]))
            continue
        for top in range(out - side + 1):
            for left in range(out - side + 1):
                wide = np.full((channels, out, out), fill, image.dtype)
                wide[:, top : top + side, left : left + side] = a
                labels = np.full((1, out, out), 255, np.uint8)
                labels[:, top : top + side, left : left + side] = m
                candidates.append((wide, labels))
    assert any(found.tobytes() == np.ascontiguousarray(a).tobytes() and (m[0] == label).all() for a, m in candidates)


@settings(max_examples=25)
@given(st.data())
def test_resizes_of_floats_are_those_of_torch(tmp_path_factory: Any, data: st.DataObject) -> None:
    dtype, channels = data.draw(st.sampled_from(["float16", "float32"])), data.draw(st.integers(1, 9))
    height, width = data.draw(st.integers(17, 150)), data.draw(st.integers(17, 150))
    size = data.draw(st.tuples(st.integers(2, 160), st.integers(2, 160)))  # torch's (2, 1) is wrong
    name = data.draw(st.sampled_from(["bilinear", "bicubic"]))
    image = np.random.default_rng(height).normal(0, 1, (height, width, channels)).astype(dtype)
    path = tmp_path_factory.mktemp("d") / "d"
    lmdbloader.write([{"image": image}], path, fields=IMAGE, codec=data.draw(st.sampled_from(["raw", "lz4"])))
    steps = [T.Resize(size, interpolation=name), T.ToDtype(torch.float32, scale=True)]
    found = next(iter(Loader(LMDBDataset(path), 1, shuffle=False, transforms=steps))).image
    # In float32 torch places the pixels of large images less exactly.
    whole = torch.from_numpy(planes(image).astype(np.float64))[None]
    expected = torch.nn.functional.interpolate(whole, size, mode=name, antialias=True)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=5e-6, rtol=1e-5)


def test_all_images_of_a_field_have_one_type_and_number_of_channels(tmp_path: Path) -> None:
    first, path = {"image": picture(20, 20, 5, "float32")}, tmp_path / "d"
    for later, what in (((5, "float16"), "float16"), ((5, "uint8"), "whole numbers"), ((4, "float32"), "4 channels")):
        with pytest.raises(OptionError, match=f"sample 1, field 'image': an image of .*{what}"):
            lmdbloader.write([first, {"image": picture(20, 20, *later)}], path, fields=IMAGE)
    grey = [{"image": picture(20, 20, channels, dtype)} for channels in (1, 3) for dtype in ("uint8", "uint16")]
    lmdbloader.write(grey, path, fields=IMAGE)
    lmdbloader.write([first], tmp_path / "floats", fields=IMAGE)
    with pytest.raises(
        OptionError, match=r"field 'image' has images of whole numbers, gray or RGB in .* float32 with 5"
    ):
        lmdbloader.merge([path, tmp_path / "floats"], tmp_path / "both")
    with pytest.raises(OptionError, match="field 'image' has the pixels whole numbers, gray or RGB in"):
        lmdbloader.mix([LMDBDataset(path), LMDBDataset(tmp_path / "floats")])
    lmdbloader.merge([tmp_path / "floats"] * 2, tmp_path / "both")
    assert len(LMDBDataset(tmp_path / "both")) == 2


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            np.zeros((4, 48, 40), np.float32),
            r"\(4, 48, 40\)\. The axes of an array are \(H, W, C\).*transpose\(1, 2, 0\)",
        ),
        (torch.zeros(48, 40, 5), r"\(48, 40, 5\)\. The axes of a tensor are \(C, H, W\).*permute\(2, 0, 1\)"),
        (
            np.zeros((9, 9, 65), np.float32),
            r"\(9, 9, 65\) float32; expected pixels of .* 1 to 64 channels\. .*transpose",
        ),
        (np.zeros((9, 9, 3)), r"\(9, 9, 3\) float64; .* Write image\.astype\('float32'\)"),
        (np.zeros((9, 9, 3), np.int16), r"\(9, 9, 3\) int16; expected pixels of uint8, uint16, float16 or float32"),
        (torch.zeros(9, 9), r"\(9, 9\) torch\.float32; expected .* a tensor \(C, H, W\)"),
        (torch.zeros(3, 9, 9, dtype=torch.bfloat16), r"\(3, 9, 9\) torch\.bfloat16; expected pixels"),
    ],
)
def test_what_is_not_an_image_is_refused_with_what_to_write(tmp_path: Path, image: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"^sample 0, field 'image': {message}"):
        lmdbloader.write([{"image": image}], tmp_path / "d", fields=IMAGE)


def test_undeclared_floats_are_arrays_and_the_error_says_how_to_declare_them(tmp_path: Path) -> None:
    line = r'fields=\{"image": lmdbloader\.fields\.Image\(\)\}'
    with pytest.warns(UserWarning, match=line):
        lmdbloader.write([{"image": picture(9, 9, 3, "float32")}], tmp_path / "a")
    assert LMDBDataset(tmp_path / "a").fields["image"].kind == "array"
    with pytest.raises(OptionError, match=line):
        Loader(LMDBDataset(tmp_path / "a"), 1, shuffle=False, transforms=[T.RandomCrop(4)])
    samples = [{"image": picture(9, 9, 3, "uint8"), "depth": picture(9, 9, 1, "float32")}]
    lmdbloader.write(samples, tmp_path / "b")
    with pytest.raises(OptionError, match=r"fields=\{'depth': lmdbloader\.fields\.Image\(\)\}"):
        next(iter(Loader(LMDBDataset(tmp_path / "b"), 1, shuffle=False, transforms=[T.RandomCrop(4)])))
    floats = PilImage.fromarray(picture(9, 9, 1, "float32")[:, :, 0])
    lmdbloader.write([{"image": floats}], tmp_path / "c")
    same(LMDBDataset(tmp_path / "c")[0].image, planes(np.asarray(floats)[:, :, None]))


def test_normalize_and_erasing_have_a_number_for_each_channel(tmp_path: Path) -> None:
    image = picture(8, 8, 5, "uint16")
    lmdbloader.write([{"image": image}], tmp_path / "d", fields=IMAGE)
    mean, std = [10.0, 20.0, 30.0, 40.0, 50.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    for form in (torch.contiguous_format, torch.channels_last):
        for dtype in (torch.float32, torch.bfloat16):
            steps = [T.ToDtype(dtype), T.Normalize(mean, std), T.Cutout(2, value=7.0)]
            found = next(
                iter(Loader(LMDBDataset(tmp_path / "d"), 1, shuffle=False, transforms=steps, memory_format=form))
            ).image[0]
            expected = (planes(image) - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
            erased = (found == 7).all(0)
            assert erased.sum() == 4
            expected = torch.from_numpy(expected).to(dtype)
            torch.testing.assert_close(found[:, ~erased], expected[:, ~erased])


def test_nan_stays_nan_in_every_type(tmp_path: Path) -> None:
    image = np.full((4, 4, 3), np.nan, np.float32)
    image[0] = np.array([0xFFFFFFFF, 0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    image[1] = np.inf
    lmdbloader.write([{"image": image}, {"image": image}], tmp_path / "d", fields=IMAGE)
    for form in (torch.contiguous_format, torch.channels_last):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            steps = [T.RandomCrop(4), T.ToDtype(dtype), T.Normalize(0.5, 2)]
            found = next(
                iter(Loader(LMDBDataset(tmp_path / "d"), 2, shuffle=False, transforms=steps, memory_format=form))
            ).image
            assert found[:, :, [0, 2, 3]].isnan().all()
            assert (found[:, :, 1] == torch.inf).all()


def test_what_needs_pixels_of_a_photograph_is_refused(tmp_path: Path) -> None:
    lmdbloader.write([{"image": picture(64, 64, 5, "uint8")}] * 2, tmp_path / "d", fields=IMAGE)
    lmdbloader.write([{"image": picture(64, 64, 3, "float32")}] * 2, tmp_path / "f", fields=IMAGE)
    for name in ("d", "f"):
        for step in (T.ColorJitter(0.2), T.RandomGrayscale(), T.RandomEqualize(), degradations.real_esrgan(4)):
            with pytest.raises(OptionError, match="expected uint8 or uint16 with 1 or 3"):
                next(iter(Loader(LMDBDataset(tmp_path / name), 1, shuffle=False, transforms=[T.RandomCrop(32), step])))
    with pytest.raises(OptionError, match=r"field 'image': holds floats, and codec='delta' encodes integers only"):
        lmdbloader.recode(tmp_path / "f", tmp_path / "g", codec="delta")
    lmdbloader.recode(tmp_path / "f", tmp_path / "g", codec="lz4")
    lmdbloader.recode(tmp_path / "d", tmp_path / "h", codec="delta")
    for a, b in (("f", "g"), ("d", "h")):
        same(LMDBDataset(tmp_path / b)[1].image, LMDBDataset(tmp_path / a)[1].image.numpy())


@pytest.mark.parametrize(
    ("channels", "dtype", "told"), [(5, "uint16", "5 channels, 16-bit"), (2, "float16", "float16")]
)
def test_they_are_described_shown_and_extracted(tmp_path: Path, channels: int, dtype: str, told: str) -> None:
    image = picture(30, 20, channels, dtype)
    lmdbloader.write([{"image": image}] * 2, tmp_path / "d", fields=IMAGE, write_mode="jpg")
    lmdbloader.append(tmp_path / "d", [tmp_path / "d"])
    assert told in lmdbloader.info(tmp_path / "d").fields[0].describe()
    sheet = lmdbloader.preview(tmp_path / "d")
    assert "image is shown from" in sheet.note or "16-bit pixels are shown" in sheet.note
    lmdbloader.extract(tmp_path / "d", tmp_path / "files")
    found = np.load(tmp_path / "files" / "000001.npy")
    assert found.dtype == image.dtype
    assert found.tobytes() == image.tobytes()
    with pytest.raises(OptionError, match=r"cannot be a PNG file\. Leave out image_format='png'"):
        lmdbloader.extract(tmp_path / "d", tmp_path / "png", image_format="png")


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_resolution_shrinks_any_image(tmp_path: Path, dtype: str) -> None:
    y, x = np.mgrid[0:60, 0:90]
    image = np.stack([y + x, y, x, 2 * y, 2 * x], 2).astype(dtype)
    lmdbloader.write([{"image": image}], tmp_path / "d", fields=IMAGE, max_resolution=30)
    found = LMDBDataset(tmp_path / "d")[0].image
    whole = torch.from_numpy(planes(image).astype(np.float32))[None]
    expected = torch.nn.functional.interpolate(whole, (20, 30), mode="bicubic", antialias=True)[0]
    assert str(found.dtype) == f"torch.{dtype}"
    torch.testing.assert_close(found.float(), expected, atol=1.01 if dtype.startswith("u") else 0.1, rtol=0)
