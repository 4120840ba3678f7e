"""Datasets of codec delta: written, read, checked, changed and shown like those of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError, OptionError


@pytest.fixture(scope="module")
def pairs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pairs of patches of photographs, raw and delta."""
    folder = tmp_path_factory.mktemp("pairs")
    for codec in ("raw", "delta"):
        report = lmdbloader.convert(photos, folder / codec, patch_size=64, scale=2, codec=codec, workers=1)
        assert set(report.codecs.values()) == {codec}
    return {codec: folder / codec for codec in ("raw", "delta")}


@pytest.fixture(scope="module")
def mixed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Images of many sizes, of 8 and 16 bits, gray and in color, small and in tiles, with masks and texts."""
    folder, rng = tmp_path_factory.mktemp("mixed"), np.random.default_rng(0)
    whole = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(photos.iterdir())]
    images = [image[: 40 + 7 * i, 10 : 90 + 5 * i] for i, image in enumerate(whole)]
    images += [whole[0][:400, :330], whole[1][:300, :310].astype(np.uint16) * 200 + 3, whole[2][:50, :60, :1]]
    images += [images[0].astype(np.uint16) * 7, rng.integers(0, 256, (33, 35, 3)).astype(np.uint8)]
    samples = [
        {"image": np.ascontiguousarray(image), "mask": image[:, :, 0] > 90, "note": "a" * i, "box": [i]}
        for i, image in enumerate(images)
    ]
    for sample in samples:
        sample["mask"] = np.asarray(sample["mask"]).astype(np.uint8)
    fields = {"mask": lmdbloader.fields.Mask()}
    for codec in ("raw", "delta"):
        lmdbloader.write(samples, folder / codec, codec=codec, fields=fields)
    return {codec: folder / codec for codec in ("raw", "delta")}


def same(path: Path, other: Path) -> None:
    mine, expected = LMDBDataset(path), LMDBDataset(other)
    assert len(mine) == len(expected)
    for i in range(len(expected)):
        for name, value in expected[i]._asdict().items():
            found = getattr(mine[i], name)
            assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value, (i, name)


def test_all_samples_are_those_of_pixels(pairs: dict[str, Path], mixed: dict[str, Path]) -> None:
    for paths in (pairs, mixed):
        same(paths["delta"], paths["raw"])
        assert lmdbloader.verify(paths["delta"]).is_sound


def test_it_is_named_and_smaller(pairs: dict[str, Path], mixed: dict[str, Path]) -> None:
    for f in lmdbloader.info(pairs["delta"]).fields:
        if f.kind == "image":
            assert f.codec == "delta" and f.stored_nbytes < 0.65 * f.raw_nbytes
    fields = {f.name: f for f in lmdbloader.info(mixed["delta"]).fields}
    assert set(fields["image"].codecs or {}) == {"raw", "delta", "delta tiles"}  # noise is raw
    assert (fields["mask"].codec, fields["box"].codec) == ("lz4", "lz4")


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("transforms", [
    [], [T.RandomCrop(24), T.RandomDihedral()], [T.Resize((20, 30))],
], ids=["stored", "cropped", "resized"])  # fmt: skip
def test_batches_are_those_of_pixels(pairs: dict[str, Path], io: Any, transforms: list[Any]) -> None:
    loaders = [
        Loader(LMDBDataset(pairs[codec], ["hr"], io=io), 16, seed=3, shuffle=True, transforms=transforms, num_threads=2)
        for codec in ("delta", "raw")
    ]
    for found, expected in zip(*loaders, strict=True):
        assert torch.equal(found.hr, expected.hr)


def test_crops_of_tiles(mixed: dict[str, Path]) -> None:
    datasets = {codec: LMDBDataset(path) for codec, path in mixed.items()}
    sizes = [sample.image.shape[1:] for sample in datasets["raw"]]
    for i, (height, width) in enumerate(sizes):
        window = {"top": height // 3, "left": width // 4, "height": height // 2, "width": width // 2}
        found, expected = (datasets[codec].crop(i, field="image", **window) for codec in ("delta", "raw"))
        assert torch.equal(found, expected)


def test_subsets_merged_and_appended_hold_the_same(mixed: dict[str, Path], tmp_path: Path) -> None:
    for name, rows in (("first", range(6)), ("rest", range(6, len(LMDBDataset(mixed["raw"]))))):
        lmdbloader.subset(mixed["delta"], tmp_path / name, indices=list(rows))
    lmdbloader.merge([tmp_path / "first", tmp_path / "rest"], tmp_path / "merged")
    lmdbloader.append(tmp_path / "first", [tmp_path / "rest"])
    for name in ("merged", "first"):
        same(tmp_path / name, mixed["raw"])


def test_extracted_images_are_those_of_pixels(pairs: dict[str, Path], tmp_path: Path) -> None:
    for codec, path in pairs.items():
        lmdbloader.extract(path, tmp_path / codec, samples=[0, 5])
    files = [path.relative_to(tmp_path / "raw") for path in (tmp_path / "raw").rglob("*.png")]
    assert files
    for file in files:
        assert (tmp_path / "delta" / file).read_bytes() == (tmp_path / "raw" / file).read_bytes()


def test_an_estimate_knows_it(photos: Path) -> None:
    found = {codec: lmdbloader.estimate(photos, patch_size=64, codec=codec) for codec in ("raw", "delta")}
    assert found["delta"].codecs == {"image": "delta"}
    assert found["delta"].data_nbytes.value < 0.65 * found["raw"].data_nbytes.value


def test_a_codec_by_field(tmp_path: Path) -> None:
    image = np.add.outer(np.arange(50), np.arange(60)).astype(np.uint8)
    samples = [{"a": image, "b": image, "c": [1] * 90}]
    lmdbloader.write(samples, tmp_path / "d", codec={"a": "delta", "b": "lz4", "c": "delta"})
    assert {f.name: f.codec for f in lmdbloader.info(tmp_path / "d").fields} == {"a": "delta", "b": "lz4", "c": "lz4"}
    same_image = LMDBDataset(tmp_path / "d")[0]
    assert (same_image.a.numpy() == image).all() and (same_image.b.numpy() == image).all()


def test_the_dataset_of_a_damaged_payload_names_it(pairs: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(pairs["delta"], tmp_path / "d")
    reader = LMDBDataset(tmp_path / "d").reader
    at = int(reader.index.arrays["hr.offset"][3]) + 40
    with open(tmp_path / "d" / "data.mdb", "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptError, match="its checksum does not match"):
        LMDBDataset(tmp_path / "d")[3]
    assert not lmdbloader.verify(tmp_path / "d").is_sound
    lmdbloader.repair(tmp_path / "d", tmp_path / "repaired")
    assert len(LMDBDataset(tmp_path / "repaired")) == len(reader) - 1
    with pytest.raises(OptionError, match="expected one of auto, raw, lz4, delta"):
        lmdbloader.write([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "e", codec="Delta")


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs that lz4 does not make smaller, as PNG files."""
    import skimage.data

    folder = tmp_path_factory.mktemp("smooth") / "photos"
    folder.mkdir()
    for name in ("astronaut", "coffee", "cat"):
        Image.fromarray(getattr(skimage.data, name)()[:200, :240]).save(folder / f"{name}.png")
    return folder


def test_auto_takes_delta_for_size_only_and_says_what_it_saves(smooth: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    fast = lmdbloader.convert(smooth, tmp_path / "fast", patch_size=64, workers=1, log=lines.append)
    assert fast.codecs == {"image": "raw"}
    assert any("prefer='size': about" in line and "with the codec delta" in line for line in lines)
    small = lmdbloader.convert(smooth, tmp_path / "small", patch_size=64, workers=1, prefer="size")
    assert small.codecs == {"image": "delta"}
    same(tmp_path / "small", tmp_path / "fast")
    estimated = lmdbloader.estimate(smooth, patch_size=64, prefer="size")
    assert estimated.codecs == {"image": "delta"}


def test_auto_of_samples_takes_the_smallest_of_each_field(smooth: Path, tmp_path: Path) -> None:
    photographs = [np.asarray(Image.open(path)) for path in sorted(smooth.iterdir())]
    rng = np.random.default_rng(0)
    samples = [
        {
            "photo": image,
            "noise": rng.integers(0, 256, (30, 30, 3)).astype(np.uint8),
            "repeated": np.tile(rng.integers(0, 256, (8, 64, 1)), (8, 1, 3)).astype(np.uint8),
            "numbers": [1] * 100,
        }
        for image in photographs
    ]
    for prefer, photo in (("speed", "raw"), ("size", "delta")):
        lmdbloader.write(samples, tmp_path / prefer, prefer=prefer)  # type: ignore[arg-type]
        found = {f.name: f.codec for f in lmdbloader.info(tmp_path / prefer).fields}
        assert found == {"photo": photo, "noise": "raw", "repeated": "lz4", "numbers": "lz4"}
    same(tmp_path / "size", tmp_path / "speed")


def test_what_auto_prefers_needs_auto(smooth: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has no effect"):
        lmdbloader.convert(smooth, tmp_path / "a", codec="lz4", prefer="size")
    with pytest.raises(OptionError, match="has no effect"):
        lmdbloader.write([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "b", codec="raw", prefer="size")
    lmdbloader.write([{"label": 1}], tmp_path / "d", prefer="size")
    assert LMDBDataset(tmp_path / "d")[0].label == 1
    with pytest.raises(OptionError, match="expected 'speed' or 'size'"):
        lmdbloader.write([{"image": np.zeros((4, 4, 3), np.uint8)}], tmp_path / "c", prefer="both")  # type: ignore[arg-type]
