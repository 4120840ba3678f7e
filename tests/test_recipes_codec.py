"""The recipe for a codec in CONTRIBUTING, followed with a toy that XORs bytes: no other file of the package changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.format import codecs
from lmdbloader.format.codecs import CodecEntry
from lmdbloader.kernels import codec_numbers
from lmdbloader.kernels.runtime.compile import kernel

MASK = 0x5A


@kernel
def xor(source: Any, out: Any) -> None:
    """Write source ^ MASK into out, both (n,) uint8."""
    for i in range(source.shape[0]):
        out[i] = source[i] ^ MASK


def encode(
    data: np.ndarray, nbytes: np.ndarray, shapes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    out = np.empty_like(data)
    xor(data, out)
    return out, nbytes, np.full(len(nbytes), XOR.number, np.uint8)


def decode(data: bytes, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    out = np.empty(len(data), np.uint8)
    xor(np.frombuffer(data, np.uint8), out)
    return out.view(dtype).reshape(shape)


XOR = CodecEntry(200, "xor", encode=encode, decode=decode, max_ratio=1)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "TABLE", {**codecs.TABLE, XOR.number: XOR})


SAMPLES: list[dict[str, Any]] = [
    {
        "image": np.arange(h * w * 3, dtype=np.uint8).reshape(h, w, 3),
        "mask": np.arange(h * w, dtype=np.int32).reshape(h, w),
        "note": b"abc" * i,
        "facts": {"i": [i, None]},
    }
    for i, (h, w) in enumerate([(5, 7), (6, 4), (300, 310)])
]


def test_its_kernel_alone_encodes_and_decodes() -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    encoded, nbytes, numbers = encode(data, np.array([600, 400]), None)
    np.testing.assert_array_equal(encoded, data ^ MASK)
    assert (nbytes.tolist(), numbers.tolist()) == ([600, 400], [200, 200])
    np.testing.assert_array_equal(decode(encoded.tobytes(), (10, 50), np.uint16), data.view(np.uint16).reshape(10, 50))


@pytest.mark.usefixtures("registered")
def test_a_dataset_of_it_is_written_verified_read_and_shown(tmp_path: Path) -> None:
    lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    assert lmdbloader.verify(tmp_path / "xor").is_sound
    assert {f.name: f.codecs for f in lmdbloader.info(tmp_path / "xor").fields} == {
        name: {"xor": 3} for name in ("image", "mask", "note", "facts")
    }
    dataset = lmdbloader.LMDBDataset(tmp_path / "xor")
    for sample, expected in zip(dataset, SAMPLES, strict=True):
        np.testing.assert_array_equal(sample.image.numpy(), expected["image"].transpose(2, 0, 1))
        np.testing.assert_array_equal(sample.mask.numpy(), expected["mask"])
        assert (sample.note, sample.facts) == (expected["note"], expected["facts"])
    np.testing.assert_array_equal(
        dataset.crop(2, top=3, left=4, height=5, width=6).numpy(), SAMPLES[2]["image"][3:8, 4:10].transpose(2, 0, 1)
    )


@pytest.mark.usefixtures("registered")
def test_batches_of_images_of_one_size_are_read_and_transformed(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3)).astype(np.uint8)
    lmdbloader.write([{"image": image} for image in images], tmp_path / "xor", codec="xor")
    dataset = lmdbloader.LMDBDataset(tmp_path / "xor")
    expected = images.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(torch.stack([sample.image for sample in dataset[[4, 1]]]).numpy(), expected[[4, 1]])
    (batch,) = lmdbloader.Loader(dataset, 6, order="sequential", transforms=[lmdbloader.transforms.CenterCrop(4)])
    np.testing.assert_array_equal(batch.image.numpy(), expected[:, :, 2:6, 2:6])


def test_without_its_row_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="codec='xor': expected one of auto, raw, lz4, delta"):
        lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    with monkeypatch.context() as patch:
        patch.setattr(codecs, "TABLE", {**codecs.TABLE, XOR.number: XOR})
        lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    with pytest.raises(FormatError, match="codec 'xor'"):
        lmdbloader.LMDBDataset(tmp_path / "xor")


def test_every_row_has_the_number_and_name_that_kernels_know() -> None:
    assert [entry.name for entry in codecs.TABLE.values()] == list(codec_numbers.CODEC_NAMES)
    numbers = {name: value for name, value in vars(codec_numbers).items() if re.fullmatch("CODEC_[A-Z0-9_]+", name)}
    assert numbers.pop("CODEC_NAMES") == codec_numbers.CODEC_NAMES
    assert {name.removeprefix("CODEC_").lower().replace("_", " "): number for name, number in numbers.items()} == {
        entry.name: number for number, entry in codecs.TABLE.items()
    }
    assert all(entry.number == number for number, entry in codecs.TABLE.items())


def test_a_conversion_stores_pixels_with_it(registered: None, photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "db", codec="xor", workers=1)
    (field,) = lmdbloader.info(tmp_path / "db").fields
    assert (field.codec, set(field.codecs or {})) == ("xor", {"xor"})
    lmdbloader.convert(photos, tmp_path / "raw", codec="raw", workers=1)
    mine, raw = (lmdbloader.LMDBDataset(tmp_path / name) for name in ("db", "raw"))
    for i in range(len(raw)):
        torch.testing.assert_close(mine[i].image, raw[i].image, rtol=0, atol=0)
