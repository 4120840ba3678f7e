"""`lmdbloader.convert`: the content of datasets, refused inputs and options, and datasets that are there already."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from damage import flip_payload
from PIL import Image

import lmdbloader
from lmdbloader.conversion.parts import convert_part, join, plan_parts
from lmdbloader.errors import CorruptError, DestinationError, ImageError, OptionError, SourceError
from lmdbloader.images.downscale import crop_to_multiple, downscale
from lmdbloader.superres import bicubic, psnr, score
from lmdbloader.superres.evaluation import pair_scale
from lmdbloader.transforms import RandomCrop, RandomDihedral

Pixels = npt.NDArray[Any]


def noise(height: int, width: int, channels: int = 3, *, bits: int = 8, seed: int = 0) -> Pixels:
    """Pixels (height, width, channels) that lz4 cannot shrink and that agree with no other ones."""
    shape = (height, width, channels)
    return np.random.default_rng(seed).integers(0, 1 << bits, shape).astype(np.uint8 if bits == 8 else np.uint16)


def save(path: Path, pixels: Pixels) -> Pixels:
    path.parent.mkdir(parents=True, exist_ok=True)
    if pixels.dtype == np.uint16 and pixels.shape[2] == 3:
        path.write_bytes(b"P6 %d %d 65535\n" % pixels.shape[1::-1] + pixels.astype(">u2").tobytes())
    else:
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)
    return pixels


def convert(src: Path | None, out: Path, **options: Any) -> lmdbloader.conversion.Report:
    return lmdbloader.convert(src, out, **{"workers": 1, **options})


def stored(path: Path) -> list[dict[str, Any]]:
    """All samples; images as arrays (H, W, C)."""
    found = []
    for sample in lmdbloader.LMDBDataset(path):
        values = sample._asdict()
        found.append({k: np.moveaxis(v.numpy(), 0, 2) if hasattr(v, "numpy") else v for k, v in values.items()})
    return found


def table(path: Path, *names: str) -> list[tuple[Any, ...]]:
    columns = lmdbloader.LMDBDataset(path).table
    return list(zip(*[columns[name].to_pylist() for name in names], strict=True))


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return tmp_path / "src"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def assert_nothing_left(out: Path) -> None:
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(out.name)] == []


# --- content ---


def test_whole_images_of_any_size_depth_and_number_of_channels(src: Path, out: Path) -> None:
    images = {
        "a.png": noise(5, 7),
        "b/grey.png": noise(33, 2, 1),
        "b/large.png": noise(300, 310, seed=3),
        "c.ppm": noise(4, 6, bits=16),
        "d.png": noise(9, 9, 1, bits=16),
        "e.png": noise(1, 1),
    }
    for name, pixels in images.items():
        save(src / name, pixels)
    report = convert(src, out)
    assert (report.layout, report.num_sources, report.num_samples) == ("images", 6, 6)
    assert table(out, "source", "top", "left") == [(name, 0, 0) for name in images]
    for found, expected in zip(stored(out), images.values(), strict=True):
        assert found.keys() == {"image"}
        assert found["image"].dtype == expected.dtype
        np.testing.assert_array_equal(found["image"], expected)
    assert lmdbloader.verify(out).is_sound
    assert sorted(p.name for p in out.iterdir()) == ["data.mdb", "index.arrow", "manifest.json", "sources.json"]


def test_patches_go_from_the_top_left_by_rows_then_columns(src: Path, out: Path) -> None:
    images = [save(src / "a.png", noise(20, 29, seed=1)), save(src / "b" / "a.png", noise(17, 12, 1, seed=2))]
    report = convert(src, out, patch_size=8, stride=5)
    expected = [
        (name, top, left)
        for name, tops, lefts in (("a.png", (0, 5, 10), (0, 5, 10, 15, 20)), ("b/a.png", (0, 5), (0,)))
        for top in tops
        for left in lefts
    ]
    assert table(out, "source", "top", "left") == expected
    assert report.num_samples == 17
    by_name = dict(zip(("a.png", "b/a.png"), images, strict=True))
    for found, (name, top, left) in zip(stored(out), expected, strict=True):
        np.testing.assert_array_equal(found["image"], by_name[name][top : top + 8, left : left + 8])


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("bicubic", ["matlab", "pillow"])
def test_lr_is_made_from_the_whole_cropped_image_before_cutting(src: Path, out: Path, scale: int, bicubic: str) -> None:
    image = save(src / "a.png", noise(49, 62))
    convert(src, out, scale=scale, patch_size=12, stride=12, bicubic=bicubic)
    whole = image[: 49 - 49 % scale, : 62 - 62 % scale]
    low = downscale(whole, scale, method=bicubic)  # type: ignore[arg-type]
    side = 12 // scale
    samples, places = stored(out), table(out, "top", "left")
    assert len(samples) == (whole.shape[0] // 12) * (whole.shape[1] // 12)
    for sample, (top, left) in zip(samples, places, strict=True):
        assert list(sample) == ["lr", "hr"]
        np.testing.assert_array_equal(sample["hr"], whole[top : top + 12, left : left + 12])
        at = (top // scale, left // scale)
        np.testing.assert_array_equal(sample["lr"], low[at[0] : at[0] + side, at[1] : at[1] + side])
    # A patch that was downscaled by itself would differ at its borders, so the comparison above can fail.
    assert (downscale(np.ascontiguousarray(whole[12:24, 12:24]), scale, method=bicubic) != samples[-1]["lr"]).any()  # type: ignore[arg-type]


def test_whole_images_with_a_scale_are_cropped_at_the_right_and_bottom(src: Path, out: Path) -> None:
    image = save(src / "a.ppm", noise(11, 14, bits=16))
    convert(src, out, scale=3)
    (sample,) = stored(out)
    np.testing.assert_array_equal(sample["hr"], image[:9, :12])
    np.testing.assert_array_equal(sample["lr"], downscale(np.ascontiguousarray(image[:9, :12]), 3))


@pytest.mark.parametrize("patch_size", [None, 12])
def test_several_scales_are_those_made_alone(src: Path, out: Path, patch_size: int | None) -> None:
    for number, size in enumerate([(50, 67), (36, 48), (25, 24)]):
        save(src / f"{number}.png", noise(*size, seed=number)[: size[0] // 12 * 12, : size[1] // 12 * 12])
    convert(src, out, scale=[4, 2, 3], patch_size=patch_size)
    samples = stored(out)
    assert list(samples[0]) == ["lr2", "lr3", "lr4", "hr"]
    for scale in (2, 3, 4):
        alone = out.parent / f"x{scale}.lmdb"
        convert(src, alone, scale=scale, patch_size=patch_size)
        assert table(alone, "source", "top", "left") == table(out, "source", "top", "left")
        for found, expected in zip(samples, stored(alone), strict=True):
            np.testing.assert_array_equal(found[f"lr{scale}"], expected["lr"])
            np.testing.assert_array_equal(found["hr"], expected["hr"])


def test_with_several_scales_hr_is_cropped_to_a_multiple_of_all(src: Path, out: Path) -> None:
    image = save(src / "a.png", noise(50, 67))
    convert(src, out, scale="2,3,4")
    (sample,) = stored(out)
    np.testing.assert_array_equal(sample["hr"], image[:48, :60])
    np.testing.assert_array_equal(sample["lr4"], downscale(np.ascontiguousarray(image[:48, :60]), 4))
    lines: list[str] = []
    convert(src, out, scale=(2, 3, 4), log=lines.append)
    assert not lines  # made already
    with pytest.raises(DestinationError, match="made from other inputs or with other options"):
        convert(src, out, scale=[2, 4])
    save(src / "b.png", noise(24, 11))
    with pytest.raises(ImageError, match=r"^b\.png: 11x24 pixels: expected at least 12, the least common multiple"):
        convert(src, out, scale=[2, 3, 4], overwrite=True)
    with pytest.raises(OptionError, match=r"patch_size=16: expected multiples of 12, the least common multiple"):
        convert(src, out.parent / "other.lmdb", scale=[2, 3, 4], patch_size=16)


def test_one_scale_is_read_without_the_bytes_of_others(src: Path, out: Path) -> None:
    save(src / "a.png", noise(48, 60))
    convert(src, out, scale=[2, 4], codec="raw")
    expected = [image.numpy() for image in lmdbloader.LMDBDataset(out, fields=["lr4", "hr"])[0]]
    flip_payload(out, "lr2", 0)
    for found in (
        lmdbloader.LMDBDataset(out, fields=["lr4", "hr"])[0],
        *lmdbloader.Loader(lmdbloader.LMDBDataset(out, fields=["lr4", "hr"], io="pread"), 1, shuffle=False),
    ):
        for image, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(image.reshape(wanted.shape), wanted)
    with pytest.raises(CorruptError, match="lr2"):
        lmdbloader.LMDBDataset(out)[0]


def test_an_interrupted_conversion_of_several_scales_continues(src: Path, out: Path) -> None:
    for number in range(4):
        save(src / f"{number}.png", noise(24, 36, seed=number))
    options: dict[str, Any] = {"scale": [2, 3, 4], "parts": 2, "patch_size": 12}
    plan_parts(src, out, **options)
    convert_part(out, 1)
    convert(src, out, **options)
    whole = out.parent / "whole.lmdb"
    convert(src, whole, **options)
    found, expected = (lmdbloader.LMDBDataset(path).reader.manifest for path in (out, whole))
    assert found.content_digest == expected.content_digest
    assert len(found.parts) == 2


def test_classes_have_labels_and_names(src: Path, out: Path) -> None:
    for number, name in enumerate(["dog/1.png", "cat/1.png", "cat/2.png"]):
        save(src / name, noise(4, 4, seed=number))
    (src / "empty").mkdir()
    report = convert(src, out)
    assert report.layout == "classes"
    assert report.ignored == (("empty/", "a class folder without images"),)
    dataset = lmdbloader.LMDBDataset(out)
    assert list(dataset.fields) == ["image", "label"]
    assert dataset.classes == ("cat", "dog")
    assert [sample.label for sample in dataset] == [0, 0, 1]
    np.testing.assert_array_equal(stored(out)[2]["image"], noise(4, 4, seed=0))


def test_more_sources_than_an_index_can_number_are_refused_before_anything_is_written(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        save(src / f"{number}.png", noise(4, 4, seed=number))
    monkeypatch.setattr("lmdbloader.conversion.plan.MAX_NAMES", 7)
    for make in (lambda: convert(src, out), lambda: lmdbloader.estimate(src)):
        with pytest.raises(OptionError, match=r"8 sources, and one dataset holds at most 7\. Make several datasets"):
            make()
    assert os.listdir(out.parent) == [src.name]
    assert convert(src, out, subset=7).num_samples == 7


def test_more_names_of_classes_than_a_manifest_holds_are_refused_before_anything_is_written(
    src: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        save(src / f"{number}{'x' * 200}" / "1.png", noise(4, 4, seed=number))
    for module in ("store.opening", "format.manifest"):
        monkeypatch.setattr(f"lmdbloader.{module}.MAX_MANIFEST_NBYTES", 1600)
    for make in (lambda: convert(src, out), lambda: lmdbloader.estimate(src)):
        with pytest.raises(OptionError, match=r"the names of 8 classes, more than a reader accepts: 1,600 bytes"):
            make()
    assert os.listdir(out.parent) == [src.name]


def test_file_names_of_any_bytes(src: Path, out: Path) -> None:
    src.mkdir()
    save(src / "plain.png", noise(4, 4, seed=1))
    shutil.copy(src / "plain.png", os.path.join(os.fsencode(src), b"\xff\n\t.png"))
    report = convert(src, out)
    assert report.num_samples == 2
    assert table(out, "source") == [("plain.png",), ("\\xff\n\t.png",)]


def test_raw_lz4_and_auto(src: Path, tmp_path: Path) -> None:
    save(src / "flat.png", np.full((64, 64, 3), 7, np.uint8))
    raw, lz4, auto = (convert(src, tmp_path / codec, codec=codec) for codec in ("raw", "lz4", "auto"))
    assert raw.codecs == {"image": "raw"} and raw.sizes["payload_nbytes"] == 64 * 64 * 3
    assert lz4.codecs == auto.codecs == {"image": "lz4"} and lz4.sizes["payload_nbytes"] < 200
    save(src / "flat.png", noise(64, 64))
    assert convert(src, tmp_path / "noise", codec="auto").codecs == {"image": "raw"}


def test_the_map_grows_if_the_sample_of_inputs_misled(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.store.writing.part.TRANSACTION_NBYTES", 2**19)
    flat = np.zeros((1000, 1000, 3), np.uint8)
    for name in ("a.png", "b.png"):
        save(src / name, flat)
    images = [save(src / f"c{i}.pgm", noise(700, 1000, 1, seed=i)) for i in range(4)]
    monkeypatch.setattr("lmdbloader.conversion.plan.map_nbytes_of", lambda nbytes, most: 2**20)
    report = convert(src, out, codec="lz4")
    assert report.sizes["data_nbytes"] > 2 * 2**20
    for found, expected in zip(stored(out)[2:], images, strict=True):
        np.testing.assert_array_equal(found["image"], expected)
    assert lmdbloader.verify(out).is_sound


# --- pairs ---


def make_pairs(
    folder: Path, count: int = 3, scale: int = 2, height: int = 24, width: int = 36
) -> list[tuple[Any, Any]]:
    """DIV2K-like folders; the LR half is the HR one downscaled, so that they agree."""
    pairs = []
    for i in range(count):
        hr = save(folder / "DIV2K_train_HR" / f"000{i}.png", noise(height, width, seed=i))
        low = folder / "DIV2K_train_LR_bicubic" / f"X{scale}" / f"000{i}x{scale}.png"
        pairs.append((save(low, downscale(hr, scale)), hr))
    return pairs


def test_div2k_pairs_whole(src: Path, out: Path) -> None:
    pairs = make_pairs(src)
    report = convert(src, out)
    assert (report.layout, report.num_sources, report.num_samples) == ("pairs", 3, 3)
    for found, (lr, hr) in zip(stored(out), pairs, strict=True):
        np.testing.assert_array_equal(found["lr"], lr)
        np.testing.assert_array_equal(found["hr"], hr)
    assert table(out, "source") == [("0000.png",), ("0001.png",), ("0002.png",)]


def test_patches_of_pairs_are_aligned(src: Path, out: Path) -> None:
    pairs = make_pairs(src, scale=3)
    convert(None, out, hr=src / "DIV2K_train_HR", lr=src / "DIV2K_train_LR_bicubic" / "X3", patch_size=12, stride=6)
    places = table(out, "source", "top", "left")
    assert len(places) == 3 * 3 * 5
    for found, (name, top, left) in zip(stored(out), places, strict=True):
        lr, hr = pairs[int(Path(name).stem)]
        np.testing.assert_array_equal(found["hr"], hr[top : top + 12, left : left + 12])
        np.testing.assert_array_equal(found["lr"], lr[top // 3 : top // 3 + 4, left // 3 : left // 3 + 4])


def test_given_lr_images_are_stored_not_made(src: Path, out: Path) -> None:
    ((lr, _),) = make_pairs(src, 1)
    other = save(src / "DIV2K_train_LR_bicubic" / "X2" / "0000x2.png", lr ^ 1)
    convert(src, out)
    np.testing.assert_array_equal(stored(out)[0]["lr"], other)


def test_a_misaligned_pair_is_refused_and_named(src: Path, out: Path) -> None:
    pairs = make_pairs(src)
    shifted = np.roll(pairs[1][0], 1, axis=1)
    save(src / "DIV2K_train_LR_bicubic" / "X2" / "0001x2.png", shifted)
    with pytest.raises(ImageError, match=r"^0001\.png: the HR image downscaled by 2 .* agree to only \d+\.\d dB"):
        convert(src, out)
    assert_nothing_left(out)
    assert convert(src, out, min_pair_psnr=0).num_samples == 3


def make_noisy(folder: Path, count: int = 5) -> list[tuple[Any, Any]]:
    """Pairs of one size: clean/ and noisy/."""
    pairs = []
    for i in range(count):
        blocks = np.kron(noise(6, 9, seed=i), np.ones((4, 4, 1), np.uint8))
        hr = save(folder / "clean" / f"{i}.png", blocks)
        pairs.append((save(folder / "noisy" / f"{i}.png", blocks // 2 + noise(24, 36, seed=9 + i) // 2), hr))
    return pairs


def test_pairs_of_one_size(src: Path, out: Path) -> None:
    pairs = make_noisy(src)
    halves: dict[str, Any] = {"hr": src / "clean", "lr": src / "noisy"}
    convert(None, out, **halves)
    for found, (lr, hr) in zip(stored(out), pairs, strict=True):
        np.testing.assert_array_equal(found["lr"], lr)
        np.testing.assert_array_equal(found["hr"], hr)
    assert pair_scale(lmdbloader.LMDBDataset(out)) == 1
    scores = score(lambda lr: bicubic(lr, 1), lmdbloader.LMDBDataset(out), scale=1)
    assert scores.psnrs == tuple(psnr(lr, hr, scale=1) for lr, hr in lmdbloader.LMDBDataset(out))
    convert(src, out.parent / "detected", layout="pairs")
    assert [*map(repr, stored(out.parent / "detected"))] == [*map(repr, stored(out))]
    planned = out.parent / "planned"
    plan_parts(None, planned, parts=2, **halves)
    for part in range(2):
        convert_part(planned, part)
    join(planned)
    assert stored(planned)[4]["lr"].tolist() == pairs[4][0].tolist()
    patches = out.parent / "patches"
    convert(None, patches, patch_size=11, stride=5, **halves)
    places = table(patches, "source", "top", "left")
    assert len(places) == lmdbloader.estimate(None, patch_size=11, stride=5, **halves).num_samples.value == 5 * 3 * 6
    for found, (name, top, left) in zip(stored(patches), places, strict=True):
        inside = np.s_[top : top + 11, left : left + 11]
        for half, image in zip(("lr", "hr"), pairs[int(Path(name).stem)], strict=True):
            np.testing.assert_array_equal(found[half], image[inside])


def test_crops_and_flips_of_pairs_of_one_size_are_the_same_in_both(src: Path, out: Path) -> None:
    for i in range(4):
        hr = save(src / "sharp" / "clip" / f"{i}.png", noise(24, 36, seed=i) // 2)
        save(src / "blur" / "clip" / f"{i}.png", hr + np.uint8(100))
    convert(None, out, hr=src / "sharp", lr=src / "blur", layout="clips")
    dataset, steps = lmdbloader.LMDBDataset(out), [RandomCrop(9), RandomDihedral()]
    for source in (dataset, lmdbloader.Clips(dataset, 2)):
        for batch in lmdbloader.Loader(source, 2, shuffle=True, repeat=4, transforms=steps):
            assert (batch.lr == batch.hr + 100).all()


def test_halves_of_one_size_that_are_mistaken(src: Path, out: Path) -> None:
    pairs, clean, noisy = make_noisy(src), src / "clean", src / "noisy"
    shutil.copytree(clean, src / "copy")
    for i in range(5):
        save(src / "moved" / f"{i}.png", pairs[i - 1][0])
    (src / "link").symlink_to(clean)
    options: dict[str, Any]
    for options, kind, problem in (
        ({"hr": clean, "lr": clean}, SourceError, "clean: is given as hr and lr"),
        ({"hr": clean, "lr": src / "link"}, SourceError, "clean: is given as hr and lr"),
        ({"hr": clean, "lr": src / "copy"}, ImageError, r"^0\.png: its HR and LR images are the same"),
        ({"hr": noisy, "lr": clean}, SourceError, r"probably swapped: .* Write hr='.*clean' and lr='.*noisy'"),
        ({"hr": clean, "lr": src / "moved"}, SourceError, r"different pictures, .*compared \(5 of 5\)"),
        ({"hr": clean, "lr": noisy, "scale": 2}, ImageError, "that is scale 1, expected 2"),
        ({"hr": clean, "lr": noisy, "scale": 1}, OptionError, "scale=1: expected a whole number from 2 to 8"),
        ({"hr": clean, "lr": noisy, "min_pair_psnr": 40}, ImageError, r"agree to only .* expected at least 40"),
    ):
        with pytest.raises(kind, match=problem):
            convert(None, out, **options)
        assert_nothing_left(out)
    convert(None, out, hr=clean, lr=src / "moved", min_pair_psnr=0)
    save(noisy / "1.png", downscale(pairs[1][1], 2))
    save(noisy / "2.png", pairs[2][1])
    with pytest.raises(ImageError, match=r"^1\.png: .* that is scale 2, expected 1"):
        convert(None, out, hr=clean, lr=noisy, overwrite=True)
    convert(None, out, hr=clean, lr=noisy, overwrite=True, on_error="skip")
    assert table(out, "source") == [("0.png",), ("3.png",), ("4.png",)]


def test_pairs_of_several_scales(src: Path, out: Path) -> None:
    made = {scale: make_pairs(src, scale=scale) for scale in (4, 2, 3)}
    folder = src / "DIV2K_train_LR_bicubic"
    halves: dict[str, Any] = {"hr": src / "DIV2K_train_HR", "lr": [folder / "X4", folder / "X2", folder / "X3"]}
    convert(None, out, **halves)
    for number, sample in enumerate(stored(out)):
        assert list(sample) == ["lr2", "lr3", "lr4", "hr"]
        for scale, pairs in made.items():
            np.testing.assert_array_equal(sample[f"lr{scale}"], pairs[number][0])
            np.testing.assert_array_equal(sample["hr"], pairs[number][1])
    assert lmdbloader.estimate(None, **halves, patch_size=12).num_samples.value == 3 * 2 * 3
    for options, problem in (
        ({"lr": [folder / "X4", folder / "X4"]}, "the scales 4, 4; expected different scales"),
        ({"lr": [folder / "X4", folder / "X2"], "scale": 4}, "the scales 4, 2; expected 4"),
        ({"lr": folder / "X4", "scale": [2, 4]}, "the scales 4; expected \\[2, 4\\]"),
    ):
        with pytest.raises(ImageError, match=rf"^0000\.png: its LR images have {problem}"):
            convert(None, out.parent / "other.lmdb", **{**halves, **options})
    save(folder / "X2" / "0002x2.png", np.roll(made[2][2][0], 1, axis=1))
    with pytest.raises(ImageError, match=r"^0002\.png: the HR image downscaled by 2 and the LR image agree to only"):
        convert(None, out, overwrite=True, **halves)
    (folder / "X3" / "0001x3.png").unlink()
    with pytest.raises(SourceError, match=r"no partner in .*X3 for 0001"):
        convert(None, out, overwrite=True, **halves)


def test_pairs_of_several_scales_are_cropped_to_a_multiple_of_all_if_asked(src: Path, out: Path) -> None:
    hr = save(src / "hr" / "a.png", noise(27, 38))
    lows = {
        s: save(src / f"x{s}" / "a.png", downscale(np.ascontiguousarray(crop_to_multiple(hr, s)), s)) for s in (2, 3)
    }
    halves: dict[str, Any] = {"hr": src / "hr", "lr": [src / "x2", src / "x3"]}
    with pytest.raises(ImageError, match="crop_to_scale=True crops it"):
        convert(None, out, **halves)
    convert(None, out, crop_to_scale=True, **halves)
    (sample,) = stored(out)
    np.testing.assert_array_equal(sample["hr"], hr[:24, :36])
    for scale, low in lows.items():
        np.testing.assert_array_equal(sample[f"lr{scale}"], low[: 24 // scale, : 36 // scale])


def test_sides_must_be_multiples_of_the_scale_that_pairs_turn_out_to_have(src: Path, out: Path) -> None:
    make_pairs(src, 2, scale=3)
    with pytest.raises(OptionError, match=r"patch_size=8: expected multiples of the scale 3"):
        convert(src, out, patch_size=8)
    assert_nothing_left(out)


# --- refusals ---


def damage(src: Path) -> dict[str, str]:
    """Make a folder of good and bad files; return the names of the bad ones and a part of each reason."""
    for i in range(3):
        save(src / f"good{i}.png", noise(20, 20, seed=i))
    whole = (src / "good0.png").read_bytes()
    (src / "cut.png").write_bytes(whole[:300])
    (src / "flipped.png").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    (src / "empty.png").write_bytes(b"")
    (src / "text.png").write_bytes(b"<html>not found</html>")
    save(src / "small.png", noise(20, 9))
    save(src / "alpha.png", noise(20, 20, 4))
    return {
        "alpha.png": "alpha channel",
        "cut.png": "",
        "empty.png": "the file is empty",
        "flipped.png": "",
        "small.png": "9x20 pixels are smaller than a patch of 10",
        "text.png": "not an image of a supported kind",
    }


def test_the_first_bad_file_in_order_is_the_one_named(src: Path, out: Path) -> None:
    damage(src)
    with pytest.raises(ImageError, match=r"^alpha\.png: "):
        convert(src, out, patch_size=10)


def test_skip_leaves_all_of_them_out_and_lists_them(src: Path, out: Path) -> None:
    bad = damage(src)
    report = convert(src, out, patch_size=10, on_error="skip")
    assert [name for name, _ in report.skipped] == sorted(bad)
    for name, reason in report.skipped:
        assert bad[name] in reason and name not in reason
    assert (report.num_sources, report.num_samples) == (9, 12)
    assert set(table(out, "source")) == {("good0.png",), ("good1.png",), ("good2.png",)}
    lines = (out / "skipped.tsv").read_text("utf-8").splitlines()
    assert lines == ["name\treason", *[f"{name}\t{reason}" for name, reason in report.skipped]]
    assert lmdbloader.verify(out).is_sound


def test_nothing_usable_is_an_error(src: Path, out: Path) -> None:
    src.mkdir()
    (src / "a.png").write_bytes(b"")
    (src / "b.png").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"none of the 2 inputs could be used; the first: a\.png: the file is empty"):
        convert(src, out, on_error="skip")
    assert_nothing_left(out)


def test_a_file_that_vanishes_after_the_listing_is_named(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(src / "a.png", noise(4, 4))
    monkeypatch.setattr(
        "lmdbloader.conversion.parts.try_out",
        lambda *a: (os.unlink(src / "a.png"), real(*a))[1],
    )
    from lmdbloader.conversion.plan import try_out as real

    with pytest.raises(DestinationError, match=r"gone since .*: a\.png"):
        convert(src, out)
    assert_nothing_left(out)


def test_images_smaller_than_the_scale(src: Path, out: Path) -> None:
    save(src / "a.png", noise(8, 8))
    save(src / "thin.png", noise(8, 2))
    with pytest.raises(ImageError, match=r"^thin\.png: 2x8 pixels are less than one pixel at scale 3"):
        convert(src, out, scale=3)
    assert convert(src, out, scale=3, on_error="skip").num_samples == 1


def test_sixteen_bits_cannot_be_scaled_by_pillow(src: Path, out: Path) -> None:
    save(src / "a.ppm", noise(8, 8, bits=16))
    with pytest.raises(ImageError, match=r"^a\.ppm: 3 channels of uint16 cannot be scaled by Pillow"):
        convert(src, out, scale=2, bicubic="pillow")
    with pytest.raises(OptionError, match="bicubic='pillow' has no effect without scale"):
        convert(src, out, bicubic="pillow")


def test_policies_reach_the_decoder(src: Path, out: Path, tmp_path: Path) -> None:
    pixels = noise(4, 4, 4)
    save(src / "a.png", pixels)
    convert(src, out, alpha="drop")
    np.testing.assert_array_equal(stored(out)[0]["image"], pixels[:, :, :3])
    with pytest.raises(ImageError, match=r"^a\.png: 4x4 is 16 pixels, more than the limit of 15"):
        convert(src, tmp_path / "other", alpha="drop", max_pixels=15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 4}, "stride without patch_size"),
        ({"patch_size": 9, "scale": 2}, "patch_size=9: expected multiples of the scale 2"),
        ({"patch_size": 0}, "patch_size=0: expected a whole number of at least 1"),
        ({"scale": 9}, "scale=9: expected a whole number from 2 to 8"),
        ({"on_error": "ignore"}, "on_error='ignore': expected stop or skip"),
        ({"min_pair_psnr": float("nan")}, "min_pair_psnr=nan: expected a finite number"),
    ],
)
def test_options_that_make_no_sense(src: Path, out: Path, options: dict[str, Any], message: str) -> None:
    save(src / "a.png", noise(16, 16))
    with pytest.raises(OptionError, match=message):
        convert(src, out, **options)
    assert_nothing_left(out)


def test_source_and_destination_inside_each_other(src: Path, tmp_path: Path) -> None:
    save(src / "deep" / "a.png", noise(4, 4))
    (tmp_path / "link").symlink_to(src)
    for target, where in (
        (src, "with other things in it"),
        (src / "out", f"is inside {src}"),
        (src / "deep" / "out", f"is inside {src}"),
        (tmp_path, "with other things in it"),
        (tmp_path / "link" / "out", f"is inside {src}"),
    ):
        with pytest.raises(DestinationError, match=re.escape(where)):
            convert(src, target)
    make_pairs(tmp_path / "p", 1)
    halves = {"hr": tmp_path / "p" / "DIV2K_train_HR", "lr": tmp_path / "p" / "DIV2K_train_LR_bicubic" / "X2"}
    with pytest.raises(DestinationError, match="is inside"):
        convert(None, halves["lr"] / "out", **halves)
    assert sorted(os.listdir(src)) == ["deep"] and os.listdir(src / "deep") == ["a.png"]


# --- a destination that is there already ---


def test_an_empty_folder_counts_as_absent(src: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(src / "a.png", noise(4, 4))
    out.mkdir()
    assert convert(src, out).num_samples == 1
    here = out.parent / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert lmdbloader.convert(src, ".", workers=1).num_samples == 1
    assert (here / "manifest.json").exists()


def test_other_folders_and_files_are_never_replaced(src: Path, out: Path) -> None:
    save(src / "a.png", noise(4, 4))
    out.mkdir()
    (out / "diary.txt").write_text("dear diary")
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match="a folder with other things in it, which is never replaced"):
            convert(src, out, overwrite=overwrite)
    assert (out / "diary.txt").read_text() == "dear diary"
    shutil.rmtree(out)
    out.write_text("a file")
    with pytest.raises(DestinationError, match="exists and is not a folder"):
        convert(src, out, overwrite=True)
    assert out.read_text() == "a file"


def fingerprint(path: Path) -> dict[str, tuple[int, bytes]]:
    return {p.name: (p.stat().st_ino, p.read_bytes()) for p in path.iterdir()}


def test_the_same_again_does_nothing(src: Path, out: Path) -> None:
    make_pairs(src, 2)
    first = convert(src, out)
    before = fingerprint(out)
    again = convert(src, out, workers=2)
    assert again.was_finished and not first.was_finished
    assert (again.num_samples, again.codecs, again.sizes) == (first.num_samples, first.codecs, first.sizes)
    assert fingerprint(out) == before


def test_another_option_or_another_file_is_refused_until_overwrite(src: Path, out: Path) -> None:
    save(src / "a.png", noise(8, 8))
    convert(src, out)
    before = fingerprint(out)
    lines: list[str] = []
    with pytest.raises(DestinationError, match=r"made from other inputs or with other options.*overwrite=True"):
        convert(src, out, patch_size=4, log=lines.append)
    assert lines == []  # refused before any work
    for target, options in ((src / "b.png", {}), (src / "a.png", {"codec": "raw"})):
        save(target, noise(8, 8))
        with pytest.raises(DestinationError, match="other inputs or with other options"):
            convert(src, out, **options)
    assert fingerprint(out) == before
    report = convert(src, out, patch_size=4, overwrite=True)
    assert report.num_samples == 8 and len(lmdbloader.LMDBDataset(out)) == 8
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(out.name)] == [out.name]


def test_names_of_datasets_in_the_making_are_refused(src: Path, tmp_path: Path) -> None:
    save(src / "a.png", noise(4, 4))
    for make in (lambda out: convert(src, out), lambda out: lmdbloader.write([{"a": 1}], out)):
        with pytest.raises(DestinationError, match=r"x\.partial: unfinished datasets .*\. Choose another name"):
            make(tmp_path / "x.partial")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_failed_overwrite_leaves_the_old_dataset(src: Path, out: Path) -> None:
    save(src / "a.png", noise(8, 8))
    convert(src, out)
    before = fingerprint(out)
    (src / "b.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"^b\.png: the file is empty"):
        convert(src, out, overwrite=True)
    assert fingerprint(out) == before
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(out.name)] == [out.name]


def test_overwrite_converts_again_even_the_same_inputs(src: Path, out: Path) -> None:
    save(src / "a.png", noise(8, 8))
    convert(src, out)
    before = fingerprint(out)
    assert not convert(src, out, overwrite=True).was_finished
    after = fingerprint(out)
    assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}
    assert all(after[name][0] != inode for name, (inode, _) in before.items())


def test_skipped_files_are_part_of_the_inputs(src: Path, out: Path) -> None:
    save(src / "a.png", noise(4, 4))
    (src / "b.png").write_bytes(b"bad")
    convert(src, out, on_error="skip")
    (src / "b.png").touch()
    assert convert(src, out, on_error="skip").was_finished
    (src / "b.png").write_bytes(b"BAD")
    with pytest.raises(DestinationError, match="other inputs"):
        convert(src, out, on_error="skip")


def test_a_damaged_dataset_is_not_made_already(src: Path, out: Path) -> None:
    save(src / "a.png", noise(8, 8))
    convert(src, out)
    data = (out / "data.mdb").read_bytes()
    (out / "data.mdb").write_bytes(data[:-4096])
    with pytest.raises(DestinationError, match=r"same options, but is damaged\. Make it again with overwrite=True"):
        convert(src, out)
    convert(src, out, overwrite=True)
    assert (out / "data.mdb").read_bytes() == data


def test_the_paths_of_folders_and_the_time_leave_no_trace(src: Path, out: Path, tmp_path: Path) -> None:
    make_pairs(src, 2)
    convert(src, out, patch_size=8)
    moved = tmp_path / "elsewhere" / "photos"
    shutil.copytree(src, moved)
    convert(moved, moved.parent / "other", patch_size=8, workers=1)
    for name in ("data.mdb", "index.arrow", "manifest.json"):
        assert (out / name).read_bytes() == (moved.parent / "other" / name).read_bytes()
        assert str(tmp_path).encode() not in (out / name).read_bytes()
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert manifest["made_by"]["options"]["patch_size"] == 8
    assert manifest["made_by"]["layout"] == "pairs"
