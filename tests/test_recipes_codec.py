"""The recipe for a codec in CONTRIBUTING, followed with a toy that XORs bytes: no other file of the package changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader.errors import CorruptError, FormatError, OptionError
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


def encode(data: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    encoded, nbytes, numbers = encode(data, np.array([600, 400]))
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


@pytest.mark.usefixtures("registered")
def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    data = (tmp_path / "xor" / "data.mdb").read_bytes()
    at = data.index(bytes(byte ^ MASK for byte in b"abcabcabc"))
    (tmp_path / "xor" / "data.mdb").write_bytes(data[:at] + b"?" + data[at + 1 :])
    with pytest.raises(CorruptError, match="checksum does not match"):
        lmdbloader.LMDBDataset(tmp_path / "xor")[1]


def test_without_its_row_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="codec='xor': expected one of auto, raw, lz4"):
        lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    with monkeypatch.context() as patch:
        patch.setattr(codecs, "TABLE", {**codecs.TABLE, XOR.number: XOR})
        lmdbloader.write(SAMPLES, tmp_path / "xor", codec="xor")
    assert json.loads((tmp_path / "xor" / "manifest.json").read_bytes())["requires"] == ["codec:xor"]
    for call in (lmdbloader.LMDBDataset, lmdbloader.verify, lmdbloader.repair):
        with pytest.raises(FormatError, match=r"needs 'codec:xor', which this release does not know; .* Upgrade"):
            call(tmp_path / "xor")


def test_one_payload_is_enough_to_require_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a codec that codec= does not name, as those of image files: a field says nothing of it."""

    def some(data: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return data, nbytes, np.array([0] * (len(nbytes) - 1) + [XOR.number], np.uint8)

    plain = codecs.TABLE[0]
    with monkeypatch.context() as patch:
        table = {**codecs.TABLE, XOR.number: dataclasses.replace(XOR, encode=None)}
        patch.setattr(codecs, "TABLE", {**table, 0: dataclasses.replace(plain, encode=some)})
        samples = ({"note": b"abc"} for _ in range(5))
        lmdbloader.write(samples, tmp_path / "d", codec="raw")
        assert lmdbloader.LMDBDataset(tmp_path / "d")[0].note == b"abc"
        assert bytes(byte ^ MASK for byte in lmdbloader.LMDBDataset(tmp_path / "d")[4].note) == b"abc"
        before = (tmp_path / "d" / "manifest.json").read_bytes()
        assert json.loads(before)["requires"] == ["codec:xor"]
        (tmp_path / "d" / "manifest.json").unlink()
        lmdbloader.repair(tmp_path / "d")
        assert (tmp_path / "d" / "manifest.json").read_bytes() == before
        assert lmdbloader.verify(tmp_path / "d").is_sound
    with pytest.raises(FormatError, match="needs 'codec:xor'"):
        lmdbloader.LMDBDataset(tmp_path / "d")


def test_every_row_has_the_number_and_name_that_kernels_know() -> None:
    assert [entry.name for entry in codecs.TABLE.values()] == list(codec_numbers.CODEC_NAMES)
    for number, entry in codecs.TABLE.items():
        assert entry.number == number == getattr(codec_numbers, f"CODEC_{entry.name.upper()}")


def test_a_conversion_stores_pixels_with_it(registered: None, photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "db", codec="xor", workers=1)
    (field,) = lmdbloader.info(tmp_path / "db").fields
    assert (field.codec, set(field.codecs or {})) == ("xor", {"xor"})
    lmdbloader.convert(photos, tmp_path / "raw", codec="raw", workers=1)
    mine, raw = (lmdbloader.LMDBDataset(tmp_path / name) for name in ("db", "raw"))
    for i in range(len(raw)):
        torch.testing.assert_close(mine[i].image, raw[i].image, rtol=0, atol=0)
