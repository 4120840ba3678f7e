"""Clips: windows of frames that are stored once, with the same choices for all frames of a window."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moving_photos import frame_of
from torch.utils.data import ConcatDataset, DataLoader, Subset

import lmdbloader
from lmdbloader import Clips, LMDBDataset, Loader, fields
from lmdbloader import transforms as T
from lmdbloader.errors import CorruptError, OptionError, UnknownNameError
from lmdbloader.transforms import (
    ColorJitter,
    CompiledFunction,
    MixUp,
    Normalize,
    RandomCrop,
    RandomDihedral,
    RandomErasing,
    ToDtype,
    WithIndices,
)

LENGTHS = {"000": range(12), "a b/0001": range(1, 8), "short": range(2), "gap": [3, 4, 5, 7, 8, 9, 10, 11, 15]}
TRANSFORMS = [RandomCrop(24), RandomDihedral(), ColorJitter(brightness=0.4), RandomErasing(p=0.5)]
Frame = tuple[str, int]


def samples(photos: Path) -> Iterator[dict[str, Any]]:
    files = sorted(photos.glob("*.png"))
    for k, (clip, numbers) in enumerate(LENGTHS.items()):
        for number in numbers:
            yield {
                "hr": frame_of(files[k], number), "clip": clip, "frame": number, "note": f"{clip}:{number}",
                "time": number / 24, "boxes": np.array([[1, 2, 3 + number, 40]], np.float32),
            }  # fmt: skip


@pytest.fixture(scope="module")
def path(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clips") / "d.lmdb"
    lmdbloader.write(samples(photos), out, fields={"boxes": fields.Boxes("hr")})
    return out


@pytest.fixture(scope="module")
def ds(path: Path) -> LMDBDataset:
    return LMDBDataset(path, fields=["hr", "clip", "frame"])


def windows_of(frames: Sequence[Frame], count: int, intervals: Sequence[int]) -> list[list[list[Frame]]]:
    """Return the windows around each frame, in plain Python: one for each interval at which it fits."""
    found = []
    for clip in dict.fromkeys(clip for clip, _ in frames):
        for _, middle in sorted(frame for frame in frames if frame[0] == clip):
            around = [[(clip, middle + (k - count // 2) * step) for k in range(count)] for step in intervals]
            if fitting := [window for window in around if all(frame in frames for frame in window)]:
                found.append(fitting)
    return found


def read(clips: Any) -> list[list[Frame]]:
    return [[(sample.clip, number) for number in sample.frame.tolist()] for sample in clips]


@given(
    numbers=st.lists(st.sets(st.integers(0, 14), max_size=12), min_size=1, max_size=4),
    count=st.integers(1, 5),
    intervals=st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
    reverse=st.booleans(),
    data=st.data(),
)
def test_windows_are_those_of_a_plain_enumeration(
    numbers: list[set[int]], count: int, intervals: list[int], reverse: bool, data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    frames = [(f"clip {k}", number) for k, chosen in enumerate(numbers) for number in chosen]
    frames = data.draw(st.permutations(frames)) if data.draw(st.booleans()) else frames
    path = tmp_path_factory.mktemp("random") / "d.lmdb"
    lmdbloader.write([{"clip": "other", "frame": 0}, *({"clip": clip, "frame": n} for clip, n in frames)], path)
    view = LMDBDataset(path)[1:]
    expected = windows_of(frames, count, intervals)
    if not expected:
        with pytest.raises(OptionError, match="no window"):
            Clips(view, count, interval=intervals)
        return
    found = read(Clips(view, count, interval=intervals, random_reverse=reverse))
    assert len(found) == len(expected)
    for window, fitting in zip(found, expected, strict=True):
        assert window in fitting or (reverse and window[::-1] in fitting)


def test_a_sample_has_windows_of_all_fields(path: Path) -> None:
    sample = Clips(path, 3)[1]
    assert sample.hr.shape == (3, 3, 48, 64)
    assert sample.clip == "000"
    assert sample.frame.tolist() == [1, 2, 3]
    assert sample.note == ["000:1", "000:2", "000:3"]
    assert sample.time.tolist() == [1 / 24, 2 / 24, 3 / 24]
    assert [boxes.tolist() for boxes in sample.boxes] == [[[1, 2, 3 + k, 40]] for k in (1, 2, 3)]
    even = Clips(path, 4)
    assert even[0].frame.tolist() == [0, 1, 2, 3]
    assert Clips(path, 1)[-1].frame.tolist() == [15]


def test_loaders_of_both_kinds_give_the_same_batches(path: Path) -> None:
    clips = Clips(path, 3)
    ours = list(Loader(clips, 4))
    for others in (
        lmdbloader.dataloader(clips, 4),
        lmdbloader.dataloader(clips, 4, num_workers=1),
        DataLoader(clips, 4, collate_fn=lmdbloader.collate),
        DataLoader(clips, 4, collate_fn=lambda samples: lmdbloader.collate(list(samples))),
        DataLoader(Subset(clips, range(len(clips))), 4, collate_fn=lmdbloader.collate),
    ):
        theirs = list(others)
        assert len(ours) == len(theirs) == -(-len(clips) // 4)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.hr, b.hr)
            assert torch.equal(a.frame, b.frame)
            assert (a.clip, a.note) == (b.clip, b.note)
            assert torch.equal(
                torch.stack([torch.stack(w) for w in a.boxes]), torch.stack([*map(torch.stack, b.boxes)])
            )
            assert torch.equal(a.time, b.time)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_frames_of_a_window_have_the_choices_that_one_sample_has(
    ds: LMDBDataset, photos: Path, memory_format: torch.memory_format
) -> None:
    # The middle frame, read as a sample of its own with the same number, has the same crop, turn, colors and erasing.
    clips, files = Clips(ds.where("clip == '000'"), 5), sorted(photos.glob("*.png"))
    middles = ds.where("clip == '000'")[2:10]
    singles = list(Loader(middles, 3, seed=4, shuffle=False, transforms=TRANSFORMS))
    loader = Loader(clips, 3, seed=4, shuffle=False, transforms=TRANSFORMS, memory_format=memory_format)
    for batch, single in zip(loader, singles, strict=True):
        assert batch.hr.shape == (len(single.hr), 5, 3, 24, 24)
        assert torch.equal(batch.hr[:, 2], single.hr)
    # Without colors and erasing: the same piece of every frame, mirrored and turned alike, by NumPy.
    for batch in Loader(clips, 3, seed=4, shuffle=True, transforms=[RandomCrop(24), RandomDihedral()]):
        for window, numbers in zip(batch.hr.numpy(), batch.frame.tolist(), strict=True):
            frames = [frame_of(files[0], number).transpose(2, 0, 1) for number in numbers]
            places = [
                (top, left, turn, mirror)
                for top in range(48 - 23) for left in range(64 - 23) for turn in range(4) for mirror in (1, -1)
                if np.array_equal(moved(frames[0], top, left, turn, mirror), window[0])
            ]  # fmt: skip
            assert any(
                all(np.array_equal(moved(frame, *p), seen) for frame, seen in zip(frames, window, strict=True))
                for p in places
            )


def moved(frame: Any, top: int, left: int, turn: int, mirror: int) -> Any:
    return np.rot90(frame[:, top : top + 24, left : left + 24], turn, (1, 2))[:, :, ::mirror]


def by_window(loader: Any) -> dict[Any, Any]:
    """Return the images of windows by clip and middle frame."""
    return {
        (clip, frame[2].item()): (frame.tolist(), images)
        for batch in loader
        for clip, frame, images in zip(batch.clip, batch.frame, batch.hr, strict=True)
    }


def test_noise_is_new_in_every_frame(tmp_path: Path) -> None:
    grey = np.full((20, 30, 3), 128, np.uint8)
    lmdbloader.write([{"hr": grey, "clip": "a", "frame": k} for k in range(7)], tmp_path / "d")
    clips, noise = Clips(tmp_path / "d", 3), [T.GaussianNoise(sigma=0.1, p=0.5)]
    (whole,) = Loader(clips, 5, transforms=noise, seed=2, shuffle=False)
    parts = Loader(clips, 2, transforms=noise, seed=2, shuffle=False, num_threads=2)
    assert torch.equal(whole.hr, torch.cat([batch.hr for batch in parts]))
    view = Clips(LMDBDataset(tmp_path / "d").transformed(noise, seed=2), 3)
    assert torch.equal(whole.hr, torch.stack([sample.hr for sample in view]))
    values = whole.hr.flatten(2).double() - 128
    is_noisy = values.abs().amax(2) > 0
    assert torch.equal(is_noisy, is_noisy[:, :1].expand(-1, 3))  # they are alike in whether there is noise
    assert 0 < int(is_noisy[:, 0].sum()) < 5
    alike = torch.corrcoef(values[is_noisy[:, 0]].flatten(0, 1))
    assert float((alike - torch.eye(len(alike))).abs().max()) < 0.15


def test_the_choices_depend_on_seed_epoch_and_sample_alone(ds: LMDBDataset) -> None:
    def loaded(**options: Any) -> dict[Any, Any]:
        clips = Clips(ds, 5, interval=[1, 2], random_reverse=True)
        given = {"batch_size": 3, "seed": 7, "shuffle": True, "transforms": TRANSFORMS, **options}
        loader = Loader(clips, **given)
        loader.set_epoch(2)
        return by_window(loader)

    expected = loaded()
    assert len(expected) == len(Clips(ds, 5, interval=[1, 2]))
    quasi, large = {"shuffle": None, "order": "quasi_random"}, {"batch_size": 100, "prefetch": 0}
    for options in ({"batch_size": 1}, {"batch_size": 7, "num_threads": 1}, {"num_threads": 2}, quasi, large):
        assert_equal(loaded(**options), expected)
    assert_equal(loaded(shard=(0, 2)) | loaded(shard=(1, 2)), expected)
    other = loaded(seed=8)
    assert any(other[key][0] != expected[key][0] for key in expected)


def assert_equal(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, (frames, images) in found.items():
        assert frames == expected[key][0]
        assert torch.equal(images, expected[key][1])


def test_intervals_and_directions_are_drawn_evenly(path: Path, tmp_path: Path) -> None:
    lmdbloader.write(({"clip": "a", "frame": k} for k in range(400)), tmp_path / "d.lmdb")
    loader = Loader(Clips(tmp_path / "d.lmdb", 3, interval=[1, 2, 3], random_reverse=True), 50, shuffle=False, repeat=3)
    steps = torch.cat([batch.frame[:, 1] - batch.frame[:, 0] for _ in range(2) for batch in loader])
    counts = [int((steps == step).sum()) for step in (-3, -2, -1, 1, 2, 3)]
    assert sum(counts) == 2 * 3 * 398
    assert all(abs(count - 398) < 5 * 18.2 for count in counts)  # five standard deviations


def test_an_epoch_resumes_in_the_middle(ds: LMDBDataset) -> None:
    def made(**options: Any) -> Loader:
        clips = Clips(ds, 3, interval=[2, 1], random_reverse=True)
        return Loader(clips, 4, shuffle=True, seed=1, transforms=[RandomCrop(24)], **options)

    loader = made()
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state, copied = loader.state_dict(), pickle.loads(pickle.dumps(loader))
    rest = list(batches)
    again = made(num_threads=1)
    again.load_state_dict(state)
    for others in (list(copied), list(again)):
        assert len(first) + len(others) == len(loader)
        assert all(torch.equal(a.hr, b.hr) and a.clip == b.clip for a, b in zip(rest, others, strict=True))
    for other in (Clips(ds, 3), Clips(ds, 3, interval=[2, 1]), Clips(ds, 4, interval=[2, 1], random_reverse=True), ds):
        with pytest.raises(OptionError, match="another"):
            Loader(other, 4, shuffle=True, seed=1).load_state_dict(state)


def test_views_of_frames_make_windows_of_their_own(ds: LMDBDataset) -> None:
    assert {clip for (clip, _), *_ in read(Clips(ds.where("clip != '000'"), 3))} == {"a b/0001", "gap"}
    odd = [k for k, sample in enumerate(ds) if sample.frame % 2]
    assert all(frame % 2 for window in read(Clips(ds.select(odd), 3, interval=2)) for _, frame in window)
    with pytest.raises(OptionError, match="no window of 2 frames"):
        Clips(ds.select(odd).where("clip == '000'"), 2)
    train, val = ds.split([0.5, 0.5], seed=1)  # by clip
    assert not set(train.table["clip"].to_pylist()) & set(val.table["clip"].to_pylist())
    assert len(train.split([0.5, 0.5], by=None)[0])


def test_keys_choose_clips_and_frames(ds: LMDBDataset, tmp_path: Path) -> None:
    assert read(Clips(ds, 3, keys=["gap"])) == [window for window in read(Clips(ds, 3)) if window[0][0] == "gap"]
    assert read(Clips(ds, 3, keys=["000/00000004", "a b/0001/2"])) == [
        [("000", 3), ("000", 4), ("000", 5)], [("a b/0001", 1), ("a b/0001", 2), ("a b/0001", 3)]
    ]  # fmt: skip
    listed = tmp_path / "meta_info.txt"
    listed.write_text("\ufeff000 12 (48,64,3)\n\ngap 9 (48,64,3)\n", "utf-8")  # an editor of Windows writes the mark
    assert {window[0][0] for window in read(Clips(ds, 3, keys=listed))} == {"000", "gap"}
    for key in ("000/00000012", "gap/6", "short", "other", "other/00000001", "000/", "000/x"):
        with pytest.raises(OptionError, match=key):
            Clips(ds, 3, keys=[key])
    with pytest.raises(OptionError, match="no window of 3 frames fits there"):
        Clips(ds, 3, keys=["000/00000000"])


def test_functions_get_windows_and_compiled_ones_frames(ds: LMDBDataset) -> None:
    def brighter(image: Any, out: Any, amount: float) -> None:
        for c in range(image.shape[0]):
            for y in range(image.shape[1]):
                for x in range(image.shape[2]):
                    out[c, y, x] = min(image[c, y, x] + amount, 255)

    def seen(batch: Any, indices: Any) -> Any:
        shapes.append((tuple(batch.hr.shape), len(indices)))
        return batch._replace(hr=batch.hr.float())

    shapes: list[Any] = []
    step = CompiledFunction(brighter, draw={"amount": (0, 60)})
    clips = Clips(ds.where("clip == '000'"), 5)
    plain = list(Loader(clips, 4, seed=1, shuffle=False))
    changed = list(Loader(clips, 4, seed=1, shuffle=False, transforms=[step, WithIndices(seen)], as_="dict"))
    assert shapes == [((4, 5, 3, 48, 64), 4)] * 2
    for before, after in zip(plain, changed, strict=True):
        assert after["clip"] == before.clip
        gains = (after["hr"] - before.hr).amax((2, 3, 4))  # some pixel of each frame is dark
        assert torch.equal(gains, gains[:, :1].expand_as(gains))  # one draw for all frames
        assert len(gains[:, 0].unique()) > 1

    class Pair(NamedTuple):
        hr: torch.Tensor
        other: torch.Tensor

    def with_other(batch: Any) -> Any:  # a row for each frame, which is not of the dataset
        return Pair(batch.hr, torch.zeros(len(batch.hr) * 5, 2))

    assert next(iter(Loader(clips, 4, shuffle=False, transforms=[with_other, step]))).other.shape == (20, 2)
    middle = [lambda batch: batch._replace(hr=batch.hr[:, 2]), step]
    with pytest.raises(OptionError, match="expected a tensor of 20 images"):
        next(iter(Loader(clips, 4, shuffle=False, transforms=middle)))
    with pytest.raises(OptionError, match="images"):
        next(iter(Loader(clips, 4, shuffle=False, transforms=[MixUp(num_classes=2, image="hr", label="frame")])))


def test_values_and_masks_of_windows(photos: Path, tmp_path: Path) -> None:
    file = sorted(photos.glob("*.png"))[0]
    made = (
        {"image": frame_of(file, k), "mask": frame_of(file, k)[..., 0] % 3, "clip": "a", "frame": k} for k in range(6)
    )
    lmdbloader.write(made, tmp_path / "d.lmdb", fields={"mask": fields.Mask()})
    clips = Clips(LMDBDataset(tmp_path / "d.lmdb"), 3)
    values = [ToDtype(torch.float32, scale=True), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    (batch,) = Loader(clips, 8, seed=1, shuffle=True, transforms=[RandomCrop(24), *values])
    assert batch.image.shape == (4, 3, 3, 24, 24)
    assert batch.mask.shape == (4, 3, 24, 24)
    assert torch.equal((batch.image[:, :, 0] * 127.5 + 127.5).round().int() % 3, batch.mask.int())


def test_a_view_with_a_seed_gives_the_same_windows_at_every_read(ds: LMDBDataset) -> None:
    view = ds.transformed([RandomCrop(24)], seed=3)
    clips = Clips(view, 3, interval=[1, 2], random_reverse=True)
    assert all(torch.equal(clips[k].hr, clips[k].hr) for k in range(len(clips)))
    ours = list(Loader(clips, 4, shuffle=False))
    theirs = list(lmdbloader.dataloader(clips, 4, num_workers=0))
    assert all(torch.equal(a.hr, b.hr) and torch.equal(a.frame, b.frame) for a, b in zip(ours, theirs, strict=True))
    view.set_epoch(1)
    assert any(not torch.equal(clips[k].hr, ours[0].hr[k]) for k in range(4))
    unseeded = Clips(ds, 3, interval=[1, 2, 3, 4], random_reverse=True)
    assert len({tuple(unseeded[5].frame.tolist()) for _ in range(20)}) > 1


def test_what_is_no_clip_is_refused(ds: LMDBDataset, path: Path, tmp_path: Path) -> None:
    lmdbloader.write(({"image": np.zeros((4, 4, 3), np.uint8)} for _ in range(3)), tmp_path / "images.lmdb")
    with pytest.raises(UnknownNameError, match="--layout clips"):
        Clips(tmp_path / "images.lmdb", 3)
    with pytest.raises(OptionError, match="frame 0 of clip '000'"):
        Clips(ds[[0, 1, 0]], 1)
    with pytest.raises(OptionError, match="transform of its own"):
        Clips(LMDBDataset(path, transform=lambda sample: sample), 3)
    clips = Clips(ds, 3)
    for wrong in (
        lambda: lmdbloader.mix([clips, clips]), lambda: Loader(ConcatDataset([clips, clips]), 2),
        lambda: Loader(Subset(clips, [0, 1]), 2), lambda: clips[:4], lambda: clips[[0, 1]],
        lambda: Clips(lmdbloader.mix([ds, ds]), 3), lambda: Clips(ds, 3, interval=[1, 1]),
        lambda: Clips(ds, 3, interval=[]), lambda: Clips(ds, 0), lambda: Clips(ds, 3, interval=0),
        lambda: Clips(ds[:0], 3),
    ):  # fmt: skip
        with pytest.raises(OptionError):
            wrong()
    with pytest.raises(IndexError):
        clips[len(clips)]
    own = LMDBDataset(path, fields=["hr"])
    late = Clips(own, 3)
    own.transform = lambda sample: sample  # type: ignore[method-assign]
    for read in (lambda: late[0], lambda: next(iter(Loader(late, 2)))):
        with pytest.raises(OptionError, match="transform of its own"):
            read()

    class Changed(Clips):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)._replace(hr=None)

    with pytest.raises(OptionError, match="Changed overrides __getitem__"):
        Loader(Changed(ds, 3), 2)
    sizes = [{"hr": np.zeros((8 + k // 2, 9, 3), np.uint8), "clip": "ab"[k // 3], "frame": k % 3} for k in range(6)]
    lmdbloader.write(sizes, tmp_path / "sizes.lmdb")
    with pytest.raises(OptionError, match=r"'hr' of clip 'a' differs in size.*where\(\"clip != 'a'\"\)"):
        Clips(tmp_path / "sizes.lmdb", 2)
    assert len(Clips(LMDBDataset(tmp_path / "sizes.lmdb", fields=["clip", "frame"]), 2)) == 4
    assert len(Clips(tmp_path / "sizes.lmdb", 1)) == 6


def test_damage_to_a_frame_is_named_or_its_windows_are_left_out(path: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "d.lmdb"
    shutil.copytree(path, broken)
    reader = LMDBDataset(path).reader
    (offset,), _ = reader.extents(["hr"], np.array([4]))
    with open(broken / "data.mdb", "r+b") as file:
        file.seek(int(offset) + 100)
        found = file.read(8)
        file.seek(int(offset) + 100)
        file.write(bytes(255 - byte for byte in found))
    clips = Clips(broken, 3)
    with pytest.raises(CorruptError):
        list(Loader(clips, 4))
    loader = Loader(clips, 4, on_corrupt="skip")
    found = [window for batch in loader for window in batch.frame.tolist() if "000" in batch.clip]
    assert sum(len(batch.clip) for batch in loader) == len(clips) - 3
    assert [damage.field for damage in loader.corrupt] == ["hr"]
    assert found
