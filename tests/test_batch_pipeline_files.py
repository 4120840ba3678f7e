"""Images stored as JPEG or other files go through transforms like their pixels, in any mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data as photographs

import lmdbloader
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError
from lmdbloader.format.layout import CODEC_NAMES, DATA_FILE
from lmdbloader.loader.orders import random_order

SOURCES = [photographs.astronaut(), photographs.coffee(), photographs.chelsea(), photographs.camera()]
COUNT = 24
MOVED: list[Any] = [T.RandomCrop(48), T.RandomDihedral(), T.ColorJitter(0.3, 0.3, 0.3), T.RandomErasing(0.5)]
FLOATS = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]


def write_folder(folder: Path) -> None:
    """Write photographs of many sizes: JPEGs of all samplings, some rotated, gray, progressive, and PNGs."""
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        source = SOURCES[i % 4]
        height, width = int(rng.integers(60, 300)), int(rng.integers(60, 300))
        top, left = rng.integers(source.shape[0] - height + 1), rng.integers(source.shape[1] - width + 1)
        image = Image.fromarray(np.ascontiguousarray(source[top : top + height, left : left + width]))
        options: dict[str, Any] = {"quality": int(rng.integers(70, 96)), "exif": Image.Exif()}
        options["exif"][0x0112] = i % 8 + 1
        if image.mode == "RGB":
            options["subsampling"] = i % 3
        if i % 7 == 6:
            image.save(folder / f"{i:02}.png")
        else:
            image.save(folder / f"{i:02}.jpg", progressive=i % 5 == 4, **options)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lmdbloader.LMDBDataset]:
    """The same photographs as files, as JPEGs of ours, as a mixture, and the pixels of each of the first two."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "src").mkdir()
    write_folder(folder / "src")
    found = {}
    for name, options in {
        "files": {"write_mode": "original"},
        "jpg": {"write_mode": "jpg"},
        "mixed": {"write_mode": "proportion", "compress_probability": 0.4},
    }.items():
        lmdbloader.convert(folder / "src", folder / name, workers=1, **options)  # type: ignore[arg-type]
        dataset = found[name] = lmdbloader.LMDBDataset(folder / name)
        lmdbloader.write(({"image": s.image} for s in dataset), folder / f"{name}-pixels", codec="raw")
        found[f"{name}-pixels"] = lmdbloader.LMDBDataset(folder / f"{name}-pixels")
    return found


def images(dataset: lmdbloader.LMDBDataset, transforms: Any, **options: Any) -> torch.Tensor:
    loader = lmdbloader.Loader(dataset, 10, transforms=transforms, **{"order": "random", "seed": 0, **options})
    return torch.cat([batch.image for batch in loader])


@pytest.mark.parametrize("name", ["files", "jpg", "mixed"])
@pytest.mark.parametrize("options", [{}, {"io": "pread"}, {"memory_format": torch.channels_last}, {"verify": False}])
def test_without_a_resize_every_value_is_that_of_the_pixels(
    datasets: dict[str, lmdbloader.LMDBDataset], name: str, options: Any
) -> None:
    transforms = [*MOVED[:3], *FLOATS, *MOVED[3:]]
    found = images(datasets[name], transforms, **options)
    torch.testing.assert_close(found, images(datasets[f"{name}-pixels"], transforms), rtol=0, atol=0)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["files", "jpg", "mixed"]), st.integers(8, 120), st.integers(8, 120), st.booleans(), st.data())
def test_after_a_resize_it_differs_by_less_than_two_levels(
    datasets: dict[str, lmdbloader.LMDBDataset], name: str, height: int, width: int, cubic: bool, data: st.DataObject
) -> None:
    interpolation = "bicubic" if cubic else "bilinear"
    size = (height, width)
    resize = data.draw(
        st.sampled_from([
            T.RandomResizedCrop(size, interpolation=interpolation), T.Resize(size, interpolation=interpolation),
        ])
    )  # fmt: skip
    transforms = [resize, T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    seed = data.draw(st.integers(0, 9))
    found = images(datasets[name], transforms, seed=seed).to(torch.float32)
    off = (found - images(datasets[f"{name}-pixels"], transforms, seed=seed)).abs()
    assert off.mean() < 2
    is_pixels = torch.tensor(datasets[name].reader.index.arrays["image.codec"] == CODEC_NAMES.index("raw"))
    order = random_order(COUNT, seed, epoch=0).samples(np.arange(COUNT))
    assert (off[is_pixels[torch.from_numpy(order)]] == 0).all(), "pixels beside JPEGs are resized as ever"


def test_whole_images_are_resized_as_pillow_resizes_them(datasets: dict[str, lmdbloader.LMDBDataset]) -> None:
    for name, most in (("jpg", 2.0), ("jpg-pixels", 1.0)):
        found = images(datasets[name], [T.Resize((90, 70))], order="sequential")
        for image, sample in zip(found, datasets[name], strict=True):
            pixels = sample.image.numpy().transpose(1, 2, 0)
            plain = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            expected = np.asarray(plain.resize((70, 90), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            assert np.abs(image.numpy().astype(int) - expected).mean() < most


@pytest.mark.parametrize("resize", [False, True])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, resize: bool) -> None:
    Image.fromarray(SOURCES[0][:90, :80]).save(tmp_path / "a.jpg")
    Image.fromarray(SOURCES[0][:90, :80]).save(tmp_path / "b.jpg", progressive=True)
    (tmp_path / "src").mkdir()
    for name in "ab":
        (tmp_path / f"{name}.jpg").rename(tmp_path / "src" / f"{name}.jpg")
    lmdbloader.convert(tmp_path / "src", tmp_path / "d", workers=1)
    reader = lmdbloader.LMDBDataset(tmp_path / "d").reader
    starts = reader.index.arrays["image.offset"].tolist()
    nbytes = reader.index.arrays["image.stored_nbytes"].tolist()
    whole = (tmp_path / "d" / DATA_FILE).read_bytes()
    transforms = [T.Resize((40, 40))] if resize else [T.CenterCrop(40)]
    for row, name in enumerate(("a.jpg", "b.jpg")):
        damaged = bytearray(whole)
        damaged[starts[row] + nbytes[row] // 2] ^= 0xFF
        (tmp_path / "d" / DATA_FILE).write_bytes(damaged)
        dataset = lmdbloader.LMDBDataset(tmp_path / "d")
        with pytest.raises(CorruptError, match=rf"sample {row} \(from {name}\): its checksum does not match"):
            images(dataset, transforms, order="sequential")
        with pytest.raises(CorruptError, match=name):
            dataset[row]
        with pytest.raises(CorruptError, match=name):
            dataset.reader.read_crop("image", row, top=0, left=0, height=9, width=9)
        try:  # unchecked, it is an error or other pixels
            images(dataset, transforms, order="sequential", verify=False)
        except CorruptError as error:
            assert name in str(error)
