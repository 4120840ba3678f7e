"""The same files give the same pixels and the same datasets, whatever the versions of the dependencies.

The digests were taken with the newest versions; `make test-floors` compares them with the lowest. After a change to the
content digest, `python tests/test_versions.py` prints those of the datasets.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import features

import lmdbloader
from lmdbloader.images.decode import DecodePolicy, decode_image
from lmdbloader.lab.machine.description import describe_libraries
from lmdbloader.store import read_manifest
from lmdbloader.transforms import RandomDihedral, ToDtype

FILES = Path(__file__).resolve().parent / "data" / "versions"
WIDE = {"alpha_16_bit.png", "bits_16.tif"}
GREY = {"alpha_grey.png", "bitmap.pbm", "bits_16.tif", "grey.tif"}

PIXELS = {
    "alpha.png": "913efe6fbedb5e88331dcf1ba48046ec",
    "alpha_16_bit.png": "918440548eab056c48c39bace34a446b",
    "alpha_grey.png": "6fef382ef52ceaec682f11dc94278989",
    "alpha_palette.png": "6c185f1a43526c61c3d4df37c8b22f79",
    "bitmap.pbm": "cae76c7815d02f2d0a73d840486d97d8",
    "bits_16.tif": "a9d44787ddae60c28b65e26bf923eac9",
    "bits_32.bmp": "00824a83e55f06ce348aed46db208cea",
    "cmyk.jpg": "8a2ff996f7985be70156e2cab4d017cb",
    "cmyk.tif": "5d17d08c2886d6437bbd4c2f1cd3208a",
    "grey.tif": "69ee729e463290bb6a55fd778a4a25fe",
    "needs_libtiff.tif": "23b1ccde9e1e9cb415f786e7577d0f9a",
    "needs_libtiff_ycbcr.tif": "4a2fd93b72887abef467cd3860796b73",
    "needs_webp.webp": "19d4a2fcc66af89e3b0ff913405f7034",
    "palette.bmp": "363228fec44e3846a28aaf638b047e35",
    "palette.gif": "363228fec44e3846a28aaf638b047e35",
    "palette.tif": "a5b747e110eca0521daf2799c02f0f65",
    "rgb.bmp": "5d17d08c2886d6437bbd4c2f1cd3208a",
    "transparent.gif": "69ab1d3ab98905e6d75c6951974de5c4",
    "turned.jpg": "0575337a3f889efd218d79ce2272f603",
    "turned.png": "31e341314a71250f81b4a1b97d6bd6ef",
    "turned.tif": "8235d84d2b64c4279cc59379c3c7f149",
}
# Name: the files left out, the conversion, its content digest.
DATASETS: dict[str, tuple[set[str], dict[str, Any], str]] = {
    "whole": (set(), {"codec": "lz4"}, "sha256:484360d16d6a3b13421de81d00c1ac3c7f828015b767fb2a17f44b280a3a875e"),
    "pairs": (set(), {"scale": 2}, "sha256:4dd80851c3f9178c4ec93fce8bc5085dc0ee16adf48c13af7ba8636b12c95cff"),
    "pairs of Pillow": (
        WIDE,
        {"scale": 2, "bicubic": "pillow"},
        "sha256:8198910ad28747a08556e12d4d5447cb2ed7c86221c7e9a6ee29a02e3fcc1ca9",
    ),
    "patches": (
        WIDE | GREY,
        {"patch_size": 8, "scale": 2},
        "sha256:613d598f50266a03eee0e1c11de08d35f3e2b403adbd577fcee5c4ec893bf419",
    ),
    "JPEG": (WIDE, {"write_mode": "jpg"}, "sha256:986518f5fcc1ea930d32d15bf640657bcf278bf797381a0e9a25464d84d9b3ec"),
}
WRITTEN = "sha256:57ca8eda4d7c417f6560587dfa55891fb49ceffb1f7929fb31fd2eade07db5ed"
STORED_JPEGS = "21de814cff8a9131555e0e837fb664a2"
BATCHES = "2ba24de10d5a31461b7cf8e6646a1147"


def digest(*arrays: Any) -> str:
    """Return a digest of arrays, their types and shapes."""
    found = hashlib.blake2b(digest_size=16)
    for array in map(np.asarray, arrays):
        found.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()


def files() -> list[Path]:
    """Return the image files whose pixels are known."""
    return sorted(path for path in FILES.iterdir() if path.suffix != ".py" and path.is_file())


def convert(name: str, folder: Path) -> Path:
    """Convert the files as DATASETS says, inside an empty folder."""
    left_out, options, _ = DATASETS[name]
    (folder / "photos").mkdir()
    for path in files():
        if not path.name.startswith("needs_") and path.name not in left_out:
            shutil.copy(path, folder / "photos")
    lmdbloader.convert(folder / "photos", folder / "out", alpha="white", workers=1, **options)
    return folder / "out"


def write_samples(out: Path) -> None:
    """Write a sample of each kind of field."""

    def samples() -> Iterator[dict[str, Any]]:
        for i in range(5):
            image = np.arange(i, i + 300 * 310, dtype=np.uint16).reshape(300, 310, 1)
            small = {"mask": image[:4, : i + 1, 0] / 7, "blob": bytes(range(i)), "extra": {"of": [i, None, "é"]}}
            yield {"image": image, "label": i - 2, "score": i / 3, "caption": "grün" * i, **small}

    lmdbloader.write(samples(), out, codec="lz4")


@pytest.fixture
def converted(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that converts the files as DATASETS says."""

    return lambda name: convert(name, tmp_path)


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in files()} == set(PIXELS)


@pytest.mark.parametrize("name", PIXELS)
def test_a_file_has_the_same_pixels_as_ever(name: str) -> None:
    for needed in ("libtiff", "webp"):
        if name.startswith(f"needs_{needed}") and not features.check(needed):
            pytest.skip(f"this Pillow was built without {needed}")
    pixels = decode_image((FILES / name).read_bytes(), DecodePolicy(alpha="white"), name=name)
    assert digest(pixels) == PIXELS[name]


@pytest.mark.parametrize("name", DATASETS)
def test_a_conversion_makes_the_same_dataset_as_ever(name: str, converted: Callable[[str], Path]) -> None:
    if name == "pairs of Pillow" and describe_libraries().pillow == "pillow-simd":
        pytest.skip("pillow-simd resizes with other roundings; docs/installation.md says so")
    out = converted(name)
    assert read_manifest(out).content_digest == DATASETS[name][-1]
    found = lmdbloader.verify(out)
    assert (found.problems, found.damaged) == ((), ())


def test_the_same_samples_make_the_same_dataset_as_ever(tmp_path: Path) -> None:
    write_samples(tmp_path / "out")
    assert read_manifest(tmp_path / "out").content_digest == WRITTEN


def test_stored_jpegs_have_the_same_pixels_as_ever(converted: Callable[[str], Path]) -> None:
    dataset = lmdbloader.LMDBDataset(converted("JPEG"))
    assert digest(*(sample.image for sample in dataset)) == STORED_JPEGS


def test_batches_have_the_same_pixels_as_ever(converted: Callable[[str], Path]) -> None:
    dataset = lmdbloader.LMDBDataset(converted("patches"))
    loader = lmdbloader.Loader(
        dataset, 16, shuffle=True, seed=3, transforms=[RandomDihedral(), ToDtype(torch.float32, scale=True)]
    )
    assert digest(*(image for batch in loader for image in (batch.lr, batch.hr))) == BATCHES


def main() -> None:
    """Print the content digests of the datasets as they are now."""
    for name in DATASETS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {read_manifest(convert(name, Path(folder))).content_digest}")
    with tempfile.TemporaryDirectory() as folder:
        write_samples(Path(folder) / "out")
        print(f"WRITTEN: {read_manifest(Path(folder) / 'out').content_digest}")


if __name__ == "__main__":
    main()
