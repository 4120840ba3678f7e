"""Mask fields are written without loss and distinguished from images, and every command knows them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import fields
from lmdbloader.errors import CorruptError, OptionError

LABELS = np.array([[0, 1, 2], [7, 255, 1]])


def pil(mode: str) -> Image.Image:
    """Return LABELS as a PIL image; the palette of P would change them."""
    if mode == "I;16":
        return Image.fromarray(LABELS.astype(np.uint16))
    image = Image.fromarray(LABELS.astype(np.int32) if mode == "I" else LABELS.astype(np.uint8))
    if mode == "P":
        image.putpalette([(7 * i) % 256 for i in range(768)])
    assert image.mode == mode
    return image


def write(path: Path, *masks: Any, ignore_index: int = 255, **more: Any) -> lmdbloader.LMDBDataset:
    lmdbloader.write(({"mask": m} for m in masks), path, fields={"mask": fields.Mask(ignore_index)}, **more)
    assert lmdbloader.verify(path).is_sound
    return lmdbloader.LMDBDataset(path)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (LABELS.astype(np.uint8), torch.uint8),
        (LABELS.astype(np.uint16), torch.uint16),
        (LABELS.astype(">u2"), torch.uint8),
        (LABELS, torch.uint8),
        (LABELS.astype(np.int32) + 300, torch.uint16),
        (LABELS[:, :, None].astype(np.int64), torch.uint8),
        (LABELS[:, ::-1].astype(np.uint8)[:, ::-1], torch.uint8),
        (torch.from_numpy(LABELS), torch.uint8),
        (torch.from_numpy(LABELS)[None].to(torch.uint16), torch.uint16),
        *((pil(mode), torch.uint8) for mode in ("L", "P", "I")),
        (pil("I;16"), torch.uint16),
    ],
)
def test_a_mask_keeps_its_numbers(tmp_path: Path, value: Any, dtype: torch.dtype) -> None:
    found = write(tmp_path / "d", value)[0].mask
    offset = 300 if isinstance(value, np.ndarray) and value.max() > 255 else 0
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), LABELS + offset)


@pytest.mark.parametrize("value", [LABELS > 1, Image.fromarray((LABELS > 1).astype(np.uint8) * 255).convert("1")])
def test_bits_become_0_and_1(tmp_path: Path, value: Any) -> None:
    np.testing.assert_array_equal(write(tmp_path / "d", value)[0].mask.numpy(), LABELS > 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([[0, -1]]), r"labels from -1 to 0; .*mask\[mask < 0\] = 255, and write Mask\(255\)"),
        (np.array([[0, 2**16]]), "labels from 0 to 65536; expected 0 to 65535"),
        (np.zeros((2, 2), np.float32), r"\(2, 2\) float32; expected a mask: whole numbers \(H, W\)"),
        (np.zeros((2, 2, 3), np.uint8), r"\(2, 2, 3\) uint8; expected a mask"),
        (np.zeros((0, 2), np.uint8), "expected a mask"),
        (torch.zeros(3, 2, 2, dtype=torch.uint8), "expected a mask"),
        ([[1, 2]], "list; expected a mask"),
        (np.ma.masked_equal(LABELS, 1), "masked values"),
        (Image.new("RGB", (2, 2)), "mode RGB; expected a mask with one number for each pixel"),
    ],
)
def test_a_value_that_is_not_a_mask_is_refused_with_its_sample(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"sample 1, field 'mask': .*{message}"):
        write(tmp_path / "d", LABELS, value)
    assert not (tmp_path / "d").exists()


def write_pair(path: Path, image: Any, mask: Any, **more: Any) -> None:
    declared = {"image": fields.Image(), "mask": fields.Mask()}
    lmdbloader.write([{"image": image, "mask": mask, **more}], path, fields=declared, overwrite=True)


def test_axes_of_a_mask_are_compared_with_those_of_any_image(tmp_path: Path) -> None:
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (4, 6)).save(tmp_path / "a.jpg", exif=exif)
    files = [tmp_path / "a.png", tmp_path / "a.jpg"]
    for image in (np.zeros((4, 6), np.uint8), torch.zeros(3, 4, 6, dtype=torch.uint8), Image.new("L", (6, 4)), *files):
        for mask in (np.zeros((4, 6, 1), int), torch.zeros(1, 4, 6, dtype=torch.int64), Image.new("L", (6, 4))):
            write_pair(tmp_path / "d", image, mask)
        for mask in (np.zeros((6, 4), bool), torch.zeros(6, 4, dtype=torch.int64), Image.new("L", (4, 6))):
            with pytest.raises(OptionError, match="Are the axes of the mask swapped"):
                write_pair(tmp_path / "d", image, mask)
    write_pair(tmp_path / "d", np.zeros((4, 6), np.uint8), np.zeros((2, 4), np.uint8))  # of a part, as of U-Net's crops
    write_pair(tmp_path / "d", np.zeros((4, 6), np.uint8), np.zeros((6, 4), np.uint8), hr=np.zeros((8, 12), np.uint8))


@pytest.mark.parametrize("count", [1, 5000])  # in the first group of samples, and in a later one
def test_labels_of_two_types_are_refused_when_they_are_written(tmp_path: Path, count: int) -> None:
    with pytest.raises(
        OptionError, match=rf"sample {count}, field 'mask': a mask of 16 bits, and the first sample has one of 8 bits"
    ):
        write(tmp_path / "d", *[LABELS] * count, LABELS + 300)


@pytest.mark.parametrize("mode", ["raw", "jpg"])
def test_masks_are_never_stored_with_loss(tmp_path: Path, mode: Any) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (40, 60, 3), np.uint8), "mask": LABELS.repeat(20, 0).repeat(20, 1)}] * 3
    declared = {"mask": fields.Mask()}
    lmdbloader.write(samples, tmp_path / "d", fields=declared, write_mode=mode, max_resolution=30)
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    assert dataset[0].image.shape == (3, 20, 30) and dataset[0].mask.shape == (20, 30)
    np.testing.assert_array_equal(dataset[0].mask.numpy(), LABELS.repeat(10, 0).repeat(10, 1))
    stored = {f.name: f.codecs for f in lmdbloader.info(tmp_path / "d").fields}
    assert set(stored["mask"]) <= {"raw", "lz4"}
    with pytest.raises(OptionError, match="write_mode of 'mask': expected one of the image fields: image"):
        lmdbloader.write(samples, tmp_path / "e", fields=declared, write_mode={"mask": "jpg"})


@pytest.mark.parametrize("name", ["mask", "label_map", "trainLabels"])
@pytest.mark.parametrize("value", [LABELS.astype(np.uint8), torch.from_numpy(LABELS.astype(np.uint8))[None]])
def test_a_field_that_looks_like_a_mask_must_be_declared(tmp_path: Path, name: str, value: Any) -> None:
    sample = {"image": np.zeros((2, 3, 3), np.uint8), name: value}
    with pytest.raises(OptionError, match=f"field '{name}' looks like a mask.*values 0, 1, 2, 7, 255 only") as caught:
        lmdbloader.write([sample], tmp_path / "d")
    assert "as fields.Mask()" in str(caught.value)
    for kind in (fields.Mask(), fields.Image()):
        lmdbloader.write([sample], tmp_path / "d", fields={name: kind}, overwrite=True)
        assert lmdbloader.LMDBDataset(tmp_path / "d").fields[name].kind == kind.kind


def test_few_values_under_another_name_warn_once(tmp_path: Path) -> None:
    target = np.zeros((70, 70), np.uint8)
    target[3:] = 4
    with pytest.warns(UserWarning, match=r"field 'target' may be a mask \(one channel with the values 0, 4") as seen:
        lmdbloader.write([{"target": target}] * 5, tmp_path / "d")
    assert len(seen) == 1 and seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lmdbloader.write([{"target": target}], tmp_path / "e", fields={"target": fields.Image()})
        lmdbloader.write([{"image": target}], tmp_path / "f")
        lmdbloader.write([{"target": np.arange(4900, dtype=np.uint16).reshape(70, 70)}], tmp_path / "g")
        lmdbloader.write([{"target": target[:, :, None].repeat(3, 2)}], tmp_path / "h")


def test_extract_writes_the_numbers_as_png(tmp_path: Path) -> None:
    write(tmp_path / "d", LABELS)
    lmdbloader.extract(tmp_path / "d", tmp_path / "files")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "files" / "000000.png")), LABELS)
    write(tmp_path / "e", LABELS + 300)
    lmdbloader.extract(tmp_path / "e", tmp_path / "wide")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "wide" / "000000.png")), LABELS + 300)


def test_a_damaged_mask_is_found_and_left_out(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", *(LABELS.repeat(9, 0) for _ in range(4)), codec="raw")
    at = int(dataset.reader.index.arrays["mask.offset"][2])
    with open(tmp_path / "d" / "data.mdb", "r+b") as file:
        file.seek(at)
        file.write(b"\x05")
    assert [d.sample for d in lmdbloader.verify(tmp_path / "d").damaged] == [2]
    with pytest.raises(CorruptError, match="'mask' of sample 2"):
        dataset[2]
    lmdbloader.repair(tmp_path / "d", tmp_path / "out")
    mended = lmdbloader.LMDBDataset(tmp_path / "out")
    assert (len(mended), mended.fields["mask"].kind, mended.fields["mask"].ignore_index) == (3, "mask", 255)


def test_a_lost_manifest_is_rebuilt_with_its_ignore_index(tmp_path: Path) -> None:
    write(tmp_path / "d", LABELS, ignore_index=9)
    before = (tmp_path / "d" / "manifest.json").read_bytes()
    (tmp_path / "d" / "manifest.json").unlink()
    lmdbloader.repair(tmp_path / "d")
    assert (tmp_path / "d" / "manifest.json").read_bytes() == before


def test_an_encoded_mask_is_read_as_a_folders(tmp_path: Path) -> None:
    labels = (LABELS > 1).astype(np.uint8)
    (tmp_path / "b.pbm").write_bytes(b"P4 %d %d\n" % labels.shape[::-1] + np.packbits(1 - labels, axis=1).tobytes())
    path = tmp_path / "b.pbm"
    dataset = write(tmp_path / "d", path, {"bytes": path.read_bytes(), "path": None})
    assert len(dataset) == 2 and all((sample.mask.numpy() == labels).all() for sample in dataset)
