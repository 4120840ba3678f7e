"""`convert --layout clips`: frames in folders or in video files become samples that windows are made of."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moving_photos import HEIGHT, WIDTH, frame_of, save_clips
from PIL import Image
from test_conversion_sources_lmdbs import save_lmdb

import lmdbloader
from lmdbloader import Clips, LMDBDataset
from lmdbloader.errors import ImageError, OptionError, SourceError
from lmdbloader.images.downscale import downscale

REDS = {"000": range(11), "001": range(11), "002": range(11), "010": range(11)}


@pytest.fixture(scope="module")
def reds(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clips(photos, tmp_path_factory.mktemp("reds") / "train_sharp", REDS)


def frames(path: Any) -> list[tuple[str, int]]:
    table = LMDBDataset(path).table
    return list(zip(table["clip"].to_pylist(), table["frame"].to_pylist(), strict=True))


def test_frames_are_stored_once_clip_by_clip(reds: Path, photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(reds, tmp_path / "d.lmdb", layout="clips", parts=3)
    assert frames(tmp_path / "d.lmdb") == [(clip, number) for clip, numbers in REDS.items() for number in numbers]
    ds = LMDBDataset(tmp_path / "d.lmdb")
    first = sorted(photos.glob("*.png"))[0]
    assert np.array_equal(ds[5].image.numpy().transpose(1, 2, 0), frame_of(first, 5))
    (offsets, _) = ds.reader.extents(["image"], range(len(ds)))
    assert (np.diff(offsets) > 0).all()
    assert len(Clips(ds, 5)) == 4 * 7


def test_numbers_of_vimeo_are_in_order_and_keys_are_its_own(photos: Path, tmp_path: Path) -> None:
    clips = {"00001/0001": range(1, 12), "00001/0002": range(1, 8)}
    src = save_clips(photos, tmp_path / "sequences", clips, "im{}.png")
    lmdbloader.convert(src, tmp_path / "d.lmdb", layout="clips", scale=4)
    assert frames(tmp_path / "d.lmdb") == [(clip, number) for clip, numbers in clips.items() for number in numbers]
    (tmp_path / "keys.txt").write_text("00001/0002 7 (256,448,3)\n")
    windows = Clips(tmp_path / "d.lmdb", 7, keys=tmp_path / "keys.txt")
    assert [sample.clip for sample in windows] == ["00001/0002"]
    assert windows[0].lr.shape == (7, 3, HEIGHT // 4, WIDTH // 4)


def test_shuffling_moves_whole_clips(reds: Path, tmp_path: Path) -> None:
    orders = []
    for seed in range(4):
        lmdbloader.convert(reds, tmp_path / f"{seed}.lmdb", layout="clips", shuffle=seed)
        found = frames(tmp_path / f"{seed}.lmdb")
        clips = list(dict.fromkeys(clip for clip, _ in found))
        assert found == [(clip, number) for clip in clips for number in REDS[clip]]
        orders.append(tuple(clips))
        assert [sample.clip for sample in Clips(tmp_path / f"{seed}.lmdb", 11)] == clips
    assert len(set(orders)) > 1


def test_pairs_are_matched_by_clip_and_frame(reds: Path, photos: Path, tmp_path: Path) -> None:
    for name in sorted(reds.rglob("*.png")):
        low = tmp_path / "X4" / name.relative_to(reds)
        low.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(downscale(np.asarray(Image.open(name)), 4)).save(low)
    lmdbloader.convert(None, tmp_path / "d.lmdb", hr=reds, lr=tmp_path / "X4", layout="clips", shuffle=1)
    sample = Clips(tmp_path / "d.lmdb", 3)[0]
    assert (sample.lr.shape, sample.hr.shape) == ((3, 3, HEIGHT // 4, WIDTH // 4), (3, 3, HEIGHT, WIDTH))
    for number, low, high in zip(sample.frame.tolist(), sample.lr, sample.hr, strict=True):
        stored = Image.open(reds / sample.clip / f"{number:08d}.png")
        assert np.array_equal(np.asarray(stored).transpose(2, 0, 1), high.numpy())
        assert np.array_equal(downscale(np.asarray(stored), 4).transpose(2, 0, 1), low.numpy())
    (tmp_path / "X4" / "001" / "00000003.png").unlink()
    with pytest.raises(SourceError, match=r"001/00000003\.png"):
        lmdbloader.convert(None, tmp_path / "e.lmdb", hr=reds, lr=tmp_path / "X4", layout="clips")


def test_lmdbs_of_frames_are_clips(reds: Path, tmp_path: Path) -> None:
    """The keys of BasicSR's LMDBs are the paths of frames without a suffix."""
    lows: dict[bytes, bytes] = {}
    highs: dict[bytes, bytes] = {}
    for file in sorted(reds.rglob("*.png")):
        key = str(file.relative_to(reds).with_suffix("")).encode()
        Image.fromarray(downscale(np.asarray(Image.open(file)), 4)).save(low := io.BytesIO(), "PNG")
        lows[key], highs[key] = low.getvalue(), file.read_bytes()
    hr, lr = save_lmdb(tmp_path / "b_gt.lmdb", highs), save_lmdb(tmp_path / "b_lq.lmdb", lows)
    lmdbloader.convert(hr, tmp_path / "one", layout="clips", scale=4, shuffle=1)
    lmdbloader.convert(None, tmp_path / "two", layout="clips", hr=hr, lr=lr)
    lmdbloader.convert(reds, tmp_path / "files", layout="clips", scale=4)
    assert frames(tmp_path / "two") == [(clip, number) for clip, numbers in REDS.items() for number in numbers]
    for name in ("one", "two"):
        windows, expected = Clips(tmp_path / name, 5), Clips(tmp_path / "files", 5, keys=["001/00000004"])[0]
        (found,) = [window for window in windows if (window.clip, window.frame[2]) == ("001", 4)]
        assert len(windows) == 28 and torch.equal(found.hr, expected.hr) and torch.equal(found.lr, expected.lr)
    plain = save_lmdb(tmp_path / "plain.lmdb", {b"baboon": highs[key]})
    with pytest.raises(SourceError, match="baboon: expected a folder for each clip"):
        lmdbloader.convert(plain, tmp_path / "three", layout="clips")


def test_a_frame_that_is_left_out_leaves_a_gap(reds: Path, photos: Path, tmp_path: Path) -> None:
    src = save_clips(photos, tmp_path / "src", {"a": range(9)})
    (src / "a" / "00000004.png").write_bytes(b"broken")
    with pytest.raises(ImageError):
        lmdbloader.convert(src, tmp_path / "d.lmdb", layout="clips")
    lmdbloader.convert(src, tmp_path / "d.lmdb", layout="clips", on_error="skip", restart=True)
    assert [sample.frame.tolist() for sample in Clips(tmp_path / "d.lmdb", 4)] == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_options_that_would_tear_clips_apart_are_refused(reds: Path, tmp_path: Path) -> None:
    degradation: dict[str, Any] = {"degradation": "real_esrgan", "scale": 4}
    for options in (
        degradation,
        {"patch_size": 16},
        {"subset": 4},
        {"classes": ["a"]},
        {"masks": reds},
        {"annotations": reds},
    ):
        with pytest.raises(OptionError, match=next(iter(options))):
            lmdbloader.convert(reds, tmp_path / "d.lmdb", layout="clips", **options)
    assert not (tmp_path / "d.lmdb").exists()


def test_what_is_no_clip_is_refused(photos: Path, tmp_path: Path) -> None:
    def refused(name: str, *names: str) -> str:
        for file in (name, *names):
            (tmp_path / name[:1] / file).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(tmp_path / name[:1] / file)
        with pytest.raises(SourceError) as caught:
            lmdbloader.convert(tmp_path / name[:1], tmp_path / "d.lmdb", layout="clips")
        return str(caught.value)

    assert "numbered frames" in refused("a/first.png")
    assert "are the same frame of a clip" in refused("b/im1.png", "b/im01.png")
    assert "a folder for each clip" in refused("c.png", "000/1.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no frames"):
        lmdbloader.convert(tmp_path / "empty", tmp_path / "d.lmdb", layout="clips")


@pytest.fixture(scope="module")
def videos(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    av: Any = pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("videos")
    for photo, name, count in zip(sorted(photos.glob("*.png")), ("a.mp4", "scenes/b.mkv"), (40, 17), strict=False):
        (folder / name).parent.mkdir(exist_ok=True)
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("mpeg4", rate=24)
            stream.width, stream.height, stream.pix_fmt, stream.gop_size = WIDTH, HEIGHT, "yuv420p", 12
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(frame_of(photo, number), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return folder


def decoded(file: Path) -> list[Any]:
    import av

    with av.open(str(file)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2, "parts": 4, "shuffle": 2}])
def test_frames_of_videos_are_those_that_av_decodes(videos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    lmdbloader.convert(videos, tmp_path / "d.lmdb", layout="clips", **options)
    expected = {"a.mp4": decoded(videos / "a.mp4"), "scenes/b.mkv": decoded(videos / "scenes" / "b.mkv")}
    assert {clip: len(found) for clip, found in expected.items()} == {"a.mp4": 40, "scenes/b.mkv": 17}
    ds = LMDBDataset(tmp_path / "d.lmdb")
    assert len(ds) == 57
    for sample in ds:
        assert np.array_equal(sample.image.numpy().transpose(1, 2, 0), expected[sample.clip][sample.frame])
    assert len(Clips(ds, 5)) == 36 + 13


def test_a_video_that_cannot_be_read_is_named(videos: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def refused(name: str, content: bytes, *files: str) -> str:
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(content)
        with pytest.raises((SourceError, ImageError)) as caught:
            lmdbloader.convert(tmp_path / name, tmp_path / f"{name}.lmdb", layout="clips", workers=0)
        return str(caught.value)

    whole = (videos / "scenes" / "b.mkv").read_bytes()
    assert "bad.mp4" in refused("noise", bytes(1000), "bad.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    assert "lmdbloader[video]" in refused("no av", whole, "a.mkv")
